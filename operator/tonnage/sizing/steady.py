"""The load line: the steady state of continuous batching at each load, and the highest one.

For n decoding sequences the number of prefill tokens per step follows from the lengths alone
(each finished request brings one new prompt), so the fixed point of DESIGN.md 3.3 need not be
searched: n decides the step time, and both decide the arrival rate::

    p = n * new_prompt_tokens / output_tokens
    T = t(n, n * mean_context, p)
    requests_per_s = n / (output_tokens * T)
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from statistics import NormalDist

from tonnage.catalog.engine import CURRENT_CACHE_RULES, CacheRules
from tonnage.catalog.engine_speed import SpeedConstants
from tonnage.sizing.cache import DEFAULT_BLOCK_TOKENS, CacheLayout, cache_layout
from tonnage.sizing.memory import sequences_held
from tonnage.sizing.shard import Shard
from tonnage.sizing.step import Speeds, Step, StepTime, step_time
from tonnage.sizing.workload import Promise, Slo, Workload

DEFAULT_QUANTILE = 0.95
"""For fluctuations where no promise names one."""
BISECTIONS = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """One engine group as the load line sees it."""

    shard: Shard
    speeds: Speeds
    constants: SpeedConstants
    kv_pool_bytes: float
    """Per rank."""
    max_batched_tokens: int
    max_num_seqs: int | None = None
    """None: to be chosen."""
    block_tokens: int = DEFAULT_BLOCK_TOKENS
    cache_rules: CacheRules = CURRENT_CACHE_RULES

    @property
    def num_queues(self) -> int:
        """Ranks with requests and a cache of their own."""
        return self.shard.parallelism.data

    def step(self, step: Step) -> StepTime:
        return step_time(self.shard, self.speeds, self.constants, step)

    def prefill_room(self, num_decoding: float) -> float:
        """Return the tokens per step that decoding leaves one rank for prefill."""
        return max(1.0, self.max_batched_tokens - num_decoding / self.num_queues)

    @property
    def layout(self) -> CacheLayout:
        return cache_layout(
            self.shard.kv,
            block_tokens=self.block_tokens * self.shard.parallelism.context,
            rules=self.cache_rules,
        )

    def sequences_held(self, context_tokens: float) -> float:
        """Return how many decoding sequences of this length the cache of all ranks holds."""
        each = self.layout.bytes_of_sequence(context_tokens)
        held = sequences_held(pool_bytes=self.kv_pool_bytes, bytes_per_sequence=each)
        return held * self.num_queues

    def requests_reserved(self, context_tokens: int) -> float:
        """Return how many requests of this length all ranks admit at once, each kept whole.

        What the engine logs as its maximum concurrency: a request that is still in prefill keeps
        more of a window than one that decodes.
        """
        blocks = self.kv_pool_bytes / self.layout.bytes_per_block
        return blocks / self.blocks_reserved(context_tokens) * self.num_queues

    def blocks_reserved(self, context_tokens: int) -> int:
        """Return the blocks of one rank that a request of this length may need."""
        return self.layout.blocks_reserved(context_tokens, in_flight_tokens=self._in_flight_tokens)

    def bytes_per_reported_token(self, context_tokens: int) -> float:
        """Return the cache bytes of one rank behind each token that its engine reports to have."""
        tokens = self.layout.tokens_per_block(
            context_tokens, in_flight_tokens=self._in_flight_tokens
        )
        return self.layout.bytes_per_block / tokens

    @property
    def _in_flight_tokens(self) -> int:
        pipeline = self.shard.parallelism.pipeline
        return self.layout.in_flight_tokens(self.max_batched_tokens, pipeline)


@dataclass(frozen=True, slots=True, kw_only=True)
class SteadyState:
    """What a replica settles into at one arrival rate."""

    num_decoding: float
    num_prefilling: float
    prefill_tokens_per_step: float
    step: StepTime
    requests_per_s: float

    @property
    def step_s(self) -> float:
        return self.step.total_s

    @property
    def num_running(self) -> float:
        return self.num_decoding + self.num_prefilling


def steady_state(replica: Replica, workload: Workload, num_decoding: float) -> SteadyState:
    """Return the steady state with so many sequences decoding in the mean."""
    prefill = num_decoding * workload.new_prompt_tokens / workload.output_tokens
    chunk = min(workload.new_prompt_tokens, replica.max_batched_tokens)
    time = replica.step(mixed_step(workload, num_decoding, prefill, chunk_tokens=chunk))
    rate = num_decoding / (workload.output_tokens * time.total_s)
    steps_of_prefill = max(1.0, workload.new_prompt_tokens / replica.prefill_room(num_decoding))
    return SteadyState(
        num_decoding=num_decoding,
        num_prefilling=rate * time.total_s * steps_of_prefill,
        prefill_tokens_per_step=prefill,
        step=time,
        requests_per_s=rate,
    )


def mixed_step(
    workload: Workload,
    num_decoding: float,
    prefill_tokens: float,
    *,
    chunk_tokens: float | None = None,
) -> Step:
    """Return a step of so many decoding sequences of this workload beside prefill.

    ``chunk_tokens``: for a mean step, the prefill tokens that come together.
    """
    return Step(
        num_sequences=num_decoding,
        context_tokens=max(1.0, num_decoding) * workload.mean_context_tokens,
        prefill_tokens=prefill_tokens,
        prefill_context_tokens=prefill_context_tokens(workload),
        prefill_chunk_tokens=chunk_tokens,
    )


def prefill_context_tokens(workload: Workload) -> float:
    """Return the earlier tokens that a new prompt token attends to, in the mean."""
    cached = workload.prompt.mean_tokens - workload.new_prompt_tokens
    return cached + workload.new_prompt_tokens / 2


def upper(mean: float, quantile: float, *, num_queues: int = 1) -> float:
    """Return the quantile of a count with this mean: ``n + z * sqrt(n)``, in each of the queues.

    Data-parallel ranks each have their own share of the requests and its own fluctuation.

    >>> round(upper(100, 0.975), 1)
    119.6
    """
    return mean + NormalDist().inv_cdf(quantile) * math.sqrt(mean * num_queues)


Limit = Callable[[float], bool]
"""Does a mean number of decoding sequences stay within this limit?"""


def limits(replica: Replica, workload: Workload, slo: Slo) -> Iterator[tuple[str, Limit]]:
    """Yield (name, limit): everything that bounds the mean number of decoding sequences.

    Every limit holds for all smaller numbers once it holds for one.
    """
    state = partial(steady_state, replica, workload)
    crowded = partial(upper, quantile=slot_quantile(slo), num_queues=replica.num_queues)
    held = replica.sequences_held(workload.mean_context_tokens)
    for promise in slo.tpot:
        yield "TimePerOutputToken", partial(_keeps_tpot, replica, workload, promise)
    yield "KVCache", lambda n: crowded(state(n).num_running) <= held
    yield (
        "BatchedTokens",
        lambda n: (
            n + state(n).prefill_tokens_per_step <= replica.max_batched_tokens * replica.num_queues
        ),
    )
    if replica.max_num_seqs is not None:
        slots = replica.max_num_seqs * replica.num_queues
        yield "MaxNumSeqs", lambda n: crowded(state(n).num_running) <= slots


def slot_quantile(slo: Slo) -> float:
    """Return the strictest quantile promised: slots and cache must hold as often."""
    promised = [promise.quantile for promise in (*slo.tpot, *slo.ttft)]
    return max(promised, default=DEFAULT_QUANTILE if not slo.is_offline else 0.5)


def _keeps_tpot(replica: Replica, workload: Workload, promise: Promise, n: float) -> bool:
    crowded = upper(n, promise.quantile, num_queues=replica.num_queues)
    return steady_state(replica, workload, crowded).step_s <= promise.limit_s


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadLine:
    """The highest load within all limits, and which one stops it."""

    state: SteadyState
    limited_by: str

    @property
    def requests_per_s(self) -> float:
        return self.state.requests_per_s


def load_line(replica: Replica, workload: Workload, slo: Slo) -> LoadLine:
    """Return the highest steady load: the smallest of what each limit allows.

    A limit that no load keeps gives the empty load, zero requests per second.
    """
    top = float(replica.max_batched_tokens * replica.num_queues)
    highest = {name: _highest(limit, top) for name, limit in limits(replica, workload, slo)}
    limited_by = min(highest, key=lambda name: highest[name])
    state = steady_state(replica, workload, highest[limited_by])
    return LoadLine(state=state, limited_by=limited_by)


def _highest(limit: Limit, top: float) -> float:
    """Return the largest number up to ``top`` that keeps the limit; 0 when none does."""
    low, high = 0.0, top
    if limit(high):
        return high
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if limit(middle) else (low, middle)
    return low


def tpot_ceiling(replica: Replica, workload: Workload, slo: Slo) -> float | None:
    """Return the number of decoding sequences at which TPOT meets its limit; None: no limit."""
    ceilings = [
        _highest(
            lambda n, limit_s=promise.limit_s: (  # type: ignore[misc]
                steady_state(replica, workload, n).step_s <= limit_s
            ),
            float(replica.max_batched_tokens * replica.num_queues),
        )
        for promise in slo.tpot
    ]
    return min(ceilings, default=None)


def slots_for(line: LoadLine, slo: Slo, *, ceiling: float, num_queues: int) -> int:
    """Return ``--max-num-seqs``: running sequences at capacity and their fluctuation, exactly.

    Per data-parallel rank, as the flag counts. ``ceiling``: what memory holds, or what TPOT allows
    where that is less; the flag is never beyond it.
    """
    crowd = upper(line.state.num_running, slot_quantile(slo), num_queues=num_queues)
    return max(1, min(math.ceil(crowd / num_queues), math.floor(ceiling / num_queues)))
