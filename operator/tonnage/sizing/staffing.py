"""How many replicas: the smallest number whose queues keep the promises."""

import math
from dataclasses import dataclass

from tonnage.sizing.errors import SLOInfeasibleError
from tonnage.sizing.steady import BISECTIONS, LoadLine, Replica, SteadyState, steady_state
from tonnage.sizing.ttft import Queueing, keeps_ttft
from tonnage.sizing.workload import Routing, Slo, Workload


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
        pooled = num_replicas if self.routing is Routing.LEAST_OUTSTANDING else 1
        held = self.replica.sequences_held(self.workload.mean_context_tokens)
        queueing = Queueing(
            slots=min(float(self.slots), held),
            num_replicas_pooled=pooled,
            arrival_scv=self.arrival_scv,
        )
        return num_replicas * self._sustainable_each(queueing)

    def _sustainable_each(self, queueing: Queueing) -> float:
        """Search the mean number of decoding sequences, up to the load line."""
        low, high = 0.0, self.line.state.num_decoding
        if not self.slo.ttft or self._keeps(self.line.state, queueing):
            return self.line.requests_per_s
        for _ in range(BISECTIONS // 2):
            middle = (low + high) / 2
            state = steady_state(self.replica, self.workload, middle)
            low, high = (middle, high) if self._keeps(state, queueing) else (low, middle)
        return steady_state(self.replica, self.workload, low).requests_per_s

    def _keeps(self, state: SteadyState, queueing: Queueing) -> bool:
        return keeps_ttft(self.replica, self.workload, state, self.slo, queueing)


def replicas_for(team: Team, requests_per_s: float) -> int:
    """Return the smallest number of replicas that sustains this rate, at least one.

    Behind a plain Service each replica is its own queue, so the number is a quotient; behind a
    least-outstanding router each further replica sustains a little more than the one before.

    Raises:
        SLOInfeasibleError: a replica sustains nothing.
    """
    if requests_per_s <= 0:
        return 1
    alone = team.sustainable_requests_per_s(1)
    if team.routing is Routing.SERVICE:
        return _quotient(requests_per_s, alone)
    low, high = 1, _quotient(requests_per_s, alone)
    while low < high:
        middle = (low + high) // 2
        if team.sustainable_requests_per_s(middle) >= requests_per_s:
            high = middle
        else:
            low = middle + 1
    return high


def _quotient(requests_per_s: float, each: float) -> int:
    if each <= 0:
        raise SLOInfeasibleError("a replica keeps the SLO at no rate: no number of them helps")
    # A rate equal to a whole number of replicas must not need one more for rounding's sake.
    return max(1, math.ceil(requests_per_s / each - 1e-9))


def replicas_for_throughput(*, tokens_per_s: float, tokens_per_s_per_replica: float) -> int:
    """Return replicas for a peak in tokens per second, at full use of each.

    >>> replicas_for_throughput(tokens_per_s=10_000, tokens_per_s_per_replica=797)
    13
    """
    return math.ceil(tokens_per_s / tokens_per_s_per_replica)
