"""One engine in real time: steps last as long as the truth says, on a monotonic clock."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from tonnage.engine import Engine, Request, StepResult
from tonnage.lab.standin.metrics import EngineSeries, RequestTimes

Listener = Callable[[str | None], None]
"""Called once for each token; with a finish reason for the last one, or when it is cut off."""

MAX_LAG_S: Final = 1.0
"""A process that was starved longer than this does not try to catch up: a GPU could not."""

logger = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class _Ticket:
    """One request in the engine, as its client sees it."""

    request: Request
    listener: Listener
    arrived_s: float
    started_s: float = 0.0
    first_token_s: float = 0.0
    last_token_s: float = 0.0
    num_tokens: int = 0
    num_preemptions: int = 0


class EngineLoop:
    """Steps an engine while it has work and tells listeners of their tokens."""

    def __init__(self, engine: Engine, series: EngineSeries) -> None:
        self.engine = engine
        self._series = series
        self._tickets: dict[str, _Ticket] = {}
        self._work = asyncio.Event()
        self._empty = asyncio.Event()
        self._empty.set()

    @property
    def num_requests(self) -> int:
        """Requests in the engine, waiting or running."""
        return len(self._tickets)

    def submit(self, request: Request, listener: Listener) -> None:
        """Queue a request.

        Raises:
            RequestError: it can never be served.
        """
        self.engine.submit(request)
        now_s = asyncio.get_running_loop().time()
        self._tickets[request.id] = _Ticket(request=request, listener=listener, arrived_s=now_s)
        self._empty.clear()
        self._work.set()

    def abort(self, request_id: str) -> None:
        """Drop a request, if it is still here."""
        ticket = self._tickets.pop(request_id, None)
        if ticket is None:
            return
        self.engine.abort(request_id)
        self._series.last_step.note(self.engine)
        self._series.count_abort()
        ticket.listener("abort")
        self._note_empty()

    def abort_all(self) -> None:
        """Drop everything, as a shutdown without patience does."""
        for request_id in list(self._tickets):
            self.abort(request_id)

    async def drained(self) -> None:
        """Wait until no request is left."""
        await self._empty.wait()

    async def run(self) -> None:
        """Step for ever. Deadlines are absolute, so that lateness of timers does not add up."""
        clock = asyncio.get_running_loop().time
        while True:
            await self._work.wait()
            started_s = clock()
            while not self.engine.idle:
                result = self.engine.step()
                left_waiting = self.engine.num_waiting
                ended_s = started_s + result.duration_s
                await asyncio.sleep(max(0.0, ended_s - clock()))
                self._series.last_step.note(self.engine, left_waiting=left_waiting)
                self._deliver(result, started_s=started_s, now_s=clock())
                started_s = self._next_start_s(ended_s, clock())
            self._work.clear()

    def _next_start_s(self, ended_s: float, now_s: float) -> float:
        if now_s - ended_s <= MAX_LAG_S:
            return ended_s
        logger.warning("steps are late by %.1f s: this machine is short of CPU", now_s - ended_s)
        return now_s

    def _deliver(self, result: StepResult, *, started_s: float, now_s: float) -> None:
        self._series.count_step(result)
        for request_id in result.preempted:
            if ticket := self._tickets.get(request_id):
                ticket.num_preemptions += 1
        for request_id in result.started:
            if ticket := self._tickets.get(request_id):
                self._start(ticket, started_s)
        finished = set(result.finished)
        for request_id in result.emitted:
            if ticket := self._tickets.get(request_id):
                self._emit(ticket, now_s, "length" if request_id in finished else None)
        self._note_empty()

    def _note_empty(self) -> None:
        if not self._tickets:
            self._empty.set()

    def _start(self, ticket: _Ticket, started_s: float) -> None:
        ticket.started_s = max(started_s, ticket.arrived_s)
        self._series.count_start(
            prompt_tokens=ticket.request.prompt_tokens, cached_tokens=ticket.request.cached_tokens
        )

    def _emit(self, ticket: _Ticket, now_s: float, reason: str | None) -> None:
        if ticket.num_tokens:
            self._series.count_later_token(now_s - ticket.last_token_s)
        else:
            ticket.first_token_s = now_s
            self._series.count_first_token(
                now_s - ticket.arrived_s,
                prompt_tokens=ticket.request.prompt_tokens,
                cached_tokens=ticket.request.cached_tokens,
            )
        ticket.num_tokens += 1
        ticket.last_token_s = now_s
        if reason:
            self._end(ticket)
        ticket.listener(reason)

    def _end(self, ticket: _Ticket) -> None:
        del self._tickets[ticket.request.id]
        self._series.count_end(
            RequestTimes(
                arrived_s=ticket.arrived_s,
                started_s=ticket.started_s,
                first_token_s=ticket.first_token_s,
                last_token_s=ticket.last_token_s,
            ),
            prompt_tokens=ticket.request.prompt_tokens,
            cached_tokens=ticket.request.cached_tokens,
            output_tokens=ticket.num_tokens,
            num_preemptions=ticket.num_preemptions,
        )
