"""Replicas over several nodes: LeaderWorkerSets, of which a group of pods is one replica."""

from functools import partial

import pytest

from fleet_builders import (
    CRASH_LOOPING,
    NOW_S,
    R1,
    UNSCHEDULABLE,
    a_group_pod_body,
    a_groups_body,
    a_manifest,
    a_model,
    a_model_over_nodes,
    the_sets_of_groups,
)
from loop_builders import a_loop, a_world, condition, show, status_of, tick
from tonnage.cluster.calls import KubernetesError
from tonnage.cluster.kube import DEPLOYMENTS, LEADER_WORKER_SETS, SERVICES, STATEFUL_SETS
from tonnage.fleet.store import Kind, Store
from tonnage.fleet.views import deployment_view
from tonnage.manifests.names import GROUPS

MODEL = a_model_over_nodes()
LATER_S = NOW_S + 3600
NAME = ("serving", "r1")


def a_store(*pods, num_groups=1):
    store = Store()
    store.note(Kind.GROUPS, None, a_groups_body(replicas=num_groups))
    for each in the_sets_of_groups(MODEL, num_groups=num_groups):
        store.note(Kind.STATEFUL_SET, None, each)
    for each in pods:
        store.note(Kind.POD, None, each)
    return store


def replicas_in(store, now_s=LATER_S):
    snapshot = store.snapshot()
    return snapshot.replicas_of(snapshot.groups[NAME], now_s)


def leader(index=0, **options):
    return a_group_pod_body(f"r1-{index}", of="r1", model=MODEL, **options)


def worker(index=0, **options):
    return a_group_pod_body(f"r1-{index}-1", of=f"r1-{index}", model=MODEL, **options)


class TestAGroup:
    def test_is_one_replica_by_its_leader(self):
        found = replicas_in(a_store(leader(0), worker(0), leader(1), worker(1), num_groups=2))

        assert [pod.name for pod in found] == ["r1-0", "r1-1"]
        assert all(pod.is_ready and pod.trouble is None for pod in found)

    def test_has_the_gpus_of_all_its_nodes(self):
        view = deployment_view(a_groups_body(replicas=2), GROUPS)

        assert (view.kind, view.num_nodes, view.gpus_per_replica) == ("LeaderWorkerSet", 2, 16)

    def test_waits_while_no_node_takes_a_worker_and_names_that(self):
        [found] = replicas_in(a_store(leader(ready_for_s=None), worker(**UNSCHEDULABLE)))

        assert found.unschedulable == (
            "worker r1-0-1: 0/4 nodes are available: 4 Insufficient nvidia.com/gpu."
        )
        assert found.scheduled_at_s is None, "its start is not counted from that of a part of it"

    def test_fails_where_a_worker_does(self):
        [found] = replicas_in(a_store(leader(ready_for_s=None), worker(**CRASH_LOOPING)))

        assert found.trouble.code == "CrashLoopBackOff"
        assert found.trouble.message.startswith("worker r1-0-1")
        assert found.has_restarted

    @pytest.mark.parametrize(
        ("after_s", "words"),
        [(601, None), (3600, "its group has 1 pod of 2")],
    )
    def test_that_lacks_a_worker_for_a_minute_says_so(self, after_s, words):
        young = leader(ready_for_s=None)
        young["metadata"]["creationTimestamp"] = "2026-01-02T00:10:00Z"  # 600 s after NOW_S

        [found] = replicas_in(a_store(young), NOW_S + after_s)

        assert (found.trouble and found.trouble.message) == words

    def test_is_no_other_object_s_for_a_worker_with_a_borrowed_label(self):
        borrowed = a_group_pod_body("r1-0-1", of="another", model=MODEL)

        [found] = replicas_in(a_store(leader(), borrowed))

        assert found.trouble.message == "its group has 1 pod of 2"
        assert not found.is_ready

    def test_is_not_ready_where_a_worker_fails_beside_a_ready_leader(self):
        [found] = replicas_in(a_store(leader(), worker(**CRASH_LOOPING)))

        assert not found.is_ready

    @pytest.mark.parametrize(
        ("observed", "is_rolling"), [({}, False), ({"observedGeneration": 1}, True)]
    )
    def test_of_a_controller_that_tells_no_generation_rolls_by_what_is_updated(
        self, observed, is_rolling
    ):
        body = a_groups_body()
        body["metadata"]["generation"] = 2
        del body["status"]["observedGeneration"]
        body["status"] |= observed

        assert deployment_view(body, GROUPS).is_rolling == is_rolling

    def test_wakes_the_loop_by_its_workers_too(self):
        store = a_store(leader(), worker())
        view = store.snapshot().groups[NAME]
        owners = {("serving", view.uid), ("serving", "uid-of-r1-0")}
        store.serve({NAME}, owners)
        store.changed.clear()

        store.note(Kind.POD, "MODIFIED", worker(**UNSCHEDULABLE))

        assert store.changed.is_set()


