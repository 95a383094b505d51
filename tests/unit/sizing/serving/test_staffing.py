"""Replicas for a rate: the quotient where arrivals are even, fewer to share bursts and queues."""

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import a_replica, a_workload, an_slo
from strategies import numbers
from tonnage.sizing.errors import SLOInfeasibleError
from tonnage.sizing.serving.goodput import Length, goodput
from tonnage.sizing.serving.staffing import (
    FLEETS,
    Staffing,
    fleet_of,
    saturated_requests_per_s,
    staffing_of,
)
from tonnage.sizing.workload import Lengths, Routing, Slo
from trials import a_server_of, a_trial

TRIAL = a_trial(
    replica=a_replica(max_num_seqs=8),
    workload=a_workload(prompt=Lengths(mean_tokens=1_000), output_tokens=50),
    slo=an_slo(ttft_s=0.3),
)
ROUTINGS = list(Routing)


def staffed(routing=Routing.SERVICE, *, scv=1.0, trial=TRIAL):
    trial = a_trial(replica=trial.replica, workload=trial.workload, slo=trial.slo, arrival_scv=scv)
    alone = goodput(trial, 10.0, length=Length.MEDIUM).requests_per_s
    return staffing_of(trial, alone, routing)


class TestBehindAService:
    def test_of_poisson_arrivals_is_the_quotient(self):
        found = Staffing(each_requests_per_s=((1, 2.5),))

        assert [found.replicas_for(rate) for rate in (0, 1, 2.5, 2.51, 5, 24)] == [
            1,
            1,
            1,
            2,
            2,
            10,
        ]

    def test_of_poisson_arrivals_runs_nothing_more(self):
        def on_search():
            raise AssertionError

        found = staffing_of(TRIAL, 4.0, Routing.SERVICE, on_search=on_search)

        assert found.each(1) == found.each(100) == 4.0

    def test_offline_runs_nothing_more(self):
        offline = a_trial(slo=Slo(), arrival_scv=5.0)

        assert staffing_of(offline, 4.0, Routing.SERVICE).each_requests_per_s == ((1, 4.0),)

    def test_each_replica_has_its_part_of_the_bursts(self):
        assert fleet_of(a_trial(arrival_scv=9.0), 8, Routing.SERVICE).arrival_scv == 2.0
        assert fleet_of(a_trial(arrival_scv=0.5), 2, Routing.SERVICE).arrival_scv == 0.75

    def test_many_replicas_serve_bursts_like_even_arrivals(self):
        bursty, even = staffed(scv=6.0), staffed()

        assert bursty.each(1) < 0.8 * even.each(1)
        assert bursty.each(32) == pytest.approx(even.each(1), rel=0.05)

    def test_each_serves_no_less_in_a_larger_fleet(self):
        served = [staffed(scv=6.0).each(number) for number in range(1, 40)]

        assert all(after >= before - 1e-9 for before, after in pairwise(served))


class TestPooled:
    def test_serve_at_least_what_separate_ones_do(self):
        pooled, alone = staffed(Routing.LEAST_OUTSTANDING), staffed()

        for number in FLEETS:
            assert pooled.each(number) >= alone.each(number) * (1 - 1e-9)
        assert pooled.each(8) > 1.05 * alone.each(8)

    def test_are_tried_together_at_the_burstiness_of_all(self):
        fleet = fleet_of(a_trial(arrival_scv=9.0), 8, Routing.LEAST_OUTSTANDING)

        assert (fleet.num_replicas, fleet.arrival_scv) == (8, 9.0)

    def test_serve_between_two_sizes_by_one_over_the_root(self):
        found = Staffing(each_requests_per_s=((1, 1.0), (4, 2.0)), is_pooled=True)

        # From 1 to 1 / 2 of the root: at 2 replicas 1 / 1.414 is 58.6 % of the way.
        assert found.each(2) == pytest.approx(1 + (1 - 1 / math.sqrt(2)) / (1 - 1 / 2))


class TestBetweenTwoSizes:
    def test_separate_ones_lie_on_a_line_in_one_over_n(self):
        found = Staffing(each_requests_per_s=((1, 1.0), (4, 2.0)))

        # From 1 to 1 / 4: at 2 replicas two thirds of the way.
        assert found.each(2) == pytest.approx(1 + 2 / 3)
        assert found.each(100) == 2.0


def test_each_of_more_replicas_serves_less_of_arrivals_that_come_like_a_clock():
    """A split by chance makes them the more random the more there are, up to Poisson."""
    found = dict(staffed(scv=0.01).each_requests_per_s)
    poisson = dict(staffed(scv=1.0).each_requests_per_s)

    assert found[1] > 1.05 * found[32]
    assert found[32] == pytest.approx(poisson[1], rel=0.06)
    assert all(found[few] >= found[many] for few, many in pairwise(FLEETS))


def test_no_fleet_serves_more_than_its_slots_let_through():
    # One slot and steps of 100 ms: ten requests a second, however many wait.
    assert saturated_requests_per_s(a_server_of(0.1), 5.0) == pytest.approx(10, rel=0.01)


class TestReplicas:
    @given(
        st.lists(numbers(0.1, 10), min_size=1, max_size=5),
        st.booleans(),
        numbers(0.01, 1_000),
        numbers(1, 10),
    )
    def test_are_the_fewest_that_sustain_the_rate_and_never_fewer_for_more(
        self, rates, is_pooled, rate, factor
    ):
        known = tuple(zip(FLEETS, sorted(rates), strict=False))
        found = Staffing(each_requests_per_s=known, is_pooled=is_pooled)

        number = found.replicas_for(rate)

        assert found.sustains(rate, number)
        assert number == 1 or not found.sustains(rate, number - 1)
        assert found.replicas_for(rate * factor) >= number

    def test_are_refused_where_one_serves_nothing(self):
        with pytest.raises(SLOInfeasibleError, match="more replicas do not help"):
            Staffing(each_requests_per_s=((1, 0.0),)).replicas_for(1.0)

    def test_are_refused_where_so_many_serve_nothing(self):
        with pytest.raises(SLOInfeasibleError, match="fleets that large"):
            Staffing(each_requests_per_s=((1, 1.0), (2, 0.0))).replicas_for(50.0)

    def test_do_not_grow_by_what_a_search_leaves_open(self):
        found = Staffing(each_requests_per_s=((1, 0.9999),))

        assert found.replicas_for(3.0) == 3
