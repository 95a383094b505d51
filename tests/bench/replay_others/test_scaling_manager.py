"""Prompts of 2,000 and answers of 200 tokens on replicas of 100,000 KV tokens, 80,000 of them used.

Flags allow 256 at once, so 537,600 tokens: memory is less. Every replica took 100 s to start.
"""

from dataclasses import replace

import pytest

from replay_others.scaling_manager import (
    FullRate,
    FullRates,
    RateWindow,
    ScalingManager,
    ShapeWatch,
    Starts,
)
from rival_builders import a_signal
from tonnage.replay.baselines.rule import ObservedPod
from tonnage.replay.baselines.wva import MeanRequest

CHAT = MeanRequest(input_tokens=2000, output_tokens=200)
LONGER = MeanRequest(input_tokens=2000, output_tokens=2000)
IDLE = {
    "waiting": 0.0,
    "requests_per_s": 0.0,
    "made": 0.0,
    "at_router": 0,
    "pods": None,
    "output": 200.0,
}


def shown(n, *, kv_usage, **changes):
    """The n-th look, 15 s apart, at as many replicas as there are values of KV usage."""
    number, seen = len(kv_usage), IDLE | changes
    signal = a_signal(
        seen["pods"] or number,
        ready=number,
        at_s=15.0 * n,
        kv_usage=kv_usage,
        waiting=[seen["waiting"]] * number,
        made=[seen["made"]] * number,
        finished=[1.0] * number,
        input=[2000.0] * number,
        output=[seen["output"]] * number,
    )
    arrived = round(15 * n * seen["requests_per_s"])
    return replace(signal, arrived=arrived, waiting_at_router=seen["at_router"])


def a_rule():
    return ScalingManager(load=0.85, scrape_interval_s=15)


def desired(rule, looks, **seen):
    for n in looks:
        rule.replicas(shown(n, **seen))
    return rule.gauge.desired


FULL = {"kv_usage": [0.9, 0.9], "waiting": 5.0, "made": 1000.0, "requests_per_s": 10.0}
"""Two replicas with a queue, each of which serves 5 requests/s; 10 come."""


def learned():
    """A rule that has read full replicas twice, a minute apart: with other digits."""
    rule = a_rule()
    for n in range(5):
        rule.replicas(shown(n, **FULL | {"made": 1000.0 + n}))
    return rule


