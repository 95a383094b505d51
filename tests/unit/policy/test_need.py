"""Replicas for a demand and for what waits."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import a_sizing_request
from strategies import numbers
from tonnage.policy.need import Traffic, need, need_without_demand
from tonnage.sizing.plan import size
from tonnage.sizing.workload import Routing
from tonnage.units import significant

SIZING = size(a_sizing_request())
EACH = SIZING.goodput_requests_per_s
"""Requests per second of one replica."""


def needed(requests_per_s, *, waiting=0.0, sizing=SIZING, drain_s=60):
    traffic = Traffic(requests_per_s=requests_per_s, waiting=waiting)
    return need(sizing, traffic, drain_s=drain_s)


@pytest.mark.parametrize(("load", "replicas"), [(0, 1), (0.5, 1), (1, 1), (1.01, 2), (7.5, 8)])
def test_is_the_rate_over_what_a_replica_sustains(load, replicas):
    assert needed(load * EACH).replicas == replicas


def test_a_backlog_counts_as_demand_over_the_time_to_drain_it():
    # Half a replica of demand, and as much again as a whole one does in a minute.
    answer = needed(0.5 * EACH, waiting=EACH * 60)

    assert answer.replicas == 2
    assert [reason.code for reason in answer.reasons] == ["Demand", "Backlog"]
    assert "to be drained in 60.00 s" in answer.reasons[1].message


def test_a_backlog_that_fits_beside_the_demand_is_no_reason():
    answer = needed(0.5 * EACH, waiting=0.3 * EACH * 60)

    assert answer.replicas == 1
    assert [reason.code for reason in answer.reasons] == ["Demand"]


def test_more_time_to_drain_takes_fewer_replicas():
    assert needed(EACH, waiting=600 * EACH, drain_s=60).replicas == 11
    assert needed(EACH, waiting=600 * EACH, drain_s=600).replicas == 2


def test_scaling_down_leaves_four_percent_of_room():
    # 0.961 * 1.04 = 0.99944, and 0.963 * 1.04 = 1.00152.
    assert needed(0.961 * EACH).replicas_with_margin == 1
    assert needed(0.963 * EACH).replicas_with_margin == 2


def test_the_room_is_beside_the_backlog_and_not_for_it():
    # 0.5 and a backlog of 0.49 or 0.47 in a minute are one replica; 0.52 and 0.49 are two.
    assert needed(0.5 * EACH, waiting=0.49 * EACH * 60).replicas == 1
    assert needed(0.5 * EACH, waiting=0.49 * EACH * 60).replicas_with_margin == 2
    assert needed(0.5 * EACH, waiting=0.47 * EACH * 60).replicas_with_margin == 1


def test_nothing_waits_unless_it_is_told():
    assert need(SIZING, Traffic(requests_per_s=EACH), drain_s=60).replicas == 1
    assert need(SIZING, Traffic(requests_per_s=1.001 * EACH), drain_s=60).replicas == 2


@pytest.mark.parametrize(("factor", "replicas"), [(1.0, 4), (0.8, 5), (0.5, 8), (1.25, 4)])
def test_counts_on_what_kept_and_broken_promises_leave_of_a_replica(factor, replicas):
    # 3.9 replicas' worth by the arithmetic: 4.9 of those that serve 0.8 of it, 3.1 of 1.25.
    traffic = Traffic(requests_per_s=3.9 * EACH)

    assert need(SIZING, traffic, drain_s=60, goodput_factor=factor).replicas == replicas


def test_says_what_a_replica_serves_with_that_factor():
    traffic = Traffic(requests_per_s=4)

    [reason] = need(SIZING, traffic, drain_s=60, goodput_factor=0.5).reasons

    assert f"at {significant(0.5 * EACH)} per replica" in reason.message


def test_says_where_the_demand_comes_from():
    traffic = Traffic(requests_per_s=4, origin="expected by spec.demand")

    [reason] = need(SIZING, traffic, drain_s=60).reasons

    assert "4.00 requests/s (expected by spec.demand)" in reason.message


def test_without_any_demand_is_the_smallest_fleet_allowed():
    answer = need_without_demand(3)

    assert (answer.replicas, answer.replicas_with_margin) == (3, 3)
    assert [reason.code for reason in answer.reasons] == ["NoDemand"]


rates = numbers(0, 200)


@given(st.tuples(rates, rates).map(sorted), numbers(0, 5000))
def test_a_higher_rate_never_needs_fewer(pair, waiting):
    low, high = pair

    assert needed(low, waiting=waiting).replicas <= needed(high, waiting=waiting).replicas


@given(rates, st.tuples(numbers(0, 5000), numbers(0, 5000)).map(sorted))
def test_a_longer_queue_never_needs_fewer(rate, pair):
    short, long = pair

    assert needed(rate, waiting=short).replicas <= needed(rate, waiting=long).replicas


@given(rates, numbers(0, 5000))
def test_room_for_scaling_down_is_never_less_than_the_need(rate, waiting):
    answer = needed(rate, waiting=waiting)

    assert 1 <= answer.replicas <= answer.replicas_with_margin


POOLED = size(a_sizing_request(routing=Routing.LEAST_OUTSTANDING))


@given(rates)
def test_replicas_that_share_a_queue_are_never_needed_in_greater_number(rate):
    assert needed(rate, sizing=POOLED).replicas <= needed(rate).replicas


def test_an_absurd_rate_still_gives_a_number():
    assert needed(1e15).replicas > 1e12
