"""The lead of a replica, and the history of demand as it is taken up at first sight."""

import pytest

from fleet_builders import (
    CRASH_LOOPING,
    NOW_S,
    UNSCHEDULABLE,
    a_fleet,
    a_memory,
    a_pod_body,
    a_sizing,
    a_state,
    assessed,
    at,
)
from tonnage.control.decide.outlook import lead_s, recalled_demand, supply_of
from tonnage.control.input.memory import DemandMemory, Memory
from tonnage.control.tick import tick
from tonnage.estimate.calibration import Calibrations, memory_key
from tonnage.estimate.forecast import History
from tonnage.estimate.kept_history import to_stored
from tonnage.estimate.posterior import ObjectPosterior
from tonnage.estimate.ways import BIN_S
from tonnage.settings import Settings

SIZING = a_sizing()
UNIT = memory_key(SIZING.request, SIZING.flags)
LAST_BIN = int(NOW_S // BIN_S) - 1


def a_history(*, unit=UNIT, times=1.0):
    """Three replicas' worth, of replicas that served so many times what they do now."""
    return to_stored(
        History(pattern={LAST_BIN: (3.0, 10)}),
        unit=unit,
        unit_requests_per_s=times * SIZING.most_requests_per_s,
        now_s=NOW_S,
    )


def mean_after(history):
    """Return the mean of the last bin, after a tick of a process that had not seen the object."""
    state = a_state()
    learned = ObjectPosterior(demand=history)
    known = recalled_demand(learned, now_s=NOW_S)
    found = assessed(state, memory=a_memory(state, posterior=learned, demand=known))
    return found.memory.demand.history.pattern[LAST_BIN][0]


def test_is_told_in_replicas_as_they_are_now():
    assert mean_after(a_history()) == pytest.approx(3.0, rel=0.0023)
    # Engines with other flags served half as much each: 3 of them were 1.5 of these.
    assert mean_after(a_history(unit="other", times=0.5)) == pytest.approx(1.5, rel=0.0023)


def test_is_not_rescaled_where_only_the_lengths_of_requests_changed():
    assert mean_after(a_history(times=0.5)) == pytest.approx(3.0, rel=0.0023)


def test_is_taken_up_at_first_sight():
    state = a_state()
    objects = {state.view.uid: ObjectPosterior(demand=a_history())}
    fleet = a_fleet(state, calibrations=Calibrations(objects=objects))

    [known] = tick(fleet, Memory(calibrations=fleet.calibrations)).memory.objects.values()

    assert LAST_BIN in known.demand.history.pattern


def test_is_none_where_none_was_kept():
    assert recalled_demand(ObjectPosterior(), now_s=NOW_S) == DemandMemory()


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

    def test_begins_anew_for_a_pod_that_waits_for_a_node(self):
        pod = a_pod_body("a", ready_for_s=None) | {"status": UNSCHEDULABLE}

        assert self.due_s(pod) == (475,)

    def test_is_none_for_a_pod_whose_container_fails(self):
        pod = a_pod_body("a", ready_for_s=None, **CRASH_LOOPING)

        assert self.due_s(pod) == ()

    def due_s(self, pod):
        state = a_state(replicas=1, pods=[pod], engines=())
        return supply_of(state, SLOW, a_fleet(state)).due_s
