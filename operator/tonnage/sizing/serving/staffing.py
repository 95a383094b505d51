"""How many replicas: the smallest number whose queues keep the promises."""

import math
from dataclasses import dataclass, replace
from functools import lru_cache

from tonnage.sizing.bounded import bounded
from tonnage.sizing.errors import SLOInfeasibleError
from tonnage.sizing.occupancy import Arrivals
from tonnage.sizing.serving.load_line import LoadLine, top_requests_per_s
from tonnage.sizing.serving.search import crossing
from tonnage.sizing.serving.steady import Replica, load_at, places
from tonnage.sizing.serving.ttft import ttft_excess
from tonnage.sizing.tpot import tpot_excess
from tonnage.sizing.workload import Routing, Slo, Workload

DOUBLINGS = 6
ROUNDING = 5e-4
"""What the search for a rate leaves open: it must not take one more replica."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Team:
    """A replica at its load line, and how the fleet's requests reach it."""

    replica: Replica
    workload: Workload
    slo: Slo
    line: LoadLine
    slots: int
    """``--max-num-seqs`` times data-parallel ranks."""
    routing: Routing = Routing.SERVICE
    arrival_scv: float = 1.0

    def sustainable_requests_per_s(self, num_replicas: int) -> float:
        """Return the highest rate that so many replicas serve within every promise."""
        if num_replicas <= 0:
            return 0.0
        # A random split of arrivals by chance leaves the same to each, however many there are.
        is_chance = self.routing is Routing.SERVICE and self.arrival_scv == 1
        alike = min(num_replicas, 2) if is_chance else num_replicas
        return num_replicas * _sustainable_each(self, alike)

    def sustains(self, requests_per_s: float, num_replicas: int) -> bool:
        """Tell whether so many replicas serve this rate within every promise."""
        return requests_per_s * (1 - ROUNDING) <= self.sustainable_requests_per_s(num_replicas)

    @property
    def top_requests_per_s(self) -> float:
        """Return what one replica serves at most, however long requests wait and take."""
        return top_requests_per_s(self._with_slots, self.workload)

    @property
    def _with_slots(self) -> Replica:
        return replace(self.replica, max_num_seqs=max(1, self.slots // self.replica.num_queues))

    def excess(self, requests_per_s: float, num_replicas: int) -> float:
        """Return the logarithm of misses over those allowed, for the promise broken worst.

        Of a fleet of so many replicas at this rate each: positive where one is broken.
        """
        if self.slo.is_offline or requests_per_s <= 0:
            return -math.inf
        replica = self._with_slots
        load = load_at(replica, self.workload, self._arrivals(requests_per_s, num_replicas))
        state = bounded(load, places(replica, self.workload)) if load else None
        if load is None or state is None:
            return math.inf
        found = [tpot_excess(load, state, promise) for promise in self.slo.tpot]
        found += [ttft_excess(load, state, promise) for promise in self.slo.ttft]
        return max(found)

    def _arrivals(self, requests_per_s: float, num_replicas: int) -> Arrivals:
        """Return what reaches one data-parallel rank.

        Behind a plain Service each replica draws its requests at random: of the burstiness of all
        one part in so many is left. A router that counts evens all replicas out.
        """
        each = requests_per_s / self.replica.num_queues
        if self.routing is Routing.LEAST_OUTSTANDING:
            return Arrivals(requests_per_s=each, scv=self.arrival_scv, num_pooled=num_replicas)
        split_scv = 1 + (self.arrival_scv - 1) / num_replicas
        return Arrivals(requests_per_s=each, scv=split_scv)


@lru_cache(maxsize=256)
def _sustainable_each(team: Team, num_replicas: int) -> float:
    # Alone a replica sustains its load line at most, where TPOT was judged already.
    top = team.line.requests_per_s if num_replicas == 1 else team.top_requests_per_s
    if top <= 0 or team.excess(top, num_replicas) <= 0:
        return top
    return crossing(lambda each: team.excess(each, num_replicas), top)


def replicas_for(team: Team, requests_per_s: float) -> int:
    """Return the smallest number of replicas that sustains this rate, at least one.

    The more there are the more even the load of each: a router pools them, and a random split
    takes the bursts apart. So the quotient for one alone is enough as a rule; where it is not, it
    is doubled.

    Raises:
        SLOInfeasibleError: a replica sustains nothing.
    """
    if requests_per_s <= 0:
        return 1
    low, high = 1, _quotient(requests_per_s, team.sustainable_requests_per_s(1))
    for _ in range(DOUBLINGS):
        if team.sustains(requests_per_s, high):
            break
        low, high = high + 1, 2 * high
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if team.sustains(requests_per_s, middle) else (middle + 1, high)
    return high


def _quotient(requests_per_s: float, each: float) -> int:
    if each <= 0:
        raise SLOInfeasibleError("a replica keeps the SLO at no rate: no number of them helps")
    return max(1, math.ceil(requests_per_s / each - ROUNDING))


def replicas_for_throughput(*, tokens_per_s: float, tokens_per_s_per_replica: float) -> int:
    """Return replicas for a peak in tokens per second, at full use of each.

    >>> replicas_for_throughput(tokens_per_s=10_000, tokens_per_s_per_replica=797)
    13
    """
    return math.ceil(tokens_per_s / tokens_per_s_per_replica)