class TestOccupancy:
    def test_holds_within_its_band(self):
        # 120,000 / 0.85 = 141,000 < 160,000 < 120,000 / 0.7 = 171,000
        assert desired(a_rule(), [0], kv_usage=[0.6, 0.6]) == 2

    def test_counts_what_waits_with_all_its_tokens_before_a_replica_was_full(self):
        # 180,000 + 8 x 2,200 = 197,600; / 0.85 - 160,000 = 72,471; / 80,000 = 0.9
        assert desired(a_rule(), [0], kv_usage=[0.9, 0.9], waiting=4.0) == 3
        # 120,000 + 20 x 2,200 = 164,000; / 0.85 = 192,941: 0.4 more
        assert desired(a_rule(), [0], kv_usage=[0.6, 0.6], at_router=20) == 3

    def test_counts_pods_on_their_way_as_supply(self):
        # 180,000 / 0.85 = 211,765 < 3 x 80,000
        assert desired(a_rule(), [0], kv_usage=[0.9, 0.9], pods=3) == 3

    def test_gives_back_down_to_a_quarter_of_its_band(self):
        # 130,000 tokens: 240,000 - 130,000 / 0.7 = 54,286 is spare, less than one; to 0.7375 of
        # what is left they take 176,271, so 63,729: none goes either.
        assert desired(a_rule(), [0], kv_usage=[0.5, 0.4, 0.4]) == 3
        # 100,000: 240,000 - 135,593 = 104,407: one goes, though 240,000 - 142,857 = 97,143.
        assert desired(a_rule(), [0], kv_usage=[0.4, 0.3, 0.3]) == 2
        # 117,000: 240,000 - 167,143 = 72,857 are none, 240,000 - 158,644 = 81,356 are one.
        assert desired(a_rule(), [0], kv_usage=[0.39, 0.39, 0.39]) == 2

    def test_a_number_on_its_way_down_stays_while_it_is_enough(self):
        rule = a_rule()
        assert desired(rule, [0], kv_usage=[0.3, 0.3, 0.3]) == 2
        # 129,000 would leave three, and is 0.81 of two.
        assert desired(rule, [1], kv_usage=[0.43, 0.43, 0.43]) == 2
        # 141,000 is 0.88 of two.
        assert desired(rule, [2], kv_usage=[0.47, 0.47, 0.47]) == 3

    def test_what_a_full_replica_held_is_its_capacity_from_then_on(self):
        rule = a_rule()
        # 30,000 each: (60,000 + 10 x 2,200) / 0.85 = 96,471; - 60,000 is 1.2 of 30,000
        assert desired(rule, [0], kv_usage=[0.3, 0.3], waiting=5.0) == 4
        # The mean of 30,000, 30,000, 50,000 and 50,000.
        desired(rule, [1], kv_usage=[0.5, 0.5], waiting=5.0)
        assert list(rule.held[1]) == [30_000, 30_000, 50_000, 50_000]
        # 84,000 / 0.85 - 80,000 = 18,824: one of 40,000
        assert desired(rule, [2], kv_usage=[0.42, 0.42]) == 3

    def test_flags_bound_what_was_never_full(self):
        # 8,192 x 20 / 2,020 = 81.1 at once, each 2,010 tokens: 163,000 are more than memory has.
        assert desired(a_rule(), [0], kv_usage=[0.6, 0.6], output=20.0) == 2

    def test_goes_down_after_five_minutes(self):
        rule = a_rule()
        found = [rule.replicas(shown(n, kv_usage=[0.05] * 3)) for n in range(21)]

        assert found == [3] * 20 + [1]


class TestThroughput:
    def test_one_reading_brings_nobody(self):
        rule = a_rule()
        desired(rule, [0, 1], **FULL)
        # 20 requests/s would be the work of four; 130,000 tokens are in use, 0.81 of two.
        seen = FULL | {"kv_usage": [0.65, 0.65], "waiting": 0.0, "requests_per_s": 20.0}
        assert rule.rates.read(CHAT) == FullRate(5.0, 1, True)
        assert desired(rule, [2], **seen) == 2

    def test_two_readings_a_minute_apart_ask_for_what_comes(self):
        # 10 / 5 of 80,000 are 160,000 tokens; / 0.85: 0.35 more than two.
        rule = learned()
        assert rule.rates.read(CHAT) == FullRate(pytest.approx(5.015), 2, True)
        assert desired(rule, [5], kv_usage=[0.1, 0.1], requests_per_s=10.0) == 3

    def test_a_backlog_is_work_to_be_done_and_not_tokens_to_be_held(self):
        # 900 waiting + 100 s x 10 - 100 s x 2 x 5.015 = 897; / 100 s: 19 requests/s, the work of
        # 3.8 replicas, of 4.5 at 0.85. As tokens they would be 32.
        assert desired(learned(), [5], kv_usage=[0.9, 0.9], waiting=450.0, requests_per_s=10.0) == 5

    def test_what_starts_serves_the_backlog_too(self):
        # Two more have started 1,000 s ago: beyond twice a start they are not expected.
        seen = {"kv_usage": [0.9, 0.9], "waiting": 450.0, "requests_per_s": 10.0}
        late = shown(5, **seen, pods=4)
        young = replace(
            late, pods=tuple(replace(pod, age_s=min(pod.age_s, 60.0)) for pod in late.pods[2:])
        )
        young = replace(young, pods=(*late.pods[:2], *young.pods))

        rule = learned()
        rule.replicas(late)
        assert rule.gauge.desired == 5
        # They serve for 60 s each: 897 - 2 x 60 x 5.015 = 295; 13 requests/s are the work of 2.6.
        rule = learned()
        rule.replicas(young)
        assert rule.gauge.desired == 4

    def test_the_routers_queue_brings_as_many_as_serve_it_in_a_minute(self):
        rule = a_rule()
        desired(rule, [0, 1], **FULL)
        # One reading of 5/s: 320 / 300 is one more than are Ready; 700 / 300 are two.
        seen = FULL | {"kv_usage": [0.4, 0.4], "waiting": 0.0}
        assert desired(rule, [2], **seen, at_router=320) == 3
        assert desired(rule, [3], **seen, at_router=700) == 4

    def test_a_rate_of_other_answers_is_borrowed_and_brings_nobody(self):
        rule = learned()
        # Ten times the answer, and 30 requests/s; 30,000 tokens in use.
        seen = {"kv_usage": [0.15, 0.15], "requests_per_s": 30.0, "output": 2000.0}
        assert desired(rule, [5, 6], **seen) == 2
        assert rule.rates.read(LONGER) == FullRate(pytest.approx(5.015), 2, False)


