"""A real Prometheus that finds pods through the API server and scrapes them."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import yaml

from tonnage_lab import assets
from tonnage_lab.controlplane import ControlPlane
from tonnage_lab.processes import answers, free_ports
from tonnage_lab.progress import Step, silent

SCRAPE_INTERVAL_S: Final = 15
LONGEST_SCRAPE_TIMEOUT_S: Final = 10
START_TIMEOUT_S: Final = 60.0


class Monitor(NamedTuple):
    """What a user's PodMonitor, or ServiceMonitor, makes Prometheus scrape."""

    name: str
    labels: Mapping[str, str]
    """Of the pods, as Prometheus names them."""
    port: str
    """Name of the container port; empty: it has none."""
    prefix: str = ""
    """Before the names of the series."""


def start(
    plane: ControlPlane,
    *,
    monitors: Sequence[Monitor] = (),
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
        yaml.safe_dump(
            scrape_configuration(plane.kubeconfig, scrape_interval_s, monitors), sort_keys=False
        )
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


def scrape_configuration(
    kubeconfig: Path | None, scrape_interval_s: int, monitors: Sequence[Monitor] = ()
) -> dict[str, object]:
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
            _job(Monitor("tonnage", {"tonnage_dev_managed": "true"}, "http"), kubeconfig),
            _job(
                Monitor("tonnage-operator", {"app_kubernetes_io_name": "tonnage"}, "http"),
                kubeconfig,
            )
            | {"honor_labels": True},
            *(_job(each, kubeconfig) for each in monitors),
        ],
    }


def _job(monitor: Monitor, kubeconfig: Path | None) -> dict[str, object]:
    """Return what scrapes the pods with some labels."""
    pod = "__meta_kubernetes_pod"
    access = {} if kubeconfig is None else {"kubeconfig_file": str(kubeconfig)}
    renamed = {
        "source_labels": ["__name__"], "target_label": "__name__",
        "replacement": f"{monitor.prefix}$1",
    }  # fmt: skip
    return {
        "job_name": monitor.name,
        "metrics_path": "/metrics",
        "kubernetes_sd_configs": [{"role": "pod"} | access],
        "relabel_configs": [
            *(_keep(f"{pod}_label_{label}", value) for label, value in monitor.labels.items()),
            _keep(f"{pod}_container_port_name", monitor.port),
            _keep(f"{pod}_phase", "Pending|Running"),
            _copy("__meta_kubernetes_namespace", "namespace"),
            _copy(f"{pod}_name", "pod"),
        ],
        "metric_relabel_configs": [renamed] if monitor.prefix else [],
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
