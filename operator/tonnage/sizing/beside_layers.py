"""What a rank holds beside its layers, and how far files differ from what is counted."""

from collections.abc import Mapping

from tonnage.catalog.engine import CacheRules
from tonnage.catalog.shape import (
    CompressedAttention,
    LatentAttention,
    ModelShape,
    StateAttention,
    WeightFormat,
)
from tonnage.catalog.stored import counted_bytes
from tonnage.sizing.parallelism import Parallelism

ABSORBED_BYTES = 2


class StoredFactors:
    """How much larger each part of a checkpoint is in its files than by count; 1 without files."""

    def __init__(self, shape: ModelShape) -> None:
        self._factors: Mapping[str, float] = {}
        self.other_bytes = 0
        """Of tensors that belong to no known part: on every rank, to be safe."""
        if shape.stored is not None:
            counted = counted_bytes(shape)
            self.other_bytes = shape.stored.other.num_bytes
            self._factors = {
                name: part.num_bytes / counted[name]
                for name, part in shape.stored.parts()
                if counted.get(name)
            }

    def factor(self, part: str) -> float:
        return self._factors.get(part, 1.0)


def beside_layers_parameters(
    shape: ModelShape, parallelism: Parallelism, stored: StoredFactors
) -> float:
    """Return towers and rotary tables, which every rank holds, and a share of further tables."""
    towers = shape.tower_parameters * stored.factor("towers")
    tables = shape.table_parameters * stored.factor("tables") / parallelism.tensor
    return towers + _rotary_elements(shape) + (0 if shape.tables_on_host else tables)


def absorbed_bytes(
    shape: ModelShape, weights: WeightFormat, rules: CacheRules, parallelism: Parallelism
) -> float:
    """Return what latent attention keeps for decoding beside the checkpoint's own matrices.

    A second copy of the up-projections in 16 bits; in older engines products of two matrices.

    Sources:
        [vllm-source] model_executor/layers/attention/mla_attention.py (after loading).
    """
    each_bytes = weights.bytes_per_parameter if rules.merges_latent_projections else ABSORBED_BYTES
    return each_bytes * sum(
        num_layers
        * (attention.num_heads // parallelism.tensor)
        * _absorbed_per_head(attention, shape.hidden_size, rules)
        for num_layers, attention in shape.attentions()
        if isinstance(attention, LatentAttention)
    )


def _absorbed_per_head(attention: LatentAttention, hidden: int, rules: CacheRules) -> int:
    if not rules.merges_latent_projections:
        return attention.kv_lora_rank * (attention.qk_nope_head_dim + attention.value_head_dim)
    queries = attention.q_lora_rank or hidden
    return attention.kv_lora_rank * (queries + hidden) + queries * attention.qk_rope_head_dim


def _rotary_elements(shape: ModelShape) -> int:
    """Return sines and cosines of every position, once for each width of rotary heads.

    Sources:
        [kv-logs] 0.031 GiB beside the weights of Llama 3.1 8B: 131072 * 128 elements.
    """
    widths = {
        attention.qk_rope_head_dim
        if isinstance(attention, LatentAttention | CompressedAttention)
        else (attention.head_dim, attention.window_tokens)
        for _, attention in shape.attentions()
        if not isinstance(attention, StateAttention)
    }
    each = [width[0] if isinstance(width, tuple) else width for width in widths]
    return (shape.max_position_tokens or 0) * sum(each)
