"""What requests meet at a rate on so many replicas, by running the engine model."""

from dataclasses import dataclass
from functools import lru_cache

from tonnage.sizing.serving.goodput import Length, outcome_at
from tonnage.sizing.serving.staffing import FLEETS, of_fleet
from tonnage.sizing.serving.trial import Latency, Trial
from tonnage.sizing.workload import Routing


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
    """Sequences decoding on a replica, in the mean over all time, as its gauge averages."""
    kv_usage: float
    """Share of its KV cache that is held, in the same mean."""

    def at(self, quantile: float) -> Latency:
        """Return the latencies at a percentile that was asked for."""
        return next(each for each in self.latencies if each.quantile == quantile)


def fleet_of(trial: Trial, num_replicas: int, routing: Routing) -> Trial:
    """Return what one of so many replicas is run with; of those that pool the first are run."""
    is_pooled = routing is Routing.LEAST_OUTSTANDING
    return of_fleet(trial, min(num_replicas, FLEETS[-1]) if is_pooled else num_replicas, routing)


@lru_cache(maxsize=64)
def service_at(
    trial: Trial,
    requests_per_s: float,
    num_replicas: int,
    routing: Routing,
    length: Length = Length.FULL,
) -> ServiceLevel:
    """Return what requests meet at a rate on so many replicas of the kind that is tried."""
    fleet = fleet_of(trial, num_replicas, routing)
    outcome = outcome_at(fleet, requests_per_s / num_replicas, length=length)
    return ServiceLevel(
        requests_per_s=requests_per_s,
        num_replicas=num_replicas,
        latencies=outcome.latencies,
        busy=outcome.busy,
        running=outcome.busy * outcome.running,
        kv_usage=outcome.busy * outcome.kv_usage,
    )
