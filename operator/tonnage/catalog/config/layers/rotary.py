"""How many sines and cosines a model keeps: a table of every position for each kind of layer."""

from collections.abc import Iterable
from typing import Final

from tonnage.catalog.config.keys.decoder import DecoderKeys
from tonnage.catalog.shape import (
    Attention,
    CompressedAttention,
    GroupedAttention,
    LatentAttention,
)

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
