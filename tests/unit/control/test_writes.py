"""From an assessment to writes: only what differs, and only where writing is allowed."""

import json
from dataclasses import replace

import pytest

from fleet_builders import (
    NOW_S,
    UNSCHEDULABLE,
    a_deployment_body,
    a_deployment_of_a_config_map,
    a_fleet,
    a_manifest,
    a_memory,
    a_pod_body,
    a_sizing,
    a_state,
    assessed,
    failures,
    first_replicas,
    managed_by,
    no_config,
)
from tonnage.control.input.memory import Memory
from tonnage.control.input.state import Pending
from tonnage.control.input.writers import Cause, Result, WriteKind
from tonnage.control.observe.ownership import GONE_S
from tonnage.control.report.event_records import EVENT_INTERVAL_S, LATE_S
from tonnage.control.report.status import report
from tonnage.control.tick import tick
from tonnage.control.write.writes import CHILDREN_CHECK_S, with_object_results, writes_for

AUTOSCALER = "HorizontalPodAutoscaler llama"
EDITED = managed_by("tonnage", "f:template") + managed_by("kubectl-edit", "f:template")
TARGET = {"engine": None, "scaleTarget": {"name": "llama"}}


def asked(state=None, *, memory=None, free_gpus=None, now_s=NOW_S, settings=None, **changes):
    """(writes, memory) for one object in one tick."""
    state = state or a_state(**changes)
    fleet = a_fleet(state, now_s=now_s, settings=settings or {})
    memory = memory or a_memory(state)
    found = assessed(state, memory=memory, fleet=fleet, free_gpus=free_gpus)
    return writes_for(found, report(found, fleet), fleet)


def writes(*arguments, **changes):
    return asked(*arguments, **changes)[0]


def manifest_in_mode(mode, **spec):
    return a_manifest(scaling={"mode": mode, "minReplicas": 1, "maxReplicas": 8}, **spec)


def an_edited_body():
    body = a_deployment_body(managedFields=EDITED)
    body["spec"]["template"]["spec"]["containers"][0]["image"] = "example.test/other:1"
    return body


def a_change(manifest):
    """The object asks for another template and another number than runs."""
    return a_state(manifest, load=5, live=a_deployment_body())


def deleted(for_s, **changes):
    """The same, deleted so many seconds ago, and kept by a finalizer of somebody."""
    manifest = a_manifest(contextLength=16_384)
    found = a_state(manifest, **{"load": 5, "live": a_deployment_body()} | changes)
    return replace(found, view=replace(found.view, deleted_at_s=NOW_S - for_s))


class TestScale:
    def test_is_written_with_what_it_was_decided_on(self):
        scale = writes(load=3.5, replicas=2).scale

        assert (scale.deployment, scale.seen, scale.replicas) == ("llama", 2, 5)
        assert scale.uid == "uid-of-deployment-llama"

    def test_is_not_written_when_nothing_changes(self):
        assert writes(load=1.5, replicas=2).scale is None

    def test_goes_down_one_at_a_time(self):
        assert writes(load=1, replicas=4).scale.replicas == 3

    def test_does_not_go_down_during_an_update(self):
        rolling = a_deployment_body(replicas=4)
        rolling["status"]["updatedReplicas"] = 1

        assert writes(a_state(replicas=4, load=1, live=rolling)).scale is None

    def test_does_not_go_down_when_an_update_is_due(self):
        changed = a_manifest(contextLength=8000, generation=2)

        assert (
            writes(a_state(changed, replicas=4, load=1, live=a_deployment_body(replicas=4))).scale
            is None
        )

    def test_goes_up_during_an_update(self):
        rolling = a_deployment_body()
        rolling["status"]["updatedReplicas"] = 1

        assert writes(a_state(load=5, live=rolling)).scale.replicas == 7  # two for the queue

    def test_goes_down_while_a_pod_waits_for_a_gpu(self):
        pods = [*(a_pod_body(name) for name in "abc"), a_pod_body("d", **UNSCHEDULABLE)]
        live = a_deployment_body(replicas=4, ready=3)

        assert writes(a_state(replicas=4, load=1, pods=pods, live=live)).scale.replicas == 3


