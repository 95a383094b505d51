"""The fleet's GPU budget: who gets GPUs first, and what happens where they cannot be counted."""

from dataclasses import replace

import pytest

from fleet_builders import (
    a_deployment_body,
    a_fleet,
    a_manifest,
    a_model,
    a_pod_body,
    a_sizing,
    a_state,
    managed_by,
    remembering,
)
from tonnage.control.decide.budget import free_gpus
from tonnage.control.input.memory import Memory
from tonnage.control.tick import settled_in, tick

SIZING = a_sizing()
"""Two GPUs for each replica."""
WIDE = {"hardware": {"gpu": "H200", "gpusPerReplica": 4}}


def running(name, *, replicas=1, load=2.3, priority=0, more=(), **scaling):
    """An object that runs some replicas; one needs three for this load, and one for its queue."""
    scaling = {"minReplicas": 1, "maxReplicas": 8, "priority": priority} | scaling
    body = a_deployment_body(a_model(name), sizing=SIZING, replicas=replicas)
    body["metadata"] |= dict(more)
    return a_state(a_manifest(name, scaling=scaling), live=body, replicas=replicas, load=load)


def with_limits(state, limits, *, model="mig", ready_for_s=3600, **pod_spec):
    """The same with containers that take other resources, and one such pod."""
    body = a_deployment_body(a_model(model), sizing=SIZING, replicas=1)
    spec = body["spec"]["template"]["spec"]
    spec["containers"][0]["resources"] = {"limits": limits}
    spec |= pod_spec
    pod = a_pod_body(f"{model}-0", model=a_model(model), ready_for_s=ready_for_s) | {"spec": spec}
    changed = a_state(a_manifest(model), live=body, replicas=1, pods=[pod])
    return replace(state, deployment=changed.deployment, pods=changed.pods)


def decided(*states, max_gpus, memory=None, after_s=0):
    """({name: replicas}, outcome) of one tick under a budget."""
    fleet = a_fleet(*states, settings={"max_gpus": max_gpus})
    outcome = tick(replace(fleet, now_s=fleet.now_s + after_s), memory or Memory())
    found = {each.state.view.name: each.decision.replicas for each in outcome.found}
    return found, outcome


def said(outcome, name, kind):
    found = outcome.memory.objects[f"uid-of-{name}"].reported.conditions[kind]
    return found.status, found.reason, found.message


class TestTurns:
    def test_are_by_name_where_nothing_else_tells_two_apart(self):
        # Four GPUs are in use, six are left: three replicas.
        assert decided(running("a"), running("b"), max_gpus=10)[0] == {"a": 4, "b": 1}

    @pytest.mark.parametrize(
        ("first", "second", "replicas"),
        [(0, 1, {"a": 1, "b": 4}), (-1, 0, {"a": 1, "b": 4}), (5, 5, {"a": 4, "b": 1})],
    )
    def test_are_by_priority_first(self, first, second, replicas):
        states = (running("a", priority=first), running("b", priority=second))

        assert decided(*states, max_gpus=10)[0] == replicas

    def test_leave_what_the_first_cannot_use_to_the_next(self):
        states = (running("a"), running("b", priority=1, maxReplicas=3))

        assert decided(*states, max_gpus=10)[0] == {"a": 2, "b": 3}

    def test_take_nothing_away_from_the_last(self):
        states = (running("a", replicas=4, priority=-1000), running("b", priority=1000))

        assert decided(*states, max_gpus=10)[0] == {"a": 4, "b": 1}

    def test_are_next_of_who_was_kept_short_for_longest(self):
        idle = running("a", load=0.5)
        _, first = decided(idle, running("b"), max_gpus=4)
        full = (running("a"), running("b"))
        short, second = decided(*full, max_gpus=4, memory=first.memory, after_s=15)

        after, third = decided(*full, max_gpus=10, memory=second.memory, after_s=30)

        assert short == {"a": 1, "b": 1}
        assert after == {"a": 1, "b": 4}
        remembered = third.memory.objects["uid-of-b"].decided.short_since_s
        assert remembered is None

    def test_outcomes_stand_in_the_order_of_the_fleet(self):
        _, outcome = decided(running("a"), running("b", priority=1), max_gpus=10)

        assert [each.state.view.name for each in outcome.found] == ["a", "b"]

    def test_are_not_for_who_is_left_to_another_writer(self):
        others = managed_by("kubectl", "f:replicas", subresource="scale")
        parked = running("a", replicas=0, priority=9, more={"managedFields": others})

        found, outcome = decided(parked, running("b"), max_gpus=8)

        assert found["b"] == 4
        assert outcome.writes[0].scale is None
        assert outcome.memory.objects["uid-of-a"].decided.short_since_s is None


