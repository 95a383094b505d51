"""A whole lab: control plane, Prometheus, GPU nodes whose pods run, and the installed operator.

The operator is a pod like any other, installed by Helm and run with its ServiceAccount's own
rights: what the chart grants is what is tested.
"""

import json
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml

from tonnage_lab import assets, prometheus, state
from tonnage_lab.controlplane import ControlPlane
from tonnage_lab.kubectl import Kubectl, is_true
from tonnage_lab.processes import free_ports, run, wait_until
from tonnage_lab.progress import Step, silent

NAMESPACE: Final = "tonnage-system"
VLLM_IMAGE: Final = "((vllm|lmcache)/vllm-openai|ghcr[.]io/llm-d/llm-d(-cuda)?):.*"
OPERATOR_REPOSITORY: Final = ".*/operator"
HIDDEN_EFFICIENCY: Final = 0.60
"""Of the emulated engines' bandwidth; the prior says 0.82, so the first plan is too hopeful."""
NODE_TIMEOUT_S: Final = 60.0
OPERATOR_TIMEOUT_S: Final = 90.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuNode:
    """A node of the lab: its name, the label of its GPUs, and how many there are."""

    name: str
    product: str
    num_gpus: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineProgram:
    """What runs in place of vLLM's image."""

    command: tuple[str, ...]
    """That stands for ``vllm``."""
    environment: Mapping[str, str]
    """In place of the image's own."""
    probe_period_scale: float = 0.1
    """Multiplies periods of its probes: an engine that starts slowly needs a larger budget. Of
    engines only: at a tenth of its period, liveness would end an operator that waits for a core."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteConfig:
    """The parts of a lab beside the control plane."""

    nodes: tuple[GpuNode, ...]
    truth: Mapping[str, Any] = field(default_factory=dict)
    """Hidden constants of the emulated engines: the operator never sees them."""
    engine: EngineProgram | None = None
    """None: emulated engines."""
    gpu_classes: Mapping[str, str] = field(default_factory=dict)
    """Classes that an administrator adds to the catalogue: file name to TOML text."""
    operators: Mapping[str, Path] = field(default_factory=dict)
    """Interpreters that hold other versions of Tonnage, by the tag of the operator's image."""
    scrape_interval_s: int = 5
    monitors: tuple[prometheus.Monitor, ...] = ()
    """Of users, beside that of the lab."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the operator that differ from the chart's."""


STANDARD: Final = SiteConfig(
    nodes=(GpuNode(name="gpu-0", product="NVIDIA-H200", num_gpus=8),),
    truth={"load_s": 4.0, "step": {"gpu": "H200", "bandwidth_efficiency": HIDDEN_EFFICIENCY}},
    settings={"tickS": 5, "coldStartS": 10, "scaleDownWindowS": 40, "statusIntervalS": 5},
)
"""A node of eight H200 whose engines are slower than the prior believes and 'load weights' in 4 s.

Everything is faster than in production, where ticks and scrapes are 15 s, the window 5 minutes, and
a start is expected to take 4.
"""


def start_nodes(plane: ControlPlane, config: SiteConfig, *, step: Step = silent) -> None:
    """Start the pod runner with its nodes, and wait until they are Ready."""
    folder = plane.folder / "runner"
    folder.mkdir(parents=True, exist_ok=True)
    engine = config.engine or _emulator(folder, config.truth)
    file = folder / "runner.yaml"
    file.write_text(yaml.safe_dump(_runner_config(folder, engine, config), sort_keys=False))
    command: list[str | Path] = [sys.executable, "-m", "tonnage_lab.runner"]
    with step("starting GPU nodes"):
        plane.group.start("runner", [*command, "--kubeconfig", plane.kubeconfig, "--config", file])
        names = {node.name for node in config.nodes}
        plane.group.wait_until(
            lambda: names <= _ready_nodes(plane.kubectl),
            what="the nodes are Ready",
            timeout_s=NODE_TIMEOUT_S,
            needs=("runner",),
        )


def _emulator(folder: Path, hidden: Mapping[str, Any]) -> EngineProgram:
    truth = folder / "truth.json"
    truth.write_text(json.dumps(dict(hidden)))
    return EngineProgram(
        command=(sys.executable, "-m", "tonnage_lab.emulator"),
        environment={"TONNAGE_LAB_TRUTH": str(truth)},
    )


