"""How many replicas keep every SLO target at the rate asked, and what requests meet on so many.

Behind a plain Service each replica draws its requests at random: N separate queues, each with one
part in N of the burstiness. A router that counts lets them share one. What each of N replicas
serves is found by running the engine model for some N, and read between them.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise

from tonnage.sizing.errors import SLOInfeasibleError
from tonnage.sizing.serving.goodput import (
    Length,
    goodput,
    requests_needed,
    requests_to_fill,
    runs_of,
    with_rounded_inputs,
)
from tonnage.sizing.serving.trial import Latency, Trial, TrialRun
from tonnage.sizing.workload import Routing

FLEETS = (1, 2, 4, 8, 32)
"""Replicas that are simulated together; more serve as much each as the last."""
OVERLOAD = 20.0
"""Of what one replica serves within its targets: a rate at which requests always wait."""
ROUNDING = 5e-4
"""What the search for a rate leaves open: it must not take one more replica."""


def is_within(requests_per_s: float, sustained_requests_per_s: float) -> bool:
    """Tell whether a rate is no more than what is sustained, as far as the search for it says."""
    return requests_per_s * (1 - ROUNDING) <= sustained_requests_per_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Staffing:
    """What each of N replicas serves, by N."""

    each_requests_per_s: tuple[tuple[int, float], ...]
    """Ascending; between two it is on the line in ``1 / N``, or ``1 / sqrt(N)`` where they pool."""
    is_pooled: bool = False

    def each(self, num_replicas: int) -> float:
        """Return what one of so many replicas serves within every target."""
        known = self.each_requests_per_s
        for (few, low), (many, high) in pairwise(known):
            if few <= num_replicas <= many:
                span = self._at(few) - self._at(many)
                return low + (high - low) * (self._at(few) - self._at(num_replicas)) / span
        return known[-1][1]

    def _at(self, num_replicas: int) -> float:
        return 1 / math.sqrt(num_replicas) if self.is_pooled else 1 / num_replicas

    def sustains(self, requests_per_s: float, num_replicas: int) -> bool:
        """Tell whether so many replicas serve this rate within every target."""
        return is_within(requests_per_s, num_replicas * self.each(num_replicas))

    def replicas_for(self, requests_per_s: float) -> int:
        """Return the smallest number of replicas that sustains this rate, at least one.

        Raises:
            SLOInfeasibleError: a replica sustains nothing.
        """
        if requests_per_s <= 0:
            return 1
        most = max(each for _, each in self.each_requests_per_s)
        if self.each(1) <= 0:
            raise SLOInfeasibleError(
                "a replica misses the SLO at any rate: more replicas do not help"
            )
        number = max(1, math.ceil(requests_per_s * (1 - ROUNDING) / most))
        largest, last = self.each_requests_per_s[-1]
        while not self.sustains(requests_per_s, number):
            if number > largest and last <= 0:
                raise SLOInfeasibleError("fleets that large keep the SLO at no rate")
            number += 1  # it starts from what the best fleets serve: soon
        return number


def staffing_of(
    trial: Trial,
    alone_requests_per_s: float,
    routing: Routing,
    *,
    is_enough: Callable[[int, float], bool] = lambda _few, _each: False,
    on_search: Callable[[], None] = lambda: None,
) -> Staffing:
    """Return what each of N replicas serves, ``alone_requests_per_s`` being that of one.

    ``is_enough``: where it says so of a number of replicas and what each of them serves, larger
    fleets are not simulated.

    A random split of Poisson arrivals by chance leaves Poisson arrivals to each, and the same
    goodput, however many there are. One of arrivals more regular than those is the burstier the
    more there are, and each serves less.
    """
    is_pooled = routing is Routing.LEAST_OUTSTANDING
    known = [(1, alone_requests_per_s)]
    is_same = trial.slo.is_offline or (not is_pooled and trial.arrival_scv == 1)
    farther = max if is_pooled or trial.arrival_scv > 1 else min
    if alone_requests_per_s > 0 and not is_same:
        most = saturated_requests_per_s(trial, alone_requests_per_s, on_search=on_search)
        for number in FLEETS[1:]:
            if is_enough(*known[-1]):
                break
            fleet = fleet_of(trial, number, routing)
            guess = known[-1][1] or alone_requests_per_s
            found = goodput(fleet, guess, length=Length.MEDIUM, on_search=on_search)
            known.append((number, min(most, farther(known[-1][1], found.requests_per_s))))
    return Staffing(each_requests_per_s=tuple(known), is_pooled=is_pooled)


def saturated_requests_per_s(
    trial: Trial, alone_requests_per_s: float, *, on_search: Callable[[], None] = lambda: None
) -> float:
    """Return what a replica serves with requests always waiting, and however long they wait.

    A run of many replicas may end before their batches are full: no run of it tells.
    """
    on_search()
    alone = with_rounded_inputs(replace(trial, num_replicas=1))
    count = requests_needed(trial.slo, Length.COARSE) + requests_to_fill(alone)
    run = TrialRun(alone, OVERLOAD * alone_requests_per_s, count)
    return max(alone_requests_per_s, count / run.engines[0].busy_s)


def fleet_of(trial: Trial, num_replicas: int, routing: Routing) -> Trial:
    """Return what one of so many replicas is tried with; of those that pool the first, together."""
    if routing is Routing.LEAST_OUTSTANDING:
        return replace(trial, num_replicas=min(num_replicas, FLEETS[-1]), routing=routing)
    return replace(trial, arrival_scv=1 + (trial.arrival_scv - 1) / num_replicas)


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
    outcome = runs_of(fleet, length).outcome(requests_per_s / num_replicas)
    return ServiceLevel(
        requests_per_s=requests_per_s,
        num_replicas=num_replicas,
        latencies=outcome.latencies,
        busy=outcome.busy,
        running=outcome.busy * outcome.running,
        kv_usage=outcome.busy * outcome.kv_usage,
    )
