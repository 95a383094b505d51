"""Clients of a fixed number of users, and prompts that come all at once."""

from array import array
from dataclasses import replace
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import a_replica, a_shard, a_workload
from tonnage.catalog.engine_speed import TEXTBOOK_SPEED
from tonnage.engine.table import RequestTable
from tonnage.sizing.serving.closed_loop import REQUESTS_PER_USER, closed_loop, run_client
from tonnage.sizing.split import Parallelism

users = st.integers(1, 200)
WEIGHTS_BYTES, TOKEN_BYTES, BYTES_PER_S = 16e9, 131_072, 3e12
LARGE = 1e15
PROMPT_S = 0.032
"""The work of 2,000 prompt tokens: 16 GFLOP each, at 1 PFLOP/s."""


def alike(number, *, prompt=2_000, output=500):
    """Requests of one length."""
    return RequestTable(
        array("q", [prompt] * number),
        array("q", [output] * number),
        array("q", [0] * number),
        array("d", [0.0] * number),
    )


def seen_by(num_users, requests, replica=None):
    return run_client(
        replica or a_replica(kv_pool_bytes=LARGE), a_workload(), requests, num_users=num_users
    )


def step_s(number, tokens):
    return (WEIGHTS_BYTES + number * tokens * TOKEN_BYTES) / BYTES_PER_S


def test_one_user_waits_for_its_own_prefill_alone():
    loop = seen_by(1, alike(10))

    # 2,000 tokens in a step that reads no weights for others, then 499 steps of 2,001 to 2,499.
    assert loop.ttft_s == pytest.approx([loop.ttft_s[0]] * 10)
    assert loop.ttft_s[0] == pytest.approx(PROMPT_S, rel=0.2)
    assert loop.tpot_s[0] == pytest.approx(step_s(1, 2_250), rel=1e-3)
    assert loop.requests_per_s == pytest.approx(1 / (loop.ttft_s[0] + 499 * loop.tpot_s[0]))


def test_own_prefill_is_no_part_of_a_tpot():
    """Both prompts of two users fit in one step, so that no answer meets another's prompt."""
    loop = seen_by(2, alike(20))

    assert loop.tpot_s == pytest.approx([step_s(2, 2_250)] * 20, rel=1e-3)
    assert loop.itl_s == pytest.approx(loop.mean_tpot_s)


def test_users_ask_again_when_they_have_their_answer():
    requests = alike(REQUESTS_PER_USER * 7, output=100)
    seen_by(7, requests)

    assert list(requests.arrival_s[:7]) == [0.0] * 7
    assert sorted(requests.arrival_s[7:]) == sorted(requests.ended_s)[:-7]


def test_what_passes_outside_the_engine_is_part_of_the_first_token():
    outside = replace(
        TEXTBOOK_SPEED, per_request_s=0.05, per_running_request_s=1e-3, per_prompt_token_s=1e-5
    )
    plain, served = (
        a_replica(kv_pool_bytes=LARGE),
        a_replica(constants=outside, kv_pool_bytes=LARGE),
    )

    waits = [seen_by(8, alike(80), replica).mean_ttft_s for replica in (plain, served)]

    assert waits[1] - waits[0] == pytest.approx(0.05 + 8 * 1e-3 + 2_000 * 1e-5)


@given(users)
def test_more_prompts_at_once_never_wait_less(number):
    fewer, more = (seen_by(each, alike(each)).ttft_s for each in (number, number + 1))

    assert median(more) >= median(fewer) * (1 - 1e-9)
    assert max(more) >= (number + 1) * PROMPT_S


def test_without_a_slot_a_prompt_waits_for_a_round_of_answers():
    loop = seen_by(16, alike(16), a_replica(max_num_seqs=8, kv_pool_bytes=LARGE))

    first, second = loop.ttft_s[:8], loop.ttft_s[8:]
    assert min(second) - max(first) >= 490 * step_s(8, 2_250)


def test_a_burst_over_four_ranks_is_a_quarter_on_each():
    ranks = a_replica(shard=a_shard(parallelism=Parallelism(data=4)), kv_pool_bytes=LARGE)

    last_s = max(seen_by(32, alike(32), ranks).ttft_s)

    assert last_s == pytest.approx(max(seen_by(8, alike(8)).ttft_s), rel=0.1)


def test_requests_that_do_not_fit_together_are_served_one_by_one():
    loop = seen_by(8, alike(8), a_replica(kv_pool_bytes=1e6))

    gaps = [later - earlier for earlier, later in zip(loop.ttft_s, loop.ttft_s[1:], strict=False)]
    assert min(gaps) >= 499 * step_s(1, 2_000)


def test_lengths_of_a_workload_are_drawn():
    found = closed_loop(a_replica(), a_workload(), num_users=4, context_tokens=8_192)

    assert len(found.ttft_s) == 4 * REQUESTS_PER_USER
    assert len(set(found.later_tokens)) > 10
    burst = closed_loop(
        a_replica(), a_workload(), num_users=4, num_requests=4, context_tokens=8_192
    )
    assert len(burst.ttft_s) == 4
