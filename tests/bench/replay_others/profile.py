"""What a sweep of an engine before its deployment measures: the input of planners that profile."""

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass

from tonnage.engine.step_costs import StepCosts


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """The latencies of an engine by its load, without noise: in favour of whoever uses it."""

    ttft_s: Callable[[float], float]
    """Of a prompt of so many tokens, alone."""
    itl_s: Callable[[int, float], float]
    """Of so many sequences that decode, each with so many tokens of context."""


def decode_step_s(costs: StepCosts, num_decoding: int, context_tokens: float) -> float:
    """Return the time of a step in which sequences of one length decode, and nothing else.

    ``base[n] + max(memory[n] + f[n] * n * memory_price, compute[n] + f[n] * n * compute_price)``:
    what ``StepCosts`` says, for one rank without prompts. Beyond the largest batch: that one.
    """
    n = min(num_decoding, len(costs.base_s) - 1)
    knot = bisect_right(costs.knots_tokens, context_tokens) - 1
    beyond = context_tokens - costs.knots_tokens[knot]
    memory_s = costs.memory_price_s[knot] + beyond * costs.memory_slope_s[knot]
    compute_s = costs.compute_price_s[knot] + beyond * costs.compute_slope_s[knot]
    each = costs.context_factor[n] * n
    overlapped_s = max(costs.memory_s[n] + each * memory_s, costs.compute_s[n] + each * compute_s)
    return costs.base_s[n] + overlapped_s
