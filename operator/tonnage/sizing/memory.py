"""The memory ceiling: what is left for the KV cache, and how many requests that holds.

Every figure is for one GPU (rank) unless its name says otherwise.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tonnage.catalog.shape import Attention, GroupedAttention, LatentAttention
from tonnage.sizing.errors import DoesNotFitError
from tonnage.sizing.parallelism import on_rank
from tonnage.units import format_bytes

LOGIT_BYTES = 4
ACTIVATION_BYTES = 2
DEFAULT_BLOCK_TOKENS = 16


def weight_bytes(*, num_parameters: float, bytes_per_parameter: float) -> float:
    """Return the bytes of so many parameters, all stored alike.

    >>> weight_bytes(num_parameters=70.6e9, bytes_per_parameter=0.5)
    35300000000.0
    """
    return num_parameters * bytes_per_parameter


def kv_elements_per_layer(attention: Attention) -> int:
    """Return the elements that one token adds to the cache of one layer.

    Grouped attention keeps a key and a value per KV head::

        num_kv_heads * (head_dim + value_head_dim)

    Latent attention keeps one compressed vector and one rotary key::

        kv_lora_rank + qk_rope_head_dim

    Counts what is given: for one rank's share give that rank's attention.

    Sources:
        [kwon2023] section 1 (grouped); [deepseek2024] section 2.1 (latent);
        [vllm-source] kv_cache_interface.py.
    """
    match attention:
        case GroupedAttention():
            return attention.num_kv_heads * (attention.head_dim + attention.num_value_dims)
        case LatentAttention():
            return attention.kv_lora_rank + attention.qk_rope_head_dim


def kv_bytes_per_token(
    attentions: Iterable[tuple[int, Attention]], *, kv_element_bytes: float, tensor: int = 1
) -> float:
    """Return the cache bytes of one token over all layers, each layer's window still open.

    On one of ``tensor`` ranks.

    Example:
        >>> llama_70b = GroupedAttention(num_heads=64, num_kv_heads=8, head_dim=128)
        >>> kv_bytes_per_token([(80, llama_70b)], kv_element_bytes=2)
        327680
    """
    elements = sum(
        num_layers * kv_elements_per_layer(on_rank(attention, tensor))
        for num_layers, attention in attentions
    )
    return elements * kv_element_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class KvShare:
    """The cache of the layers of one kind on one rank."""

    bytes_per_token: float
    window_tokens: int | None = None
    flop_per_pair: float = 0.0
    """Attention work of one query token on one cached token: scores and weighted sum."""

    def tokens_held(self, context_tokens: float) -> float:
        """Return how many of a sequence's tokens these layers keep and read."""
        if self.window_tokens is None:
            return context_tokens
        return min(context_tokens, self.window_tokens)


def kv_bytes_of_sequence(
    shares: Sequence[KvShare],
    context_tokens: float,
    *,
    block_tokens: int | None = DEFAULT_BLOCK_TOKENS,
) -> float:
    """Return the cache bytes that one sequence of this length holds on one rank.

    Counts whole blocks; ``block_tokens=None`` leaves the rounding out.
    """

    def held(share: KvShare) -> float:
        tokens = share.tokens_held(context_tokens)
        return math.ceil(tokens / block_tokens) * block_tokens if block_tokens else tokens

    return sum(share.bytes_per_token * held(share) for share in shares)


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


def sampler_peak_bytes(*, factor: float, max_num_seqs: int, vocab_size: int) -> float:
    """Return the activation peak of the sampler's dummy run: ``factor * seqs * vocab * 4``.

    The logits of every slot are gathered on every rank, so tensor parallelism does not help.

    Sources:
        [vllm-source] v1/worker/gpu/model_runner.py; [kv-logs] 3.7 to 4.4 times in 19 budgets.
    """
    return factor * max_num_seqs * vocab_size * LOGIT_BYTES


def forward_peak_bytes(
    *, batched_tokens: int, intermediate_size: float, hidden_size: int, tensor: int
) -> float:
    """Return the activation peak of a forward pass over a full token budget.

    ``batched_tokens * 2 B * (3 * intermediate / tensor + 6 * hidden)``, a fit.

    Sources:
        [kv-logs] 1.03 against 1.05 to 1.10 GiB on ranks without the head, Llama 3.1 8B.
    """
    width = 3 * intermediate_size / tensor + 6 * hidden_size
    return batched_tokens * ACTIVATION_BYTES * width


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryBudget:
    """Where the memory of the fullest GPU goes, in bytes."""

    total_bytes: float
    utilization_fraction: float
    weights_bytes: float
    activation_bytes: float
    non_torch_bytes: float
    graphs_bytes: float

    @property
    def usable_bytes(self) -> float:
        return self.total_bytes * self.utilization_fraction

    @property
    def kv_pool_bytes(self) -> float:
        """What is left for the cache. Negative: by how much the rest does not fit."""
        overheads = self.activation_bytes + self.non_torch_bytes + self.graphs_bytes
        return self.usable_bytes - self.weights_bytes - overheads

    def __str__(self) -> str:
        return (
            f"{format_bytes(self.usable_bytes)} usable ({self.utilization_fraction:.0%} of "
            f"{format_bytes(self.total_bytes)}) - {format_bytes(self.weights_bytes)} weights - "
            f"{format_bytes(self.activation_bytes)} activations - "
            f"{format_bytes(self.non_torch_bytes)} runtime - "
            f"{format_bytes(self.graphs_bytes)} CUDA graphs"
        )


def sequences_held(*, pool_bytes: float, bytes_per_sequence: float) -> float:
    """Return how many sequences the pool holds. Not rounded: callers floor what they promise."""
    return max(0.0, pool_bytes) / bytes_per_sequence


def min_gpus(*, num_bytes: float, bytes_per_gpu: float) -> int:
    """Return the number of GPUs whose memory holds so many bytes, by size alone.

    >>> min_gpus(num_bytes=810.2e9, bytes_per_gpu=80e9)
    11
    """
    return math.ceil(num_bytes / bytes_per_gpu)


def check_fits(budget: MemoryBudget, *, sequence_bytes: float, context_tokens: int) -> None:
    """Refuse a budget that cannot hold one request of the promised length.

    Raises:
        DoesNotFitError: with the whole budget in numbers.
    """
    if budget.kv_pool_bytes < sequence_bytes:
        raise DoesNotFitError(
            f"{budget} {_remainder(budget)}; one request of {context_tokens} tokens needs "
            f"{format_bytes(sequence_bytes)} of KV cache per GPU"
        )


def _remainder(budget: MemoryBudget) -> str:
    left = budget.kv_pool_bytes
    if left < 0:
        return f"is {format_bytes(-left)} short before any KV cache"
    return f"leaves {format_bytes(left)} for the KV cache"


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
