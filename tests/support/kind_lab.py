"""Clusters of kind for tests: with ``-m kind``, or ``TONNAGE_CLUSTER=kind``."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from operator_hand import Hand
from tonnage_lab.controlplane import ControlPlane
from tonnage_lab.kind import cluster
from tonnage_lab.kind import site as kind_site
from tonnage_lab.kind.cluster import KindCluster
from tonnage_lab.site import NAMESPACE, SiteConfig

CRDS = Path(__file__).parents[2] / "crds"


def on_kind() -> bool:
    """Tell whether clusters are to be of kind; ``-m kind`` sets the variable."""
    return os.environ.get("TONNAGE_CLUSTER") == "kind"


@cache
def problem() -> str | None:
    """Return why no test of the lane can run; None if they can."""
    return cluster.obstacle() if on_kind() else "only with -m kind"


@contextmanager
def a_cluster(folder: Path, **how: Any) -> Iterator[KindCluster]:
    """Create a cluster with the CRDs of this repository, and delete it in the end."""
    if found := problem():
        pytest.skip(found)
    made = cluster.start(folder, crds=CRDS, **how)
    try:
        yield made
    finally:
        made.plane.stop()


@contextmanager
def a_plane(
    folder: Path, _: Mapping[str, Path], config: SiteConfig
) -> Iterator[tuple[ControlPlane, str, Hand]]:
    """Yield a cluster with a whole site on it, Prometheus' address, and a hand."""
    with a_cluster(folder, nodes=config.nodes) as made:
        yield made.plane, kind_site.start(made, config), kind_hand(made)


def kind_hand(made: KindCluster) -> Hand:
    """Return the hand of an operator that runs as a container in a node."""

    def log() -> str:
        command = f"cat /var/log/pods/{NAMESPACE}_*/*/*.log 2>/dev/null || true"
        lines = (line for node in made.nodes() for line in _lines(made, node, command))
        return "".join(f"{line.split(' ', 3)[3]}\n" for line in lines if line.count(" ") > 2)

    def kill(pod: dict[str, Any]) -> None:
        (state,) = pod["status"]["containerStatuses"]
        found = state["containerID"].removeprefix("containerd://")
        command = ("ctr", "--namespace=k8s.io", "tasks", "kill", "--signal", "SIGKILL", found)
        made.on_node(pod["spec"]["nodeName"], *command)

    return Hand(log=log, address=lambda pod: pod["status"]["podIP"], kill=kill)


def _lines(made: KindCluster, node: str, command: str) -> list[str]:
    return made.on_node(node, "sh", "-c", command).splitlines()
