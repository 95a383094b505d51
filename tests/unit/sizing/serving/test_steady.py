"""The steady state of a replica: worked examples."""

import pytest

from builders import a_replica, a_workload
from tonnage.sizing.serving.steady import prefill_context_tokens, ranks_together, steady_state
from tonnage.sizing.workload import Lengths


def test_obeys_littles_law_for_decoding_and_for_prefill():
    state = steady_state(a_replica(), a_workload(), num_decoding=20)

    assert state.requests_per_s * 500 * state.step_s == pytest.approx(20)
    assert state.requests_per_s * 2000 * state.step_s == pytest.approx(
        state.prefill_tokens_per_step
    )


def test_sees_exponential_outputs_at_their_full_mean():
    # E[out^2] / (2 E[out]) = 2 * 500^2 / (2 * 500) = 500
    assert a_workload().mean_context_tokens == 2500


def test_sees_outputs_of_one_length_at_half_of_it():
    assert a_workload(output_second_moment=500**2).mean_context_tokens == 2250


def test_a_prompt_of_many_chunks_is_in_prefill_for_as_many_steps():
    replica = a_replica(max_batched_tokens=520)

    state = steady_state(replica, a_workload(), num_decoding=20)

    assert state.num_prefilling == pytest.approx(state.requests_per_s * state.step_s * 4)


def test_tokens_of_longer_prompts_look_back_further():
    # Half of a prompt of 2,000 in the mean; with a squared variation v, 1 + v times as far.
    spread = Lengths(mean_tokens=2000, p99_tokens=8000)

    assert prefill_context_tokens(a_workload()) == 1000
    assert prefill_context_tokens(a_workload(prompt=spread)) == pytest.approx(
        1000 * (1 + spread.scv)
    )


def test_new_tokens_behind_a_cached_prefix_look_back_at_all_of_it():
    # 1,500 cached, then 500 new ones of which half are earlier in the mean.
    assert prefill_context_tokens(a_workload(cached_fraction=0.75)) == 1750


def test_no_more_ranks_prefill_together_than_there_are():
    assert ranks_together(100, 8) == 8
    assert ranks_together(1e-9, 8) == pytest.approx(1)
