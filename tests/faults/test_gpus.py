"""GPUs run out, come back and die, on a real API server and scheduler: KWOK plays the nodes.

A query API tells the same load of every pod that is Ready; the operator decides every second.
"""

import time
import uuid
from dataclasses import dataclass

import pytest

from api_world import an_api_world
from http_double import serving
from query_api import QueryApi
from site_lab import a_model
from tonnage.cluster.kube import DEPLOYMENTS, MODEL_DEPLOYMENTS, PODS
from tonnage_lab import kwok

pytestmark = pytest.mark.lab

LITTLE, MUCH = 0.05, 60.0
"""Requests/s of all pods together: less than one replica serves, and more than all of them do."""
QUICK = {"scaleDownWindowS": 3, "coldStartS": 1, "pendingTimeoutS": 12}
ENDING = "tests.tonnage.dev/ending"
"""Finalizer of pods that end when a test says so."""
CPU_S = 2
"""Between two looks at the pods: nobody else needs them as often."""


@dataclass(kw_only=True)
class LiveApi(QueryApi):
    """Tells of the pods that are Ready now."""

    ready: object = None
    load: float = LITTLE
    looked_at_s: float = 0

    def __call__(self, request):
        if time.time() - self.looked_at_s > CPU_S:
            self.looked_at_s = time.time()
            pods = self.ready()
            self.completions_per_s = dict.fromkeys(pods, self.load / max(1, len(pods)))
        self.now_s = time.time()
        return super().__call__(request)


def is_ready(pod):
    conditions = pod["status"].get("conditions") or ()
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


class Gpus:
    """A world with GPUs, whose pods are measured."""

    def __init__(self, world, measured):
        self.world, self.measured, self.nodes = world, measured, []

    def add_node(self, num_gpus):
        name = f"gpu-{uuid.uuid4().hex[:8]}"
        product = "NVIDIA-H200"
        self.world.plane.kubectl.apply(
            [kwok.gpu_node(name, num_gpus=num_gpus, gpu_product=product)]
        )
        self.nodes.append(name)
        self.world.plane.kubectl("wait", f"node/{name}", "--for=condition=Ready", "--timeout=60s")
        return name

    def lose_node(self, name):
        """It goes with all its pods, as a machine that is taken back."""
        kubectl, here = self.world.plane.kubectl, ("-n", self.world.namespace)
        kubectl("delete", "node", name)
        kubectl("delete", "pods", "--all", *here, "--force", "--grace-period=0", "--wait=false")

    def evict(self, node, names):
        """As a drain does; the pods end when they are let go."""
        self.world.plane.kubectl("cordon", node)
        for name in names:
            path = PODS.path(self.world.namespace, name)
            body = {"metadata": {"finalizers": [ENDING]}}
            self.world.api.merge_patch(path, body, manager="a-node")
            metadata = {"name": name, "namespace": self.world.namespace}
            body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": metadata}
            self.world.api.create(f"{path}/eviction", body)

    def let_go(self, names):
        for name in names:
            body = {"metadata": {"finalizers": None}}
            path = PODS.path(self.world.namespace, name)
            self.world.api.merge_patch(path, body, manager="a-node")

    def num_staying(self):
        staying = [each for each in self.pods() if "deletionTimestamp" not in each["metadata"]]
        return sum(map(is_ready, staying))

    def pods(self):
        return list(self.world.api.list(PODS.path(self.world.namespace)))

    def names(self):
        return {each["metadata"]["name"] for each in self.pods()}

    def num_ready(self):
        return sum(map(is_ready, self.pods()))

    def until_ready(self, number):
        self.world.until(lambda: self.num_ready() == number, f"{number} pods are Ready")

    def until_capacity(self, status, reason=None):
        def told():
            found = self.world.condition("CapacityAvailable")
            return found.get("status") == status and reason in {None, found["reason"]}

        self.world.until(told, f"CapacityAvailable={status} {reason}")

    def stay_at(self, number, seconds):
        """Hold that so many replicas are asked for, over so much time; else say why not."""
        end_s = time.time() + seconds
        while time.time() < end_s:
            found = self.world.replicas()
            assert found == number, self.world.get(MODEL_DEPLOYMENTS)["status"]["plan"]["reasons"]
            time.sleep(0.5)


@pytest.fixture
def gpus(kwok_plane, administrator, tmp_path, request):
    """Three GPUs on one node, and an operator that is told what its pods do."""
    with an_api_world(kwok_plane, administrator, tmp_path) as world:

        def ready():
            pods = administrator.list(PODS.path(world.namespace))
            return [(world.namespace, each["metadata"]["name"]) for each in pods if is_ready(each)]

        measured = LiveApi(completions_per_s={}, ready=ready)
        with serving(measured) as server:
            settings = QUICK | getattr(request, "param", {})
            world.add_operator(prometheusUrl=server.url, **settings)
            made = Gpus(world, measured)
            made.add_node(3)
            yield made
            for each in world.operators:
                each.kill()
        for name in made.nodes:
            kwok_plane.kubectl("delete", "node", name, "--wait=false", "--ignore-not-found")


