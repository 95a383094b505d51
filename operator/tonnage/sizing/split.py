"""How a model is split over GPUs, and which splits the engine accepts."""

from dataclasses import dataclass, replace

from tonnage.catalog.shape import (
    Attention,
    CompressedAttention,
    GroupedAttention,
    LatentAttention,
    ModelShape,
    StateAttention,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parallelism:
    """Tensor x pipeline x data parallel sizes of one replica.

    ``data`` is data-parallel attention: each rank owns its own requests and cache, and the
    experts are spread over all ranks. ``context`` (decode context parallel) needs no GPUs of its
    own: it shares the tokens of the cache out among tensor-parallel ranks that would otherwise
    hold copies of it.
    """

    tensor: int = 1
    pipeline: int = 1
    data: int = 1
    context: int = 1

    @property
    def num_gpus(self) -> int:
        return self.tensor * self.pipeline * self.data

    def __str__(self) -> str:
        parts = {"TP": self.tensor, "PP": self.pipeline, "DP": self.data, "DCP": self.context}
        used = [f"{name}{size}" for name, size in parts.items() if size > 1]
        return " x ".join(used) or "TP1"


def on_rank(attention: Attention, tensor: int) -> Attention:
    """Return the attention that one tensor-parallel rank computes.

    Query heads are split; KV heads too, but never below one, so that beyond their number they
    are replicated. What latent attention compresses is on every rank whole.

    >>> on_rank(GroupedAttention(num_heads=64, num_kv_heads=4, head_dim=128), 8).num_kv_heads
    1
    """
    num_heads = attention.num_heads // tensor
    match attention:
        case GroupedAttention():
            num_kv_heads = max(1, attention.num_kv_heads // tensor)
            return replace(attention, num_heads=num_heads, num_kv_heads=num_kv_heads)
        case LatentAttention():
            return replace(attention, num_heads=num_heads)
        case CompressedAttention():
            groups = max(1, attention.output_groups // tensor)
            return replace(attention, num_heads=num_heads, output_groups=groups)
        case StateAttention():
            keys = max(1, attention.num_key_heads // tensor)
            if attention.kind == "mamba1":
                keys = attention.num_key_heads
            return replace(attention, num_key_heads=keys, num_value_heads=num_heads)


def kv_is_replicated(shape: ModelShape, tensor: int) -> bool:
    """Tell whether every tensor-parallel rank stores the whole cache of some layers.

    So it is under latent and compressed attention, also beside layers with a state.
    """
    return tensor > 1 and shape.has_kind(LatentAttention, CompressedAttention)