class TestATemplateOfMoreGpus:
    def growing(self, name, *, replicas=2, load=0.5):
        """An object whose spec asks four GPUs of each replica, where two are taken."""
        scaling = {"minReplicas": 1, "maxReplicas": 8}
        body = a_deployment_body(a_model(name), sizing=SIZING, replicas=replicas)
        manifest = a_manifest(name, generation=2, scaling=scaling, **WIDE)
        return a_state(manifest, live=body, replicas=replicas, load=load)

    def test_leaves_the_next_in_turn_what_it_does_not_take(self):
        found, outcome = decided(self.growing("a"), self.growing("b"), max_gpus=12)

        assert [each.template is not None for each in outcome.writes] == [True, False]
        state, reason, message = said(outcome, "b", "PlanValid")
        assert (state, reason) == ("False", "GPUBudget")
        assert "2 replicas would take 4 more GPUs, and the GPU budget has 0 free" in message
        assert found == {"a": 2, "b": 2}

    def test_is_refused_with_the_gpus_that_are_free(self):
        _, outcome = decided(self.growing("a"), max_gpus=7)

        assert "4 more GPUs, and the GPU budget has 3 free" in said(outcome, "a", "PlanValid")[2]

    def test_leaves_its_own_replicas_no_more_than_the_rest(self):
        found, outcome = decided(self.growing("a", load=9), max_gpus=12)

        assert outcome.writes[0].template is not None
        assert found["a"] == 3  # two of four take eight

    def test_of_fewer_counts_as_it_stands_until_it_is_written(self):
        scaling = {"minReplicas": 1, "maxReplicas": 8}
        wide = a_deployment_body(a_model("a", **WIDE), sizing=a_sizing(**WIDE))
        state = a_state(a_manifest("a", generation=2, scaling=scaling), live=wide, load=9)

        found, outcome = decided(state, max_gpus=10)

        assert outcome.writes[0].template is not None
        assert found["a"] == 2  # a third one of four GPUs would take twelve