def a_world_of_groups(*, are_served=True):
    world = a_world(a_manifest(**R1))
    if are_served:
        world.kube.unserved.clear()
    return world, a_loop(world)


def message(world, kind):
    [said] = [each for each in status_of(world, "r1")["conditions"] if each["type"] == kind]
    return said["message"]


def groups_in(world):
    return world.kube.objects.get(LEADER_WORKER_SETS.path("serving", "r1"))


class TestWithoutLeaderWorkerSets:
    def test_a_plan_over_nodes_is_refused_by_name_and_nothing_is_made(self):
        world, loop = a_world_of_groups(are_served=False)

        writes = tick(loop, world)

        assert [each for each in writes if each.startswith("apply leaderworkersets")] == []
        assert condition(world, "PlanValid", "r1") == ("False", "NotServable")
        assert message(world, "PlanValid") == (
            "TP8 x PP2 needs 16 GPUs, a node of H100 has 8, and LeaderWorkerSet "
            "(leaderworkerset.x-k8s.io/v1) is not installed in this cluster, or Tonnage may not "
            "list it: once it may, the plan is applied"
        )

    def test_it_is_carried_out_once_they_are_installed(self):
        world, loop = a_world_of_groups(are_served=False)
        tick(loop, world)
        world.kube.unserved.clear()

        writes = tick(loop, world, after_s=61)

        assert "apply leaderworkersets/r1" in writes
        assert condition(world, "PlanValid", "r1")[0] == "True"

    @pytest.mark.parametrize("resource", [LEADER_WORKER_SETS, STATEFUL_SETS])
    def test_nothing_of_them_is_asked_where_we_may_not_list_them(self, resource):
        """Rights of an earlier chart: what runs on one node goes on."""
        world = a_world(a_manifest(), a_manifest(**R1))
        world.kube.unserved.clear()
        world.kube.unreadable.add(resource)
        loop = a_loop(world)
        show(loop, world)
        world.kube.fail = forbidden("leaderworkersets", "statefulsets")

        loop.tick()

        assert DEPLOYMENTS.path("serving", "llama") in world.kube.objects
        assert condition(world, "PlanValid", "r1") == ("False", "NotServable")

    def test_their_crd_may_be_taken_away(self):
        world, loop = a_world_of_groups()
        tick(loop, world)
        world.serve_groups(MODEL)
        tick(loop, world)
        assert len(loop.store.snapshot().groups) == 1

        world.kube.unserved.add(LEADER_WORKER_SETS)
        world.kube.fail = absent("leaderworkersets", "statefulsets")
        for after_s in (400, 15, 15):
            tick(loop, world, after_s=after_s)

        assert loop.store.snapshot().groups == {}
        assert condition(world, "PlanValid", "r1") == ("False", "NotServable")

    def test_a_discovery_that_fails_leaves_them_as_they_were(self, monkeypatch):
        world, loop = a_world_of_groups()
        tick(loop, world)
        world.serve_groups(MODEL)
        tick(loop, world)
        monkeypatch.setattr(world.kube, "serves", unavailable)

        tick(loop, world, after_s=400)

        assert len(loop.store.snapshot().groups) == 1


