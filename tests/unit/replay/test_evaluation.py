import math
from array import array
from types import SimpleNamespace

import pytest

from tonnage.replay.evaluation import (
    LatencyLimits,
    RequestOutcomes,
    fates,
    promised_share,
    quantiles,
    run_figures,
    worst_hour,
)
from tonnage.replay.ground_truth import GroundTruth
from tonnage.sizing.workload import Slo, Target

LIMITS = LatencyLimits(ttft_s=2.0, tpot_s=0.05)


def a_record(*rows, pods=(), asked=(), server_s=0.0):
    """Requests as (arrival, tokens, first token, end) and replicas asked for as (time, number)."""
    columns = list(zip(*rows, strict=True))
    table = SimpleNamespace(
        output_tokens=array("q", columns[1]),
        first_token_s=array("d", columns[2]),
        ended_s=array("d", columns[3]),
    )
    served = SimpleNamespace(truth=GroundTruth(server_s=server_s))
    record = SimpleNamespace(
        cluster=SimpleNamespace(table=table, pods=pods, served=served),
        moments=[SimpleNamespace(at_s=at_s, replicas=number) for at_s, number in asked],
        gpu_s=lambda from_s, until_s: sum(
            2 * max(0.0, min(until_s, pod.ended_s) - max(from_s, pod.created_s)) for pod in pods
        ),
    )
    return record, array("d", columns[0])


def drawn_of(arrival_s, *, too_long_s=(), duration_s=100.0):
    return SimpleNamespace(
        arrival_s=arrival_s, duration_s=duration_s, too_long_s=array("d", too_long_s)
    )


def fates_of(*rows, **more):
    record, arrival_s = a_record(*rows)
    return fates(record, drawn_of(arrival_s, **more), LIMITS)


@pytest.mark.parametrize(
    ("row", "is_kept"),
    [
        ((10.0, 11, 12.0, 12.5), True),  # 2 s to the first token, 10 more in 0.5 s
        ((10.0, 11, 12.1, 12.5), False),
        ((10.0, 11, 12.0, 12.6), False),  # 60 ms a token
        ((10.0, 1, 11.0, 11.0), True),  # one token has no TPOT
        ((10.0, 1, 12.1, 12.1), False),
        ((10.0, 11, 0.0, 0.0), False),  # never served
        ((10.0, 11, 11.0, 0.0), False),  # killed on the way
    ],
)
def test_a_request_is_kept_when_both_limits_are(row, is_kept):
    assert list(fates_of(row).is_kept) == [is_kept]


def test_without_a_limit_a_request_still_has_to_be_served():
    record, arrival_s = a_record((10.0, 11, 90.0, 99.0), (10.0, 11, 0.0, 0.0))
    found = fates(record, drawn_of(arrival_s), LatencyLimits(ttft_s=math.inf, tpot_s=math.inf))

    assert list(found.is_kept) == [1, 0]


@pytest.mark.parametrize(("server_s", "is_kept"), [(0.5, True), (0.6, False)])
def test_a_first_token_comes_later_by_what_passes_outside_of_the_engine(server_s, is_kept):
    record, arrival_s = a_record((10.0, 11, 11.5, 12.0), server_s=server_s)

    found = fates(record, drawn_of(arrival_s), LIMITS)

    assert list(found.is_kept) == [is_kept]
    assert list(found.ttft_s) == [1.5 + server_s]


def test_requests_that_are_too_long_are_missed_in_the_order_of_arrival():
    good, lost = (10.0, 11, 11.0, 11.2), (30.0, 11, 0.0, 0.0)
    found = fates_of(good, lost, too_long_s=[20.0])

    assert list(found.arrival_s) == [10.0, 20.0, 30.0]
    assert list(found.is_kept) == [1, 0, 0]
    assert (found.num_too_long, found.num_unserved) == (1, 1)
    assert found.attainment == 1 / 3


