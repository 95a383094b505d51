"""One engine in real time: steps last as long as the truth says, on a monotonic clock."""

import asyncio
import logging
import math
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Final

from tonnage.engine.core import Engine
from tonnage.engine.limits import EngineLimits
from tonnage.engine.schedule import Rank
from tonnage.engine.step_costs import StepCosts
from tonnage.engine.table import RequestTable
from tonnage_lab.emulator.metrics import EngineSeries, RequestTimes
from tonnage_lab.emulator.step import Emission, Prompt, RankStep

Listener = Callable[[str | None], None]
"""Called once for each token; with a finish reason for the last one, or when it is cut off."""

MAX_LAG_S: Final = 1.0
"""A process that was starved longer than this does not try to catch up: a GPU could not."""
BLOCKED_S: Final = 0.005
"""Between two looks at requests of which none has room."""
ENDED_ROWS: Final = 256
"""Requests that have ended and still have a row of the table, at most, in steady work."""

logger = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class _Ticket:
    """One request in the engine, as its client sees it."""

    rank: int
    prompt: Prompt
    listener: Listener
    arrived_s: float
    started_s: float = 0.0
    first_token_s: float = 0.0
    last_token_s: float = 0.0
    num_tokens: int = 0
    num_preemptions: int = 0


class EngineLoop:
    """Steps an engine while it has work and tells listeners of their tokens.

    Requests are named by their row in the engine's table. Rows of those that have ended are used
    again, but only between two steps: what a step did is told when it ends, by row.
    """

    def __init__(
        self,
        limits: EngineLimits,
        costs: StepCosts,
        series: Sequence[EngineSeries],
        server_s: float,
    ) -> None:
        """``series``: one for each data-parallel rank. ``server_s``: before requests arrive."""
        self.engine = Engine(limits, costs, RequestTable((), (), (), ()), is_logged=True)
        self._limits = limits
        self._series = series
        self._server_s = server_s
        self._tickets: dict[int, _Ticket] = {}
        self._ended: list[int] = []
        self._for_room: deque[tuple[int, asyncio.Future[Callable[[], None]]]] = deque()
        self._num_coming = 0
        self._work = asyncio.Event()
        self._empty = asyncio.Event()
        self._empty.set()
        self._goes_on = asyncio.Event()
        self._goes_on.set()

    @property
    def num_requests(self) -> int:
        """Requests in the engine: waiting, running, or with their cache on its way."""
        return len(self._tickets) + self._num_coming

    def queued_tokens(self) -> int:
        """Return the tokens of all prompts without a first token, as their clients see it."""
        tickets = self._tickets.values()
        return sum(each.prompt.tokens for each in tickets if not each.num_tokens)

    def hold(self, num_tokens: int) -> Callable[[], None]:
        """Take the room of so many tokens off the emptiest cache; return what gives it back."""
        rank, num_blocks = self._emptiest(), self._blocks(num_tokens)

        def take(number: int) -> None:
            rank.num_blocks -= number
            rank.free_blocks -= number

        def give_back() -> None:
            take(-num_blocks)
            self._let_in()

        take(num_blocks)
        return give_back

    @asynccontextmanager
    async def room(self, num_tokens: int) -> AsyncIterator[None]:
        """Wait in turn for the room of a cache that comes from elsewhere, and hold it."""
        held: asyncio.Future[Callable[[], None]] = asyncio.get_running_loop().create_future()
        self._for_room.append((num_tokens, held))
        self._num_coming += 1
        self._empty.clear()
        self._let_in()
        try:
            await held
            yield
        finally:
            if not held.cancelled():
                held.result()()
            self._num_coming -= 1
            self._let_in()
            self._note_empty()

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Count a request as one that waits, and not for capacity."""
        step = self._series[0].last_step
        step.num_deferred += 1
        try:
            yield
        finally:
            step.num_deferred -= 1

    def submit(
        self,
        prompt: Prompt,
        *,
        output_tokens: int,
        listener: Listener,
        arrived_s: float | None = None,
    ) -> int:
        """Queue a request, and return its row. ``arrived_s``: on the loop's clock; None: now.

        Raises:
            RequestError: it can never be served.
        """
        self._limits.check(
            prompt_tokens=prompt.tokens,
            output_tokens=output_tokens,
            cached_tokens=prompt.cached_tokens,
        )
        now_s = asyncio.get_running_loop().time()
        number = self.engine.table.add(
            prompt_tokens=prompt.tokens,
            output_tokens=output_tokens,
            cached_tokens=prompt.cached_tokens,
            arrival_s=now_s,
        )
        self._tickets[number] = _Ticket(
            rank=self.engine.submit(number),
            prompt=prompt,
            listener=listener,
            arrived_s=now_s if arrived_s is None else arrived_s,
        )
        self._empty.clear()
        self._work.set()
        return number

    def abort(self, number: int) -> None:
        """Drop a request that has not ended."""
        ticket = self._tickets.pop(number)
        self.engine.abort(number)
        self._ended.append(number)
        series = self._series[ticket.rank]
        self._note(ticket.rank)
        series.count_abort()
        ticket.listener("abort")
        self._note_empty()

    def abort_all(self) -> None:
        """Drop everything, as a shutdown without patience does."""
        for number in list(self._tickets):
            self.abort(number)

    def stall(self) -> None:
        """Begin no step any more, as where a process on another node is lost."""
        self._goes_on.clear()

    async def wait_until_idle(self) -> None:
        """Wait until no request is left."""
        while self.num_requests:
            await self._empty.wait()

    async def run(self) -> None:
        """Step for ever. Deadlines are absolute, so that lateness of timers does not add up."""
        clock = asyncio.get_running_loop().time
        while True:
            await self._work.wait()
            started_s = clock()
            while self.engine.num_outstanding:
                await self._goes_on.wait()
                lasts_s = self.engine.step()
                steps = [self._read(rank) for rank in self.engine.ranks]
                if all(step.is_empty for step in steps):
                    lasts_s = max(lasts_s, BLOCKED_S)
                ended_s = started_s + lasts_s
                await asyncio.sleep(max(0.0, ended_s - clock()))
                for index, step in enumerate(steps):
                    self._deliver(index, step, started_s=started_s, now_s=clock())
                self._release()
                self._let_in()
                self._series[0].last_step.num_without_room = len(self._for_room)
                started_s = self._next_start_s(ended_s, clock())
            self._work.clear()

    def _let_in(self) -> None:
        """Give room to those who wait for it, in turn."""
        while self._for_room:
            num_tokens, held = self._for_room[0]
            if not held.done():
                if not self._has_room(num_tokens):
                    break
                held.set_result(self.hold(num_tokens))
            self._for_room.popleft()
        step = self._series[0].last_step
        step.num_without_room = min(step.num_without_room, len(self._for_room))

    def _has_room(self, num_tokens: int) -> bool:
        """Tell whether a request would be scheduled at once, behind those that wait."""
        rank, limits = self._emptiest(), self._limits
        waiting = [self._blocks(self._tickets[each].prompt.tokens) for each in rank.waiting]
        num_blocks = self._blocks(num_tokens) + sum(waiting)
        num_seqs = rank.num_running + len(waiting)
        return num_seqs < limits.max_num_seqs and num_blocks <= rank.free_blocks

    def _emptiest(self) -> Rank:
        return max(self.engine.ranks, key=lambda rank: rank.free_blocks)

    def _blocks(self, num_tokens: int) -> int:
        return math.ceil(num_tokens / self._limits.block_size)

    def _note(self, index: int, *, left_waiting: int | None = None) -> None:
        rank, num_blocks = self.engine.ranks[index], self._limits.num_blocks
        self._series[index].last_step.note(rank, num_blocks, left_waiting=left_waiting)

    def _next_start_s(self, ended_s: float, now_s: float) -> float:
        if now_s - ended_s <= MAX_LAG_S:
            return ended_s
        logger.warning("steps are late by %.1f s: this machine is short of CPU", now_s - ended_s)
        return now_s

    def _read(self, rank: Rank) -> RankStep:
        """Return what the step that has been computed did: its clients learn of it at its end."""
        prefilled = set(rank.prefilled)
        emissions = []
        for number in rank.emitting():
            ticket = self._tickets[number]
            emission = Emission(
                number=number,
                num_tokens=self.engine.emitted(number) - ticket.num_tokens,
                context_tokens=ticket.prompt.tokens + ticket.num_tokens,
                prompt_tokens=0 if ticket.num_tokens else ticket.prompt.tokens,
                is_prefill=number in prefilled,
            )
            emissions.append(emission)
        return RankStep(
            started=tuple(rank.started),
            preempted=tuple(rank.preempted),
            emissions=tuple(emissions),
            finished=frozenset(rank.finished),
            prefill_tokens=rank.prefill_tokens,
            left_waiting=len(rank.waiting),
        )

    def _deliver(self, index: int, step: RankStep, *, started_s: float, now_s: float) -> None:
        series = self._series[index]
        self._note(index, left_waiting=step.left_waiting)
        series.count_step(step)
        for number in step.preempted:
            if ticket := self._tickets.get(number):
                ticket.num_preemptions += 1
        for number in step.started:
            if ticket := self._tickets.get(number):
                ticket.started_s = max(started_s, ticket.arrived_s)
                series.count_start(ticket.prompt)
        for emission in step.emissions:
            if ticket := self._tickets.get(emission.number):
                self._emit(ticket, emission, now_s, is_last=emission.number in step.finished)
        self._note_empty()

    def _note_empty(self) -> None:
        if not self.num_requests:
            self._empty.set()

    def _release(self) -> None:
        """Give the rows of those that have ended back, when they are many."""
        if len(self._ended) > ENDED_ROWS:
            self.engine.release(self._ended)
            self._ended = []

    def _emit(self, ticket: _Ticket, emission: Emission, now_s: float, *, is_last: bool) -> None:
        series = self._series[ticket.rank]
        if ticket.num_tokens:
            series.count_later_tokens(now_s - ticket.last_token_s)
        else:
            ticket.first_token_s = now_s
            series.count_first_token(self._server_s + now_s - ticket.arrived_s, ticket.prompt)
        ticket.num_tokens += emission.num_tokens
        ticket.last_token_s = now_s
        if is_last:
            self._end(emission.number, ticket)
        for _ in range(emission.num_tokens - 1):
            ticket.listener(None)
        ticket.listener("length" if is_last else None)

    def _end(self, number: int, ticket: _Ticket) -> None:
        del self._tickets[number]
        self._ended.append(number)
        self._series[ticket.rank].count_end(
            RequestTimes(
                arrived_s=ticket.arrived_s,
                started_s=ticket.started_s,
                first_token_s=ticket.first_token_s,
                last_token_s=ticket.last_token_s,
            ),
            ticket.prompt,
            output_tokens=ticket.num_tokens,
            num_preemptions=ticket.num_preemptions,
        )
