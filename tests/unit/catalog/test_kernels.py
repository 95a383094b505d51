"""Which kernels unpack weights: as the releases choose, and what prompts take by them."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tonnage.catalog.config.formats.quantization import (
    BF16,
    FP8,
    INT8,
    MXFP4,
    MXFP8,
    NVFP4,
    WEIGHT_FORMATS,
)
from tonnage.catalog.config.read import shape_from_config
from tonnage.catalog.engine import parse_version
from tonnage.catalog.engine_limits import (
    format_of_experts,
    kernel_table,
    kernels_of_dense,
    kernels_of_experts,
    products_in,
    unpacking_kernels,
)
from tonnage.catalog.engine_speed import RunMode, prior_speed, repriced
from tonnage.catalog.gpu import built_in_gpus
from tonnage.catalog.models import built_in_config, built_in_model

GPUS = built_in_gpus()
BLOCKS = replace(FP8, block_size=128)
INT4 = WEIGHT_FORMATS["int4"]
CHOICES = json.loads((Path(__file__).parents[2] / "proof" / "kernels.json").read_text())
"""By release and capability, as ``proof_choices`` had them from the releases' own functions."""
BOARDS = {"7.5": "T4", "8.0": "A100-80GB", "8.9": "L40S", "9.0": "H100", "10.0": "B200",
          "12.0": "RTX-PRO-6000"}  # fmt: skip
NOT_RUN = {
    ("0.15", "fp8 experts"), ("0.29", "fp8 dense"), ("0.30", "fp8 dense"),
    *((f"0.{minor}", "nvfp4 dense") for minor in range(11, 16)),
}  # fmt: skip
"""0.15: scales of activations made while it runs alone. 0.29 and 0.30: kernels that the board has
not. Until 0.15: FlashInfer's, for files of ModelOpt on boards that it has no such kernels for."""
REFUSED = {
    *((minor, "mxfp4 experts") for minor in CHOICES),
    *((minor, "int4 experts") for minor in ("0.11", "0.12", "0.13")),
}
"""On 7.5: int4 that is asked about is of compressed-tensors."""


@pytest.mark.parametrize("minor", list(CHOICES))
def test_the_table_names_what_the_release_itself_chooses(minor):
    for capability, chosen in CHOICES[minor].items():
        for what, kernels in chosen.items():
            stored, part = what.split()
            if (minor, what) in NOT_RUN | (REFUSED if capability == "7.5" else set()):
                continue
            found = unpacking_kernels(GPUS[BOARDS[capability]], stored, part, minor)

            assert found == kernels, f"{what} on {capability}"


def test_releases_were_asked_of_every_kind_of_board():
    assert len(CHOICES) >= 23
    assert all(chosen.keys() == BOARDS.keys() for chosen in CHOICES.values())


def test_releases_since_0_20_were_asked_of_every_format():
    asked = {f"{stored} dense" for stored in ("fp8", "fp8-block", "int8", "int4", "nvfp4")}
    asked |= {f"{each.removesuffix(' dense')} experts" for each in asked}
    asked |= {f"{stored} experts" for stored in ("mxfp4", "mxfp4-fp8", "mxfp4-fp4")}

    missing = {
        (minor, what)
        for minor, chosen in CHOICES.items()
        if parse_version(minor) >= (0, 20)
        for by_what in chosen.values()
        for what in asked - by_what.keys()
    }

    assert missing == {("0.26", "int4 experts")}


def test_kernels_have_the_names_that_releases_write():
    table = kernel_table()
    used = {
        kernels
        for part in (table.dense, table.experts)
        for by_board in part.values()
        for by_version in by_board.values()
        for kernels in by_version.values()
    }

    assert used - {""} == table.names.keys()


@pytest.mark.parametrize(
    ("gpu", "weights", "minor", "precision"),
    [
        ("L4", BLOCKS, "0.28", "fp8"),  # Triton's
        ("L4", BLOCKS, "0.29", "bf16"),  # Marlin goes before it
        ("L4", FP8, "0.33", "fp8"),
        ("A100-80GB", FP8, "0.33", "bf16"),
        ("A100-80GB", INT8, "0.33", "int8"),
        ("H100", NVFP4, "0.33", "bf16"),
        ("H100", MXFP8, "0.33", "bf16"),
        ("B200", MXFP8, "0.33", "fp8"),
        ("B200", NVFP4, "0.33", "fp4"),
        ("B200", replace(NVFP4, compute="bf16"), "0.33", "bf16"),
        ("H100", replace(MXFP4, compute="fp4"), "0.33", "bf16"),
        ("B200", replace(MXFP4, compute="fp4"), "0.33", "fp4"),
        ("RTX-PRO-6000", NVFP4, "0.11", "fp4"),
    ],
)
def test_products_are_in_16_bits_where_kernels_unpack(gpu, weights, minor, precision):
    assert products_in(GPUS[gpu], weights, minor) == precision


# Marlin, as compressed_tensors_w8a16_fp8.py and modelopt.py (W4A16_NVFP4) ask for by name.
def test_floats_without_activations_are_unpacked_whatever_the_board_could() -> None:
    weights = replace(NVFP4, compute="bf16")

    assert kernels_of_dense(GPUS["B200"], weights, "0.33") == "marlin"
    assert kernels_of_dense(GPUS["B200"], NVFP4, "0.33") == ""
    assert kernels_of_dense(GPUS["H100"], replace(FP8, compute="bf16"), "0.33") == "marlin"


def prompts_flop_per_s(gpu, weights, minor):
    constants = prior_speed(GPUS[gpu], weights, RunMode(minor=minor))
    return constants.prefill_efficiency * GPUS[gpu].flop_per_s(
        products_in(GPUS[gpu], weights, minor)
    )


