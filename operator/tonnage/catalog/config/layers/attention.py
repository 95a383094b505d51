"""From configuration keys to the attention of each layer, one function per family of rules."""

from dataclasses import replace

from tonnage.catalog.config.keys.decoder import (
    DecoderKeys,
    ModelConfigError,
    check_length,
    required_number,
)
from tonnage.catalog.shape import Attention, GroupedAttention, LatentAttention
from tonnage.units import count_of


def full(keys: DecoderKeys) -> list[Attention]:
    """Every layer reads every earlier token."""
    return [grouped_attention(keys)] * keys.num_hidden_layers


def plain(keys: DecoderKeys) -> list[Attention]:
    """One window or none for all; without KV heads in the file, as many as query heads."""
    attention = grouped_attention(with_kv_heads(keys))
    return [with_window(keys, attention, keys.sliding_window)] * keys.num_hidden_layers


def window_everywhere(keys: DecoderKeys) -> list[Attention]:
    """Every layer has the window, or none when it is null (Mistral)."""
    if not keys.was_given("sliding_window"):
        raise ModelConfigError("sliding_window is missing (null means none)")
    return [
        with_window(keys, grouped_attention(keys), keys.sliding_window)
    ] * keys.num_hidden_layers


def window_if_used(keys: DecoderKeys) -> list[Attention]:
    """Qwen: a window counts only with ``use_sliding_window``, from ``max_window_layers`` on."""
    if keys.layer_types is not None:
        return by_layer_type(keys, [])
    if not keys.use_sliding_window:
        return full(keys)
    first = required_number(keys, "max_window_layers")
    types = [_SLIDING if layer >= first else _FULL for layer in range(keys.num_hidden_layers)]
    return by_layer_type(keys, types)


def alternating_windows(keys: DecoderKeys) -> list[Attention]:
    """Window and full in turn, window first, unless ``layer_types`` says it (Gemma 2, gpt-oss)."""
    return by_layer_type(keys, windows_with_full(keys, 2))


def five_windows_to_one(keys: DecoderKeys) -> list[Attention]:
    """Every sixth layer is full, unless the file says otherwise (Gemma 3)."""
    return by_layer_type(keys, windows_with_full(keys, keys.sliding_window_pattern or 6))


_SLIDING, _FULL, _CHUNKED = "sliding_attention", "full_attention", "chunked_attention"
LAYER_TYPES = frozenset({_SLIDING, _FULL, _CHUNKED})


def windows_with_full(keys: DecoderKeys, period: int) -> list[str]:
    """Return the types of layers of which every ``period``-th is full, the others have windows."""
    return [
        _FULL if layer % period == period - 1 else _SLIDING
        for layer in range(keys.num_hidden_layers)
    ]


def by_layer_type(keys: DecoderKeys, default: list[str]) -> list[Attention]:
    """Read ``layer_types``; a chunk of local attention holds as much as a window of its size."""
    types = default if keys.layer_types is None else keys.layer_types
    check_length("layer_types", types, keys.num_hidden_layers)
    return [_of_type(keys, layer_type) for layer_type in types]


def _of_type(keys: DecoderKeys, layer_type: str) -> Attention:
    match layer_type:
        case "sliding_attention":
            return with_window(
                keys, grouped_attention(keys), required_number(keys, "sliding_window")
            )
        case "chunked_attention":
            chunk = with_window(
                keys, grouped_attention(keys), required_number(keys, "attention_chunk_size")
            )
            return replace(chunk, is_chunked=chunk.window_tokens is not None)
        case _:
            return grouped_attention(keys)


def chunked_with_full(keys: DecoderKeys) -> list[Attention]:
    """Llama 4: layers without rotary positions are full, the others attend within a chunk."""
    if keys.layer_types is not None:
        return by_layer_type(keys, [])
    has_rope = keys.no_rope_layers or [
        int((layer + 1) % keys.no_rope_layer_interval != 0)
        for layer in range(keys.num_hidden_layers)
    ]
    check_length("no_rope_layers", has_rope, keys.num_hidden_layers)
    return by_layer_type(keys, [_CHUNKED if rope else _FULL for rope in has_rope])


