"""KEDA: triggers that are totals, each with a threshold for its share of a replica, to an HPA.

Follows kedacore/keda, Prometheus scaler with metricType AverageValue, which is the default. The
trigger that asks for most counts; one without an answer lets nothing go down.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from tonnage.estimate.metrics import Query
from tonnage.replay.rivals.hpa import SYNC_S, Behavior, Hpa, Rate, for_total
from tonnage.replay.rivals.rule import Signals

Total = Callable[[Signals], float | None]

UP_BY_ONE: Final = Behavior(window_s=0.0, rates=(Rate(pods=1, period_s=180.0),))
DOWN_BY_ONE: Final = Behavior(window_s=300.0, rates=(Rate(pods=1, period_s=300.0),))
"""The pace of llm-d's benchmarks and of its token-aware guide: pods take minutes to start."""


@dataclass(slots=True, kw_only=True)
class Keda:
    """What a ScaledObject with these triggers asks for."""

    triggers: tuple[tuple[Total, float], ...]
    """The total, and its share of a replica."""
    table: Mapping[str, Query]
    hpa: Hpa = field(default_factory=Hpa)
    interval_s: float = SYNC_S
    reads_engines: bool = False

    def replicas(self, signals: Signals) -> int:
        asked = (for_total(total(signals), share, signals) for total, share in self.triggers)
        return self.hpa.replicas(signals, max(asked))


def total_of(query: str) -> Total:
    """Return what sums a query over pods."""
    return lambda signals: signals.total(query)
