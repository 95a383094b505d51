"""The reference engine, fast: steps that only decode, with nobody to admit, are taken together.

The same schedule as ``reference_engine``, which a test holds it to, at a cost per request instead
of per token. What a sequence will read, and the blocks that it will need, is known when it begins
to decode: it is added, as a curve over the steps to come, to what its rank reads in each of them,
whatever the shape of the curve. Drafts that will be right are known as well. So the seconds of all
steps up to the next event are one cumulated sum. It shares no code with ``tonnage.engine``.
"""

import heapq
import math
from collections import deque
from collections.abc import Sequence
from functools import lru_cache
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from reference_engine import Batch, EngineLimits, Request, Served

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
WAITING_WEIGHT = 4
SPARE_STEPS = 4096
POOL_DRAFTS = 1 << 18


class StepFigures(Protocol):
    """The time of a step in parts that add up: what ranks share, and what each does beside it."""

    def decode_s(self, num_decoding: int) -> float:
        """Return the seconds of a step of so many on all ranks, without their caches."""
        ...

    def mixed_s(self, num_decoding: int, prefill_tokens: int, own_tokens: int) -> float:
        """Return the same beside prefill, of which one rank has its own; without attention."""
        ...

    @property
    def attention_s(self) -> Floats:
        """Seconds of one decoding sequence's attention, by its context."""
        ...

    @property
    def prompt_attention_s(self) -> Floats:
        """Seconds of a prompt's attention, by how much of it is computed."""
        ...


def step_s(figures: StepFigures, batches: Sequence[Batch]) -> float:
    """Return the seconds of a step, with the slowest rank: what ``reference_engine`` asks for."""
    num_decoding = sum(batch.num_decoding for batch in batches)
    prefill = sum(batch.prefill_tokens for batch in batches)
    slowest_s = 0.0
    for batch in batches:
        rank_s = figures.decode_s(num_decoding)
        if prefill:
            rank_s = figures.mixed_s(num_decoding, prefill, batch.prefill_tokens)
        rank_s += sum(float(figures.attention_s[context]) for context in batch.contexts)
        whole_s = figures.prompt_attention_s
        rank_s += sum(float(whole_s[done + new] - whole_s[done]) for done, new in batch.chunks)
        slowest_s = max(slowest_s, rank_s)
    return slowest_s


class Drafts:
    """How many drafts are right in each step of each request: drawn once, the same at all rates."""

    def __init__(self, num_draft_tokens: int, acceptance_rate: float, seed: int = 0) -> None:
        chance = np.random.default_rng([seed, num_draft_tokens])
        # Even over all probabilities: the mean is the rate's own.
        shares = (chance.permutation(POOL_DRAFTS) + chance.random(POOL_DRAFTS)) / POOL_DRAFTS
        found = np.zeros(POOL_DRAFTS, dtype=np.int64)
        for position in range(1, num_draft_tokens + 1):
            found += shares < acceptance_rate**position
        self._pool = np.concatenate([found, found])

    def accepted(self, number: int, num_steps: int) -> int:
        return int(self._pool[self._first(number) + num_steps])

    def of_steps(self, number: int, first: int, most: int) -> Integers:
        """Return those of one request from a step on."""
        start = self._first(number) + first
        return self._pool[start : start + most]

    @staticmethod
    def _first(number: int) -> int:
        return number * 97_003 % POOL_DRAFTS


class _Running:
    """A request with its place in the batch."""

    __slots__ = ("admission", "blocks", "computed", "cumulated", "done", "emitted", "ends_at",
                 "served", "started_at")  # fmt: skip

    def __init__(self, served: Served) -> None:
        self.served = served
        self.emitted = 0
        """Up to where it was last counted: while it decodes, ``started_at`` says the rest."""
        self.computed = 0
        """Likewise."""
        self.blocks = 0
        self.admission = 0
        """How often it was admitted, or preempted."""
        self.started_at = -1
        """The first step in which it decodes; -1 while it does not."""
        self.ends_at = 0
        self.done = 0
        """Decode steps before it was preempted."""
        self.cumulated: Integers | None = None
        """With drafts: tokens that it has after each of its decode steps."""


class _Rank:
    """One data-parallel rank: its queue, its batch, and its steps to come."""

    __slots__ = ("attention_s", "chunks_s", "emitting", "ending", "free", "need", "num_decoding",
                 "num_running", "order", "own_tokens", "partial", "used", "waiting")  # fmt: skip

    def __init__(self, num_blocks: int, num_steps: int) -> None:
        self.waiting: deque[_Running] = deque()
        self.order: list[tuple[int, _Running]] = []
        self.num_running = self.num_decoding = 0
        self.free = num_blocks
        self.partial: _Running | None = None
        self.emitting: list[_Running] = []
        self.ending: list[tuple[int, int, int, _Running]] = []
        self.chunks_s = 0.0
        self.own_tokens = 0
        self.attention_s = np.zeros(num_steps)
        self.need = np.zeros(num_steps, dtype=np.int64)
        """Blocks to take at the beginning of each step."""
        self.used = np.zeros(num_steps, dtype=np.int64)
        """With drafts: tokens of the budget that decoding takes in each step."""

    def shift(self, steps: int) -> None:
        for array in (self.attention_s, self.need, self.used):
            array[:-steps] = array[steps:].copy()
            array[-steps:] = 0


