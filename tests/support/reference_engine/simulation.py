"""Engines in simulated time."""

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from reference_engine.core import StepResult
from reference_engine.group import EngineGroup
from reference_engine.limits import Request


@dataclass(slots=True, eq=False)
class Served:
    """A request on its way, and in the end what its client saw."""

    request: Request
    started_s: float = math.nan
    """When the first step began that computed something for it."""
    first_token_s: float = math.nan
    ended_s: float = math.nan
    num_preemptions: int = 0

    @property
    def queue_s(self) -> float:
        return self.started_s - self.request.arrival_s

    @property
    def ttft_s(self) -> float:
        return self.first_token_s - self.request.arrival_s

    @property
    def tpot_s(self) -> float | None:
        """Mean seconds per token after the first; None when there is only one."""
        later = self.request.output_tokens - 1
        return (self.ended_s - self.first_token_s) / later if later else None

    @property
    def e2e_s(self) -> float:
        return self.ended_s - self.request.arrival_s


class Server:
    """A group with a clock. ``submit`` in order of arrival; ``advance`` to a time in between.

    A request that arrives during a step is seen by the engine when that step ends, as in vLLM.
    """

    def __init__(self, group: EngineGroup) -> None:
        self.completed: list[Served] = []
        self._group = group
        self._arrived: deque[Request] = deque()
        self._open: dict[int, Served] = {}
        self._now_s = self._ends_s = 0.0
        self._result: StepResult | None = None
        """Of the step under way."""

    @property
    def num_outstanding(self) -> int:
        return len(self._arrived) + len(self._open)

    @property
    def next_event_s(self) -> float:
        """When the step under way ends, or one may begin; infinite while idle."""
        if self._result is not None:
            return self._ends_s
        return self._now_s if self.num_outstanding else math.inf

    def submit(self, request: Request) -> None:
        self.advance(request.arrival_s)
        if not self.num_outstanding:
            self._now_s = max(self._now_s, request.arrival_s)
        self._arrived.append(request)

    def advance(self, until_s: float) -> None:
        """End all steps up to this time."""
        while self._result is not None or (self.num_outstanding and self._now_s < until_s):
            if self._result is None:
                self._begin()
            if self._ends_s > until_s:
                return
            self._end()

    def _begin(self) -> None:
        while self._arrived and self._arrived[0].arrival_s <= self._now_s:
            request = self._arrived.popleft()
            self._group.submit(request)
            self._open[request.number] = Served(request)
        self._result = self._group.step()
        self._ends_s = self._now_s + self._result.duration_s

    def _end(self) -> None:
        result, began_s = self._result, self._now_s
        self._result, self._now_s = None, self._ends_s
        if result:
            self._note(result, began_s)

    def _note(self, result: StepResult, began_s: float) -> None:
        for number in result.started:
            self._open[number].started_s = began_s
        for number in result.preempted:
            self._open[number].num_preemptions += 1
        for number in result.emitted:
            if math.isnan(self._open[number].first_token_s):
                self._open[number].first_token_s = self._now_s
        for number in result.finished:
            served = self._open.pop(number)
            served.ended_s = self._now_s
            self.completed.append(served)


def simulate(group: EngineGroup, arrivals: Iterable[Request]) -> list[Served]:
    """Serve all arrivals and return them in the order in which they ended."""
    server = Server(group)
    for request in sorted(arrivals, key=lambda each: each.arrival_s):
        server.submit(request)
    server.advance(math.inf)
    return server.completed
