"""How many parameters a model has, counted from its shape."""

from collections.abc import Iterator

from tonnage.catalog.shape import (
    Attention,
    DenseFfn,
    Ffn,
    GroupedAttention,
    LatentAttention,
    LayerGroup,
    ModelShape,
    MoeFfn,
)


def num_parameters(shape: ModelShape) -> int:
    """Return all parameters: tables, attention, feed-forward blocks, experts, routers, norms.

    Counts a tied table once. Leaves out what a text request does not touch: vision and audio
    towers, and layers for speculative decoding.
    """
    layers = sum(
        group.num_layers * (attention + ffn + group.vector_parameters)
        for group, attention, ffn in _parts(shape)
    )
    return _tables(shape) + shape.vector_parameters + layers


def num_active_parameters(shape: ModelShape) -> int:
    """Return the parameters that one token meets: all but the experts that it is not sent to.

    The tables are counted whole, as they are in ``num_parameters``.
    """
    idle = sum(
        group.num_layers * _idle_experts(group.ffn, shape.hidden_size) for group in shape.groups
    )
    return num_parameters(shape) - idle


def attention_parameters(attention: Attention, *, hidden_size: int) -> int:
    """Return the matrices of one layer's attention.

    >>> llama_70b = GroupedAttention(num_heads=64, num_kv_heads=8, head_dim=128)
    >>> attention_parameters(llama_70b, hidden_size=8192)
    150994944
    """
    match attention:
        case GroupedAttention():
            queries = attention.num_heads * (1 + attention.has_output_gate)
            keys = attention.num_kv_heads
            values = 0 if attention.values_are_keys else attention.num_kv_heads
            key_rows = (queries + keys) * attention.head_dim
            value_rows = (values + attention.num_heads) * attention.num_value_dims
            return hidden_size * (key_rows + value_rows)
        case LatentAttention():
            return _latent_parameters(attention, hidden_size)


def ffn_parameters(ffn: Ffn, *, hidden_size: int) -> int:
    """Return the matrices of one layer's feed-forward block, with all experts and the router."""
    match ffn:
        case DenseFfn():
            return ffn.num_matrices * hidden_size * ffn.intermediate_size
        case MoeFfn():
            shared = ffn.num_matrices * hidden_size * ffn.shared_intermediate_size
            router = hidden_size * ffn.num_experts
            return router + shared + ffn.num_experts * _expert_parameters(ffn, hidden_size)


def _expert_parameters(ffn: MoeFfn, hidden_size: int) -> int:
    matrices = ffn.num_matrices * hidden_size * ffn.expert_intermediate_size
    return matrices + ffn.expert_vector_parameters


def _idle_experts(ffn: Ffn, hidden_size: int) -> int:
    if isinstance(ffn, DenseFfn):
        return 0
    return (ffn.num_experts - ffn.experts_per_token) * _expert_parameters(ffn, hidden_size)


def _tables(shape: ModelShape) -> int:
    return shape.vocab_size * shape.hidden_size * (1 if shape.tied_embeddings else 2)


def _parts(shape: ModelShape) -> Iterator[tuple[LayerGroup, int, int]]:
    for group in shape.groups:
        yield (
            group,
            attention_parameters(group.attention, hidden_size=shape.hidden_size),
            ffn_parameters(group.ffn, hidden_size=shape.hidden_size),
        )


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
    return query + down + up + attention.num_heads * attention.value_head_dim * hidden_size
