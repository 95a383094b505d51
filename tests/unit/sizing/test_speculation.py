"""Speculation: what draft tokens cost and bring, by hand and by publication."""

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import a_model, a_replica, a_shard, a_sizing_request, a_workload, an_slo
from strategies import numbers
from tonnage.catalog.gpu import built_in_gpus, find_gpu
from tonnage.catalog.models import built_in_model
from tonnage.sizing.errors import (
    DoesNotFitError,
    InvalidParallelismError,
    InvalidSpeculationError,
)
from tonnage.sizing.options import Speculation
from tonnage.sizing.parallelism.draft import rank_of
from tonnage.sizing.plan import size_with
from tonnage.sizing.search import size
from tonnage.sizing.serving.replica import steady_state
from tonnage.sizing.split import Parallelism
from tonnage.sizing.step_time.step import Step
from tonnage.sizing.workload import Demand, Lengths

rates = numbers(0, 1)
drafts = st.integers(1, 8)


def speculating(tokens=3, rate=0.8, method="ngram"):
    return Speculation(method=method, num_draft_tokens=tokens, acceptance_rate=rate)


def a_request_of(model, *, gpu="H200", **changes):
    shape = built_in_model(model)
    return a_sizing_request(
        shape=shape, weights=shape.weight_format, gpu=find_gpu(gpu, built_in_gpus()), **changes
    )


class TestTokensPerStep:
    @pytest.mark.parametrize(
        ("tokens", "rate", "expected"),
        [(1, 0.85, 1.85), (3, 0.8, 1 + 0.8 + 0.64 + 0.512), (5, 0, 1), (5, 1, 6)],
    )
    def test_counts_the_draft_tokens_up_to_the_first_rejected_and_one_more(
        self, tokens, rate, expected
    ):
        found = speculating(tokens, rate).tokens_per_step

        assert found == pytest.approx(expected)

    def test_never_make_an_answer_in_less_than_a_step(self):
        assert speculating(16, 1).steps(1) == speculating(3, 0.8).steps(1) == 1

    @given(drafts, rates)
    def test_is_what_drawing_them_gives(self, tokens, rate):
        chance = random.Random(1)  # noqa: S311
        drawn = [1 + accepted(tokens, rate, chance) for _ in range(2000)]

        expected = speculating(tokens, rate).tokens_per_step
        assert sum(drawn) / len(drawn) == pytest.approx(expected, rel=0.12)


class TestDraftLayers:
    def test_of_deepseek_v3_are_as_large_as_its_authors_say(self):
        # "11.5B unique parameters" of the multi-token prediction module, beside 671B; fp8, with
        # the matrix that joins in 16 bits.
        plain = a_request_of("DeepSeek-V3", kv_format="bf16")
        one_gpu = Parallelism()

        added = (
            rank_of(replace(plain, speculation=speculating(1, method="mtp")), one_gpu).weights_bytes
            - rank_of(plain, one_gpu).weights_bytes
        )

        assert added == pytest.approx(11.5e9, rel=0.02)

    def test_keep_a_cache_of_their_own(self):
        # 61 layers and one for drafting: each adds (512 + 64) elements of two bytes a token.
        request = a_request_of("DeepSeek-V3", speculation=speculating(1, method="mtp"))

        rank = rank_of(request, Parallelism(tensor=8))

        assert sum(share.bytes_per_token for share in rank.kv) == 62 * 576 * 2

    def test_run_once_for_each_draft_token(self):
        one, three = (
            a_model(shard=with_draft(), speculation=speculating(tokens)).step(a_step())
            for tokens in (1, 3)
        )

        # The first pass is part of the step; each further one reads 1 GB at 3 TB/s.
        assert one.draft_s == 0
        assert three.draft_s == pytest.approx(2 * 1e9 / 3e12)
        assert three.decode_bytes - one.decode_bytes == pytest.approx(2e9)

    @pytest.mark.parametrize(
        ("model", "speculation", "words"),
        [
            ("Llama-3.1-8B-Instruct", speculating(1, method="mtp"), "no draft layers"),
            ("MiniMax-M2.5", speculating(4, method="mtp"), "4 tokens of 3 draft layers"),
            ("DeepSeek-V4-Flash", speculating(1, method="mtp"), "compressed attention"),
        ],
    )
    def test_that_are_missing_or_not_understood_are_refused_by_name(
        self, model, speculation, words
    ):
        request = a_request_of(model, speculation=speculation, kv_format="fp8")

        with pytest.raises(InvalidSpeculationError, match=words):
            size(request)

    def test_of_a_model_that_does_not_fit_leave_the_reason_as_it_is(self):
        request = a_request_of("DeepSeek-V3", gpu="L4", speculation=speculating(1, method="mtp"))

        with pytest.raises(DoesNotFitError, match="GiB"):
            size(request)

    def test_are_not_planned_for_in_a_pipeline(self):
        request = a_sizing_request(speculation=speculating())

        with pytest.raises(InvalidParallelismError, match="PP2"):
            size_with(request, Parallelism(pipeline=2))


