from dataclasses import replace

import pytest

from replay_others.wva2 import TokenSaturation
from rival_builders import FLAGS, a_signal

pytestmark = pytest.mark.thorough

LENGTHS = {"input": [4000.0, 4000.0], "output": [400.0, 400.0], "finished": [2.0, 2.0]}
"""2,000 prompt and 200 output tokens."""


def a_second(**answers):
    rule = TokenSaturation(load=0.85, scrape_interval_s=15)
    return rule, rule.replicas(a_signal(2, **answers, **LENGTHS))


def test_the_second_analyzer_holds_within_its_band():
    # Capacity 80,000 each; 120,000 / 0.85 = 141,000 < 160,000 < 120,000 / 0.7 = 171,000.
    rule, _ = a_second(kv_usage=[0.6, 0.6], waiting=[0, 0])

    assert rule.gauge.desired == 2


def test_the_second_analyzer_counts_what_waits_with_all_its_tokens():
    # 180,000 + 8 x 2,200 = 197,600; / 0.85 - 160,000 = 72,471; / 80,000 = 0.9
    assert a_second(kv_usage=[0.9, 0.9], waiting=[4, 4])[1] == 3


def test_the_second_analyzer_takes_what_a_full_queue_shows_for_capacity_and_remembers_it():
    # 30,000 each: (60,000 + 10 x 2,200) / 0.85 - 60,000 = 36,471; / 30,000 = 1.2
    rule, found = a_second(kv_usage=[0.3, 0.3], waiting=[5, 5])

    assert found == 4
    # The queue is gone, the capacity is not: 60,000 / 0.85 - 60,000 = 10,588.
    again = a_signal(2, at_s=15, kv_usage=[0.3, 0.3], waiting=[0, 0], **LENGTHS)
    rule.replicas(again)
    assert rule.gauge.desired == 3


def test_the_second_analyzer_takes_away_what_is_spare():
    # 160,000 - 20,000 / 0.7 = 131,429; / 80,000 = 1.6
    rule, found = a_second(kv_usage=[0.1, 0.1], waiting=[0, 0])

    assert (rule.gauge.desired, found) == (1, 2)


def test_the_second_analyzer_counts_replicas_on_their_way():
    rule = TokenSaturation(load=0.85, scrape_interval_s=15)
    signal = a_signal(3, ready=2, kv_usage=[0.9, 0.9], waiting=[4, 4], **LENGTHS)

    # 232,471 is less than three times 80,000.
    assert rule.replicas(signal) == 3


def test_the_second_analyzer_knows_the_flags_before_it_has_seen_a_full_queue():
    # 8,192 x 200 / 2,200 = 745 sequences, 30 by the flag: x 2,100 = 63,000 of 1,000,000 tokens
    about = {"kv_tokens": 1_000_000, "flags": replace(FLAGS, max_num_seqs=30)}
    rule = TokenSaturation(load=0.85, scrape_interval_s=15)
    rule.replicas(a_signal(2, about=about, kv_usage=[0.06, 0.06], waiting=[0, 0], **LENGTHS))

    # 120,000 / 0.85 - 126,000 = 15,176
    assert rule.gauge.desired == 3