def test_limits_are_those_of_the_highest_percentile():
    slo = Slo(
        ttft=(Target(quantile=0.99, limit_s=4.0), Target(quantile=0.5, limit_s=1.0)),
        tpot=(Target(quantile=0.95, limit_s=0.05),),
    )

    assert LatencyLimits.of(slo) == LatencyLimits(ttft_s=4.0, tpot_s=0.05)
    assert promised_share(slo) == 0.99
    assert LatencyLimits.of(Slo(ttft=slo.ttft)).tpot_s == math.inf


def hourly(kept_by_minute):
    """Ten requests at each minute; so many of the ten are kept."""
    return RequestOutcomes(
        arrival_s=array("d", (60.0 * k for k in range(len(kept_by_minute)) for _ in range(10))),
        ttft_s=array("d"),
        tpot_s=array("d"),
        is_kept=bytes(n < kept for kept in kept_by_minute for n in range(10)),
        num_too_long=0,
    )


def test_the_worst_hour_slides_by_five_minutes():
    # All missed from minute 50 to 70: hours from minute 10 on to 50 have all of it.
    found = hourly([10] * 50 + [0] * 20 + [10] * 110)

    assert worst_hour(found, 180 * 60.0) == (40 / 60, 600.0)


def test_hours_with_few_requests_do_not_count():
    found = hourly([10] * 61 + [0])  # one hour only, and a minute beyond it

    assert worst_hour(found, 62 * 60.0)[0] == 1.0
    assert worst_hour(hourly([0, 10]), 7200.0) == (0.5, 0.0)  # 20 requests in all: one hour


def a_pod(created_s, ready_s, deleted_s=math.inf, ended_s=math.inf):
    return SimpleNamespace(
        created_s=created_s, ready_s=ready_s, deleted_s=deleted_s, ended_s=ended_s
    )


def test_a_run_in_figures():
    pods = [
        a_pod(-30.0, -5.0),  # all the time: 100 s
        a_pod(10.0, 30.0, 60.0, 65.0),  # 20 s of start, 5 s of drain, 55 s in all
        a_pod(20.0, 50.0, 40.0, 40.0),  # cancelled after 20 s of its start
    ]
    asked = [(-30.0, 1), (0.0, 1), (10.0, 2), (20.0, 3), (40.0, 2), (60.0, 1), (120.0, 5)]
    rows = [(float(k), 11, k + 1.0, k + 1.2) for k in range(9)] + [(9.0, 11, 15.0, 15.2)]
    record, arrival_s = a_record(*rows, pods=pods, asked=asked)
    drawn = drawn_of(arrival_s)

    found = run_figures(record, drawn, fates(record, drawn, LIMITS))

    assert found.attainment == found.worst_hour == 0.9
    assert found.gpu_hours == pytest.approx(2 * 175 / 3600)
    assert found.gpu_hours_per_day == pytest.approx(2 * 175 / 3600 * 864)
    assert (found.scaled_up, found.scaled_down) == (2, 2)
    assert (found.starting_s, found.draining_s) == (40.0, 5.0)
    assert found.mean_replicas == 1.75
    assert found.max_replicas == 3
    assert found.ttft_s == pytest.approx((1.0, 6.0, 6.0))
    assert found.tpot_s == pytest.approx((0.02, 0.02, 0.02))


def test_a_pod_that_ends_as_another_begins_is_not_there_with_it():
    pods = [a_pod(0.0, 5.0, 50.0, 50.0), a_pod(50.0, 60.0)]
    record, arrival_s = a_record((1.0, 1, 2.0, 2.0), pods=pods)
    drawn = drawn_of(arrival_s)

    assert run_figures(record, drawn, fates(record, drawn, LIMITS)).max_replicas == 1


def test_a_percentile_is_the_smallest_value_that_covers_it():
    assert quantiles([float(k) for k in range(100, 0, -1)]) == (50.0, 95.0, 99.0)
    assert quantiles([1.0, math.inf]) == (1.0, math.inf, math.inf)
    assert all(map(math.isnan, quantiles([])))