class TestTemplate:
    def test_of_a_new_object_is_created_with_its_first_replicas(self):
        made = writes(replicas=None)

        assert made.template["metadata"]["name"] == "llama"
        assert made.first_replicas == first_replicas()
        assert made.check_children
        assert made.creates

    def test_of_a_new_object_is_not_created_when_the_budget_allows_no_replica(self):
        # A Deployment without replicas asks for one.
        refused = writes(a_state(replicas=None), free_gpus=1)

        assert refused.template is None
        assert refused.scale is None
        assert refused.status is not None

    def test_of_a_new_object_is_created_as_far_as_the_budget_allows(self):
        assert writes(a_state(replicas=None), free_gpus=5).first_replicas == 2

    def test_stays_while_nothing_changed(self):
        assert writes().template is None
        assert not writes().check_children

    def test_is_written_for_a_new_spec(self):
        changed = a_manifest(contextLength=16_384, generation=2)

        made = writes(a_state(changed, live=a_deployment_body()))

        assert made.template is not None
        assert made.rolls
        assert not made.creates
        assert "RollingPods" in {each.reason for each in made.event_records}

    def test_that_replaces_no_pod_is_no_rollout(self):
        slo = {"timeToFirstToken": {"p95": "2001ms"}, "timePerOutputToken": {"p95": "50ms"}}
        changed = a_manifest(slo=slo, generation=2)

        made = writes(a_state(changed, live=a_deployment_body()))

        assert made.template is not None
        assert not made.rolls
        assert "RollingPods" not in {each.reason for each in made.event_records}

    def test_corrects_drift_once(self):
        state = a_state(live=an_edited_body())

        first, memory = asked(state)
        second, _ = asked(state, memory=memory)

        assert first.template is not None
        assert second.template is None

    def test_corrects_drift_when_the_object_is_let_go_again(self):
        # While it was paused nothing was written: the edit still stands.
        live = an_edited_body()
        _, memory = asked(a_state(manifest_in_mode("Paused"), live=live))

        after, _ = asked(a_state(live=live), memory=memory)

        assert after.template is not None


class TestWhereNothingIsWritten:
    @pytest.mark.parametrize("mode", ["Recommend", "Paused"])
    @pytest.mark.parametrize("replicas", [None, 2])
    def test_in_a_passive_mode(self, mode, replicas):
        state = a_state(manifest_in_mode(mode, contextLength=16_384), replicas=replicas, load=5)

        passive = writes(state)

        assert (passive.scale, passive.template, passive.check_children) == (None, None, False)
        assert passive.status is not None

    @pytest.mark.parametrize(
        ("change", "reason"),
        [
            ({"live": a_deployment_body(ownerReferences=[])}, "NameConflict"),
            (
                {"model_config": no_config("no such key"), "live": a_deployment_of_a_config_map()},
                "ModelConfigMissing",
            ),
            ({"earlier_owner": "first"}, "ConflictingOwner"),
        ],
    )
    def test_for_a_refused_object(self, change, reason):
        refused = writes(a_state(load=5, **change))

        assert (refused.scale, refused.template, refused.check_children) == (None, None, False)
        assert refused.status.display.reason == reason

    def test_for_a_target_that_is_not_opted_in(self):
        closed = a_deployment_body(labels={}, ownerReferences=[])

        refused = writes(a_state(a_manifest(**TARGET), live=closed, load=5))

        assert (refused.scale, refused.template) == (None, None)
        assert refused.status.display.reason == "TargetNotAllowed"

    def test_beside_a_conflicting_autoscaler(self):
        state = replace(
            a_change(a_manifest(contextLength=16_384)), conflicting_autoscaler=AUTOSCALER
        )

        beside = writes(state)

        assert (beside.scale, beside.template, beside.check_children) == (None, None, False)

    @pytest.mark.parametrize("for_s", [-10, 0, GONE_S - 1])
    def test_for_an_object_that_was_just_deleted(self, for_s):
        left = writes(deleted(for_s))

        assert (left.scale, left.template, left.check_children) == (None, None, False)
        assert (left.status, left.event_records) == (None, ())

    @pytest.mark.parametrize("for_s", [GONE_S, -60, 86_400])
    def test_but_replicas_and_status_for_a_deleted_one_that_stays(self, for_s):
        left = writes(deleted(for_s))
        [active] = [each for each in left.status.conditions if each.type == "ScalingActive"]

        assert left.scale.replicas > 2
        assert (left.template, left.check_children, left.roles) == (None, False, ())
        assert (active.status, active.reason) == ("True", "ScalingWhatRuns")
        assert active.message.endswith("until a finalizer lets the deleted object go")

    def test_for_a_deleted_one_that_scaled_a_deployment_of_its_user(self):
        live = a_deployment_body(labels={"tonnage.dev/managed": "true"}, ownerReferences=[])
        runs = a_state(a_manifest(**TARGET), live=live, load=5)
        deleted_since = replace(runs, view=replace(runs.view, deleted_at_s=NOW_S - 86_400))

        assert writes(runs).scale.replicas > 2
        assert writes(deleted_since).scale is None

    @pytest.mark.parametrize("is_there", [True, False])
    def test_for_a_deleted_one_whose_deployment_goes_too(self, is_there):
        going = {"live": a_deployment_body(deletionTimestamp="2026-01-02T00:00:00Z")}
        left = writes(deleted(60, **(going if is_there else {"replicas": None, "live": None})))

        assert (left.scale, left.template, left.check_children) == (None, None, False)
        assert (left.status, left.event_records) == (None, ())

    def test_of_replicas_for_a_deployment_that_goes(self):
        going = a_deployment_body(deletionTimestamp="2026-01-02T00:00:00Z")

        assert writes(a_state(load=5, live=going)).scale is None

    def test_of_templates_without_the_right_to(self):
        only = {"mode": "scaleOnly"}

        assert writes(replicas=None, settings=only).template is None
        ours = writes(a_change(a_manifest(contextLength=16_384)), settings=only)
        assert (ours.scale, ours.template) == (None, None)

    def test_of_events_by_an_operator_that_recommends(self):
        too_fast = {"timePerOutputToken": {"p95": "1ms"}}
        state = a_state(manifest_in_mode("Recommend", slo=too_fast), replicas=None)
        before, after = (writes(state, settings={"mode": each}) for each in ("full", "recommend"))

        assert [each.reason for each in before.event_records] == ["SLOInfeasible"]
        assert after.status is not None
        assert (after.event_records, after.template, after.scale) == ((), None, None)


