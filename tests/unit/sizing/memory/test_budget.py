"""The parts of the memory budget: how far each may be off, and whose weights it is about."""

from dataclasses import replace

import pytest

from builders import a_layer_group, a_shape, a_sizing_request, an_expert_ffn
from tonnage.catalog.cache_types import CACHE_TYPES
from tonnage.catalog.config.formats.quantization import BF16, FP16, WEIGHT_FORMATS
from tonnage.catalog.engine import known_engine
from tonnage.catalog.gpu import built_in_gpus
from tonnage.catalog.models import built_in_model, model_names
from tonnage.catalog.parameters import counted_bytes
from tonnage.catalog.shape import StoredWeights
from tonnage.sizing.memory.budget import (
    UNCOUNTED_ENCODER_BYTES,
    activations_part,
    as_loaded,
    board_parts,
    encoder_peak_bytes,
    memory_budget,
    total_more_bytes,
    unsaid_bytes,
)
from tonnage.sizing.memory.ceiling import BudgetPart, GivenPool, MemoryBudget, Server, graphs_part
from tonnage.sizing.parallelism.shard import shard_of
from tonnage.sizing.request import Flags
from tonnage.sizing.split import Parallelism
from tonnage.units import GIB

FP8 = WEIGHT_FORMATS["fp8"]
A_GIB = int(GIB)


def budget_of(shape, *, weights=BF16, tensor=1):
    request = a_sizing_request(shape=shape, weights=weights)
    flags = Flags(
        max_num_seqs=256,
        max_num_batched_tokens=8192,
        gpu_memory_utilization=0.9,
        parallelism=Parallelism(tensor=tensor),
    )
    shard = shard_of(shape, weights=weights, parallelism=flags.parallelism)
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


def test_what_is_held_and_not_counted_has_to_fit_beside_a_given_cache():
    graphs = BudgetPart(name="graphs", num_bytes=0, uncounted_bytes=2 * GIB)
    given = GivenPool(flag="--flag", num_bytes=5 * GIB)
    alone, beside = (a_budget(*parts, given_pool=given) for parts in ((), (graphs,)))

    assert beside.unused_bytes == alone.unused_bytes - 2 * GIB
    assert a_budget(graphs).kv_pool_bytes == a_budget().kv_pool_bytes
    assert "2.0 GiB graphs" in str(beside)


def an_encoder(**changes):
    return a_shape(
        encoder_token_bytes=20_000, encoder_split_token_bytes=80_000, encoder_item_tokens=16_384,
        hidden_size=4096, vocab_size=1000, **changes,
    )  # fmt: skip


def test_an_encoder_may_need_more_than_the_text_part():
    # 16,384 tokens of 20,000 bytes on every rank, and of 80,000 that two ranks split.
    (one, two) = (part_of(an_encoder(), "activations", tensor=tensor) for tensor in (1, 2))

    counts = 256 * 1000 * 4 * (1 + 1 / 32)
    assert one.num_bytes - counts == 16_384 * (20_000 + 80_000)
    assert two.num_bytes - counts == 16_384 * (20_000 + 40_000)
    assert one.cause == "the profile run of its encoder"


def test_what_an_encoder_makes_stays_beside_the_text_part():
    small = replace(an_encoder(), encoder_token_bytes=1, encoder_split_token_bytes=0)
    without = replace(an_encoder(), encoder_token_bytes=0, encoder_item_tokens=0)

    more = part_of(small, "activations").num_bytes - part_of(without, "activations").num_bytes

    assert more == 16_384 * 4096 * 2  # of two bytes each


def test_a_large_token_budget_profiles_as_many_images_as_it_holds():
    flags = flags_of(max_num_batched_tokens=40_000)

    assert encoder_peak_bytes(an_encoder(), flags) == 2 * 16_384 * 100_000


def flags_of(**changes):
    return Flags(
        **{
            "max_num_seqs": 1024,
            "max_num_batched_tokens": 8192,
            "gpu_memory_utilization": 0.9,
            "parallelism": Parallelism(),
            **changes,
        }
    )


