"""How an engine lays out its cache: pages, groups of layers, blocks, and what a request holds.

Every figure is for one GPU (rank). All layers draw their blocks from one pool: a block holds one
page of every layer of a group, and groups have equally many layers, so that a request needs blocks
for each group. Layers are grouped over all pipeline stages; of each group a stage has its share.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache

from tonnage.catalog.engine import CURRENT_CACHE_RULES, CacheRules
from tonnage.catalog.shape import CompressedAttention, LatentAttention, ModelShape
from tonnage.sizing.parallelism.kv import COMPRESSED_BLOCK_TOKENS, KvShare

Bucket = dict[int, int]
"""Bytes of a page to the number of layers that have such pages, on all pipeline stages."""
MERGE_RATIO = 1.5
"""Kinds whose layer counts differ by less than this share groups of the larger count."""
DEFAULT_BLOCK_TOKENS = 16
LATENT_BLOCK_TOKENS = 64


def window_of(kind: KvShare) -> tuple[int | None, bool]:
    """Return what decides which tokens are kept."""
    return kind.window_tokens, kind.is_chunked


def block_tokens_for_state(kinds: Sequence[KvShare], block_tokens: int, rules: CacheRules) -> int:
    """Return the block size at which a page of attention holds the largest state."""
    state = max((kind.page_bytes(0) for kind in kinds if kind.state_bytes), default=0)
    width = max((kind.page_bytes(1) for kind in kinds if kind.bytes_per_token), default=0)
    if state == 0 or width == 0:
        return block_tokens
    step = block_tokens
    if any(kind.is_latent for kind in kinds):
        step = max(step, rules.latent_state_alignment)
    if any(kind.state_kind == "gated_delta_net" for kind in kinds):
        step = math.lcm(step, rules.delta_net_alignment)
    return step * -(-state // (step * width))


def block_tokens_beside_wide(kinds: Sequence[KvShare], block_tokens: int) -> int:
    """Return the block size at which a page of narrow layers holds one of skipped layers.

    Sources:
        [vllm-source] platforms/interface.py _align_heterogeneous_kv_block_size.
    """
    wide = max((kind.page_bytes(block_tokens) for kind in kinds if kind.stays_wide), default=0)
    narrow = (kind for kind in kinds if kind.bytes_per_token and not kind.stays_wide)
    width = max((kind.page_bytes(block_tokens) for kind in narrow), default=wide)
    return block_tokens * -(-wide // width) if wide else block_tokens


def equal_pages(kinds: Sequence[KvShare], block_tokens: int) -> list[tuple[KvShare, int]]:
    """Return each kind with its block size: longer where that makes a page as large as any.

    Where the sizes do not divide, and for states, the rest of the page is lost.
    """
    narrow_tokens = block_tokens_beside_wide(kinds, block_tokens)
    first = [block_tokens if kind.stays_wide else narrow_tokens for kind in kinds]
    largest = max(kind.page_bytes(each) for kind, each in zip(kinds, first, strict=True))

    def tokens(kind: KvShare, least: int) -> int:
        longer, rest = divmod(largest, kind.page_bytes(least))
        fits = kind.state_bytes == 0 and (rest == 0 or kind.stays_wide)
        return least * longer if fits else least

    return [(kind, tokens(kind, each)) for kind, each in zip(kinds, first, strict=True)]


def merge_kinds(kinds: Iterable[tuple[KvShare, int]]) -> Iterator[tuple[KvShare, int]]:
    """Merge kinds that one group can hold: the same window, the same page, the same block."""
    merged: dict[object, tuple[KvShare, int]] = {}
    for kind, tokens in kinds:
        key = (window_of(kind), kind.page_bytes(tokens), tokens, kind.state_bytes > 0)
        merged[key] = (_sum(merged[key][0], kind) if key in merged else kind, tokens)
    yield from merged.values()


def _sum(one: KvShare, other: KvShare) -> KvShare:
    return replace(
        one,
        num_layers=one.num_layers + other.num_layers,
        bytes_per_token=one.bytes_per_token + other.bytes_per_token,
        state_bytes=one.state_bytes + other.state_bytes,
    )


def group_layers(counts: Sequence[int]) -> int:
    """Return how many layers a group has: the rarest kind's, or the largest where all are near."""
    fewest, most = min(counts), max(counts)
    return most if most < MERGE_RATIO * fewest else fewest