def answering(status, *plurals):
    """Answer all that is asked of some kinds with an error."""

    def fail(_, path):
        if {*path.split("/")} & {*plurals}:
            raise KubernetesError("the API server says no", status=status)

    return fail


forbidden, absent = partial(answering, 403), partial(answering, 404)


def unavailable(_):
    raise KubernetesError("the API server says 503", status=503)


class TestNamesOfGroups:
    """Each group has a headless Service of its own, r1-0 and on."""

    @pytest.mark.parametrize(
        ("other", "is_valid"),
        [("r1-0", "False"), ("r1-7", "False"), ("r1-8", "True"), ("r1-a", "True")],
    )
    def test_of_which_another_object_has_a_service_are_refused_by_name(self, other, is_valid):
        world = a_world(
            a_manifest(**R1 | {"scaling": {"minReplicas": 1, "maxReplicas": 8}}), a_manifest(other)
        )
        world.kube.unserved.clear()
        loop = a_loop(world)

        writes = tick(loop, world)

        assert condition(world, "PlanValid", "r1")[0] == is_valid
        assert ("apply leaderworkersets/r1" in writes) is (is_valid == "True")
        if is_valid == "False":
            assert f"ModelDeployment {other} has the same name" in message(world, "PlanValid")

    def test_are_free_of_what_scales_a_deployment_and_has_no_service(self):
        target = a_manifest("r1-0", engine=None, pods=None, scaleTarget={"name": "theirs"})
        world = a_world(a_manifest(**R1), target)
        world.kube.unserved.clear()

        assert "apply leaderworkersets/r1" in tick(a_loop(world), world)


