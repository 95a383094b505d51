"""What requests meet at a rate on so many replicas, by running the engine model."""

import math
from array import array
from dataclasses import dataclass
from functools import lru_cache

from tonnage.sizing.serving.goodput import on_grid, requests_needed, requests_to_fill
from tonnage.sizing.serving.staffing import FLEETS, of_fleet
from tonnage.sizing.serving.trial import Run, Trial
from tonnage.sizing.workload import Routing

SHOWN = (0.5, 0.95, 0.99)
"""Percentiles that are told beside those of the SLO."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """TTFT and TPOT at one percentile."""

    quantile: float
    ttft_s: float
    tpot_s: float | None
    """None: no answer has a second token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceLevel:
    """What a fleet does at a rate."""

    requests_per_s: float
    """Of all replicas together."""
    num_replicas: int
    latencies: tuple[Latency, ...]
    """By percentile, ascending."""
    busy: float
    """Share of the time in which a replica has something to do."""
    running: float
    """Sequences decoding on a replica, in the mean over that time."""
    kv_usage: float
    """Share of its KV cache that is held then."""

    def at(self, quantile: float) -> Latency:
        """Return the latencies at a percentile that was asked for."""
        return next(each for each in self.latencies if each.quantile == quantile)


@lru_cache(maxsize=64)
def service_at(
    trial: Trial, requests_per_s: float, num_replicas: int, routing: Routing
) -> ServiceLevel:
    """Return what requests meet at a rate on so many replicas of the kind that is tried."""
    is_pooled = routing is Routing.LEAST_OUTSTANDING
    alike = min(num_replicas, FLEETS[-1]) if is_pooled else num_replicas
    fleet = on_grid(of_fleet(trial, alike, routing))
    count = requests_needed(trial.slo) + requests_to_fill(fleet)
    run = Run(fleet, requests_per_s / num_replicas * fleet.num_replicas, count)
    outcome = run.outcome()
    ttft_s, tpot_s = run.latencies_s()
    asked = {target.quantile for target in (*trial.slo.ttft, *trial.slo.tpot)}
    return ServiceLevel(
        requests_per_s=requests_per_s,
        num_replicas=num_replicas,
        latencies=tuple(
            Latency(
                quantile=quantile,
                ttft_s=_at(ttft_s, quantile),
                tpot_s=_at(tpot_s, quantile) if tpot_s[-1] else None,
            )
            for quantile in sorted(asked.union(SHOWN))
        ),
        busy=outcome.busy,
        running=outcome.running,
        kv_usage=outcome.kv_usage,
    )


def _at(ascending: "array[float]", quantile: float) -> float:
    return ascending[min(len(ascending) - 1, math.ceil(quantile * len(ascending)) - 1)]
