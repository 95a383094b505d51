"""What one engine did over a window, and what the formula says of it: the residual is evidence.

A token, as it is made, meets the others that decode as a time average meets them, and itself
beside, however busy the engine is: with arrivals at random and service shared,
``n * P(n) / t(n) = token rate * P(n - 1)`` for any step time ``t(n)``. So the mean gap between
tokens is the time of a step with ``mean decoding + 1`` sequences and the prompt tokens that arrive
in it, idle time or not. The mean decoding is itself the sum of all gaps per second.

That one beside is what those decoding vary by: over a long time as much as they are. Where answers
last as long as the window, most of that lies between windows, and a window shows its own mean.

The prompt tokens that a sequence meets arrived from the step of its own prompt on, which lasts
longer than others, until the last but one: some more than in the mean step. Where all slots are
taken none arrive but those that follow an end, and its own slot has none to follow.
"""

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from statistics import fmean

from tonnage.catalog.engine_speed import SpeedConstants
from tonnage.estimate.posterior import Three
from tonnage.estimate.samples import EngineSamples, WindowRates
from tonnage.memoize import memoize
from tonnage.sizing.request import Flags
from tonnage.sizing.serving.replica import prefill_context_tokens, steps_of_chunks, with_chunks
from tonnage.sizing.step_time.model import StepTimeModel
from tonnage.sizing.step_time.speeds import observed_mbu_fraction
from tonnage.sizing.step_time.step import Step, StepTime
from tonnage.sizing.workload import Workload