class TestTheLoop:
    def test_makes_groups_and_a_service_for_their_leaders(self):
        world, loop = a_world_of_groups()

        tick(loop, world)

        assert groups_in(world)["spec"]["leaderWorkerTemplate"]["size"] == 2
        assert DEPLOYMENTS.path("serving", "r1") not in world.kube.objects
        reached = world.kube.objects[SERVICES.path("serving", "r1")]["spec"]["selector"]
        assert reached["leaderworkerset.sigs.k8s.io/worker-index"] == "0"

    def test_comes_to_rest_when_they_are_ready(self):
        world, loop = a_world_of_groups()
        tick(loop, world)
        for name in world.serve_groups(MODEL):
            world.completions_per_s[name] = 0.5
        tick(loop, world)

        assert condition(world, "Ready", "r1")[0] == "True"
        assert tick(loop, world, after_s=400) == []

    def test_writes_replicas_through_the_scale_of_groups(self):
        world, loop = a_world_of_groups()
        tick(loop, world)
        for name in world.serve_groups(MODEL):
            world.completions_per_s[name] = 20

        writes = [each for _ in range(4) for each in tick(loop, world)]

        assert "patch leaderworkersets/r1/scale" in writes
        assert groups_in(world)["spec"]["replicas"] == 3

    def test_says_which_pod_of_a_group_has_no_node(self):
        world, loop = a_world_of_groups()
        tick(loop, world)
        world.serve_groups(MODEL, pending=["r1-0-1"])

        tick(loop, world)

        assert condition(world, "CapacityAvailable", "r1") == ("False", "InsufficientGPU")
        assert "worker r1-0-1" in message(world, "CapacityAvailable")

    def test_makes_none_beside_a_deployment_of_its_own(self):
        world, loop = a_world_of_groups()
        one_node = a_manifest(**R1 | {"hardware": {"gpu": "H200", "gpusPerReplica": 8}})
        place = LEADER_WORKER_SETS.path("serving", "r1")
        models = next(each for each in world.kube.objects if "modeldeployments" in each)
        over_nodes = world.kube.objects[models]
        world.kube.put(models, one_node)
        for _ in range(10):  # a search may take several ticks of a busy machine
            if DEPLOYMENTS.path("serving", "r1") not in world.kube.objects:
                tick(loop, world)
        over_nodes["metadata"]["generation"] = 2
        world.kube.put(models, over_nodes)

        tick(loop, world)

        assert place not in world.kube.objects
        assert message(world, "PlanValid") == (
            "the plan needs a LeaderWorkerSet, and Deployment r1 runs: it stays as it is until "
            "you delete it (kubectl delete deployment -n serving r1)"
        )

    def test_makes_no_deployment_beside_one_that_no_watch_shows(self):
        world = a_world()
        world.kube.put(LEADER_WORKER_SETS.path("serving", "llama"), a_groups_body())
        loop = a_loop(world)

        tick(loop, world)

        assert DEPLOYMENTS.path("serving", "llama") not in world.kube.objects

    def test_gives_back_no_group_that_serves_for_one_that_finds_no_node(self):
        for stuck, expected in (("r1-0", 3), ("r1-2", 2)):
            world, loop = a_world_of_groups()
            tick(loop, world)
            groups_in(world)["spec"]["replicas"] = 3
            for name in world.serve_groups(MODEL, pending=[stuck]):
                world.completions_per_s[name] = 20

            for _ in range(4):
                tick(loop, world, after_s=400)

            assert groups_in(world)["spec"]["replicas"] == expected, stuck

    def test_names_groups_that_hold_nodes_of_each_other_and_leaves_them(self):
        world = a_world(a_manifest(**R1 | {"scaling": {"minReplicas": 2, "maxReplicas": 3}}))
        world.kube.unserved.clear()
        loop = a_loop(world)
        tick(loop, world)
        groups_in(world)["spec"]["replicas"] = 2
        world.serve_groups(MODEL, pending=["r1-0-1", "r1-1-1"])

        for _ in range(4):
            tick(loop, world, after_s=400)

        assert groups_in(world)["spec"]["replicas"] == 2
        assert condition(world, "CapacityAvailable", "r1") == ("False", "InsufficientGPU")
        assert "worker r1-0-1" in message(world, "CapacityAvailable")

    def test_says_that_their_controller_does_nothing(self):
        world, loop = a_world_of_groups()
        tick(loop, world)
        world.serve_groups(MODEL)
        groups_in(world)["metadata"]["generation"] = 8
        groups_in(world)["status"]["observedGeneration"] = 7
        states = [condition(world, "CapacityAvailable", "r1")]
        for after_s in (1, 58, 15):
            tick(loop, world, after_s=after_s)
            states.append(condition(world, "CapacityAvailable", "r1"))

        assert [each[0] for each in states] == ["True", "True", "True", "False"]
        assert states[-1][1] == "WorkloadControllerNotObserving"
        assert "has not acted on generation 8 for a minute, only on 7" in message(
            world, "CapacityAvailable"
        )

    def test_does_not_say_so_while_they_are_being_deleted(self):
        world, loop = a_world_of_groups()
        tick(loop, world)
        world.serve_groups(MODEL)
        groups_in(world)["metadata"] |= {
            "generation": 8,
            "deletionTimestamp": "2026-01-02T00:00:00Z",
        }
        groups_in(world)["status"]["observedGeneration"] = 7
        for after_s in (1, 61):
            tick(loop, world, after_s=after_s)

        assert condition(world, "CapacityAvailable", "r1") == ("True", "Scheduled")

    def test_leaves_a_foreign_one_alone(self):
        world, loop = a_world_of_groups()
        foreign = a_groups_body() | {"spec": {"replicas": 1, "leaderWorkerTemplate": {}}}
        foreign["metadata"] |= {"labels": {}, "ownerReferences": []}
        world.kube.put(LEADER_WORKER_SETS.path("serving", "r1"), foreign)

        for _ in range(2):
            tick(loop, world, after_s=400)

        assert groups_in(world)["spec"] == foreign["spec"]
        assert condition(world, "PlanValid", "r1") == ("False", "NameConflict")


def test_a_model_of_one_node_runs_as_a_deployment_where_there_are_groups_too():
    world = a_world()
    world.kube.unserved.clear()

    tick(a_loop(world), world)

    assert DEPLOYMENTS.path("serving", a_model().name) in world.kube.objects
