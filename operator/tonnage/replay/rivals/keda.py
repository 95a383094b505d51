"""KEDA: triggers that are totals, each with a threshold for its share of a replica, to an HPA.

Follows kedacore/keda, Prometheus scaler with metricType AverageValue, which is the default. The
trigger that asks for most counts; one without an answer lets nothing go down.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tonnage.replay.query import Query
from tonnage.replay.rivals.hpa import SYNC_S, Hpa, for_total
from tonnage.replay.rivals.rule import Signals

Total = Callable[[Signals], float | None]


@dataclass(slots=True, kw_only=True)
class Keda:
    """What a ScaledObject with these triggers asks for."""

    triggers: tuple[tuple[Total, float], ...]
    """The total, and its share of a replica."""
    table: Mapping[str, Query]
    hpa: Hpa = field(default_factory=Hpa)
    interval_s: float = SYNC_S

    def replicas(self, signals: Signals) -> int:
        asked = (for_total(total(signals), share, signals) for total, share in self.triggers)
        return self.hpa.replicas(signals, max(asked))
