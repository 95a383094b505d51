"""What the fluid arithmetic says bounds a batch, and the rate at most."""

from dataclasses import replace

import pytest
from hypothesis import assume, given

from builders import a_replica, a_shard, a_workload, an_slo, decoding_only
from strategies import numbers, quantiles, replicas, tpot_limits_s, workloads
from tonnage.sizing.options import Speculation
from tonnage.sizing.serving.load_line import (
    bound_requests_per_s,
    limits,
    most_decoding,
    state_at,
    top_requests_per_s,
    tpot_ceiling,
)
from tonnage.sizing.serving.replica import steady_state
from tonnage.sizing.split import Parallelism
from tonnage.sizing.workload import Slo, Target

CLOSE = 1 + 1e-6


class TestTheMostThatDecode:
    def test_is_what_the_cache_holds(self):
        replica = a_replica(kv_pool_bytes=100 * 2000 * 131_072)

        assert most_decoding(replica, decoding_only(2000)) == ("KVCache", pytest.approx(100))

    def test_is_the_slots_where_there_are_fewer(self):
        replica = a_replica(max_num_seqs=64)

        name, num_decoding = most_decoding(replica, a_workload())

        # A prompt is in prefill for one step, an answer for 500.
        assert (name, num_decoding) == ("MaxNumSeqs", pytest.approx(64 / (1 + 1 / 500)))

    def test_leaves_room_for_those_in_prefill(self):
        replica = a_replica(kv_pool_bytes=100 * 2512 * 131_072)  # 2,500 tokens in whole blocks
        _, num_decoding = most_decoding(replica, a_workload())

        state = steady_state(replica, a_workload(), num_decoding)

        assert state.num_decoding < state.num_running == pytest.approx(100)

    def test_stops_where_decode_and_prefill_fill_the_token_budget(self):
        # n + n * 2000 / 500 = 500
        replica = a_replica(max_batched_tokens=500)

        assert most_decoding(replica, a_workload()) == ("BatchedTokens", pytest.approx(100))


class TestTheTpotCeiling:
    def test_is_where_a_step_takes_as_long_as_asked(self):
        # (30e9 - 16e9) / (2000 * 131,072) = 53.4
        found = tpot_ceiling(a_replica(), decoding_only(2000), an_slo(tpot_s=0.010))

        assert found == pytest.approx(53.406, rel=1e-4)

    def test_is_nothing_without_a_target(self):
        assert tpot_ceiling(a_replica(), a_workload(), an_slo(ttft_s=1)) is None

    def test_does_not_depend_on_slots_or_cache(self):
        slo, small = an_slo(tpot_s=0.010), a_replica(max_num_seqs=1, kv_pool_bytes=1e9)

        assert tpot_ceiling(small, a_workload(), slo) == tpot_ceiling(
            a_replica(), a_workload(), slo
        )


class TestTheBound:
    def test_is_the_rate_at_which_the_mean_tpot_meets_its_limit(self):
        found = bound_requests_per_s(a_replica(), a_workload(), an_slo(tpot_s=0.020))
        state = state_at(a_replica(), a_workload(), found)

        assert state.tpot_s == pytest.approx(0.020, rel=1e-3)

    def test_is_the_top_without_a_tpot_target(self):
        slow = an_slo(ttft_s=60)

        assert bound_requests_per_s(a_replica(), a_workload(), slow) == top_requests_per_s(
            a_replica(), a_workload()
        )

    def test_is_of_one_sequence_where_even_that_is_too_slow(self):
        found = bound_requests_per_s(a_replica(), a_workload(), an_slo(tpot_s=0.001))

        assert found == steady_state(a_replica(), a_workload(), 1).requests_per_s

    @given(replicas, workloads, tpot_limits_s, quantiles)
    def test_keeps_every_limit_and_touches_one(self, replica, workload, limit_s, quantile):
        slo = an_slo(tpot_s=limit_s, quantile=quantile)
        ceiling = tpot_ceiling(replica, workload, slo)
        _, most = most_decoding(replica, workload)
        num_decoding = min(most, ceiling)
        assume(num_decoding > 1)

        bounds = dict(limits(replica, workload, slo))

        assert all(keeps(num_decoding / CLOSE) for keeps in bounds.values())
        assert not all(keeps(num_decoding * 1.01) for keeps in bounds.values())


class TestTheStateAtARate:
    @given(replicas, workloads, numbers(0.05, 0.95))
    def test_serves_that_rate(self, replica, workload, share):
        bare = replace(replica, max_num_seqs=None)
        rate = share * top_requests_per_s(bare, workload)
        lowest = steady_state(bare, workload, 1e-2).requests_per_s
        assume(rate > lowest)

        assert state_at(bare, workload, rate).requests_per_s == pytest.approx(rate, rel=1e-3)

    def test_is_the_fullest_where_less_is_served(self):
        state = state_at(a_replica(max_batched_tokens=500), a_workload(), 1e6)

        # A token for each of 500 sequences: the budget holds no more.
        assert state.num_decoding == 500

    def test_without_targets_has_the_top_for_its_bound(self):
        assert bound_requests_per_s(a_replica(), a_workload(), Slo()) == top_requests_per_s(
            a_replica(), a_workload()
        )


