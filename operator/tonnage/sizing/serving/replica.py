"""One engine group: its steps, its cache and its flags, and what it settles into at a load."""

import math
from dataclasses import dataclass, replace

from tonnage.catalog.engine import CURRENT_CACHE_RULES, CacheRules
from tonnage.sizing.memory.ceiling import sequences_held
from tonnage.sizing.memory.layout import DEFAULT_BLOCK_TOKENS, CacheLayout, cache_layout
from tonnage.sizing.split import Parallelism
from tonnage.sizing.step_time.model import StepTimeModel
from tonnage.sizing.step_time.step import Step, StepTime
from tonnage.sizing.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """One engine group: how fast it steps, and what it has room for."""

    model: StepTimeModel
    kv_pool_bytes: float
    """Per rank."""
    max_batched_tokens: int
    """Of a step; with a pipeline, of each of its microbatches."""
    max_num_seqs: int | None = None
    """None: to be chosen."""
    block_tokens: int = DEFAULT_BLOCK_TOKENS
    cache_rules: CacheRules = CURRENT_CACHE_RULES

    def prefill_room(self, num_decoding: float) -> float:
        """Return the tokens per step that decoding leaves one microbatch of a rank for prefill."""
        decoding = num_decoding * self.model.tokens_verified / self.model.num_batches
        return max(1.0, self.max_batched_tokens - decoding)

    @property
    def layout(self) -> CacheLayout:
        return cache_layout(
            self.model.shard.kv,
            block_tokens=self.block_tokens * self.model.shard.parallelism.context,
            rules=self.cache_rules,
        )

    def sequences_held(self, context_tokens: float) -> float:
        """Return how many decoding sequences of this length the cache of all ranks holds."""
        each = self.layout.bytes_of_sequence(context_tokens)
        sequences = sequences_held(pool_bytes=self.kv_pool_bytes, bytes_per_sequence=each)
        return sequences * self.model.dp_size

    def requests_reserved(self, context_tokens: int) -> float:
        """Return how many requests of this length all ranks admit at once, each kept whole.

        What the engine logs as its maximum concurrency: a request that is still in prefill keeps
        more of a window than one that decodes.
        """
        blocks = self.kv_pool_bytes / self.layout.bytes_per_block
        return blocks / self.blocks_reserved(context_tokens) * self.model.dp_size

    def blocks_reserved(self, context_tokens: int) -> int:
        """Return the blocks of one rank that a request of this length may need."""
        layout, pipeline = self.layout, self.model.shard.parallelism.pipeline
        in_flight_tokens = layout.in_flight_tokens(self.max_batched_tokens, pipeline)
        return layout.blocks_reserved(context_tokens, in_flight_tokens=in_flight_tokens)

    def bytes_per_reported_token(self, context_tokens: int) -> float:
        """Return the cache bytes of one rank behind each token, in requests of this length.

        So engines since 0.24 count in the label ``kv_cache_size_tokens``.

        Sources:
            [vllm-source] config/cache.py, v1/core/kv_cache_utils.py get_kv_cache_capacity.
        """
        tokens_per_block = context_tokens / self.blocks_reserved(context_tokens)
        return self.layout.bytes_per_block / tokens_per_block


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
    """Return the steady state with so many sequences decoding in the mean.

    Each finished request brings a new prompt, so prefill follows from the lengths alone::

        p = n * tokens_per_step * new_prompt_tokens / output_tokens
        T = t(n, n * mean_context, p)
        requests_per_s = n * tokens_per_step / (output_tokens * T)
    """
    step = mean_step(replica, workload, num_decoding)
    time = replica.model.step(step)
    steps = steps_of_answer(replica, workload)
    return SteadyState(
        num_decoding=num_decoding,
        num_prefilling=num_running(replica, workload, num_decoding) - num_decoding,
        prefill_tokens_per_step=step.prefill_tokens,
        step=time,
        requests_per_s=num_decoding / (steps * time.total_s),
        tokens_per_step=replica.model.tokens_per_step,
    )


def tpot_s(replica: Replica, workload: Workload, num_decoding: float) -> float:
    """Return the mean TPOT with so many decoding: where more prompts come, steps are full."""
    room = replica.prefill_room(num_decoding) * replica.model.num_batches
    step = mean_step(replica, workload, num_decoding, most_prefill_tokens=room)
    return replica.model.step(step).total_s / replica.model.tokens_per_step


def undisturbed_tpot_s(replica: Replica, workload: Workload, num_decoding: float) -> float:
    """Return the TPOT with so many decoding in steps without prompts."""
    step = mixed_step(workload, num_decoding, 0.0)
    return replica.model.step(step).total_s / replica.model.tokens_per_step


def prompts_step_s(replica: Replica, workload: Workload) -> float:
    """Return how long a step takes that is full of prompts, beside one sequence that decodes."""
    room = replica.prefill_room(1) * replica.model.num_batches
    step = mixed_step(workload, 1, room, chunk_tokens=_chunk_tokens(replica, workload))
    return replica.model.step(step).total_s


