"""How many kernels a step launches: each takes some microseconds, however little it does.

What looks like a low use of bandwidth at small batches, and on many GPUs, is mostly this floor,
times kernels, times layers; tensor parallelism divides the bytes, not the kernels.

Sources:
    [vllm-source] model_executor/models (what one layer launches under CUDA graphs);
    [kernel-tables] 4 to 8 microseconds per product however small.
"""

from dataclasses import dataclass

from tonnage.catalog.shape import (
    Attention,
    CompressedAttention,
    DenseFfn,
    Ffn,
    GroupedAttention,
    LatentAttention,
    ModelShape,
    StateAttention,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelCount:
    """Launches of one layer, or of many."""

    products: int
    """Matrix products: those of quantized matrices need scales beside them."""
    others: int
    """Norms, rotations, attention, activations, routing."""

    @property
    def total(self) -> int:
        return self.products + self.others


NONE = KernelCount(products=0, others=0)


def layer_kernels(attention: Attention | None, ffn: Ffn | None) -> KernelCount:
    """Return what one layer launches.

    >>> layer_kernels(GroupedAttention(num_heads=8, num_kv_heads=8, head_dim=128), None).total
    6
    """
    parts = _attention_kernels(attention), _ffn_kernels(ffn)
    return KernelCount(
        products=sum(part.products for part in parts), others=sum(part.others for part in parts)
    )


def _attention_kernels(attention: Attention | None) -> KernelCount:
    match attention:
        case GroupedAttention():  # qkv, output; norm, rotation, cache, attention
            return KernelCount(products=2, others=4)
        case LatentAttention():  # down, up, both absorbed ones, output
            return KernelCount(products=5, others=5)
        case CompressedAttention():
            return KernelCount(products=4, others=6)
        case StateAttention():  # in, out; norm, convolution, recurrence, gate
            return KernelCount(products=2, others=4)
        case None:
            return NONE


def _ffn_kernels(ffn: Ffn | None) -> KernelCount:
    if ffn is None:
        return NONE
    if isinstance(ffn, DenseFfn):  # gate and up, down; norm, activation
        return KernelCount(products=2, others=2)
    # Router and both grouped products; norm, choice, sorting, activation, sum.
    shared = 2 if ffn.shared_intermediate_size else 0
    return KernelCount(products=3 + shared, others=7 + shared)


def model_kernels(shape: ModelShape) -> KernelCount:
    """Return what all layers launch."""
    counts = [
        (group.num_layers, layer_kernels(group.attention, group.ffn)) for group in shape.groups
    ]
    return KernelCount(
        products=sum(layers * count.products for layers, count in counts),
        others=sum(layers * count.others for layers, count in counts),
    )
