"""From configuration keys to the attention of each layer, one function per family of rules."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Final

from tonnage.catalog.config.keys.decoder import DecoderKeys, ModelConfigError
from tonnage.catalog.shape import (
    Attention,
    CompressedAttention,
    GroupedAttention,
    LatentAttention,
)
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


def windows_late(keys: DecoderKeys) -> list[Attention]:
    """Qwen, dots: the window counts from ``max_window_layers`` on."""
    return _if_used(keys, lambda layer: layer >= keys.needed.max_window_layers)


def windows_early_in_turn(keys: DecoderKeys) -> list[Attention]:
    """Qwen 2 MoE: every second layer below ``max_window_layers``."""
    return _if_used(keys, lambda layer: layer % 2 == 0 and layer < keys.needed.max_window_layers)


def windows_without_positions(keys: DecoderKeys) -> list[Attention]:
    """SmolLM 3: layers without rotary positions have the window."""
    return _if_used(keys, lambda layer: not has_positions(keys)[layer])


def _if_used(keys: DecoderKeys, has_window: Callable[[int], bool]) -> list[Attention]:
    """Return windows with ``use_sliding_window``, by ``layer_types`` if there are any."""
    is_null = keys.was_given("sliding_window") and keys.sliding_window is None
    listed = keys.layer_types is not None
    if is_null or not (listed or keys.use_sliding_window):
        return full(with_kv_heads(keys))
    marks = [] if listed else map(has_window, range(keys.num_hidden_layers))
    return by_layer_type(with_kv_heads(keys), window_types(marks))


def windows_by_pattern(keys: DecoderKeys) -> list[Attention]:
    """Every so many layers one is full, unless ``layer_types`` says it (Gemma, OLMo 3)."""
    marks = all_but_every(keys.needed.sliding_window_pattern, keys)
    return by_layer_type(with_kv_heads(keys), window_types(marks))


_SLIDING, _FULL, _CHUNKED = "sliding_attention", "full_attention", "chunked_attention"
LAYER_TYPES = frozenset({_SLIDING, _FULL, _CHUNKED})


def all_but_every(period: int, keys: DecoderKeys) -> list[bool]:
    """Mark the layers, but every ``period``-th."""
    return [(layer + 1) % period != 0 for layer in range(keys.num_hidden_layers)]


def window_types(marks: Iterable[bool]) -> list[str]:
    """Return the types of layers of which the marked ones have windows."""
    return [_SLIDING if is_window else _FULL for is_window in marks]


def has_positions(keys: DecoderKeys) -> list[bool]:
    """Mark the layers whose heads turn with the position: as listed, else all but every n-th."""
    if not keys.no_rope_layers:
        return all_but_every(keys.no_rope_layer_interval, keys)
    return [bool(mark) for mark in keys.by_layer("no_rope_layers")]


def by_layer_type(keys: DecoderKeys, default: list[str]) -> list[Attention]:
    """Read ``layer_types``; a chunk of local attention holds as much as a window of its size."""
    types = default if keys.layer_types is None else keys.by_layer("layer_types")
    return [_of_type(keys, layer_type) for layer_type in types]


def _of_type(keys: DecoderKeys, layer_type: str) -> Attention:
    match layer_type:
        case "sliding_attention":
            return with_window(keys, grouped_attention(keys), keys.needed.sliding_window)
        case "chunked_attention":
            chunk = with_window(keys, grouped_attention(keys), keys.needed.attention_chunk_size)
            return replace(chunk, is_chunked=chunk.window_tokens is not None)
        case _:
            return grouped_attention(keys)


def chunked_with_full(keys: DecoderKeys) -> list[Attention]:
    """Llama 4: layers without rotary positions are full, the others attend within a chunk."""
    if keys.layer_types is not None:
        return by_layer_type(keys, [])
    types = [_CHUNKED if turns else _FULL for turns in has_positions(keys)]
    return by_layer_type(keys, types)


def wide_global_heads(keys: DecoderKeys) -> list[Attention]:
    """Gemma 4: the full layers have wider KV heads than the window layers, and may have fewer."""
    fewer = keys.num_global_key_value_heads if keys.attention_k_eq_v else None
    listed = [each.head_dim for each in (keys.per_layer_config or {}).values() if each.head_dim]
    listed_dim = max(listed, default=None)  # of the layers that are listed because they differ
    wide = _check_heads(
        keys.num_attention_heads,
        GroupedAttention(
            num_heads=keys.num_attention_heads,
            num_kv_heads=fewer or keys.needed.num_key_value_heads,
            head_dim=keys.global_head_dim or listed_dim or keys.needed.global_head_dim,
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
    pattern = keys.by_layer("hybrid_layer_pattern")
    wide = replace(grouped_attention(keys), value_head_dim=keys.needed.v_head_dim)
    heads = keys.needed.swa_num_attention_heads
    local = GroupedAttention(
        num_heads=heads,
        num_kv_heads=keys.needed.swa_num_key_value_heads,
        head_dim=keys.needed.swa_head_dim,
        value_head_dim=keys.needed.swa_v_head_dim,
        has_bias=keys.attention_bias,
    )
    local = _check_heads(heads, local, key="swa_num_key_value_heads")
    local = with_window(keys, local, keys.needed.sliding_window)
    return [local if is_window else wide for is_window in pattern]


def latent(keys: DecoderKeys) -> list[LatentAttention]:
    """Multi-head latent attention. ``num_key_value_heads`` and ``head_dim`` mean nothing here."""
    if not keys.was_given("q_lora_rank"):
        raise ModelConfigError("q_lora_rank is missing (null means none)")
    attention = LatentAttention(
        num_heads=keys.num_attention_heads,
        kv_lora_rank=keys.needed.kv_lora_rank,
        qk_rope_head_dim=keys.needed.qk_rope_head_dim,
        qk_nope_head_dim=keys.needed.qk_nope_head_dim,
        value_head_dim=keys.needed.v_head_dim,
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
        num_kv_heads=keys.needed.num_key_value_heads,
        head_dim=keys.needed.head_dim,
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


IMAGE_POSITIONS: Final = 4
"""Rows for each position of the text, where images and videos have positions of their own."""
WIDE: Final = 2
"""DeepSeek V4 keeps its tables in 32 bits."""
STRETCHED: Final = frozenset({"linear", "dynamic"})
"""Scalings whose factor counts from the length of the file, not from that of the training."""


def rotary_elements(
    keys: DecoderKeys,
    attentions: Iterable[Attention | None],
    *,
    default_fraction: float,
    differs_by_window: bool,
) -> int:
    """Return the elements of all tables, which every rank holds in 16 bits.

    One table serves all layers whose heads turn over the same width at the same rate. With
    positions of images there are four rows for each of the text; vLLM 0.33 keeps one for Qwen 3:
    there this is up to 0.2 GiB too much.

    Sources:
        [vllm-source] model_executor/layers/rotary_embedding, models/deepseek_v4/common/rope.py;
        [kv-logs] 0.031 GiB beside the weights of Llama 3.1 8B: 131072 * 128 elements.
    """
    if keys.position_embedding_type == "nope" or not default_fraction:
        return 0
    tables = {_table(keys, attention, default_fraction) for attention in attentions}
    merged = {(width, is_local and differs_by_window) for width, is_local in tables}
    plain, stretched = _rows(keys)
    return sum(width * (plain if is_local else stretched) for width, is_local in merged)


def _table(
    keys: DecoderKeys, attention: Attention | None, default_fraction: float
) -> tuple[int, bool]:
    """Return elements of 16 bits in a row, and whether the layer has a window and nothing else."""
    match attention:
        case LatentAttention():
            return attention.qk_rope_head_dim, False
        case CompressedAttention():
            return WIDE * attention.qk_rope_head_dim, attention.compress_ratio is None
        case GroupedAttention():
            width = _grouped_width(keys, attention.head_dim, default_fraction)
            return width, attention.window_tokens is not None
        case _:
            return 0, False


def _grouped_width(keys: DecoderKeys, head_dim: int, default_fraction: float) -> int:
    if keys.rotary_dim is not None:
        return min(keys.needed.rotary_dim, head_dim)
    within = keys.rope_scaling.partial_rotary_factor if keys.rope_scaling else None
    found = [each for each in (within, keys.partial_rotary_factor) if each is not None]
    return int(head_dim * (found[0] if found else default_fraction))


def _rows(keys: DecoderKeys) -> tuple[int, int]:
    """Return the rows of a table without scaling, and of one with it."""
    longest, scaling = keys.max_position_embeddings or 0, keys.rope_scaling
    if scaling is None:
        return longest, longest
    if scaling.mrope_section is not None:
        longest *= IMAGE_POSITIONS
    factor = scaling.factor or 1.0
    if scaling.rope_type == "yarn":
        original = scaling.original_max_position_embeddings
        return longest, int(original * factor) if original else int(longest * factor)
    return longest, int(longest * factor) if scaling.rope_type in STRETCHED else longest
