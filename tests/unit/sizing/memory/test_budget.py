"""The parts of the memory budget: how far each may be off, and whose weights it is about."""

from dataclasses import replace

import pytest

from builders import a_layer_group, a_shape, a_sizing_request, an_expert_ffn
from tonnage.catalog.config.formats.quantization import BF16, FP16, WEIGHT_FORMATS
from tonnage.catalog.models import built_in_model, model_names
from tonnage.catalog.stored_weights import StoredPart, StoredWeights
from tonnage.sizing.memory.budget import UNCOUNTED_ENCODER_BYTES, as_loaded, memory_budget
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


def test_no_encoder_of_the_catalogue_is_larger_than_one_that_cannot_be_counted():
    sizes = [2 * built_in_model(name).encoder_parameters for name in model_names()]

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
