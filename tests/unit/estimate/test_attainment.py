"""What kept and broken promises say: a bounded factor, fast down and slowly up."""

import math
import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strategies import numbers
from tonnage.estimate.attainment import (
    HIGHEST,
    LARGEST_DOWN,
    LARGEST_UP,
    LOWEST,
    AttainmentCounts,
    SloWindow,
    TargetResult,
    cap_to_throughput,
    factor_now,
    given_back,
    judge_window,
)
from tonnage.estimate.posterior import ObjectPosterior

NEW = ObjectPosterior()
DAY_S = 86_400.0
NOW_S = 1_000_000.0


def a_window(*, late, load=0.9, requests=1000, **changes):
    """A window in which so many requests missed TTFT p95."""
    verdict = TargetResult(target="TTFT p95", quantile=0.95, num_requests=requests, late=late)
    window = SloWindow(
        verdicts=(verdict,) if requests else (),
        load=load,
        requests_per_s_each=1.0,
        seconds=120.0,
        steepness=6.0,
        is_queue_standing=False,
    )
    return replace(window, **changes)


def judge(*windows, known=NEW, tally=None, every_s=120.0):
    """The last judgement of several windows."""
    tally = tally or AttainmentCounts()
    for number, window in enumerate(windows):
        found = judge_window(known, tally, window, now_s=NOW_S + number * every_s)
        known, tally = found.posterior, found.tally
    return found


def moved(*windows, **changes):
    """The logarithm of the factor after windows."""
    return math.log(judge(*windows, **changes).posterior.goodput_factor)


class TestLowering:
    def test_is_at_once_where_more_are_late_than_chance_allows(self):
        # At nine tenths 0.9^6 = 53 % of the 50 that may be late are expected: 27.
        assert moved(a_window(late=100)) == pytest.approx(-LARGEST_DOWN)

    def test_is_as_much_as_the_excess_says_and_no_more(self):
        # The logarithm of 60 over 26.57, over the power 6.
        assert moved(a_window(late=60)) == pytest.approx(-0.1357, abs=1e-3)

    def test_takes_less_where_a_little_load_makes_many_late(self):
        assert moved(a_window(late=60, load=0.99, steepness=25)) > moved(
            a_window(late=60, steepness=8)
        )

    def test_is_not_for_what_may_be_chance(self):
        assert moved(a_window(late=42)) == 0

    def test_is_not_for_promises_that_are_kept_well_though_more_came_late_than_expected(self):
        # At half of the load 1.6 % of 50 are expected; 35 is still a kept promise.
        assert moved(a_window(late=35, load=0.5)) == 0

    def test_is_not_for_a_few_late_requests_of_a_promise_that_is_kept(self):
        # Of 707 under p99 seven may be late. Six are 85 % of that, a hundredth of one was expected,
        # and yet the next 707 may as well have three: 0.8 * 7.07 and the root of three times that
        # are 9.8.
        few = TargetResult(target="TPOT p99", quantile=0.99, num_requests=707, late=6)
        window = replace(a_window(late=0, load=0.81, steepness=25), verdicts=(few,))

        assert moved(window) == 0
        assert moved(replace(window, verdicts=(replace(few, late=10),))) < 0

    def test_is_for_more_than_two_deviations_of_one_where_next_to_none_is_expected(self):
        # Half of one of ten may be late, and at half of the load a 64th of that is expected. Late
        # ones come by threes: two deviations of one are 3.46.
        assert moved(a_window(late=3.4, requests=10, load=0.5)) == 0
        assert moved(a_window(late=3.6, requests=10, load=0.5)) < 0

    def test_takes_late_requests_to_grow_with_the_fourth_power_of_the_load_at_least(self):
        expected = 50 * 0.9**4

        assert moved(a_window(late=55, steepness=2)) == pytest.approx(-math.log(55 / expected) / 4)

    def test_takes_what_is_expected_for_half_of_one_at_least(self):
        few = a_window(late=10, requests=20, load=0.5, steepness=25)

        assert moved(few) == pytest.approx(-math.log(10 / 0.5) / 25)

    def test_is_not_for_an_overload(self):
        found = judge(a_window(late=1000, load=1.06))

        assert found.posterior == NEW
        assert found.tally == AttainmentCounts()
        assert moved(a_window(late=1000, load=1.04)) < 0

    def test_says_why_with_numbers(self):
        found = judge(a_window(late=100))

        assert found.reason == (
            "-14% capacity: 100 of 1000 requests missed TTFT p95 at 90% of the expected "
            "capacity, 27 were expected and 50 allowed"
        )
        assert found.posterior.num_judged == 1000
        assert found.posterior.judged_at_s == NOW_S

    def test_is_by_the_target_that_is_missed_most(self):
        kept = TargetResult(target="TPOT p95", quantile=0.95, num_requests=1000, late=0)
        missed = TargetResult(target="TTFT p99", quantile=0.99, num_requests=1000, late=80)
        window = replace(a_window(late=0), verdicts=(kept, missed))

        assert "TTFT p99" in judge(window).reason

    def test_is_not_by_a_target_that_nothing_came_for(self):
        nothing = TargetResult(target="TPOT p95", quantile=0.95, num_requests=0, late=0)
        missed = a_window(late=100)

        window = replace(missed, verdicts=(nothing, *missed.verdicts))

        assert moved(window) == moved(missed) < 0


