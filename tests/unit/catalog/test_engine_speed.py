"""Where the constants of a step start: by GPU class and by how the weights are stored."""

from dataclasses import replace

import pytest

from tonnage.catalog.config.formats.quantization import (
    BF16,
    FP8,
    MXFP4,
    NVFP4,
    WEIGHT_FORMATS,
)
from tonnage.catalog.engine_speed import (
    RunMode,
    at_version,
    experts_prefill,
    prior_speed,
    scaling_of,
    speed_table,
)
from tonnage.catalog.gpu import built_in_gpus

GPUS = built_in_gpus()
BLOCKS = replace(FP8, block_size=128)
INT4 = WEIGHT_FORMATS["int4"]


def test_fp8_in_blocks_is_scaled_by_another_kernel_than_fp8_of_whole_matrices():
    assert (scaling_of(FP8), scaling_of(BLOCKS), scaling_of(NVFP4)) == ("fp8", "fp8-block", "nvfp4")
    assert (
        prior_speed(GPUS["H100"], BLOCKS).per_scaled_product_s
        > prior_speed(GPUS["H100"], FP8).per_scaled_product_s
    )


def test_experts_multiply_in_16_bits_where_a_class_has_no_peak_for_their_format():
    assert "fp8" not in GPUS["L20"].peak_flop_per_s
    known = speed_table().experts_prefill

    assert experts_prefill(known, GPUS["L20"], FP8) == known["ada"]["other"]
    assert experts_prefill(known, GPUS["L40S"], FP8) == known["ada"]["fp8"]


def test_weights_of_16_bits_need_no_scales():
    assert prior_speed(GPUS["H100"], BF16).per_scaled_product_s == 0


@pytest.mark.parametrize("name", ["H100", "B200", "A100-80GB", "L40S"])
def test_a_block_of_experts_takes_longer_than_a_kernel_with_nothing_to_do(name):
    constants = prior_speed(GPUS[name], BLOCKS)

    assert 5 * constants.per_kernel_s < constants.per_experts_block_s < 50e-6


def test_experts_that_were_left_in_16_bits_are_read_as_such():
    only_dense = NVFP4.with_parts({"experts": BF16})

    assert (
        prior_speed(GPUS["B200"], only_dense).per_experts_block_s
        == prior_speed(GPUS["B200"], BF16).per_experts_block_s
    )


def test_experts_that_must_be_unpacked_are_read_more_slowly():
    assert prior_speed(GPUS["H100"], MXFP4).experts_bandwidth_factor < 0.85
    assert prior_speed(GPUS["B200"], INT4).experts_bandwidth_factor < 0.65
    assert prior_speed(GPUS["B200"], MXFP4).experts_bandwidth_factor > 1  # products of its own
    assert prior_speed(GPUS["B200"], NVFP4).experts_bandwidth_factor > 1
    assert prior_speed(GPUS["A100-80GB"], BF16).experts_bandwidth_factor == 1  # not known


def test_exchanges_take_longer_with_each_gpu_on_a_bus_and_hardly_over_links():
    constants = {name: prior_speed(GPUS[name], BF16) for name in ("H100", "L40S")}

    assert constants["H100"].all_reduce_growth < 0.2
    assert constants["L40S"].all_reduce_growth == 1


def test_the_smallest_kernel_of_serving_is_that_of_kernel_tables():
    # Two independent sources: kernel tables give 2.0 (H100, H200) to 2.2 (B200) microseconds.
    assert speed_table().by_generation["per_kernel_s"]["hopper"] == pytest.approx(2.1e-6, rel=0.1)


def test_the_host_hardly_counts_where_it_prepares_a_step_while_another_runs():
    alike = prior_speed(GPUS["H100"], BF16, RunMode(schedules_async=True))
    in_turn = prior_speed(GPUS["H100"], BF16, RunMode(schedules_async=False))

    assert alike.per_step_s < 0.4e-3
    assert in_turn.per_step_s > 0.8e-3


def test_memory_of_another_kind_than_the_measured_board_of_its_generation_is_no_such_memory():
    # The A100's HBM2e is read at 76 % by its kernels; boards with GDDR at 79 to 93 %.
    efficiency = {
        name: prior_speed(GPUS[name], BF16).bandwidth_efficiency
        for name in ("A100-80GB", "A10G", "L40S", "T4")
    }

    assert efficiency["A100-80GB"] < efficiency["L40S"] < efficiency["A10G"] == efficiency["T4"]


