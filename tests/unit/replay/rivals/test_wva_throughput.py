"""Prompts of 2,000 and answers of 200 tokens: 2,100 of 100,000 KV tokens each, 47.6 at once."""

from dataclasses import replace

import pytest

from rival_builders import a_signal
from tonnage.replay.baselines.wva import (
    ItlLine,
    ItlSample,
    Throughput,
    fit_line,
    through_base,
)

SEEN = {
    "usage": (0.5, 0.5),
    "itl_s": (0.016, 0.016),
    "made": (1488.0, 1488.0),
    "prompt": 2000,
    "waiting": 0,
}


def shown(n, *, requests_per_s, hits=0.0, **changes):
    """The n-th look, 15 s apart, at two replicas that make so many tokens/s each."""
    seen = SEEN | changes
    made, finished = seen["made"], [each / 200 for each in seen["made"]]
    signal = a_signal(
        2,
        at_s=15.0 * n,
        kv_usage=list(seen["usage"]),
        gaps=list(made),
        gap_s=[each * itl for each, itl in zip(made, seen["itl_s"], strict=True)],
        finished=finished,
        output=list(made),
        input=[seen["prompt"] * each for each in finished],
        prompt_tokens=[100.0, 100.0],
        cached_tokens=[100 * hits] * 2,
    )
    arrived = round(15 * n * requests_per_s)
    return replace(signal, arrived=arrived, waiting_at_router=seen["waiting"])


def desired(rule, looks, **seen):
    for n in range(looks):
        rule.replicas(shown(n, **seen))
    return rule.gauge.desired


def a_rule():
    return Throughput(load=0.85, scrape_interval_s=15)


def test_a_line_goes_through_points_that_lie_on_it():
    points = [ItlSample(0, usage, 0.01 + 0.02 * usage) for usage in (0.2, 0.4, 0.8)]

    assert fit_line(points) == pytest.approx((0.02, 0.01))
    # (0.008 x 0.2 + 0.02 x 0.8) / (0.04 + 0.64)
    assert through_base([points[0], points[2]]) == pytest.approx((0.0176 / 0.68, 0.006))


def test_a_line_through_the_base_that_would_fall_is_none():
    assert through_base([ItlSample(0, 0.5, 0.005)]) is None
    assert through_base([]) is None
    assert ItlLine(0.02, 0.006).at(0.85) == pytest.approx(0.023)


def test_divides_the_tokens_that_come_by_those_of_a_full_cache():
    # 0.85 x 47.6 / 0.023 s = 1,760 tokens/s each; 25 x 200 / 0.85 - 3,520 = 2,363: 1.3 more.
    assert desired(a_rule(), 2, requests_per_s=25) == 4


def test_holds_within_its_band_and_takes_away_what_is_spare():
    # 3,520 - 2,900 / 0.7 < 0, and 2,900 / 0.85 = 3,412; 3,520 - 1,000 / 0.7 = 2,091: 1.2.
    assert desired(a_rule(), 2, requests_per_s=14.5) == 2
    assert desired(a_rule(), 2, requests_per_s=5) == 1


def test_adds_what_waits_at_the_router_as_answers_to_make_in_time():
    # 2,900 + 10 / (2 x 0.023) = 3,117; / 0.85 = 3,668: 148 more than two make.
    assert desired(a_rule(), 2, requests_per_s=14.5, waiting=10) == 3


def test_leaves_out_the_tokens_that_the_cache_shares():
    # Half of each prompt is: 1,100 tokens each, 3,360 tokens/s; 5,000 / 0.85 is less than two.
    assert desired(a_rule(), 2, requests_per_s=25, hits=0.5) == 2


FAR = {"usage": (0.2, 0.8), "itl_s": (0.014, 0.026), "made": (680.0, 1465.0)}
"""On ITL = 0.01 + 0.02 x usage: 0.0270 s at 0.85, and 0.0280 s through the base."""


def test_fits_its_own_line_once_ten_points_lie_far_apart():
    # 12.5 x 200 / 0.85 = 2,941: more than twice 1,446 tokens/s, less than twice 1,499.
    assert desired(a_rule(), 4, requests_per_s=12.5, **FAR) == 3
    assert desired(a_rule(), 6, requests_per_s=12.5, **FAR) == 2


def test_points_out_of_range_teach_nothing():
    rule = a_rule()
    desired(rule, 6, requests_per_s=12.5, **FAR | {"usage": (0.1, 0.9)})

    assert len(rule.points) == 0


def test_another_shape_of_requests_gives_points_up():
    rule = a_rule()
    desired(rule, 6, requests_per_s=12.5, **FAR)
    assert len(rule.points) == 12

    rule.replicas(shown(6, requests_per_s=12.5, prompt=2300, **FAR))
    assert len(rule.points) == 14
    rule.replicas(shown(7, requests_per_s=12.5, prompt=2500, **FAR))
    assert len(rule.points) == 2


def test_a_rate_that_the_line_does_not_tell_gives_points_up_after_three_looks():
    rule = a_rule()
    slow = FAR | {"made": (340.0, 730.0)}
    found = []
    for n in range(5):
        rule.replicas(shown(n, requests_per_s=12.5, **slow))
        found.append(len(rule.points))

    # At the first look no rate of arrivals is known, and nothing is held against anything.
    assert found == [2, 4, 6, 0, 2]


def test_points_are_half_an_hour_old_at_most():
    rule = a_rule()
    desired(rule, 3, requests_per_s=12.5, **FAR)

    rule.replicas(replace(shown(140, requests_per_s=12.5, **FAR), at_s=1840.0))

    assert [each.at_s for each in rule.points] == [1840.0, 1840.0]


def test_stays_where_nothing_is_made():
    rule = a_rule()

    assert rule.replicas(a_signal(2)) == 2
    assert rule.replicas(replace(a_signal(2, at_s=15.0), arrived=100)) == 2
