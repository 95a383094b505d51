"""One engine, that is one data-parallel rank: a waiting queue, a running batch, steps.

The order of a step is vLLM V1's: running sequences first, oldest first, each taking what it
needs from the token budget; when KV blocks run out, the newest running sequence is preempted
and later recomputed; then, unless something was preempted, waiting requests are admitted first
come first served, each only when its whole prompt fits.

With speculation a decoding sequence takes the tokens verified from the budget, and gets as many as
the caller says were right, and one.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from reference_engine.limits import EngineLimits, Request
from reference_engine.sequence import BlockPool, Sequence

Accepted = Callable[[int, int], int]
"""Drafts that are right: (number of the request, its decode steps before this one) -> drafts."""


@dataclass(slots=True, kw_only=True)
class Batch:
    """What one step of one rank works on."""

    budget_tokens: int
    """Left of what a step may compute."""
    work: list[tuple[Sequence, int]] = field(default_factory=list)
    contexts: list[int] = field(default_factory=list)
    """Tokens that each decoding sequence attends to."""
    chunks: list[tuple[int, int]] = field(default_factory=list)
    """Of prefill: tokens computed before, tokens computed in this step."""
    started: list[int] = field(default_factory=list)
    preempted: list[int] = field(default_factory=list)

    @property
    def num_decoding(self) -> int:
        return len(self.contexts)

    @property
    def context_tokens(self) -> int:
        return sum(self.contexts)

    @property
    def prefill_tokens(self) -> int:
        return sum(tokens for _, tokens in self.chunks)

    @property
    def prefill_pairs(self) -> float:
        """Of prefill tokens with the earlier tokens that they attend to."""
        return sum(tokens * (computed + tokens / 2) for computed, tokens in self.chunks)

    def add(self, sequence: Sequence, num_tokens: int) -> None:
        self.budget_tokens -= num_tokens
        self.work.append((sequence, num_tokens))
        if sequence.prefilling:
            self.chunks.append((sequence.num_computed, num_tokens))
        else:
            self.contexts.append(sequence.num_known)

    def remove(self, sequence: Sequence) -> None:
        """Take one out that decodes; only prompts stand behind those."""
        for index, (each, num_tokens) in enumerate(self.work):
            if each is sequence:
                del self.work[index], self.contexts[index]
                self.budget_tokens += num_tokens
                return


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """What one step did. Requests are named by number."""

    duration_s: float
    started: tuple[int, ...]
    """Scheduled for the first time: their queueing ended when the step began."""
    emitted: tuple[int, ...]
    """Got tokens at the end of the step; named once for each."""
    finished: tuple[int, ...]
    preempted: tuple[int, ...]


class Engine:
    """``submit`` requests; ``schedule`` begins a step and ``compute`` ends it."""

    def __init__(self, limits: EngineLimits, accepted: Accepted = lambda _, __: 0) -> None:
        self.limits = limits
        self._accepted = accepted
        self._pool = BlockPool(limits)
        self._waiting: deque[Sequence] = deque()
        self._running: list[Sequence] = []

    @property
    def idle(self) -> bool:
        """True when a step would have nothing to do."""
        return not self._waiting and not self._running

    @property
    def num_waiting(self) -> int:
        """Requests that hold no place in the batch, preempted ones included."""
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        """Sequences in the batch, those in prefill included."""
        return len(self._running)

    @property
    def num_used_blocks(self) -> int:
        """KV blocks that running sequences hold."""
        return self.limits.num_blocks - self._pool.num_free

    def submit(self, request: Request) -> None:
        """Put a request at the end of the queue."""
        self._waiting.append(Sequence(request=request))

    def schedule(self) -> Batch:
        """Begin a step: say what it works on, nothing where the engine is idle."""
        batch = Batch(budget_tokens=self.limits.max_num_batched_tokens)
        self._continue_running(batch)
        if not batch.preempted:
            self._admit(batch)
        return batch

    def compute(self, batch: Batch, duration_s: float) -> StepResult:
        """End the step that was begun, after so much time."""
        emitted: list[int] = []
        finished: list[Sequence] = []
        for sequence, num_tokens in batch.work:
            got = self._advance(sequence, num_tokens)
            if got:
                sequence.prefilling = False
                sequence.num_emitted += got
                emitted += [sequence.request.number] * got
                if not sequence.num_missing:
                    finished.append(sequence)
        for sequence in finished:
            self._pool.release(sequence)
            self._running.remove(sequence)
        return StepResult(
            duration_s=duration_s,
            started=tuple(batch.started),
            emitted=tuple(emitted),
            finished=tuple(sequence.request.number for sequence in finished),
            preempted=tuple(batch.preempted),
        )

    def _continue_running(self, batch: Batch) -> None:
        while len(batch.work) < len(self._running) and batch.budget_tokens > 0:
            sequence = self._running[len(batch.work)]
            num_tokens = min(self._wanted(sequence), batch.budget_tokens)
            if self._make_room(sequence, num_tokens, batch):
                batch.add(sequence, num_tokens)

    def _wanted(self, sequence: Sequence) -> int:
        """Return the tokens to compute: no draft goes beyond the end of the answer."""
        if sequence.prefilling:
            return sequence.num_pending
        return min(self.limits.tokens_verified, sequence.num_missing)

    def _make_room(self, sequence: Sequence, num_tokens: int, batch: Batch) -> bool:
        """Find KV blocks for a running sequence, at the cost of those behind it in the order."""
        while not self._pool.grow(sequence, sequence.num_computed + num_tokens):
            last = self._running.pop()
            batch.remove(last)
            self._preempt(last)
            batch.preempted.append(last.request.number)
            if last is sequence:
                return False
        return True

    def _preempt(self, sequence: Sequence) -> None:
        self._pool.release(sequence)
        sequence.num_computed = 0
        sequence.prefilling = True
        sequence.num_preemptions += 1
        self._waiting.appendleft(sequence)

    def _admit(self, batch: Batch) -> None:
        while (
            self._waiting
            and batch.budget_tokens > 0
            and len(self._running) < self.limits.max_num_seqs
        ):
            if not self._whole_prompt_fits(self._waiting[0]):
                return
            self._start(self._waiting.popleft(), batch)

    def _whole_prompt_fits(self, sequence: Sequence) -> bool:
        reserve = self.limits.watermark_blocks if self._running else 0
        return self.limits.blocks_for(sequence.num_known) + reserve <= self._pool.num_free

    def _start(self, sequence: Sequence, batch: Batch) -> None:
        sequence.num_computed = sequence.request.cached_tokens
        num_tokens = min(sequence.num_pending, batch.budget_tokens)
        self._pool.grow(sequence, sequence.num_computed + num_tokens)
        self._running.append(sequence)
        batch.add(sequence, num_tokens)
        if not sequence.num_preemptions:
            batch.started.append(sequence.request.number)

    def _advance(self, sequence: Sequence, num_tokens: int) -> int:
        """Note what was computed, and return the tokens that the sequence gets for it."""
        if sequence.prefilling:
            sequence.num_computed += num_tokens
            return 0 if sequence.num_pending else 1
        accepted = self._accepted(sequence.request.number, sequence.num_decode_steps)
        got = min(1 + accepted, num_tokens)
        sequence.num_computed += got
        sequence.num_decode_steps += 1
        return got
