"""Formulas of the golden table that the product does not use: it counts in more detail."""

import math
from collections.abc import Iterable
from dataclasses import dataclass


def weight_bytes(*, num_parameters: float, bytes_per_parameter: float) -> float:
    """Return the bytes of so many parameters, all stored alike.

    >>> weight_bytes(num_parameters=70.6e9, bytes_per_parameter=0.5)
    35300000000.0
    """
    return num_parameters * bytes_per_parameter


def block_rounding_fraction(lengths: Iterable[int], *, block_tokens: int) -> float:
    """Return the share of the cache that is lost to the last block of each sequence.

    >>> block_rounding_fraction([17, 15], block_tokens=16)
    0.3333333333333333
    """
    used = held = 0
    for tokens in lengths:
        used += tokens
        held += math.ceil(tokens / block_tokens) * block_tokens
    return (held - used) / held


def min_gpus(*, num_bytes: float, bytes_per_gpu: float) -> int:
    """Return the number of GPUs whose memory holds so many bytes, by size alone.

    >>> min_gpus(num_bytes=810.2e9, bytes_per_gpu=80e9)
    11
    """
    return math.ceil(num_bytes / bytes_per_gpu)


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """What a fixed batch needs of the memory of all GPUs together, in bytes."""

    weights_bytes: float
    kv_bytes: float
    overhead_bytes: float

    @property
    def total_bytes(self) -> float:
        return self.weights_bytes + self.kv_bytes + self.overhead_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class WayOut:
    """One change that helps when a batch does not fit, and the need or supply after it."""

    change: str
    needed_bytes: float
    available_bytes: float

    @property
    def fits(self) -> bool:
        return self.needed_bytes <= self.available_bytes


def ways_out(need: Need, *, available_bytes: float) -> tuple[WayOut, ...]:
    """List what would make a batch fit, each with its numbers; empty when it fits already."""
    if need.total_bytes <= available_bytes:
        return ()
    overhead, weights, kv = need.overhead_bytes, need.weights_bytes, need.kv_bytes
    changes = {
        "weights at half the bytes": weights / 2 + kv + overhead,
        "KV cache at half the bytes": weights + kv / 2 + overhead,
        "half the batch": weights + kv / 2 + overhead,
    }
    halved = (
        WayOut(change=change, needed_bytes=needed, available_bytes=available_bytes)
        for change, needed in changes.items()
    )
    doubled = WayOut(
        change="twice the GPUs",
        needed_bytes=need.total_bytes,
        available_bytes=2 * available_bytes,
    )
    return (*halved, doubled)


def decode_intensity(*, num_sequences: float, weight_element_bytes: float) -> float:
    """Return flop per byte of a decode step, weights only: ``2 * n / bytes per weight``.

    Counts a multiplication and an addition per weight and token. Leaves the cache out.

    >>> decode_intensity(num_sequences=32, weight_element_bytes=2)
    32.0
    """
    return 2 * num_sequences / weight_element_bytes


def matrix_vector_work(*, rows: int, columns: int) -> tuple[int, int]:
    """Return (elements read, operations) of one matrix times one vector.

    >>> matrix_vector_work(rows=8192, columns=8192)
    (67108864, 134217728)
    """
    return rows * columns, 2 * rows * columns


def batch1_mbu_fraction(
    *, tokens_per_s: float, batch1_bytes_per_token: float, memory_bytes_per_s: float
) -> float:
    """Return the utilization that some publications print: every token charged a whole read.

    ``tokens_per_s * batch1_bytes_per_token / memory_bytes_per_s``. One read serves a whole batch,
    so this exceeds 1 at larger batches. For display and conversion only, never a constant.

    >>> batch1_mbu_fraction(tokens_per_s=312, batch1_bytes_per_token=16e9, memory_bytes_per_s=64e12)
    0.078
    """
    return tokens_per_s * batch1_bytes_per_token / memory_bytes_per_s


def observed_mfu_fraction(
    *, tokens_per_s: float, flop_per_token: float, peak_flop_per_s: float
) -> float:
    """Return the share of peak arithmetic that the model's own work takes at this speed.

    ``tokens_per_s * flop_per_token / peak_flop_per_s``; recomputed or padded work is not counted.

    >>> observed_mfu_fraction(tokens_per_s=80_000, flop_per_token=64e9, peak_flop_per_s=80e15)
    0.064
    """
    return tokens_per_s * flop_per_token / peak_flop_per_s


def prefill_tokens_per_s(*, peak_flop_per_s: float, flop_per_token: float) -> float:
    """Return the prompt tokens per second at a given share of peak already applied.

    >>> prefill_tokens_per_s(peak_flop_per_s=80e15, flop_per_token=64e9)
    1250000.0
    """
    return peak_flop_per_s / flop_per_token


def shared_prefill_s(
    *, new_prompt_tokens: float, tokens_per_s: float, num_concurrent: float = 1
) -> float:
    """Return the time of a prefill that shares the engine evenly with others.

    >>> shared_prefill_s(new_prompt_tokens=80_000, tokens_per_s=80_000, num_concurrent=16)
    16.0
    """
    return new_prompt_tokens * num_concurrent / tokens_per_s


def replicas_for_throughput(*, tokens_per_s: float, tokens_per_s_per_replica: float) -> int:
    """Return replicas for a peak in tokens per second, at full use of each.

    >>> replicas_for_throughput(tokens_per_s=10_000, tokens_per_s_per_replica=797)
    13
    """
    return math.ceil(tokens_per_s / tokens_per_s_per_replica)


def bandwidth_per_usd(*, memory_bytes_per_s: float, price_usd: float) -> float:
    """Return bytes per second of memory bandwidth for each dollar of price."""
    return memory_bytes_per_s / price_usd
