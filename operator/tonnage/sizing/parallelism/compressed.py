"""The caches of compressed attention (DeepSeek V4): each kind has blocks of its own size.

A layer keeps the entries of its window, one entry for every so many tokens before it, and 32-bit
states of the tokens that are still being compressed; a layer that picks entries keeps the keys to
pick by, with states of their own.

Sources:
    [vllm-source] models/deepseek_v4 (attention.py, compressor.py),
    v1/attention/backends/mla/sparse_swa.py: blocks, windows and widths.
"""

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction

from tonnage.catalog.shape import CompressedAttention
from tonnage.sizing.errors import InvalidKvCacheError
from tonnage.sizing.parallelism.kv_share import KvShare, LayerBlock
from tonnage.units import round_up

COMPRESSED_ENTRY_BYTES = 584
"""Always 8-bit: 448 bytes, 64 rotary elements of two bytes, and the scales."""
COMPRESSED_BLOCK_TOKENS = 256
WINDOW_BLOCK_TOKENS = 64
STATE_BLOCK_TOKENS = {4: 4, 128: 8}
"""By the tokens that are compressed to one entry."""
STATE_ELEMENT_BYTES = 4
VECTORS_PER_STATE = 2
"""What is compressed, and its weights."""
PAGE_ALIGNMENT_BYTES = 576


def compressed_shares(
    attention: CompressedAttention, num_layers: int, stage_fraction: Fraction
) -> Iterator[KvShare]:
    """Yield the caches of these layers on one rank: none of them is split.

    States are counted where they take blocks, not as bytes per token: attention does not read them.

    Raises:
        InvalidKvCacheError: the engine has no blocks for this compression.
    """
    layers = float(stage_fraction * num_layers)
    pair_flop = 4 * attention.num_heads * attention.head_dim
    each = KvShare(num_layers=num_layers, stage_fraction=stage_fraction)
    yield replace(
        each,
        bytes_per_token=layers * COMPRESSED_ENTRY_BYTES,
        window_tokens=attention.window_tokens,
        flop_per_pair=layers * pair_flop,
        block=_block(WINDOW_BLOCK_TOKENS, WINDOW_BLOCK_TOKENS * COMPRESSED_ENTRY_BYTES),
    )
    ratio = attention.compress_ratio
    if ratio is None:
        return
    yield replace(
        each,
        bytes_per_token=layers * COMPRESSED_ENTRY_BYTES / ratio,
        flop_per_pair=layers * pair_flop / ratio,
        attended_tokens=attention.chosen_tokens,
        block=_entries(COMPRESSED_ENTRY_BYTES, ratio),
    )
    if attention.indexer:
        indexer = attention.indexer
        yield replace(
            each,
            bytes_per_token=layers * indexer.key_bytes / ratio,
            index_flop_per_pair=layers * indexer.flop_per_key / ratio,
            block=_entries(indexer.key_bytes, ratio),
        )
    for width in attention.compressed_widths:
        block = _states(width * attention.overlap, ratio)
        yield replace(each, window_tokens=ratio * attention.overlap, block=block)


def _entries(entry_bytes: int, ratio: int) -> LayerBlock:
    return _block(COMPRESSED_BLOCK_TOKENS, COMPRESSED_BLOCK_TOKENS // ratio * entry_bytes)


def _states(width: int, ratio: int) -> LayerBlock:
    tokens = STATE_BLOCK_TOKENS.get(ratio)
    if tokens is None:
        raise InvalidKvCacheError(
            f"compress_ratios: vLLM caches the states of compression by 4 and 128, not by {ratio}"
        )
    return _block(tokens, tokens * VECTORS_PER_STATE * width * STATE_ELEMENT_BYTES)


def _block(tokens: int, num_bytes: int) -> LayerBlock:
    return LayerBlock(tokens=tokens, num_bytes=round_up(num_bytes, PAGE_ALIGNMENT_BYTES))
