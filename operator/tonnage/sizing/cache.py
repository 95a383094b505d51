"""How an engine lays out its cache: pages, groups of layers, blocks, and what a request holds.

Every figure is for one GPU (rank). All layers draw their blocks from one pool: a block holds one
page of every layer of a group, and groups have equally many layers, so that a request needs blocks
for each group.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from tonnage.catalog.engine import CURRENT_CACHE_RULES, CacheRules

DEFAULT_BLOCK_TOKENS = 16
MERGE_RATIO = 1.5
"""Kinds whose layer counts differ by less than this share groups of the larger count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KvShare:
    """The cache of the layers of one kind on one rank."""

    bytes_per_token: float = 0.0
    """Of all these layers."""
    window_tokens: int | None = None
    is_chunked: bool = False
    flop_per_pair: float = 0.0
    """Attention work of one query token on one cached token: scores and weighted sum."""
    state_bytes: float = 0.0
    """Of one sequence, whatever its length: read and written in each step."""
    num_layers: float = 1
    is_latent: bool = False

    def tokens_held(self, context_tokens: float) -> float:
        """Return how many of a sequence's tokens these layers keep and read."""
        if self.window_tokens is None:
            return context_tokens
        return min(context_tokens, self.window_tokens)

    def read_bytes(self, context_tokens: float) -> float:
        """Return what one decode step moves for a sequence: its cache, and its state twice."""
        return self.bytes_per_token * self.tokens_held(context_tokens) + 2 * self.state_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheGroup:
    """Layers that share a block table."""

    share: KvShare
    block_tokens: int
    state_blocks: int = 0
    """Blocks per sequence of layers with a state: they hold no tokens."""

    def blocks_reserved(self, tokens: float, in_flight_tokens: int) -> int:
        """Return the blocks that the engine sets aside for one request of this length.

        A window keeps what it can see before the first token of a step and all tokens in flight,
        and may begin within a block; a chunk begins with one.
        """
        if self.state_blocks:
            return self.state_blocks
        window = self.share.window_tokens
        if window is None:
            return math.ceil(tokens / self.block_tokens)
        if self.share.is_chunked:
            return math.ceil(min(window + in_flight_tokens, tokens) / self.block_tokens)
        kept = min(window - 1 + in_flight_tokens, tokens)
        return math.ceil(kept / self.block_tokens) + 1

    def blocks_held(self, tokens: float) -> int:
        """Return the blocks that a decoding sequence of this length really holds."""
        return min(self.blocks_reserved(tokens, 1), self._all_tokens(tokens))

    def _all_tokens(self, tokens: float) -> int:
        return self.state_blocks or math.ceil(tokens / self.block_tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheLayout:
    """How the cache of one rank is cut into blocks."""

    groups: tuple[CacheGroup, ...]
    bytes_per_block: float
    rules: CacheRules

    @property
    def block_tokens(self) -> int:
        """Of the smallest block."""
        return min(group.block_tokens for group in self.groups)

    def blocks_reserved(self, tokens: float, *, in_flight_tokens: int) -> int:
        """Return the blocks that one request may need at most: what "concurrency" divides by."""
        return sum(group.blocks_reserved(tokens, in_flight_tokens) for group in self.groups)

    def blocks_held(self, tokens: float) -> int:
        return sum(group.blocks_held(tokens) for group in self.groups)

    def bytes_of_sequence(self, tokens: float) -> float:
        """Return the cache bytes that one decoding sequence of this length holds."""
        return self.blocks_held(tokens) * self.bytes_per_block

    def in_flight_tokens(self, max_num_batched_tokens: int, pipeline: int = 1) -> int:
        """Return the tokens that may be scheduled and not yet settled."""
        batches = pipeline + 1 if self.rules.counts_async_batches else 1
        return batches * max_num_batched_tokens

    def printed(self, num_blocks: int, *, context_tokens: int, in_flight_tokens: int) -> "Printed":
        """Return the figures that the engine logs for so many blocks.

        Before 0.24 the tokens line shared the blocks out to the groups, which for several kinds
        of layers is no capacity; since then it is concurrency times length.

        Sources:
            [vllm-source] v1/core/kv_cache_utils.py.
        """
        reserved = self.blocks_reserved(context_tokens, in_flight_tokens=in_flight_tokens)
        concurrency = num_blocks / reserved
        if self.rules.tokens_from_concurrency:
            tokens = int(concurrency * context_tokens)
        else:
            tokens = num_blocks // len(self.groups) * self.block_tokens
        return Printed(num_blocks=num_blocks, kv_tokens=tokens, max_concurrency=concurrency)

    def tokens_per_block(self, context_tokens: int, *, in_flight_tokens: int) -> float:
        """Return the tokens that an engine counts per block in the labels of its metrics.

        Sources:
            [vllm-source] config/cache.py: ``kv_cache_size_tokens`` since 0.24, before that only
            ``num_gpu_blocks`` and ``block_size``.
        """
        if not self.rules.tokens_from_concurrency:
            return max(group.block_tokens for group in self.groups)
        reserved = self.blocks_reserved(context_tokens, in_flight_tokens=in_flight_tokens)
        return context_tokens / reserved


@dataclass(frozen=True, slots=True, kw_only=True)
class Printed:
    """What an engine logs about its cache."""

    num_blocks: int
    kv_tokens: int
    max_concurrency: float


def kv_bytes_of_sequence(shares: Sequence[KvShare], context_tokens: float) -> float:
    """Return the cache bytes that one decoding sequence of this length holds, in whole blocks."""
    return cache_layout(tuple(shares)).bytes_of_sequence(context_tokens)


@lru_cache(maxsize=512)
def cache_layout(
    shares: tuple[KvShare, ...],
    *,
    block_tokens: int = DEFAULT_BLOCK_TOKENS,
    rules: CacheRules = CURRENT_CACHE_RULES,
) -> CacheLayout:
    """Return the layout that the engine makes of layers of these kinds.

    Layers with a state inflate the blocks of the others until a page holds a state. Pages of
    different size are made equal by longer blocks where the sizes divide, else by padding. Layers
    are cut into groups as large as the rarest kind, the last group of a kind padded.

    Sources:
        [vllm-source] v1/core/kv_cache_utils.py, platforms/interface.py (block inflation).
    """
    kinds = [share for share in shares if share.bytes_per_token or share.state_bytes]
    if not rules.manages_windows:
        kinds = _as_full(kinds)
    if all(kind.state_bytes == 0 for kind in kinds) and len({_window(k) for k in kinds}) <= 1:
        return _one_group(kinds, block_tokens, rules)
    pages = _equal_pages(kinds, _inflated(kinds, block_tokens, rules))
    pools = list(_merged(pages))
    group_layers = _group_layers([kind.num_layers for kind, _ in pools])
    groups = [
        CacheGroup(
            share=kind,
            block_tokens=tokens,
            state_blocks=rules.state_blocks if kind.state_bytes else 0,
        )
        for kind, tokens in pools
        for _ in range(math.ceil(kind.num_layers / group_layers))
    ]
    page_bytes = max(_page_bytes(kind, tokens) for kind, tokens in pages)
    return CacheLayout(groups=tuple(groups), bytes_per_block=group_layers * page_bytes, rules=rules)


def _one_group(kinds: Sequence[KvShare], block_tokens: int, rules: CacheRules) -> CacheLayout:
    """Layers that keep the same tokens share one table, whatever their widths."""
    total = sum(kind.bytes_per_token for kind in kinds)
    share = replace(kinds[0], bytes_per_token=total) if kinds else KvShare()
    return CacheLayout(
        groups=(CacheGroup(share=share, block_tokens=block_tokens),),
        bytes_per_block=total * block_tokens,
        rules=rules,
    )


def _as_full(kinds: Iterable[KvShare]) -> list[KvShare]:
    return [replace(kind, window_tokens=None, is_chunked=False) for kind in kinds]


def _window(kind: KvShare) -> tuple[int | None, bool]:
    return kind.window_tokens, kind.is_chunked


def _inflated(kinds: Sequence[KvShare], block_tokens: int, rules: CacheRules) -> int:
    """Return the block size at which a page of attention holds the largest state."""
    state = max((kind.state_bytes / kind.num_layers for kind in kinds), default=0.0)
    widths = [kind.bytes_per_token / kind.num_layers for kind in kinds if kind.bytes_per_token]
    if state == 0 or not widths:
        return block_tokens
    is_latent = any(kind.is_latent for kind in kinds)
    step = max(block_tokens, rules.latent_state_alignment if is_latent else block_tokens)
    return step * math.ceil(state / (step * max(widths)))


def _page_bytes(kind: KvShare, block_tokens: int) -> float:
    if kind.state_bytes:
        return kind.state_bytes / kind.num_layers
    return kind.bytes_per_token / kind.num_layers * block_tokens


def _equal_pages(kinds: Sequence[KvShare], block_tokens: int) -> list[tuple[KvShare, int]]:
    """Return each kind with its block size: longer where that makes a page as large as any.

    Where the sizes do not divide, and for states, the rest of the page is lost.
    """
    largest = max(_page_bytes(kind, block_tokens) for kind in kinds)

    def tokens(kind: KvShare) -> int:
        longer = largest / _page_bytes(kind, block_tokens)
        fits = kind.state_bytes == 0 and longer == int(longer)
        return block_tokens * int(longer) if fits else block_tokens

    return [(kind, tokens(kind)) for kind in kinds]


def _merged(kinds: Iterable[tuple[KvShare, int]]) -> Iterator[tuple[KvShare, int]]:
    """Merge kinds that one group can hold: the same window, the same page, the same block."""
    merged: dict[object, tuple[KvShare, int]] = {}
    for kind, tokens in kinds:
        key = (_window(kind), _page_bytes(kind, tokens), tokens, kind.state_bytes > 0)
        merged[key] = (_sum(merged[key][0], kind) if key in merged else kind, tokens)
    yield from merged.values()


def _sum(one: KvShare, other: KvShare) -> KvShare:
    return replace(
        one,
        num_layers=one.num_layers + other.num_layers,
        bytes_per_token=one.bytes_per_token + other.bytes_per_token,
        state_bytes=one.state_bytes + other.state_bytes,
    )


def _group_layers(counts: Sequence[float]) -> float:
    """Return how many layers a group has: the rarest kind's, or the largest where all are near."""
    fewest, most = min(counts), max(counts)
    return most if most < MERGE_RATIO * fewest else fewest
