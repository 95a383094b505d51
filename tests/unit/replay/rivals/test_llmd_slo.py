import math

import pytest

from rival_builders import a_signal
from tonnage.replay.baselines.hpa import SloLaw


def a_rule(threshold=0.55):
    return SloLaw(threshold=threshold, scrape_interval_s=15)


def ttft(seconds):
    """A histogram whose P90 this is: nine tenths of the requests are below it."""
    return {seconds: 9.0, 2 * seconds: 10.0, math.inf: 10.0}


def turns(rule, seconds, *, asked, ready=None, count=4):
    """What it asks for, with the same P90 of TTFT, limit 2 s, every 15 s."""
    found = asked
    for number in range(count):
        signal = a_signal(asked, ready=ready, at_s=15.0 * number, ttft=ttft(seconds))
        found = rule.replicas(signal)
    return found


def test_it_goes_up_by_how_far_the_tail_is_above_the_threshold():
    # 1.54 / 2 = 0.77; 0.77 / 0.55 - 1 = 0.4; 4 + ceil(1.6)
    assert turns(a_rule(), 1.54, asked=4) == 6


def test_pods_on_their_way_are_credited():
    # 0.77 x 3/4 / 0.55 - 1 = 0.05; 4 + ceil(0.2)
    assert turns(a_rule(), 1.54, asked=4, ready=3) == 5


def test_it_holds_within_the_band():
    assert turns(a_rule(), 1.0, asked=4) == 4


def test_it_goes_down_by_one_when_three_minutes_allow():
    # 0.4 / 2 = 0.2; 1 - 0.2 / 0.4 = 0.5; 6 - 3 = 3, one at a time
    assert turns(a_rule(), 0.4, asked=6, count=12) == 6
    assert turns(a_rule(), 0.4, asked=6, count=13) == 5


def test_a_tail_far_beyond_the_limit_counts_as_twice_the_limit():
    rule = a_rule()
    turns(rule, 40.0, asked=4, count=1)

    assert rule.recent == [2.0]


def test_the_mean_is_over_three_evaluations():
    rule = a_rule()
    for at_s, seconds in [(0, 0.4), (15, 2.0), (30, 1.0), (45, 1.2)]:
        rule.replicas(a_signal(4, at_s=at_s, ttft=ttft(seconds)))

    assert rule.recent == pytest.approx([1.0, 0.5, 0.6])


def test_an_idle_pool_reads_zero_and_the_worse_of_both_counts():
    rule = a_rule()
    rule.replicas(a_signal(4))
    rule.replicas(a_signal(4, at_s=15, ttft=ttft(1.0), tpot=ttft(0.04)))

    assert rule.recent == pytest.approx([0.0, 0.8])