@pytest.mark.parametrize(
    ("version", "model", "copies", "least", "counts"),
    [
        ("0.21", "Qwen/Qwen3-8B", 3.608, 1.5, 0),
        ("0.22", "Qwen/Qwen3-8B", 1.5, 1.5, 0),
        ("0.22", "meta-llama/Llama-3.1-8B-Instruct", 3.608, 1.5, 0),
        ("0.25", "meta-llama/Llama-3.1-8B-Instruct", 1.5, 1.5, 0),
        ("0.26", "meta-llama/Llama-3.1-8B-Instruct", 0.5, 0.5, 0),
        ("0.27", "meta-llama/Llama-3.1-8B-Instruct", 0.5, 0.5, 1),
        ("0.28", "Qwen/Qwen3-30B-A3B", 3.608, 1.5, 0),
        ("0.29", "Qwen/Qwen3-30B-A3B", 0.5, 0.5, 1),
        ("0.33", "Qwen/Qwen3-30B-A3B", 3.5, 1.5, 1),
    ],
)
def test_the_second_runner_keeps_counts_and_fewer_copies_of_the_logits(
    version, model, copies, least, counts
):
    # Slots enough for the logits to decide: 65,536, with a budget of as many tokens' 64th part.
    shape, flags = built_in_model(model), flags_of(max_num_seqs=65_536)

    part = activations_part(shape, flags, a_server(version))

    logits_bytes = 65_536 * shape.vocab_size * 4
    beside = part.num_bytes / logits_bytes - counts * (1 + 1 / 32)
    assert beside == pytest.approx(copies, abs=0.04)
    assert part.less_bytes == pytest.approx((copies - least) * logits_bytes, rel=0.001)


def test_quantized_weights_keep_the_first_runner_before_0_24():
    (serves,) = (known_engine("0.23").second_runner.serves,)
    shape = built_in_model("Qwen/Qwen3-8B")

    assert serves(shape)
    assert not serves(replace(shape, weight_format=FP8))


def a_server(version, gpu="H100", cache="bf16", **changes):
    board = built_in_gpus()[gpu]
    return Server(engine=known_engine(version), gpu=board, cache=CACHE_TYPES[cache], **changes)


def graphs_of(version="0.30", gpu="H100", cache="bf16", **changes):
    shape = built_in_model("Qwen/Qwen3-30B-A3B")
    return graphs_part(shape, flags_of(**changes), a_server(version, gpu, cache))


def test_fewer_slots_have_fewer_graphs_and_older_versions_set_none_aside():
    # 51 sizes up to 512 tokens, 83 up to 1,024; 1, 2, 4, 8 and 16 for eight slots.
    whole = graphs_of()

    assert graphs_of(max_num_seqs=8).num_bytes == pytest.approx(whole.num_bytes * 5 / 51)
    assert graphs_of(max_num_seqs=8).spread_bytes == whole.spread_bytes / 2
    assert graphs_of("0.19").num_bytes == 0


@pytest.mark.parametrize(
    ("version", "sets_aside"), [("0.26", False), ("0.28", False), ("0.29", True)]
)
def test_the_second_runner_set_nothing_aside_for_graphs_at_first(version, sets_aside):
    shape = built_in_model("Qwen/Qwen3-8B")

    part = graphs_part(shape, flags_of(), a_server(version))

    assert (part.num_bytes > 0, part.uncounted_bytes > 0) == (sets_aside, not sets_aside)
    assert part.num_bytes + part.uncounted_bytes == graphs_of(version).num_bytes or sets_aside
    assert graphs_part(shape, flags_of(), a_server(version, is_eager=True)).num_bytes == 0


@pytest.mark.parametrize(("version", "is_first"), [("0.26", True), ("0.29", True), ("0.30", False)])
def test_drafts_by_ngram_keep_the_first_runner_until_the_second_has_them(version, is_first):
    runner = a_server(version, drafts_by_ngram=True).runner_of(built_in_model("Qwen/Qwen3-8B"))

    assert (runner is None) == is_first
    assert a_server(version).runner_of(built_in_model("Qwen/Qwen3-8B"))


