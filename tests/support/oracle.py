"""The smallest fleet that keeps the promise, for whoever knows the truth.

By the product's own question, how many replicas sustain a rate, with the engines that really run in
place of the formula: their costs are run by the engine model, so that they need not be of any form.
It knows neither cold starts nor changes of the rate within a minute.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from tonnage.engine.core import Engine
from tonnage.engine.routing import serve
from tonnage.replay.ground_truth import Machine
from tonnage.sizing.request import SizingRequest
from tonnage.sizing.serving.staffing import FLEETS, Staffing
from tonnage.sizing.serving.trial import requests
from tonnage.sizing.workload import Routing, Slo, Workload

NUM_REQUESTS: Final = 12_000
"""Of a run, of each of a few replicas together."""
WARM_UP: Final = 6
"""One part in so many, at each end of a run, does not count."""
STRIDE: Final = 1.5
CLOSE: Final = 0.004
"""Of a rate, at which a search ends."""
LOWEST: Final = 1e-3


@dataclass(slots=True, kw_only=True)
class Oracle:
    """What is asked of engines, and what is known of them by workload."""

    request: SizingRequest
    machine: Machine
    _staffings: dict[Workload, Staffing] = field(default_factory=dict)

    def replicas_for(self, requests_per_s: float, workload: Workload) -> int:
        """Return the smallest number that keeps every target at this rate, at least one.

        Raises:
            SLOInfeasibleError: no number of them does.
        """
        return self.staffing(workload).replicas_for(requests_per_s)

    def staffing(self, workload: Workload) -> Staffing:
        """Return what each of N replicas serves, by N."""
        found = self._staffings.get(workload)
        if found is None:
            found = self._staffings[workload] = self._staffing(workload)
        return found

    def _staffing(self, workload: Workload) -> Staffing:
        request, is_pooled = self.request, self.request.routing is Routing.LEAST_OUTSTANDING
        known: list[tuple[int, float]] = []
        for number in FLEETS if is_pooled or request.arrival_scv != 1 else FLEETS[:1]:
            guess = known[-1][1] if known else 1.0
            found = _highest(partial(self._ratio, workload, num_replicas=number), guess)
            known.append((number, found))
        return Staffing(each_requests_per_s=tuple(known), is_pooled=is_pooled)

    def _ratio(self, workload: Workload, requests_per_s: float, *, num_replicas: int) -> float:
        """Return late requests over those allowed, where each replica gets so many per second."""
        request, machine = self.request, self.machine
        is_pooled = request.routing is Routing.LEAST_OUTSTANDING
        scv = request.arrival_scv
        drawn = requests(
            workload,
            arrival_scv=scv if is_pooled else 1 + (scv - 1) / num_replicas,
            context_tokens=request.context_tokens,
            count=NUM_REQUESTS,
        )
        together = num_replicas if is_pooled else 1
        table = drawn.table(together * requests_per_s)
        engines = [Engine(machine.limits, machine.costs, table, n) for n in range(together)]
        serve(engines, table, Routing.LEAST_OUTSTANDING, drawn.routes)
        first, last = table.size // WARM_UP, table.size - table.size // WARM_UP
        return _worst(table.late_starts, table.slow_outputs, request.slo, first, last)


Late = Callable[[int, int, float], int]


def _worst(starts: Late, outputs: Late, slo: Slo, first: int, last: int) -> float:
    counted = last - first
    late = [(starts(first, last, each.limit_s), each) for each in slo.ttft]
    late += [(outputs(first, last, each.limit_s), each) for each in slo.tpot]
    ratios = (number / counted / (1 - target.quantile) for number, target in late)
    return max(ratios, default=0.0)


def _highest(ratio: Callable[[float], float], guess: float) -> float:
    """Return the highest rate at which a ratio that grows with it is not above 1; 0: none is."""
    low, high = 0.0, math.inf
    rate = guess
    while not (low and high / low <= 1 + CLOSE):
        if ratio(rate) <= 1:
            low = rate
        else:
            high = rate
        if rate < LOWEST * guess:
            return 0.0
        rate = low * STRIDE if math.isinf(high) else math.sqrt(max(low, high / STRIDE**2) * high)
    return low
