"""Crowds of GPU nodes that exist in the API only: KWOK plays their kubelets.

What their pods can do, slow loading, getting stuck, crashing, is in ``data/kwok-pods.yaml``.
Keep one KWOK per control plane: a second one waits 40 s for the Leases of the first.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tonnage_lab import assets
from tonnage_lab.controlplane import ControlPlane
from tonnage_lab.kubectl import Manifest
from tonnage_lab.processes import answers, free_ports
from tonnage_lab.progress import Step, silent

_DATA: Final = Path(__file__).parent / "data"
CONFIG_FILES: Final = tuple(
    _DATA / name for name in ("kwok.yaml", "kwok-nodes.yaml", "kwok-pods.yaml")
)
START_TIMEOUT_S: Final = 60.0


def start(plane: ControlPlane, *, program: Path | None = None, step: Step = silent) -> None:
    """Start KWOK beside a control plane; it takes every node made by `gpu_node`."""
    program = assets.ensure(["kwok"], step=step)["kwok"] if program is None else program
    (port,) = free_ports(1)
    configuration = [f"--config={path}" for path in CONFIG_FILES]
    serving = [f"--server-address=127.0.0.1:{port}", f"--node-port={port}"]
    with step("starting KWOK"):
        plane.group.start(
            "kwok", [program, f"--kubeconfig={plane.kubeconfig}", *configuration, *serving]
        )
        plane.group.wait_until(
            answers(f"http://127.0.0.1:{port}/readyz"),
            what="KWOK is ready",
            timeout_s=START_TIMEOUT_S,
            needs=("kwok",),
        )


def gpu_node(
    name: str, *, num_gpus: int, gpu_product: str, labels: Mapping[str, str] | None = None
) -> Manifest:
    """Return a node for KWOK, labelled as NVIDIA's GPU operator labels the real ones."""
    capacity = {"cpu": "192", "memory": "2Ti", "pods": "110", "nvidia.com/gpu": str(num_gpus)}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "annotations": {"kwok.x-k8s.io/node": "fake"},
            "labels": {
                "kubernetes.io/hostname": name,
                "kubernetes.io/os": "linux",
                "nvidia.com/gpu.product": gpu_product,
                "nvidia.com/gpu.count": str(num_gpus),
                **(labels or {}),
            },
        },
        "status": {"capacity": capacity, "allocatable": {**capacity}},
    }
