"""The steady state of continuous batching at each load.

For n decoding sequences the number of prefill tokens per step follows from the lengths alone
(each finished request brings one new prompt), so the fixed point of DESIGN.md 3.3 need not be
searched: n decides the step time, and both decide the arrival rate::

    p = n * tokens_per_step * new_prompt_tokens / output_tokens
    T = t(n, n * mean_context, p)
    requests_per_s = n * tokens_per_step / (output_tokens * T)

A sequence gets one token from each step, with speculation more.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from tonnage.catalog.engine import CURRENT_CACHE_RULES, CacheRules
from tonnage.catalog.engine_speed import SpeedConstants
from tonnage.sizing.memory.ceiling import sequences_held
from tonnage.sizing.memory.layout import DEFAULT_BLOCK_TOKENS, CacheLayout, cache_layout
from tonnage.sizing.occupancy import Arrivals, Occupancy, Places, occupancy
from tonnage.sizing.pace import pace_of, together
from tonnage.sizing.parallelism.shard import Shard
from tonnage.sizing.speculation import Speculation
from tonnage.sizing.step_time.speeds import Speeds
from tonnage.sizing.step_time.step import Step, StepTime, step_time
from tonnage.sizing.workload import Workload

CLOSE = 1.02
"""Ratio of two numbers decoding at which prompts cost the same."""
BEYOND = 4.0
"""Ratio to what was tried that stands for a number that has no end."""
LEAST_DECODING = 1e-3


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
    speculation: Speculation | None = None

    @property
    def tokens_per_step(self) -> float:
        """That a decoding sequence gets in the mean."""
        return self.speculation.tokens_per_step if self.speculation else 1.0

    def steps(self, tokens: float) -> float:
        """Return the steps in which so many tokens are decoded, in the mean."""
        return self.speculation.steps(tokens) if self.speculation else tokens

    @property
    def steps_scv(self) -> float:
        """Squared coefficient of variation of the tokens that a sequence gets from a step."""
        return self.speculation.scv if self.speculation else 0.0

    @property
    def tokens_judged(self) -> int:
        """Of the token budget that a decoding sequence takes."""
        return self.speculation.tokens_judged if self.speculation else 1

    @property
    def num_queues(self) -> int:
        """Ranks with requests and a cache of their own."""
        return self.shard.parallelism.data

    def step(self, step: Step) -> StepTime:
        if self.speculation:
            step = replace(step, tokens_per_sequence=self.tokens_judged)
        time = step_time(self.shard, self.speeds, self.constants, step)
        draft = self.shard.draft
        return time if draft is None else self._with_drafts(time, step, draft)

    def _with_drafts(self, time: StepTime, step: Step, draft: Shard) -> StepTime:
        """Add the passes after the first: of one token each, and none of them schedules."""
        constants = replace(self.constants, per_step_s=0.0, per_sequence_s=0.0)
        one = Step(num_sequences=step.num_sequences, context_tokens=step.context_tokens)
        each = step_time(draft, self.speeds, constants, one)
        passes = self.tokens_judged - 2
        return replace(
            time,
            draft_s=passes * each.total_s,
            decode_bytes=time.decode_bytes + passes * each.decode_bytes,
            decode_flop=time.decode_flop + passes * each.decode_flop,
        )

    def prefill_room(self, num_decoding: float) -> float:
        """Return the tokens per step that decoding leaves one rank for prefill."""
        return max(
            1.0, self.max_batched_tokens - num_decoding * self.tokens_judged / self.num_queues
        )

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
        """Return the cache bytes of one rank behind each token, in requests of this length."""
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
    tokens_per_step: float = 1.0
    """That each decoding sequence gets."""

    @property
    def step_s(self) -> float:
        return self.step.total_s

    @property
    def tpot_s(self) -> float:
        return self.step_s / self.tokens_per_step

    @property
    def num_running(self) -> float:
        return self.num_decoding + self.num_prefilling


def steady_state(replica: Replica, workload: Workload, num_decoding: float) -> SteadyState:
    """Return the steady state with so many sequences decoding in the mean."""
    steps = steps_of_answer(replica, workload)
    prefill = num_decoding * workload.new_prompt_tokens / steps
    chunk = min(workload.new_prompt_tokens, replica.max_batched_tokens)
    step = mixed_step(workload, num_decoding, prefill, chunk_tokens=chunk)
    together = ranks_together(prefill / chunk, replica.num_queues) if chunk else None
    time = replica.step(replace(step, prefill_ranks=together))
    return SteadyState(
        num_decoding=num_decoding,
        num_prefilling=num_running(replica, workload, num_decoding) - num_decoding,
        prefill_tokens_per_step=prefill,
        step=time,
        requests_per_s=num_decoding / (steps * time.total_s),
        tokens_per_step=replica.tokens_per_step,
    )


def steps_of_answer(replica: Replica, workload: Workload) -> float:
    """Return the steps in which a mean answer is made."""
    return replica.steps(workload.output_tokens)


def ranks_together(chunks_per_step: float, num_ranks: int) -> float:
    """Return the ranks that prefill in a step in which any does, in the mean."""
    return min(float(num_ranks), together(chunks_per_step))


def num_running(replica: Replica, workload: Workload, num_decoding: float) -> float:
    """Return the sequences that decode, and those in prefill beside them: as many as are done."""
    steps_of_prefill = max(1.0, workload.new_prompt_tokens / replica.prefill_room(num_decoding))
    return num_decoding * (1 + steps_of_prefill / steps_of_answer(replica, workload))


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
    """Return the earlier tokens that a new prompt token attends to, in the mean.

    Long prompts have more tokens that look back, so they count by their square.
    """
    longer = 1 + workload.prompt.scv
    cached = workload.prompt.mean_tokens - workload.new_prompt_tokens
    return longer * (cached + workload.new_prompt_tokens / 2)


def load_at(replica: Replica, workload: Workload, arrivals: Arrivals) -> Occupancy | None:
    """Return the state of a replica at the arrival rate of each rank; None where there is none.

    Data-parallel ranks are one engine to it: they step together, and the engine's own balancer
    keeps them even. What a prompt adds to a step depends on what else is in it where there are
    experts or ranks, and so is found in rounds.

    Sources:
        [vllm-source] v1/engine/core_client.py DPLBAsyncMPClient.
    """
    of_all = replace(arrivals, requests_per_s=arrivals.requests_per_s * replica.num_queues)
    pace = pace_of(bare(replica), workload)
    if not replica.shard.experts or not workload.new_prompt_tokens:
        return occupancy(pace, of_all)
    return _load_among_all(lambda num: occupancy(pace.among(num), of_all))


def _load_among_all(load_if: Callable[[float], Occupancy | None]) -> Occupancy | None:
    """Return the load whose number decoding is the one that its prompts are priced with.

    The more decode the cheaper are prompts and the fewer decode: a secant in logarithms between
    the fewest, and what would decode at their price.
    """
    cheapest = load_if(math.inf)
    if cheapest is None:
        return None
    few = max(LEAST_DECODING, cheapest.num_decoding)
    load = load_if(few)
    if load and load.num_decoding <= few * CLOSE:
        return load
    many = _num(load, few)
    slope = min(0.0, math.log(_num(load_if(many), many) / many) / math.log(many / few))
    return load_if(few * (many / few) ** (1 / (1 - slope)))


def _num(load: Occupancy | None, tried: float) -> float:
    return load.num_decoding if load else tried * BEYOND


def bare(replica: Replica) -> Replica:
    """Return the replica without places, for what does not depend on them."""
    return replace(replica, kv_pool_bytes=0.0, max_num_seqs=None)


def places(replica: Replica, workload: Workload) -> Places:
    """Return what all ranks of a replica can run at once."""
    slots = (replica.max_num_seqs or math.inf) * replica.num_queues
    return Places(slots=slots, held=replica.sequences_held(workload.mean_context_tokens))
