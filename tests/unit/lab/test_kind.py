"""What kind is given, where it can be, and what becomes of a cluster that does not start."""

import json
import os
import subprocess
from pathlib import Path

import pytest
import yaml

from tonnage_lab.kind import cluster
from tonnage_lab.processes import LabError
from tonnage_lab.site import GpuNode

ROOT = Path(__file__).parents[3]


def a_configuration(*nodes: GpuNode):
    return cluster.configuration(nodes, audit=Path("/audit"), pod_range="10.100.0.0/16")


def a_node(name: str = "gpu-0") -> GpuNode:
    return GpuNode(name=name, product="NVIDIA-H200", num_gpus=8)


def test_the_first_node_is_the_control_plane_and_keeps_its_gpu_label():
    made = a_configuration(a_node("gpu-0"), a_node("gpu-1"))["nodes"]

    assert [each["role"] for each in made] == ["control-plane", "worker"]
    assert [each["labels"]["nvidia.com/gpu.product"] for each in made] == ["NVIDIA-H200"] * 2


def test_a_cluster_without_gpus_is_one_node():
    (node,) = a_configuration()["nodes"]

    assert node["role"] == "control-plane"
    assert "labels" not in node


def test_the_audit_log_comes_out_of_the_node():
    made = a_configuration()
    (patch,) = (yaml.safe_load(each) for each in made["kubeadmConfigPatches"])
    flags = {each["name"]: each["value"] for each in patch["apiServer"]["extraArgs"]}
    mounts = {each["containerPath"]: each["hostPath"] for each in made["nodes"][0]["extraMounts"]}

    assert mounts[str(Path(flags["audit-log-path"]).parent)] == "/audit/logs"


def test_the_published_node_is_named_by_its_digest():
    assert "@sha256:" in cluster.PUBLISHED_NODE


class Machine:
    """One whose programs say what they were asked for, and succeed unless a test says otherwise."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.log = folder, folder / "log"
        monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
        monkeypatch.setenv("KUBEBUILDER_ASSETS", str(folder))
        monkeypatch.setattr(os, "geteuid", lambda: 0)
        for name in ("docker", "kind", "ip"):
            self.add(name, "exit 0")

    def add(self, name: str, body: str) -> None:
        program = self.folder / name
        program.write_text(f'#!/bin/sh\necho "{name} $*" >>{self.log}\n{body}\n')
        program.chmod(0o755)

    def asked(self) -> list[str]:
        return self.log.read_text().splitlines()


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(tmp_path, monkeypatch)


def test_where_docker_does_not_answer_it_is_said_and_no_cluster_is_made(machine: Machine):
    machine.add("docker", "exit 1")

    with pytest.raises(LabError, match="no Docker answers"):
        cluster.start(machine.folder / "cluster")


NODES = {
    "tonnage-control-plane": ("10.100.0.0/24", "172.18.0.2"),
    "tonnage-worker": ("10.100.1.0/24", "172.18.0.3"),
}


def nodes_of_kind() -> str:
    items = [
        {"metadata": {"name": name}, "spec": {"podCIDR": pods},
         "status": {"addresses": [{"type": "InternalIP", "address": address}]}}
        for name, (pods, address) in NODES.items()
    ]  # fmt: skip
    return json.dumps({"items": items})


def test_each_node_gets_a_route_and_its_gpus_and_all_of_it_goes_in_the_end(machine: Machine):
    for name in ("etcd", "kube-apiserver"):
        machine.add(name, "exit 0")
    machine.add("kubectl", f"case \"$*\" in *get*nodes*) echo '{nodes_of_kind()}';; esac")
    made = cluster.start(machine.folder / "cluster", nodes=[a_node("gpu-0"), a_node("gpu-1")])
    cluster.load_images(made, ("one", "two"))
    made.plane.stop()
    asked = machine.asked()
    patched = [each.split("patch node ")[1] for each in asked if "patch node" in each]

    assert [each for each in asked if "route replace" in each] == [
        f"ip route replace {pods} via {address}" for pods, address in NODES.values()
    ]
    assert [each.split()[0] for each in patched] == list(NODES)
    assert all('"nvidia.com/gpu": "8"' in each for each in patched)
    assert any("taint nodes tonnage-control-plane" in each for each in asked)
    assert f"kind load docker-image one two --name {made.name}" in asked
    assert asked[-2] == f"kind delete cluster --name {made.name} --quiet"


def test_a_cluster_that_kind_does_not_make_is_deleted_and_its_routes_go(machine: Machine):
    machine.add("kind", 'case "$1" in create) echo "no such image" >&2; exit 1;; esac')
    with pytest.raises(LabError, match="no such image"):
        cluster.start(machine.folder / "cluster")
    created, deleted, flushed = machine.asked()[-3:]
    (name,) = (word for word in created.split() if word.startswith("tonnage-"))

    assert f"--image {cluster.PUBLISHED_NODE}" in created
    assert deleted == f"kind delete cluster --name {name} --quiet"
    assert flushed.startswith("ip route flush root 10.1")


@pytest.mark.parametrize("base", ["python:3.11-slim", "python:3.11-slim@sha256:abc"])
def test_a_release_refuses_a_base_without_a_digest(base: str):
    done = subprocess.run(  # noqa: S603
        [ROOT / "deploy/image.sh", base, "example.test/tonnage:0.2.0"],
        capture_output=True, text=True, check=False, env=os.environ | {"PATH": os.defpath},
    )  # fmt: skip

    assert done.returncode == 2
    assert "has no digest" in done.stderr