class TestWhatIsNotCounted:
    def test_lets_nothing_grow_and_is_named(self):
        mig = with_limits(running("mig"), {"nvidia.com/mig-3g.40gb": "1"})

        found, outcome = decided(mig, running("z"), max_gpus=1000)

        assert found["z"] == 1
        message = (
            "the GPU budget cannot count nvidia.com/mig-3g.40gb of pod serving/mig-0, "
            "so no fleet grows"
        )
        assert said(outcome, "z", "CapacityAvailable") == ("False", "GPUsUncounted", message)
        state, reason, limited = said(outcome, "z", "ScalingLimited")
        assert (state, reason) == ("True", "GPUsUncounted")
        assert limited.startswith(f"{message}; ")

    def test_on_pods_that_no_node_has_taken_stops_nobody_but_its_own_object(self):
        mig = with_limits(running("mig"), {"example.com/gpu": "1"}, ready_for_s=None)

        found, outcome = decided(mig, running("z"), max_gpus=1000)

        assert found == {"mig": 1, "z": 4}
        assert (
            "cannot count example.com/gpu of Deployment serving/mig"
            in said(outcome, "mig", "CapacityAvailable")[2]
        )

    def test_is_no_matter_without_a_budget(self):
        mig = with_limits(running("mig"), {"nvidia.com/mig-3g.40gb": "1"})

        assert decided(mig, running("z"), max_gpus=None)[0]["z"] == 4

    def test_lets_replicas_go(self):
        mig = with_limits(running("mig"), {"amd.com/gpu": "1"})
        idle = running("z", replicas=4, load=0.5)
        _, first = decided(mig, idle, max_gpus=1000)
        known = first.memory.objects["uid-of-z"]
        watched = remembering(known, since_s=0, served_since_s=0)
        memory = replace(first.memory, objects={**first.memory.objects, "uid-of-z": watched})

        assert decided(mig, idle, max_gpus=1000, memory=memory, after_s=15)[0]["z"] == 3

    def test_is_found_on_pods_that_somebody_changed_on_their_way(self):
        sliced = {"containers": [{"resources": {"limits": {"nvidia.com/gpumem": "20000"}}}]}
        state = running("a")
        pod = a_state(pods=[a_pod_body("a") | {"spec": sliced}]).pods[0]

        _, outcome = decided(replace(state, pods=(pod,)), running("z"), max_gpus=1000)

        assert "nvidia.com/gpumem of pod serving/a" in said(outcome, "z", "CapacityAvailable")[2]

    def test_makes_no_new_object(self):
        mig = with_limits(running("mig"), {}, resourceClaims=[{"name": "gpu"}])
        new = a_state(a_manifest("z"), replicas=None)

        found, outcome = decided(mig, new, max_gpus=1000)

        assert found["z"] == 0
        assert outcome.writes[1].template is None
        assert (
            "resourceClaim gpu of pod serving/mig-0" in said(outcome, "z", "CapacityAvailable")[2]
        )

    def test_refuses_a_template_of_more_gpus(self):
        changed = a_manifest("z", generation=2, **WIDE)
        live = a_deployment_body(a_model("z"), sizing=SIZING)
        mig = with_limits(running("mig"), {"nvidia.com/mig-3g.40gb": "1"})
        fleet = a_fleet(mig, a_state(changed, live=live), settings={"max_gpus": 1000})

        outcome = tick(fleet, Memory())

        refusal = outcome.found[1].refusal
        assert refusal.code == "GPUsUncounted"
        assert refusal.message == (
            "2 replicas would take 4 more GPUs, and the GPU budget cannot count "
            "nvidia.com/mig-3g.40gb of pod serving/mig-0"
        )

    def test_lets_a_template_of_as_many_gpus_pass(self):
        changed = a_manifest("z", generation=2, engine={"version": "0.33", "args": ["--seed=1"]})
        live = a_deployment_body(a_model("z"), sizing=SIZING)
        mig = with_limits(running("mig"), {"nvidia.com/mig-3g.40gb": "1"})
        fleet = a_fleet(mig, a_state(changed, live=live), settings={"max_gpus": 1000})

        outcome = tick(fleet, Memory())

        assert outcome.found[1].refusal is None
        assert outcome.writes[1].template is not None

    def test_that_waits_for_gpus_comes_before_others_when_some_are_free(self):
        short, other = running("a", priority=1), running("b", replicas=3, load=1.5)
        _, first = decided(short, other, max_gpus=8)
        settled = settled_in(first, {}, first.memory)
        fleet = a_fleet(short, running("b"), settings={"max_gpus": 8})

        outcome = tick(fleet, first.memory, settled=settled)

        assert settled.keys() == {"uid-of-b"}
        assert [each.found[0].decision.replicas for each in (first, outcome)] == [1, 3]


class TestWhatIsInUse:
    """Replicas that somebody else may write, and pods that exist."""

    def a_target(self, *, replicas, pods, mode, writer=None):
        scaling = {"mode": mode, "maxReplicas": 3}
        body = a_deployment_body(a_model("a"), sizing=SIZING, replicas=replicas)
        body["status"]["replicas"] = pods
        if writer:
            body["metadata"]["managedFields"] = managed_by(writer, "f:replicas")
        return a_state(a_manifest("a", scaling=scaling), live=body, replicas=pods)

    @pytest.mark.parametrize(
        ("mode", "writer", "replicas", "pods", "counted"),
        [
            ("Recommend", "kubectl", 1_000_000, 0, 0),
            ("Recommend", "kubectl", 5, 5, 5),
            ("Recommend", None, 3, 1, 3),
            ("Paused", "kubectl", 2, 4, 4),
            ("Paused", None, 3, 1, 3),
            ("Auto", "kubectl", 1_000_000, 0, 3),
            ("Auto", None, 3, 1, 3),
            ("Auto", None, 2, 3, 3),
            ("Auto", None, 6, 5, 5),
        ],
    )
    def test_is_what_exists_or_what_we_may_have_asked_for(
        self, mode, writer, replicas, pods, counted
    ):
        state = self.a_target(replicas=replicas, pods=pods, mode=mode, writer=writer)

        fleet = a_fleet(state, settings={"max_gpus": 100})

        assert free_gpus(fleet) == 100 - counted * SIZING.flags.parallelism.num_gpus

    def test_is_no_more_of_a_pod_than_any_node_has(self):
        state = self.a_target(replicas=1, pods=0, mode="Auto")
        greedy = replace(state.deployment, gpus_per_replica=1_000_000)

        fleet = a_fleet(replace(state, deployment=greedy), settings={"max_gpus": 100})

        assert free_gpus(fleet) == 100 - 64
