"""A real Prometheus that finds pods through the API server and scrapes them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import yaml

from tonnage_lab import assets
from tonnage_lab.controlplane import ControlPlane
from tonnage_lab.processes import answers, free_ports
from tonnage_lab.progress import Step, silent

SCRAPE_INTERVAL_S: Final = 15
LONGEST_SCRAPE_TIMEOUT_S: Final = 10
START_TIMEOUT_S: Final = 60.0


def start(
    plane: ControlPlane,
    *,
    scrape_interval_s: int = SCRAPE_INTERVAL_S,
    program: Path | None = None,
    step: Step = silent,
) -> str:
    """Start Prometheus beside a control plane and return its address.

    Its storage is in the control plane's folder.
    """
    program = assets.ensure(["prometheus"], step=step)["prometheus"] if program is None else program
    folder = plane.folder / "prometheus"
    folder.mkdir(parents=True, exist_ok=True)
    configuration = folder / "prometheus.yaml"
    configuration.write_text(
        yaml.safe_dump(scrape_configuration(plane.kubeconfig, scrape_interval_s), sort_keys=False)
    )
    (port,) = free_ports(1)
    url = f"http://127.0.0.1:{port}"
    with step("starting Prometheus"):
        plane.group.start("prometheus", [program, *_flags(configuration, folder / "data", port)])
        plane.group.wait_until(
            answers(f"{url}/-/ready"),
            what="Prometheus is ready",
            timeout_s=START_TIMEOUT_S,
            needs=("prometheus",),
        )
    return url


def _flags(configuration: Path, storage: Path, port: int) -> list[str]:
    return [
        f"--config.file={configuration}",
        f"--storage.tsdb.path={storage}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--log.level=warn",
    ]


def scrape_configuration(kubeconfig: Path | None, scrape_interval_s: int) -> dict[str, object]:
    """Return a configuration for the pods of managed Deployments, and for the operator's own.

    A target is a container port named ``http`` of a pod that carries the watch label, or that of
    the chart. Series of engines get ``namespace`` and ``pod``, which is what the operator joins
    them by; those of the operator keep the namespace that they name. Without a kubeconfig,
    Prometheus is a pod and uses its own account.
    """
    return {
        "global": {
            "scrape_interval": f"{scrape_interval_s}s",
            "scrape_timeout": f"{scrape_timeout_s(scrape_interval_s)}s",
        },
        "scrape_configs": [
            _job("tonnage", kubeconfig, {"tonnage_dev_managed": "true"}),
            _job("tonnage-operator", kubeconfig, {"app_kubernetes_io_name": "tonnage"})
            | {"honor_labels": True},
        ],
    }


def _job(name: str, kubeconfig: Path | None, labels: Mapping[str, str]) -> dict[str, object]:
    """Return what scrapes the pods with some labels."""
    pod = "__meta_kubernetes_pod"
    access = {} if kubeconfig is None else {"kubeconfig_file": str(kubeconfig)}
    return {
        "job_name": name,
        "metrics_path": "/metrics",
        "kubernetes_sd_configs": [{"role": "pod"} | access],
        "relabel_configs": [
            *(_keep(f"{pod}_label_{label}", value) for label, value in labels.items()),
            _keep(f"{pod}_container_port_name", "http"),
            _keep(f"{pod}_phase", "Pending|Running"),
            _copy("__meta_kubernetes_namespace", "namespace"),
            _copy(f"{pod}_name", "pod"),
        ],
    }


def scrape_timeout_s(scrape_interval_s: int) -> int:
    """Return how long a scrape may take: below the interval, in whole seconds.

    >>> scrape_timeout_s(15), scrape_timeout_s(5), scrape_timeout_s(1)
    (10, 4, 1)
    """
    return max(1, min(LONGEST_SCRAPE_TIMEOUT_S, scrape_interval_s - 1))


def _keep(label: str, pattern: str) -> dict[str, object]:
    return {"action": "keep", "source_labels": [label], "regex": pattern}


def _copy(label: str, target: str) -> dict[str, object]:
    return {"source_labels": [label], "target_label": target}
