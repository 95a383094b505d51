"""Deployments of a tenant that are as large as the API server takes them: nobody else suffers."""

import logging
import time
import uuid
from concurrent.futures import ThreadPoolExecutor

import pytest

from api_world import an_api_world
from helm import memory_limit_bytes
from site_lab import a_model
from tonnage.cluster.kube import DEPLOYMENTS, MODEL_DEPLOYMENTS
from tonnage.units import MIB

pytestmark = [pytest.mark.lab, pytest.mark.thorough]

LOG = logging.getLogger("tests.large_children")

NUM_DEPLOYMENTS, NUM_HANDS = 100, 2
NUM_ARGUMENTS = 20_000
"""Of each, with 62 characters: 1.3 MB. ReplicaSets have as much."""
LONG_S = 300
"""In which the first lists are read on a busy machine: one large object at a time."""
MANAGED = {"tonnage.dev/managed": "true"}


def a_large_deployment(number):
    own = {"app": f"large-{number:03}"}
    container = {
        "name": "main",
        "image": "example.test/main:1",
        "args": [f"{each:062}" for each in range(NUM_ARGUMENTS)],
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": f"large-{number:03}", "labels": MANAGED},
        "spec": {
            "replicas": 0,
            "selector": {"matchLabels": own},
            "template": {
                "metadata": {"labels": own | MANAGED},
                "spec": {"containers": [container]},
            },
        },
    }


@pytest.fixture
def crowd(fault_plane):
    """A namespace for them."""
    namespace = f"crowd-{uuid.uuid4().hex[:8]}"
    fault_plane.kubectl("create", "namespace", namespace)
    yield namespace
    fault_plane.kubectl("delete", "namespace", namespace, "--wait=false")


def create_all(api, namespace):
    path = DEPLOYMENTS.path(namespace)
    with ThreadPoolExecutor(NUM_HANDS) as hands:
        bodies = map(a_large_deployment, range(NUM_DEPLOYMENTS))
        list(hands.map(lambda each: api.create(path, each), bodies))


def refusal(api, namespace, name):
    status = api.get(MODEL_DEPLOYMENTS.path(namespace, name)).get("status") or {}
    found = {each["type"]: each["reason"] for each in status.get("conditions") or ()}
    return found.get("PlanValid")


def test_a_hundred_of_1_3_mb_end_no_operator_and_hold_up_no_other_namespace(
    fault_plane, administrator, tmp_path, crowd
):
    with an_api_world(fault_plane, administrator, tmp_path) as world:
        operator = world.add_operator(namespaces=(world.namespace, crowd))
        world.begin()
        create_all(administrator, crowd)
        world.until(lambda: "large-099" in operator.log(), "the watch told of all")
        began_s = time.monotonic()
        world.ask_for(2)
        world.until_replicas(2)
        LOG.info("another's change after %.1f s", time.monotonic() - began_s)
        metadata = {"name": "large-007", "namespace": crowd}
        administrator.create(MODEL_DEPLOYMENTS.path(crowd), a_model() | {"metadata": metadata})
        world.until(
            lambda: refusal(administrator, crowd, "large-007") == "DeploymentTooLarge",
            "it is refused by name",
        )
        by_watches = operator.peak_bytes()

        operator.end(timeout_s=60)
        operator.start()
        world.ask_for(3)
        world.until_replicas(3, timeout_s=LONG_S)
        by_lists = operator.peak_bytes()
        LOG.info("peaks: %.0f MiB, %.0f MiB", by_watches / MIB, by_lists / MIB)
        assert by_watches < memory_limit_bytes()
        assert by_lists < memory_limit_bytes()
        assert operator.codes == [], "it was never started again by another than this test"
