"""Time to first token outside any queue: worked examples."""

from dataclasses import replace

import pytest

from builders import a_replica, a_shard, a_workload
from tonnage.catalog.engine_speed import TEXTBOOK_SPEED
from tonnage.sizing.parallelism.kv import KvShare
from tonnage.sizing.serving.replica import own_prefill_s, serving_s, steady_state, typical_ttft_s
from tonnage.sizing.split import Parallelism

SERVED = replace(
    TEXTBOOK_SPEED, per_request_s=0.05, per_running_request_s=1e-3, per_prompt_token_s=1e-5
)


def test_ones_own_prefill_is_its_work_and_a_step_of_the_others():
    # 2,000 tokens at 16 us, beside 20 sequences that read for 7.5179 ms.
    state = steady_state(a_replica(), a_workload(), num_decoding=20)

    own_s = own_prefill_s(a_replica(), a_workload(), state, 2_000)

    assert own_s == pytest.approx(0.032 + 7.517867e-3, rel=1e-6)


def test_a_prompt_of_several_chunks_has_a_step_of_the_others_with_each():
    # 2,000 tokens in the 520 - 20 that the others leave: four steps.
    replica = a_replica(max_batched_tokens=520)
    state = steady_state(replica, a_workload(), num_decoding=20)

    own_s = own_prefill_s(replica, a_workload(), state, 2_000)

    assert own_s == pytest.approx(0.032 + 4 * 7.517867e-3, rel=1e-6)


def test_what_is_cached_is_not_computed():
    warm = a_workload(cached_fraction=0.75)
    state = steady_state(a_replica(), warm, num_decoding=20)

    own_s = own_prefill_s(a_replica(), warm, state, 4_000)

    assert own_s == pytest.approx(1_000 * 16e-6 + 7.517867e-3, rel=1e-6)


def test_each_new_token_attends_to_the_cached_ones_and_half_of_the_new():
    # 1,000 new of 4,000 tokens look back at 3,500 each in the mean, at 1 MFLOP a pair: 3.5 ms
    # beside their 16 ms; and the one in each of 20 sequences is hidden behind its reads.
    attending = a_shard(kv=(KvShare(bytes_per_token=131_072, flop_per_pair=1e6),))
    replica, warm = a_replica(shard=attending), a_workload(cached_fraction=0.75)
    state = steady_state(replica, warm, num_decoding=20)

    own_s = own_prefill_s(replica, warm, state, 4_000)

    assert own_s == pytest.approx(0.016 + 0.0035 + 7.517867e-3, rel=1e-6)


def test_a_typical_one_waits_for_half_a_step():
    # A step of the steady state takes 8.7979 ms.
    state = steady_state(a_replica(), a_workload(), num_decoding=20)

    first_s = typical_ttft_s(a_replica(), a_workload(), state)

    assert first_s == pytest.approx(0.039517867 + 8.797867e-3 / 2, rel=1e-6)


@pytest.mark.parametrize(
    ("ranks", "expected_s"), [(1, 0.05 + 0.02 + 0.02), (4, 0.05 + 0.005 + 0.02)]
)
def test_the_server_takes_its_time_for_request_streams_and_prompt(ranks, expected_s):
    # 50 ms, 1 ms for each of 20 streams on so many ranks, 10 us for each of 2,000 tokens.
    shard = a_shard(parallelism=Parallelism(data=ranks))

    assert serving_s(a_replica(shard=shard, constants=SERVED), 20, 2_000) == pytest.approx(
        expected_s
    )
