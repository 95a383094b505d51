import pytest

from replay_others.hpa_kv import KvUsage
from replay_others.keda_queue import queue
from replay_others.llmd_token import token_law
from rival_builders import a_signal

pytestmark = pytest.mark.thorough


def test_an_hpa_brings_the_mean_kv_usage_to_its_target():
    # 4 x 0.9 / 0.7 = 5.14
    assert KvUsage(target=0.7).replicas(a_signal(4, kv_usage=[0.9] * 4)) == 6


def test_a_queue_is_shared_out_over_replicas():
    # 23 / 5 = 4.6
    assert queue(5).replicas(a_signal(2, waiting=[10, 13])) == 5


def test_an_empty_queue_asks_for_none_and_five_minutes_hold():
    rule = queue(5)
    found = [rule.replicas(a_signal(3, at_s=15.0 * n, waiting=[0, 0, 0])) for n in range(21)]

    assert found == [3] * 20 + [1]


@pytest.mark.parametrize(
    ("waiting", "kv_usage", "expected"),
    [
        ([10, 10], [0.1, 0.1], 3),  # 20 x 2,000 / 10,000 / 1.5 = 2.67
        ([0, 0], [0.9, 0.9], 3),  # 1.8 / 0.8 = 2.25
        ([3, 3], [0.8, 0.8], 2),  # 0.8 s of prefill; just full
    ],
)
def test_tokens_that_wait_are_seconds_of_prefill(waiting, kv_usage, expected):
    answers = {"waiting": waiting, "kv_usage": kv_usage}
    rule = token_law(1.5, 15, prefill=lambda _: 10_000.0)
    prompts = {"prompts": [2.0, 2.0], "prompt_tokens": [4000.0, 4000.0]}

    assert rule.replicas(a_signal(2, **answers, **prompts)) == expected
