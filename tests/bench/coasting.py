"""The engine model, fast: steps that only decode, with nobody to admit, are taken together.

The same schedule as ``tonnage.engine.Engine``, which a test holds it to, at a cost per request
instead of per token: between two events every sequence gains one token per step, so counts say all
that a step time needs.
"""

import heapq
import math
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from tonnage.engine import EngineLimits, Request

StepTime = Callable[[int, int, int, float], float]
"""Seconds of a step: (decoding sequences, their context tokens, prefill tokens, earlier tokens that
each of these attends to in the mean) -> s. The last is more than the engine model tells."""
LINEAR = 1e-9
"""Share of a step by which a middle one may differ from the line between its neighbours."""


@dataclass(slots=True, eq=False)
class Served:
    """A request on its way, and in the end what its client saw."""

    request: Request
    emitted: int = 0
    """Up to where it was last counted: while it decodes, ``started`` says the rest."""
    blocks: int = 0
    started: int = 0
    """Steps of the engine before the first in which it decodes."""
    computed: int = 0
    is_decoding: bool = False
    num_admissions: int = 0
    first_token_s: float = math.nan
    ended_s: float = math.nan
    num_preemptions: int = 0

    @property
    def ttft_s(self) -> float:
        return self.first_token_s - self.request.arrival_s

    @property
    def tpot_s(self) -> float | None:
        later = self.request.output_tokens - 1
        return (self.ended_s - self.first_token_s) / later if later else None


