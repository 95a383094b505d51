"""KEDA on what llm-d's router tells: how saturated the pool is, and requests running.

Follows llm-d/llm-d guides/workload-autoscaling/keda-epp/optimized-baseline
base/scaledobject.yaml (b0d6a794) and components/trigger-saturation (7782151e); saturation by
llm-d/llm-d-router saturationdetector/utilization/detector.go: the mean over pods of
max(queue / 5, KV usage / 0.8). Otherwise as ``tonnage.replay.rivals.keda_epp``.
"""

from typing import Final

from tonnage.replay.rivals.hpa import Hpa
from tonnage.replay.rivals.keda import Keda
from tonnage.replay.rivals.keda_epp import UP, requests_running
from tonnage.replay.rivals.rule import Signals, gauges

SATURATION_THRESHOLD: Final = 0.7
FULL_QUEUE: Final = 5.0
FULL_KV_USAGE: Final = 0.8


def epp_saturation(running: float) -> Keda:
    """Return the overlay on saturation, which is a share, but is divided as if it were a total."""
    return Keda(
        triggers=((_saturation, SATURATION_THRESHOLD), (requests_running, running)),
        table=gauges("waiting", "kv_usage"),
        hpa=Hpa(up=UP),
    )


def _saturation(signals: Signals) -> float:
    """Return how saturated the pool is; a pool of nobody is."""
    waiting, used = signals.by_pod("waiting"), signals.by_pod("kv_usage")
    each = [
        max(waiting[pod] / FULL_QUEUE, used[pod] / FULL_KV_USAGE) for pod in waiting if pod in used
    ]
    return sum(each) / len(each) if each else 1.0
