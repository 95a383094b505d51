"""The steady state of a replica: worked examples."""

import pytest

from builders import a_replica, a_shard, a_workload
from tonnage.sizing.options import Speculation
from tonnage.sizing.serving.replica import (
    mixed_step,
    prefill_context_tokens,
    ranks_together,
    running_limit,
    steady_state,
)
from tonnage.sizing.split import Parallelism
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


def test_without_any_prefill_one_rank_would_do_it():
    assert ranks_together(0, 8) == 1


def test_of_twenty_sequences_is_this():
    # A step computes 20 * 2,000 / 500 = 80 prompt tokens at 16 us each, and reads 16 GB and
    # 20 * 2,500 tokens of 131,072 B at 3 TB/s: 7.5179 ms.
    state = steady_state(a_replica(), a_workload(), num_decoding=20)

    assert state.prefill_tokens_per_step == 80
    assert state.step_s == pytest.approx(1.28e-3 + 7.517867e-3, rel=1e-6)
    assert state.requests_per_s == pytest.approx(20 / (500 * 8.797867e-3), rel=1e-6)
    assert state.num_prefilling == pytest.approx(20 / 500)
    assert state.num_running == pytest.approx(20.04)


def test_of_drafts_has_fewer_steps_and_more_tokens_in_each():
    # 1 + 1/2 + 1/4 + 1/8 tokens a step: 1 to 4 of them with chances 1/2, 1/4, 1/8, 1/8, a second
    # moment of 4.625. The last step gives (4.625 / 1.875 - 1) / 2 = 0.7333 tokens too many.
    drafts = Speculation(method="ngram", num_draft_tokens=3, acceptance_rate=0.5)

    state = steady_state(a_replica(speculation=drafts), a_workload(), num_decoding=20)

    steps = 500.7333 / 1.875
    assert state.tpot_s == pytest.approx(state.step_s / 1.875)
    assert state.requests_per_s == pytest.approx(20 / (steps * state.step_s))
    assert state.prefill_tokens_per_step == pytest.approx(20 * 2_000 / steps)


def test_over_four_ranks_each_reads_its_own_sequences_and_one_prefills():
    # 5 sequences a rank: (16 GB + 5 * 2,500 * 131,072 B) / 3 TB/s = 5.8795 ms. Of 0.04 prompts in
    # a mean step those with any hold 0.04 / (1 - exp(-0.04)) = 1.0201, each on a rank of its own.
    replica = a_replica(shard=a_shard(parallelism=Parallelism(data=4)))

    state = steady_state(replica, a_workload(), num_decoding=20)

    assert state.step.memory_s == pytest.approx(5.879467e-3, rel=1e-6)
    assert state.step.prefill_s == pytest.approx(80 * 16e-6 / 1.020133, rel=1e-5)


def test_an_empty_replica_still_reads_one_context():
    assert mixed_step(a_workload(), 0.0, 0.0).context_tokens == 2_500
    assert mixed_step(a_workload(), 2.0, 0.0).context_tokens == 5_000


class TestPlaces:
    def test_are_the_slots_of_all_ranks(self):
        ranks = a_replica(shard=a_shard(parallelism=Parallelism(data=4)), max_num_seqs=16)

        assert running_limit(ranks, a_workload()) == 64

    def test_are_what_the_cache_holds_where_that_is_less(self):
        # 50 GB over 157 blocks of 16 tokens of 131,072 B.
        assert running_limit(a_replica(max_num_seqs=1_000), a_workload()) == pytest.approx(
            151.859, rel=1e-5
        )
        assert running_limit(a_replica(), a_workload()) == pytest.approx(151.859, rel=1e-5)

    def test_are_one_where_none_fits(self):
        assert running_limit(a_replica(kv_pool_bytes=1e6), a_workload()) == 1
