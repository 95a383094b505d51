"""Fixed numbers of users, and prompts that come all at once."""

from dataclasses import replace
from math import inf, sqrt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import a_replica, a_shard, a_workload, with_constants
from tonnage.catalog.engine_speed import TEXTBOOK_SPEED
from tonnage.sizing.serving.burst import burst_ttft_s, prefill_in_order_s
from tonnage.sizing.serving.closed_loop import closed_loop, prefill_work_s
from tonnage.sizing.split import Parallelism

users = st.integers(1, 400)


def a_served_replica(**changes):
    served = replace(
        TEXTBOOK_SPEED, bunching_fraction=0.2, per_request_s=0.05, per_running_request_s=1e-3
    )
    return a_replica(constants=served, **changes)


def test_one_user_waits_for_nobody():
    replica, workload = a_served_replica(), a_workload()
    alone = closed_loop(replica, workload, 1)
    bunched = closed_loop(with_constants(replica, bunching_fraction=0.9), workload, 1)
    assert alone.ttft_s == pytest.approx(bunched.ttft_s)


@given(users)
def test_more_users_never_wait_less(num_users):
    replica, workload = a_served_replica(), a_workload()
    fewer = closed_loop(replica, workload, num_users)
    more = closed_loop(replica, workload, num_users + 1)
    assert more.ttft_s >= fewer.ttft_s * (1 - 1e-9)
    assert more.tpot_s >= fewer.tpot_s * (1 - 1e-9)


@given(users)
def test_others_prompts_delay_by_their_work_at_most(num_users):
    replica, workload = a_served_replica(kv_pool_bytes=inf), a_workload()
    unbunched = with_constants(replica, bunching_fraction=0.0)
    wait_s = (
        closed_loop(replica, workload, num_users).ttft_s
        - closed_loop(unbunched, workload, num_users).ttft_s
    )
    assert 0 <= wait_s <= (num_users - 1) * prefill_work_s(replica, workload) + 1e-9


@given(users)
def test_more_prompts_at_once_never_wait_less(num_prompts):
    replica, workload = a_served_replica(), a_workload()
    fewer_s = burst_ttft_s(replica, workload, num_prompts)
    assert burst_ttft_s(replica, workload, num_prompts + 1) >= fewer_s


def test_the_last_of_a_burst_waits_for_all_prompts():
    replica, workload = a_served_replica(kv_pool_bytes=inf), a_workload()
    last_s = burst_ttft_s(replica, workload, 64, quantile=1.0)
    serving_s = 0.05 + 64 * 1e-3
    assert last_s == pytest.approx(serving_s + prefill_in_order_s(replica, workload, 64))
    assert last_s >= 64 * prefill_work_s(replica, workload)


def test_without_a_slot_a_prompt_waits_for_a_round_of_answers():
    replica, workload = a_served_replica(kv_pool_bytes=inf), a_workload()
    few_slots = replace(replica, max_num_seqs=8)
    waits_s = burst_ttft_s(few_slots, workload, 16, quantile=1.0)
    starts_s = burst_ttft_s(few_slots, workload, 16, quantile=0.5)
    assert waits_s - starts_s >= workload.output_tokens * closed_loop(replica, workload, 1).tpot_s


PROMPT_TOO = replace(
    TEXTBOOK_SPEED,
    bunching_fraction=0.2,
    per_request_s=0.05,
    per_running_request_s=1e-3,
    per_prompt_token_s=1e-5,
)


def test_twenty_users_wait_this_long():
    # 19.96 decode in steps of 8.79095 ms, and a prompt takes 32 ms + 7.51352 ms: a cycle of
    # 4.43499 s, of which 20 * 0.032 / 4.43499 = 14.43 % are prompts.
    loop = closed_loop(a_replica(constants=PROMPT_TOO), a_workload(), 20)

    wait_s = 0.2 * 19 * sqrt(0.144307) * 0.032
    assert loop.tpot_s == pytest.approx(8.79095e-3, rel=1e-6)
    assert loop.requests_per_s == pytest.approx(19.96008 / (500 * 8.79095e-3), rel=1e-5)
    assert loop.ttft_s == pytest.approx(0.05 + 0.02 + 0.02 + 0.0395135 + wait_s, rel=1e-5)


