"""How vLLM cuts the cache into blocks: layers by groups of one page, and several sizes packed."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction

from tonnage.catalog.engine import CacheRules
from tonnage.sizing.parallelism.kv_share import KvShare

Bucket = dict[int, int]
"""Bytes of a page to the number of layers that have such pages, on all pipeline stages."""
MERGE_RATIO = 1.5
"""Kinds whose layer counts differ by less than this share groups of the larger count."""


def stage_fraction(kinds: Iterable[KvShare]) -> Fraction:
    """Return which share of the layers the fullest stage has."""
    return max(kind.stage_fraction for kind in kinds)


def as_full(kinds: Iterable[KvShare]) -> list[KvShare]:
    """Return the layers as an engine keeps them that does not manage windows."""
    return [replace(kind, window_tokens=None, is_chunked=False) for kind in kinds]


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
    even = [max(bucket.values()) if _is_even(bucket) else None for bucket in buckets]
    whole = [layers for layers, bucket in zip(even, buckets, strict=True) if len(bucket) > 1]
    lengths = [layers for layers in even if layers is not None]
    least = max((layers for layers in whole if layers is not None), default=0)
    if least == 0:
        raise ValueError("no layers with pages of several sizes: the engine packs otherwise")
    length = _least_padding(lengths, least)
    return [1 if layers is None else -(-layers // length) for layers in even]


def _is_even(bucket: Mapping[int, int]) -> bool:
    return len(set(bucket.values())) == 1


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
