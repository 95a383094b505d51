from rival_builders import a_signal
from tonnage.replay.baselines.hpa import Concurrency


def test_running_and_waiting_are_shared_out_at_the_target():
    rule = Concurrency(target=20)

    # (30 + 10 + 20 + 10) / 20 = 3.5
    assert rule.replicas(a_signal(2, running=[30, 20], waiting=[10, 10])) == 4


def test_a_new_pod_without_a_scrape_counts_as_idle():
    rule = Concurrency(target=20)

    # 70 / 20 = 3.5 over 3 pods: 1.17 of the target.
    assert rule.replicas(a_signal(3, ready=2, running=[30, 20], waiting=[10, 10])) == 4
    # Over 4 pods: 0.875, the other way than 1.75 over the two that say something.
    assert rule.replicas(a_signal(4, ready=2, running=[30, 20], waiting=[10, 10])) == 4