class TestAScaleTarget:
    def test_is_scaled_and_nothing_else(self):
        live = a_deployment_body(ownerReferences=[], managedFields=EDITED)

        made = writes(
            a_state(a_manifest(**TARGET), load=5, live=live), settings={"mode": "scaleOnly"}
        )

        assert made.scale.replicas == 7  # two of them for the queue until then
        assert (made.template, made.check_children) == (None, False)


class TestChildren:
    def test_are_looked_at_every_five_minutes(self):
        state = a_state()
        checked = a_memory(state, children_checked_at_s=NOW_S - CHILDREN_CHECK_S - 1)

        first, memory = asked(state, memory=checked)
        second, _ = asked(state, memory=memory, now_s=NOW_S + 15)

        assert (first.check_children, second.check_children) == (True, False)
        assert not first.check_leftovers

    def test_are_looked_at_once_for_another_spec_with_what_it_no_longer_asks_for(self):
        before, after = a_state(), a_state(a_manifest(generation=2))

        first, memory = asked(after, memory=a_memory(before))
        second, _ = asked(after, memory=memory, now_s=NOW_S + 15)

        assert (first.check_children, first.check_leftovers) == (True, True)
        assert (second.check_children, second.check_leftovers) == (False, False)

    def test_are_looked_at_in_full_by_an_operator_that_has_just_started(self):
        state = a_state()
        new = a_memory(state, children_checked_at_s=None, children_generation=None)

        first, memory = asked(state, memory=new)

        assert (first.check_children, first.check_leftovers) == (True, True)
        failed = {WriteKind.CHILDREN: Result(cause=Cause.FAILED)}
        again = with_object_results(memory, assessed(state, memory=new), first, failed, now_s=NOW_S)
        assert again.written.children_generation is None


