"""A crowd of objects at once, on a real API server with KWOK's pods: bounds that no clock moves.

``bench/fleet_real.py`` runs thousands of them, and says how long that takes.
"""

import time
from collections import Counter

import pytest
from fleet_real_world import a_sizing_of, is_ready

from api_world import an_api_world
from crowd_api import CrowdApi, calm
from http_double import serving
from site_lab import a_model
from tonnage.cluster.kube import LEADER_WORKER_SETS, MODEL_DEPLOYMENTS, POD_MONITORS, PODS
from tonnage_lab import kwok

pytestmark = [pytest.mark.lab, pytest.mark.thorough]

NUM_OBJECTS, REPLICAS = 40, 2
MOST_REQUESTS = 26
"""Of an object that nothing was made for, beside statuses: 12 without a retry, with its Deployment
before replicas and each retry of them, and itself before each status and before Events."""
QUIET_TICKS = 10
NODE = "gpu-crowd"
SETTINGS = {"scrapeIntervalS": 1, "coldStartS": 1, "statusIntervalS": 1, "searchBudgetS": 0.8}


def names():
    return [f"m{number:05}" for number in range(NUM_OBJECTS)]


@pytest.fixture(scope="module")
def crowd(kwok_plane, administrator, tmp_path_factory):
    """All of it: objects that stood there before the operator, their pods, and what these say."""
    with an_api_world(kwok_plane, administrator, tmp_path_factory.mktemp("crowd")) as world:
        node = kwok.gpu_node(NODE, num_gpus=100, gpu_product="NVIDIA-H200")
        kwok_plane.kubectl.apply([node])
        scaling = {"minReplicas": REPLICAS, "maxReplicas": 8}
        world.apply(*(a_model(name, scaling=scaling) for name in names()))
        kinds = [calm(a_sizing_of(0))]
        telling = CrowdApi(
            completions_per_s={}, kinds=kinds, interval_s=SETTINGS["scrapeIntervalS"]
        )
        with serving(telling) as server:
            world.add_operator(prometheusUrl=server.url, **SETTINGS)
            try:
                world.until(lambda: run(world, telling), "all pods are Ready", timeout_s=600)
                world.until(lambda: are_told(world), "every object tells of them", timeout_s=300)
                yield world
            finally:  # else it goes on beside the tests that come later
                for each in world.operators:
                    each.kill()
        kwok_plane.kubectl("delete", "node", NODE, "--wait=false")


def run(world, telling):
    pods = [each for each in world.api.list(PODS.path(world.namespace)) if is_ready(each)]
    telling.show((world.namespace, each["metadata"]["name"]) for each in pods)
    return len(pods) == NUM_OBJECTS * REPLICAS


def objects(world):
    return list(world.api.list(MODEL_DEPLOYMENTS.path(world.namespace)))


def are_told(world):
    replicas = [(each.get("status") or {}).get("replicas") or {} for each in objects(world)]
    return all(each.get("ready") == REPLICAS for each in replicas)


def is_about_objects(asked):
    """Tell it from the Lease, from ConfigMaps in which the operator keeps what it learned, and from
    the questions whether LeaderWorkerSets and PodMonitors are served, asked again each minute.
    """
    is_own = "/leases" in asked.path or "/configmaps/tonnage-" in asked.path
    is_of_kinds = asked.path in {f"/{each.prefix}" for each in (LEADER_WORKER_SETS, POD_MONITORS)}
    return not is_own and not is_of_kinds


def written(world, *, since_s):
    return [each.path for each in world.proxy.writes(since_s=since_s) if is_about_objects(each)]


def num_ticks(world):
    page = world.operator.page("/metrics?name[]=tonnage_tick_seconds_count").text
    [line] = [each for each in page.splitlines() if not each.startswith("#")]
    return float(line.split()[1])


def test_every_object_has_a_picture_of_its_spec(crowd):
    for each in objects(crowd):
        status = each["status"]
        assert status["observedGeneration"] == each["metadata"]["generation"]
        assert status["plan"]["maxNumSeqs"] > 0


def test_a_deployment_is_made_once_for_each_and_no_request_is_refused(crowd):
    made = Counter(
        each.path.rpartition("/")[2]
        for each in crowd.proxy.writes()
        if "/deployments/" in each.path and each.status == 201
    )

    assert made == Counter(names())
    assert {each.status for each in crowd.proxy.passed} <= {200, 201, 404, 409, 0}


def test_what_is_asked_for_a_new_object_is_bounded(crowd):
    of_objects = [each for each in crowd.proxy.passed if "/m0" in each.path]
    statuses = [each for each in of_objects if each.path.endswith("/status")]

    assert len(of_objects) - len(statuses) <= MOST_REQUESTS * NUM_OBJECTS


def test_at_the_fixed_point_nothing_is_written_and_no_object_is_read(crowd):
    crowd.rest(quiet_s=QUIET_TICKS)
    since_s = time.time()
    ticks = num_ticks(crowd) + QUIET_TICKS
    crowd.until(lambda: num_ticks(crowd) >= ticks, "some ticks")
    asked = [each for each in crowd.proxy.passed if each.at_s >= since_s and not each.is_watch]

    assert written(crowd, since_s=since_s) == []
    assert [each.path for each in asked if is_about_objects(each)] == []


def test_a_change_of_one_object_is_written_to_it_alone(crowd):
    crowd.rest(quiet_s=QUIET_TICKS)
    since_s = time.time()
    path = MODEL_DEPLOYMENTS.path(crowd.namespace, "m00007")
    crowd.api.merge_patch(path, {"spec": {"pods": {"cpu": "7m"}}}, manager="a-user")

    crowd.until(lambda: written(crowd, since_s=since_s), "it is written")
    crowd.rest()
    about = [path for path in written(crowd, since_s=since_s) if not path.endswith("/events")]

    assert {path.removesuffix("/status").rpartition("/")[2] for path in about} == {"m00007"}


def test_a_new_process_writes_nothing_but_one_status_of_which_figures_are_gone(crowd):
    """Nobody tells of the pods that a change has made: what was measured before is not stored."""
    crowd.rest(quiet_s=QUIET_TICKS)
    crowd.operator.end(timeout_s=60)
    since_s = time.time()
    crowd.operator.start()
    crowd.until(lambda: crowd.operator.probe("/readyz") == 200, "it is ready")
    crowd.until(lambda: num_ticks(crowd) >= QUIET_TICKS, "some ticks")
    found = written(crowd, since_s=since_s)

    assert [path for path in found if not path.endswith("/m00007/status")] == []
    assert len(found) <= 1
