from dataclasses import replace

from rival_builders import a_signal
from tonnage.replay.baselines.rule import Arrivals


def test_a_rate_is_what_came_within_the_window():
    arrivals = Arrivals(window_s=60.0)
    seen = [(0, 0), (30, 30), (60, 120), (90, 240)]
    found = [
        arrivals.requests_per_s(replace(a_signal(at_s=float(at_s)), arrived=arrived))
        for at_s, arrived in seen
    ]

    assert found == [None, 1.0, 2.0, 3.5]
