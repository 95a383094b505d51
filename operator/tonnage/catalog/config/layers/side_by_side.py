"""From configuration keys to layers of families that mix attention with states.

A layer with attention and a state side by side is read as two: the first with the attention, the
second with the state and the feed-forward block. Each keeps its own cache, as in the engine.
"""

import math
from dataclasses import replace
from typing import Final

from tonnage.catalog.config.keys.decoder import (
    DecoderKeys,
    ModelConfigError,
    UnknownArchitectureError,
)
from tonnage.catalog.config.layers.attention import grouped_attention, with_kv_heads
from tonnage.catalog.config.layers.ffn import dense, experts_where_sparse, moe
from tonnage.catalog.config.layers.state import MODEL_TYPE_BYTES, mamba2, mixed
from tonnage.catalog.shape import Attention, Ffn, GroupedAttention, StateAttention

STEP_SHARE: Final = 16
"""Widths of the model that share one of the vector that Mamba-1 makes its steps of."""
_HYBRID: Final = "hybrid"
_MAMBA: Final = frozenset({"linear_attention", "mamba", "m"})


def attention_and_mamba(keys: DecoderKeys) -> list[Attention]:
    """Falcon-H1: attention and Mamba-2 side by side in every layer.

    Sources:
        [vllm-source] model_executor/models/falcon_h1.py.
    """
    width = keys.mamba_d_ssm
    if width is not None and not isinstance(keys.mamba_head_dim, int):
        head_dim = width // keys.needed.mamba_num_heads
        keys = keys.model_copy(update={"mamba_head_dim": head_dim})
    layer: list[Attention] = [grouped_attention(with_kv_heads(keys)), mamba2(keys)]
    return layer * keys.num_hidden_layers


def dense_in_every_second(keys: DecoderKeys) -> list[Ffn | None]:
    """Falcon-H1: one block behind both halves of a layer."""
    return [part for block in dense(keys) for part in (None, block)]


def mamba_with_some_attention(keys: DecoderKeys) -> list[Attention]:
    """Jamba: Mamba-1 but for every ``attn_layer_period``-th layer.

    Sources:
        [vllm-source] model_executor/models/jamba.py, layers/mamba/mamba_mixer.py.
    """
    return mixed(keys, grouped_attention(keys), _mamba1(keys))


def _mamba1(keys: DecoderKeys) -> StateAttention:
    width = keys.needed.mamba_expand * keys.hidden_size
    heads = keys.num_attention_heads
    if width % heads:
        raise ModelConfigError(
            f"num_attention_heads = {heads} does not divide the {width} channels of Mamba"
        )
    rank = keys.mamba_dt_rank
    return StateAttention(
        kind="mamba1",
        num_key_heads=1,
        num_value_heads=heads,
        key_head_dim=keys.needed.ssm_state_size,
        value_head_dim=width // heads,
        conv_kernel=keys.needed.conv_kernel,
        state_element_bytes=MODEL_TYPE_BYTES,
        step_rank=rank if isinstance(rank, int) else math.ceil(keys.hidden_size / STEP_SHARE),
    )


def experts_in_some(keys: DecoderKeys) -> list[Ffn]:
    """Jamba: experts in every ``expert_layer_period``-th layer, as wide as the dense blocks."""
    if keys.needed.num_experts == 1:
        return dense(keys)
    period = keys.needed.expert_layer_period
    is_sparse = [
        layer % period == keys.expert_layer_offset for layer in range(keys.num_hidden_layers)
    ]
    return experts_where_sparse(keys, is_sparse, moe(keys, width=keys.needed.intermediate_size))


def lightning_with_some_attention(keys: DecoderKeys) -> list[Attention]:
    """MiniMax-Text-01: lightning attention but where ``attn_type_list`` or ``layer_types`` says.

    Sources:
        [vllm-source] model_executor/models/minimax_text_01.py, until 0.2x; layers/mamba/
        mamba_utils.py linear_attention_state_shape.
    """
    attention = grouped_attention(keys)
    state = StateAttention(
        kind="lightning",
        num_key_heads=attention.num_heads,
        num_value_heads=attention.num_heads,
        key_head_dim=attention.head_dim,
        value_head_dim=attention.head_dim,
        conv_kernel=1,
        state_element_bytes=MODEL_TYPE_BYTES,
    )
    return mixed(keys, attention, state)


def narrow_queries(keys: DecoderKeys) -> list[Attention]:
    """Step-3: queries of all heads from a narrow vector, and one KV head for each group.

    Sources:
        [vllm-source] model_executor/models/step3_text.py.
    """
    groups = keys.needed.num_key_value_heads
    if groups != 1:
        raise UnknownArchitectureError(f"num_attention_groups = {groups} is not understood yet")
    attention = replace(grouped_attention(keys), query_rank=keys.needed.share_q_dim)
    return [attention] * keys.num_hidden_layers


def mamba_with_shared_attention(keys: DecoderKeys) -> list[Attention]:
    """Zamba2: Mamba-2 everywhere; before some layers a block of attention that others share.

    Its weights are counted once (``shared_blocks``); its cache is kept by each layer.

    Sources:
        [vllm-source] model_executor/models/zamba2.py.
    """
    attention, state = _wide_attention(keys), mamba2(keys)
    parts: list[Attention] = []
    for kind in _zamba_kinds(keys):
        parts += [attention, state] if kind == _HYBRID else [state]
    return parts


def no_blocks(keys: DecoderKeys) -> list[Ffn | None]:
    """Zamba2: the block is part of what is shared."""
    return [None] * len(mamba_with_shared_attention(keys))


def _wide_attention(keys: DecoderKeys) -> GroupedAttention:
    """Return attention over the model's width twice: the state beside the embedding."""
    keys = with_kv_heads(keys)
    head_dim = 2 * keys.hidden_size // keys.num_attention_heads
    return replace(
        grouped_attention(keys.model_copy(update={"head_dim": head_dim})), owns_weights=False
    )


def _zamba_kinds(keys: DecoderKeys) -> list[str]:
    kinds: list[str] = keys.by_layer("layers_block_type")
    for index, kind in enumerate(kinds):
        if kind not in _MAMBA and kind != _HYBRID:
            raise UnknownArchitectureError(
                f"layers of this kind (layers_block_type[{index}] = {kind!r:.100}) "
                "are not understood yet"
            )
    return kinds


def shared_blocks(keys: DecoderKeys) -> int:
    """Count the shared blocks of Zamba2, and what each layer that uses one has of its own."""
    hidden, inner = keys.hidden_size, keys.needed.intermediate_size
    attention = _wide_attention(keys)
    width = 2 * hidden
    each = 3 * width * width + width * hidden + 3 * hidden * inner + width + hidden
    rank: int = keys.adapter_rank or 0
    adapters = rank * (hidden + 2 * inner)
    if keys.use_shared_attention_adapter:
        adapters += 3 * rank * (width + attention.num_heads * attention.head_dim)
    users = sum(kind == _HYBRID for kind in _zamba_kinds(keys))
    return keys.needed.num_mem_blocks * each + users * (hidden * hidden + adapters)