def wide_global_heads(keys: DecoderKeys) -> list[Attention]:
    """Gemma 4: the full layers have wider KV heads than the window layers, and may have fewer."""
    if keys.layer_types is None:
        raise ModelConfigError("layer_types is missing")
    fewer = keys.num_global_key_value_heads if keys.attention_k_eq_v else None
    wide = _check_heads(
        keys.num_attention_heads,
        GroupedAttention(
            num_heads=keys.num_attention_heads,
            num_kv_heads=fewer or required_number(keys, "num_key_value_heads"),
            head_dim=required_number(keys, "global_head_dim"),
            has_bias=keys.attention_bias,
            values_are_keys=keys.attention_k_eq_v,
        ),
        key="num_global_key_value_heads" if fewer else "num_key_value_heads",
    )
    narrow = by_layer_type(keys, [])
    return [
        wide if layer_type == _FULL else attention
        for layer_type, attention in zip(keys.layer_types, narrow, strict=True)
    ]


def mimo_windows(keys: DecoderKeys) -> list[Attention]:
    """MiMo-V2: ``hybrid_layer_pattern`` marks window layers, which have their own heads."""
    pattern = keys.hybrid_layer_pattern
    if pattern is None:
        raise ModelConfigError("hybrid_layer_pattern is missing")
    check_length("hybrid_layer_pattern", pattern, keys.num_hidden_layers)
    wide = replace(grouped_attention(keys), value_head_dim=required_number(keys, "v_head_dim"))
    heads = required_number(keys, "swa_num_attention_heads")
    local = GroupedAttention(
        num_heads=heads,
        num_kv_heads=required_number(keys, "swa_num_key_value_heads"),
        head_dim=required_number(keys, "swa_head_dim"),
        value_head_dim=required_number(keys, "swa_v_head_dim"),
        has_bias=keys.attention_bias,
    )
    local = _check_heads(heads, local, key="swa_num_key_value_heads")
    local = with_window(keys, local, required_number(keys, "sliding_window"))
    return [local if is_window else wide for is_window in pattern]


def latent(keys: DecoderKeys) -> list[LatentAttention]:
    """Multi-head latent attention. ``num_key_value_heads`` and ``head_dim`` mean nothing here."""
    if not keys.was_given("q_lora_rank"):
        raise ModelConfigError("q_lora_rank is missing (null means none)")
    attention = LatentAttention(
        num_heads=keys.num_attention_heads,
        kv_lora_rank=required_number(keys, "kv_lora_rank"),
        qk_rope_head_dim=required_number(keys, "qk_rope_head_dim"),
        qk_nope_head_dim=required_number(keys, "qk_nope_head_dim"),
        value_head_dim=required_number(keys, "v_head_dim"),
        q_lora_rank=keys.q_lora_rank,
    )
    return [attention] * keys.num_hidden_layers


def derived_head_dim(keys: DecoderKeys) -> DecoderKeys:
    """Fill in ``head_dim`` where the class divides the width by the heads when it is not given.

    Raises:
        ModelConfigError: the width is not a multiple of the heads.
    """
    if keys.head_dim is not None:
        return keys
    if keys.hidden_size % keys.num_attention_heads:
        raise ModelConfigError(
            f"head_dim is missing and num_attention_heads = {keys.num_attention_heads} does not "
            f"divide hidden_size = {keys.hidden_size}"
        )
    return keys.model_copy(update={"head_dim": keys.hidden_size // keys.num_attention_heads})


def with_kv_heads(keys: DecoderKeys) -> DecoderKeys:
    """Fill in as many KV heads as query heads where the file does not say."""
    if keys.num_key_value_heads is not None:
        return keys
    return keys.model_copy(update={"num_key_value_heads": keys.num_attention_heads})


def grouped_attention(keys: DecoderKeys) -> GroupedAttention:
    """Read the heads that most families have; the KV heads must be given."""
    attention = GroupedAttention(
        num_heads=keys.num_attention_heads,
        num_kv_heads=required_number(keys, "num_key_value_heads"),
        head_dim=required_number(keys, "head_dim"),
        has_bias=keys.attention_bias,
    )
    return _check_heads(keys.num_attention_heads, attention, key="num_key_value_heads")


def _check_heads(num_heads: int, attention: GroupedAttention, *, key: str) -> GroupedAttention:
    if num_heads % attention.num_kv_heads:
        raise ModelConfigError(
            f"{key} = {attention.num_kv_heads} does not divide the "
            f"{count_of(num_heads, 'attention head')}"
        )
    return attention


def with_window(
    keys: DecoderKeys, attention: GroupedAttention, window_tokens: int | None
) -> GroupedAttention:
    """Give the layer a window, unless no request can be longer than that."""
    longest = keys.max_position_embeddings
    if window_tokens is None or (longest is not None and window_tokens >= longest):
        return attention
    return replace(attention, window_tokens=window_tokens)