def mean_step(
    replica: Replica,
    workload: Workload,
    num_decoding: float,
    *,
    most_prefill_tokens: float = math.inf,
) -> Step:
    """Return the mean of the steps with so many sequences decoding: some hold a whole prompt."""
    prefill = num_decoding * workload.new_prompt_tokens / steps_of_answer(replica, workload)
    prefill = min(prefill, most_prefill_tokens)
    chunk = _chunk_tokens(replica, workload)
    step = mixed_step(workload, num_decoding, prefill, chunk_tokens=chunk)
    each = max(1.0, workload.new_prompt_tokens / replica.max_batched_tokens)
    split = replica.model.shard.parallelism
    split = replace(split, pipeline=replica.model.num_microbatches)
    return with_chunks(step, split, chunks_of_prompt=each)


def _chunk_tokens(replica: Replica, workload: Workload) -> float:
    """Return the tokens of a prompt that one step takes."""
    return min(workload.new_prompt_tokens, replica.max_batched_tokens)


def steps_of_answer(replica: Replica, workload: Workload) -> float:
    """Return the steps in which a mean answer is made."""
    return replica.model.steps(workload.output_tokens)


def with_chunks(step: Step, split: Parallelism, *, chunks_of_prompt: float) -> Step:
    """Return a mean step whose prompts come at random, each chunk in one microbatch of one rank.

    The chunks of a prompt alone are in ``n`` of ``n + stages - 1`` microbatches, those of several
    prompts in more of them.
    """
    if not step.prefill_chunk_tokens:
        return step
    chunks = step.prefill_tokens / step.prefill_chunk_tokens
    alone = chunks_of_prompt / steps_of_chunks(chunks_of_prompt, split.pipeline)
    together = alone * ranks_together(chunks / chunks_of_prompt, math.inf)
    microbatches = min(float(split.pipeline), together)
    ranks = ranks_together(chunks / microbatches, split.data)
    return replace(step, prefill_microbatches=microbatches, prefill_ranks=ranks)


def ranks_together(chunks_per_step: float, num_ranks: float) -> float:
    """Return the ranks that prefill in a step in which any does, in the mean.

    Prompts come at random, so that with ``x`` of them in a mean step some steps have none, and
    those that have any hold ``x / (1 - exp(-x))``.

    >>> round(ranks_together(0.1, 8), 2), ranks_together(20.0, 8)
    (1.05, 8.0)
    """
    together = chunks_per_step / -math.expm1(-chunks_per_step) if chunks_per_step > 0 else 1.0
    return min(float(num_ranks), together)


def num_running(replica: Replica, workload: Workload, num_decoding: float) -> float:
    """Return the sequences that decode, and those in prefill beside them: as many as are done."""
    chunks = max(1.0, workload.new_prompt_tokens / replica.prefill_room(num_decoding))
    steps = steps_of_chunks(chunks, replica.model.num_microbatches)
    return num_decoding * (1 + steps / steps_of_answer(replica, workload))


def steps_of_chunks(chunks: float, stages: int) -> float:
    """Return the steps that the chunks of one prompt take, which follow each other through stages.

    ``(chunks + stages - 1) / stages``: the first passes all stages, each later one ends one stage
    later.

    >>> steps_of_chunks(3, 1), steps_of_chunks(1, 4), steps_of_chunks(5, 4)
    (3.0, 1.0, 2.0)
    """
    return chunks / stages + (stages - 1) / stages


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


def running_limit(replica: Replica, workload: Workload) -> float:
    """Return what all ranks of a replica run at once: slots, or as many as the cache holds."""
    slots = (replica.max_num_seqs or math.inf) * replica.model.dp_size
    return min(slots, max(1.0, replica.sequences_held(workload.mean_context_tokens)))


def own_prefill_s(replica: Replica, workload: Workload, state: SteadyState, prompt: float) -> float:
    """Return the time that one prompt's own chunks take beside the running batch.

    ``prompt``: its tokens before the cached share is taken off. Each step offers the token
    budget that the decoding sequences leave, each microbatch of a pipeline one of its own. On an
    idle replica no weights are read for others.
    """
    new = prompt * (1 - workload.cached_fraction)
    num_chunks = math.ceil(new / replica.prefill_room(state.num_decoding))
    chunk = new / num_chunks
    time = replica.model.step(
        Step(
            num_sequences=state.num_decoding,
            context_tokens=state.num_decoding * workload.mean_context_tokens,
            prefill_tokens=chunk,
            prefill_context_tokens=prompt - new / 2,
            prefill_ranks=1,
            prefill_microbatches=1,
        )
    )
    return steps_of_chunks(num_chunks, replica.model.num_microbatches) * time.total_s


def typical_ttft_s(replica: Replica, workload: Workload, state: SteadyState) -> float:
    """Return the TTFT of a mean prompt that waits for nothing but the step in progress."""
    own_s = own_prefill_s(replica, workload, state, workload.prompt.mean_tokens)
    return own_s + state.step_s / 2


def serving_s(replica: Replica, num_running: float, prompt_tokens: float) -> float:
    """Return the time before the first token that passes outside the engine's steps.

    Server and client in one: tokens are made of the prompt's text, and every answer that streams
    at that time takes its turn.
    """
    constants = replica.model.constants
    streaming = constants.per_running_request_s * num_running / replica.model.dp_size
    return constants.per_request_s + streaming + constants.per_prompt_token_s * prompt_tokens
