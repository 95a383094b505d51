"""The parts of the memory budget: how far each may be off, and whose weights it is about."""

from dataclasses import replace

import pytest

from builders import a_layer_group, a_shape, a_sizing_request, an_expert_ffn
from tonnage.catalog.config.formats.quantization import BF16, FP16, WEIGHT_FORMATS
from tonnage.catalog.gpu import built_in_gpus
from tonnage.catalog.models import built_in_model, model_names
from tonnage.catalog.stored_weights import StoredPart, StoredWeights
from tonnage.sizing.memory.budget import (
    UNCOUNTED_ENCODER_BYTES,
    as_loaded,
    board_parts,
    memory_budget,
    total_more_bytes,
)
from tonnage.sizing.memory.ceiling import BudgetPart, GivenPool, MemoryBudget
from tonnage.sizing.parallelism.shard import shard_of
from tonnage.sizing.request import Flags
from tonnage.sizing.split import Parallelism
from tonnage.units import GIB

FP8 = WEIGHT_FORMATS["fp8"]
A_GIB = StoredPart(num_bytes=int(GIB), num_tensors=1)


def budget_of(shape, *, weights=BF16, tensor=1):
    request = a_sizing_request(shape=shape, weights=weights)
    flags = Flags(
        max_num_seqs=256,
        max_num_batched_tokens=8192,
        gpu_memory_utilization=0.9,
        parallelism=Parallelism(tensor=tensor),
    )
    shard = shard_of(shape, weights=weights, kv_element_bytes=2, parallelism=flags.parallelism)
    return memory_budget(request, shard, flags)


def part_of(shape, name, **asked):
    return next(part for part in budget_of(shape, **asked).parts if part.name == name)


def mixture():
    ffn = an_expert_ffn(num_experts=128, experts_per_token=8, expert_intermediate_size=1536)
    return a_shape(groups=(a_layer_group(ffn=ffn),))


def test_experts_quantized_at_load_have_the_buffers_of_narrow_experts():
    in_files = replace(mixture(), weight_format=FP8)

    asked, stored, wide = (
        part_of(shape, "activations", weights=weights).num_bytes
        for shape, weights in ((mixture(), FP8), (in_files, FP8), (mixture(), BF16))
    )

    assert asked == stored
    assert asked < wide


def test_files_say_nothing_about_weights_that_are_quantized_at_load():
    shape = a_shape(stored=StoredWeights(attention=A_GIB))

    assert as_loaded(shape, FP8).stored is None
    assert as_loaded(shape, FP16) is shape


def test_weights_summed_up_from_files_are_surer_than_counted_ones():
    counted = part_of(a_shape(), "weights")
    summed = part_of(a_shape(stored=StoredWeights(attention=A_GIB)), "weights")

    assert counted.spread_bytes == pytest.approx(0.01 * counted.num_bytes)
    assert summed.spread_bytes == pytest.approx(0.002 * summed.num_bytes)


def test_an_encoder_that_cannot_be_counted_makes_the_weights_unsure():
    shape = a_shape(num_uncounted_encoders=1)

    assert part_of(shape, "weights").spread_bytes >= UNCOUNTED_ENCODER_BYTES


def test_but_for_one_no_encoder_is_larger_than_one_that_cannot_be_counted():
    others = [name for name in model_names() if name != "stepfun-ai/step3"]
    sizes = [2 * built_in_model(name).encoder_parameters for name in others]

    assert max(sizes) <= UNCOUNTED_ENCODER_BYTES


def test_what_splitting_a_tower_would_spare_is_within_the_spread():
    shape = a_shape(encoder_parameters=1_000_000_000)

    assert part_of(shape, "weights", tensor=4).spread_bytes >= 2e9 * 3 / 4


def test_a_tower_in_the_files_counts_though_the_configuration_is_silent():
    without = a_shape(stored=StoredWeights())
    with_encoder = a_shape(stored=StoredWeights(encoders=A_GIB))

    more = budget_of(with_encoder).bytes_of("weights") - budget_of(without).bytes_of("weights")

    assert more == GIB


