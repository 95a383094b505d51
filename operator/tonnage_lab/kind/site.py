"""A whole lab on kind: Prometheus, engines and the operator, all of them pods of images.

Nothing runs in the network of the machine: the operator finds Prometheus by its name in DNS, and
Prometheus the engines by their addresses.
"""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import yaml

from tonnage.termination import termination_raises
from tonnage_lab import assets, prometheus, site
from tonnage_lab.controlplane import ControlPlane
from tonnage_lab.kind import cluster, images
from tonnage_lab.kind.cluster import KindCluster
from tonnage_lab.processes import LabError, answers, wait_until
from tonnage_lab.progress import Step, silent
from tonnage_lab.site import SiteConfig

MONITORING: Final = "monitoring"
PORT: Final = 9090
URL_IN_CLUSTER: Final = f"http://prometheus.{MONITORING}.svc:{PORT}"
PROMETHEUS_TIMEOUT_S: Final = 120.0


@contextmanager
def running_site(
    config: SiteConfig, crds: Path, *, step: Step = silent
) -> Iterator[tuple[KindCluster, str]]:
    """Yield a cluster with everything on it, and Prometheus' address; delete it in the end.

    Raises:
        LabError: this machine cannot run it.
    """
    with termination_raises(), tempfile.TemporaryDirectory(prefix="tonnage-") as folder:
        made = cluster.start(Path(folder), nodes=config.nodes, crds=crds, step=step)
        try:
            yield made, start(made, config, step=step)
        finally:
            with step("stopping everything"):
                made.plane.stop()


def start(made: KindCluster, config: SiteConfig, *, step: Step = silent) -> str:
    """Start everything beside a cluster; return Prometheus' address, as this machine reaches it."""
    if config.engine is not None:
        raise LabError("real engines run on the built control plane only")
    built = images.build_all(config.truth, step=step)
    with step("loading images into the nodes"):
        cluster.load_images(made, built)
    url = _start_prometheus(made.plane, config.scrape_interval_s, step)
    site.install_operator(made.plane, URL_IN_CLUSTER, config, on_host=False, step=step)
    return url


def _start_prometheus(plane: ControlPlane, scrape_interval_s: int, step: Step) -> str:
    kubectl = plane.kubectl
    scraping = prometheus.scrape_configuration(None, scrape_interval_s)
    with step("starting Prometheus"):
        kubectl.apply([*_manifests(), _configuration(scraping)])
        wait_until(
            lambda: _address(plane) is not None,
            what="Prometheus has an address",
            timeout_s=PROMETHEUS_TIMEOUT_S,
        )
        url = f"http://{_address(plane)}:{PORT}"
        wait_until(
            answers(f"{url}/-/ready"),
            what="Prometheus is ready",
            timeout_s=PROMETHEUS_TIMEOUT_S,
        )
    return url


def _manifests() -> list[dict[str, Any]]:
    text = (assets.of_checkout("deploy/kind") / "prometheus.yaml").read_text()
    return list(yaml.safe_load_all(text))


def _configuration(scraping: dict[str, object]) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "prometheus", "namespace": MONITORING},
        "data": {"prometheus.yaml": yaml.safe_dump(scraping, sort_keys=False)},
    }


def _address(plane: ControlPlane) -> str | None:
    """Return the address of Prometheus' pod; None before it has one."""
    pods = plane.kubectl.get("pods", "-n", MONITORING)["items"]
    return next((pod["status"]["podIP"] for pod in pods if pod["status"].get("podIP")), None)