class FastServer:
    """A group of ranks with a clock: the same to its caller as ``reference_engine.Server``."""

    def __init__(
        self,
        limits: EngineLimits,
        figures: StepFigures,
        *,
        num_ranks: int = 1,
        drafts: Drafts | None = None,
    ) -> None:
        self.completed: list[Served] = []
        self.num_outstanding = 0
        self.next_event_s = math.inf
        """When the steps under way end; infinite while idle."""
        self._limits, self._figures, self._drafts = limits, figures, drafts
        self._blocks, self._grown, self._blocks_list = _blocks(limits)
        self._whole_s = _whole_s(figures)
        self._attention_s = figures.attention_s
        # Where even the longest of all fit together, blocks decide nothing.
        most = limits.max_num_seqs * self._blocks_list[-1] + limits.watermark_blocks
        self._is_roomy = most <= limits.num_blocks
        self._length = 2 * limits.max_model_len + SPARE_STEPS
        self._ranks = [_Rank(limits.num_blocks, self._length) for _ in range(num_ranks)]
        self._others = self._ranks[1:]
        self._arrived: deque[_Running] = deque()
        self._now_s = 0.0
        self._at = 0
        """The step that is next, in the arrays of the ranks."""
        self._steps = 0
        """Under way together; 0: the engine wakes."""
        self._ends_s: Floats | None = None
        """The end of each of them, where there is more than one."""
        self._num_prefilling = 0
        self._ticket = 0

    def advance(self, until_s: float) -> None:
        """End all steps up to this time."""
        while self.next_event_s < until_s:
            self._end()
            if self.num_outstanding:
                self._begin()

    def submit(self, request: Request) -> None:
        """Put a request at the end of the queue; the engine sees it when its step ends."""
        at_s = request.arrival_s
        if self.next_event_s < at_s:
            self.advance(at_s)
        if not self.num_outstanding:
            self._now_s = self.next_event_s = at_s
            self._steps, self._ends_s = 0, None
        elif self._ends_s is not None and self._may_admit():
            kept = min(self._steps, int(self._ends_s.searchsorted(at_s)) + 1)
            self._steps, self.next_event_s = kept, float(self._ends_s[kept - 1])
            self._ends_s = None
        self.num_outstanding += 1
        self._arrived.append(_Running(Served(request)))

    def _may_admit(self) -> bool:
        if self._others:
            return True
        rank = self._ranks[0]
        return not rank.waiting and rank.num_running < self._limits.max_num_seqs

    def _begin(self) -> None:
        """Schedule the next step, or the next steps where they will all look alike."""
        ranks = self._ranks
        while self._arrived:
            rank = min(ranks, key=_outstanding) if self._others else ranks[0]
            rank.waiting.append(self._arrived.popleft())
        if self._at + self._limits.max_model_len >= self._length:
            self._shift()
        is_short = self._schedule(ranks[0])
        num_decoding, prefill = ranks[0].num_decoding, ranks[0].own_tokens
        for rank in self._others:
            is_short |= self._schedule(rank)
            num_decoding += rank.num_decoding
            prefill += rank.own_tokens
        self._ends_s = None
        if not prefill and not is_short and num_decoding:
            self._coast(num_decoding)
        else:
            self._steps = 1
            self.next_event_s = self._now_s + self._one_s(num_decoding, prefill)

    def _one_s(self, num_decoding: int, prefill: int) -> float:
        at, figures = self._at, self._figures
        if not prefill:
            most_s = max(rank.attention_s.item(at) for rank in self._ranks)
            return figures.decode_s(num_decoding) + most_s
        slowest_s = 0.0
        for rank in self._ranks:
            rank_s = figures.mixed_s(num_decoding, prefill, rank.own_tokens)
            slowest_s = max(slowest_s, rank_s + rank.chunks_s + rank.attention_s.item(at))
        return slowest_s

    def _coast(self, num_decoding: int) -> None:
        """Take steps together until an answer ends or blocks lack."""
        at, ranks = self._at, self._ranks
        ends_at = _next_end(ranks[0])
        for rank in self._others:
            ends_at = min(ends_at, _next_end(rank))
        steps = ends_at - at + 1
        if not self._is_roomy:
            for rank in ranks:
                steps = self._affordable(rank, steps)
        base_s = self._figures.decode_s(num_decoding)
        if steps == 1:
            self._steps = 1
            most_s = max(rank.attention_s.item(at) for rank in ranks)
            self.next_event_s = self._now_s + base_s + most_s
            return
        read_s = ranks[0].attention_s[at : at + steps]
        for rank in self._others:
            read_s = np.maximum(read_s, rank.attention_s[at : at + steps])
        ends_s = (read_s + base_s).cumsum()
        ends_s += self._now_s
        self._steps, self._ends_s = steps, ends_s
        self.next_event_s = ends_s.item(steps - 1)

    def _affordable(self, rank: _Rank, steps: int) -> int:
        """Return for how many of these steps there are blocks: one at least."""
        if steps == 1:
            return 1
        needed = rank.need[self._at : self._at + steps].cumsum()
        if needed[-1] <= rank.free:
            return steps
        return max(1, int(needed.searchsorted(rank.free, side="right")))

    def _schedule(self, rank: _Rank) -> bool:
        """Choose what a rank works on in the next step; True if anything was preempted."""
        rank.chunks_s, rank.own_tokens = 0.0, 0
        is_short = not self._is_roomy and rank.num_running > 0 and self._make_room(rank)
        if rank.partial is None and (
            not rank.waiting or rank.num_running >= self._limits.max_num_seqs
        ):
            return is_short
        budget = self._limits.max_num_batched_tokens - self._decode_tokens(rank)
        if rank.partial is not None:
            self._chunk(rank, rank.partial, budget)
        if rank.waiting and not is_short:
            self._admit(rank, budget)
        return is_short

    def _decode_tokens(self, rank: _Rank) -> int:
        return rank.num_decoding if self._drafts is None else int(rank.used[self._at])

    def _make_room(self, rank: _Rank) -> bool:
        """Preempt the newest until the next step has its blocks; True if anything was."""
        is_short = False
        while int(rank.need[self._at]) + self._partial_need(rank) > rank.free:
            self._preempt_newest(rank)
            is_short = True
        return is_short

    def _partial_need(self, rank: _Rank) -> int:
        one = rank.partial
        if one is None:
            return 0
        left = self._limits.max_num_batched_tokens - self._decode_tokens(rank)
        tokens = one.computed + min(_pending(one), left)
        return max(0, self._blocks_list[tokens] - one.blocks)

    def _preempt_newest(self, rank: _Rank) -> None:
        admission, one = rank.order.pop()
        while admission != one.admission or not math.isnan(one.served.ended_s):
            admission, one = rank.order.pop()
        if one is rank.partial:
            rank.partial = None
            rank.free += one.blocks
        else:
            self._withdraw(rank, one)
        one.blocks = one.computed = 0
        one.admission += 1
        one.served.num_preemptions += 1
        rank.num_running -= 1
        rank.waiting.appendleft(one)

    def _withdraw(self, rank: _Rank, one: _Running) -> None:
        """Take a sequence that decodes out of the steps to come."""
        at, done = self._at, self._at - one.started_at
        steps = one.ends_at - at + 1
        attention_s, need, used = self._curves(one)
        rank.attention_s[at : at + steps] -= attention_s[done:]
        rank.need[at : at + steps] -= need[done:]
        if used is not None:
            rank.used[at : at + steps] -= used[done:]
        rank.free += int(self._blocks[one.computed]) + int(need[:done].sum())
        if one.cumulated is None:
            one.emitted += done
        else:
            one.emitted += int(one.cumulated[done - 1]) if done else 0
            one.done += done
        one.started_at = -1
        rank.num_decoding -= 1

    def _curves(self, one: _Running) -> tuple[Floats, Integers, Integers | None]:
        """Return what each decode step of a sequence reads, and the blocks and tokens it takes."""
        first, steps = one.computed, one.ends_at - one.started_at + 1
        if one.cumulated is None:
            attention_s = self._attention_s[first + 1 : first + 1 + steps]
            return attention_s, self._grown[first : first + steps], None
        before = np.concatenate([[0], one.cumulated[: steps - 1]])
        missing = one.served.request.output_tokens - one.emitted - before
        used = np.minimum(self._limits.tokens_verified, missing)
        need = used[:0]
        if not self._is_roomy:
            held = self._blocks[first + before + used]
            need = np.diff(held, prepend=self._blocks[first])
        return self._attention_s[first + 1 + before], need, used

    def _chunk(self, rank: _Rank, one: _Running, budget: int) -> int:
        pending = _pending(one)
        tokens = min(pending, budget)
        if not self._is_roomy:
            needed = self._blocks_list[one.computed + tokens]
            rank.free -= needed - one.blocks
            one.blocks = needed
        rank.chunks_s += self._whole_s[one.computed + tokens] - self._whole_s[one.computed]
        one.computed += tokens
        rank.own_tokens += tokens
        if tokens == pending:
            rank.partial = None
            rank.emitting.append(one)
        else:
            rank.partial = one
        return tokens

    def _admit(self, rank: _Rank, budget: int) -> None:
        limits = self._limits
        while rank.waiting and rank.own_tokens < budget and rank.num_running < limits.max_num_seqs:
            one = rank.waiting[0]
            if not self._is_roomy:
                reserve = limits.watermark_blocks if rank.num_running else 0
                known = self._blocks_list[one.served.request.prompt_tokens + one.emitted]
                if known + reserve + int(rank.need[self._at]) > rank.free:
                    return
            rank.waiting.popleft()
            rank.num_running += 1
            one.admission += 1
            if not self._is_roomy:
                rank.order.append((one.admission, one))
            if math.isnan(one.served.started_s):
                one.served.started_s = self._now_s
            one.computed = one.served.request.cached_tokens
            self._chunk(rank, one, budget - rank.own_tokens)

    def _end(self) -> None:
        steps, at = self._steps, self._at
        self._now_s = self.next_event_s
        self._at = at + steps
        for rank in self._ranks:
            if not self._is_roomy and rank.num_decoding:
                rank.free -= int(
                    rank.need[at : at + steps].sum() if steps > 1 else rank.need.item(at)
                )
            ending = rank.ending
            while ending and ending[0][0] < self._at:
                _, _, admission, one = heapq.heappop(ending)
                if one.admission == admission:
                    self._finish(rank, one)
            for one in rank.emitting:
                self._first_token(rank, one)
            rank.emitting.clear()
        self._ends_s, self.next_event_s = None, math.inf

    def _finish(self, rank: _Rank, one: _Running) -> None:
        rank.num_decoding -= 1
        if not self._is_roomy:
            request = one.served.request
            # All but the last token are in the cache.
            rank.free += self._blocks_list[request.prompt_tokens + request.output_tokens - 1]
        self._complete(rank, one)

    def _first_token(self, rank: _Rank, one: _Running) -> None:
        """A prefill ended: it emits a token, and decodes from the next step on."""
        one.emitted += 1
        if math.isnan(one.served.first_token_s):
            one.served.first_token_s = self._now_s
        remaining = one.served.request.output_tokens - one.emitted
        if remaining == 0:
            if not self._is_roomy:
                rank.free += one.blocks
            self._complete(rank, one)
            return
        at = one.started_at = self._at
        steps = remaining
        if self._drafts is not None:
            number = one.served.request.number
            right = self._drafts.of_steps(number, one.done, remaining)
            one.cumulated = (right + 1).cumsum()
            steps = int(one.cumulated.searchsorted(remaining)) + 1
        one.ends_at = at + steps - 1
        attention_s, need, used = self._curves(one)
        rank.attention_s[at : at + steps] += attention_s
        if not self._is_roomy:
            rank.need[at : at + steps] += need
        if used is not None:
            rank.used[at : at + steps] += used
        rank.num_decoding += 1
        self._ticket += 1
        heapq.heappush(rank.ending, (one.ends_at, self._ticket, one.admission, one))

    def _complete(self, rank: _Rank, one: _Running) -> None:
        one.served.ended_s = self._now_s
        rank.num_running -= 1
        self.num_outstanding -= 1
        self.completed.append(one.served)

    def _shift(self) -> None:
        """Move all to the beginning of the arrays."""
        steps = self._at
        for rank in self._ranks:
            rank.shift(steps)
            for one in {id(each[3]): each[3] for each in rank.ending}.values():
                one.started_at -= steps
                one.ends_at -= steps
            rank.ending = [(end - steps, *rest) for end, *rest in rank.ending]
        self._at = 0


@lru_cache(maxsize=4)
def _blocks(limits: EngineLimits) -> tuple[Integers, Integers, list[int]]:
    """Return the blocks of a sequence by its length, and what each further token adds."""
    longest = limits.max_model_len + limits.tokens_verified + 1
    blocks = [limits.blocks_for(tokens) for tokens in range(longest + 1)]
    return np.array(blocks), np.diff(blocks), blocks


@lru_cache(maxsize=4)
def _whole_s(figures: StepFigures) -> list[float]:
    whole_s: list[float] = figures.prompt_attention_s.tolist()
    return whole_s


def _next_end(rank: _Rank) -> int:
    ending = rank.ending
    while ending and ending[0][3].admission != ending[0][2]:
        heapq.heappop(ending)
    return ending[0][0] if ending else 1 << 60


def _pending(one: _Running) -> int:
    return one.served.request.prompt_tokens + one.emitted - one.computed


def _outstanding(rank: _Rank) -> int:
    return WAITING_WEIGHT * len(rank.waiting) + rank.num_running