def test_prompts_pass_marlin_at_its_share_of_16_bits():
    wide = WEIGHT_FORMATS["bfloat16"]
    share = {
        (gpu, weights.name): prompts_flop_per_s(gpu, weights, "0.33")
        / prompts_flop_per_s(gpu, wide, "0.33")
        for gpu, weights in (
            ("B200", INT4),
            ("L40S", INT4),
            ("H100", INT4),
            ("H100", NVFP4),
            ("A100-80GB", INT4),
        )
    }

    assert share["B200", "int4"] == pytest.approx(0.26)
    assert share["H100", "nvfp4"] == pytest.approx(0.56)
    assert share["L40S", "int4"] == share["A100-80GB", "int4"] == 1
    assert share["H100", "int4"] == 1  # Machete, of which nothing is known but that


@pytest.mark.parametrize(
    ("gpu", "weights", "minor", "kernels"),
    [
        ("L4", BLOCKS, "0.28", ()),
        ("L4", BLOCKS, "0.29", ("dense marlin",)),
        ("B200", INT4, "0.33", ("dense marlin",)),
        ("H100", NVFP4, "0.33", ("dense humming",)),
        ("A100-80GB", FP8, "0.33", ()),
        ("H100", INT4, "0.33", ()),
        ("B200", WEIGHT_FORMATS["mxfp4"], "0.33", ("experts trtllm",)),
    ],
)
def test_what_is_learned_beside_the_rate_of_before_is_of_another_key(gpu, weights, minor, kernels):
    assert repriced(GPUS[gpu], weights, minor) == kernels


@pytest.mark.parametrize(
    ("model", "gpu", "minor", "kernels"),
    [
        ("deepseek-ai/DeepSeek-V4-Flash", "B200", "0.33", ""),  # TRTLLM's, in 8 bits
        ("deepseek-ai/DeepSeek-V4-Flash", "H200", "0.31", "marlin"),
        ("deepseek-ai/DeepSeek-V4-Flash", "H200", "0.32", "humming"),
        ("deepseek-ai/DeepSeek-V4-Flash", "H200", "0.33", ""),  # Humming's, in 8 bits
        ("moonshotai/Kimi-K3", "B200", "0.33", ""),  # as DeepSeek V4's
        ("moonshotai/Kimi-K3", "H200", "0.32", "humming"),
        ("moonshotai/Kimi-K3", "RTX-PRO-6000", "0.27", ""),
        ("openai/gpt-oss-120b", "H200", "0.33", "triton"),
        ("openai/gpt-oss-120b", "B200", "0.33", "trtllm"),
        ("nvidia/Qwen3.6-35B-A3B-NVFP4", "H200", "0.33", "humming"),
        ("nvidia/Qwen3.6-35B-A3B-NVFP4", "B200", "0.33", ""),
    ],
)
def test_experts_have_the_kernels_of_their_own_format(model, gpu, minor, kernels):
    weights = built_in_model(model).weight_format

    assert kernels_of_experts(GPUS[gpu], weights, minor) == kernels


@pytest.mark.parametrize(
    ("inputs", "gpu", "minor", "kernels"),
    [
        (None, "H200", "0.33", "marlin"),
        (None, "B200", "0.19", "marlin"),
        (None, "B200", "0.33", ""),  # CUTLASS, in 4 bits
        (None, "RTX-PRO-6000", "0.33", "marlin"),
        ({"num_bits": 8, "type": "float"}, "RTX-PRO-6000", "0.33", ""),
        ({"num_bits": 8, "type": "float"}, "H200", "0.32", "humming"),
    ],
)
def test_experts_of_compressed_tensors_hang_on_what_the_file_asks_of_activations(
    inputs, gpu, minor, kernels
):
    config = built_in_config("Qwen/Qwen3-30B-A3B")
    config["quantization_config"] = {
        "quant_method": "compressed-tensors",
        "format": "mxfp4-pack-quantized",
        "ignore": [],
        "config_groups": {"group_0": {
            "targets": ["Linear"], "weights": {"num_bits": 4, "type": "float", "group_size": 32},
            "input_activations": inputs,
        }},
    }  # fmt: skip

    weights = shape_from_config(config, name="m").weight_format

    assert kernels_of_experts(GPUS[gpu], weights, minor) == kernels


def test_prompts_pass_experts_at_the_rate_of_their_own_format():
    weights = built_in_model("deepseek-ai/DeepSeek-V4-Flash").weight_format
    alike = replace(weights, own=())

    def rate(weights, gpu):
        found = prior_speed(GPUS[gpu], weights)
        return found.experts_prefill_factor * found.prefill_efficiency

    assert rate(weights, "H200") < rate(alike, "H200")  # Marlin's 154 TFLOP/s, not 447 of blocks
    assert rate(weights, "B200") > rate(alike, "B200")  # in 8 bits by TRTLLM, not in blocks of fp8


def test_experts_that_are_left_wide_have_no_format_of_their_own():
    weights = built_in_model("deepseek-ai/DeepSeek-V4-Flash").weight_format
    wide = weights.with_parts({"experts": BF16})

    assert wide.part_bytes_per_parameter("experts") == 2
    assert format_of_experts(wide) == "bf16"
    assert kernels_of_experts(GPUS["H100"], wide, "0.31") == ""


def test_blocks_of_fp8_on_ada_prefill_more_slowly_from_0_29_on():
    before, after = (prompts_flop_per_s("L40S", BLOCKS, minor) for minor in ("0.28", "0.29"))

    assert after < before
