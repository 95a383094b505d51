"""What one token, or one sequence, adds to the cache of the layers of each kind."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction

from tonnage.catalog.cache_types import WIDE_CACHE, CacheType, StoredCache, wide_layers
from tonnage.catalog.engine import CURRENT_CACHE_RULES, CacheRules, StateCacheKind
from tonnage.catalog.shape import (
    Attention,
    CompressedAttention,
    GroupedAttention,
    LatentAttention,
    ModelShape,
    StateAttention,
)
from tonnage.sizing.errors import InvalidKvCacheError
from tonnage.sizing.split import Parallelism, on_rank
from tonnage.units import round_up


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerBlock:
    """A block of one layer, where the model decides its size."""

    tokens: int
    num_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KvShare:
    """The cache of the layers of one kind on one rank of the fullest pipeline stage."""

    bytes_per_token: float = 0.0
    """Of all these layers on the stage, as attention reads them."""
    window_tokens: int | None = None
    is_chunked: bool = False
    flop_per_pair: float = 0.0
    """Attention work of one query token on one cached token: scores and weighted sum."""
    prefill_flop_per_pair: float | None = None
    """The same in prefill, where it differs."""
    attended_tokens: float | None = None
    """Of those held that are read and worked on at most. None: all of them."""
    index_bytes_per_token: float = 0.0
    """Of ``bytes_per_token``, what chooses: read for every token held."""
    index_flop_per_pair: float = 0.0
    """Of one query token on the key of each token held."""
    state_bytes: float = 0.0
    """Of one sequence, whatever its length: read and written in each step."""
    num_layers: int = 1
    """On all stages."""
    stage_fraction: Fraction = Fraction(1)
    """Of these layers that the stage has."""
    is_latent: bool = False
    stays_wide: bool = False
    """Skipped where the type of the cache is narrower than 16 bits."""
    state_kind: StateCacheKind | None = None
    block: LayerBlock | None = None
    """None: the engine chooses the size of its blocks."""

    def page_bytes(self, block_tokens: int) -> int:
        """Return the bytes of one layer in a block of so many tokens, or of its state."""
        layers = float(self.num_layers * self.stage_fraction)
        if self.state_bytes:
            return round(self.state_bytes / layers)
        return round(self.bytes_per_token / layers * block_tokens)

    def tokens_held(self, context_tokens: float) -> float:
        """Return how many of a sequence's tokens these layers keep."""
        if self.window_tokens is None:
            return context_tokens
        return min(context_tokens, self.window_tokens)

    def tokens_attended(self, context_tokens: float) -> float:
        """Return how many of those a token attends to."""
        stored = self.tokens_held(context_tokens)
        return stored if self.attended_tokens is None else min(stored, self.attended_tokens)

    def decode_flop(self, context_tokens: float) -> float:
        """Return the attention work of one decoded token in a context of so many."""
        return self._flop(context_tokens, self.flop_per_pair)

    def prefill_flop(self, context_tokens: float) -> float:
        """Return the attention work of one prompt token with so many before it."""
        decoding, each = self.flop_per_pair, self.prefill_flop_per_pair
        return self._flop(context_tokens, decoding if each is None else each)

    def _flop(self, context_tokens: float, flop_per_pair: float) -> float:
        chosen = self.tokens_attended(context_tokens) * flop_per_pair
        return chosen + self.tokens_held(context_tokens) * self.index_flop_per_pair

    def read_bytes(self, context_tokens: float) -> float:
        """Return what one decode step moves for a sequence: its cache, and its state twice."""
        attended_bytes = self.bytes_per_token - self.index_bytes_per_token
        return (
            attended_bytes * self.tokens_attended(context_tokens)
            + self.index_bytes_per_token * self.tokens_held(context_tokens)
            + 2 * self.state_bytes
        )


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
    """Yield the caches of these layers (DeepSeek V4) on one rank: none of them is split.

    A layer keeps the entries of its window, one entry for every so many tokens before it, 32-bit
    states of the tokens that are still being compressed, and, where it picks entries, the keys to
    pick by. States are counted where they take blocks, not as bytes that attention reads.

    Raises:
        InvalidKvCacheError: the engine has no blocks for this compression.

    Sources:
        [vllm-source] models/deepseek_v4 (attention.py, compressor.py),
        v1/attention/backends/mla/sparse_swa.py: blocks, windows and widths.
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


WHOLE = Fraction(1)
CONV_ELEMENT_BYTES = 2
WITHOUT_DRAFTS = ("mamba1", "lightning")
"""Kinds of state that no speculation goes with, or that have no convolution."""
EXCHANGED_BYTES = 2


def kv_bytes_per_layer(
    attention: Attention,
    *,
    cache_type: CacheType = WIDE_CACHE.type,
    rules: CacheRules = CURRENT_CACHE_RULES,
) -> float:
    """Return the cache bytes of one token in one layer, with the keys of an indexer.

    Grouped attention keeps a key and a value per KV head, latent attention one compressed vector
    and one rotary key; a layer with a state, or one that reads another layer's cache, nothing.
    Counts what is given: for one rank's share give that rank's attention.

    Sources:
        [kwon2023] section 1 (grouped); [deepseek2024] section 2.1 (latent); [vllm-source]
        kv_cache_interface.py, v1/attention/backends/mla/flashmla_sparse.py.
    """
    match attention:
        case (
            CompressedAttention(compress_ratio=None)
            | StateAttention()
            | GroupedAttention(owns_cache=False)
        ):
            return 0
        case CompressedAttention():
            entry = COMPRESSED_ENTRY_BYTES + index_bytes(attention)
            return entry / (attention.compress_ratio or 1)
        case LatentAttention(is_sparse=True) if cache_type.sparse_entry_bytes:
            num_bytes: float = cache_type.sparse_entry_bytes
        case LatentAttention():
            num_bytes = _latent_elements(attention, rules) * cache_type.element_bytes
        case GroupedAttention(head_dim=keys, num_value_dims=values):
            num_bytes = attention.num_kv_heads * cache_type.head_bytes(keys, values)
    return num_bytes + index_bytes(attention)


def _latent_elements(attention: LatentAttention, rules: CacheRules) -> float:
    if rules.latent_head_elements is not None:
        return attention.num_heads * rules.latent_head_elements
    return rules.latent_elements or attention.kv_lora_rank + attention.qk_rope_head_dim


def index_bytes(attention: Attention) -> int:
    """Return the bytes of the key by which one token is chosen, in one layer."""
    return attention.indexer.key_bytes if attention.indexer else 0


def kv_bytes_per_token(
    attentions: Iterable[tuple[int, Attention]], *, cache_type: CacheType = WIDE_CACHE.type
) -> float:
    """Return the cache bytes of one token over all layers, each layer's window still open.

    Example:
        >>> llama_70b = GroupedAttention(num_heads=64, num_kv_heads=8, head_dim=128)
        >>> kv_bytes_per_token([(80, llama_70b)])
        327680
    """
    return sum(
        num_layers * kv_bytes_per_layer(attention, cache_type=cache_type)
        for num_layers, attention in attentions
    )


def state_bytes(attention: Attention, num_draft_tokens: int = 0) -> int:
    """Return what one layer keeps of a sequence whatever its length.

    The tail of the convolution, for the drafts of a step too, and one matrix per value head::

        (conv_kernel - 1 + drafts) * conv_dim * 2 + value_heads * value_dim * key_dim * bytes

    Sources:
        [vllm-source] model_executor/layers/mamba/mamba_utils.py (num_spec; Mamba-1 has none).
    """
    if not isinstance(attention, StateAttention):
        return 0
    drafted = 0 if attention.kind in WITHOUT_DRAFTS else num_draft_tokens
    tail = (attention.conv_kernel - 1 + drafted) * attention.conv_dim * CONV_ELEMENT_BYTES
    matrix = attention.value_head_dim * attention.key_head_dim * attention.state_element_bytes
    return tail + attention.num_value_heads * matrix


def exchange_bytes(attention: Attention, context_ranks: int) -> float:
    """Return what one layer moves for one token so that ranks may share out its context.

    Queries of all heads are gathered, their outputs scattered: ``heads * (key + value width) * 2``
    of which a share of one in ``context_ranks`` is there already. Of one rank's attention.

    Sources:
        [vllm-source] v1/attention/ops/common.py (context parallel outputs).
    """
    match attention:
        case GroupedAttention():
            widths = attention.head_dim + attention.num_value_dims
        case LatentAttention():
            widths = 2 * attention.kv_lora_rank + attention.qk_rope_head_dim
        case _:
            return 0.0
    return attention.num_heads * (context_ranks - 1) * widths * EXCHANGED_BYTES


def flop_per_pair(attention: Attention) -> float:
    """Return the work of one query token on one cached token in one layer.

    Two operations per element of the score and of the weighted sum, for every query head; latent
    attention works on the compressed vector, but see ``prefill_flop_per_pair``. A state is worked
    on once per token, not per pair.

    >>> flop_per_pair(GroupedAttention(num_heads=64, num_kv_heads=8, head_dim=128))
    32768
    """
    match attention:
        case GroupedAttention():
            return 2 * attention.num_heads * (attention.head_dim + attention.num_value_dims)
        case LatentAttention():
            widths = 2 * attention.kv_lora_rank + attention.qk_rope_head_dim
            return 2 * attention.num_heads * widths
        case CompressedAttention():
            pairs = 1 / (attention.compress_ratio or math.inf)
            return 4 * attention.num_heads * attention.head_dim * pairs
        case StateAttention():
            return 0


def prefill_flop_per_pair(attention: Attention) -> float:
    """Return the same for a token of a prompt: keys and values of latent attention are unfolded.

    Sparse latent attention stays with the compressed vector. The unfolding itself, once for each
    token, is part of the weights' work.

    Sources:
        [vllm-source] model_executor/layers/attention/mla_attention.py (the two ways to compute).
    """
    if isinstance(attention, LatentAttention) and not attention.is_sparse:
        key = attention.qk_nope_head_dim + attention.qk_rope_head_dim
        return 2 * attention.num_heads * (key + attention.value_head_dim)
    return flop_per_pair(attention)


def kv_shares(
    shape: ModelShape,
    *,
    cache: StoredCache = WIDE_CACHE,
    parallelism: Parallelism,
    stage_fraction: Fraction = WHOLE,
    rules: CacheRules = CURRENT_CACHE_RULES,
) -> Iterator[KvShare]:
    """Yield the cache of each kind of layer on one rank of a stage with this share of the layers.

    Layers that stay in 16 bits are kinds of their own.

    Raises:
        InvalidKvCacheError: compressed attention that the engine has no blocks for.
    """
    wide = wide_layers(shape, cache)
    kinds = [
        (number, attention, stays_wide)
        for (layers, attention), stay in zip(shape.attentions(), wide, strict=True)
        for number, stays_wide in ((layers - stay, False), (stay, True))
        if number
    ]
    for num_layers, attention, stays_wide in kinds:
        mine = on_rank(attention, parallelism.tensor)
        if isinstance(mine, CompressedAttention):
            yield from compressed_shares(mine, num_layers, stage_fraction)
            continue
        layers = float(stage_fraction * num_layers)
        cache_type = WIDE_CACHE.type if stays_wide else cache.type
        per_token = kv_bytes_per_layer(mine, cache_type=cache_type, rules=rules)
        grouped = mine if isinstance(mine, GroupedAttention) else None
        yield KvShare(
            bytes_per_token=layers * per_token / parallelism.context,
            window_tokens=grouped.window_tokens if grouped else None,
            is_chunked=grouped is not None and grouped.is_chunked,
            flop_per_pair=layers * flop_per_pair(mine),
            prefill_flop_per_pair=layers * prefill_flop_per_pair(mine),
            attended_tokens=mine.chosen_tokens,
            index_bytes_per_token=layers * index_bytes(mine) / parallelism.context,
            index_flop_per_pair=layers * (mine.indexer.flop_per_key if mine.indexer else 0),
            state_bytes=layers * state_bytes(mine, rules.state_draft_tokens),
            num_layers=num_layers,
            stage_fraction=stage_fraction,
            is_latent=isinstance(mine, LatentAttention),
            stays_wide=stays_wide,
            state_kind=_state_kind(mine) if isinstance(mine, StateAttention) else None,
        )


def _state_kind(attention: StateAttention) -> StateCacheKind:
    """Return the kind that the engine tells apart: the full gate marks Kimi K3.

    Sources:
        [vllm-source] models/kimi_k3/nvidia/model.py: other delta attention is Kimi Linear's.
    """
    if attention.kind == "kimi_delta" and attention.has_full_rank_gate:
        return "kimi_k3"
    return attention.kind
