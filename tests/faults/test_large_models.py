"""ModelDeployments of a tenant that are as large as the API server takes them, in each way.

The chart's policy is not installed here: what is read is bounded without it.
"""

import logging
import time
import uuid
from concurrent.futures import ThreadPoolExecutor

import pytest

from api_hand import MANAGER
from api_world import an_api_world
from helm import memory_limit_bytes
from site_lab import a_model
from tonnage.cluster.kube import EVENTS, MODEL_DEPLOYMENTS
from tonnage.units import MIB

pytestmark = [pytest.mark.lab, pytest.mark.thorough]

LOG = logging.getLogger("tests.large_models")

NUM_MODELS, NUM_HANDS = 100, 4
LARGE = 1_300_000
"""Bytes of each object, of which etcd takes 1.5 MiB."""
FIELD = "f:{:060}"


def finalizers(num_bytes):
    return {"finalizers": [f"example.test/{each:050}" for each in range(num_bytes // 66)]}


def owner_references(num_bytes):
    """Of a kind that nobody serves: where all owners are gone, the garbage collector deletes."""
    owner = {"apiVersion": "example.test/v1", "kind": "None", "name": "none"}
    owners = [owner | {"uid": f"{each:020000}"} for each in range(num_bytes // 20_100)]
    return {"ownerReferences": owners}


def managed_fields(num_bytes):
    fields = {"f:spec": {"f:pods": {FIELD.format(each): {} for each in range(num_bytes // 68)}}}
    entry = {
        "manager": "tenant",
        "operation": "Apply",
        "apiVersion": "tonnage.dev/v1alpha1",
        "time": "2026-01-01T00:00:00Z",
        "fieldsType": "FieldsV1",
        "fieldsV1": fields,
    }
    return {"managedFields": [entry]}


def labels(num_bytes):
    return {"labels": {f"example.test/{each:050}": "x" * 60 for each in range(num_bytes // 131)}}


def annotations(num_bytes):
    """Of one object they have 256 KiB at most, which JSON writes six times as long."""
    return {"annotations": {"note": "<" * min(num_bytes // 6, 200_000)}}


WAYS = (finalizers, owner_references, managed_fields, labels, annotations)


@pytest.fixture
def crowd(fault_plane):
    """A namespace for them."""
    namespace = f"crowd-{uuid.uuid4().hex[:8]}"
    fault_plane.kubectl("create", "namespace", namespace)
    yield namespace
    fault_plane.kubectl("delete", "namespace", namespace, "--wait=false")


def name_of(number):
    return f"large-{number:03}"


def create_all(api, namespace, way):
    path = MODEL_DEPLOYMENTS.path(namespace)

    def create(number):
        name, large = name_of(number), way(LARGE)
        metadata = {"name": name, "namespace": namespace} | large
        api.create(
            path, a_model(scaling={"mode": "Recommend", "maxReplicas": 4}) | {"metadata": metadata}
        )
        if "managedFields" in large:  # what is created has none but the API server's own
            own = MODEL_DEPLOYMENTS.path(namespace, name)
            api.merge_patch(own, {"metadata": large}, manager=MANAGER)

    with ThreadPoolExecutor(NUM_HANDS) as hands:
        list(hands.map(create, range(NUM_MODELS)))


def let_go(api, namespace):
    """What has finalizers keeps its namespace from going."""
    for number in range(NUM_MODELS):
        path = MODEL_DEPLOYMENTS.path(namespace, name_of(number))
        api.merge_patch(path, {"metadata": {"finalizers": None}}, manager=MANAGER)


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_a_hundred_end_no_operator_and_hold_up_no_other_namespace(
    fault_plane, administrator, tmp_path, crowd, way
):
    with an_api_world(fault_plane, administrator, tmp_path) as world:
        operator = world.add_operator(namespaces=(world.namespace, crowd))
        world.begin()
        create_all(administrator, crowd, way)
        last = name_of(NUM_MODELS - 1)
        world.until(lambda: last in operator.log(), "the watch named all")
        took_s = [changed_s(world, 2)]
        by_watches = operator.peak_bytes()

        operator.end(timeout_s=60)
        operator.start()
        took_s.append(changed_s(world, 3))
        world.until(lambda: refused(administrator, crowd, last), "it is refused by name")
        took_s.append(changed_s(world, 4))
        by_lists = operator.peak_bytes()
        told = [f"{each / MIB:.0f} MiB" for each in (by_watches, by_lists)]
        LOG.info("%s: peaks %s, another's change after %s s", way.__name__, told, took_s)
        assert max(by_watches, by_lists) < memory_limit_bytes()
        assert operator.codes == [], "it was never started again by another than this test"
    let_go(administrator, crowd)


def changed_s(world, replicas):
    """Return the seconds after which another namespace's change is carried out."""
    began_s = time.monotonic()
    world.ask_for(replicas)
    world.until_replicas(replicas)
    return round(time.monotonic() - began_s, 1)


def refused(api, namespace, name):
    """An Event says so: a status would cost the API server as much as the object does."""
    found = api.list(EVENTS.path(namespace))
    of_it = [each["note"] for each in found if each["regarding"]["name"] == name]
    return any("more than 256 KiB" in each for each in of_it)