def test_users_without_a_slot_wait_for_their_part_of_a_cycle():
    # 16 of 20 run: 15.968 decode in steps of 8.09943 ms beside prompts of 32 ms + 6.99748 ms.
    loop = closed_loop(a_replica(constants=PROMPT_TOO, max_num_seqs=16), a_workload(), 20)

    own_s = 0.032 + (16e9 + 15.968064 * 2_500 * 131_072) / 3e12
    cycle_s = 500 * 8.099428e-3 + own_s
    wait_s = 0.2 * 15 * sqrt(16 * 0.032 / cycle_s) * 0.032
    slot_s = 4 / 16 * (cycle_s + wait_s)
    assert loop.ttft_s == pytest.approx(0.05 + 0.016 + 0.02 + own_s + wait_s + slot_s, rel=1e-5)


def test_a_burst_within_the_slots_is_prefilled_in_order():
    # Half of 32 prompts on 16 slots: 16 * 32 ms, and 4 steps of 8,176 tokens beside 8 sequences
    # of 2,000 tokens, (16 GB + 2.097 GB) / 3 TB/s.
    burst_s = burst_ttft_s(a_replica(constants=PROMPT_TOO, max_num_seqs=16), a_workload(), 32)

    step_s = (16e9 + 8 * 2_000 * 131_072) / 3e12
    assert burst_s == pytest.approx(0.05 + 0.016 + 0.02 + 16 * 0.032 + 4 * step_s, rel=1e-6)


def test_the_rest_of_a_burst_waits_for_a_round_of_500_steps():
    # The 31st is the 15th of the second round, behind answers in steps of 8.09943 ms.
    replica = a_replica(constants=PROMPT_TOO, max_num_seqs=16)

    burst_s = burst_ttft_s(replica, a_workload(), 32, quantile=0.95)

    step_s = (16e9 + 7.5 * 2_000 * 131_072) / 3e12
    in_order_s = 15 * 0.032 + 4 * step_s
    assert burst_s == pytest.approx(0.086 + 500 * 8.099428e-3 + in_order_s, rel=1e-6)


def test_a_burst_over_four_ranks_is_a_quarter_on_each():
    ranks = a_replica(shard=a_shard(parallelism=Parallelism(data=4)))

    assert burst_ttft_s(ranks, a_workload(), 32, quantile=1.0) == pytest.approx(
        prefill_in_order_s(ranks, a_workload(), 8)
    )


def test_fewer_users_than_ranks_wait_for_nobody():
    ranks = a_served_replica(shard=a_shard(parallelism=Parallelism(data=4)))
    bunched = with_constants(ranks, bunching_fraction=0.9)

    assert (
        closed_loop(ranks, a_workload(), 2).ttft_s == closed_loop(bunched, a_workload(), 2).ttft_s
    )


def test_what_a_step_exchanges_without_a_prompt_is_not_its_work():
    # Two all-reduces a layer take their latency in every step; 32 ms of work are on two GPUs.
    pair = a_replica(shard=a_shard(parallelism=Parallelism(tensor=2)))
    slow = with_constants(pair, per_all_reduce_s=1e-3)

    assert prefill_work_s(slow, a_workload()) == pytest.approx(prefill_work_s(pair, a_workload()))


def test_a_burst_of_requests_that_do_not_fit_is_served_one_by_one():
    ranks = a_served_replica(shard=a_shard(parallelism=Parallelism(data=4)), kv_pool_bytes=1e6)

    first_s = burst_ttft_s(ranks, a_workload(), 8, quantile=0.5)

    assert burst_ttft_s(ranks, a_workload(), 8, quantile=1.0) - first_s >= 500 * 5e-3
