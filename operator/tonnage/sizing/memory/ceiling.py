"""The memory ceiling: what is left for the KV cache, and how many requests that holds.

Every figure is for one GPU (rank) unless its name says otherwise.
"""

import math
from dataclasses import dataclass

from tonnage.catalog.shape import ModelShape, MoeFfn
from tonnage.units import format_bytes

LOGIT_BYTES = 4
ACTIVATION_BYTES = 2


def logits_bytes(*, max_num_seqs: int, vocab_size: int) -> float:
    """Return one copy of the logits of every slot, in 32 bits.

    The sampler's dummy run gathers them on every rank, so tensor parallelism does not help.

    Sources:
        [vllm-source] v1/worker/gpu/model_runner.py.

    >>> logits_bytes(max_num_seqs=1024, vocab_size=128_256)
    525336576
    """
    return max_num_seqs * vocab_size * LOGIT_BYTES


def hidden_bytes(*, batched_tokens: int, hidden_size: int) -> float:
    """Return one copy of the hidden states of a full token budget."""
    return batched_tokens * hidden_size * ACTIVATION_BYTES


def forward_peak_bytes(
    *, batched_tokens: int, intermediate_size: float, hidden_size: int, tensor: int
) -> float:
    """Return the activation peak of a forward pass over a full token budget.

    Both inputs of the gate and their product, and three hidden states::

        batched_tokens * 2 B * (3 * intermediate / tensor + 3 * hidden)

    ``intermediate_size``: of what every token passes; experts have ``expert_workspace_bytes``.

    Sources:
        [kv-logs] 2.07 and 2.99 GiB for 20,000 and 29,000 tokens of Llama 3.1 8B; 2.53 GiB for
        40,000 tokens on two GPUs.
    """
    width = 3 * intermediate_size / tensor + 3 * hidden_size
    return batched_tokens * ACTIVATION_BYTES * width


def expert_workspace_bytes(shape: ModelShape, *, batched_tokens: int, tensor: int) -> float:
    """Return the two buffers that fused experts keep for every token and each of its experts.

    ``tokens * experts_per_token * 2 B * (max(I, H) + max(2 I, H))`` with a rank's width I.

    Sources:
        [vllm-source] model_executor/layers/fused_moe (workspace shapes).
    """
    blocks = [group.ffn for group in shape.groups if isinstance(group.ffn, MoeFfn)]
    return max(
        (_workspace_bytes(ffn, shape.hidden_size, batched_tokens, tensor) for ffn in blocks),
        default=0.0,
    )


