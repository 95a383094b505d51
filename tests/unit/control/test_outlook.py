"""The lead of a replica, and demand of before as it is taken up at first sight."""

from dataclasses import replace

import pytest

from fleet_builders import (
    CRASH_LOOPING,
    NOW_S,
    UNSCHEDULABLE,
    a_fleet,
    a_pod_body,
    a_sizing,
    a_state,
    at,
)
from tonnage.control.decide.outlook import lead_s, supply_of
from tonnage.control.input.memory import Memory
from tonnage.control.tick import settled_in, tick
from tonnage.estimate.budget import Ledger
from tonnage.estimate.calibration import Calibrations
from tonnage.estimate.forecasters import BIN_S
from tonnage.estimate.headroom import KeptRecord, Score
from tonnage.estimate.past import Past
from tonnage.estimate.posterior import ObjectPosterior
from tonnage.settings import Settings

SIZING = a_sizing()
LAST_BIN = int(NOW_S // BIN_S) - 1
MOST = SIZING.most_requests_per_s
WILD = KeptRecord(record={"trend": Score(1.5, 30.0)}, rises=(90.0, 0.0, 0.0, 0.0, 0.0, 30.0))


def a_past(**bins):
    return Past(ledger=Ledger(), **bins)


def ticked(*, posterior=None, **fleet):
    """The memory of an object after the first tick of a process."""
    state = a_state()
    objects = {state.view.uid: posterior} if posterior else {}
    fleet = a_fleet(state, calibrations=Calibrations(objects=objects), **fleet)
    [known] = tick(fleet, Memory(calibrations=fleet.calibrations)).memory.objects.values()
    return known


def test_demand_of_before_is_told_in_replicas_as_they_are_now():
    uid = a_state().view.uid

    known = ticked(pasts={uid: a_past(means={LAST_BIN: 3 * MOST})}).demand

    assert known.history.pattern[LAST_BIN][0] == pytest.approx(3.0)
    assert known.past is None


def test_demand_of_before_is_taken_up_between_two_answers_too():
    state, past = a_state(), a_past(means={LAST_BIN: 3 * MOST})
    first = tick(a_fleet(state), Memory())
    settled = settled_in(first, {}, first.memory)

    fleet = a_fleet(state, pasts={state.view.uid: past})
    [known] = tick(fleet, first.memory, settled=settled).memory.objects.values()

    assert settled.keys() == {state.view.uid}
    assert known.demand.history.pattern[LAST_BIN][0] == pytest.approx(3.0)


def test_demand_is_told_in_other_replicas_where_other_engines_run():
    state = a_state()
    uid, past = state.view.uid, a_past(means={LAST_BIN: 3 * MOST})
    first = tick(a_fleet(state, pasts={uid: past}), Memory()).memory
    twice = replace(first.objects[uid].demand, unit="other engines", most_requests_per_s=2 * MOST)
    memory = replace(first, objects={uid: replace(first.objects[uid], demand=twice)})

    [known] = tick(a_fleet(state), memory).memory.objects.values()

    assert known.demand.history.pattern[LAST_BIN][0] == pytest.approx(6.0)
    assert known.demand.most_requests_per_s == MOST


def test_demand_of_before_waits_until_demand_is_measured():
    state, past = a_state(engines=()), a_past(means={LAST_BIN: 3 * MOST})

    [known] = tick(a_fleet(state, pasts={state.view.uid: past}), Memory()).memory.objects.values()

    assert known.demand.past == past


def test_records_of_forecasts_and_rises_go_on_from_what_was_stored():
    known = ticked(posterior=ObjectPosterior(demand=WILD))

    assert known.demand.history.kept.record == {"trend": Score(loss=1.5, weight=30)}
    assert known.demand.history.kept.rises == WILD.rises


def test_records_are_learned_with_each_note():
    known = ticked()

    assert known.posterior.demand == known.demand.history.kept


SETTINGS = Settings(prometheus_url="http://p", cold_start_s=240, tick_s=15)
SLOW = ObjectPosterior(cold_start_s=300, cold_start_deviation_s=60, node_wait_s=100, num_starts=3)


class TestTheLeadOfAReplica:
    def test_is_a_tick_a_wait_for_a_node_and_a_slow_start(self):
        assert lead_s(SLOW, SETTINGS) == 15 + 100 + 300 + 60

    def test_is_what_is_expected_until_a_pod_has_started(self):
        assert lead_s(ObjectPosterior(), SETTINGS) == 15 + 240

    def test_has_passed_in_part_for_a_pod_that_a_node_took(self):
        # Made an hour ago; a node took it 200 s ago, and a slow start from there is 375 s.
        pod = a_pod_body("a", ready_for_s=None)
        pod["metadata"]["creationTimestamp"] = at(3600)
        taken = at(200)
        for condition in pod["status"]["conditions"]:
            condition["lastTransitionTime"] = taken

        assert self.due_s(pod) == (175,)

    def test_has_passed_in_part_for_a_pod_that_no_scheduler_has_looked_at(self):
        pod = a_pod_body("a", ready_for_s=None)
        pod["metadata"]["creationTimestamp"] = at(100)
        pod["status"] = {"phase": "Pending"}

        assert self.due_s(pod) == (375,)

    def test_begins_anew_for_a_pod_that_waits_for_a_node(self):
        pod = a_pod_body("a", ready_for_s=None) | {"status": UNSCHEDULABLE}

        assert self.due_s(pod) == (475,)

    def test_is_none_for_a_pod_whose_container_fails(self):
        pod = a_pod_body("a", ready_for_s=None, **CRASH_LOOPING)

        assert self.due_s(pod) == ()

    def due_s(self, pod):
        state = a_state(replicas=1, pods=[pod], engines=())
        return supply_of(state, SLOW, a_fleet(state)).due_s
