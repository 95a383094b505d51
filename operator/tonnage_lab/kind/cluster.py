"""One cluster of kind: its configuration, its network, the GPUs of its nodes, and its end."""

import json
import os
import random
import shutil
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from tonnage_lab import assets
from tonnage_lab.controlplane import AUDIT_POLICY, ControlPlane
from tonnage_lab.kind.images import answers, docker
from tonnage_lab.kubectl import Kubectl
from tonnage_lab.processes import LabError, ProcessGroup, run, wait_until
from tonnage_lab.progress import Step, silent
from tonnage_lab.site import GpuNode

PUBLISHED_NODE: Final = (
    "kindest/node:v1.37.0@sha256:a1ed56cfb0e7b93589bdf97c8cd566405a265939e3620fc4f5de89adff580ae5"
)
"""As kind 0.33.0 has it: pkg/apis/config/defaults/image.go."""
IMAGE_VARIABLE: Final = "TONNAGE_KIND_IMAGE"
POD_RANGES: Final = range(100, 200)
"""Of 10.100.0.0/16 and those after it: clusters that run at once must not share one."""
READY_TIMEOUT: Final = "180s"
RANGE_TIMEOUT_S: Final = 60.0
_AUDIT: Final = "/etc/kubernetes/audit"
_AUDIT_LOGS: Final = "/var/log/kubernetes"


@dataclass(frozen=True, slots=True, kw_only=True)
class KindCluster:
    """One that runs: what cannot be had from its API server."""

    plane: ControlPlane
    name: str

    def on_node(self, node: str, *command: str) -> str:
        """Run a command in a node, as root."""
        return docker("exec", node, *command)

    def nodes(self) -> list[str]:
        return [each["metadata"]["name"] for each in self.plane.kubectl.get("nodes")["items"]]


def obstacle() -> str | None:
    """Return why no cluster of kind can be made here; None if it can."""
    if os.geteuid() != 0:
        return "routes to the pods of a kind cluster take root"
    if shutil.which("kind") is None:
        return "there is no kind on the PATH"
    return None if answers() else "no Docker answers"


def node_image() -> str:
    """Return the image of a node; kind pulls it where it is not there."""
    return os.environ.get(IMAGE_VARIABLE) or PUBLISHED_NODE


def start(
    folder: Path, *, nodes: Sequence[GpuNode] = (), crds: Path | None = None, step: Step = silent
) -> KindCluster:
    """Create a cluster and wait until its nodes are Ready; the first one is its control plane.

    Raises:
        LabError: kind cannot create it, or a node does not become Ready; nothing of it is left.
    """
    if problem := obstacle():
        raise LabError(problem)
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    name, pod_range = f"tonnage-{uuid.uuid4().hex[:6]}", free_pod_range(run(["ip", "route"]))
    kubectl = assets.ensure(["kubectl"], step=step)["kubectl"]
    cluster = KindCluster(plane=_plane(folder, kubectl, name, pod_range), name=name)
    try:
        with step(f"creating a kind cluster of {max(1, len(nodes))}"):
            _create(cluster, nodes, pod_range)
            _lay_routes(cluster)
            wait = ("wait", "--for=condition=Ready", f"--timeout={READY_TIMEOUT}")
            cluster.plane.kubectl(*wait, "nodes", "--all")
            _prepare_nodes(cluster, nodes)
        if crds is not None:
            cluster.plane.kubectl.install_crds(crds)
    except BaseException:
        cluster.plane.stop()
        raise
    return cluster


def free_pod_range(routes: str) -> str:
    """Return a range of addresses that no route of this machine goes to.

    Raises:
        LabError: there is none.

    >>> free_pod_range(" ".join(f"10.{number}.0.0/24 via 172.18.0.2" for number in range(199)))
    '10.199.0.0/16'
    """
    free = [number for number in POD_RANGES if f"10.{number}." not in routes]
    if not free:
        raise LabError("every range of addresses for pods has routes on this machine")
    return f"10.{random.choice(free)}.0.0/16"  # noqa: S311  (two may start at once)


def _plane(folder: Path, kubectl: Path, name: str, pod_range: str) -> ControlPlane:
    kubeconfig = folder / "kubeconfig"
    return ControlPlane(
        folder=folder,
        server="",
        kubeconfig=kubeconfig,
        audit_log=folder / "audit" / "logs" / "audit.log",
        kubectl=Kubectl(program=kubectl, kubeconfig=kubeconfig),
        group=ProcessGroup(logs=folder / "logs"),
        at_end=lambda: _delete(name, pod_range),
    )


