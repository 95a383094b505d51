"""The time of a step as figures: what the engine model adds up instead of calling a formula.

With n sequences decoding on all ranks together, p prompt tokens on all ranks, and on one rank
``own`` prompt tokens and decoding sequences of contexts c::

    t = base[n] + max(memory[n] + factor[n] * sum(memory_price(c)),
                      compute[n] + factor[n] * sum(compute_price(c)))
      + prefill(n, p) - (p - own) * own_prefill_s_per_token + sum(chunk * pairs_price(earlier))

and the slowest rank counts. With a pipeline ``p`` and ``own`` are those of the fullest microbatch,
and each price is of all stages. Prices are piecewise linear in the tokens of context, with a knot
where a window or a sparse selection is full; from step to step they grow by a constant until the
next knot, which is what lets pure decode be taken many steps at a time, exactly.
"""

from array import array
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tonnage.engine.limits import LimitsError


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillGrid:
    """Seconds that prompt tokens add to a step, by sequences decoding and tokens; bilinear."""

    num_decoding: tuple[int, ...]
    """Ascending from 0."""
    prefill_tokens: tuple[float, ...]
    """Ascending from 0; beyond the last the line of the last two goes on."""
    seconds: tuple[tuple[float, ...], ...]
    """One row for each number decoding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCosts:
    """What a step of one engine costs, all in seconds."""

    base_s: Sequence[float]
    """By sequences decoding, from 0 to all slots of all ranks: what no context changes."""
    memory_s: Sequence[float]
    """The same, of reads that overlap with ``compute_s`` and add to the price of context."""
    compute_s: Sequence[float]
    context_factor: Sequence[float]
    """What the prices are multiplied with, by sequences decoding: more than 1 where pipeline
    stages have no sequence of their own."""
    knots_tokens: tuple[int, ...]
    """Contexts at which prices change their slope, ascending, the first 0."""
    memory_price_s: tuple[float, ...]
    """Of a sequence at each knot."""
    memory_slope_s: tuple[float, ...]
    """Per token of context, from each knot on."""
    compute_price_s: tuple[float, ...]
    compute_slope_s: tuple[float, ...]
    pairs_slope_s: tuple[float, ...]
    """Per prompt token and earlier token that it attends to, from each knot on."""
    prefill: PrefillGrid
    own_prefill_s_per_token: float = 0.0
    """Of what a prompt token adds, what it adds only on the rank that computes it."""
    num_microbatches: int = 1
    """Of a pipeline whose stages overlap, as many as it has. A step is one round of them all."""

    def __post_init__(self) -> None:
        """Refuse tables that do not belong together."""
        tables = (self.base_s, self.memory_s, self.compute_s, self.context_factor)
        if len({len(table) for table in tables}) > 1:
            raise LimitsError(f"tables by sequences differ: {[len(table) for table in tables]}")
        if not self.knots_tokens or self.knots_tokens[0] != 0:
            raise LimitsError(f"the first knot is at 0 tokens, not {self.knots_tokens}")


def with_knot(costs: StepCosts, tokens: int) -> StepCosts:
    """Return the same costs with a knot at so many tokens, where prices go on as before."""
    known = costs.knots_tokens
    at = bisect_left(known, tokens)
    if tokens in known:
        return costs
    beyond = tokens - known[at - 1]
    memory_s = costs.memory_price_s[at - 1] + beyond * costs.memory_slope_s[at - 1]
    compute_s = costs.compute_price_s[at - 1] + beyond * costs.compute_slope_s[at - 1]
    return replace(
        costs,
        knots_tokens=(*known[:at], tokens, *known[at:]),
        memory_price_s=(*costs.memory_price_s[:at], memory_s, *costs.memory_price_s[at:]),
        memory_slope_s=_twice(costs.memory_slope_s, at - 1),
        compute_price_s=(*costs.compute_price_s[:at], compute_s, *costs.compute_price_s[at:]),
        compute_slope_s=_twice(costs.compute_slope_s, at - 1),
        pairs_slope_s=_twice(costs.pairs_slope_s, at - 1),
    )


def _twice(values: tuple[float, ...], at: int) -> tuple[float, ...]:
    return (*values[: at + 1], *values[at:])


def linear_costs(
    *,
    per_step_s: float,
    per_sequence_s: float = 0.0,
    kv_s_per_token: float = 0.0,
    prefill_s_per_token: float = 0.0,
    max_num_seqs: int,
) -> StepCosts:
    """Return ``per_step + per_sequence * n + kv * C + prefill * p``: an engine in plain seconds."""
    decoding = range(max_num_seqs + 1)
    nothing = array("d", bytes(8 * len(decoding)))
    row = (0.0, prefill_s_per_token)
    return StepCosts(
        base_s=array("d", (per_step_s + per_sequence_s * n for n in decoding)),
        memory_s=nothing,
        compute_s=nothing,
        context_factor=array("d", [1.0] * len(decoding)),
        knots_tokens=(0,),
        memory_price_s=(0.0,),
        memory_slope_s=(kv_s_per_token,),
        compute_price_s=(0.0,),
        compute_slope_s=(0.0,),
        pairs_slope_s=(0.0,),
        prefill=PrefillGrid(num_decoding=(0, 1), prefill_tokens=(0.0, 1.0), seconds=(row, row)),
    )
