"""Counting launches: what one layer of each kind takes with nothing to do."""

from dataclasses import replace

import pytest

from builders import a_shape
from tonnage.catalog.config.formats.quantization import BF16, FP8, NVFP4
from tonnage.catalog.shape import DenseFfn, GroupedAttention, LatentAttention, MoeFfn
from tonnage.sizing.parallelism.kernels import layer_kernels, model_kernels

GROUPED = GroupedAttention(num_heads=32, num_kv_heads=8, head_dim=128)
LATENT = LatentAttention(
    num_heads=128, kv_lora_rank=512, qk_rope_head_dim=64, qk_nope_head_dim=128,
    value_head_dim=128, q_lora_rank=1536,
)  # fmt: skip
DENSE = DenseFfn(intermediate_size=14_336)
ROUTED = MoeFfn(num_experts=256, experts_per_token=8, expert_intermediate_size=1536)


def test_a_dense_layer_launches_four_products_one_attention_and_five_small_kernels():
    count = layer_kernels(GROUPED, DENSE, BF16)

    assert (count.products, count.attentions, count.others) == (4, 1, 5)
    assert count.total == 2 * 4 + 5 * 1 + 5


def test_routed_experts_leave_their_products_to_a_block_of_their_own():
    count = layer_kernels(GROUPED, ROUTED, FP8)

    assert count.products == 2 + 1  # of attention, and the router
    assert count.scaled_products == 2  # the router keeps 16 bits


@pytest.mark.parametrize(
    ("attention", "ffn", "weights", "scaled"),
    [
        (GROUPED, DENSE, BF16, 0),
        (GROUPED, DENSE, FP8, 4),
        (GROUPED, DENSE, NVFP4.with_parts({"attention": BF16}), 2),
        (GROUPED, ROUTED, NVFP4.with_parts({"attention": BF16}), 0),
        (LATENT, DENSE, FP8, 3 + 2),  # those absorbed into queries and outputs keep 16 bits
    ],
)
def test_only_products_of_quantized_matrices_need_scales(attention, ffn, weights, scaled):
    assert layer_kernels(attention, ffn, weights).scaled_products == scaled


def test_a_model_launches_what_its_layers_do():
    shape = a_shape()
    (group,) = shape.groups

    each = layer_kernels(group.attention, group.ffn, BF16)

    assert model_kernels(shape, BF16).total == group.num_layers * each.total


def test_norms_over_all_heads_are_kernels_of_their_own_and_more_where_heads_are_split():
    wide = replace(GROUPED, has_wide_norms=True)

    alone, split = (layer_kernels(wide, None, BF16, is_split=split) for split in (False, True))

    plain = layer_kernels(GROUPED, None, BF16)
    assert (alone.others - plain.others, split.others - plain.others) == (2, 6)


def test_the_host_launches_kernels_one_by_one_whatever_their_kind():
    found = layer_kernels(GROUPED, DENSE, FP8)  # 4 products with scales, attention, 3 + 2 others

    assert found.launches == 4 + 4 + 1 + 5
