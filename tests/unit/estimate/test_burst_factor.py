"""What bursts take beyond their counts, by what was late in them."""

import math

import pytest

from tonnage.estimate.attainment import LARGEST_UP, TargetResult
from tonnage.estimate.burstiness import (
    FIRST,
    FORGET_S,
    HIGHEST,
    LARGEST_DOWN,
    LOWEST,
    BurstWindow,
    add_window,
    factor_after,
)
from tonnage.estimate.metrics import WINDOWS


def a_window(*, late, requests=1000, target="TTFT", by_load=None, **changes):
    verdict = TargetResult(
        target=target,
        quantile=0.99,
        num_requests=requests,
        late=late,
        late_by_load=late if by_load is None else by_load,
    )
    return BurstWindow(**{"verdicts": (verdict,), "is_burst": True, "seconds": 0.0} | changes)


def after(*windows, factor=FIRST):
    tally = {}
    for window in windows:
        tally = add_window(tally, window)
    return factor_after(factor, tally)


def test_bursts_last_for_two_of_the_gaps_between_scrapes_for_all_or_for_one():
    gaps = WINDOWS[0] - 1

    assert (gaps / 2, gaps / gaps, gaps / 1) == (FIRST, LOWEST, HIGHEST)


class TestFactor:
    def test_grows_at_once_where_more_are_late_than_may_be(self):
        # 200 of 1000, where 10 may be.
        assert after(a_window(late=200)) == pytest.approx(FIRST * math.exp(LARGEST_DOWN))

    def test_grows_by_less_where_little_more_are_late(self):
        assert after(a_window(late=12)) == pytest.approx(FIRST * 1.2**0.25)

    def test_stays_where_a_burst_is_late_and_all_requests_together_are_not(self):
        # 40 late are 4 % of the burst, 0.8 % of all that came since the last.
        calm = [a_window(late=0, is_burst=False)] * 4

        assert after(*calm, a_window(late=40)) == FIRST
        assert after(a_window(late=40)) > FIRST

    def test_does_not_count_what_is_late_between_bursts(self):
        assert after(a_window(late=500, is_burst=False), a_window(late=9)) == FIRST

    def test_does_not_count_what_is_late_whatever_the_load(self):
        assert after(a_window(late=500, by_load=9)) == FIRST
        assert after(a_window(late=500, by_load=40)) == after(a_window(late=40)) > FIRST

    def test_goes_back_slowly_where_a_replica_less_would_do(self):
        calm = a_window(late=0, requests=5000, is_burst=False)

        assert after(calm, a_window(late=3)) == pytest.approx(FIRST * math.exp(-LARGEST_UP))

    @pytest.mark.parametrize("targets", [("TTFT", "TPOT"), ("TPOT", "TTFT")])
    def test_goes_back_only_where_every_target_tells_that_it_may(self, targets):
        # 40 of 4000 may be late for the one, 2 of 200 for the other: too few to tell.
        requests = {"TTFT": 4000, "TPOT": 200}
        windows = [a_window(late=0, requests=requests[name], target=name) for name in targets]

        assert after(*windows) == FIRST

    def test_stays_where_too_few_came_to_tell(self):
        # 19 may be late, and 20.5.
        assert after(a_window(late=0, requests=1900)) == FIRST
        assert after(a_window(late=0, requests=2050)) < FIRST

    def test_stays_where_one_request_is_late_that_no_share_of_so_few_allows(self):
        assert after(a_window(late=1, requests=50)) == FIRST

    def test_does_not_hang_on_a_target_that_nothing_came_for(self):
        calm = a_window(late=0, requests=5000)
        nothing = a_window(late=0, requests=0, target="TPOT")

        assert after(calm, nothing) == after(calm) < FIRST

    def test_follows_the_target_that_is_missed_most(self):
        late, kept = a_window(late=100, target="TPOT"), a_window(late=0)

        assert after(kept, late) == after(late) > FIRST

    def test_stays_within_what_windows_of_scrapes_can_hide(self):
        calm = a_window(late=0, requests=5000, is_burst=False)

        assert after(a_window(late=900), factor=HIGHEST) == HIGHEST
        assert after(calm, a_window(late=0), factor=LOWEST) == LOWEST

    def test_stays_where_nothing_is_known(self):
        assert factor_after(FIRST, {}) == FIRST


def test_evidence_fades_within_a_day():
    tally = add_window({}, a_window(late=100))
    later = add_window(tally, a_window(late=0, requests=0, seconds=FORGET_S))

    assert later["TTFT"] == pytest.approx((100 / math.e, 10 / math.e))
