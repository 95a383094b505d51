"""Learning how much of the nominal bandwidth a step achieves, from busy time alone.

Overhead, communication and prefill stay at their priors here: the memory part is what is left
of the measured step time, and the efficiency is what makes the formula's memory part equal it.
The correction is bounded, gated and slow, so that no bad scrape moves a fleet.
"""

from dataclasses import dataclass, replace

from tonnage.estimate.samples import EngineSamples
from tonnage.sizing.serving.steady import ranks_together
from tonnage.sizing.split import Parallelism
from tonnage.sizing.step_time.model import StepTimeModel
from tonnage.sizing.step_time.step import Step
from tonnage.sizing.step_time.utilization import observed_mbu_fraction

LOWEST_OF_PRIOR = 0.4
HIGHEST_OF_PRIOR = 1.25
HIGHEST = 0.98
OUTLIER_FACTOR = 1.5
"""An observation beyond the band by more than this is an error, not a slow GPU."""
GAIN = 0.4
LARGEST_STEP = 0.08
"""Of the prior, in one update."""
MIN_STEPS = 50
"""Engine steps in a window before it says anything about their time."""
MIN_BUSY_FRACTION = 0.9
"""Below, the window holds the edge of a burst, and means over it mix busy and idle."""
MIN_SEQUENCES = 1.5
"""Below, the engine is idle between requests: overhead decides, not memory."""
ROUNDS = 40
CLOSE = 1e-10
MAX_PREFILL_FRACTION = 0.5
"""Above, the prior of prefill decides what is left for memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BusyStep:
    """The mean step of one engine over a window in which it was busy."""

    step_s: float
    num_steps: float
    work: Step
    busy_fraction: float
    """Share of the window in which steps ran; what it says of speed is believed from 0.9 on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedCalibration:
    """What was learned about one speed key. Zero busy steps: the prior."""

    bandwidth_efficiency: float
    busy_steps: float = 0.0
    changed_at_s: float = 0.0
    """Unix time of the last written change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptShape:
    """How the prompts of a workload meet the engine."""

    context_tokens: float
    """Earlier tokens that a prompt token attends to, in the mean."""
    chunk_tokens: float
    """Prompt tokens that come together in one step."""


def busy_step(
    samples: EngineSamples,
    *,
    window_s: float,
    kv_tokens: float,
    prompts: PromptShape,
    parallelism: Parallelism,
) -> BusyStep | None:
    """Return the mean step of an engine; None when it was idle or a figure is missing.

    The step time is the mean gap between two outputs of a sequence, which knows no idle time. As
    many sequences decode in a step as there are gaps, however many tokens each output has. An
    engine is one data-parallel rank and each of its steps one microbatch, while the formula takes
    the work of the whole replica: the other ranks are taken to do the same.
    """
    gaps, gap_s, steps = samples.token_gaps_per_s, samples.token_gap_s_per_s, samples.steps_per_s
    usage, prefill = samples.kv_usage_fraction, samples.computed_prompt_tokens_per_s
    if not gaps or not gap_s or not steps or usage is None or prefill is None:
        return None
    sequences = gaps / steps
    if steps * window_s < MIN_STEPS or sequences < MIN_SEQUENCES:
        return None
    batches = parallelism.data * parallelism.pipeline
    busy_fraction = min(1.0, steps / parallelism.pipeline * gap_s / gaps)
    return BusyStep(
        busy_fraction=busy_fraction,
        step_s=gap_s / gaps,
        num_steps=steps * window_s,
        work=Step(
            num_sequences=sequences * batches,
            context_tokens=usage / busy_fraction * kv_tokens * parallelism.data,
            prefill_tokens=prefill / steps * batches,
            prefill_context_tokens=prompts.context_tokens,
            prefill_chunk_tokens=prompts.chunk_tokens,
            prefill_ranks=ranks_together(
                prefill / steps * batches / prompts.chunk_tokens, parallelism.data
            )
            if prompts.chunk_tokens
            else None,
        ),
    )


def observed_mbu(model: StepTimeModel, busy: BusyStep) -> float:
    """Return bytes per step over step time over nominal bandwidth, per rank, in busy time."""
    time = model.step(busy.work)
    stages = model.shard.parallelism.pipeline
    return observed_mbu_fraction(
        step_bytes=stages * time.decode_bytes,
        step_s=busy.step_s,
        memory_bytes_per_s=model.speeds.memory_bytes_per_s,
    )


def observed_efficiency(model: StepTimeModel, busy: BusyStep) -> float | None:
    """Return the bandwidth efficiency that explains a measured step; None: it cannot tell."""
    time = model.step(busy.work)
    decode_s = busy.step_s - (time.overhead_s + time.prefill_s + time.communication_s)
    too_much_prefill = time.prefill_s > MAX_PREFILL_FRACTION * busy.step_s
    is_edge = busy.busy_fraction < MIN_BUSY_FRACTION
    if is_edge or decode_s <= 0 or too_much_prefill or not time.is_memory_bound:
        return None
    return _explaining(model, busy.work, decode_s)


def _explaining(model: StepTimeModel, work: Step, decode_s: float) -> float | None:
    """Return the efficiency at which a step decodes in so many seconds; None: at no possible one.

    The time of a step falls with the efficiency, at most in proportion: each round leaves the part
    of the error that its products explain.
    """
    constants = model.constants
    efficiency = constants.bandwidth_efficiency
    for _ in range(ROUNDS):
        known = replace(constants, bandwidth_efficiency=efficiency)
        time = replace(model, constants=known).step(work)
        found_s = time.total_s - (time.overhead_s + time.prefill_s + time.communication_s)
        efficiency *= found_s / decode_s
        if abs(found_s / decode_s - 1) < CLOSE:
            return efficiency
    return None


def learn(
    known: SpeedCalibration, observed: float, *, prior: float, num_steps: float
) -> SpeedCalibration:
    """Move a calibration towards an observation, by a bounded step within a stated band.

    The band is 0.4 to 1.25 times the prior and never above 0.98; observations beyond it by half
    again are dropped. One update moves by 40 % of the difference, at most 8 % of the prior.
    """
    low, high = LOWEST_OF_PRIOR * prior, min(HIGHEST, HIGHEST_OF_PRIOR * prior)
    if not low / OUTLIER_FACTOR <= observed <= high * OUTLIER_FACTOR:
        return known
    target = min(max(observed, low), high)
    bound = LARGEST_STEP * prior
    move = min(max(GAIN * (target - known.bandwidth_efficiency), -bound), bound)
    return replace(
        known,
        bandwidth_efficiency=known.bandwidth_efficiency + move,
        busy_steps=known.busy_steps + num_steps,
    )
