"""Arrivals and attainment, from figures that are there and from figures that are not."""

import math
import random
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from measured_builders import an_engine
from strategies import numbers
from tonnage.estimate import demand
from tonnage.estimate.demand import attainment, count_arrivals
from tonnage.estimate.metrics import WINDOWS
from tonnage.estimate.samples import WindowRates

INF = math.inf
READY = frozenset({"a"})
WITHIN = {1.0: 60.0, 2.0: 90.0, 2.5: 96.0, INF: 100.0}
"""Requests by upper bound of their latency, cumulative: 100 in all."""
rates = st.none() | numbers(0, 1000)
engines = st.builds(
    an_engine,
    pod=st.sampled_from(["a", "b", "c"]),
    seconds=numbers(15, 900),
    completed_per_s=rates,
    in_flight_per_s=st.none() | numbers(-1000, 1000),
    rejected_per_s=rates,
    waiting=rates,
    running=rates,
)


@pytest.mark.parametrize(
    ("age_s", "held_s", "fresh"),
    [
        (45, 0, True),
        (46, 0, False),
        (45, 15, True),
        (45, 16, False),
        (15, 45, True),
        (15, 46, False),
    ],
)
def test_what_is_held_beyond_a_scrape_interval_is_age(age_s, held_s, fresh):
    assert an_engine(age_s=age_s, held_s=held_s).is_fresh is fresh


def measure_demand(samples, **options):
    return demand.measure_demand(samples, **{"ready_pods": READY} | options)


def an_engine_with(windows, **changes):
    """An engine with so many completions per second by window in scrapes."""
    arrivals = {
        scrapes: WindowRates(completed_per_s=rate, in_flight_per_s=0, rejected_per_s=0)
        for scrapes, rate in windows.items()
    }
    return an_engine(arrivals=arrivals, **changes)


class TestArrivals:
    def test_are_completions_while_the_queue_stands_still(self):
        demand = measure_demand([an_engine(completed_per_s=2)])

        assert demand.requests_per_s == pytest.approx(2)
        assert demand.is_complete

    def test_show_saturation_though_completions_stay_flat(self):
        # 2/s finish and the queue grows by 3/s: 5/s arrive.
        saturated = an_engine(completed_per_s=2, in_flight_per_s=3, waiting=90)

        demand = measure_demand([saturated])

        assert demand.requests_per_s == pytest.approx(5)
        assert demand.waiting == 90

    def test_count_the_requests_that_the_engine_turned_away(self):
        refusing = an_engine(completed_per_s=2, rejected_per_s=1.5)

        assert measure_demand([refusing]).requests_per_s == pytest.approx(3.5)

    def test_fall_while_a_queue_drains_without_arrivals(self):
        # 4/s finish out of a queue that shrinks by 3/s: 1/s arrives.
        draining = an_engine(completed_per_s=4, in_flight_per_s=-3)

        assert measure_demand([draining]).requests_per_s == pytest.approx(1)

    def test_are_never_negative(self):
        restarted = an_engine(completed_per_s=0, in_flight_per_s=-5)

        assert measure_demand([restarted]).requests_per_s == 0

    def test_of_an_engine_that_lies_take_nothing_from_those_of_others(self):
        lying = an_engine("b", in_flight_per_s=-1e6)

        alone = measure_demand([an_engine()])
        assert measure_demand([an_engine(), lying]).requests_per_s == alone.requests_per_s

    def test_are_summed_over_pods_and_over_ranks(self):
        ranks = [
            an_engine(engine="0", waiting=5),
            an_engine(engine="1", waiting=4),
            an_engine("b", waiting=7),
        ]

        demand = measure_demand(ranks, ready_pods=frozenset({"a", "b"}))

        assert demand.requests_per_s == pytest.approx(6)
        assert (demand.running, demand.waiting, demand.longest_queue) == (60, 16, 9)

    @given(st.lists(engines, max_size=5), numbers(0, 2000), numbers(0.25, 16))
    def test_are_finite_and_not_negative_whatever_is_missing(self, samples, longest_s, dispersion):
        demand = measure_demand(samples, longest_s=longest_s, dispersion=dispersion)

        assert demand is None or (
            0 <= demand.requests_per_s < INF
            and 0 < demand.standard_error_per_s < INF
            and demand.window_s > 0
            and demand.waiting >= demand.longest_queue >= 0
        )

    def test_tell_how_often_requests_were_preempted(self):
        crowded = an_engine("b", completed_per_s=6, preemptions_per_s=2)

        assert measure_demand([an_engine(), crowded]).preemptions_per_request == 2 / 8
        young = an_engine("b", completed_per_s=6, preemptions_per_s=2, seconds=15)
        assert measure_demand([an_engine(), young]).preemptions_per_request == 30 / 180
        stuck = an_engine("b", completed_per_s=0, preemptions_per_s=1)
        assert measure_demand([an_engine(), stuck]).preemptions_per_request == 1 / 2
        assert measure_demand([an_engine(preemptions_per_s=None)]).preemptions_per_request is None
        assert measure_demand([an_engine(completed_per_s=0)]).preemptions_per_request is None


