"""The engine: a waiting queue, a running batch, and one step at a time.

The order of a step is vLLM V1's: running sequences first, oldest first, each taking what it
needs from the token budget; when KV blocks run out, the newest running sequence is preempted
and later recomputed; then, unless something was preempted, waiting requests are admitted first
come first served, each only when its whole prompt fits.

With speculation a decoding sequence takes the tokens judged from the budget, and gets as many as
the caller says were right, and one.

Left out: sharing of prefix blocks between sequences, asynchronous scheduling (which hides the
scheduler's time and changes no count here).
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from tonnage.engine.limits import EngineLimits, Request, RequestError
from tonnage.engine.sequence import BlockPool, Sequence

StepTime = Callable[[int, int, int], float]
"""Seconds of a step: (decoding sequences, their context tokens, prefill tokens) -> s."""
Accepted = Callable[[], int]
"""How many of the tokens guessed for one sequence in one step are right."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """What one step did. Requests are named by id."""

    duration_s: float
    num_decoding: int
    """Sequences that computed their last token, and guesses, to get what follows."""
    context_tokens: int
    """Tokens that those sequences attended to, together."""
    prefill_tokens: int
    """Prompt tokens computed, and output tokens recomputed after a preemption."""
    prompt_tokens: int
    """Prompt tokens of the requests whose prefill ended, cached ones included."""
    started: tuple[str, ...]
    """Scheduled for the first time: their queueing ended when the step began."""
    emitted: tuple[str, ...]
    """Got a token at the end of the step; named once for each."""
    finished: tuple[str, ...]
    preempted: tuple[str, ...]


@dataclass(slots=True, kw_only=True)
class Counters:
    """Totals since the engine was made; they only grow."""

    num_steps: int = 0
    busy_s: float = 0.0
    prompt_tokens: int = 0
    cached_prompt_tokens: int = 0
    generation_tokens: int = 0
    num_finished: int = 0
    num_aborted: int = 0
    num_preemptions: int = 0


@dataclass(slots=True, kw_only=True)
class Batch:
    """What one step of one engine works on."""

    budget_tokens: int
    """Left of what a step may compute."""
    work: list[tuple[Sequence, int]] = field(default_factory=list)
    num_decoding: int = 0
    context_tokens: int = 0
    prefill_tokens: int = 0
    prefill_pairs: float = 0.0
    """Of prefill tokens with the earlier tokens that they attend to."""
    started: list[str] = field(default_factory=list)
    preempted: list[str] = field(default_factory=list)

    def add(self, sequence: Sequence, num_tokens: int) -> None:
        self.budget_tokens -= num_tokens
        self.work.append((sequence, num_tokens))
        if sequence.prefilling:
            self.prefill_tokens += num_tokens
            self.prefill_pairs += num_tokens * (sequence.num_computed + num_tokens / 2)
        else:
            self.num_decoding += 1
            self.context_tokens += sequence.num_known


class Engine:
    """One engine core. ``submit`` requests, then ``step`` while ``idle`` is false."""

    def __init__(
        self, limits: EngineLimits, step_time: StepTime, accepted: Accepted = lambda: 0
    ) -> None:
        self.limits = limits
        self._accepted = accepted
        self.counters = Counters()
        self._step_time = step_time
        self._pool = BlockPool(num_blocks=limits.num_blocks, block_size=limits.block_size)
        self._waiting: deque[Sequence] = deque()
        self._running: list[Sequence] = []
        self._by_id: dict[str, Sequence] = {}

    @property
    def idle(self) -> bool:
        """True when a step would have nothing to do."""
        return not self._by_id

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
        return self._pool.num_blocks - self._pool.num_free

    @property
    def kv_usage_fraction(self) -> float:
        """Share of the KV blocks that is held."""
        return self.num_used_blocks / self._pool.num_blocks

    def submit(self, request: Request) -> None:
        """Put a request at the end of the queue.

        Raises:
            RequestError: it can never be served, or its id is in use.
        """
        request.check(self.limits)
        if request.id in self._by_id:
            raise RequestError(f"request {request.id} is already in the engine")
        sequence = Sequence(request=request)
        self._by_id[request.id] = sequence
        self._waiting.append(sequence)

    def abort(self, request_id: str) -> bool:
        """Forget a request and free its blocks; False when it is not here (any more)."""
        sequence = self._by_id.pop(request_id, None)
        if sequence is None:
            return False
        queue: deque[Sequence] | list[Sequence]
        queue = self._running if sequence in self._running else self._waiting
        queue.remove(sequence)
        self._pool.release(sequence)
        self.counters.num_aborted += 1
        return True

    def num_preemptions(self, request_id: str) -> int:
        """How often this request, which is still in the engine, was preempted."""
        return self._by_id[request_id].num_preemptions

    def step(self) -> StepResult:
        """Schedule and compute one step.

        Raises:
            RequestError: the engine is idle; ask ``idle`` first.
        """
        if self.idle:
            raise RequestError("there is no request to step")
        batch = self.schedule()
        duration_s = self._step_time(batch.num_decoding, batch.context_tokens, batch.prefill_tokens)
        return self.compute(batch, duration_s)

    def schedule(self) -> Batch:
        """Begin a step: say what it works on, nothing where the engine is idle."""
        batch = Batch(budget_tokens=self.limits.max_num_batched_tokens)
        self._continue_running(batch)
        if not batch.preempted:
            self._admit(batch)
        return batch

    def compute(self, batch: Batch, duration_s: float) -> StepResult:
        """End the step that was begun, after so much time."""
        result = self._compute(batch, duration_s)
        self._count(result)
        return result

    def _continue_running(self, batch: Batch) -> None:
        index = 0
        while index < len(self._running) and batch.budget_tokens > 0:
            sequence = self._running[index]
            num_tokens = min(self._wanted(sequence), batch.budget_tokens)
            if not self._make_room(sequence, num_tokens, batch):
                return
            batch.add(sequence, num_tokens)
            index += 1

    def _wanted(self, sequence: Sequence) -> int:
        """Return the tokens to compute: no guess goes beyond the end of the answer."""
        if sequence.prefilling:
            return sequence.num_pending
        return min(self.limits.tokens_judged, sequence.num_missing)

    def _make_room(self, sequence: Sequence, num_tokens: int, batch: Batch) -> bool:
        """Find KV blocks for a running sequence, at the cost of newer ones."""
        while not self._pool.grow(sequence, sequence.num_computed + num_tokens):
            newest = self._running.pop()
            self._preempt(newest)
            batch.preempted.append(newest.request.id)
            if newest is sequence:
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
            batch.started.append(sequence.request.id)

    def _compute(self, batch: Batch, duration_s: float) -> StepResult:
        emitted: list[str] = []
        finished: list[str] = []
        prompt_tokens = 0
        for sequence, num_tokens in batch.work:
            got = self._advance(sequence, num_tokens)
            if not got:
                continue
            if sequence.prefilling:
                prompt_tokens += self._ended_prefill(sequence)
                sequence.prefilling = False
            sequence.num_emitted += got
            emitted += [sequence.request.id] * got
            if not sequence.num_missing:
                finished.append(sequence.request.id)
        self._remove(finished)
        return StepResult(
            duration_s=duration_s,
            num_decoding=batch.num_decoding,
            context_tokens=batch.context_tokens,
            prefill_tokens=batch.prefill_tokens,
            prompt_tokens=prompt_tokens,
            started=tuple(batch.started),
            emitted=tuple(emitted),
            finished=tuple(finished),
            preempted=tuple(batch.preempted),
        )

    def _advance(self, sequence: Sequence, num_tokens: int) -> int:
        """Note what was computed, and return the tokens that the sequence gets for it."""
        if sequence.prefilling:
            sequence.num_computed += num_tokens
            return 0 if sequence.num_pending else 1
        got = min(1 + self._accepted(), num_tokens)
        sequence.num_computed += got
        return got

    def _ended_prefill(self, sequence: Sequence) -> int:
        """Return the prompt tokens to count: each prompt once, at its first token."""
        if sequence.num_emitted:
            return 0
        self.counters.cached_prompt_tokens += sequence.request.cached_tokens
        return sequence.request.prompt_tokens

    def _remove(self, finished: list[str]) -> None:
        if not finished:
            return
        for request_id in finished:
            self._pool.release(self._by_id.pop(request_id))
        self._running = [each for each in self._running if each.request.id in self._by_id]

    def _count(self, result: StepResult) -> None:
        self.counters.num_steps += 1
        self.counters.busy_s += result.duration_s
        self.counters.prompt_tokens += result.prompt_tokens
        self.counters.generation_tokens += len(result.emitted)
        self.counters.num_finished += len(result.finished)
        self.counters.num_preemptions += len(result.preempted)
