"""What counts as an object's own: nothing that others made under its name."""

import json
from dataclasses import replace

import pytest

from fleet_builders import (
    NOW_S,
    a_deployment_body,
    a_fleet,
    a_manifest,
    a_memory,
    a_state,
    failures,
    owned_by,
    remembering,
)
from tonnage.control.input.memory import Memory
from tonnage.control.input.writers import Cause, WriteKind
from tonnage.control.tick import tick

FOREIGN = {
    "nobodys": [],
    "another-kinds": owned_by("Rollout", "blue-green", "uid-of-rollout"),
    "an-earlier-namesakes": owned_by("ModelDeployment", "llama", "uid-of-before"),
}
TARGET = {
    "engine": None,
    "pods": None,
    "scaleTarget": {"name": "llama"},
}


def told(state, *, settings=None, memory=None):
    """(writes, conditions by type) of one tick."""
    known = Memory(objects={state.view.uid: memory}) if memory else Memory()
    [writes] = tick(a_fleet(state, settings=settings or {}), known).writes
    return writes, {each.type: each for each in writes.status.conditions}


class TestADeploymentOfOthers:
    @pytest.mark.parametrize("owners", FOREIGN.values(), ids=FOREIGN.keys())
    def test_makes_an_object_neither_ready_nor_measured(self, owners):
        live = a_deployment_body(replicas=5, ownerReferences=owners)

        writes, conditions = told(a_state(live=live, load=3))

        assert (conditions["Ready"].status, conditions["Ready"].reason) == ("False", "NameConflict")
        assert conditions["MetricsAvailable"].status != "True"
        replicas = writes.status.replicas
        assert (replicas.desired, replicas.current, replicas.ready) == (0, 0, 0)
        shown = writes.status.measured
        assert shown is None or shown.requests_per_second is None
        assert (writes.scale, writes.template) == (None, None)

    def test_is_named_by_its_owner(self):
        live = a_deployment_body(ownerReferences=FOREIGN["another-kinds"])

        _, conditions = told(a_state(live=live))

        assert conditions["Ready"].message == (
            "Deployment llama is controlled by Rollout blue-green, not by this ModelDeployment"
        )

    def test_uses_nothing_of_the_budget(self):
        foreign = a_state(live=a_deployment_body(replicas=50, ownerReferences=[]))
        other = a_state(a_manifest("other"), replicas=None)

        outcome = tick(a_fleet(foreign, other, settings={"max_gpus": 100}), Memory())

        assert outcome.found[1].decision.limited_by != "GPUBudget"

    @pytest.mark.parametrize("labels", [{}, {"tonnage.dev/managed": "true"}])
    def test_that_is_a_closed_target_is_no_replica(self, labels):
        live = a_deployment_body(replicas=5, ownerReferences=[], labels=labels)
        live["spec"]["template"]["metadata"]["labels"] = {}

        writes, conditions = told(a_state(a_manifest(**TARGET), live=live))

        assert conditions["Ready"].reason == "TargetNotAllowed"
        assert writes.status.replicas.ready == 0


class TestAdoption:
    """By a label with the UID of the object."""

    def orphan(self, *, uid="uid-of-llama", owners=(), **spec):
        labels = a_deployment_body()["metadata"]["labels"] | {"tonnage.dev/adopt": uid}
        live = a_deployment_body(ownerReferences=list(owners), labels=labels)
        return a_state(a_manifest(**spec), live=live)

    def test_of_what_nobody_controls_applies_our_template(self):
        state = self.orphan()

        writes, conditions = told(state)

        [owner] = writes.template["metadata"]["ownerReferences"]
        assert owner["uid"] == "uid-of-llama"
        assert not writes.rolls
        assert conditions["PlanValid"].status == "True"

    @pytest.mark.parametrize(
        "changes",
        [
            {"uid": "uid-of-another"},
            {"owners": FOREIGN["another-kinds"]},
            {"scaling": {"mode": "Recommend", "minReplicas": 1, "maxReplicas": 8}},
        ],
        ids=["another-uid", "controlled", "recommend"],
    )
    def test_of_anything_else_is_refused_by_name(self, changes):
        writes, conditions = told(self.orphan(**changes))

        assert writes.template is None
        assert conditions["Ready"].reason == "NameConflict"

    def test_of_what_can_never_be_ours_is_refused_with_what_can_be_done(self):
        state = self.orphan()
        other = replace(state.deployment, selector=frozenset({("app", "llama")}))

        writes, conditions = told(replace(state, deployment=other))

        assert (writes.template, writes.scale) == (None, None)
        assert "its selector is not tonnage.dev/managed=true" in conditions["Ready"].message
        assert "spec.scaleTarget" in conditions["Ready"].message

    @pytest.mark.parametrize(
        ("foreign", "named"),
        [
            ({"containers": [{"name": "server"}]}, "container server"),
            ({"containers": [{"name": "vllm"}, {"name": "miner"}]}, "container miner"),
            ({"initContainers": [{"name": "vllm"}]}, "init container vllm"),
            ({"hostNetwork": True}, "hostNetwork"),
        ],
    )
    def test_of_what_would_keep_something_foreign_is_refused_and_that_is_named(
        self, foreign, named
    ):
        state = self.orphan()
        pod = json.loads(state.deployment.template)["spec"] | foreign
        other = replace(state.deployment, template=json.dumps({"spec": pod}))

        writes, conditions = told(replace(state, deployment=other))

        assert (writes.template, writes.scale) == (None, None)
        assert conditions["Ready"].reason == "NameConflict"
        assert f"have {named}, which" in conditions["Ready"].message

    def test_comes_before_replicas_move(self):
        state = self.orphan()
        busy = replace(state, engines=a_state(load=6.0).engines)

        writes, _ = told(busy)

        assert writes.template is not None
        assert writes.scale is None

    def test_begins_the_window_in_which_nothing_is_taken_away(self):
        foreign = a_state(
            replicas=8, live=a_deployment_body(replicas=8, ownerReferences=[]), load=0.5
        )
        state = self.orphan()
        ours = replace(
            state,
            deployment=replace(state.deployment, replicas=8, owner_uid="uid-of-llama"),
            engines=foreign.engines,
            pods=foreign.pods,
        )
        before = tick(a_fleet(foreign), Memory())

        outcome = tick(a_fleet(ours, now_s=NOW_S + 40_000), before.memory)

        assert outcome.found[0].decision.replicas == 8
        assert outcome.found[0].decision.reasons[0].code == "WarmingUp"

    def test_takes_the_right_to_write_templates(self):
        _, conditions = told(self.orphan(), settings={"mode": "scaleOnly"})

        assert conditions["Ready"].reason == "NameConflict"

    def test_is_how_a_conflict_says_that_it_ends(self):
        _, conditions = told(a_state(live=a_deployment_body(ownerReferences=[])))

        assert "label that Deployment tonnage.dev/adopt=uid-of-llama" in conditions["Ready"].message


def test_a_service_of_somebody_else_is_no_way_to_the_replicas():
    state = a_state()
    memory = remembering(
        a_memory(state),
        failures=failures(
            WriteKind.CHILDREN, "Service serving/llama is not ours", cause=Cause.NO_PATH
        ),
    )

    _, conditions = told(state, memory=memory)

    assert (conditions["Ready"].status, conditions["Ready"].reason) == ("False", "NoTrafficPath")