class TestCount:
    def test_is_of_the_time_between_the_first_scrape_and_the_last(self):
        # Four scrapes are 45 s apart.
        count = count_arrivals([an_engine(completed_per_s=2)], 4)

        assert count.requests == pytest.approx(90)
        assert count.seconds == 45

    def test_of_a_young_engine_is_of_the_time_that_it_was_watched(self):
        young = an_engine(completed_per_s=30 / 135, seconds=135)

        count = count_arrivals([young], 60)

        assert count.requests == pytest.approx(30)
        assert count.seconds == 135

    def test_of_an_old_engine_beside_a_young_one_covers_the_whole_window(self):
        young = an_engine("b", seconds=135)

        assert count_arrivals([an_engine(), young], 60).seconds == 885


class TestCutOff:
    """A node is lost under 4 requests/s, with 220 requests in flight at the replica there."""

    # In the 45 s after clients are sent to the other one it gets the 4 a second, 90 that found no
    # way for 45 s, and the 220 again: 490, of which 90 end and 400 make its backlog grow.
    def count(self, *, in_flight_of_lost_pods, completed=90, grown=400):
        survivor = an_engine(completed_per_s=completed / 45, in_flight_per_s=grown / 45)
        return count_arrivals([survivor], 4, in_flight_of_lost_pods=in_flight_of_lost_pods)

    def test_is_not_counted_again_at_the_replica_that_it_is_sent_to(self):
        assert self.count(in_flight_of_lost_pods=0).per_s == pytest.approx(10.9, abs=0.05)
        assert self.count(in_flight_of_lost_pods=220).per_s == pytest.approx(6.0)

    @pytest.mark.parametrize("grown", [0, -45])
    def test_takes_off_no_more_than_the_backlog_of_the_others_grew(self, grown):
        assert self.count(in_flight_of_lost_pods=220, grown=grown) == self.count(
            in_flight_of_lost_pods=0, grown=grown
        )

    def test_leaves_what_is_completed(self):
        assert self.count(in_flight_of_lost_pods=10_000).per_s == pytest.approx(2.0)