def test_with_few_slots_the_kernel_that_is_timed_first_holds_the_most():
    # A table of 151,936 x 4096 in 16 bits, and two results of 1024 tokens.
    shape, flags = (
        built_in_model("Qwen/Qwen3-8B"),
        flags_of(max_num_seqs=64, max_num_batched_tokens=1024),
    )

    part = activations_part(shape, flags, a_server("0.26"))
    eager = activations_part(shape, flags, a_server("0.26", is_eager=True))

    assert part.num_bytes == 151_936 * 4096 * 2 + 2 * 1024 * 4096 * 2
    assert part.cause == "kernels compiled before"
    assert part.less_bytes > part.num_bytes / 2
    assert eager.num_bytes == pytest.approx(part.num_bytes - part.less_bytes)


def test_flashinfer_works_in_memory_that_the_estimate_of_graphs_holds():
    # 394 MiB, or from 0.26 on 16 bytes for each element of all queries: 8192 tokens of 32 x 128.
    plain = graphs_of(gpu="RTX-3090").num_bytes

    older = graphs_of("0.25", gpu="RTX-3090", cache="fp8").num_bytes - plain
    newer = graphs_of(gpu="RTX-3090", cache="fp8").num_bytes - plain

    assert older == pytest.approx(394 * 2**20)
    assert newer == pytest.approx(8192 * 32 * 128 * 16)
    assert graphs_of(cache="fp8").num_bytes == plain  # Hopper: FlashAttention has them


def test_blackwell_has_larger_graphs_from_0_29_on():
    workspace = 8192 * 32 * 128 * 16
    measured = known_engine("0.30").memory.graphs_bytes.value

    assert graphs_of("0.28", gpu="B200").num_bytes == pytest.approx(measured + workspace)
    assert graphs_of("0.29", gpu="B200").num_bytes == pytest.approx(measured * 83 / 51 + workspace)


def test_a_checkpoint_that_does_not_say_what_it_leaves_out_may_be_larger():
    # Attention of four layers in 16 bits in place of half a byte and its scales.
    int4, said = WEIGHT_FORMATS["int4"], replace(WEIGHT_FORMATS["int4"], says_unquantized=True)
    one, two = replace(mixture(), weight_format=int4), Parallelism(tensor=2)

    whole = unsaid_bytes(one, Parallelism())

    attention = counted_bytes(replace(one, weight_format=BF16))["attention"]
    assert whole == pytest.approx(attention * (1 - int4.bytes_per_parameter / 2))
    assert unsaid_bytes(one, two) == whole / 2
    assert unsaid_bytes(replace(one, weight_format=said), two) == 0
    assert unsaid_bytes(replace(a_shape(), weight_format=int4), two) == 0  # dense: all of it is


@pytest.mark.parametrize(("version", "more_bytes"), [("0.11", 20 * GIB), ("0.12", 0)])
def test_memory_shared_with_the_host_may_hold_the_files_of_the_weights(version, more_bytes):
    spark, h100 = built_in_gpus()["GB10"], built_in_gpus()["H100"]

    (host,) = board_parts(spark, 20 * GIB, known_engine(version))

    assert (host.num_bytes, host.more_bytes) == (0, more_bytes)
    assert board_parts(h100, 20 * GIB, known_engine(version)) == ()


def test_a_consumer_board_may_report_all_of_its_memory():
    # 24 GiB under WSL, 23.53 without.
    assert total_more_bytes(built_in_gpus()["RTX-4090"]) == pytest.approx(0.47 * GIB, rel=0.02)
    assert total_more_bytes(built_in_gpus()["L4"]) == 0


def test_experts_in_mxfp4_may_not_be_padded():
    shape = built_in_model("openai/gpt-oss-120b")

    part = part_of(shape, "weights", weights=shape.weight_format)

    assert part.num_bytes - part.less_bytes == pytest.approx(64.4 * GIB, rel=0.005)