def _runner_config(folder: Path, engine: EngineProgram, config: SiteConfig) -> dict[str, Any]:
    nodes = [
        {
            "name": node.name,
            "gpus": node.num_gpus,
            "labels": {"nvidia.com/gpu.product": node.product, "nvidia.com/gpu.present": "true"},
        }
        for node in config.nodes
    ]
    return {
        "state_directory": str(folder / "state"),
        "nodes": nodes,
        "images": [
            {
                "image": VLLM_IMAGE,
                "command": [*engine.command, "serve"],
                "programs": {"vllm": list(engine.command)},
                "environment": dict(engine.environment),
                "probe_period_scale": engine.probe_period_scale,
            },
            *(
                _operator(f"{OPERATOR_REPOSITORY}:{re.escape(tag)}", python)
                for tag, python in config.operators.items()
            ),
            _operator(f"{OPERATOR_REPOSITORY}:.*", sys.executable),
        ],
        "restart_delay_scale": 0.1,
        "pre_stop_limit_s": 1.0,
    }


def _operator(image: str, python: str | Path) -> dict[str, Any]:
    command = [str(python), "-m", "tonnage"]
    return {"image": image, "command": command, "programs": {"tonnage": command}}


def _ready_nodes(kubectl: Kubectl) -> set[str]:
    nodes = kubectl.get("nodes")["items"]
    return {node["metadata"]["name"] for node in nodes if is_true(node, "Ready")}


def install_operator(
    plane: ControlPlane,
    prometheus_url: str,
    config: SiteConfig,
    *,
    on_host: bool = True,
    step: Step = silent,
) -> None:
    """Install the chart, as a user would, and wait until the operator is Ready.

    ``on_host``: in the network of the machine, where its Prometheus is; else a pod like others.
    """
    helm = assets.ensure(["helm"], step=step)["helm"]
    values = plane.folder / "values.yaml"
    given = _chart_values(prometheus_url, config) | (_on_host() if on_host else {})
    values.write_text(yaml.safe_dump(given, sort_keys=False))
    chart = assets.of_checkout("charts") / "tonnage"
    with step("installing the operator"):
        run(
            [
                helm, "upgrade", "--install", "tonnage", chart, "--kubeconfig", plane.kubeconfig,
                "--namespace", NAMESPACE, "--create-namespace", "--values", values,
            ]
        )  # fmt: skip
        wait_until(
            lambda: operator_is_ready(plane.kubectl),
            what="the operator is Ready",
            timeout_s=OPERATOR_TIMEOUT_S,
        )


def _chart_values(prometheus_url: str, config: SiteConfig) -> dict[str, Any]:
    (probe_port,) = free_ports(1)
    settings = {
        "prometheusUrl": prometheus_url,
        "scrapeIntervalS": config.scrape_interval_s,
        "probePort": probe_port,
    }
    return {
        "image": {"repository": "tonnage/operator", "tag": "lab"},
        "crds": {"install": False},  # there before the controllers started, see controlplane.py
        "affinity": None,
        "settings": settings | dict(config.settings),
        "gpuClasses": dict(config.gpu_classes),
    }


def _on_host() -> dict[str, Any]:
    """Return what takes the operator to the nodes whose pods are processes of this machine."""
    return {"hostNetwork": True, "nodeSelector": {"nvidia.com/gpu.present": "true"}}


def operator_is_ready(kubectl: Kubectl) -> bool:
    """Tell whether a pod of the operator is Ready."""
    return any(is_true(pod, "Ready") for pod in kubectl.get("pods", "-n", NAMESPACE)["items"])


def start(plane: ControlPlane, config: SiteConfig, *, step: Step = silent) -> str:
    """Start everything beside a control plane; return Prometheus' address."""
    url = prometheus.start(
        plane, monitors=config.monitors, scrape_interval_s=config.scrape_interval_s, step=step
    )
    start_nodes(plane, config, step=step)
    install_operator(plane, url, config, step=step)
    return url


def as_part(config: SiteConfig) -> state.Part:
    """Return the site as a part of a lab that outlives the command that starts it."""

    def part(plane: ControlPlane, step: Step) -> Mapping[str, str]:
        return {"prometheus": start(plane, config, step=step)}

    return part
