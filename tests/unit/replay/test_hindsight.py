from array import array
from itertools import pairwise

import pytest

from tonnage.replay.fluid import Work
from tonnage.replay.hindsight import TRIES, Tried, stages_of, staircase, static_peak
from tonnage.replay.scheduled import Scheduled, ready_for


@pytest.mark.parametrize(("first", "needed"), [(1, 1), (1, 5), (3, 3), (4, 3), (9, 2), (2, 17)])
def test_the_static_peak_is_the_smallest_number_that_keeps_the_target(first, needed):
    tried = []

    def run(number):
        tried.append(number)
        return min(1.0, number / needed)

    found = static_peak(run, target=1.0, first=first)

    assert found.replicas == needed
    assert len(tried) == len(set(tried)) == found.num_runs


def test_there_is_no_static_peak_where_more_replicas_do_not_help():
    found = static_peak(lambda number: min(0.9, number / 10), target=0.95, first=3)

    assert found.replicas is None
    assert found.best_attainment == 0.9
    assert found.num_runs <= 5  # 3, 6, 12, 24


LOADS = [1.0, 1.0, 3.6, 1.8]
"""Replicas at their bound that four windows take."""
WORK = Work(bins=array("d", [load for load in LOADS for _ in range(20)]), gpus_per_replica=1)


def enough_for(needed):
    """Keeps the target with so many replicas by window, and costs what it has."""

    def run(wanted):
        kept = sum(have >= need for have, need in zip(wanted, needed, strict=True))
        return Tried(attainment=kept / len(needed), gpu_hours=sum(wanted))

    return run


def test_a_fleet_that_is_below_the_work_in_the_mean_is_no_sign_that_more_do_not_help():
    found = static_peak(lambda number: float(number >= 90), target=0.95, first=1, least=50.0)

    assert found.replicas == 90


def test_a_staircase_follows_the_load_as_full_as_the_target_allows():
    # From 0.9 to below 1 of the bound: 1 / 0.9 -> 2, 2, 3.6 / 0.9 = 4, 1.8 / 0.9 = 2.
    found = staircase(enough_for([2, 2, 4, 2]), WORK, target=1.0, peak=4)

    assert found.wanted == (2, 2, 4, 2)
    assert found.full is not None
    assert 0.9 <= found.full < 1.0


def test_the_descent_takes_what_single_windows_have_too_much():
    # The third needs less than its load says, which no common fullness finds.
    found = staircase(enough_for([2, 1, 3, 2]), WORK, target=1.0, peak=4)

    assert found.wanted == (2, 1, 3, 2)


def test_a_staircase_is_never_dearer_than_the_constant_fleet():
    def run(wanted):  # each change costs more than any replica
        changes = sum(a != b for a, b in pairwise(wanted))
        enough = all(have >= need for have, need in zip(wanted, [1, 1, 2, 1], strict=True))
        return Tried(attainment=float(enough), gpu_hours=sum(wanted) + 100 * changes)

    found = staircase(run, WORK, target=1.0, peak=2)

    assert found.wanted == (2, 2, 2, 2)
    assert found.full is None


def test_the_descent_ends_after_a_bounded_number_of_runs():
    work = Work(bins=array("d", [50.0] * 20 * 40), gpus_per_replica=1)
    found = staircase(
        lambda wanted: Tried(attainment=1.0, gpu_hours=sum(wanted)), work, target=0.9, peak=60
    )

    assert found.num_runs <= TRIES + 8
    assert max(found.wanted) < 50 / 1.3


def test_replicas_are_asked_for_as_long_ahead_as_the_longest_start():
    stages = stages_of([1, 3, 1], longest_start_s=75.0)

    # 75 s and a little, in whole intervals of 15 s: 90 s before the second window begins.
    assert list(stages) == [(0.0, 1), (210.0, 3), (600.0, 1)]


def test_a_lead_that_is_longer_than_a_window_looks_that_far():
    assert ready_for([1, 1, 4, 1], window_s=300, lead_s=400) == [(0.0, 1), (200.0, 4), (900.0, 1)]


def test_a_schedule_holds_from_one_stage_to_the_next():
    controller = Scheduled(flags=None, stages=[(0.0, 2), (300.0, 5), (600.0, 1)])

    found = [controller.replicas_at(at_s) for at_s in (-100, 0, 299, 300, 599, 10_000)]
    assert found == [2, 2, 2, 5, 5, 1]