def tables_per_bucket(buckets: Sequence[Mapping[int, int]]) -> list[int]:
    """Return how many block tables share out the layers of each bucket.

    A bucket whose sizes have equally many layers can be cut. Those of several sizes stay whole
    and so set the least that a table has; the others are cut to fill tables of one length best.

    Sources:
        [vllm-source] v1/core/kv_cache_planning.py _get_packed_kv_cache_groups.
    """
    numbers = [set(bucket.values()) for bucket in buckets]
    even = [max(each) if len(each) == 1 else None for each in numbers]
    whole = [layers for layers, bucket in zip(even, buckets, strict=True) if len(bucket) > 1]
    lengths = [layers for layers in even if layers is not None]
    least = max((layers for layers in whole if layers is not None), default=0)
    if least == 0:
        raise ValueError("no layers with pages of several sizes: the engine packs otherwise")
    length = _least_padding(lengths, least)
    return [1 if layers is None else -(-layers // length) for layers in even]


def _least_padding(counts: Sequence[int], least: int) -> int:
    """Return the length, ``least`` or more, of whose multiples the counts fall short the least.

    The longest of several.

    >>> _least_padding([43, 21, 20], 21)
    22
    """
    lengths = range(least, max(least, *counts) + 1)
    return min(lengths, key=lambda length: (sum(-count % length for count in counts), -length))


def block_bytes(
    buckets: Sequence[Mapping[int, int]], tables: Sequence[int], stage_fraction: Fraction
) -> int:
    """Return the bytes of a block on a stage with this share of the layers: its widest table's."""
    return max(
        sum(
            page * math.ceil(-(-layers // number) * stage_fraction)
            for page, layers in bucket.items()
        )
        for bucket, number in zip(buckets, tables, strict=True)
    )


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
        all_tokens = self.state_blocks or math.ceil(tokens / self.block_tokens)
        return min(self.blocks_reserved(tokens, 1), all_tokens)


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

    @property
    def has_states(self) -> bool:
        return any(group.state_blocks for group in self.groups)

    def blocks_reserved(self, tokens: float, *, in_flight_tokens: int) -> int:
        """Return the blocks that one request may need at most: what "concurrency" divides by."""
        return sum(group.blocks_reserved(tokens, in_flight_tokens) for group in self.groups)

    def blocks_held(self, tokens: float) -> int:
        return sum(group.blocks_held(tokens) for group in self.groups)

    def bytes_of_sequence(self, tokens: float) -> float:
        """Return the cache bytes that one decoding sequence of this length holds."""
        return self.blocks_held(tokens) * self.bytes_per_block

    def in_flight_tokens(self, max_num_batched_tokens: int, pipeline: int = 1) -> int:
        """Return the tokens that may be scheduled and not yet settled.

        Sources:
            [vllm-source] config/vllm.py max_concurrent_batches, max_in_flight_tokens.
        """
        if not self.rules.counts_batches_in_flight:
            return max_num_batched_tokens
        return (pipeline + self.rules.schedules_async) * max_num_batched_tokens

    def logged_figures(
        self, num_blocks: int, *, context_tokens: int, in_flight_tokens: int
    ) -> "LoggedFigures":
        """Return the figures that the engine logs for so many blocks.

        Before 0.21 the tokens line shared the blocks out to the groups, which for several kinds
        of layers is no capacity; since then it is concurrency times length.

        Sources:
            [vllm-source] v1/core/kv_cache_utils.py _report_kv_cache_config of 0.20.0 and 0.21.0.
        """
        reserved = self.blocks_reserved(context_tokens, in_flight_tokens=in_flight_tokens)
        concurrency = num_blocks / reserved
        if self.rules.tokens_from_concurrency:
            tokens = int(concurrency * context_tokens)
        else:
            tokens = num_blocks // len(self.groups) * self.block_tokens
        return LoggedFigures(num_blocks=num_blocks, kv_tokens=tokens, max_concurrency=concurrency)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedFigures:
    """What an engine logs about its cache."""

    num_blocks: int
    kv_tokens: int
    max_concurrency: float


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
    are cut into groups as large as the rarest kind, the last group of a kind padded. Layers with
    blocks of their own are packed instead.

    Sources:
        [vllm-source] v1/core/kv_cache_planning.py get_kv_cache_groups; platforms/interface.py
        (block inflation); config/vllm.py disable_hybrid_kv_cache_manager (chunks).
    """
    kinds = [kind for kind in shares if kind.bytes_per_token or kind.state_bytes or kind.block]
    if any(kind.block for kind in kinds):
        return _pack(kinds, rules)
    has_chunks = any(kind.is_chunked for kind in kinds)
    if not rules.manages_windows or (has_chunks and not rules.manages_chunks):
        kinds = [replace(kind, window_tokens=None, is_chunked=False) for kind in kinds]
    if all(kind.state_bytes == 0 for kind in kinds) and len({window_of(k) for k in kinds}) <= 1:
        return _one_group(kinds, block_tokens, rules)
    pages = equal_pages(kinds, block_tokens_for_state(kinds, block_tokens, rules))
    pools = list(merge_kinds(pages))
    layers = group_layers([kind.num_layers for kind, _ in pools])
    groups = [
        CacheGroup(share=kind, block_tokens=tokens, state_blocks=_state_blocks(kind, rules))
        for kind, tokens in pools
        for _ in range(-(-kind.num_layers // layers))
    ]
    page_bytes = max(kind.page_bytes(tokens) for kind, tokens in pages)
    layers_on_stage = math.ceil(layers * max(kind.stage_fraction for kind in kinds))
    return CacheLayout(
        groups=tuple(groups), bytes_per_block=layers_on_stage * page_bytes, rules=rules
    )


def _one_group(kinds: Sequence[KvShare], block_tokens: int, rules: CacheRules) -> CacheLayout:
    """Layers that keep the same tokens share one table, whatever their widths."""
    total = sum(kind.bytes_per_token for kind in kinds)
    share = replace(kinds[0], bytes_per_token=total) if kinds else KvShare()
    return CacheLayout(
        groups=(CacheGroup(share=share, block_tokens=block_tokens),),
        bytes_per_block=total * block_tokens,
        rules=rules,
    )


def _pack(kinds: Iterable[KvShare], rules: CacheRules) -> CacheLayout:
    """Layers with the same block and window share tables; each table fills a block without gaps."""
    alike: dict[tuple[int, int | None], KvShare] = {}
    buckets: dict[tuple[int, int | None], Bucket] = {}
    for kind in kinds:
        if kind.block is None:
            raise ValueError(f"layers with blocks of their own beside others: {kind}")
        key = (kind.block.tokens, kind.window_tokens)
        alike.setdefault(key, kind)
        layers = buckets.setdefault(key, {})
        layers[kind.block.num_bytes] = layers.get(kind.block.num_bytes, 0) + kind.num_layers
    tables = tables_per_bucket(list(buckets.values()))
    groups = [
        CacheGroup(share=kind, block_tokens=tokens)
        for ((tokens, _), kind), number in zip(alike.items(), tables, strict=True)
        for _ in range(number)
    ]
    fraction = max(kind.stage_fraction for kind in alike.values())
    return CacheLayout(
        groups=tuple(groups),
        bytes_per_block=block_bytes(list(buckets.values()), tables, fraction),
        rules=rules,
    )


def _state_blocks(kind: KvShare, rules: CacheRules) -> int:
    """Return the blocks of one sequence; with prefix caching some keep a checkpoint beside it.

    Sources:
        [vllm-source] v1/kv_cache_interface.py MambaSpec.max_memory_usage_bytes; layers/mamba
        (mamba_mixer2.py, gdn/qwen_gdn_linear_attn.py) and models/kimi_k3 (kda.py).
    """
    if not kind.state_bytes:
        return 0
    return rules.state_blocks + (kind.state_kind in rules.checkpointed_states)


def default_block_tokens(shape: ModelShape, asked: int | None = None) -> int:
    """Return the block size that the engine's kernels prefer, before states inflate it.

    ``asked``: ``--block-size``, which goes before it but for layers with blocks of their own.

    Sources:
        [vllm-source] platforms/interface.py update_block_size_for_backend.
    """
    if shape.has_kind(CompressedAttention):
        return COMPRESSED_BLOCK_TOKENS
    if asked:
        return asked
    return LATENT_BLOCK_TOKENS if shape.has_kind(LatentAttention) else DEFAULT_BLOCK_TOKENS
