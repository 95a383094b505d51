"""Qwen3.8-Flash-Next: delta nets, attention to chosen tokens, residual streams, n-gram tables."""

from dataclasses import replace
from typing import Final

from tonnage.catalog.config.keys.decoder import DecoderKeys, ModelConfigError
from tonnage.catalog.config.layers.state import MODEL_TYPE_BYTES, delta_net
from tonnage.catalog.shape import Attention, GroupedAttention, Indexer
from tonnage.units import count_of

MIXES_PER_LAYER: Final = 2
"""Before attention and before experts."""
GROUPED_NORMS: Final = 3
"""Of an n-gram layer: on keys, queries and the input of its convolution."""


def indexed_delta_net(keys: DecoderKeys) -> list[Attention]:
    """Like Qwen3.5, but the layers of full attention have an indexer; its keys stay in 16 bits.

    One key stands for ``indexer_compress_ratio`` tokens. Leaves out the few keys of the tokens
    that have none yet, and the tail of the convolution of an n-gram layer: a few hundred
    kilobytes per sequence.

    Sources:
        [vllm-source] models/qwen4_exp/nvidia/indexer_qsa.py and common/qsa_cache.py.
    """
    layers = delta_net(keys)
    if keys.indexer_n_heads is None:
        return layers
    head_dim, ratio = keys.needed.indexer_head_dim, keys.needed.indexer_compress_ratio
    if MODEL_TYPE_BYTES * head_dim % ratio:
        raise ModelConfigError(
            f"indexer_compress_ratio = {ratio} does not divide the bytes of a key of {head_dim}"
        )
    indexer = Indexer(
        num_heads=keys.indexer_n_heads,
        head_dim=head_dim,
        key_bytes=MODEL_TYPE_BYTES * head_dim // ratio,
    )
    chosen = keys.needed.indexer_budget
    return [
        replace(layer, indexer=indexer, chosen_tokens=chosen)
        if isinstance(layer, GroupedAttention)
        else layer
        for layer in layers
    ]


def stream_mixes(keys: DecoderKeys, _: Attention | None) -> int:
    """Count what reads the streams through a narrow gate, and what writes back to each.

    Sources:
        [vllm-source] models/qwen4_exp/nvidia/hyperconnection.py.
    """
    written = keys.needed.hc_count * _streams_width(keys)
    return MIXES_PER_LAYER * (_mix(keys) + written)


def last_mix_and_ngram_layers(keys: DecoderKeys) -> int:
    """Count what joins the streams before the head, and what looks n-grams up.

    Sources:
        [vllm-source] models/qwen4_exp/nvidia/ple_layer.py.
    """
    if not keys.ple_layer_ids:
        return _mix(keys)
    streams = _streams_width(keys)
    projections = _ngram_width(keys) * (streams + keys.hidden_size)
    convolution = keys.needed.ple_conv_kernel_size * streams
    each = projections + convolution + GROUPED_NORMS * streams
    return _mix(keys) + len(keys.ple_layer_ids) * each


def ngram_tables(keys: DecoderKeys) -> int:
    """Count the tables: each head of an n-gram layer has a part of the width and a table.

    The rows of a table are a prime just above ``ngram_vocab_size_base``: a few hundred more.

    Sources:
        [vllm-source] models/qwen4_exp/nvidia/ngram_embedding.py.
    """
    if not keys.ple_layer_ids:
        return 0
    num_heads = (keys.needed.ngram_size - 1) * keys.needed.heads_per_ngram
    width = _ngram_width(keys)
    if width % num_heads:
        heads = count_of(num_heads, "head")
        raise ModelConfigError(f"ple_embed_dim = {width} is no multiple of {heads}")
    return len(keys.ple_layer_ids) * keys.needed.ngram_vocab_size_base * width


def _mix(keys: DecoderKeys) -> int:
    """Count a norm, and the way to the narrow gate and back."""
    return (2 * keys.needed.hc_lowrank + 1) * _streams_width(keys)


def _streams_width(keys: DecoderKeys) -> int:
    return keys.needed.hc_count * keys.hidden_size


def _ngram_width(keys: DecoderKeys) -> int:
    return keys.hidden_size if keys.ple_embed_dim is None else keys.ple_embed_dim
