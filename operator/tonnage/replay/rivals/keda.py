"""KEDA: triggers that are totals, each with a threshold for its share of a replica, to an HPA.

Follows kedacore/keda, Prometheus scaler with metricType AverageValue, which is the default. The
trigger that asks for most counts; one without an answer lets nothing go down.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from tonnage.replay.prometheus import Query
from tonnage.replay.rivals.hpa import SYNC_S, Behavior, Hpa, Rate, for_total
from tonnage.replay.rivals.rule import Signals, gauges

Total = Callable[[Signals], float | None]
QUEUE_THRESHOLD: Final = 1.0
UP: Final = Behavior(window_s=0.0, rates=(Rate(fraction=1.0, period_s=15.0),))


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


def epp_queue(running: float) -> Keda:
    """Return KEDA on what llm-d's router tells: its queue, and so many requests on a replica.

    Follows llm-d/llm-d guides/workload-autoscaling/keda-epp/optimized-baseline
    base/scaledobject.yaml (b0d6a794) and components/trigger-queue (f8197655).

    The router counts as running what it has sent and what has not ended. It is not modelled that
    it holds requests back while the pool is saturated: what waits in engines counts as its queue.
    """
    return Keda(
        triggers=((_queue_length, QUEUE_THRESHOLD), (requests_running, running)),
        table=gauges("waiting"),
        hpa=Hpa(up=UP),
    )


def requests_running(signals: Signals) -> float:
    return signals.in_flight - signals.waiting_at_router


def _queue_length(signals: Signals) -> float | None:
    waiting = signals.total("waiting")
    return None if waiting is None else waiting + signals.waiting_at_router
