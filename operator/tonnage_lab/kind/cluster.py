"""One cluster of kind: its configuration, its network, the GPUs of its nodes, and its end."""

import json
import os
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from tonnage_lab.controlplane import AUDIT_POLICY, ControlPlane
from tonnage_lab.kind.docker import thawing
from tonnage_lab.kind.lane import ClusterTools
from tonnage_lab.kubectl import Kubectl
from tonnage_lab.processes import ProcessGroup, run, wait_until
from tonnage_lab.progress import Step, silent
from tonnage_lab.site import GpuNode

READY_TIMEOUT: Final = "180s"
RANGE_TIMEOUT_S: Final = 60.0
_AUDIT: Final = "/etc/kubernetes/audit"
_AUDIT_LOGS: Final = "/var/log/kubernetes"
_CNI_FILE: Final = "/etc/cni/net.d/10-tonnage.conflist"


@dataclass(frozen=True, slots=True, kw_only=True)
class KindCluster:
    """One that runs: what cannot be had from its API server."""

    plane: ControlPlane
    name: str
    lane: ClusterTools

    def on_node(self, node: str, *command: str) -> str:
        """Run a command in a node, as root."""
        return self.lane.docker("exec", node, *command)

    def nodes(self) -> list[str]:
        return [each["metadata"]["name"] for each in self.plane.kubectl.get("nodes")["items"]]


def start(
    lane: ClusterTools,
    folder: Path,
    *,
    nodes: Sequence[GpuNode] = (),
    crds: Path | None = None,
    step: Step = silent,
) -> KindCluster:
    """Create a cluster and wait until its nodes are Ready; the first one is its control plane.

    Raises:
        LabError: kind cannot create it, or a node does not become Ready; nothing of it is left.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    name = f"tonnage-{uuid.uuid4().hex[:6]}"
    cluster = KindCluster(plane=_plane(lane, folder, name), name=name, lane=lane)
    try:
        with step(f"creating a kind cluster of {max(1, len(nodes))}"):
            _create(cluster, nodes)
            _connect(cluster)
            kubectl = cluster.plane.kubectl
            kubectl("wait", "--for=condition=Ready", "nodes", "--all", f"--timeout={READY_TIMEOUT}")
            _prepare_nodes(cluster, nodes)
        if crds is not None:
            cluster.plane.kubectl.install_crds(crds)
    except BaseException:
        cluster.plane.stop()
        raise
    return cluster


def _plane(lane: ClusterTools, folder: Path, name: str) -> ControlPlane:
    kubeconfig = folder / "kubeconfig"
    audit_log = folder / "audit" / "logs" / "audit.log"
    return ControlPlane(
        folder=folder,
        server="",
        kubeconfig=kubeconfig,
        audit_log=audit_log if os.geteuid() == 0 else None,  # the API server writes it as root
        kubectl=Kubectl(program=lane.kubectl, kubeconfig=kubeconfig),
        group=ProcessGroup(logs=folder / "logs"),
        at_end=lambda: _delete(lane, name),
    )


def _create(cluster: KindCluster, nodes: Sequence[GpuNode]) -> None:
    """Run kind; what differs on this machine stands in the configuration."""
    lane, folder = cluster.lane, cluster.plane.folder
    audit = folder / "audit"
    (audit / "logs").mkdir(parents=True, exist_ok=True)
    (audit / "policy.yaml").write_text(yaml.safe_dump(AUDIT_POLICY))
    file = folder / "kind.yaml"
    made = configuration(nodes, audit=audit, pod_range=lane.next_pod_range(), bare=lane.is_bare)
    file.write_text(yaml.safe_dump(made, sort_keys=False))
    run(
        [
            lane.kind, "create", "cluster", "--quiet", "--name", cluster.name,
            "--image", lane.node_image, "--config", file,
            "--kubeconfig", cluster.plane.kubeconfig,
        ],
        environment=lane.docker.environment,
    )  # fmt: skip


def configuration(
    nodes: Sequence[GpuNode], *, audit: Path, pod_range: int, bare: bool
) -> dict[str, Any]:
    """Return what kind is told: nodes with the labels of GPUs, and an audit log that we can read.

    ``bare``: the node image brings no network plugin, and the machine may have cgroup v1.
    """
    patches = [_audit_patch()]
    networking: dict[str, Any] = {"podSubnet": f"10.{pod_range}.0.0/16"}
    if bare:
        networking["disableDefaultCNI"] = True
        patches.append({"kind": "KubeletConfiguration", "failCgroupV1": False})
    made = [_node(node) for node in nodes] or [{"role": "control-plane"}]
    made[0] |= {"role": "control-plane", "extraMounts": _audit_mounts(audit)}
    return {
        "kind": "Cluster",
        "apiVersion": "kind.x-k8s.io/v1alpha4",
        "networking": networking,
        "kubeadmConfigPatches": [yaml.safe_dump(each, sort_keys=False) for each in patches],
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


def _connect(cluster: KindCluster) -> None:
    """Give each node of a bare image its network, and this machine a way to the pods.

    What kindnetd does on published images: the node's own pod range in its CNI configuration,
    and a route to every other node's.
    """
    wait_until(
        lambda: all("podCIDR" in each["spec"] for each in _node_objects(cluster)),
        what="every node has a range of pods",
        timeout_s=RANGE_TIMEOUT_S,
        needs={},
    )
    ways = _ways(cluster)
    for node, own_range, _ in ways:
        if cluster.lane.is_bare:
            text = json.dumps(_cni(own_range))
            cluster.lane.docker("exec", "-i", node, "cp", "/dev/stdin", _CNI_FILE, text=text)
            for _, other_range, address in ways:
                if other_range != own_range:
                    cluster.on_node(node, "ip", "route", "replace", other_range, "via", address)
    for _, own_range, address in ways:
        run(["ip", "route", "replace", own_range, "via", address])


def _ways(cluster: KindCluster) -> list[tuple[str, str, str]]:
    """Return each node's name, its range of pods, and its address."""
    return [
        (
            each["metadata"]["name"],
            each["spec"]["podCIDR"],
            next(a["address"] for a in each["status"]["addresses"] if a["type"] == "InternalIP"),
        )
        for each in _node_objects(cluster)
    ]


def _node_objects(cluster: KindCluster) -> list[dict[str, Any]]:
    return list(cluster.plane.kubectl.get("nodes")["items"])


def _cni(pod_range: str) -> Mapping[str, Any]:
    addresses = {
        "type": "host-local",
        "dataDir": "/run/cni-ipam-state",
        "routes": [{"dst": "0.0.0.0/0"}],
        "ranges": [[{"subnet": pod_range}]],
    }
    return {
        "cniVersion": "0.3.1",
        "name": "tonnage",
        "plugins": [
            {"type": "ptp", "ipMasq": False, "mtu": 1400, "ipam": addresses},
            {"type": "portmap", "capabilities": {"portMappings": True}},
        ],
    }


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


def _delete(lane: ClusterTools, name: str) -> None:
    command: list[str | Path] = [lane.kind, "delete", "cluster", "--name", name, "--quiet"]
    thawing(lambda: run(command, environment=lane.docker.environment))


def load_images(cluster: KindCluster, images: Sequence[str]) -> None:
    """Copy images from Docker into every node.

    Raises:
        LabError: a node did not take them.
    """
    for node in cluster.nodes():
        cluster.lane.docker.copy_images(images, node)