class TestHappenings:
    def reasons(self, written):
        return [each.reason for each in written.event_records]

    def test_a_decision_is_one(self):
        [scaled] = writes(load=3.5).event_records

        assert (scaled.reason, scaled.is_warning) == ("Scaled", False)
        assert scaled.message.startswith("2 -> 5 replicas: ")

    def test_pods_that_are_replaced_are_one_however_often_the_write_is_tried(self):
        changed = a_manifest(contextLength=16_384, generation=2)
        state = a_state(changed, live=a_deployment_body())

        first, memory = asked(state)
        second, memory = asked(state, memory=memory, now_s=NOW_S + 15)
        _, at_rest = asked(a_state(), memory=memory, now_s=NOW_S + 30)
        again, _ = asked(state, memory=at_rest, now_s=NOW_S + 45)

        told = [self.reasons(each).count("RollingPods") for each in (first, second, again)]
        assert second.rolls
        assert told == [1, 0, 1]

    def test_a_decision_that_is_not_carried_out_is_none(self):
        rolling = a_deployment_body(replicas=4)
        rolling["status"]["updatedReplicas"] = 1

        assert self.reasons(writes(a_state(replicas=4, load=1, live=rolling))) == []
        assert self.reasons(writes(a_state(manifest_in_mode("Recommend"), load=3.5))) == []

    def test_a_condition_that_turns_bad_is_a_warning_once(self):
        state = a_state(replicas=a_sizing().replicas, engines=())

        first, memory = asked(state)
        soon, memory = asked(state, memory=memory, now_s=NOW_S + LATE_S - 1)
        late, memory = asked(state, memory=memory, now_s=NOW_S + LATE_S)
        after, _ = asked(state, memory=memory, now_s=NOW_S + LATE_S + 15)

        assert self.reasons(first) == self.reasons(soon) == []
        assert self.reasons(late) == ["MetricsMissing"]
        assert late.event_records[0].is_warning
        assert self.reasons(after) == []

    def test_a_warning_does_not_wait_for_a_status_that_is_refused(self):
        state = a_state()
        refused = failures(WriteKind.STATUS, "request is too large")
        asked_for, memory = asked(state, memory=a_memory(state, failures=refused))
        after, _ = asked(state, memory=memory, now_s=NOW_S + 15)

        assert asked_for.status is None
        assert self.reasons(asked_for) == ["WriteRefused"]
        assert asked_for.event_records[0].message.endswith("request is too large")
        assert self.reasons(after) == []

    def test_a_replica_whose_first_scrape_takes_a_minute_is_no_warning(self):
        live = a_deployment_body(replicas=a_sizing().replicas)
        unseen, seen = a_state(live=live, engines=()), a_state(live=live, load=1.5)

        first, memory = asked(unseen)
        second, memory = asked(unseen, memory=memory, now_s=NOW_S + 60)
        third, _ = asked(seen, memory=memory, now_s=NOW_S + 75)

        told = [each.reason for made in (first, second, third) for each in made.event_records]
        assert not {"MetricsMissing", "MetricsIncomplete"} & set(told)

    def test_a_condition_that_wavers_is_told_every_ten_minutes(self):
        bad, good = a_state(model_config=no_config("no such key")), a_state(load=1.5)
        told = []
        memory = a_memory(good)
        for number in range(100):
            state = bad if number % 2 else good
            made, memory = asked(state, memory=memory, now_s=NOW_S + number * 15)
            told += self.reasons(made)

        assert told.count("ModelConfigMissing") == 1 + 100 * 15 // EVENT_INTERVAL_S

    def test_a_warning_says_nothing_more_when_its_search_waits_in_between(self):
        bad = a_state(model_config=no_config("no such key"))
        first, memory = asked(bad)
        waits = replace(assessed(bad, memory=memory), pending=Pending(message="m", is_told=True))
        fleet = a_fleet(bad, now_s=NOW_S + 15)
        between, memory = writes_for(waits, report(waits, fleet), fleet)

        later, _ = asked(bad, memory=memory, now_s=NOW_S + 2 * EVENT_INTERVAL_S)

        assert self.reasons(first) == ["ModelConfigMissing"]
        assert self.reasons(between) == []
        assert self.reasons(later) == []

    def test_what_was_told_before_a_restart_is_not_told_again(self):
        state = a_state(model_config=no_config("no such key"))
        first, _ = asked(state)
        status = json.dumps(first.status.to_dict())
        after = replace(state, view=replace(state.view, status=status))

        outcome = tick(a_fleet(after, now_s=NOW_S + 15), Memory())

        assert self.reasons(first) == ["ModelConfigMissing"]
        assert self.reasons(outcome.writes[0]) == []

    def test_another_reason_of_the_same_condition_is_told(self):
        silent = a_state(replicas=a_sizing().replicas, engines=())
        _, memory = asked(silent)
        down = a_fleet(silent, now_s=NOW_S + 15, metrics_problem=("PrometheusUnreachable", "m"))

        found = assessed(silent, memory=memory, fleet=down)

        assert self.reasons(writes_for(found, report(found, down), down)[0]) == [
            "PrometheusUnreachable"
        ]

    def test_a_decision_is_told_when_it_is_carried_out_and_once(self):
        manifest = a_manifest(scaling={"mode": "Recommend", "minReplicas": 1, "maxReplicas": 8})
        first, memory = asked(a_state(manifest, load=3.5))

        acted, memory = asked(a_state(load=3.5), memory=memory, now_s=NOW_S + 15)
        tried_again, _ = asked(a_state(load=3.5), memory=memory, now_s=NOW_S + 30)

        assert self.reasons(first) == []
        assert self.reasons(acted) == ["Scaled"]
        assert tried_again.scale is not None
        assert self.reasons(tried_again) == []
