"""What the rules on KEDA share that only the benchmark compares."""

from typing import Final

from tonnage.replay.rivals.hpa import Behavior, Rate
from tonnage.replay.rivals.keda import Total

UP_BY_ONE: Final = Behavior(window_s=0.0, rates=(Rate(pods=1, period_s=180.0),))
DOWN_BY_ONE: Final = Behavior(window_s=300.0, rates=(Rate(pods=1, period_s=300.0),))
"""The pace of llm-d's benchmarks and of its token-aware guide: pods take minutes to start."""


def total_of(query: str) -> Total:
    """Return what sums a query over pods."""
    return lambda signals: signals.total(query)