MIN_GAPS = 100
"""Tokens after the first of their answers in a window, before it says anything."""
MIN_PREFILLS = 3
POINTS = 32
"""Of a distribution of lengths at which steps are counted."""
SHORT = 1e-3
LEVEL_DEVIATIONS, LEVEL_SHARE = 2.5, 0.1
"""By which those running may differ from one end of a window to the other: of the difference of two
Poisson numbers, and of their mean."""
REMEMBERED = 1_500
"""Results that are memoized: objects of a key ask the same in each tick."""
MOST_OVER_SLOTS = 1.25
"""Mean decoding over the slots that the engine has: beyond, the counters cannot be right."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptShape:
    """How the prompts of a workload meet the engine."""

    new_tokens: float
    """That are computed, in the mean."""
    context_tokens: float
    """Earlier tokens that a prompt token attends to, in the mean."""
    scv: float
    """Squared coefficient of variation of their lengths."""
    most_tokens: float
    """Of one step."""
    chunks: float
    """Steps that the prompts take, in the mean, alone."""
    answer_tokens: float
    """Of the answer to one, in the mean."""


@dataclass(frozen=True, kw_only=True)
class BusyWindow:
    """What one engine did over a window, per data-parallel rank, and the states it did it in."""

    gap_s: float
    """Between two tokens of a sequence, in the mean over tokens."""
    num_gaps: float
    step: Step
    """That the mean token is made in."""
    num_variance: float
    """Of the sequences that decode on one rank, within the window."""
    prefill_s: float | None
    """From scheduled to first token, in the mean of finished requests."""
    num_prefills: float
    prefill_step: Step
    """That holds the prompt of such a request alone."""
    prompts: PromptShape
    prompt_tokens_per_s: float
    """That are computed."""
    full_share: float
    """Of prompts that find all slots taken: they begin as others end, not as they arrive."""


def busy_window(
    samples: EngineSamples,
    *,
    window_s: float,
    context_tokens: float,
    prompts: PromptShape,
    flags: Flags,
) -> BusyWindow | None:
    """Return what a window shows; None where a figure is missing, or too little happened.

    ``context_tokens``: of one running sequence, in the mean. The other data-parallel ranks are
    taken to do the same as this one.
    """
    busy = samples.busy
    gaps, gap_s_per_s = busy.token_gaps_per_s, busy.token_gap_s_per_s
    prefill = busy.computed_prompt_tokens_per_s
    if not gaps or not gap_s_per_s or prefill is None or gaps * window_s < MIN_GAPS:
        return None
    decoding, slots = gap_s_per_s, flags.max_num_seqs
    prefilling = busy.prefill_s_per_s or 0.0
    if not _is_possible(samples, slots) or not _is_level(samples, slots, window_s):
        return None
    gap_s, ranks = gap_s_per_s / gaps, flags.parallelism.data
    chunk = min(prompts.new_tokens, prompts.most_tokens)
    varied = varied_share(window_s, prompts.answer_tokens * gap_s)
    prefill_s = _prefill_s(busy, window_s)
    full_share = waiting_share(decoding + prefilling, slots)
    # The steps of a sequence's own prompt take longer than the mean one: more prompts come in them.
    longer_s = max(0.0, (prefill_s or gap_s) - gap_s)
    followed = full_share * prompts.new_tokens if prefill * ranks else 0.0
    more = (prefill * ranks * longer_s - followed) / max(1.0, prompts.answer_tokens - 1)
    company = max(0.0, prefill * gap_s * ranks + more)
    together = max(1.0, decoding + varied) * ranks
    return BusyWindow(
        gap_s=gap_s,
        num_gaps=gaps * window_s,
        step=with_chunks(
            Step(
                num_sequences=together,
                context_tokens=together * context_tokens,
                prefill_tokens=company,
                prefill_chunk_tokens=chunk,
                prefill_context_tokens=prompts.context_tokens,
            ),
            flags.parallelism,
            chunks_of_prompt=prompts.chunks,
        ),
        num_variance=varied * decoding,
        prefill_s=prefill_s,
        num_prefills=(busy.prefills_per_s or 0.0) * window_s,
        prefill_step=Step(
            num_sequences=decoding * ranks,
            context_tokens=max(1.0, decoding * ranks) * context_tokens,
            prefill_tokens=chunk,
            prefill_context_tokens=prompts.context_tokens,
            prefill_ranks=1,
            prefill_microbatches=1,
        ),
        prompts=prompts,
        prompt_tokens_per_s=prefill,
        full_share=full_share,
    )


def varied_share(window_s: float, lasting_s: float) -> float:
    """Return the share of a variance that lies within windows, of what forgets in such a time.

    With ``x = window / lasting``: ``1 - 2 / x^2 * (x - 1 + exp(-x))``, the variance less that of
    the mean over a window, for a correlation that falls off as ``exp(-t / lasting)``.

    >>> round(varied_share(60.0, 0.6), 2), round(varied_share(60.0, 60.0), 2)
    (0.98, 0.26)
    """
    x = window_s / lasting_s
    if x < SHORT:
        return x / 3  # to which it tends; the difference below would be lost in rounding
    return 1 - 2 / x**2 * (x - 1 + math.exp(-x))


def waiting_share(num_running: float, slots: int) -> float:
    """Return the share of arrivals by chance that find all slots taken: Erlang's C formula.

    >>> round(waiting_share(2.0, 3), 3), waiting_share(3.0, 3)
    (0.444, 1.0)
    """
    if num_running >= slots:
        return 1.0
    blocked = 1.0
    for number in range(1, slots + 1):
        blocked = num_running * blocked / (number + num_running * blocked)
    return blocked / (1 - num_running / slots * (1 - blocked))


def _is_possible(samples: EngineSamples, slots: int) -> bool:
    """Tell whether counters and gauges can be of one window of an engine with so many slots.

    More decode than the gauge of those running ever showed is of no such engine.
    """
    decoding, running = samples.busy.token_gap_s_per_s or 0.0, samples.mean_running
    seen = max(decoding, samples.running or 0.0, running or 0.0)
    if seen > MOST_OVER_SLOTS * slots:
        return False
    return running is None or decoding <= 2 * running + LEVEL_DEVIATIONS * math.sqrt(running + 1)


def _is_level(samples: EngineSamples, max_num_seqs: int, window_s: float) -> bool:
    """Tell whether as many ran when the window began as when it ended, but for chance.

    Where the batch fills or drains, means over the window are not what the mean token meets.
    """
    growth_per_s = samples.busy.in_flight_per_s
    if samples.running is None or growth_per_s is None:
        return True
    backlog = samples.running + (samples.waiting or 0.0)
    before = min(max(0.0, backlog - window_s * growth_per_s), max_num_seqs)
    both = samples.running + before
    chance = LEVEL_DEVIATIONS * math.sqrt(both + 1)
    return abs(samples.running - before) <= chance + LEVEL_SHARE * both / 2


def _prefill_s(busy: WindowRates, window_s: float) -> float | None:
    prefills, prefill_s = busy.prefills_per_s, busy.prefill_s_per_s
    if not prefills or not prefill_s or prefills * window_s < MIN_PREFILLS:
        return None
    return prefill_s / prefills


def predicted_gap_s(model: StepTimeModel, window: BusyWindow) -> float:
    """Return the time of the mean token's step; a line in those decoding, unless experts bend it.

    Then it is the mean of two numbers decoding with the mean and the variance of those met.
    """
    if not model.shard.experts:
        return _mean_step(window, model).total_s
    ranks = model.shard.parallelism.data
    mean, variance = window.step.num_sequences / ranks, window.num_variance
    low, high = mean - math.sqrt(variance), mean + math.sqrt(variance)
    if low < 1:  # none is
        low, high = 1.0, mean + variance / (mean - 1) if mean > 1 else 1.0
    above = (mean - low) / (high - low) if high > low else 0.0
    return (1 - above) * _step_s(model, window, ranks * low) + above * _step_s(
        model, window, ranks * high
    )


@memoize
def _mean_step(window: BusyWindow, model: StepTimeModel) -> StepTime:
    return model.step(window.step)


def _step_s(model: StepTimeModel, window: BusyWindow, num_sequences: float) -> float:
    each = window.step.context_tokens / window.step.num_sequences
    step = replace(window.step, num_sequences=num_sequences, context_tokens=each * num_sequences)
    return model.step(step).total_s


def predicted_prefill_s(model: StepTimeModel, window: BusyWindow) -> float:
    """Return the time from scheduled to first token of a mean prompt.

    In its step are also the prompts that came during the step before. A prompt comes more likely in
    a long step: with ``x`` prompts per second that take ``d`` each, they come during
    ``gap + x * d^2 * (1 + scv)``. In a pipeline its chunks follow each other through the stages,
    and of those others only a part is in its microbatch.
    """
    prompts, step, stages = window.prompts, window.prefill_step, model.num_microbatches
    own_steps = steps_of_chunks(prompts.chunks, stages)
    bare_s = model.step(replace(step, prefill_tokens=0.0)).total_s
    held_s = model.step(step).total_s
    token_s = (held_s - bare_s) / step.prefill_tokens
    own_s = token_s * prompts.new_tokens * own_steps / prompts.chunks
    prompts_per_s = window.prompt_tokens_per_s / prompts.new_tokens
    longer_s = (1 - window.full_share) * prompts_per_s * own_s**2 * (1 + prompts.scv)
    company = window.prompt_tokens_per_s * (window.gap_s + longer_s) / stages
    steps = own_steps + company / prompts.most_tokens
    return steps * bare_s + own_s + token_s * company


def prefill_share(model: StepTimeModel, window: BusyWindow) -> float:
    """Return the share of the mean token's step that prompts take."""
    time = _mean_step(window, model)
    return time.prefill_s / time.total_s


