"""How many parameters a model has, counted from its shape."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from tonnage.catalog.shape import (
    Attention,
    CompressedAttention,
    DenseFfn,
    Ffn,
    GroupedAttention,
    LatentAttention,
    LayerGroup,
    ModelShape,
    MoeFfn,
    StateAttention,
)

WIDE_BYTES: Final = 2
"""Of a number that no checkpoint quantizes, once it is loaded."""


def num_parameters(shape: ModelShape) -> int:
    """Return all parameters: tables, attention, feed-forward blocks, experts, routers, norms.

    Counts a tied table once. Leaves out what a text request does not touch: vision and audio
    encoders, and layers for speculative decoding.
    """
    layers = sum(
        group.num_layers * number
        for group in shape.groups
        for _, number in _parts(group, shape.hidden_size)
    )
    tables = shape.vocab_size * shape.hidden_size * (1 if shape.tied_embeddings else 2)
    return tables + shape.table_parameters + shape.vector_parameters + layers


def num_active_parameters(shape: ModelShape) -> int:
    """Return the parameters that one token meets: all but the experts that it is not sent to.

    Embedding and head are counted whole, as they are in ``num_parameters``; of further tables a
    token meets a few rows: they are left out.
    """
    idle = sum(
        group.num_layers
        * (group.ffn.num_experts - group.ffn.experts_per_token)
        * _expert_parameters(group.ffn, shape.hidden_size)
        for group in shape.groups
        if isinstance(group.ffn, MoeFfn)
    )
    return num_parameters(shape) - shape.table_parameters - idle


def attention_parameters(attention: Attention, *, hidden_size: int) -> int:
    """Return the matrices of one layer's attention.

    Given the attention of one rank (its heads divided), returns what that rank holds: matrices
    that no head owns are whole.

    >>> llama_70b = GroupedAttention(num_heads=64, num_kv_heads=8, head_dim=128)
    >>> attention_parameters(llama_70b, hidden_size=8192)
    150994944
    """
    match attention:
        case GroupedAttention():
            return _grouped_parameters(attention, hidden_size)
        case LatentAttention():
            return _latent_parameters(attention, hidden_size)
        case CompressedAttention():
            return _compressed_parameters(attention, hidden_size)
        case StateAttention():
            return _state_parameters(attention, hidden_size)


def ffn_parts(ffn: Ffn, *, hidden_size: int) -> Iterator[tuple[str, int]]:
    """Yield (part, parameters) of one layer's block, by the parts that ranks split differently.

    Experts on a narrower vector share one projection to it and one back.
    """
    match ffn:
        case DenseFfn():
            yield "dense_ffn", ffn.num_matrices * hidden_size * ffn.intermediate_size
        case MoeFfn():
            yield "experts", ffn.num_experts * _expert_parameters(ffn, hidden_size)
            yield "shared_experts", ffn.num_matrices * hidden_size * ffn.shared_intermediate_size
            narrowing = 2 * (ffn.latent_size or 0)
            yield "replicated", hidden_size * (ffn.num_experts + narrowing)


def _expert_parameters(ffn: MoeFfn, hidden_size: int) -> int:
    width = hidden_size if ffn.latent_size is None else ffn.latent_size
    return ffn.num_matrices * width * ffn.expert_intermediate_size + ffn.expert_vector_parameters


def _grouped_parameters(attention: GroupedAttention, hidden_size: int) -> int:
    if not attention.owns_weights:
        return 0
    if attention.query_rank:
        wide = replace(attention, query_rank=None)
        heads = attention.num_heads * attention.head_dim
        narrow = attention.query_rank * (hidden_size + heads)
        return _grouped_parameters(wide, hidden_size) - hidden_size * heads + narrow
    queries = attention.num_heads * (1 + attention.has_output_gate)
    keys = attention.num_kv_heads * attention.owns_cache
    values = keys * (not attention.values_are_keys)
    key_rows = (queries + keys) * attention.head_dim
    value_rows = (values + attention.num_heads) * attention.num_value_dims
    indexer = attention.indexer
    index_rows = (indexer.num_heads + 1) * indexer.head_dim if indexer else 0
    return hidden_size * (key_rows + value_rows + index_rows)


def _latent_parameters(attention: LatentAttention, hidden_size: int) -> int:
    query_dims = attention.qk_nope_head_dim + attention.qk_rope_head_dim
    query_width = attention.num_heads * query_dims
    if attention.q_lora_rank is None:
        query = hidden_size * query_width
    else:
        query = attention.q_lora_rank * (hidden_size + query_width)
    down = hidden_size * (attention.kv_lora_rank + attention.qk_rope_head_dim)
    up_dims = attention.qk_nope_head_dim + attention.value_head_dim
    up = attention.kv_lora_rank * attention.num_heads * up_dims
    output = attention.num_heads * attention.value_head_dim * hidden_size
    index = _index_queries(attention, hidden_size)
    if attention.indexer is not None:
        index += hidden_size * attention.indexer.head_dim
    return query + down + up + output * (1 + attention.has_output_gate) + index


def _compressed_parameters(attention: CompressedAttention, hidden_size: int) -> int:
    """Return all but what compresses: that stays wide, on every rank.

    Sources:
        [vllm-source] models/deepseek_v4/attention.py.
    """
    down = hidden_size * (attention.q_lora_rank + attention.head_dim)
    rows = attention.num_heads * attention.head_dim
    output = attention.output_lora_rank * (rows + attention.output_groups * hidden_size)
    index = _index_queries(attention, hidden_size)
    return down + attention.q_lora_rank * rows + output + index


def _index_queries(attention: LatentAttention | CompressedAttention, hidden_size: int) -> int:
    """Return queries from the compressed query, and the weight of each head."""
    indexer = attention.indexer
    if indexer is None:
        return 0
    query_width = indexer.num_heads * indexer.head_dim
    return (attention.q_lora_rank or 0) * query_width + hidden_size * indexer.num_heads


def _state_parameters(attention: StateAttention, hidden_size: int) -> int:
    """Return projections in and out, and the convolution.

    Sources:
        [vllm-source] model_executor/layers/mamba: gdn/qwen_gdn_linear_attn.py,
        gdn/kimi_gdn_linear_attn.py and mamba_mixer2.py.
    """
    heads, head_dim = attention.num_value_heads, attention.value_head_dim
    width = heads * head_dim
    convolution = attention.conv_dim * attention.conv_kernel
    common = hidden_size * (attention.conv_dim + width) + convolution
    match attention.kind:
        case "gated_delta_net":  # output gate; decay and step of each head
            return common + hidden_size * (width + 2 * heads)
        case "short_conv":  # a gate before it and one after
            return common + 2 * hidden_size * width
        case "lightning":  # output gate; no convolution
            return hidden_size * (attention.conv_dim + 2 * width)
        case "mamba1":  # output gate; keys, values and steps from each channel; its own decays
            narrow = attention.step_rank + 2 * attention.key_head_dim
            own = width * (narrow + attention.step_rank + attention.key_head_dim)
            return common + hidden_size * width + own
        case "mamba2":  # output gate; step of each head
            return common + hidden_size * (width + heads)
        case "kimi_delta":  # decay of each channel through a narrow vector; step of each head
            narrow = head_dim * (hidden_size + width)
            gate = hidden_size * width if attention.has_full_rank_gate else narrow
            return common + narrow + gate + hidden_size * heads


def counted_bytes(shape: ModelShape) -> dict[str, float]:
    """Return the bytes of each part as the shape and its weight format give them."""
    table = shape.vocab_size * shape.hidden_size * WIDE_BYTES
    total = defaultdict[str, float](float)
    total["embedding"] = table
    head_bytes = shape.weight_format.part_bytes_per_parameter("head")
    total["head"] = 0 if shape.tied_embeddings else table / WIDE_BYTES * head_bytes
    total["tables"] = shape.table_parameters * WIDE_BYTES
    total["encoders"] = shape.encoder_parameters * WIDE_BYTES
    total["replicated"] = shape.vector_parameters * WIDE_BYTES
    for group in shape.groups:
        for part, num_parameters in _parts(group, shape.hidden_size):
            width = shape.weight_format.part_bytes_per_parameter(part)
            total[part] += group.num_layers * num_parameters * width
    return dict(total)


def _parts(group: LayerGroup, hidden_size: int) -> Iterator[tuple[str, int]]:
    """Yield (part, parameters) of one layer."""
    yield "replicated", group.vector_parameters + group.replicated_parameters
    if group.attention is not None:
        is_state = isinstance(group.attention, StateAttention)
        part = "state_attention" if is_state else "attention"
        yield part, attention_parameters(group.attention, hidden_size=hidden_size)
    if group.ffn is not None:
        yield from ffn_parts(group.ffn, hidden_size=hidden_size)
