"""Kinds of model whose last layers read the cache of earlier ones, with tables for each layer."""

from dataclasses import replace
from typing import Final

from tonnage.catalog.config.keys.decoder import DecoderKeys, ModelConfigError, check_length
from tonnage.catalog.config.layers.attention import by_layer_type, wide_global_heads
from tonnage.catalog.config.layers.ffn import experts_beside_dense
from tonnage.catalog.shape import Attention, DenseFfn, Ffn, GroupedAttention
from tonnage.units import count_of

LAYER_TABLE_MATRICES: Final = 3
"""Per layer: into the width of the layer's table, out of it, and the model's share of the sum."""


def shared_wide_global_heads(keys: DecoderKeys) -> list[Attention]:
    """Gemma 4: as ``wide_global_heads``, and the last layers may read the cache of earlier ones."""
    return _share_caches(keys, wide_global_heads(keys))


def shared_windows(keys: DecoderKeys) -> list[Attention]:
    """Gemma 3n: ``layer_types``, and the last layers read the cache of earlier ones."""
    return _share_caches(keys, by_layer_type(keys, []))


def _share_caches(keys: DecoderKeys, attentions: list[Attention]) -> list[Attention]:
    first = _first_shared(keys)
    return attentions[:first] + [
        replace(attention, owns_cache=False)
        if isinstance(attention, GroupedAttention)
        else attention
        for attention in attentions[first:]
    ]


def _first_shared(keys: DecoderKeys) -> int:
    shared = keys.num_kv_shared_layers or 0
    if shared >= keys.num_hidden_layers:
        raise ModelConfigError(
            f"num_kv_shared_layers = {shared} leaves none of the "
            f"{count_of(keys.num_hidden_layers, 'layer')} with a cache"
        )
    return keys.num_hidden_layers - shared


def double_where_shared(keys: DecoderKeys) -> list[Ffn]:
    """Gemma 4: with ``use_double_wide_mlp``, layers without a cache are twice as wide."""
    blocks, first = experts_beside_dense(keys), _first_shared(keys)
    if not keys.use_double_wide_mlp or first == len(blocks):
        return blocks
    if keys.enable_moe_block:
        raise ModelConfigError("use_double_wide_mlp = True with enable_moe_block = True")
    double = DenseFfn(intermediate_size=2 * keys.needed.intermediate_size)
    return [*blocks[:first], *[double] * (len(blocks) - first)]


def listed_widths(keys: DecoderKeys) -> list[Ffn]:
    """Gemma 3n: ``intermediate_size`` may be a list with the width of each layer."""
    widths = keys.intermediate_size
    if not isinstance(widths, list):
        widths = [keys.needed.intermediate_size] * keys.num_hidden_layers
    check_length("intermediate_size", widths, keys.num_hidden_layers)
    return [DenseFfn(intermediate_size=width) for width in widths]


def layer_table_matrices(keys: DecoderKeys, _layer: Attention | None) -> int:
    """Count what joins the row of a layer's table to its output, and the norm of that.

    Sources:
        [vllm-source] model_executor/models/gemma4.py.
    """
    width = keys.hidden_size_per_layer_input or 0
    return (LAYER_TABLE_MATRICES * width + 1) * keys.hidden_size if width else 0


def layer_table_norm(keys: DecoderKeys) -> int:
    return keys.hidden_size_per_layer_input or 0


def layer_tables(keys: DecoderKeys) -> int:
    """Count the tables of all layers, which have a vocabulary of their own."""
    width = keys.hidden_size_per_layer_input or 0
    rows = keys.needed.vocab_size_per_layer_input if width else 0
    return rows * keys.num_hidden_layers * width


def alternating_streams(keys: DecoderKeys, layer: Attention | None) -> int:
    """Count what Gemma 3n adds to a layer: mixing of the streams, a narrow residual, its table.

    The mixing is a router to as many numbers as there are streams, its norm and the scale of its
    output, and a matrix each to predict and to correct; the residual a pair of matrices and a norm.

    Sources:
        [vllm-source] model_executor/models/gemma3n.py.
    """
    streams, hidden = keys.needed.altup_num_inputs, keys.hidden_size
    mixing = streams * hidden + 2 * hidden + streams**3 + streams**2
    residual = 2 * hidden * keys.needed.laurel_rank + hidden
    return mixing + residual + layer_table_matrices(keys, layer)


def stream_projections(keys: DecoderKeys) -> int:
    """Count what splits the embedding into streams and joins them again: a matrix each way."""
    others = keys.needed.altup_num_inputs - 1
    return 2 * others * keys.hidden_size**2 + layer_table_norm(keys)
