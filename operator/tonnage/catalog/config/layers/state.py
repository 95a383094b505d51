"""From configuration keys to layers that keep a state per sequence, and their neighbours.

Some of these layers lack a half: a Nemotron-H layer is either a mixer or a feed-forward block. One
with attention and a state side by side is read as two: the first with the attention, the second
with the state and the feed-forward block. Each keeps its own cache, as in the engine.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from tonnage.catalog.config.keys.decoder import (
    DecoderKeys,
    ModelConfigError,
    UnknownArchitectureError,
)
from tonnage.catalog.config.layers.attention import (
    grouped_attention,
    latent,
    with_kv_heads,
    with_window,
)
from tonnage.catalog.config.layers.ffn import dense, experts_where_sparse, moe
from tonnage.catalog.shape import Attention, DenseFfn, Ffn, GroupedAttention, StateAttention
from tonnage.units import count_of

MODEL_TYPE_BYTES: Final = 2
"""Of an element in the type that vLLM serves the model in: always one of 16 bits."""
FLOAT32_BYTES: Final = 4

_STATE, _FULL, _DENSE, _EXPERTS = "state", "full attention", "dense", "experts"
_KINDS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("linear_attention", "mamba", "M", "conv"), _STATE),
    **dict.fromkeys(("full_attention", "indexed_attention", "attention", "*"), _FULL),
    **dict.fromkeys(("mlp", "-"), _DENSE),
    **dict.fromkeys(("moe", "E"), _EXPERTS),
}


def delta_net(keys: DecoderKeys) -> list[Attention]:
    """Gated delta net and gated attention in turn; ``mamba_ssm_dtype`` says the state's type.

    Sources:
        [vllm-source] model_executor/models/config.py: without the key, the model's type.
    """
    return _delta_nets(keys, _type_bytes(keys.mamba_ssm_dtype))


def delta_net_in_model_type(keys: DecoderKeys) -> list[Attention]:
    """Like ``delta_net``, but whatever the file says, vLLM keeps the type of the model."""
    return _delta_nets(keys, MODEL_TYPE_BYTES)


def _delta_nets(keys: DecoderKeys, state_element_bytes: int) -> list[Attention]:
    full = replace(grouped_attention(keys), has_output_gate=keys.attn_output_gate)
    state = _check_state(
        StateAttention(
            kind="gated_delta_net",
            num_key_heads=keys.needed.linear_num_key_heads,
            num_value_heads=keys.needed.linear_num_value_heads,
            key_head_dim=keys.needed.linear_key_head_dim,
            value_head_dim=keys.needed.linear_value_head_dim,
            conv_kernel=keys.needed.linear_conv_kernel_dim,
            state_element_bytes=state_element_bytes,
        ),
        key="linear_num_key_heads",
    )
    return mixed(keys, full, state)


def kimi_delta(keys: DecoderKeys) -> list[Attention]:
    """Kimi Linear: delta attention, with latent attention without rotary positions in between.

    Sources:
        [vllm-source] layers/mamba/mamba_utils.py: the state is float32 unless a flag says
        otherwise.
    """
    block = keys.linear_attn_config
    if block is None:
        raise ModelConfigError("linear_attn_config is missing")
    indices = sorted(block.kda_layers + block.full_attn_layers)
    if indices != list(range(1, keys.num_hidden_layers + 1)):
        raise ModelConfigError(
            "linear_attn_config.kda_layers and full_attn_layers do not name each of the "
            f"{count_of(keys.num_hidden_layers, 'layer')} once"
        )
    state = StateAttention(
        kind="kimi_delta",
        num_key_heads=block.num_heads,
        num_value_heads=block.num_heads,
        key_head_dim=block.head_dim,
        value_head_dim=block.head_dim,
        conv_kernel=block.short_conv_kernel_size,
        state_element_bytes=FLOAT32_BYTES,
        has_full_rank_gate=block.use_full_rank_gate,
    )
    gated = bool(keys.mla_use_output_gate)
    full: list[Attention] = [replace(layer, has_output_gate=gated) for layer in latent(keys)]
    for index in block.kda_layers:
        full[index - 1] = state
    return full


def nemotron_mixers(keys: DecoderKeys) -> list[Attention | None]:
    """Nemotron-H: Mamba-2, attention, or none where the layer is a feed-forward block.

    Sources:
        [vllm-source] model_executor/models/config.py: the state is float32 unless
        ``mamba_ssm_cache_dtype`` says otherwise.
    """
    if keys.mamba_head_dim is None:
        raise ModelConfigError("mamba_head_dim is missing")
    mixers: dict[str, Attention] = {
        _STATE: mamba2(keys, _type_bytes(keys.mamba_ssm_cache_dtype)),
        _FULL: with_window(keys, grouped_attention(keys), keys.sliding_window),
    }
    return [mixers.get(kind) for kind in _nemotron_kinds(keys)]


def nemotron_blocks(keys: DecoderKeys) -> list[Ffn | None]:
    """Nemotron-H: blocks without a gate, dense or experts, in layers of their own."""
    kinds = _nemotron_kinds(keys)
    blocks: dict[str, Ffn] = {}
    if _DENSE in kinds:
        width = keys.needed.intermediate_size
        blocks[_DENSE] = DenseFfn(intermediate_size=width, num_matrices=2)
    if _EXPERTS in kinds:
        num_shared = keys.needed.n_shared_experts
        width = keys.needed.moe_shared_expert_intermediate_size if num_shared else 0
        experts = moe(keys, width=keys.needed.moe_intermediate_size, shared=num_shared * width)
        blocks[_EXPERTS] = replace(experts, num_matrices=2)
    return [blocks.get(kind) for kind in kinds]


def _nemotron_kinds(keys: DecoderKeys) -> list[str]:
    for key in ("layers_block_type", "hybrid_override_pattern"):
        if getattr(keys, key) is not None:
            return _kinds(keys, key)
    raise ModelConfigError("hybrid_override_pattern is missing, and layers_block_type too")


def mamba2(keys: DecoderKeys, state_element_bytes: int = MODEL_TYPE_BYTES) -> StateAttention:
    """Read a Mamba-2 layer; without a width of its own a head has its part of the expansion.

    Raises:
        ModelConfigError: a key is missing, or heads are no multiple of groups.
    """
    heads, head_dim = keys.needed.mamba_num_heads, keys.mamba_head_dim
    if not isinstance(head_dim, int):
        head_dim = keys.needed.mamba_expand * keys.hidden_size // heads
    layer = StateAttention(
        kind="mamba2",
        num_key_heads=keys.needed.n_groups,
        num_value_heads=heads,
        key_head_dim=keys.needed.ssm_state_size,
        value_head_dim=head_dim,
        conv_kernel=keys.needed.conv_kernel,
        state_element_bytes=state_element_bytes,
    )
    return _check_state(layer, key="n_groups")


def granite_blocks(keys: DecoderKeys) -> list[Ffn]:
    """Granite 4: experts and a shared one, or only the shared one for models without experts."""
    shared = keys.needed.shared_intermediate_size
    if keys.num_experts == 0:
        return [DenseFfn(intermediate_size=shared)] * keys.num_hidden_layers
    block = moe(keys, width=keys.needed.intermediate_size, shared=shared)
    return [block] * keys.num_hidden_layers


def mamba2_or_full(keys: DecoderKeys) -> list[Attention]:
    """Mamba-2 or attention, before a feed-forward block (Bamba, Granite 4)."""
    return mixed(keys, grouped_attention(keys), mamba2(keys))


def mixed(keys: DecoderKeys, full: GroupedAttention, state: StateAttention) -> list[Attention]:
    """Return attention where a key says so, of those that families have, and states elsewhere."""
    layers = range(keys.num_hidden_layers)
    if keys.layer_types is not None:
        marks = [kind == _FULL for kind in _kinds(keys, "layer_types")]
    elif keys.attn_type_list is not None:
        marks = [bool(kind) for kind in keys.by_layer("attn_type_list")]
    elif keys.attn_layer_indices is not None:
        marks = [layer in keys.attn_layer_indices for layer in layers]
    elif keys.attn_layer_period is not None:
        marks = [layer % keys.attn_layer_period == keys.attn_layer_offset for layer in layers]
    elif keys.full_attention_interval is not None:
        marks = [(layer + 1) % keys.full_attention_interval == 0 for layer in layers]
    else:
        known = "layer_types, full_attention_interval, attn_layer_indices, attn_layer_period"
        raise ModelConfigError(f"{known} and attn_type_list are missing: which layers attend?")
    return [full if is_full else state for is_full in marks]


def _type_bytes(name: str | None) -> int:
    return FLOAT32_BYTES if name == "float32" else MODEL_TYPE_BYTES


def _kinds(keys: DecoderKeys, key: str, known: Mapping[str, str] = _KINDS) -> list[str]:
    entries = keys.by_layer(key)
    for index, entry in enumerate(entries):
        if entry not in known:
            raise UnknownArchitectureError(
                f"layers of this kind ({key}[{index}] = {entry!r:.100}) are not understood yet"
            )
    return [known[entry] for entry in entries]


def _check_state(layer: StateAttention, *, key: str) -> StateAttention:
    if layer.num_value_heads % layer.num_key_heads:
        raise ModelConfigError(
            f"{key} = {layer.num_key_heads} does not divide the "
            f"{count_of(layer.num_value_heads, 'head')} that keep a state"
        )
    return layer


def short_convolutions(keys: DecoderKeys) -> list[Attention]:
    """Convolutions over every channel, and attention where ``layer_types`` says so.

    Sources:
        [vllm-source] model_executor/layers/mamba/short_conv.py.
    """
    full, heads = grouped_attention(keys), keys.num_attention_heads
    convolution = StateAttention(
        kind="short_conv",
        num_key_heads=0,
        num_value_heads=heads,
        key_head_dim=0,
        value_head_dim=keys.hidden_size // heads,
        conv_kernel=keys.needed.conv_l_cache,
        state_element_bytes=MODEL_TYPE_BYTES,
    )
    return mixed(keys, full, convolution)


def adjusted_dense(keys: DecoderKeys) -> list[Ffn]:
    """Blocks whose width is two thirds of the one given, rounded up, unless that is switched off.

    Sources:
        [vllm-source] model_executor/models/lfm2.py.
    """
    width = keys.needed.intermediate_size
    if keys.block_auto_adjust_ff_dim:
        multiple = keys.needed.block_multiple_of
        narrowed = int(keys.block_ffn_dim_multiplier * (2 * width // 3))
        width = -(-narrowed // multiple) * multiple
    return [DenseFfn(intermediate_size=width)] * keys.num_hidden_layers


STEP_SHARE: Final = 16
"""Widths of the model that share one of the vector that Mamba-1 makes its steps of."""
_HYBRID: Final = "hybrid"
_ZAMBA_KINDS: Final[Mapping[str, str]] = {
    _HYBRID: _HYBRID, **dict.fromkeys(("linear_attention", "mamba", "m"), _STATE)
}  # fmt: skip


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
    full = grouped_attention(keys)
    width = keys.needed.mamba_expand * keys.hidden_size
    heads = keys.num_attention_heads
    if width % heads:
        raise ModelConfigError(
            f"num_attention_heads = {heads} does not divide the {width} channels of Mamba"
        )
    rank = keys.mamba_dt_rank
    state = StateAttention(
        kind="mamba1",
        num_key_heads=1,
        num_value_heads=heads,
        key_head_dim=keys.needed.ssm_state_size,
        value_head_dim=width // heads,
        conv_kernel=keys.needed.conv_kernel,
        state_element_bytes=MODEL_TYPE_BYTES,
        step_rank=rank if isinstance(rank, int) else math.ceil(keys.hidden_size / STEP_SHARE),
    )
    return mixed(keys, full, state)


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
    return mixed(keys, attention, lightning(attention.num_heads, attention.head_dim))


def lightning(num_heads: int, head_dim: int) -> StateAttention:
    return StateAttention(
        kind="lightning",
        num_key_heads=num_heads,
        num_value_heads=num_heads,
        key_head_dim=head_dim,
        value_head_dim=head_dim,
        conv_kernel=1,
        state_element_bytes=MODEL_TYPE_BYTES,
    )


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

    Its weights are counted once (``shared_blocks``); each layer has a cache of its own.

    Sources:
        [vllm-source] model_executor/models/zamba2.py.
    """
    attention, state = _wide_attention(keys), mamba2(keys)
    parts: list[Attention] = []
    for kind in _kinds(keys, "layers_block_type", _ZAMBA_KINDS):
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
    users = _kinds(keys, "layers_block_type", _ZAMBA_KINDS).count(_HYBRID)
    return keys.needed.num_mem_blocks * each + users * (hidden * hidden + adapters)