class TestRaising:
    def test_is_slow_where_promises_are_kept_at_high_load(self):
        assert moved(a_window(late=0, load=0.95)) == pytest.approx(LARGEST_UP)

    def test_is_by_half_of_what_fewer_late_ones_than_expected_say(self):
        # 50 may be late and are expected: one more than the 20 that are is taken for it.
        found = moved(a_window(late=20, load=1.0, steepness=25))

        assert found == pytest.approx(0.5 * math.log(50 / 21) / 25)

    @pytest.mark.parametrize("load", [0.2, 0.5, 0.84])
    def test_is_not_for_promises_kept_at_low_load(self, load):
        assert moved(*[a_window(late=0, load=load)] * 50) == 0

    def test_is_not_for_as_many_late_as_expected(self):
        # 0.95^6 of 50: 37.
        assert moved(a_window(late=37, load=0.95)) == 0

    def test_of_what_was_lowered_takes_several_times_as_many_windows(self):
        low = judge(a_window(late=100)).posterior
        windows = 0
        tally = AttainmentCounts()
        while low.goodput_factor < 1:
            found = judge_window(low, tally, a_window(late=0, load=0.97), now_s=NOW_S)
            low, tally, windows = found.posterior, found.tally, windows + 1

        assert windows >= 4


class TestEvidence:
    def test_adds_up_over_windows_with_few_requests(self):
        # 5 of 50 where 1.3 are expected: once may be chance, twice is not.
        few = a_window(late=5, requests=50)

        assert moved(few) == 0
        assert moved(few, few) < 0

    def test_begins_anew_when_the_factor_has_moved(self):
        found = judge(a_window(late=100))

        assert found.tally.num_requests == 0
        assert found.tally.late == {}

    def test_that_is_old_counts_half_when_there_is_enough(self):
        # 42 of 1,000 are what may be: after half an hour the next window finds half of that.
        found = judge(a_window(late=42, seconds=1800.0), a_window(late=0, requests=0))

        assert found.tally.late["TTFT p95"] == 21
        assert found.tally.num_requests == 500

    def test_that_is_of_minutes_counts_whole_however_many_requests_came(self):
        found = judge(*[a_window(late=42)] * 7, a_window(late=0, requests=0))

        assert found.tally.late["TTFT p95"] == 7 * 42

    def test_of_one_bad_minute_in_ten_lowers_nothing_where_as_many_are_late_as_may_be(self):
        # 500 of 10,000 may be late: 45 in each of nine windows, 120 in the tenth.
        found = judge(*[a_window(late=45, load=1.0)] * 9, a_window(late=120, load=1.0))

        assert found.posterior.goodput_factor == 1.0

    def test_of_an_hour_in_time_does_not_hide_what_is_late_from_then_on(self):
        # Four times what may be: two windows of two minutes show it.
        calm = [a_window(late=26)] * 30

        assert moved(*calm, a_window(late=200), a_window(late=200)) < 0

    def test_of_nothing_changes_nothing(self):
        found = judge(a_window(late=0, requests=0))

        assert (found.posterior, found.reason) == (NEW, None)


