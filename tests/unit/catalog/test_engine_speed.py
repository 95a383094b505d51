"""Where the constants of a step start: by GPU class and by how the weights are stored."""

from dataclasses import replace

import pytest

from tonnage.catalog.config.formats.quantization import BF16, FP8, MXFP4, NVFP4
from tonnage.catalog.engine_speed import prior_speed, scaling_of, speed_table
from tonnage.catalog.gpu import built_in_gpus

GPUS = built_in_gpus()
BLOCKS = replace(FP8, block_size=128)


def test_fp8_in_blocks_is_scaled_by_another_kernel_than_fp8_of_whole_matrices():
    assert (scaling_of(FP8), scaling_of(BLOCKS), scaling_of(NVFP4)) == ("fp8", "fp8-block", "nvfp4")
    assert (
        prior_speed(GPUS["H100"], BLOCKS).per_scaled_product_s
        > prior_speed(GPUS["H100"], FP8).per_scaled_product_s
    )


def test_weights_of_16_bits_need_no_scales():
    assert prior_speed(GPUS["H100"], BF16).per_scaled_product_s == 0


@pytest.mark.parametrize("name", ["H100", "B200", "A100-80GB", "L40S"])
def test_a_block_of_experts_takes_longer_than_a_kernel_with_nothing_to_do(name):
    constants = prior_speed(GPUS[name], BLOCKS)

    assert 5 * constants.per_kernel_s < constants.per_experts_block_s < 50e-6


def test_experts_that_were_left_in_16_bits_are_read_as_such():
    only_dense = replace(NVFP4, unquantized=frozenset({"experts"}))

    assert (
        prior_speed(GPUS["B200"], only_dense).per_experts_block_s
        == prior_speed(GPUS["B200"], BF16).per_experts_block_s
    )


def test_experts_that_must_be_unpacked_are_read_more_slowly():
    assert prior_speed(GPUS["B200"], MXFP4).experts_bandwidth_factor < 0.6
    assert prior_speed(GPUS["B200"], NVFP4).experts_bandwidth_factor > 1
    assert prior_speed(GPUS["A100-80GB"], BF16).experts_bandwidth_factor == 1  # not known


def test_exchanges_take_longer_with_each_gpu_on_a_bus_and_hardly_over_links():
    constants = {name: prior_speed(GPUS[name], BF16) for name in ("H100", "L40S")}

    assert constants["H100"].all_reduce_growth < 0.2
    assert constants["L40S"].all_reduce_growth == 1


def test_the_smallest_kernel_of_serving_is_that_of_kernel_tables():
    # Two independent sources: kernel tables give 2.0 (H100, H200) to 2.2 (B200) microseconds.
    assert speed_table().per_kernel_s["hopper"] == pytest.approx(2.1e-6, rel=0.1)
