"""One rank's share of a model: the plain numbers that memory and step time are made of."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

from tonnage.catalog.parameters import attention_parameters
from tonnage.catalog.shape import (
    Attention,
    DenseFfn,
    GroupedAttention,
    LatentAttention,
    LayerGroup,
    ModelShape,
    MoeFfn,
    WeightFormat,
)
from tonnage.sizing.memory import KvShare, kv_bytes_per_token
from tonnage.sizing.parallelism import Parallelism, on_rank

WIDE_BYTES = 2
"""Of a parameter that no checkpoint quantizes: embedding, head, norms, routers."""
FLOP_PER_PARAMETER = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertShare:
    """The experts of the layers of one kind on one rank."""

    num_experts: int
    experts_per_token: int
    resident_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """What one rank of one pipeline stage holds, reads and computes.

    A model given only by its totals (as napkin arithmetic does) is a shard too: fill in the
    bytes and leave the rest at its default.
    """

    weights_bytes: float
    """Resident, on the fullest rank."""
    dense_read_bytes: float
    """Read in every step whatever the batch: all but experts and the embedding table."""
    experts: tuple[ExpertShare, ...] = ()
    kv: tuple[KvShare, ...] = ()
    flop_per_token: float = 0.0
    """Matrix products of one token on this rank: two per active parameter."""
    num_layers: int = 0
    num_moe_layers: int = 0
    hidden_size: int = 0
    parallelism: Parallelism = field(default_factory=Parallelism)


def shard_of(
    shape: ModelShape, *, weights: WeightFormat, kv_element_bytes: float, parallelism: Parallelism
) -> Shard:
    """Return the share of the fullest rank.

    Counts norms, routers and MLA's down-projections as replicated; the embedding and the head as
    split over the tensor-parallel ranks. A pipeline stage is the largest number of layers and the
    larger of embedding and head.
    """
    stage = math.ceil(shape.num_layers / parallelism.pipeline) / shape.num_layers
    groups = [_GroupShare(group, shape.hidden_size, weights, parallelism) for group in shape.groups]
    table_bytes = shape.vocab_size * shape.hidden_size * WIDE_BYTES / parallelism.tensor
    layers_bytes = stage * sum(group.dense_bytes for group in groups)
    experts = tuple(share for group in groups for share in group.experts(stage))
    head_parameters = shape.vocab_size * shape.hidden_size / parallelism.tensor
    active = stage * sum(group.active_parameters for group in groups) + head_parameters
    both_tables = parallelism.pipeline == 1 and not shape.tied_embeddings
    return Shard(
        weights_bytes=layers_bytes
        + sum(share.resident_bytes for share in experts)
        + table_bytes * (2 if both_tables else 1),
        dense_read_bytes=layers_bytes + table_bytes,
        experts=experts,
        kv=tuple(_kv_shares(shape, kv_element_bytes, parallelism, stage)),
        flop_per_token=FLOP_PER_PARAMETER * active,
        num_layers=math.ceil(stage * shape.num_layers),
        num_moe_layers=math.ceil(
            stage * sum(g.num_layers for g in shape.groups if isinstance(g.ffn, MoeFfn))
        ),
        hidden_size=shape.hidden_size,
        parallelism=parallelism,
    )


def _kv_shares(
    shape: ModelShape, kv_element_bytes: float, parallelism: Parallelism, stage: float
) -> Iterator[KvShare]:
    for num_layers, attention in shape.attentions():
        mine = on_rank(attention, parallelism.tensor)
        window = attention.window_tokens if isinstance(attention, GroupedAttention) else None
        yield KvShare(
            bytes_per_token=stage
            * kv_bytes_per_token([(num_layers, mine)], kv_element_bytes=kv_element_bytes),
            window_tokens=window,
            flop_per_pair=stage * num_layers * flop_per_pair(mine),
        )


def flop_per_pair(attention: Attention) -> float:
    """Return the work of one query token on one cached token in one layer.

    Two operations per element of the score and of the weighted sum, for every query head; latent
    attention works on the compressed vector.

    >>> flop_per_pair(GroupedAttention(num_heads=64, num_kv_heads=8, head_dim=128))
    32768
    """
    match attention:
        case GroupedAttention():
            return 2 * attention.num_heads * (attention.head_dim + attention.num_value_dims)
        case LatentAttention():
            widths = 2 * attention.kv_lora_rank + attention.qk_rope_head_dim
            return 2 * attention.num_heads * widths


class _GroupShare:
    """The layers of one kind on one rank: parameters by how they are stored and split."""

    def __init__(
        self, group: LayerGroup, hidden: int, weights: WeightFormat, parallelism: Parallelism
    ) -> None:
        self._group, self._hidden, self._weights = group, hidden, weights
        self._parallelism = parallelism
        self._attention = attention_parameters(
            on_rank(group.attention, parallelism.tensor), hidden_size=hidden
        )

    def _bytes(self, part: str) -> float:
        is_wide = part in self._weights.unquantized
        return WIDE_BYTES if is_wide else self._weights.bytes_per_parameter

    @property
    def dense_bytes(self) -> float:
        attention = self._attention * self._bytes("attention")
        norms = self._group.vector_parameters * WIDE_BYTES
        return self._group.num_layers * (attention + norms + self._ffn_bytes())

    def _ffn_bytes(self) -> float:
        tensor, ffn = self._parallelism.tensor, self._group.ffn
        match ffn:
            case DenseFfn():
                parameters = ffn.num_matrices * self._hidden * ffn.intermediate_size / tensor
                return parameters * self._bytes("dense_ffn")
            case MoeFfn():
                router = self._hidden * ffn.num_experts * WIDE_BYTES
                shared = ffn.num_matrices * self._hidden * ffn.shared_intermediate_size / tensor
                return router + shared * self._bytes("shared_experts")

    def experts(self, stage: float) -> Iterator[ExpertShare]:
        ffn = self._group.ffn
        if isinstance(ffn, MoeFfn):
            ranks = self._parallelism.tensor * self._parallelism.data
            parameters = ffn.num_matrices * self._hidden * ffn.expert_intermediate_size
            layers = stage * self._group.num_layers
            yield ExpertShare(
                num_experts=ffn.num_experts,
                experts_per_token=ffn.experts_per_token,
                resident_bytes=layers
                * parameters
                * ffn.num_experts
                * self._bytes("experts")
                / ranks,
            )

    @property
    def active_parameters(self) -> float:
        """Parameters on this rank that one token is multiplied with."""
        ffn, tensor = self._group.ffn, self._parallelism.tensor
        match ffn:
            case DenseFfn():
                width = float(ffn.intermediate_size)
            case MoeFfn():
                routed = ffn.experts_per_token * ffn.expert_intermediate_size
                width = routed + ffn.shared_intermediate_size
        active = self._attention + ffn.num_matrices * self._hidden * width / tensor
        return self._group.num_layers * active
