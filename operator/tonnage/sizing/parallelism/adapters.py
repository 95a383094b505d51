"""What LoRA adapters take on a rank: buffers in memory, reads and work in a step.

An adapter is two narrow matrices beside each linear layer: A of ``rank x inputs``, B of
``outputs x rank``. The engine allocates as many of both as it has slots, at the full rank and in
the 16 bits of its activations, whatever the weights are stored in. Tensor parallelism splits the
outputs of one half of the layers and the inputs of the other, so one matrix of each pair stays
whole on every rank.

Left out: the small buffers between A and B, indices of tokens, and further CUDA graphs.

Sources:
    [vllm-source] lora/layers/base_linear.py, column_parallel_linear.py, row_parallel_linear.py,
    vocab_parallel_embedding.py, logits_processor.py (create_lora_weights); lora/model_manager.py.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from tonnage.catalog.engine_limits import adapter_kinds
from tonnage.catalog.shape import DenseFfn, GroupedAttention, LayerGroup, ModelShape
from tonnage.sizing.adapters import Adapters, check_adapters
from tonnage.sizing.parallelism.kernels import PRODUCT_FLOOR
from tonnage.sizing.parallelism.shard import (
    FLOP_PER_PARAMETER,
    AdapterShare,
    Shard,
    stage_fraction,
)
from tonnage.sizing.split import Parallelism

ELEMENT_BYTES: Final = 2
LINEARS: Final = 4
"""Of a layer: queries, keys and values; output; gate and up; down."""
KERNELS: Final = 2
"""For each of them: one multiplies by A, one by B."""
QKV: Final = 3


def with_adapters(target: Shard, shape: ModelShape, adapters: Adapters) -> Shard:
    """Return a rank that has adapters beside its linear layers.

    Raises:
        InvalidAdaptersError: it is not known what they take.
    """
    check_adapters(shape)
    split = target.parallelism
    stage = float(stage_fraction(shape.num_layers, split.pipeline))
    is_fused = shape.model_type in adapter_kinds("fused")
    elements = stage * sum(
        group.num_layers * _layer_elements(group, shape.hidden_size, split, is_fused=is_fused)
        for group in shape.groups
    )
    vocabulary = ELEMENT_BYTES * adapters.rank * _vocabulary_elements(shape, split)
    is_counted = shape.model_type in adapter_kinds("vocabulary")
    is_known = is_counted or shape.model_type in adapter_kinds("none")
    parameters = adapters.rank * elements
    share = AdapterShare(
        number=adapters.number,
        each_bytes=ELEMENT_BYTES * parameters,
        vocabulary_bytes=vocabulary if is_counted else 0.0,
        doubtful_bytes=0.0 if is_known else vocabulary,
    )
    launched = stage * shape.num_layers * LINEARS * KERNELS * PRODUCT_FLOOR
    return replace(
        target,
        adapters=share,
        flop_per_token=target.flop_per_token + FLOP_PER_PARAMETER * parameters,
        num_kernels=target.num_kernels + launched,
    )


def _layer_elements(group: LayerGroup, hidden: int, split: Parallelism, *, is_fused: bool) -> float:
    """Return the inputs and outputs of a layer's linear layers on a rank: elements at rank 1."""
    return sum(_linears(group, hidden, split.tensor, is_fused=is_fused))


def _linears(group: LayerGroup, hidden: int, tensor: int, *, is_fused: bool) -> Iterator[float]:
    """Yield A's inputs and B's outputs of each; matrices that are one in the model share one A."""
    attention, ffn = group.attention, group.ffn
    if not isinstance(attention, GroupedAttention) or not isinstance(ffn, DenseFfn):
        return  # no such layer passes check_adapters
    heads, kv_heads = attention.num_heads // tensor, max(1, attention.num_kv_heads // tensor)
    queries, keys = heads * attention.head_dim, kv_heads * attention.head_dim
    values = kv_heads * attention.num_value_dims
    inner, gates = ffn.intermediate_size / tensor, ffn.num_matrices - 1
    yield (1 if is_fused else QKV) * hidden + queries + keys + values
    yield heads * attention.num_value_dims + hidden
    yield (1 if is_fused else gates) * hidden + gates * inner
    yield inner + hidden


def _vocabulary_elements(shape: ModelShape, split: Parallelism) -> float:
    """Return those of the embedding and the logits, which every rank has whole."""
    tables = 2 if split.pipeline == 1 else 1
    return tables * (shape.vocab_size + shape.hidden_size)
