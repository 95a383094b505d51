"""What kind is told, what Docker asks of runc, and what of a machine is put back."""

import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from tonnage_lab import assets
from tonnage_lab.kind import capped_runc, cluster, docker, lane, machine, programs
from tonnage_lab.kind.machine import MachineState
from tonnage_lab.processes import LabError
from tonnage_lab.site import GpuNode

ROOT = Path(__file__).parents[3]
NOTHING = MachineState(
    sysctls={}, rules=(), links=(), routes=(), mounts=(), cgroups=(), processes=()
)
ALL = "CapBnd:\t000001ffffffffff\n"
WITHOUT_RESOURCE = "Name:\tx\nCapBnd:\t000001fffeffffff\n"
"""Bit 24 is off."""


def a_configuration(*nodes: GpuNode, bare: bool = False):
    return cluster.configuration(nodes, audit=Path("/audit"), pod_range=100, bare=bare)


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


@pytest.mark.parametrize("bare", [True, False])
def test_only_an_image_of_our_own_goes_without_the_default_network(bare: bool):
    made = a_configuration(bare=bare)
    kinds = [yaml.safe_load(each)["kind"] for each in made["kubeadmConfigPatches"]]

    assert made["networking"].get("disableDefaultCNI", False) == bare
    assert ("KubeletConfiguration" in kinds) == bare


def test_what_a_machine_lacks_is_named():
    assert capped_runc.lacking(ALL) == set()
    assert capped_runc.lacking(WITHOUT_RESOURCE) == {"CAP_SYS_RESOURCE"}


def test_what_a_machine_lacks_is_taken_out_of_every_set_of_a_request():
    asked = {"cwd": "/", "capabilities": {"bounding": ["CAP_KILL", "CAP_SYS_RESOURCE"],
                                          "ambient": ["CAP_SYS_RESOURCE"]}}  # fmt: skip

    assert capped_runc.without(asked, {"CAP_SYS_RESOURCE"}) == {
        "cwd": "/",
        "capabilities": {"bounding": ["CAP_KILL"], "ambient": []},
    }


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["create", "--bundle", "/b", "id"], [("/b/config.json", True)]),
        (["run", "-b=/b"], [("/b/config.json", True)]),
        (["exec", "--process", "/p.json", "id"], [("/p.json", False)]),
        (["state", "id"], []),
    ],
)
def test_the_files_of_a_request_are_found(arguments: list[str], expected):
    found = [(str(path), is_container) for path, is_container in capped_runc.requests(arguments)]

    assert found == expected


def test_a_machine_left_as_it_was_has_no_differences():
    before = replace(NOTHING, sysctls={"kernel/panic": "1"}, links=("eth0", "lo"))

    assert machine.differences(before, before) == []


def test_a_policy_that_was_turned_is_a_difference():
    accepting, dropping = "chain FORWARD policy accept", "chain FORWARD policy drop"
    before, after = replace(NOTHING, rules=(accepting,)), replace(NOTHING, rules=(dropping,))

    assert machine.differences(before, after) == [
        "rules: chain FORWARD policy accept is gone",
        "rules: chain FORWARD policy drop is new",
    ]


def test_every_setting_of_the_machine_is_compared_and_those_of_passing_links_are_not(
    tmp_path: Path,
):
    for name, value in {
        "fs/file-max": "100", "fs/protected_fifos": "0", "kernel/ns_last_pid": "7",
        "net/ipv4/conf/eth0/forwarding": "0", "net/ipv4/conf/br-12ab/forwarding": "1",
        "net/ipv6/conf/tonnage0/forwarding": "1",
    }.items():  # fmt: skip
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{value}\n")
    (tmp_path / "fs/file-nr").write_text("1\n")
    (tmp_path / "fs/file-nr").chmod(0o444)

    assert dict(machine._sysctls(tmp_path)) == {
        "fs/file-max": "100", "fs/protected_fifos": "0", "net/ipv4/conf/eth0/forwarding": "0",
    }  # fmt: skip


def test_what_systemd_of_a_node_sets_is_a_difference_and_what_a_module_brings_is_none():
    before = replace(NOTHING, sysctls={"fs/file-max": "100"})
    after = replace(NOTHING, sysctls={"fs/file-max": "9000", "net/bridge/tables": "1"})

    assert machine.differences(before, after) == [
        "sysctls: fs/file-max = 100 is gone",
        "sysctls: fs/file-max = 9000 is new",
    ]


def test_a_record_outlives_the_lane_until_it_is_undone(tmp_path: Path):
    before = replace(NOTHING, sysctls={"vm/overcommit_memory": "0"})
    machine.save(before, tmp_path)

    assert machine.load(tmp_path) == before

    machine.forget(tmp_path)

    assert machine.load(tmp_path) is None


def test_programs_of_a_node_are_of_the_version_of_the_built_control_plane():
    where = programs.paths(Path("/lane"))
    ours = assets.version(assets.TOOLS["kube-apiserver"], assets.asset_paths().sources)

    assert programs.kubernetes_version(where) == ours


@pytest.mark.parametrize("name", programs.TOOLS)
def test_every_program_has_a_version_in_its_wrapper_module(name: str):
    where = programs.paths(Path("/lane"))

    assert assets.version(programs.TOOLS[name], where.sources).startswith("v")


def test_the_published_node_is_named_by_its_digest():
    assert "@sha256:" in lane.PUBLISHED_NODE


def test_without_docker_a_lane_says_why_it_cannot_be(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    problem = lane.obstacle(tmp_path)

    assert problem is not None
    with pytest.raises(LabError, match=problem), lane.cluster_tools(tmp_path):
        pass


def test_what_a_killed_node_left_frozen_is_thawed_and_removed(tmp_path: Path, monkeypatch):
    state = tmp_path / "node" / "pod" / "freezer.state"
    state.parent.mkdir(parents=True)
    state.write_text("FROZEN")
    thaw, tries = docker.thaw, []
    monkeypatch.setattr(docker, "thaw", lambda: thaw(tmp_path))

    def remove():
        tries.append(state.read_text())
        if tries[-1] == "FROZEN":
            raise LabError("did not receive an exit event")

    docker.thawing(remove)

    assert tries == ["FROZEN", "THAWED"]


@pytest.mark.parametrize("base", ["python:3.11-slim", "python:3.11-slim@sha256:abc"])
def test_a_release_refuses_a_base_without_a_digest(base: str):
    done = subprocess.run(  # noqa: S603
        [ROOT / "deploy/image.sh", base, "example.test/tonnage:0.1.0"],
        capture_output=True, text=True, check=False, env=os.environ | {"PATH": os.defpath},
    )  # fmt: skip

    assert done.returncode == 2
    assert "has no digest" in done.stderr
