"""Where the real controller of LeaderWorkerSets puts groups that are to have a rack each."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import lws
from fleet_builders import SITE, a_model_over_nodes, a_sizing
from site_lab import Object, until
from tonnage.manifests.children import deployment
from tonnage.manifests.names import NAME_LABEL
from tonnage_lab import controlplane
from tonnage_lab.controlplane import ControlPlane

pytestmark = [pytest.mark.lab, pytest.mark.thorough]

RACK = "example.com/rack"
NODES = {"a-0": "a", "a-1": "a", "a-2": "a", "a-3": "a", "b-0": "b", "b-1": "b"}
"""Of eight H100 each, and their rack: GPUs for three groups, racks for two."""


def a_node(name: str, rack: str) -> Object:
    labels = {RACK: rack, "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}
    room = {"nvidia.com/gpu": "8", "cpu": "64", "memory": "512Gi", "pods": "110"}
    ready = {"type": "Ready", "status": "True", "reason": "Stands", "message": "for a kubelet"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels},
        "status": {"capacity": room, "allocatable": room, "conditions": [ready]},
    }


@pytest.fixture(scope="module")
def plane(
    tmp_path_factory: pytest.TempPathFactory, programs: dict[str, Path]
) -> Iterator[ControlPlane]:
    manifests = lws.published(programs["kubectl"])
    crds = tmp_path_factory.mktemp("crds")
    lws.write_crds(manifests, crds)
    made = controlplane.start(tmp_path_factory.mktemp("plane"), programs=programs, crds=crds)
    lws.install(made, manifests)
    yield made
    made.stop()


def test_groups_have_a_rack_each_and_one_that_finds_none_waits(plane: ControlPlane):
    model = a_model_over_nodes(pods={"groupTopology": RACK})
    made = deployment(model, a_sizing(model), SITE)
    del made["metadata"]["ownerReferences"], made["metadata"]["namespace"]
    made["spec"]["replicas"] = 3
    nodes = [a_node(*each) for each in NODES.items()]
    for each in (*nodes, made):
        plane.kubectl("create", "-f", "-", text=json.dumps(each))

    def racks() -> dict[str, str | None]:
        said = plane.kubectl("get", "pods", "-l", f"{NAME_LABEL}={model.name}", "-o", "json")
        pods = json.loads(said)["items"]
        places = {each["metadata"]["name"]: each["spec"].get("nodeName") for each in pods}
        return {name: NODES.get(node or "") for name, node in places.items()}

    def are_placed() -> bool:
        found = racks()
        return len(found) == 5 and list(found.values()).count(None) == 1

    until(are_placed, "two groups are scheduled", timeout_s=60, told=lambda: str(racks()))

    found = racks()
    [waits] = [name for name, rack in found.items() if rack is None]
    groups = [name for name in (f"{model.name}-{index}" for index in range(3)) if name != waits]
    assert [found[f"{name}-1"] for name in groups] == [found[name] for name in groups]
    assert {found[name] for name in groups} == {"a", "b"}
    condition = "jsonpath={.status.conditions[?(@.type=='PodScheduled')].message}"
    assert "anti-affinity" in plane.kubectl("get", "pod", waits, "-o", condition)
