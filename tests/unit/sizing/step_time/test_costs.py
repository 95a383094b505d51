"""The figures that the engine adds up against the formula that they are taken from."""

import random
from dataclasses import replace

import pytest

from builders import a_model, a_shard
from stepping import a_catalog_model, engine_step_s
from tonnage.sizing.options import Speculation
from tonnage.sizing.parallelism.kv import KvShare
from tonnage.sizing.parallelism.shard import ExpertShare
from tonnage.sizing.split import Parallelism
from tonnage.sizing.step_time.model import _geometric, step_costs
from tonnage.sizing.step_time.step import Step
from tonnage.units import GB

DENSE = a_catalog_model("Llama-3.1-8B-Instruct")
EXPERTS = a_catalog_model("Mixtral-8x7B-Instruct-v0.1", split=Parallelism(tensor=2))
KINDS = {
    "dense": DENSE,
    "dense over four": a_catalog_model("Llama-3.3-70B-Instruct", split=Parallelism(tensor=4)),
    "experts": EXPERTS,
    "window": a_catalog_model("gemma-3-27b-it"),
    "hybrid": a_catalog_model("Qwen3-Next-80B-A3B-Instruct", split=Parallelism(tensor=4)),
    "sparse": a_catalog_model("DeepSeek-V3.2", gpu="H200", split=Parallelism(tensor=8)),
    "textbook": a_model(),
}
CONTEXTS = (1_000, 4_096, 16_000, 128_000)


def formula_s(model, contexts, **changes):
    """Return the step by the formula, which takes the mean context for all."""
    step = Step(num_sequences=len(contexts), context_tokens=sum(contexts), **changes)
    return model.step(step).total_s


def relative(figure_s, expected_s):
    return abs(figure_s / expected_s - 1)


@pytest.fixture(params=KINDS, scope="module")
def model(request):
    return KINDS[request.param]


@pytest.mark.parametrize("context", CONTEXTS)
def test_one_sequence_takes_the_step_of_the_formula(model, context):
    assert engine_step_s(model, [context]) == pytest.approx(formula_s(model, [context]), rel=1e-9)


@pytest.mark.parametrize("context", CONTEXTS)
def test_sequences_of_one_length_take_it_exactly_where_figures_are_taken(model, context):
    for number in _geometric(128, 1.15):
        if number:
            found_s = engine_step_s(model, [context] * number, max_num_seqs=128)
            assert found_s == pytest.approx(formula_s(model, [context] * number), rel=1e-9)


def test_and_within_two_thousandths_between(model):
    for number in range(1, 257):
        found_s = engine_step_s(model, [2_000] * number, max_num_seqs=256)
        assert relative(found_s, formula_s(model, [2_000] * number)) <= 0.002, number


def test_contexts_that_differ_take_what_their_mean_does_where_all_is_read(model):
    contexts = [500, 1_500, 3_000, 11_000]
    is_linear = len(step_costs(model, max_num_seqs=4, max_batched_tokens=8192).knots_tokens) == 1

    found_s, mean_s = engine_step_s(model, contexts), formula_s(model, contexts)

    if is_linear:
        assert found_s == pytest.approx(mean_s, rel=1e-9)
    else:  # a concave price: of the mean context it is higher than in the mean
        assert mean_s * 0.9 <= found_s <= mean_s * (1 + 1e-9)


@pytest.mark.parametrize("prompt", [1, 100, 1_024, 8_000])
@pytest.mark.parametrize("beside", [0, 1, 3, 40])
def test_a_prompt_takes_what_the_formula_says_within_a_hundredth(model, prompt, beside):
    contexts = [2_000] * beside
    earlier = prompt / 2

    found_s = engine_step_s(model, contexts, prompts=[prompt], max_num_seqs=64)

    expected_s = formula_s(
        model, contexts, prefill_tokens=prompt, prefill_context_tokens=earlier, prefill_ranks=1
    )
    assert relative(found_s, expected_s) <= 0.01


def test_with_fewer_sequences_than_stages_a_context_is_read_once_on_each():
    model = a_model(shard=a_shard(parallelism=Parallelism(pipeline=4)))

    # One sequence of 10,000 tokens: 16 GB of weights and its cache, on four stages in turn.
    by_hand_s = 4 * (16e9 + 10_000 * 131_072) / 3e12
    assert engine_step_s(model, [10_000]) == pytest.approx(by_hand_s)
    for number in (1, 2, 3, 4, 5, 12):
        contexts = [10_000] * number
        assert engine_step_s(model, contexts, max_num_seqs=12) == pytest.approx(
            formula_s(model, contexts)
        )