class TestWindow:
    @pytest.mark.parametrize(
        ("rate", "seconds"),
        [
            # 1 % of standard error takes 10,000 requests.
            (223.0, 45),
            (222.0, 105),
            (95.0, 285),
            (35.0, 885),
            (0.01, 885),
        ],
    )
    def test_is_the_shortest_with_enough_requests(self, rate, seconds):
        demand = measure_demand([an_engine(completed_per_s=rate)])

        assert demand.window_s == seconds
        assert demand.requests_per_s == pytest.approx(rate)

    def test_has_a_standard_error_that_follows_from_the_requests(self):
        demand = measure_demand([an_engine(completed_per_s=300)])

        assert demand.standard_error_per_s == pytest.approx(math.sqrt(300 * 45) / 45)

    def test_is_longer_where_requests_come_in_bursts(self):
        # Four times the variance: 40,000 requests for the same error.
        demand = measure_demand([an_engine(completed_per_s=300)], dispersion=4)

        assert demand.window_s == 285
        assert demand.standard_error_per_s == pytest.approx(math.sqrt(4 * 300 * 285) / 285)

    def test_counts_the_requests_of_all_engines(self):
        engines = [an_engine(pod, completed_per_s=25) for pod in "abcdefghij"]

        assert measure_demand(engines).window_s == 45

    @pytest.mark.parametrize(
        "others", [{8: 0.08, 20: 0.06, 60: 0.04}, {8: 0.02, 20: 0.03, 60: 0.045}]
    )
    def test_that_is_short_is_not_believed_for_a_few_odd_requests(self, others):
        # Two or three requests within a minute, of 40 in a quarter of an hour.
        odd = an_engine_with({4: 0.05} | others)

        assert measure_demand([odd]).window_s == 885

    def test_that_is_short_is_believed_when_it_saw_a_step_up(self):
        # From 0.05/s to 0.4/s a minute ago.
        stepped = an_engine_with({4: 0.4, 8: 0.2, 20: 0.11, 60: 0.07})

        assert measure_demand([stepped]).requests_per_s == pytest.approx(0.4)

    def test_that_is_short_is_believed_for_two_requests_after_none(self):
        # Of two by chance in a quarter of an hour, both come in the last 45 s once in 400 times;
        # in the last 105 s once in 70, in the last 285 s once in ten.
        begun = an_engine_with({4: 2 / 45, 8: 2 / 105, 20: 2 / 285, 60: 2 / 885})

        assert measure_demand([begun]).window_s == 45

    def test_that_is_short_is_not_believed_against_one_of_the_same_time(self):
        # Ten scrapes are all there is of 20 and of 60.
        young = WindowRates(completed_per_s=0.1, in_flight_per_s=0, rejected_per_s=0)
        windows = dict.fromkeys((4, 8), young) | dict.fromkeys(
            (20, 60), young._replace(seconds=135)
        )

        assert measure_demand([an_engine(arrivals=windows)]).window_s == 135

    def test_that_is_short_is_believed_when_the_load_stopped(self):
        stopped = an_engine_with({4: 0, 8: 0, 20: 0.045, 60: 0.1})

        assert measure_demand([stopped]).requests_per_s == 0

    def test_is_not_longer_than_replicas_have_been_the_same(self):
        # A pod that was taken away took the requests of its past with it.
        demand = measure_demand([an_engine(completed_per_s=0.1)], longest_s=300)

        assert demand.window_s == 285

    def test_is_the_shortest_there_is_after_replicas_changed(self):
        assert measure_demand([an_engine(completed_per_s=0.1)], longest_s=0).window_s == 45

    def test_that_no_answer_came_for_is_left_out(self):
        others = {scrapes: 300.0 for scrapes in WINDOWS if scrapes != 4}

        demand = measure_demand([an_engine_with(others)])

        assert demand.window_s == 105
        assert demand.is_complete

    def test_in_which_growth_is_missing_is_left_out(self):
        told = WindowRates(completed_per_s=300, in_flight_per_s=0, rejected_per_s=0)
        blind = WindowRates(completed_per_s=300)

        demand = measure_demand([an_engine(arrivals=dict.fromkeys(WINDOWS, told) | {4: blind})])

        assert demand.window_s == 105
        assert demand.is_complete

    def test_keeps_a_true_rate_steady_though_short_windows_waver(self):
        # At 0.7/s and scrapes every 2 s, four scrapes read 0.2 to 1.5.
        found = sorted(abs(self.read(seed) / 0.7 - 1) for seed in range(200))

        assert found[100] < 0.12
        assert found[190] < 0.35

    def read(self, seed):
        chance = random.Random(seed)  # noqa: S311
        times_s = list(accumulate(chance.expovariate(0.7) for _ in range(300)))
        windows = {
            scrapes: sum(120 - 2 * (scrapes - 1) < each <= 120 for each in times_s)
            / (2 * (scrapes - 1))
            for scrapes in WINDOWS
        }
        samples = an_engine_with(windows, age_s=0.5, scrape_interval_s=2)
        return measure_demand([samples]).requests_per_s