def a_step(**changes):
    return replace(Step(num_sequences=10, context_tokens=0), **changes)


def with_draft():
    """``a_shard``, and a draft layer of 1 GB."""
    return a_shard(draft=a_shard(dense_read_bytes=1e9, kv=(), num_layers=1))


class TestStep:
    def test_shares_the_reads_among_the_tokens_verified_and_not_the_work(self):
        step = Step(num_sequences=10, context_tokens=20_000)
        plain, verified = a_model(), a_model(speculation=speculating(3))

        assert verified.step(step).decode_bytes == plain.step(step).decode_bytes
        assert verified.step(step).decode_flop == 4 * plain.step(step).decode_flop

    def test_leaves_less_of_the_budget_for_prompts(self):
        replica = a_replica(speculation=speculating(3), max_batched_tokens=1000)

        assert replica.prefill_room(200) == 1000 - 200 * 4


class TestSteadyState:
    def test_makes_more_tokens_of_the_same_steps(self):
        # Memory-bound: a step takes as long as without, and gives 2.952 tokens.
        workload = a_workload(prompt=Lengths(mean_tokens=1), output_tokens=500)
        plain = steady_state(a_replica(), workload, 10)
        faster = steady_state(a_replica(speculation=speculating(3)), workload, 10)

        assert faster.step_s == pytest.approx(plain.step_s, rel=1e-3)
        assert faster.tpot_s == pytest.approx(plain.tpot_s / 2.952, rel=1e-3)
        # The last step of an answer gives more than is asked: 0.8 tokens of 500.
        ratio = faster.requests_per_s / plain.requests_per_s
        assert ratio == pytest.approx(2.952 * 500 / 500.8, rel=1e-3)

    @given(drafts, rates, rates, numbers(1, 200))
    def test_is_never_slower_for_more_that_is_right(self, tokens, one, other, num_decoding):
        low, high = sorted((one, other))
        slow, fast = (
            steady_state(
                a_replica(shard=with_draft(), speculation=speculating(tokens, rate)),
                a_workload(),
                num_decoding,
            )
            for rate in (low, high)
        )

        assert fast.requests_per_s >= slow.requests_per_s * (1 - 1e-9)

    @given(drafts, numbers(1, 200))
    def test_of_drafts_that_are_all_rejected_is_never_faster_than_none(self, tokens, num_decoding):
        wrong = a_replica(shard=with_draft(), speculation=speculating(tokens, 0))

        none = steady_state(a_replica(), a_workload(), num_decoding)
        assert steady_state(wrong, a_workload(), num_decoding).step_s >= none.step_s * (1 - 1e-9)


class TestPlan:
    def test_of_good_drafts_needs_fewer_replicas(self):
        slo = an_slo(ttft_s=4, tpot_s=0.025)
        demand = Demand(requests_per_s=60)
        request = a_request_of("DeepSeek-V3", slo=slo, demand=demand)
        split = Parallelism(tensor=8)

        plain = size_with(request, split)
        drafted = size_with(replace(request, speculation=speculating(1, 0.85, method="mtp")), split)

        assert drafted.replicas < plain.replicas

    def test_leaves_slots_that_the_token_budget_can_verify(self):
        sizing = size(a_sizing_request(speculation=speculating(16, 0.9), slo=an_slo()))

        assert sizing.flags.max_num_seqs * 17 <= sizing.flags.max_num_batched_tokens


def accepted(tokens, rate, chance):
    count = 0
    while count < tokens and chance.random() < rate:
        count += 1
    return count