class TestAStandingQueue:
    def test_lowers_capacity_by_itself(self):
        found = judge(a_window(late=0, requests=0, load=0.6, is_queue_standing=True))

        assert math.log(found.posterior.goodput_factor) == pytest.approx(-LARGEST_DOWN / 2)
        assert found.reason == "-7% capacity: requests wait at 60% of the expected capacity"

    def test_and_late_requests_lower_it_once(self):
        assert moved(a_window(late=100, is_queue_standing=True)) == pytest.approx(-LARGEST_DOWN)

    def test_is_stronger_than_promises_that_are_kept(self):
        assert moved(a_window(late=0, load=0.95, is_queue_standing=True)) == pytest.approx(
            -LARGEST_DOWN / 2
        )

    def test_under_overload_is_expected(self):
        assert moved(a_window(late=0, load=1.2, is_queue_standing=True)) == 0


class TestFutility:
    """Where fewer requests for each replica do not help, more replicas are no answer."""

    def test_stops_when_as_many_are_late_at_three_quarters_of_the_load(self):
        first = judge(a_window(late=200, requests_per_s_each=1.0))
        again = judge(
            a_window(late=200, requests_per_s_each=0.74), known=first.posterior, tally=first.tally
        )

        assert again.tally.is_load_independent
        assert again.posterior == first.posterior

    def test_goes_on_while_it_helps(self):
        first = judge(a_window(late=200, requests_per_s_each=1.0))
        again = judge(
            a_window(late=120, requests_per_s_each=0.7), known=first.posterior, tally=first.tally
        )

        assert not again.tally.is_load_independent
        assert again.posterior.goodput_factor < first.posterior.goodput_factor

    def test_goes_on_before_replicas_have_less_to_do(self):
        first = judge(a_window(late=200, requests_per_s_each=1.0))
        again = judge(
            a_window(late=200, requests_per_s_each=0.9), known=first.posterior, tally=first.tally
        )

        assert again.posterior.goodput_factor < first.posterior.goodput_factor

    def test_is_not_told_where_nearly_all_are_late(self):
        first = judge(a_window(late=900, requests_per_s_each=1.0))
        again = judge(
            a_window(late=800, requests_per_s_each=0.7), known=first.posterior, tally=first.tally
        )

        assert not again.tally.is_load_independent
        assert again.posterior.goodput_factor < first.posterior.goodput_factor

    def test_ends_when_promises_are_kept_at_high_load(self):
        futile = AttainmentCounts(began=(4.0, 1.0), is_load_independent=True)

        found = judge(a_window(late=0, load=0.97), tally=futile)

        assert found.posterior.goodput_factor > 1
        assert found.tally == AttainmentCounts()


