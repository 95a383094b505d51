"""Two engines of 100,000 KV tokens. Alone, 1,000 tokens of prompt take 0.1 s; with n sequences of
1,050 tokens a step takes 0.01 s + n x 0.105 ms."""

import pytest

from replay_others.dynamo_classic import TABLE, ClassicPlanner
from replay_others.inside import Profile, decode_step_s
from rival_builders import a_signal
from tonnage.engine.step_costs import linear_costs, with_knot


def counted(at_s, *, requests_per_s=40.0, ttft_s=0.05, itl_s=0.0184, ready=2):
    """Counters after so long: prompts of 1,000, answers of 100 tokens, in 4 s each."""
    number = requests_per_s * at_s
    totals = {
        "first_tokens": number,
        "ttft_s": number * ttft_s,
        "gaps": 99 * number,
        "gap_s": 99 * number * itl_s,
        "finished": number,
        "input_tokens": 1000 * number,
        "output_tokens": 100 * number,
        "duration_s": 4 * number,
    }
    each = {name: [totals[name] / 2] * 2 for name in TABLE}
    return a_signal(2, at_s=at_s, ready=ready, **each)


def planner():
    profile = Profile(
        ttft_s=lambda tokens: tokens / 10_000,
        itl_s=lambda num, context: 0.01 + 1e-7 * num * context,
    )
    return ClassicPlanner(profile=lambda _: profile)


def asked_for(**seen):
    rule = planner()
    rule.replicas(counted(0.0, **seen))
    return rule.replicas(counted(180.0, **seen))


def test_adds_what_prefill_and_decode_take_of_an_engine():
    # Prefill 40 x 0.1 s, half of that since TTFT was half of a prompt's alone: 2.
    # Decode: 95 sequences fit, 0.019975 s a step, 4,756 tokens/s; of 4,000: 0.84.
    assert asked_for() == 3


def test_takes_a_late_ttft_for_no_more_work():
    # 4 and 0.84, whether TTFT was as long as alone or ten times that.
    assert asked_for(ttft_s=0.1) == 5
    assert asked_for(ttft_s=1.0) == 5


def test_tightens_the_limit_by_how_late_tokens_were():
    # 40 x 4 / 2 = 80 sequences should take 0.0184 s; four times that makes 12.5 ms of 50 ms:
    # 23 sequences at 12.415 ms, 1,853 tokens/s; 2 + 2.16.
    assert asked_for(itl_s=4 * 0.0184) == 5


def test_takes_one_sequence_where_nothing_keeps_the_limit():
    # 5 ms: 1 / 0.010105 s = 99 tokens/s; 2 + 40.4.
    assert asked_for(itl_s=10 * 0.0184) == 43


def test_stays_without_traffic_and_without_replicas():
    assert asked_for(requests_per_s=0.0) == 2
    assert asked_for(ready=0) == 2


def test_looks_at_the_last_interval_alone():
    rule = planner()
    rule.replicas(counted(0.0))
    rule.replicas(counted(180.0))

    assert rule.replicas(counted(180.0)) == 2


def test_a_profile_is_the_step_that_costs_say():
    costs = linear_costs(per_step_s=0.01, per_sequence_s=1e-4, kv_s_per_token=1e-7, max_num_seqs=16)

    assert decode_step_s(costs, 10, 1000.0) == pytest.approx(0.01 + 1e-3 + 1e-3)
    assert decode_step_s(costs, 99, 1000.0) == decode_step_s(costs, 16, 1000.0)
    assert decode_step_s(with_knot(costs, 300), 10, 1000.0) == pytest.approx(0.012)