class TestDataParallelRanks:
    SHARD = a_shard(
        parallelism=Parallelism(data=8),
        experts=(
            ExpertShare(
                num_experts=128, experts_per_token=8, resident_bytes=8 * GB, flop_per_token=10e9
            ),
        ),
        num_moe_layers=30,
    )
    MODEL = a_model(shard=SHARD)

    def test_share_sequences_out(self):
        contexts = [4_000] * 64

        assert engine_step_s(self.MODEL, contexts, max_num_seqs=64) == pytest.approx(
            formula_s(self.MODEL, contexts), rel=0.002
        )

    def test_wait_for_the_one_that_has_a_prompt(self):
        contexts = [4_000] * 8
        alone_s = engine_step_s(self.MODEL, contexts, prompts=[4_000], max_num_seqs=64)
        expected_s = formula_s(
            self.MODEL,
            contexts,
            prefill_tokens=4_000,
            prefill_context_tokens=2_000,
            prefill_ranks=1,
        )

        assert alone_s == pytest.approx(expected_s, rel=0.01)

    def test_take_a_prompt_on_each_in_less_than_one_after_another(self):
        prompts = [1_000] * 8
        found_s = engine_step_s(self.MODEL, prompts=prompts, max_num_seqs=64)
        expected_s = formula_s(
            self.MODEL, [], prefill_tokens=8_000, prefill_context_tokens=500, prefill_ranks=8
        )

        assert found_s == pytest.approx(expected_s, rel=0.01)
        one_s = engine_step_s(self.MODEL, prompts=prompts[:1], max_num_seqs=64)
        assert found_s < 8 * one_s


def test_the_passes_of_a_draft_layer_are_in_it():
    drafts = Speculation(method="mtp", num_draft_tokens=3, acceptance_rate=0.8)
    draft = a_shard(dense_read_bytes=1e9, kv=(KvShare(bytes_per_token=4_096),), num_layers=1)
    model = a_model(shard=a_shard(draft=draft), speculation=drafts)

    # 16 GB, twice 1 GB more, and of 20 sequences 131,072 and twice 4,096 bytes for each token.
    by_hand_s = (16e9 + 2e9 + 20 * 5_000 * (131_072 + 2 * 4_096)) / 3e12
    assert formula_s(model, [5_000] * 20) == pytest.approx(by_hand_s)
    assert engine_step_s(model, [5_000] * 20, max_num_seqs=64) == pytest.approx(by_hand_s)


@pytest.mark.parametrize("power", [None, 1.0, 3.0])
def test_reads_and_work_overlap_as_the_formula_lets_them(power):
    busy = a_shard(kv=(KvShare(bytes_per_token=131_072, flop_per_pair=5e8),))
    model = a_model(shard=busy, constants=replace(a_model().constants, overlap_power=power))
    for number, context in ((1, 30_000), (20, 500), (20, 30_000), (200, 100), (200, 4_000)):
        contexts = [context] * number

        found_s = engine_step_s(model, contexts, max_num_seqs=256)

        assert relative(found_s, formula_s(model, contexts)) <= 0.002, (number, context)


def test_a_rank_with_longer_contexts_is_the_one_that_counts():
    model = a_model(shard=a_shard(parallelism=Parallelism(data=2)))

    # Sequences go to the two ranks in turn: one has 30,000 tokens of cache to read, one 2,000.
    found_s = engine_step_s(model, [30_000, 2_000])

    assert found_s == pytest.approx((16e9 + 30_000 * 131_072) / 3e12)


def test_more_slots_change_nothing_of_a_step(model):
    few = engine_step_s(model, [3_000] * 4, max_num_seqs=4)
    many = engine_step_s(model, [3_000] * 4, max_num_seqs=64)

    assert few == pytest.approx(many, rel=1e-9)


def test_random_batches_of_a_dense_model_take_the_step_of_the_formula():
    chance = random.Random(1)  # noqa: S311
    for _ in range(50):
        contexts = [chance.randint(1, 100_000) for _ in range(chance.randint(1, 100))]

        found_s = engine_step_s(DENSE, contexts, max_num_seqs=128)

        assert relative(found_s, formula_s(DENSE, contexts)) <= 0.002
