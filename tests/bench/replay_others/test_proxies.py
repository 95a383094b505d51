from dataclasses import replace

import pytest

from replay_others.inside import TrueRate
from replay_others.ray_serve import RayServe
from rival_builders import a_signal, turns

pytestmark = pytest.mark.thorough


def test_the_true_rate_is_known_at_once_and_held_for_five_minutes():
    rule = TrueRate(load=0.85, true=lambda _: 8.0)

    # 40 / (0.85 x 8) = 5.9
    assert turns(rule, 2, asked=2, requests_per_s=40) == [2, 6]
    later = [rule.replicas(replace(a_signal(6, at_s=15.0 * n), arrived=600)) for n in range(2, 22)]
    # From 75 s on nothing has come in the last minute; what 60 s asked for is held until 360 s.
    assert later[:18] == [6] * 18
    assert later[-1] < 6


def test_ray_goes_up_after_half_a_minute_and_down_after_ten():
    assert turns(RayServe(target=2), 4, asked=5, in_flight=20) == [5, 5, 10, 5]
    assert turns(RayServe(target=2), 60, asked=5, in_flight=4) == [5] * 59 + [2]


def test_ray_means_over_half_a_minute():
    rule = RayServe(target=2)
    turns(rule, 3, asked=5, in_flight=10)
    rule.replicas(replace(a_signal(5), in_flight=40))

    assert sum(rule.counts) / len(rule.counts) == 20