def _workspace_bytes(ffn: MoeFfn, hidden: int, batched_tokens: int, tensor: int) -> float:
    width, in_and_out = ffn.expert_intermediate_size / tensor, ffn.latent_size or hidden
    elements = max(width, in_and_out) + max(2 * width, in_and_out)
    return batched_tokens * ffn.experts_per_token * ACTIVATION_BYTES * elements


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetPart:
    """One use of a GPU's memory: the truth lies within ``spread_bytes`` of it nine times in ten.

    Some engines, boards or flags do otherwise: then it is up to ``more_bytes`` larger or up to
    ``less_bytes`` smaller.
    """

    name: str
    num_bytes: float
    spread_bytes: float = 0.0
    more_bytes: float = 0.0
    less_bytes: float = 0.0
    cause: str = ""
    """Of the latter two, for people."""
    uncounted_bytes: float = 0.0
    """What the engine holds beside this, and does not take off the cache."""

    @property
    def above_bytes(self) -> float:
        return max(self.spread_bytes, self.more_bytes)

    @property
    def below_bytes(self) -> float:
        return max(self.spread_bytes, self.less_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenPool:
    """A cache whose size a flag of the engine says, whatever is left beside the rest."""

    flag: str
    """With its value, as on the command line."""
    num_bytes: float
    """Of the whole blocks that it comes to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryBudget:
    """Where the memory of the fullest GPU goes, in bytes."""

    total_bytes: float
    utilization_fraction: float
    parts: tuple[BudgetPart, ...]
    """All that the engine holds beside the cache, weights first."""
    total_spread_bytes: float = 0.0
    """By which boards of a class differ, and drivers."""
    total_more_bytes: float = 0.0
    """By which some drivers report more."""
    given_pool: GivenPool | None = None
    """None: the cache is what the rest leaves of the usable memory."""

    @property
    def usable_bytes(self) -> float:
        return self.total_bytes * self.utilization_fraction

    @property
    def unused_bytes(self) -> float:
        """What the engine leaves alone. Negative: by how much a given cache is too large."""
        uncounted_bytes = sum(part.uncounted_bytes for part in self.parts)
        if self.given_pool:
            held_bytes = self.parts_bytes + uncounted_bytes
            return self.total_bytes - held_bytes - self.given_pool.num_bytes
        return self.total_bytes - self.usable_bytes - uncounted_bytes

    @property
    def kv_pool_bytes(self) -> float:
        """What is left for the cache. Negative: by how much the rest does not fit."""
        if self.given_pool:
            return self.given_pool.num_bytes
        return self.usable_bytes - self.parts_bytes

    @property
    def kv_pool_spread_bytes(self) -> float:
        """The figures err independently of one another: their spreads add up as squares do.

        A given cache has none: the rest may be more or less, it stays as large.
        """
        return 0.0 if self.given_pool else self.parts_spread_bytes

    @property
    def kv_pool_low_bytes(self) -> float:
        """The cache where parts may be larger than expected. It is as large as given, if given."""
        if self.given_pool:
            return self.given_pool.num_bytes
        above = (part.above_bytes for part in self.parts)
        return self.kv_pool_bytes - math.hypot(self.total_spread_bytes, *above)

    @property
    def kv_pool_high_bytes(self) -> float:
        """The cache where parts may be smaller than expected, and the board larger."""
        if self.given_pool:
            return self.given_pool.num_bytes
        below = (part.below_bytes for part in self.parts)
        larger = max(self.total_spread_bytes, self.total_more_bytes * self.utilization_fraction)
        return self.kv_pool_bytes + math.hypot(larger, *below)

    @property
    def widest(self) -> BudgetPart | None:
        """What decides the range of the cache; None: the memory of the board, or nothing."""
        parts = [part for part in self.parts if part.above_bytes + part.below_bytes > 0]
        found = max(parts, key=lambda part: part.above_bytes + part.below_bytes, default=None)
        own = self.total_spread_bytes + max(self.total_spread_bytes, self.total_more_bytes)
        if found is None or self.given_pool or found.above_bytes + found.below_bytes < own:
            return None
        return found

    @property
    def parts_bytes(self) -> float:
        return sum(part.num_bytes for part in self.parts)

    @property
    def parts_spread_bytes(self) -> float:
        """Of all that is held beside the cache, and of the memory that it is held in."""
        return math.hypot(self.total_spread_bytes, *(part.spread_bytes for part in self.parts))

    def bytes_of(self, name: str) -> float:
        """Return one part's bytes, 0 where it is not in the budget."""
        return sum(part.num_bytes for part in self.parts if part.name == name)

    def __str__(self) -> str:
        is_given = self.given_pool is not None
        held = (
            (part.name, part.num_bytes + is_given * part.uncounted_bytes) for part in self.parts
        )
        parts = [f"{format_bytes(num_bytes)} {name}" for name, num_bytes in held if num_bytes]
        if self.given_pool:
            given = f"{format_bytes(self.given_pool.num_bytes)}, given by {self.given_pool.flag}"
            return f"{given}, beside {', '.join(parts)} in {format_bytes(self.total_bytes)}"
        usable = (
            f"{format_bytes(self.usable_bytes)} usable ({self.utilization_fraction:.0%} of "
            f"{format_bytes(self.total_bytes)})"
        )
        return " - ".join([usable, *parts])


def sequences_held(*, pool_bytes: float, bytes_per_sequence: float) -> float:
    """Return how many sequences the pool holds. Not rounded: callers floor it."""
    return max(0.0, pool_bytes) / bytes_per_sequence


def shortfall(budget: MemoryBudget, *, request_bytes: float, context_tokens: int) -> str | None:
    """Say with the whole budget in numbers why it may not do; None: it does."""
    if budget.given_pool:
        lack = _too_small(budget, request_bytes, context_tokens)
        return lack or (_too_large(budget) if budget.unused_bytes < 0 else None)
    remaining, spread = budget.kv_pool_bytes, budget.kv_pool_spread_bytes
    if remaining < request_bytes:
        return (
            f"{budget} {_remainder(budget)}; one request of {context_tokens} tokens needs "
            f"{format_bytes(request_bytes)} of KV cache per GPU"
        )
    if remaining <= spread:
        return (
            f"{budget} leaves {format_bytes(remaining)} for the KV cache, but the estimate is off "
            f"by up to {format_bytes(spread)}: there may be none"
        )
    return None


def given_shortfall(
    budget: MemoryBudget, *, request_bytes: float, context_tokens: int
) -> str | None:
    """Say why no engine runs with a given cache, whatever is estimated beside it; None: one does.

    It holds no request of the maximum length, or the GPU cannot hold it.
    """
    lack = _too_small(budget, request_bytes, context_tokens)
    can_hold = budget.kv_pool_bytes <= budget.total_bytes + budget.total_spread_bytes
    return lack if lack or can_hold else _too_large(budget)


def _too_small(budget: MemoryBudget, request_bytes: float, context_tokens: int) -> str | None:
    if budget.kv_pool_bytes >= request_bytes:
        return None
    return (
        f"KV cache of {budget}; one request of {context_tokens} tokens needs "
        f"{format_bytes(request_bytes)} of KV cache per GPU"
    )


def _too_large(budget: MemoryBudget) -> str:
    return f"KV cache of {budget}: {format_bytes(-budget.unused_bytes)} too much"


def _remainder(budget: MemoryBudget) -> str:
    remaining = budget.kv_pool_bytes
    if remaining < 0:
        return f"is {format_bytes(-remaining)} short before any KV cache"
    return f"leaves {format_bytes(remaining)} for the KV cache"