def test_drafts_and_what_is_never_loaded_take_nothing():
    without = a_shape(stored=StoredWeights())
    idle = a_shape(stored=StoredWeights(draft=A_GIB, skipped=A_GIB))

    assert budget_of(idle).bytes_of("weights") == budget_of(without).bytes_of("weights")


def a_budget(*parts, **changes):
    return MemoryBudget(
        **{
            "total_bytes": 100 * GIB,
            "utilization_fraction": 0.9,
            "parts": (BudgetPart(name="weights", num_bytes=40 * GIB), *parts),
            **changes,
        }
    )


def test_a_part_that_may_be_larger_moves_only_the_low_end():
    budget = a_budget(BudgetPart(name="x", num_bytes=0, spread_bytes=3 * GIB, more_bytes=4 * GIB))

    assert budget.kv_pool_low_bytes == pytest.approx(46 * GIB)
    assert budget.kv_pool_high_bytes == pytest.approx(53 * GIB)


def test_a_board_that_reports_more_moves_only_the_high_end():
    # 0.9 of 10 GiB more.
    budget = a_budget(total_spread_bytes=1 * GIB, total_more_bytes=10 * GIB)

    assert budget.kv_pool_low_bytes == pytest.approx(49 * GIB)
    assert budget.kv_pool_high_bytes == pytest.approx(59 * GIB)


def test_the_part_that_decides_the_range_is_named():
    small = BudgetPart(name="small", num_bytes=0, spread_bytes=1 * GIB)
    large = BudgetPart(name="large", num_bytes=0, less_bytes=4 * GIB, cause="a flag")

    assert a_budget(small, large).widest is large
    assert a_budget(small, large, total_spread_bytes=3 * GIB).widest is None
    assert a_budget().widest is None


def test_a_given_cache_has_neither_range_nor_cause():
    given = GivenPool(flag="--flag", num_bytes=5 * GIB)
    budget = a_budget(BudgetPart(name="x", num_bytes=0, more_bytes=GIB), given_pool=given)

    assert budget.kv_pool_low_bytes == budget.kv_pool_high_bytes == 5 * GIB
    assert budget.widest is None


def test_an_encoder_may_need_more_than_the_text_part():
    # 16,384 tokens of 100,000 bytes, and what they become: 4096 elements of two bytes.
    shape = a_shape(
        encoder_token_bytes=100_000, encoder_item_tokens=16_384, hidden_size=4096, vocab_size=1000
    )

    part = part_of(shape, "activations")

    assert part.num_bytes + part.more_bytes == 16_384 * (100_000 + 2 * 4096)
    assert part.cause == "the profile run of its encoder"


def test_a_sampler_may_need_less_where_the_version_does_not_settle_it():
    # 256 slots of 500,000 logits of four bytes: 1.5 copies instead of 3.6.
    shape = a_shape(vocab_size=2_000_000, groups=(a_layer_group(),))

    part = part_of(shape, "activations")

    assert part.less_bytes == pytest.approx((3.608 - 1.5) * 256 * 2_000_000 * 4, rel=0.001)


def test_memory_shared_with_the_host_may_hold_the_files_of_the_weights():
    spark, h100 = built_in_gpus()["GB10"], built_in_gpus()["H100"]

    (host,) = board_parts(spark, 20 * GIB)

    assert (host.num_bytes, host.more_bytes) == (0, 20 * GIB)
    assert board_parts(h100, 20 * GIB) == ()


def test_a_consumer_board_may_report_all_of_its_memory():
    # 24 GiB under WSL, 23.53 without.
    assert total_more_bytes(built_in_gpus()["RTX-4090"]) == pytest.approx(0.47 * GIB, rel=0.02)
    assert total_more_bytes(built_in_gpus()["L4"]) == 0


def test_experts_in_mxfp4_may_not_be_padded():
    shape = built_in_model("openai/gpt-oss-120b")

    part = part_of(shape, "weights", weights=shape.weight_format)

    assert part.num_bytes - part.less_bytes == pytest.approx(64.4 * GIB, rel=0.005)
