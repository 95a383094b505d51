"""Arrivals, lengths and attainment, from figures that are there and from figures that are not."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from measured_builders import an_engine, long_samples
from strategies import numbers
from tonnage.estimate.demand import (
    MeasuredLengths,
    attainment,
    is_fresh,
    measure_demand,
    measure_lengths,
)

INF = math.inf
READY = frozenset({"a"})
WITHIN = {1.0: 60.0, 2.0: 90.0, 2.5: 96.0, INF: 100.0}
"""Requests by upper bound of their latency, cumulative: 100 in all."""
rates = st.none() | numbers(0, 1000)
engines = st.builds(
    an_engine,
    pod=st.sampled_from(["a", "b", "c"]),
    completions_per_s=rates,
    backlog_growth_per_s=st.none() | numbers(-1000, 1000),
    rejections_per_s=rates,
    waiting=rates,
    running=rates,
)


class TestArrivals:
    def test_are_completions_while_the_queue_stands_still(self):
        demand = measure_demand([an_engine(completions_per_s=2)], ready_pods=READY)

        assert demand.requests_per_s == 2
        assert demand.is_complete

    def test_show_saturation_though_completions_stay_flat(self):
        # 2/s finish and the queue grows by 3/s: 5/s arrive.
        saturated = an_engine(completions_per_s=2, backlog_growth_per_s=3, waiting=90)

        demand = measure_demand([saturated], ready_pods=READY)

        assert demand.requests_per_s == 5
        assert demand.waiting == 90

    def test_count_the_requests_that_the_engine_turned_away(self):
        refusing = an_engine(completions_per_s=2, rejections_per_s=1.5)

        assert measure_demand([refusing], ready_pods=READY).requests_per_s == 3.5

    def test_fall_while_a_queue_drains_without_arrivals(self):
        # 4/s finish out of a queue that shrinks by 3/s: 1/s arrives.
        draining = an_engine(completions_per_s=4, backlog_growth_per_s=-3)

        assert measure_demand([draining], ready_pods=READY).requests_per_s == 1

    def test_are_never_negative(self):
        restarted = an_engine(completions_per_s=0, backlog_growth_per_s=-5)

        assert measure_demand([restarted], ready_pods=READY).requests_per_s == 0

    def test_are_summed_over_pods_and_over_ranks(self):
        ranks = [an_engine(engine="0"), an_engine(engine="1"), an_engine("b", waiting=7)]

        demand = measure_demand(ranks, ready_pods=frozenset({"a", "b"}))

        assert (demand.requests_per_s, demand.running, demand.waiting) == (6, 60, 7)

    @given(st.lists(engines, max_size=5))
    def test_are_finite_and_not_negative_whatever_is_missing(self, samples):
        demand = measure_demand(samples, ready_pods=READY)

        assert demand is None or (demand.requests_per_s >= 0 and demand.waiting >= 0)


class TestMissing:
    def test_no_engine_is_no_demand_rather_than_none_arriving(self):
        assert measure_demand([], ready_pods=frozenset()) is None

    def test_an_engine_without_completions_says_nothing(self):
        assert measure_demand([an_engine(completions_per_s=None)], ready_pods=READY) is None

    def test_an_idle_engine_is_a_measured_zero(self):
        idle = an_engine(completions_per_s=0, running=0, waiting=0)

        demand = measure_demand([idle], ready_pods=READY)

        assert (demand.requests_per_s, demand.is_complete) == (0, True)

    def test_an_idle_engine_beside_a_busy_one_adds_nothing(self):
        idle = an_engine("b", completions_per_s=0)

        assert measure_demand([an_engine(), idle], ready_pods=READY).requests_per_s == 2

    @pytest.mark.parametrize("missing", ["completions_per_s", "waiting", "backlog_growth_per_s"])
    def test_a_ready_pod_that_lacks_a_figure_makes_the_demand_incomplete(self, missing):
        samples = [an_engine("a"), an_engine("b", **{missing: None})]

        demand = measure_demand(samples, ready_pods=frozenset({"a", "b"}))

        assert not demand.is_complete

    def test_one_rank_that_lacks_a_figure_makes_its_pod_incomplete(self):
        ranks = [an_engine(engine="0"), an_engine(engine="1", waiting=None)]

        assert not measure_demand(ranks, ready_pods=READY).is_complete

    def test_a_pod_with_a_stale_rank_is_incomplete(self):
        demand = measure_demand([an_engine("a")], ready_pods=READY, stale_pods=frozenset({"a"}))

        assert not demand.is_complete

    def test_what_an_engine_does_not_say_adds_nothing(self):
        silent = an_engine(
            completions_per_s=2,
            backlog_growth_per_s=None,
            rejections_per_s=None,
            waiting=None,
            running=None,
        )

        demand = measure_demand([silent], ready_pods=READY)

        assert (demand.requests_per_s, demand.waiting, demand.running) == (2, 0, 0)

    def test_a_pod_that_is_not_ready_may_stay_silent(self):
        assert measure_demand([an_engine("a")], ready_pods=READY).is_complete

    def test_an_engine_that_refuses_no_request_may_lack_the_counter(self):
        # It came with vLLM 0.32.
        demand = measure_demand([an_engine(rejections_per_s=None)], ready_pods=READY)

        assert demand.is_complete


class TestFreshness:
    @pytest.mark.parametrize(
        ("age_s", "fresh"), [(0, True), (45, True), (46, False), (-3, True), (None, False)]
    )
    def test_samples_older_than_three_scrapes_are_stale(self, age_s, fresh):
        assert is_fresh(an_engine(age_s=age_s), scrape_interval_s=15) is fresh

    def test_an_age_that_is_no_number_is_stale(self):
        assert not is_fresh(an_engine(age_s=math.nan), scrape_interval_s=15)


class TestLengths:
    def test_are_tokens_over_the_requests_that_finished(self):
        lengths = measure_lengths([long_samples()], window_s=900)

        assert lengths == MeasuredLengths(prompt_tokens=2000, output_tokens=500, cached_fraction=0)

    def test_weigh_each_engine_by_its_requests(self):
        short = long_samples(
            requests_per_s=6, prompt_tokens_per_s=1200, output_tokens_per_s=600
        )  # of 200 and 100 tokens

        lengths = measure_lengths([long_samples(), short], window_s=900)

        assert lengths.prompt_tokens == pytest.approx((2 * 2000 + 6 * 200) / 8)
        assert lengths.output_tokens == pytest.approx((2 * 500 + 6 * 100) / 8)

    def test_the_cached_share_is_what_was_started_and_not_computed(self):
        warm = long_samples(started_prompt_tokens_per_s=4000, computed_prompt_tokens_per_s=1000)

        assert measure_lengths([warm], window_s=900).cached_fraction == 0.75

    @pytest.mark.parametrize(("computed", "cached"), [(0, 0.99), (5000, 0)])
    def test_the_cached_share_stays_a_share(self, computed, cached):
        odd = long_samples(computed_prompt_tokens_per_s=computed)

        assert measure_lengths([odd], window_s=900).cached_fraction == cached

    def test_are_not_believed_below_twenty_requests(self):
        rare = {"prompt_tokens_per_s": 10, "output_tokens_per_s": 10}

        assert measure_lengths([long_samples(requests_per_s=0.021, **rare)], window_s=900) is None
        assert measure_lengths([long_samples(requests_per_s=0.023, **rare)], window_s=900)

    @pytest.mark.parametrize("nothing", ["prompt_tokens_per_s", "output_tokens_per_s"])
    def test_are_missing_where_no_tokens_were_counted(self, nothing):
        assert measure_lengths([long_samples(**{nothing: 0})], window_s=900) is None

    def test_are_believed_from_twenty_requests_exactly(self):
        assert measure_lengths([long_samples(requests_per_s=2)], window_s=10)
        assert measure_lengths([long_samples(requests_per_s=1.95)], window_s=10) is None

    def test_of_a_token_in_two_seconds_are_lengths_too(self):
        rare = long_samples(requests_per_s=0.5, prompt_tokens_per_s=0.5, output_tokens_per_s=0.5)

        assert measure_lengths([rare], window_s=900).output_tokens == 1

    def test_nothing_is_cached_where_nothing_was_started(self):
        none = long_samples(started_prompt_tokens_per_s=0, computed_prompt_tokens_per_s=0)

        assert measure_lengths([none], window_s=900).cached_fraction == 0

    def test_are_missing_without_engines(self):
        assert measure_lengths([], window_s=900) is None


class TestAttainment:
    def test_on_a_bound_is_the_share_below_it(self):
        assert attainment([WITHIN], limit_s=2.0) == 0.9

    def test_between_bounds_is_interpolated(self):
        # Half way from 2.0 to 2.5: 90 + (96 - 90) / 2.
        assert attainment([WITHIN], limit_s=2.25) == pytest.approx(0.93)

    def test_below_the_first_bound_starts_at_zero(self):
        assert attainment([WITHIN], limit_s=0.5) == pytest.approx(0.3)

    def test_beyond_the_last_finite_bound_counts_what_is_known_to_be_within(self):
        assert attainment([WITHIN], limit_s=100) == 0.96

    def test_is_unknown_without_requests(self):
        assert attainment([], limit_s=2) is None
        assert attainment([{}], limit_s=2) is None
        assert attainment([{1.0: 0.0, INF: 0.0}], limit_s=2) is None

    def test_is_unknown_for_an_engine_that_does_not_give_the_total(self):
        assert attainment([{1.0: 5.0, 2.0: 6.0}], limit_s=1) is None

    def test_is_known_of_one_request_in_two_seconds(self):
        assert attainment([{1.0: 0.25, INF: 0.5}], limit_s=1) == 0.5

    def test_adds_up_over_engines(self):
        slow = {1.0: 0.0, 2.0: 10.0, 2.5: 50.0, INF: 100.0}

        assert attainment([WITHIN, slow], limit_s=2.0) == 0.5

    def test_a_bound_that_one_engine_lacks_is_not_zero_requests_there(self):
        # During an update the old pods have another ladder: 1.0 and 2.5, nothing at 2.0.
        old = {1.0: 100.0, 2.5: 100.0, INF: 100.0}

        assert attainment([WITHIN, old], limit_s=2.0) == 0.95

    @given(
        st.lists(
            st.dictionaries(numbers(0.01, 100), numbers(0, 100), min_size=1, max_size=6),
            min_size=1,
            max_size=3,
        ),
        numbers(0.01, 200),
    )
    def test_is_a_share(self, shares, limit_s):
        engines = [dict(zip(sorted(each), sorted(each.values()), strict=True)) for each in shares]
        within = [each | {INF: max(each.values())} for each in engines]

        share = attainment(within, limit_s=limit_s)

        assert share is None or 0 <= share <= 1 + 1e-9
