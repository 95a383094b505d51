"""Counting replicas: the number that a search for the rate of one finds, in fewer runs."""

import math
from dataclasses import replace

import pytest

from builders import a_sizing_request, an_slo
from tonnage.sizing.below import size_below
from tonnage.sizing.counting import (
    MOST_COUNTED,
    by_count,
    can_be_counted,
    count_replicas,
    enough_requests_per_s,
)
from tonnage.sizing.plan import finalist_of, keep_searching, outline_of, size_with
from tonnage.sizing.search import NO_LIMIT, cost_of, size
from tonnage.sizing.split import Parallelism
from tonnage.sizing.workload import Demand, Routing, Slo

SLO = an_slo(ttft_s=2.0, tpot_s=0.03)


def a_request(rate, **changes):
    return a_sizing_request(slo=SLO, demand=Demand(requests_per_s=rate), num_gpus=1, **changes)


def counted(request, most=MOST_COUNTED, *, enough=math.inf):
    finalist = finalist_of(
        outline_of(request, Parallelism()), enough_requests_per_s=enough, between=keep_searching
    )
    return count_replicas(finalist, most, keep_searching)


def goodput_of(request):
    return size_with(request, Parallelism()).goodput_requests_per_s


@pytest.mark.parametrize("share", [0.3, 0.9, 1.1, 2.5, 4.6])
def test_finds_the_number_that_a_plan_takes(share):
    request = a_request(share * goodput_of(a_request(1.0)))

    assert counted(request).replicas == size(request).replicas


def test_none_where_more_are_needed_than_may_be():
    request = a_request(2.5 * goodput_of(a_request(1.0)))

    assert counted(request, 2) is None
    assert counted(request, 3).replicas == 3


def test_minreplicas_are_the_fewest():
    request = replace(a_request(0.1), min_replicas=3)

    assert counted(request).replicas == 3


def test_its_rate_is_one_that_is_kept_and_covers_the_demand():
    served = goodput_of(a_request(1.0))
    found = counted(a_request(1.5 * served))

    assert 0.75 * served <= found.goodput_requests_per_s <= 1.01 * served
    assert found.sustained_requests_per_s(found.replicas) >= 1.5 * served


def test_it_is_sure_only_where_slower_steps_keep_the_demand_too():
    served = goodput_of(a_request(1.0))
    close, ample = a_request(0.98 * served), a_request(0.5 * served)

    assert counted(close).goodput_requests_per_s < enough_requests_per_s(close)
    assert counted(ample).goodput_requests_per_s == enough_requests_per_s(ample)


@pytest.mark.parametrize("rate", [0.43, 0.47, 0.77, 6.11, 6.13, 6.16])
def test_what_is_sure_is_so_whatever_the_digits_of_its_rate(rate):
    request = a_request(rate)
    found = counted(request)

    assert found.goodput_requests_per_s * found.replicas == pytest.approx(
        enough_requests_per_s(request)
    )
    assert found.staffing.sustains(enough_requests_per_s(request), found.replicas)


def test_more_than_ten_that_short_runs_took_for_ten_are_searched_for():
    served = goodput_of(a_request(1.0))
    request = a_request(11.5 * served)
    finalist = finalist_of(outline_of(request, Parallelism()), between=keep_searching)
    quick = replace(finalist.coarse.goodput, requests_per_s=1.19 * served)
    optimist = replace(finalist, coarse=replace(finalist.coarse, goodput=quick))

    assert count_replicas(optimist, MOST_COUNTED, keep_searching) is None
    assert by_count(optimist, NO_LIMIT, keep_searching).replicas == 12


def test_flags_that_serve_enough_are_taken_as_they_come():
    request = a_request(0.5)
    whole, first = counted(request), counted(request, enough=enough_requests_per_s(request))

    assert first.replicas == whole.replicas == 1
    assert cost_of(first) == cost_of(whole)


@pytest.mark.parametrize(
    "changes",
    [
        {"routing": Routing.LEAST_OUTSTANDING},
        {"arrival_scv": 4.0},
        {"arrival_scv": 0.5},
        {"slo": Slo()},
        {"slo": an_slo(ttft_s=2.0, tpot_s=0.03, quantile=0.999)},
        {"demand": Demand()},
        {"demand": Demand(concurrency=5.0)},
        {"demand": Demand(requests_per_s=0.001)},
    ],
)
def test_not_where_what_one_serves_hangs_on_how_many_there_are(changes):
    def can_be(request):
        return can_be_counted(outline_of(request, Parallelism()))

    assert can_be(a_request(1.0))
    assert not can_be(replace(a_request(1.0), **changes))


@pytest.mark.parametrize("replicas", [4, MOST_COUNTED + 4])
@pytest.mark.parametrize("scv", [1.0, 2.0])
def test_what_costs_less_is_what_a_plan_of_its_own_takes(replicas, scv):
    request = a_request((replicas - 0.5) * goodput_of(a_request(1.0)), arrival_scv=scv)
    found = size(request)
    has_no_price, amount = cost_of(found)

    less = size_below(request, (has_no_price, 1.01 * amount), counts=True)

    assert less.replicas == found.replicas
    assert size_below(request, (has_no_price, amount), counts=True) is None