class TestNewest:
    def test_is_the_count_of_the_shortest_window_whichever_was_chosen(self):
        # 0.1/s: 4.5 requests in the 45 s of 4 scrapes are too few to be sure of a rate.
        demand = measure_demand([an_engine(completed_per_s=0.1)])

        assert demand.window_s == 885
        assert demand.newest.seconds == 45
        assert demand.newest.per_s == pytest.approx(0.1)

    def test_is_missing_and_not_none_arriving_where_its_query_failed(self):
        others = {scrapes: 300.0 for scrapes in WINDOWS if scrapes != 4}

        assert measure_demand([an_engine_with(others)]).newest is None


class TestMissing:
    def test_no_engine_is_no_demand_rather_than_none_arriving(self):
        assert measure_demand([], ready_pods=frozenset()) is None

    def test_an_engine_without_completions_says_nothing(self):
        assert measure_demand([an_engine(completed_per_s=None)]) is None

    def test_an_idle_engine_is_a_measured_zero(self):
        idle = an_engine(completed_per_s=0, running=0, waiting=0)

        demand = measure_demand([idle])

        assert (demand.requests_per_s, demand.is_complete) == (0, True)
        assert demand.standard_error_per_s == pytest.approx(1 / 885)  # as of one request

    def test_an_idle_engine_beside_a_busy_one_adds_nothing(self):
        idle = an_engine("b", completed_per_s=0)

        assert measure_demand([an_engine(), idle]).requests_per_s == pytest.approx(2)

    @pytest.mark.parametrize("missing", ["completed_per_s", "waiting", "in_flight_per_s"])
    def test_a_ready_pod_that_lacks_a_figure_makes_the_demand_incomplete(self, missing):
        samples = [an_engine("a"), an_engine("b", **{missing: None})]

        demand = measure_demand(samples, ready_pods=frozenset({"a", "b"}))

        assert not demand.is_complete
        assert demand.reporting == {"a"}

    def test_one_rank_that_lacks_a_figure_makes_its_pod_incomplete(self):
        ranks = [an_engine(engine="0"), an_engine(engine="1", waiting=None)]

        assert not measure_demand(ranks).is_complete

    def test_a_pod_with_a_stale_rank_is_incomplete_and_the_rank_counts_no_more(self):
        demand = measure_demand([an_engine(engine="0"), an_engine(engine="1", age_s=46)])

        assert not demand.is_complete
        assert demand.requests_per_s == pytest.approx(2)
        assert demand.running == 20

    def test_what_an_engine_does_not_say_adds_nothing(self):
        silent = an_engine(
            completed_per_s=2,
            in_flight_per_s=None,
            rejected_per_s=None,
            waiting=None,
            running=None,
        )

        demand = measure_demand([silent])

        assert demand.requests_per_s == pytest.approx(2)
        assert (demand.waiting, demand.running) == (0, 0)

    def test_a_pod_that_is_not_ready_may_stay_silent(self):
        assert measure_demand([an_engine("a")]).is_complete

    def test_an_engine_that_refuses_no_request_may_lack_the_counter(self):
        # It came with vLLM 0.32.
        assert measure_demand([an_engine(rejected_per_s=None)]).is_complete


class TestFreshness:
    @pytest.mark.parametrize(
        ("age_s", "fresh"), [(0, True), (45, True), (46, False), (-3, True), (None, False)]
    )
    def test_samples_older_than_three_scrapes_are_stale(self, age_s, fresh):
        assert an_engine(age_s=age_s).is_fresh is fresh

    def test_an_age_that_is_no_number_is_stale(self):
        assert not an_engine(age_s=math.nan).is_fresh


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

    def test_is_unknown_where_the_total_is_all_there_is(self):
        assert attainment([{INF: 5.0}], limit_s=1) is None

    def test_is_unknown_for_an_engine_that_does_not_give_the_total(self):
        assert attainment([{1.0: 5.0, 2.0: 6.0}], limit_s=1) is None

    def test_is_known_of_one_request_in_two_seconds(self):
        assert attainment([{1.0: 0.25, INF: 0.5}], limit_s=1) == 0.5

    def test_is_never_more_than_all_of_them(self):
        assert attainment([{1.0: 1e15, 2.0: 7.0, INF: 5.0}], limit_s=1.0) == 1.0

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