def _delete(name: str, pod_range: str) -> None:
    run(["kind", "delete", "cluster", "--name", name, "--quiet"])
    run(["ip", "route", "flush", "root", pod_range])


def _create(cluster: KindCluster, nodes: Sequence[GpuNode], pod_range: str) -> None:
    folder = cluster.plane.folder
    audit = folder / "audit"
    (audit / "logs").mkdir(parents=True, exist_ok=True)
    (audit / "policy.yaml").write_text(yaml.safe_dump(AUDIT_POLICY))
    file = folder / "kind.yaml"
    made = configuration(nodes, audit=audit, pod_range=pod_range)
    file.write_text(yaml.safe_dump(made, sort_keys=False))
    run(
        [
            "kind", "create", "cluster", "--quiet", "--name", cluster.name,
            "--image", node_image(), "--config", file, "--kubeconfig", cluster.plane.kubeconfig,
        ]
    )  # fmt: skip


def configuration(nodes: Sequence[GpuNode], *, audit: Path, pod_range: str) -> dict[str, Any]:
    """Return what kind is given: nodes with the labels of GPUs, and an audit log for us to read."""
    made = [_node(node) for node in nodes] or [{"role": "control-plane"}]
    made[0] |= {"role": "control-plane", "extraMounts": _audit_mounts(audit)}
    return {
        "kind": "Cluster",
        "apiVersion": "kind.x-k8s.io/v1alpha4",
        "networking": {"podSubnet": pod_range},
        "kubeadmConfigPatches": [yaml.safe_dump(_audit_patch(), sort_keys=False)],
        "nodes": made,
    }


def _node(node: GpuNode) -> dict[str, Any]:
    labels = {"nvidia.com/gpu.product": node.product, "nvidia.com/gpu.present": "true"}
    return {"role": "worker", "labels": labels}


def _audit_mounts(audit: Path) -> list[dict[str, Any]]:
    return [
        {"hostPath": str(audit), "containerPath": _AUDIT, "readOnly": True},
        {"hostPath": str(audit / "logs"), "containerPath": _AUDIT_LOGS},
    ]


def _audit_patch() -> dict[str, Any]:
    flags = {
        "audit-policy-file": f"{_AUDIT}/policy.yaml",
        "audit-log-path": f"{_AUDIT_LOGS}/audit.log",
        "audit-log-maxsize": "500",
    }
    volumes = [("audit-policy", _AUDIT, True), ("audit-logs", _AUDIT_LOGS, False)]
    return {
        "kind": "ClusterConfiguration",
        "apiServer": {
            "extraArgs": [{"name": name, "value": value} for name, value in flags.items()],
            "extraVolumes": [
                {"name": name, "hostPath": path, "mountPath": path, "readOnly": read_only,
                 "pathType": "Directory"}
                for name, path, read_only in volumes
            ],
        },
    }  # fmt: skip


def _lay_routes(cluster: KindCluster) -> None:
    """Give this machine a way to the pods of each node."""

    def found() -> list[dict[str, Any]]:
        return list(cluster.plane.kubectl.get("nodes")["items"])

    wait_until(
        lambda: all("podCIDR" in each["spec"] for each in found()),
        what="every node has a range of pods",
        timeout_s=RANGE_TIMEOUT_S,
    )
    for each in found():
        addresses = each["status"]["addresses"]
        (address,) = (one["address"] for one in addresses if one["type"] == "InternalIP")
        run(["ip", "route", "replace", each["spec"]["podCIDR"], "via", address])


def _prepare_nodes(cluster: KindCluster, nodes: Sequence[GpuNode]) -> None:
    """Write GPUs into the nodes' status, and let pods onto the control plane.

    A kubelet keeps what others write into its node's status, until the node is made anew.
    """
    kubectl = cluster.plane.kubectl
    found = sorted(cluster.nodes())  # NAME-control-plane, NAME-worker, NAME-worker2
    for node, config in zip(found, nodes, strict=False):
        amount = {"nvidia.com/gpu": str(config.num_gpus)}
        patch = {"status": {"capacity": amount, "allocatable": amount}}
        kubectl("patch", "node", node, "--subresource=status", "-p", json.dumps(patch))
    if len(found) > 1:
        kubectl("taint", "nodes", found[0], "node-role.kubernetes.io/control-plane-")


def load_images(cluster: KindCluster, images: Sequence[str]) -> None:
    """Copy images from Docker into every node."""
    run(["kind", "load", "docker-image", *images, "--name", cluster.name])
