"""The error budget: what is counted, how long, and what is left of it."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tonnage.estimate.budget import BINS, Ledger, Objective, error_budget, in_window, with_judged
from tonnage.units import DAY_S, HOUR_S, MINUTE_S

TTFT = "TTFT 2.00 s"
NOW_S = 1_767_312_000.0
"""An hour begins."""


def an_objective(allowed_share=0.05):
    return Objective(latency="TTFT", quantile=0.95, limit_s=2, allowed_share=allowed_share)


def a_ledger(*judged, every_s=HOUR_S, window_s=DAY_S, until_s=NOW_S):
    """Judged in turn, (requests, late) each; the last one at ``until_s``."""
    ledger = Ledger(window_s=window_s)
    for number, each in enumerate(judged):
        at_s = until_s - every_s * (len(judged) - 1 - number)
        ledger = with_judged(ledger, {TTFT: each}, at_s=at_s)
    return ledger


def budget(ledger, *, now_s=NOW_S, allowed_share=0.05, **changes):
    return error_budget(ledger, an_objective(allowed_share), now_s=now_s, **changes)


def requests_of(ledger):
    return sum(requests for requests, _ in ledger.limits[TTFT].values())


def late_of(ledger):
    return sum(late for _, late in ledger.limits[TTFT].values())


def test_half_of_what_may_be_late_leaves_half():
    assert budget(a_ledger((10_000, 250))).left == pytest.approx(0.5)


def test_more_late_than_may_be_leaves_less_than_nothing():
    found = budget(a_ledger((10_000, 1000)))

    assert found.left == pytest.approx(-1)
    assert found.is_burnt


def test_as_many_late_as_may_be_burn_nothing_more():
    assert not budget(a_ledger((1000, 100)), allowed_share=1 - 0.9).is_burnt


def test_requests_that_are_still_to_come_earn_none():
    busy_hour, quiet_hour = (10_000, 1000), (100, 0)

    found = budget(a_ledger(quiet_hour, busy_hour))

    assert found.left == pytest.approx(1 - 1000 / (0.05 * 10_100))


def test_what_leaves_the_window_takes_its_late_requests_with_it():
    ledger = a_ledger((10_000, 1000), *[(10_000, 100)] * (BINS - 1))

    before, after = budget(ledger), budget(ledger, now_s=NOW_S + HOUR_S)

    assert before.left < after.left == pytest.approx(1 - 100 / (0.05 * 10_000))


class TestTooFew:
    @pytest.mark.parametrize(
        ("requests", "allowed_share"), [(99, 0.05), (999, 0.001), (9999, 0.0001)]
    )
    def test_requests_say_nothing(self, requests, allowed_share):
        assert budget(a_ledger((requests, 1)), allowed_share=allowed_share) is None
        assert budget(a_ledger((requests + 1, 1)), allowed_share=allowed_share) is not None

    def test_say_something_down_to_half_of_that_where_they_did_before(self):
        assert budget(a_ledger((51, 1)), was_known=True) is not None
        assert budget(a_ledger((49, 1)), was_known=True) is None

    def test_is_a_limit_that_was_not_judged(self):
        ledger = with_judged(Ledger(), {"TTFT 1.00 s": (10_000, 1)}, at_s=NOW_S)

        assert budget(ledger) is None


class TestTheBurnRate:
    def test_is_of_an_hour_at_least(self):
        ledger = a_ledger((10_000, 0), (10_000, 0), (10_000, 1500))

        assert budget(ledger).burn_rate == pytest.approx(1.5)

    @pytest.mark.parametrize("window_s", [HOUR_S, DAY_S, 2 * DAY_S, 7 * DAY_S])
    def test_stays_over_the_edge_of_a_bin(self, window_s):
        ledger = Ledger(window_s=window_s)
        rates = []
        for tick in range(3 * HOUR_S // 15):
            now_s = NOW_S + 45 + 15 * tick
            if tick % 8 == 0:
                ledger = with_judged(ledger, {TTFT: (1000, 100)}, at_s=now_s)
            rates.append(budget(ledger, now_s=now_s).burn_rate)

        assert rates == pytest.approx([2.0] * len(rates))

    def test_is_nothing_in_hours_without_requests(self):
        assert budget(a_ledger((10_000, 1500)), now_s=NOW_S + 3 * HOUR_S).burn_rate == 0


class TestAnotherWindow:
    @pytest.mark.parametrize("window_s", [6 * HOUR_S, 7 * DAY_S])
    def test_loses_nothing_that_is_within_both(self, window_s):
        ledger = a_ledger((1000, 100), (1000, 10), every_s=2 * HOUR_S)

        moved = in_window(ledger, window_s, now_s=NOW_S)

        assert (requests_of(moved), late_of(moved)) == (2000, 110)
        assert len(moved.limits[TTFT]) <= BINS

    def test_that_is_shorter_loses_what_it_does_not_reach(self):
        ledger = a_ledger((1000, 100), (1000, 10), every_s=2 * HOUR_S)

        assert requests_of(in_window(ledger, HOUR_S, now_s=NOW_S)) == 1000


def test_a_clock_that_was_set_back_loses_nothing():
    ledger = a_ledger((1000, 100), (1000, 10), (1000, 1))

    assert requests_of(with_judged(ledger, {TTFT: (1, 0)}, at_s=NOW_S - 5 * HOUR_S)) == 3001


def test_age_changes_no_newest_bin():
    ledger = a_ledger((1000, 100), (1000, 10))

    aged = with_judged(ledger, {}, at_s=NOW_S + 23 * HOUR_S)

    assert requests_of(aged) < requests_of(ledger)


@given(st.lists(st.tuples(st.floats(0, 1e6), st.floats(0, 1)), min_size=1, max_size=3 * BINS))
def test_never_holds_more_than_a_window(judged):
    rows = [(requests, requests * share) for requests, share in judged]
    ledger = a_ledger(*rows, until_s=NOW_S + MINUTE_S)

    bins = ledger.limits[TTFT]
    assert max(bins) - min(bins) < BINS
    assert requests_of(ledger) == pytest.approx(math.fsum(requests for requests, _ in rows[-BINS:]))
