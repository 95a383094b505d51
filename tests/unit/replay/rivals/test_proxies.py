from dataclasses import replace

from rival_builders import a_signal, turns
from tonnage.replay.rivals.arrivals import Arrivals
from tonnage.replay.rivals.ray_serve import ray_serve


def test_a_rate_is_what_came_within_the_window():
    arrivals = Arrivals(window_s=60.0)
    seen = [(0, 0), (30, 30), (60, 120), (90, 240)]
    found = [
        arrivals.requests_per_s(replace(a_signal(at_s=float(at_s)), arrived=arrived))
        for at_s, arrived in seen
    ]

    assert found == [None, 1.0, 2.0, 3.5]


def test_ray_goes_up_after_half_a_minute_and_down_after_ten():
    assert turns(ray_serve(2), 4, asked=5, in_flight=20) == [5, 5, 10, 5]
    assert turns(ray_serve(2), 60, asked=5, in_flight=4) == [5] * 59 + [2]


def test_ray_means_over_half_a_minute():
    rule = ray_serve(2)
    turns(rule, 3, asked=5, in_flight=10)
    rule.replicas(replace(a_signal(5), in_flight=40))

    assert sum(rule.counts) / len(rule.counts) == 20
