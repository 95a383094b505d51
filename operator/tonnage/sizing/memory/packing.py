"""Blocks of layers whose pages differ in size: how many tables they get, how large a block is.

A bucket is layers that keep the same tokens in blocks of as many: the layers by their page's bytes.
All buckets draw from one pool of blocks; in each, a table's pages lie side by side from the start.
"""

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction

Bucket = dict[int, int]
"""Bytes of a page to the number of layers that have such pages, on all pipeline stages."""


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