class TestRates:
    def test_readings_within_a_minute_are_one_and_the_highest(self):
        window = RateWindow()
        for at_s, rate in ((0, 3.0), (15, 5.0), (45, 4.0), (60, 4.0), (75, 3.5), (90, 6.0)):
            window.take(rate, at_s)

        assert list(window.rates) == [5.0, 6.0]

    def test_the_lower_middle_of_a_window_counts(self):
        rates = FullRates()
        for n, rate in enumerate((3.0, 9.0, 5.0, 4.0)):
            rates.take(CHAT, rate, 60.0 * n)

        assert rates.read(CHAT) == FullRate(4.0, 4, True)

    def test_the_nearest_answers_are_borrowed_of_two_the_shorter_and_never_other_prompts(self):
        rates = FullRates()
        rates.take(MeanRequest(input_tokens=2000, output_tokens=50), 9.0, 0.0)
        rates.take(MeanRequest(input_tokens=2000, output_tokens=1000), 3.0, 0.0)

        assert rates.read(CHAT) == FullRate(9.0, 1, False)
        assert rates.read(LONGER) == FullRate(3.0, 1, False)
        assert rates.read(replace(CHAT, input_tokens=50)) is None


class TestLengths:
    def test_a_change_is_outstanding_for_five_minutes_and_again_five_minutes_later(self):
        watch = ShapeWatch()
        assert not watch.note(CHAT, 0)
        assert not watch.note(replace(CHAT, output_tokens=240), 15)
        assert watch.note(replace(CHAT, output_tokens=241), 30)
        assert watch.note(LONGER, 45)
        assert watch.note(LONGER, 329)
        assert not watch.note(LONGER, 330)
        # Given up on: the next change counts for its own look alone.
        assert watch.note(CHAT, 345)
        assert not watch.note(CHAT, 360)
        assert watch.note(LONGER, 630)
        assert watch.note(LONGER, 645)

    def test_a_fleet_that_was_measured_settles_a_change(self):
        watch = ShapeWatch()
        watch.note(CHAT, 0)
        watch.note(LONGER, 15)
        watch.settle()

        assert not watch.note(LONGER, 30)


def test_a_start_counts_once_and_newer_ones_weigh_three_tenths():
    starts = Starts()
    first = ObservedPod(name="a", age_s=1000.0, ready_for_s=900.0)
    for _ in range(2):
        starts.note([first, ObservedPod(name="b", age_s=50.0, ready_for_s=None)])
    assert starts.mean_s == pytest.approx(100.0)

    starts.note([ObservedPod(name="b", age_s=210.0, ready_for_s=10.0)])
    assert starts.mean_s == pytest.approx(130.0)


def test_stays_where_nobody_says_anything():
    assert a_rule().replicas(a_signal(2)) == 2