class TestByHand:
    """A sequence adds 2,500 * 131,072 B / 3 TB/s and 4 prompt tokens of 16 us to 5.3333 ms."""

    def test_twenty_milliseconds_leave_85_sequences(self):
        # Of 20 ms 14.6667 are for sequences, 0.109227 + 0.064 for each.
        ceiling = tpot_ceiling(a_replica(), a_workload(), an_slo(tpot_s=0.020))

        assert ceiling == pytest.approx(84.662, rel=1e-4)

    def test_and_bound_the_rate_by_their_answers(self):
        # Each answer takes 500 * 20 ms.
        bound = bound_requests_per_s(a_replica(), a_workload(), an_slo(tpot_s=0.020))

        assert bound == pytest.approx(84.662 / 10, rel=1e-4)

    def test_the_cache_leaves_152_of_which_one_in_501_is_in_prefill(self):
        # 50 GB over 157 blocks of 16 tokens: 151.859. Steps of 5.3333 + 151.556 * 0.173227 ms.
        name, num_decoding = most_decoding(a_replica(), a_workload())

        assert (name, num_decoding) == ("KVCache", pytest.approx(151.859 * 500 / 501, rel=1e-5))
        assert top_requests_per_s(a_replica(), a_workload()) == pytest.approx(9.5961, rel=1e-4)

    def test_the_shortest_of_several_targets_counts(self):
        targets = (Target(quantile=0.5, limit_s=0.020), Target(quantile=0.99, limit_s=0.1))

        assert tpot_ceiling(a_replica(), a_workload(), Slo(tpot=targets)) == pytest.approx(
            84.662, rel=1e-4
        )

    def test_drafts_take_their_tokens_of_the_budget(self):
        # Of each sequence 4 tokens to verify, and 2,000 prompt tokens in its steps.
        drafts = Speculation(method="ngram", num_draft_tokens=3, acceptance_rate=0.5)
        replica = a_replica(max_batched_tokens=500, speculation=drafts)

        name, num_decoding = most_decoding(replica, a_workload())

        assert name == "BatchedTokens"
        assert num_decoding == pytest.approx(500 / (4 + 2_000 / drafts.steps(500)))

    def test_every_rank_has_slots_and_a_budget_of_its_own(self):
        ranks = a_shard(parallelism=Parallelism(data=4))

        assert most_decoding(a_replica(shard=ranks, max_num_seqs=16), a_workload()) == (
            "MaxNumSeqs",
            pytest.approx(64 * 500 / 501),
        )
        assert most_decoding(a_replica(shard=ranks, max_batched_tokens=100), a_workload()) == (
            "BatchedTokens",
            pytest.approx(400 / 5),
        )

    def test_prompts_of_several_chunks_hold_their_slot_for_each(self):
        # 2,000 tokens in what n sequences leave of 520: n * (1 + 2,000 / (520 - n) / 500) = 21.
        replica = a_replica(max_batched_tokens=520, max_num_seqs=21)

        name, num_decoding = most_decoding(replica, a_workload())

        assert (name, num_decoding) == ("MaxNumSeqs", pytest.approx(20.8332, rel=1e-5))
        assert num_decoding * (1 + 4 / (520 - num_decoding)) == pytest.approx(21)

    def test_four_ranks_verify_four_budgets_of_drafts_at_most(self):
        drafts = Speculation(method="ngram", num_draft_tokens=3, acceptance_rate=0.5)
        ranks = a_shard(parallelism=Parallelism(data=4))
        replica = a_replica(shard=ranks, max_batched_tokens=500, speculation=drafts)

        assert state_at(replica, a_workload(), 1e6).num_decoding == 4 * 500 / 4
        assert tpot_ceiling(replica, a_workload(), an_slo(tpot_s=60)) == 4 * 500 / 4

    def test_prompts_lengthen_a_step_by_the_rest_of_its_budget_at_most(self):
        # 100 sequences of 2,250 tokens take 5.3333 + 9.8304 ms, their 100 tokens and one of a
        # prompt 1.1 ms; the 400 of prompts that come for them would take 6.4 ms more.
        small = a_replica(max_batched_tokens=100)

        assert tpot_ceiling(small, a_workload(), an_slo(tpot_s=0.0163)) == 100
        assert tpot_ceiling(small, a_workload(), an_slo(tpot_s=0.0162)) == pytest.approx(
            99.34, abs=0.01
        )
        assert tpot_ceiling(a_replica(), a_workload(), an_slo(tpot_s=0.0226)) < 100