class TestWhatIsServedWhileRequestsWait:
    def held(self, ratio, *, requests=1000, known=NEW):
        return cap_to_throughput(known, ratio=ratio, num_requests=requests, now_s=NOW_S)

    def test_is_all_that_is_believed(self):
        found = self.held(0.6)

        assert found.goodput_factor == 0.6
        assert (found.num_judged, found.judged_at_s) == (1000, NOW_S)

    @pytest.mark.parametrize(
        ("ratio", "requests"), [(0.91, 1000), (1.4, 1000), (0.7, 50), (0.0, 1000)]
    )
    def test_says_nothing_where_it_may_be_chance_or_is_more(self, ratio, requests):
        # Of 50 requests 0.65 and less is no chance: 2.5 deviations of 14 %.
        assert self.held(ratio, requests=requests) is NEW

    def test_of_which_few_suffice_where_it_is_much_less(self):
        assert self.held(0.6, requests=50).goodput_factor == 0.6
        assert self.held(0.64, requests=50).goodput_factor == 0.64

    def test_halves_capacity_at_most_in_one_judgement(self):
        once = self.held(0.3)
        twice = self.held(0.3, known=once)

        assert once.goodput_factor == pytest.approx(math.exp(-0.7))
        assert twice.goodput_factor == 0.3

    def test_is_not_counted_twice(self):
        known = self.held(0.6)

        assert self.held(0.6, known=known) is known

    def test_leaves_a_fifth(self):
        known = self.held(0.3)
        for _ in range(5):
            known = self.held(0.01, known=known)

        assert known.goodput_factor == LOWEST


class TestRecovery:
    """Promises that are kept bring a low factor back, at any load."""

    LOW = replace(NEW, goodput_factor=0.5, judged_at_s=NOW_S)

    def test_is_within_a_tenth_after_an_hour(self):
        half, hour = (
            judge(*[a_window(late=0, load=0.3)] * number, known=self.LOW).posterior.goodput_factor
            for number in (15, 30)
        )

        assert 0.7 < half < 0.8
        assert 0.9 < hour < 1

    def test_is_by_all_but_one_in_e_in_half_an_hour_and_three_percent_a_window_at_most(self):
        near = replace(self.LOW, goodput_factor=0.8)
        calm = a_window(late=24, load=0.8, seconds=120.0)  # of 25 that are half of what may be

        assert moved(calm, known=near) == pytest.approx(math.log(0.8) * math.exp(-120 / 1800))
        assert moved(calm, known=self.LOW) == pytest.approx(math.log(0.5) + 0.03)

    def test_ends(self):
        assert (
            judge(*[a_window(late=0, load=0.3)] * 90, known=self.LOW).posterior.goodput_factor == 1
        )

    @pytest.mark.parametrize(("late", "load"), [(26, 0.8), (60, 1.0)])
    def test_is_not_while_more_than_half_of_what_may_be_are_late(self, late, load):
        # 50 of 1,000 may: neither is evidence against the factor, nor for it.
        found = judge(*[a_window(late=late, load=load)] * 3, known=self.LOW)

        assert found.posterior == self.LOW

    def test_is_not_in_a_window_in_which_many_are_late_though_few_were_before(self):
        # 40 of the window's 50, of 500 in all.
        calm = [a_window(late=0, load=0.3)] * 9

        before = judge(*calm, known=self.LOW).posterior
        found = judge(*calm, a_window(late=40, load=0.3), known=self.LOW).posterior

        assert found == before

    def test_is_not_in_a_window_in_which_something_changed(self):
        assert judge(a_window(late=0, may_raise=False), known=self.LOW).posterior == self.LOW

    def test_says_why(self):
        assert judge(a_window(late=0, load=0.3), known=self.LOW).reason.endswith(
            "so the factor rises"
        )

    def test_begins_evidence_anew_at_its_end(self):
        found = judge(
            *[a_window(late=0, load=0.3)] * 90, known=self.LOW, tally=AttainmentCounts(began=(6, 1))
        )

        assert found.tally.began is None
        assert not found.tally.is_load_independent

    @pytest.mark.parametrize("quantile", [0.95, 0.99])
    def test_keeps_the_promise_where_the_factor_is_right(self, quantile):
        """Twelve hours in which fleets follow the factor, and late requests the true load."""
        chance, true, steepness = random.Random(1), 0.7, 6.0  # noqa: S311
        known, tally = replace(NEW, goodput_factor=true, judged_at_s=NOW_S), AttainmentCounts()
        late = 0
        for number in range(360):
            now_s = NOW_S + 120 * number
            each = 0.95 * factor_now(known, now_s=now_s)
            share = (1 - quantile) * (each / true) ** steepness
            missed = sum(chance.random() < share for _ in range(1000))
            verdict = TargetResult(target="t", quantile=quantile, num_requests=1000, late=missed)
            window = a_window(
                late=0, load=0.95, verdicts=(verdict,), requests_per_s_each=each,
                steepness=steepness,
            )  # fmt: skip
            found = judge_window(known, tally, window, now_s=now_s)
            known, tally, late = found.posterior, found.tally, late + missed

        assert late < 0.9 * (1 - quantile) * 360_000

    def test_is_of_nothing_where_no_requests_came(self):
        assert judge(a_window(late=0, requests=0), known=self.LOW).posterior == self.LOW


