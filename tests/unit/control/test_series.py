"""The operator's own series of an object: what is known, nothing else, and few labels."""

from dataclasses import replace

import pytest

from fleet_builders import (
    NOW_S,
    a_deployment_body,
    a_deployment_of_a_config_map,
    a_fleet,
    a_manifest,
    a_memory,
    a_sizing,
    a_state,
    managed_by,
    no_config,
)
from tonnage.control.input.memory import Memory
from tonnage.control.report.reasons import REASONS
from tonnage.control.series import CONSTANTS, FAMILIES, fleet_series
from tonnage.control.tick import tick

EACH = a_sizing().goodput_requests_per_s
UID = "uid-of-llama"
ARGO = managed_by("argocd-controller", "f:replicas")
NOT_KNOWN_WITHOUT_METRICS = {
    "tonnage_requests_per_second", "tonnage_waiting_requests", "tonnage_utilization",
    "tonnage_memory_bandwidth_utilization", "tonnage_model_flops_utilization",
    "tonnage_slo_attainment",
}  # fmt: skip


def ticked(*states, memory=None, now_s=NOW_S, most=1000, **changes):
    """(series, memory) of one tick of objects that were watched before."""
    known = memory or Memory(objects={each.view.uid: a_memory(each) for each in states})
    fleet = a_fleet(*states, now_s=now_s, **changes)
    outcome = tick(fleet, known)
    return fleet_series(outcome, fleet, most=most), outcome.memory


def series_of(*states, **changes):
    return ticked(*states, **changes)[0]


def gauges(state=None, **changes):
    """{(family, labels): value} of one object."""
    [told] = series_of(state or a_state(), **changes).objects
    found = {(each.family, each.labels): each.value for each in told.gauges}
    assert len(found) == len(told.gauges), "each once"
    return found


def value(found, family, *labels):
    return found[family, labels]


class TestGauges:
    def test_say_what_is_needed_wanted_and_there(self):
        found = gauges(a_state(replicas=2, load=3.5))

        assert value(found, "tonnage_replicas_needed") == 5
        assert value(found, "tonnage_replicas_wanted") == 5
        assert value(found, "tonnage_replicas_current") == 2
        assert value(found, "tonnage_replicas_ready") == 2

    def test_need_is_told_before_limits_and_what_is_wanted_after_them(self):
        limited = a_manifest(scaling={"minReplicas": 1, "maxReplicas": 3})

        found = gauges(a_state(limited, replicas=2, load=3.5))

        assert value(found, "tonnage_replicas_needed") == 5
        assert value(found, "tonnage_replicas_wanted") == 3

    def test_utilization_is_demand_over_the_goodput_of_what_is_ready(self):
        found = gauges(a_state(replicas=2, load=1.5))

        assert value(found, "tonnage_goodput_requests_per_second") == pytest.approx(EACH)
        assert value(found, "tonnage_requests_per_second") == pytest.approx(1.5 * EACH)
        assert value(found, "tonnage_utilization") == pytest.approx(1.5 / 2)

    def test_nothing_ready_has_no_utilization(self):
        live = a_deployment_body(replicas=2, ready=0)

        found = gauges(a_state(replicas=2, load=1.5, live=live))

        assert ("tonnage_utilization", ()) not in found

    def test_what_is_missing_is_absent_and_not_zero(self):
        found = gauges(a_state(engines=()))

        assert {family for family, _ in found} & NOT_KNOWN_WITHOUT_METRICS == set()
        assert value(found, "tonnage_replicas_ready") == 2

    def test_nothing_learned_is_the_prior(self):
        found = gauges()

        for constant in CONSTANTS:
            prior = value(found, "tonnage_calibration", constant, "prior")
            assert value(found, "tonnage_calibration", constant, "learned") == prior
        assert value(found, "tonnage_calibration", "StepTime", "prior") == 1

    def test_a_refused_object_shows_its_conditions_and_what_runs(self):
        live = a_deployment_of_a_config_map()
        found = gauges(a_state(model_config=no_config("no such key"), live=live))

        assert value(found, "tonnage_condition", "PlanValid", "False", "ModelConfigMissing") == 1
        assert value(found, "tonnage_replicas_ready") == 2
        assert {family for family, _ in found} >= {"tonnage_requests_per_second"}
        assert "tonnage_replicas_needed" not in {family for family, _ in found}

    def test_each_condition_has_one_status_and_one_reason_that_is_known(self):
        found = gauges(a_state(load=3.5))

        labels = [labels for family, labels in found if family == "tonnage_condition"]
        assert len({kind for kind, _, _ in labels}) == len(labels)
        assert {reason for _, _, reason in labels} <= REASONS

    def test_all_are_of_known_families_with_their_labels(self):
        for (family, labels), number in gauges(a_state(load=3.5)).items():
            assert len(labels) == len(FAMILIES[family].labels)
            assert isinstance(number, int | float)


class TestCounts:
    def counts(self, state, **changes):
        told, memory = ticked(state, **changes)
        return [(each.family, each.labels) for each in told.objects[0].counts], memory

    def test_a_decision_counts_once(self):
        state = a_state(replicas=2, load=3.5)

        first, memory = self.counts(state)
        second, _ = self.counts(state, memory=memory, now_s=NOW_S + 15)

        assert first == [("tonnage_decisions", ("Backlog", "up"))]
        assert second == []

    def test_nothing_decided_counts_nothing(self):
        assert self.counts(a_state(replicas=2, load=1.5))[0] == []

    def test_a_change_by_another_writer_counts_once(self):
        calm = a_state(replicas=2, load=1.5)
        _, memory = self.counts(calm)
        _, memory = self.counts(calm, memory=memory, now_s=NOW_S + 15)
        body = a_deployment_body(replicas=1, generation=4, managedFields=ARGO)
        undone = a_state(replicas=1, load=1.5, live=body)

        first, memory = self.counts(undone, memory=memory, now_s=NOW_S + 30)
        second, _ = self.counts(undone, memory=memory, now_s=NOW_S + 45)

        assert ("tonnage_conflicts", ("replicas",)) in first
        assert second == []


class TestTheFleet:
    def named(self, name, created):
        manifest = a_manifest(name)
        manifest["metadata"]["creationTimestamp"] = created
        return a_state(manifest, load=1.5)

    def test_the_oldest_have_series_and_the_others_are_counted(self):
        states = [
            self.named("a", "2026-01-01T00:00:02Z"),
            self.named("b", "2026-01-01T00:00:00Z"),
            self.named("c", "2026-01-01T00:00:01Z"),
        ]

        told = series_of(*states, most=2)

        assert [each.key[1] for each in told.objects] == ["b", "c"]
        assert (told.num_objects, told.num_left_out) == (3, 1)

    def test_without_an_answer_that_decides_it_is_blind(self):
        down = ("PrometheusUnreachable", "no answer")

        assert series_of(a_state(), metrics_problem=down).is_blind
        assert not series_of(a_state()).is_blind

    def test_a_deleted_object_is_not_in_it(self):
        gone, stays = self.named("a", "2026-01-01T00:00:00Z"), self.named("b", "2026")
        _, memory = ticked(gone, stays)

        told = series_of(stays, memory=replace(memory), now_s=NOW_S + 15)

        assert [each.key[1] for each in told.objects] == ["b"]