@dataclass(slots=True, eq=False)
class CoastingEngine:
    """One engine. ``submit`` in order of arrival; ``advance`` ends all steps up to a time."""

    limits: EngineLimits
    step_time: StepTime
    now_s: float = 0.0
    num_outstanding: int = 0
    completed: list[Served] = field(default_factory=list)
    _waiting: deque[Served] = field(default_factory=deque)
    _order: list[Served] = field(default_factory=list)
    _num_running: int = 0
    _num_decoding: int = 0
    _context: int = 0
    _free: int = 0
    _steps: int = 0
    _partial: Served | None = None
    _needing: list[int] = field(default_factory=list)
    _finishing: list[tuple[int, int, int, Served]] = field(default_factory=list)
    _ticket: int = 0
    _coast: tuple[int, float, float] | None = None
    """Steps under way, the seconds of the first and what each adds to the one before."""
    _ends_s: float = math.inf
    _pairs: float = 0.0
    """Of prefill tokens with the earlier tokens that they attend to, in this step."""
    _emitting: list[Served] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._free = self.limits.num_blocks
        self._needing = [0] * self.limits.block_size

    @property
    def next_event_s(self) -> float:
        """When the steps under way end; infinite while idle."""
        return self._ends_s

    def advance(self, until_s: float) -> None:
        while self._ends_s <= until_s:
            self._end()
            if self.num_outstanding:
                self._begin()

    def submit(self, request: Request) -> None:
        """Put a request at the end of the queue; the engine sees it when its step ends."""
        self.advance(request.arrival_s)
        self.num_outstanding += 1
        self._waiting.append(Served(request))
        if self._coast is None:
            self.now_s = request.arrival_s
            self._begin()
        elif self._coast[0] > 1 and len(self._waiting) == 1:
            self._cut(request.arrival_s)

    def _cut(self, at_s: float) -> None:
        """Let the coast end with the step in which ``at_s`` falls."""
        steps, first_s, more_s = self._coast or (1, 0.0, 0.0)
        elapsed_s = at_s - self.now_s
        if more_s > 0:
            lead = first_s - more_s / 2
            root = math.sqrt(lead * lead + 2 * more_s * max(elapsed_s, 0.0))
            passed = (root - lead) / more_s
        else:
            passed = elapsed_s / first_s
        kept = max(1, min(steps, int(passed)))
        while kept < steps and _sum_s(kept, first_s, more_s) < elapsed_s:
            kept += 1
        self._coast = (kept, first_s, more_s)
        self._ends_s = self.now_s + _sum_s(kept, first_s, more_s)

    def _begin(self) -> None:
        """Schedule the next step, or the next steps where they will all look alike."""
        budget = self.limits.max_num_batched_tokens
        is_short = self._make_room()
        num_decoding, context = self._num_decoding, self._context
        budget -= num_decoding
        prefill, self._pairs = 0, 0.0
        if self._partial is not None:
            prefill += self._chunk(self._partial, budget)
        if not is_short:
            prefill += self._admit(budget - prefill)
        steps, first_s, more_s = 1, self._seconds(num_decoding, context, prefill), 0.0
        if not prefill and not is_short and num_decoding:
            steps, more_s = self._alike(first_s)
        self._coast = (steps, first_s, more_s)
        self._ends_s = self.now_s + _sum_s(steps, first_s, more_s)

    def _seconds(self, num_decoding: int, context: int, prefill: int) -> float:
        earlier = self._pairs / prefill if prefill else 0.0
        return self.step_time(num_decoding, context, prefill, earlier)

    def _alike(self, first_s: float) -> tuple[int, float]:
        """Return how many steps until something changes, and how each differs from the last."""
        while self._finishing[0][3].num_admissions != self._finishing[0][2]:
            heapq.heappop(self._finishing)
        steps = self._finishing[0][0] - self._steps + 1
        steps = self._affordable(steps)
        if steps == 1:
            return 1, 0.0
        n, context = self._num_decoding, self._context
        last_s = self._seconds(n, context + (steps - 1) * n, 0)
        more_s = (last_s - first_s) / (steps - 1)
        middle = steps // 2
        between_s = self._seconds(n, context + middle * n, 0)
        if abs(between_s - first_s - middle * more_s) > LINEAR * between_s:
            return 1, 0.0
        return steps, more_s

    def _affordable(self, steps: int) -> int:
        """Return for how many of these steps there are blocks: one at least."""
        size = self.limits.block_size
        rounds = min((steps + size - 1) // size, self._free // max(1, self._num_decoding))
        covered = rounds * size
        if covered >= steps:
            return steps
        free = self._free - rounds * self._num_decoding
        while covered < steps:
            free -= self._needing[(self._steps + covered) % size]
            if free < 0:
                break
            covered += 1
        return max(1, covered)

    def _make_room(self) -> bool:
        """Preempt the newest until the next step has its blocks; True if anything was."""
        size = self.limits.block_size
        is_short = False
        while self._needing[self._steps % size] + self._partial_need() > self._free:
            self._preempt_newest()
            is_short = True
        return is_short

    def _partial_need(self) -> int:
        served = self._partial
        if served is None:
            return 0
        tokens = min(self._pending(served), self.limits.max_num_batched_tokens - self._num_decoding)
        return max(0, self.limits.blocks_for(served.computed + tokens) - served.blocks)

    def _preempt_newest(self) -> None:
        served = self._order.pop()
        while not served.num_admissions or not math.isnan(served.ended_s):
            served = self._order.pop()
        if served is self._partial:
            self._partial = None
            self._free += served.blocks
        else:
            self._leave(served)
        served.blocks = served.computed = 0
        served.num_admissions += 1
        served.num_preemptions += 1
        self._num_running -= 1
        self._waiting.appendleft(served)

    def _leave(self, served: Served) -> None:
        """Take a decoding sequence out of the counts and free its blocks."""
        size = self.limits.block_size
        done = self._steps - served.started
        known = served.computed + 1 + done
        served.emitted += done
        served.is_decoding = False
        self._num_decoding -= 1
        self._context -= known
        self._needing[(served.started - served.computed) % size] -= 1
        self._free += self.limits.blocks_for(known - 1)

    def _pending(self, served: Served) -> int:
        return served.request.prompt_tokens + served.emitted - served.computed

    def _chunk(self, served: Served, budget: int) -> int:
        tokens = min(self._pending(served), budget)
        needed = self.limits.blocks_for(served.computed + tokens)
        self._free -= needed - served.blocks
        served.blocks = needed
        self._pairs += tokens * (served.computed + tokens / 2)
        served.computed += tokens
        self._partial = served if self._pending(served) else None
        if self._partial is None:
            self._emitting.append(served)
        return tokens

    def _admit(self, budget: int) -> int:
        spent = 0
        while self._waiting and spent < budget and self._num_running < self.limits.max_num_seqs:
            served = self._waiting[0]
            known = served.request.prompt_tokens + served.emitted
            reserve = self.limits.watermark_blocks if self._num_running else 0
            decoding = self._needing[self._steps % self.limits.block_size]
            if self.limits.blocks_for(known) + reserve + decoding > self._free:
                break
            self._waiting.popleft()
            self._num_running += 1
            self._order.append(served)
            served.num_admissions += 1
            served.computed = served.request.cached_tokens
            spent += self._chunk(served, budget - spent)
        return spent

    def _end(self) -> None:
        steps = self._coast[0] if self._coast else 1
        self.now_s = self._ends_s
        self._free -= self._growth(steps)
        self._steps += steps
        self._context += steps * self._num_decoding
        for served in self._finished():
            self._leave(served)
            self._complete(served)
        for served in self._emitting:
            self._first_token(served)
        self._emitting.clear()
        self._coast, self._ends_s = None, math.inf

    def _growth(self, steps: int) -> int:
        size = self.limits.block_size
        rounds, rest = divmod(steps, size)
        first = self._steps % size
        return rounds * self._num_decoding + sum(
            self._needing[(first + k) % size] for k in range(rest)
        )

    def _finished(self) -> Iterator[Served]:
        while self._finishing and self._finishing[0][0] < self._steps:
            _, _, admission, served = heapq.heappop(self._finishing)
            if served.num_admissions == admission:
                yield served

    def _first_token(self, served: Served) -> None:
        """A prefill ended: it emits a token, and decodes from the next step on."""
        served.emitted += 1
        if math.isnan(served.first_token_s):
            served.first_token_s = self.now_s
        remaining = served.request.output_tokens - served.emitted
        if remaining == 0:
            self._free += served.blocks
            self._complete(served)
            return
        served.is_decoding = True
        served.started = self._steps
        self._num_decoding += 1
        self._context += served.computed + 1
        self._needing[(served.started - served.computed) % self.limits.block_size] += 1
        self._ticket += 1
        last = self._steps + remaining - 1
        heapq.heappush(self._finishing, (last, self._ticket, served.num_admissions, served))

    def _complete(self, served: Served) -> None:
        served.ended_s = self.now_s
        self._num_running -= 1
        self.num_outstanding -= 1
        self.completed.append(served)


def _sum_s(steps: int, first_s: float, more_s: float) -> float:
    return steps * first_s + more_s * steps * (steps - 1) / 2