class TestBounds:
    def test_are_a_fifth_and_one_and_a_half(self):
        low = judge(*[a_window(late=900, requests_per_s_each=1.0)] * 30).posterior.goodput_factor
        high = judge(*[a_window(late=0, load=0.97)] * 60).posterior.goodput_factor

        assert low == pytest.approx(LOWEST) == pytest.approx(0.2)
        assert high == pytest.approx(HIGHEST) == pytest.approx(1.5)

    @given(st.lists(st.tuples(numbers(0, 500), numbers(0.1, 1.2), st.booleans()), max_size=40))
    def test_hold_whatever_comes(self, windows):
        known, tally = NEW, AttainmentCounts()
        for number, (late, load, queue) in enumerate(windows):
            window = a_window(late=late, load=load, is_queue_standing=queue, requests=500)
            found = judge_window(known, tally, window, now_s=NOW_S + 120 * number)
            step = math.log(
                found.posterior.goodput_factor / factor_now(known, now_s=NOW_S + 120 * number)
            )
            assert LOWEST <= found.posterior.goodput_factor <= HIGHEST
            assert found.posterior == known or step <= LARGEST_UP + 1e-9
            assert found.posterior == known or step >= -LARGEST_DOWN - 1e-9
            known, tally = found.posterior, found.tally


class TestAge:
    def test_fades_half_of_the_logarithm_in_a_day(self):
        known = replace(NEW, goodput_factor=0.64, judged_at_s=NOW_S)

        assert factor_now(known, now_s=NOW_S) == pytest.approx(0.64)
        assert factor_now(known, now_s=NOW_S + DAY_S) == pytest.approx(0.8)
        assert factor_now(known, now_s=NOW_S + 30 * DAY_S) == pytest.approx(1, abs=1e-3)

    def test_of_a_clock_that_went_back_is_none(self):
        known = replace(NEW, goodput_factor=0.64, judged_at_s=NOW_S)

        assert factor_now(known, now_s=0) == pytest.approx(0.64)

    def test_of_nothing_judged_is_one(self):
        assert factor_now(NEW, now_s=NOW_S) == 1


@pytest.mark.parametrize(
    ("factor", "ratio", "left"),
    [
        (0.8, 0.9, 0.8 / 0.9),  # the learner has found a part of it
        (0.8, 0.7, 1.0),  # all of it and more
        (0.8, 1.1, 0.8 / 1.1),  # what broken promises showed stays, as a rate
        (1.2, 1.1, 1.2 / 1.1),
        (1.2, 1.5, 1.0),
        (1.2, 0.9, 1.2),
        (1.0, 0.5, 1.0),
    ],
)
def test_what_the_learner_has_found_is_given_back(factor, ratio, left):
    known = replace(NEW, goodput_factor=factor, num_judged=7)

    assert given_back(known, ratio) == replace(known, goodput_factor=pytest.approx(left))
