"""KEDA on what llm-d's router tells: its queue, or how saturated the pool is; and requests running.

Follows llm-d/llm-d guides/workload-autoscaling/keda-epp/optimized-baseline
base/scaledobject.yaml (b0d6a794), components/trigger-queue (f8197655) and
components/trigger-saturation (7782151e); saturation by llm-d/llm-d-router
saturationdetector/utilization/detector.go: the mean over pods of max(queue / 5, KV usage / 0.8).

The router counts as running what it has sent and what has not ended. It is not modelled that it
holds requests back while the pool is saturated: what waits in engines counts as its queue.
"""

from typing import Final

from tonnage.replay.rivals.hpa import Behavior, Hpa, Rate
from tonnage.replay.rivals.keda import Keda
from tonnage.replay.rivals.rule import Signals, gauges

QUEUE_THRESHOLD: Final = 1.0
SATURATION_THRESHOLD: Final = 0.7
FULL_QUEUE: Final = 5.0
FULL_KV_USAGE: Final = 0.8
UP: Final = Behavior(window_s=0.0, rates=(Rate(fraction=1.0, period_s=15.0),))


def epp_queue(running: float) -> Keda:
    """Return the overlay on the queue, with so many requests running on a replica."""
    return Keda(
        triggers=((_queued, QUEUE_THRESHOLD), (_running, running)),
        table=gauges("waiting"),
        hpa=Hpa(up=UP),
    )


def epp_saturation(running: float) -> Keda:
    """Return the overlay on saturation, which is a share, but is divided as if it were a total."""
    return Keda(
        triggers=((_saturation, SATURATION_THRESHOLD), (_running, running)),
        table=gauges("waiting", "kv_usage"),
        hpa=Hpa(up=UP),
    )


def _running(signals: Signals) -> float:
    return signals.in_flight - signals.waiting_at_router


def _queued(signals: Signals) -> float | None:
    waiting = signals.total("waiting")
    return None if waiting is None else waiting + signals.waiting_at_router


def _saturation(signals: Signals) -> float:
    """Return how saturated the pool is; a pool of nobody is."""
    waiting, used = signals.by_pod("waiting"), signals.by_pod("kv_usage")
    each = [
        max(waiting[pod] / FULL_QUEUE, used[pod] / FULL_KV_USAGE) for pod in waiting if pod in used
    ]
    return sum(each) / len(each) if each else 1.0