def a_model_of(least, most=6):
    return a_model(scaling={"minReplicas": least, "maxReplicas": most})


class TestRows37And38ThereAreTooFewGpus:
    def test_which_is_told_given_back_and_ends_when_there_are_more(self, gpus):
        gpus.world.apply(a_model_of(1))
        gpus.until_ready(1)
        gpus.measured.load = MUCH
        gpus.until_capacity("False", "InsufficientGPU")
        gpus.world.until_replicas(3)
        gpus.stay_at(3, seconds=5)  # not more than there are GPUs, soon after they were given back

        gpus.add_node(4)
        gpus.world.until_replicas(6, timeout_s=180)
        gpus.until_ready(6)
        gpus.until_capacity("True")


class TestRow39TheLoadEndsWhileAPodWaits:
    @pytest.mark.parametrize("gpus", [{"pendingTimeoutS": 3600}], indirect=True)
    def test_and_the_fleet_goes_down_all_the_same(self, gpus):
        gpus.world.apply(a_model_of(5))
        gpus.until_ready(3)
        gpus.until_capacity("False", "InsufficientGPU")
        gpus.world.ask_for(1)

        gpus.world.until(lambda: gpus.world.replicas() < 5, "the first of them go", timeout_s=240)


class TestRow42ANodeDies:
    def test_and_nothing_is_taken_away_for_it_nor_added_twice(self, gpus):
        gpus.world.apply(a_model_of(3))
        gpus.until_ready(3)
        gpus.world.rest()
        since_s = time.time()
        gpus.lose_node(gpus.nodes[0])
        gpus.until_ready(0)
        gpus.stay_at(3, seconds=8)

        assert gpus.world.scales(since_s=since_s) == []
        gpus.world.until(
            lambda: gpus.world.condition("Ready").get("status") == "False", "it is not ready"
        )


class TestRow42ANodeIsTakenBackWithNotice:
    """Whoever hears of it drains the node: pods are evicted, and end minutes later."""

    def test_and_those_that_end_are_neither_counted_nor_replaced_twice(self, gpus):
        gpus.world.apply(a_model_of(3))
        gpus.until_ready(3)
        gpus.world.rest()
        gpus.add_node(6)
        since_s = time.time()
        leaving = gpus.names()
        gpus.evict(gpus.nodes[0], leaving)
        gpus.world.until(lambda: gpus.num_staying() == 3, "three others are Ready")
        gpus.stay_at(3, seconds=8)

        assert leaving <= gpus.names(), "they end still"
        assert gpus.world.scales(since_s=since_s) == []
        assert gpus.world.get(MODEL_DEPLOYMENTS)["status"]["replicas"]["ready"] == 3

        gpus.let_go(leaving)
        gpus.world.until(lambda: not leaving & gpus.names(), "they are gone")
        gpus.stay_at(3, seconds=4)


class TestRow45AQuotaRefusesPods:
    def test_which_is_told_by_name_and_it_does_not_grow(self, gpus):
        quota = {
            "apiVersion": "v1",
            "kind": "ResourceQuota",
            "metadata": {"name": "one-pod"},
            "spec": {"hard": {"pods": "1"}},
        }
        gpus.world.apply(quota, a_model_of(2))
        gpus.until_ready(1)
        gpus.until_capacity("False", "QuotaExceeded")
        gpus.measured.load = MUCH
        gpus.stay_at(2, seconds=6)

        assert "one-pod" in gpus.world.condition("CapacityAvailable")["message"]


class TestRow44AnUpdateFindsNoGpuForItsFirstPod:
    def test_which_is_told_and_those_that_serve_stay(self, gpus):
        gpus.world.apply(a_model_of(3, most=3))
        gpus.until_ready(3)
        gpus.world.rest()
        gpus.world.change(contextLength=16384)
        gpus.until_capacity("False", "InsufficientGPU")
        generation = gpus.world.get(MODEL_DEPLOYMENTS)["metadata"]["generation"]

        assert gpus.num_ready() == 3
        assert gpus.world.get(DEPLOYMENTS)["status"]["unavailableReplicas"] == 1
        assert gpus.world.condition("Reconciling")["status"] == "True"
        assert gpus.world.condition("Ready")["observedGeneration"] == generation

        gpus.world.change(pods={"maxSurge": 0})
        gpus.world.until(lambda: all_are_new(gpus), "all pods are replaced, one after the other")
        gpus.until_capacity("True")


def all_are_new(gpus):
    status = gpus.world.get(DEPLOYMENTS)["status"]
    return status.get("updatedReplicas") == status.get("readyReplicas") == status["replicas"] == 3
