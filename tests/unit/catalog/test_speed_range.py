"""How sure a predicted speed is: by what of it was ever measured."""

from dataclasses import replace

import pytest

from builders import a_layer_group, a_shape, an_attention
from tonnage.catalog.config.formats.quantization import BF16, MXFP4, NVFP4
from tonnage.catalog.gpu import built_in_gpus
from tonnage.catalog.models import built_in_model
from tonnage.catalog.speed_range import first_token_spread, speed_spread, together, unmeasured_parts

GPUS = built_in_gpus()
LLAMA = a_shape()


def new(gpu="H100", weights=BF16, shape=LLAMA):
    return [each.kind for each in unmeasured_parts(GPUS[gpu], weights, shape)]


def test_of_a_dense_model_in_16_bits_on_a_datacentre_gpu_everything_was_measured():
    assert new() == []
    assert speed_spread(GPUS["H100"], BF16, LLAMA) == pytest.approx(0.15)
    assert first_token_spread(GPUS["H100"], BF16, LLAMA) == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("gpu", "kinds"),
    [("RTX-4090", ["generation"]), ("A10G", ["generation"]), ("V100-32GB", ["kernels"])],
)
def test_a_board_is_known_by_generation_and_kind_of_memory(gpu, kinds):
    assert new(gpu) == kinds


def test_a_format_counts_by_the_generation_whose_kernels_it_has():
    assert new("B200", NVFP4) == []
    assert new("H100", NVFP4) == ["format"]
    assert new("RTX-5090", NVFP4) == ["generation"]  # measured somewhere
    assert new("B200", MXFP4) == ["format"]


def test_windows_and_few_layers_are_named():
    windowed = replace(an_attention(), window_tokens=128)
    small = a_shape(groups=(a_layer_group(num_layers=24, attention=windowed),))

    assert new(shape=small) == ["attention", "depth"]


def test_errors_of_their_own_add_in_squares():
    # log 1.15 = 0.1398, log 1.2 = 0.1823 twice: the root of their squares is 0.2934.
    assert together(0.15, 0.2, 0.2) == pytest.approx(0.341, abs=0.001)


def test_latent_attention_and_experts_in_four_bits_are_less_sure_than_llama():
    kimi = built_in_model("moonshotai/Kimi-K2.5")

    found = unmeasured_parts(GPUS["H200"], kimi.weight_format, kimi)

    assert [each.words for each in found] == ["weights in int4", "latent attention"]
    assert speed_spread(GPUS["H200"], kimi.weight_format, kimi) > 0.3