def test_a_cache_of_8_bits_is_unpacked_on_hopper_and_read_as_it_is_on_blackwell():
    eight = {
        name: prior_speed(GPUS[name], BF16, RunMode(kv_format="fp8")) for name in ("H100", "B200")
    }

    assert eight["H100"].cache_bandwidth_factor < 0.85
    assert eight["B200"].cache_bandwidth_factor > 1


@pytest.mark.parametrize(
    ("gpu", "weights", "tflop_per_s"),
    [
        ("H100", BF16, 405),
        ("H100", BLOCKS, 447),
        ("H100", MXFP4, 435),
        ("B200", NVFP4, 2556),
        ("B200", MXFP4, 526),
    ],
)
def test_prompts_pass_experts_at_the_rate_of_their_format_in_kernel_tables(
    gpu, weights, tflop_per_s
):
    constants, board = prior_speed(GPUS[gpu], weights), GPUS[gpu]

    rate = board.flop_per_s(weights.compute) * constants.prefill_efficiency
    found = rate * constants.experts_prefill_factor / speed_table().experts_served_share
    assert found == pytest.approx(tflop_per_s * 1e12, rel=0.01)


def test_attention_and_what_is_not_quantized_are_no_faster_than_16_bits():
    narrow, wide = (prior_speed(GPUS["B200"], weights) for weights in (NVFP4, BF16))

    peaks = GPUS["B200"].peak_flop_per_s
    assert peaks["fp4"] * narrow.prefill_efficiency * narrow.wide_prefill_factor == pytest.approx(
        peaks["bf16"] * wide.prefill_efficiency
    )
    assert wide.wide_prefill_factor == 1


@pytest.mark.parametrize(("minor", "expected"), [("0.9", 3.0), ("0.19", 1.0), ("", 1.0)])
def test_a_figure_by_version_is_that_of_the_last_version_that_is_not_newer(minor, expected):
    assert at_version({"0.0": 3.0, "0.19": 1.0}, minor) == expected


@pytest.mark.parametrize(
    ("minor", "used_for"),
    [("0.14", "none"), ("0.15", "all"), ("0.16", "all"), ("0.17", "whole"), ("", "whole")],
)
def test_which_experts_cutlass_kernels_multiply_on_hopper_changes_with_the_version(minor, used_for):
    run = RunMode(minor=minor)

    assert prior_speed(GPUS["H200"], BLOCKS, run).cutlass_experts == used_for
    assert prior_speed(GPUS["H200"], FP8, run).cutlass_experts == "none"
    assert prior_speed(GPUS["B200"], BLOCKS, run).cutlass_experts == "none"


def test_kernels_that_a_recipe_names_have_figures_of_their_own_where_they_are_known():
    usual, triton = (prior_speed(GPUS["B200"], BLOCKS, RunMode(experts=e)) for e in ("", "triton"))
    on_hopper = prior_speed(GPUS["H200"], BLOCKS, RunMode(experts="triton"))

    assert triton.per_experts_block_s > usual.per_experts_block_s
    assert triton.experts_bandwidth_factor < usual.experts_bandwidth_factor
    assert on_hopper == replace(prior_speed(GPUS["H200"], BLOCKS), cutlass_experts="none")


def test_an_all_reduce_over_a_bus_is_always_a_ring():
    assert prior_speed(GPUS["L40S"], BF16).one_shot_efficiency is None
    assert prior_speed(GPUS["H100"], BF16).one_shot_efficiency is not None


def test_a_board_with_more_power_is_faster_in_every_format_by_as_much():
    """The peak of fp4 alone is higher on a B300 than on a B200; its kernels gain as in fp8."""

    def rates(name, weights):
        board, constants = GPUS[name], prior_speed(GPUS[name], weights)
        rate = board.flop_per_s(weights.compute) * constants.prefill_efficiency
        return rate, rate * constants.experts_prefill_factor

    for weights in (BF16, FP8, NVFP4):
        faster = [
            b300 / b200
            for b300, b200 in zip(rates("B300", weights), rates("B200", weights), strict=True)
        ]
        assert all(1.0 < factor < 1.15 for factor in faster)
