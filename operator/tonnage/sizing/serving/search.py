"""Where a quantity that grows with load crosses zero."""

from collections.abc import Callable

ROUNDS = 40
PRECISION = 1e-4
CLOSE = 1e-4
TINY = 1e-12
NOTHING = 1e-6
"""Share of the first bracket below which what is left of it is as good as 0."""
NEAR = 0.02
"""Least share of the bracket by which it shrinks, unless it is nearly closed."""
CLEAR = 5.0
"""A logarithm of misses over those allowed beyond which its size says nothing more."""


def crossing(excess: Callable[[float], float], high: float, *, close: float = CLOSE) -> float:
    """Return a number below ``high`` at which the excess crosses zero; 0 when it is never below.

    The largest such number where the excess grows throughout.

    ``excess(high)`` is positive. False position between the ends; an end that stays twice counts
    half (the Illinois rule), so that a smooth excess takes some eight calls. One that leaps takes
    bisections. ``close``: an excess this little below zero is as good as none.
    """
    least = NOTHING * high
    low, at_low, at_high = 0.0, -CLEAR, min(CLEAR, excess(high))
    side = 0
    for _ in range(ROUNDS):
        share = at_low / (at_low - at_high)
        middle = low + (high - low) * min(1 - NEAR, max(NEAR, share))
        found = max(-CLEAR, min(CLEAR, excess(middle)))
        if found <= 0:
            low, at_low = middle, min(found, -TINY)
            at_high, side = at_high / 2 if side < 0 else at_high, -1
        else:
            high, at_high = middle, found
            at_low, side = at_low / 2 if side > 0 else at_low, 1
        if -close < found <= 0 or high - low <= PRECISION * high or high < least:
            break
    return low
