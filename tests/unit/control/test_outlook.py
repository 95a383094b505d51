"""The history of demand as it is taken up by a process that sees an object for the first time."""

from dataclasses import replace

import pytest

from fleet_builders import NOW_S, a_fleet, a_memory, a_sizing, a_state, assessed
from tonnage.control.outlook import with_recalled
from tonnage.control.state import Memory
from tonnage.control.tick import tick
from tonnage.estimate.calibration import Calibrations, memory_key
from tonnage.estimate.forecast import History
from tonnage.estimate.kept_history import kept
from tonnage.estimate.posterior import ObjectPosterior
from tonnage.estimate.ways import BIN_S

SIZING = a_sizing()
UNIT = memory_key(SIZING.request, SIZING.flags)
LAST_BIN = int(NOW_S // BIN_S) - 1


def a_history(*, unit=UNIT, times=1.0):
    """Three replicas' worth, of replicas that served so many times what they do now."""
    return kept(
        History(pattern={LAST_BIN: (3.0, 10)}),
        unit=unit,
        unit_requests_per_s=times * SIZING.most_requests_per_s,
        now_s=NOW_S,
    )


def mean_after(history):
    """Return the mean of the last bin, after a tick of a process that had not seen the object."""
    state = a_state()
    known = replace(a_memory(state), posterior=ObjectPosterior(demand=history))
    found = assessed(state, memory=with_recalled(known, now_s=NOW_S))
    return found.memory.history.pattern[LAST_BIN][0]


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

    assert LAST_BIN in known.history.pattern


def test_is_none_where_none_was_kept():
    memory = a_memory(a_state())

    assert with_recalled(memory, now_s=NOW_S) is memory