def observed_mbu(model: StepTimeModel, window: BusyWindow) -> float:
    """Return bytes per step over step time over nominal bandwidth, per rank, in busy time."""
    time = _mean_step(window, model)
    return observed_mbu_fraction(
        step_bytes=model.shard.parallelism.pipeline * time.decode_bytes,
        step_s=window.gap_s,
        memory_bytes_per_s=model.speeds.memory_bytes_per_s,
    )


def observed_mfu(model: StepTimeModel, window: BusyWindow) -> float:
    """Return work per step over step time over the dense peak, per rank, in busy time.

    Of prompts only what is computed counts, and of that what decode's reads do not hide.
    """
    time, exposed = _mean_step(window, model), model.constants.prefill_exposed_fraction
    flop = model.shard.parallelism.pipeline * (time.decode_flop + exposed * time.prefill_flop)
    return flop / window.gap_s / model.speeds.peak_flop_per_s


@lru_cache(maxsize=REMEMBERED)
def with_speed(constants: SpeedConstants, learned: Three) -> SpeedConstants:
    """Return the constants with other overheads (a factor) and efficiencies.

    Decode's products move with those of prefill, which run on the same units.
    """
    overhead, bandwidth, prefill = learned
    products = prefill / constants.prefill_efficiency
    return replace(
        constants,
        bandwidth_efficiency=bandwidth,
        prefill_efficiency=prefill,
        compute_efficiency=constants.compute_efficiency * products,
        per_step_s=overhead * constants.per_step_s,
        per_kernel_s=overhead * constants.per_kernel_s,
        per_scaled_product_s=overhead * constants.per_scaled_product_s,
        per_experts_block_s=overhead * constants.per_experts_block_s,
        cutlass_block_s=overhead * constants.cutlass_block_s,
        cutlass_expert_s=overhead * constants.cutlass_expert_s,
        per_sequence_s=overhead * constants.per_sequence_s,
        per_cached_head_s=overhead * constants.per_cached_head_s,
        per_all_reduce_s=overhead * constants.per_all_reduce_s,
    )


def prompt_shape(workload: Workload, *, max_batched_tokens: int) -> PromptShape:
    """Return how the prompts of a workload meet an engine with such a token budget."""
    lengths = [workload.prompt.quantile((at + 0.5) / POINTS) for at in range(POINTS)]
    computed = 1 - workload.cached_fraction
    return PromptShape(
        new_tokens=max(1.0, workload.new_prompt_tokens),
        context_tokens=prefill_context_tokens(workload),
        scv=workload.prompt.scv,
        most_tokens=max_batched_tokens,
        chunks=fmean(max(1, math.ceil(computed * each / max_batched_tokens)) for each in lengths),
        answer_tokens=workload.output_tokens,
    )
