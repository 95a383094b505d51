"""Fixed numbers of users, and prompts that come all at once."""

from dataclasses import replace
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import a_replica, a_workload
from tonnage.catalog.engine_speed import TEXTBOOK_SPEED
from tonnage.sizing.serving.burst import burst_ttft_s, prefill_in_order_s
from tonnage.sizing.serving.closed_loop import closed_loop, prefill_work_s

users = st.integers(1, 400)


def a_served_replica(**changes):
    served = replace(
        TEXTBOOK_SPEED, bunching_fraction=0.2, per_request_s=0.05, per_running_request_s=1e-3
    )
    return a_replica(constants=served, **changes)


def test_one_user_waits_for_nobody():
    replica, workload = a_served_replica(), a_workload()
    alone = closed_loop(replica, workload, 1)
    bunched = closed_loop(
        replace(replica, constants=replace(replica.constants, bunching_fraction=0.9)), workload, 1
    )
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
    unbunched = replace(replica, constants=replace(replica.constants, bunching_fraction=0.0))
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
