"""Whether replicas that go may finish what they answer, and what is said where they may not."""

import pytest

from fleet_builders import (
    a_deployment_body,
    a_manifest,
    a_memory,
    a_state,
    assessed,
    managed_by,
    with_lengths,
)
from tonnage.control.decide.template import drain_reasons, recorded_drain_s
from tonnage.control.input.writers import FieldOwnership
from tonnage.manifests.names import TEMPLATE_ANNOTATION
from tonnage.manifests.pod import LEAST_DRAIN_S, MOST_DRAIN_S

EDITED = managed_by("tonnage", "f:template") + managed_by("kubectl-edit", "f:template")
TARGET = {"engine": None, "scaleTarget": {"name": "llama"}}


def with_grace(seconds, **metadata):
    """Pods with so much, as another version of Tonnage may have written them."""
    live = a_deployment_body(**metadata)
    live["metadata"]["annotations"][TEMPLATE_ANNOTATION] = "0" * 16
    live["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] = seconds
    return live


def said(state, memory=None):
    found = assessed(state, memory=memory)
    return [reason.message for reason in drain_reasons(found, found.chosen)]


class TestWhatIsSaid:
    def test_nothing_while_the_longest_answers_end_in_time(self):
        assert said(a_state()) == []

    def test_measured_answers_that_the_live_pods_cut_off_are_told_with_both_numbers(self):
        state = with_lengths(a_state(), 4000, 1500)

        [message] = said(state)

        # 1500 * ln(100) = 6908, and 1500 is asked as the nearest on a grid of 3 %.
        assert message.startswith("the longest outputs measured have 6,8")
        assert "pods have 165 s to finish" in message

    def test_they_roll_no_pod(self):
        state = with_lengths(a_state(), 4000, 1500)

        assert assessed(state).template is None

    def test_a_reason_of_the_decision_says_so(self):
        found = assessed(a_state(live=with_grace(75)))

        assert "GracePeriodTooShort" in [reason.code for reason in found.decision.notes]

    def test_what_the_pods_that_run_have_is_what_counts(self):
        assert len(said(a_state(live=with_grace(75)))) == 1
        assert said(a_state(live=with_grace(300))) == []

    def test_a_scale_target_is_told_by_its_own_grace(self):
        live = with_grace(30, ownerReferences=[])

        [message] = said(a_state(a_manifest(**TARGET), live=live))

        assert "pods have 30 s to finish: " in message

    def test_a_bound_that_binds_is_told(self):
        long = a_manifest(
            contextLength=65_536,
            demand={
                "requestsPerSecond": "0.2",
                "promptTokens": {"mean": 4000},
                "outputTokens": {"mean": 20_000, "p99": 40_000},
            },
        )

        [message] = said(a_state(long, replicas=None))

        assert "40,000 tokens" in message
        assert "pods have 570 s to finish" in message


def drain_of(found):
    return int(found.template["metadata"]["annotations"]["tonnage.dev/drain-seconds"])


class TestWhatRunsStays:
    def test_when_drift_is_corrected_whatever_is_measured_now(self):
        live = a_deployment_body()
        live["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] = 7
        recorded = int(live["metadata"]["annotations"]["tonnage.dev/drain-seconds"])
        state = with_lengths(a_state(live=live), 4000, 1500)

        found = assessed(state, memory=a_memory(state))

        assert drain_of(found) == recorded

    @pytest.mark.parametrize("recorded", [None, "", "7", "100000", "x"])
    def test_as_the_pods_have_it_where_there_is_no_record_of_ours(self, recorded):
        live = a_deployment_body(managedFields=EDITED)
        written = int(live["metadata"]["annotations"].pop("tonnage.dev/drain-seconds"))
        if recorded is not None:
            live["metadata"]["annotations"]["tonnage.dev/drain-seconds"] = recorded
        state = a_state(live=live)
        memory = a_memory(state, writers=FieldOwnership(deployment_uid=state.deployment.uid))

        assert recorded_drain_s(state.deployment) == written > LEAST_DRAIN_S
        assert assessed(state, memory=memory).template is None

    @pytest.mark.parametrize(("grace_s", "drain_s"), [(None, 45), (7, 45), (100_000, MOST_DRAIN_S)])
    def test_within_bounds_where_there_is_no_record_of_ours(self, grace_s, drain_s):
        live = a_deployment_body(managedFields=EDITED)
        del live["metadata"]["annotations"]["tonnage.dev/drain-seconds"]
        live["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] = grace_s

        assert recorded_drain_s(a_state(live=live).deployment) == drain_s

    def test_for_a_changed_spec_too_as_long_as_it_is_enough(self):
        live = a_deployment_body()
        live["metadata"]["annotations"]["tonnage.dev/drain-seconds"] = "300"
        changed = a_manifest(contextLength=8000, generation=2)

        assert drain_of(assessed(a_state(changed, live=live))) == 300

    def test_and_gives_way_to_measured_answers_when_the_spec_changes(self):
        changed = a_manifest(contextLength=8000, generation=2)
        state = with_lengths(a_state(changed, live=a_deployment_body()), 4000, 1500)

        assert drain_of(assessed(state)) > 165
