"""KEDA on what llm-d's router tells: its queue, and requests running.

Follows llm-d/llm-d guides/workload-autoscaling/keda-epp/optimized-baseline
base/scaledobject.yaml (b0d6a794) and components/trigger-queue (f8197655).

The router counts as running what it has sent and what has not ended. It is not modelled that it
holds requests back while the pool is saturated: what waits in engines counts as its queue.
"""

from typing import Final

from tonnage.replay.rivals.hpa import Behavior, Hpa, Rate
from tonnage.replay.rivals.keda import Keda
from tonnage.replay.rivals.rule import Signals, gauges

QUEUE_THRESHOLD: Final = 1.0
UP: Final = Behavior(window_s=0.0, rates=(Rate(fraction=1.0, period_s=15.0),))


def epp_queue(running: float) -> Keda:
    """Return the overlay on the queue, with so many requests running on a replica."""
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
