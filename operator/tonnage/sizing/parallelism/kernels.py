"""How many kernels a step launches: each takes some microseconds, however little it does.

What looks like a low use of bandwidth at small batches, and on many GPUs, is mostly this floor,
times kernels, times layers; tensor parallelism divides the bytes, not the kernels.

Kernels are counted in the smallest kind (a norm, a rotation, an activation): how much longer a
product or an attention takes with nothing to do is much the same on every GPU class. A block of
routed experts is not among them: its floor depends on how its weights are stored, and stands in
the catalogue.

Sources:
    [vllm-source] model_executor/models (what one layer launches under CUDA graphs); norms over all
    heads: layers/mamba/linear_attn.py MiniMaxText01RMSNormTP.forward_qk;
    [kernel-tables] the floors: a product 4 to 6 microseconds, attention 9 to 17, a norm 2 to 3.
"""

from typing import NamedTuple

from tonnage.catalog.shape import (
    Attention,
    CompressedAttention,
    DenseFfn,
    Ffn,
    GroupedAttention,
    LatentAttention,
    ModelShape,
    StateAttention,
    WeightFormat,
)

PRODUCT_FLOOR, ATTENTION_FLOOR = 2, 5
"""In kernels of the smallest kind."""
EXPERTS_LAUNCHES = 8
"""Of a block of routed experts: choosing, sorting (2), products (2), activation, scales, sum."""
EXCHANGES = 2
"""Of a layer that is split over tensor-parallel ranks."""


class KernelCount(NamedTuple):
    """Launches of one layer, or of many."""

    products: int = 0
    """Matrix products outside the routed experts."""
    attentions: int = 0
    others: int = 0
    """Norms, rotations, cache writes, activations."""
    scaled_products: int = 0
    """Those products whose matrices are quantized: they need scales beside them."""

    @property
    def total(self) -> int:
        """In kernels of the smallest kind."""
        return PRODUCT_FLOOR * self.products + ATTENTION_FLOOR * self.attentions + self.others

    @property
    def launches(self) -> int:
        """Whatever their kind, those of scales among them."""
        return self.products + self.attentions + self.others + self.scaled_products

    def and_times(self, number: int, other: "KernelCount") -> "KernelCount":
        """Return these, and the others so many times."""
        return KernelCount(*(own + number * each for own, each in zip(self, other, strict=True)))


NONE = KernelCount()


def layer_kernels(
    attention: Attention | None,
    ffn: Ffn | None,
    weights: WeightFormat,
    *,
    is_split: bool = False,
) -> KernelCount:
    """Return what one layer launches; ``is_split``: over tensor-parallel ranks.

    >>> bf16 = WeightFormat(name="bf16", bytes_per_parameter=2.0, compute="bf16")
    >>> heads = GroupedAttention(num_heads=8, num_kv_heads=8, head_dim=128)
    >>> layer_kernels(heads, None, bf16).total
    12
    """
    attending = _attention_kernels(attention, weights, is_split=is_split)
    return attending.and_times(1, _ffn_kernels(ffn, weights))


def _attention_kernels(
    attention: Attention | None, weights: WeightFormat, *, is_split: bool
) -> KernelCount:
    match attention:
        case GroupedAttention():  # qkv, output; norm, rotation, cache, attention
            # Where heads are split, the squares of queries and of keys are summed, joined and taken
            # apart again around the exchange.
            norms = attention.has_wide_norms * (6 if is_split else 2)
            return _kernel_count("attention", weights, products=2, others=3 + norms)
        case LatentAttention():  # down, up, both absorbed ones, output: three are in the checkpoint
            return _kernel_count("attention", weights, products=5, others=4, unscaled=2)
        case CompressedAttention():
            return _kernel_count("attention", weights, products=4, others=5)
        case StateAttention():  # in, out; norm, convolution, gate; recurrence as an attention
            return _kernel_count("state_attention", weights, products=2, others=3)
        case None:
            return NONE


def _kernel_count(
    part: str, weights: WeightFormat, *, products: int, others: int, unscaled: int = 0
) -> KernelCount:
    scaled = products - unscaled if _is_quantized(part, weights) else 0
    return KernelCount(products=products, attentions=1, others=others, scaled_products=scaled)


def _is_quantized(part: str, weights: WeightFormat) -> bool:
    return weights.part_bytes_per_parameter(part) < weights.wide_bytes_per_parameter


def _ffn_kernels(ffn: Ffn | None, weights: WeightFormat) -> KernelCount:
    if ffn is None:
        return NONE
    if isinstance(ffn, DenseFfn):  # gate and up, down; norm, activation
        scaled = 2 if _is_quantized("dense_ffn", weights) else 0
        return KernelCount(products=2, others=2, scaled_products=scaled)
    routed = KernelCount(products=1, others=1)  # router; norm
    if not ffn.shared_intermediate_size:
        return routed
    scaled = 2 if _is_quantized("shared_experts", weights) else 0
    return routed.and_times(1, KernelCount(products=2, others=1, scaled_products=scaled))


def model_kernels(
    shape: ModelShape, weights: WeightFormat, *, is_split: bool = False
) -> KernelCount:
    """Return what all layers launch with weights of this format."""
    total = NONE
    for group in shape.groups:
        each = layer_kernels(group.attention, group.ffn, weights, is_split=is_split)
        total = total.and_times(group.num_layers, each)
    return total
