"""The error budget: what is counted, how long, and what is left of it."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tonnage.estimate.budget import BINS, FEWEST, Ledger, error_budget, with_judged
from tonnage.units import DAY_S, HOUR_S

TTFT = "TTFT 2.00 s"
ALLOWED = {TTFT: 0.05}
NOW_S = 1_767_312_000.0


def a_ledger(*judged, every_s=HOUR_S, window_s=DAY_S):
    """Judged in turn, (requests, late) each; the last one now."""
    ledger = Ledger(window_s=window_s)
    for number, each in enumerate(judged):
        at_s = NOW_S - every_s * (len(judged) - 1 - number)
        ledger = with_judged(ledger, {TTFT: each}, at_s=at_s, window_s=window_s)
    return ledger


def left(ledger, *, now_s=NOW_S, allowed=None):
    return error_budget(ledger, allowed or ALLOWED, now_s=now_s).left


def test_half_of_what_may_be_late_leaves_half():
    assert left(a_ledger((10_000, 250))) == pytest.approx(0.5)


def test_more_late_than_may_be_leaves_less_than_nothing():
    assert left(a_ledger((10_000, 1000))) == pytest.approx(-1)


def test_requests_that_are_still_to_come_earn_none():
    busy_hour, quiet_hour = (10_000, 1000), (100, 0)

    assert left(a_ledger(quiet_hour, busy_hour)) == pytest.approx(1 - 1000 / (0.05 * 10_100))


def test_what_leaves_the_window_takes_its_late_requests_with_it():
    ledger = a_ledger((10_000, 1000), *[(10_000, 100)] * (BINS - 1))

    assert left(ledger) < left(ledger, now_s=NOW_S + HOUR_S)
    assert left(ledger, now_s=NOW_S + HOUR_S) == pytest.approx(1 - 100 / (0.05 * 10_000))


def test_is_that_of_the_target_with_least_left():
    judged = {TTFT: (10_000, 100), "TPOT 50.0 ms": (10_000, 60)}
    ledger = with_judged(Ledger(), judged, at_s=NOW_S, window_s=DAY_S)

    budget = error_budget(ledger, {TTFT: 0.05, "TPOT 50.0 ms": 0.01}, now_s=NOW_S)

    assert budget.target == "TPOT 50.0 ms"
    assert budget.attainment == pytest.approx(0.994)


def test_says_nothing_of_few_requests():
    assert error_budget(a_ledger((FEWEST - 1, 1)), ALLOWED, now_s=NOW_S) is None


def test_says_nothing_of_a_target_that_was_not_judged():
    assert error_budget(a_ledger((10_000, 1)), {"TTFT 1.00 s": 0.05}, now_s=NOW_S) is None


def test_burns_by_the_last_hour():
    ledger = a_ledger((10_000, 0), (10_000, 1500))

    assert error_budget(ledger, ALLOWED, now_s=NOW_S).burn_rate == pytest.approx(3)


def test_burns_nothing_in_an_hour_without_requests():
    ledger = a_ledger((10_000, 1500))

    assert error_budget(ledger, ALLOWED, now_s=NOW_S + 2 * HOUR_S).burn_rate == 0


def test_of_a_week_the_last_hour_is_its_last_bin():
    ledger = a_ledger((10_000, 0), (10_000, 1500), every_s=7 * HOUR_S, window_s=7 * DAY_S)

    assert error_budget(ledger, ALLOWED, now_s=NOW_S).burn_rate == pytest.approx(3)


@given(st.sampled_from([HOUR_S, 6 * HOUR_S, 7 * DAY_S]))
def test_another_window_loses_nothing_that_is_within_both(window_s):
    ledger = a_ledger((1000, 100), (1000, 10), every_s=2 * HOUR_S)

    moved = with_judged(ledger, {TTFT: (0, 0)}, at_s=NOW_S, window_s=window_s)

    requests = sum(each for each, _ in moved.targets[TTFT].values())
    assert requests == (2000 if window_s > HOUR_S else 1000)
    assert len(moved.targets[TTFT]) <= BINS


@given(st.lists(st.tuples(st.floats(0, 1e6), st.floats(0, 1)), min_size=1, max_size=3 * BINS))
def test_never_holds_more_than_a_window(judged):
    ledger = a_ledger(*((requests, requests * share) for requests, share in judged))

    bins = ledger.targets[TTFT]
    assert max(bins) - min(bins) < BINS
    assert sum(requests for requests, _ in bins.values()) == pytest.approx(
        math.fsum(requests for requests, _ in judged[-BINS:])
    )
