from dataclasses import replace

from rival_builders import a_signal
from tonnage.replay.baselines.hpa import epp_queue


def test_a_router_counts_what_waits_in_engines_as_running_too():
    signal = replace(a_signal(3, waiting=[1, 0, 0]), in_flight=70)

    # 70 / 16 = 4.4, against 1 / 1 of the queue
    assert epp_queue(16).replicas(signal) == 5


def test_a_router_lets_no_more_than_twice_as_many_come_at_once():
    assert epp_queue(16).replicas(replace(a_signal(2, waiting=[9, 9]), in_flight=700)) == 4
