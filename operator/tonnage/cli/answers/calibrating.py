"""From timed loads to a calibration: constants, how well they fit, utilization. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Final

from tonnage.cli.answers.loads import TINY_PROMPT, Hopes, repeats_of
from tonnage.cli.load.sweep import Load, Measured
from tonnage.estimate.calibration_file import (
    CalibrationFile,
    LearnedConstants,
    MeasuredPoint,
    ObservedUtilization,
    ReportedCache,
    key_of,
)
from tonnage.estimate.fit import SpeedFit, TimedStep, errors, fit_speed
from tonnage.sizing.parallelism.draft import rank_of
from tonnage.sizing.plan import IDLE
from tonnage.sizing.request import SizingRequest
from tonnage.sizing.split import Parallelism
from tonnage.sizing.step_time.model import StepTimeModel
from tonnage.sizing.step_time.speeds import speeds
from tonnage.sizing.step_time.step import Step
from tonnage.sizing.step_time.utilization import observed_mbu_fraction

MUCH_LEFT: Final = 0.05
"""Of a step's time, that a fit may leave in the median before that is said."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """The engine that is measured: what it serves, and how it is split."""

    request: SizingRequest
    """With the prior's constants."""
    parallelism: Parallelism

    @property
    def model(self) -> StepTimeModel:
        """Return what tells its step times by the prior.

        Raises:
            SizingError: the engine refuses such a split.
        """
        request = self.request
        return StepTimeModel(
            shard=rank_of(request, self.parallelism),
            speeds=speeds(request.gpu, request.weights.compute),
            constants=request.speed,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibrated:
    """What the loads of a sweep say together."""

    subject: Subject
    fit: SpeedFit
    points: tuple[MeasuredPoint, ...]
    observed: ObservedUtilization
    outside_s: float
    """From sending a request to its first token, what passes outside the engine's steps."""
    num_steps: float

    @property
    def request(self) -> SizingRequest:
        """The subject's request with the constants that were fitted."""
        request = self.subject.request
        return replace(request, speed=self.fit.constants(request.speed))


def hopes_of(model: StepTimeModel) -> Hopes:
    """Return what the formula says of loads, about."""

    def ttft_of(load: Load) -> float:
        return load.sequences * model.step(_prefill_step(load.prompt_tokens)).total_s

    def seconds_of(load: Load) -> float:
        context = load.sequences * load.prompt_tokens
        batch = Step(num_sequences=load.sequences, context_tokens=context)
        decode_s = (load.output_tokens - 1) * model.step(batch).total_s
        return repeats_of(load) * (ttft_of(load) + decode_s)

    return Hopes(seconds_of=seconds_of, ttft_of=ttft_of)


def calibrated(subject: Subject, measured: Sequence[Measured]) -> Calibrated:
    """Fit the constants to what was measured."""
    model, outside_s = subject.model, _outside_s(measured)
    kept = [each for each in measured if each.load.prompt_tokens > TINY_PROMPT]
    timed = [_timed(each, outside_s) for each in kept]
    fit = fit_speed(model, timed)
    fitted = replace(model, constants=fit.constants(model.constants))
    return Calibrated(
        subject=subject,
        fit=fit,
        points=tuple(_points(kept, timed, errors(model, timed), errors(fitted, timed))),
        observed=_observed(model, kept, timed),
        outside_s=outside_s,
        num_steps=sum(each.num_steps for each in measured),
    )


def _outside_s(measured: Iterable[Measured]) -> float:
    """Return what a tiny prompt takes longer than the step that it is worth."""
    tiny = [each.seconds for each in measured if each.load.prompt_tokens <= TINY_PROMPT]
    alone = [
        each.seconds for each in measured if each.load.kind == "decode" and each.load.sequences == 1
    ]
    return max(0.0, min(tiny) - min(alone)) if tiny and alone else 0.0


def _timed(measured: Measured, outside_s: float) -> TimedStep:
    load = measured.load
    if load.kind == "prefill":
        return TimedStep(
            work=_prefill_step(load.prompt_tokens),
            step_s=max(measured.seconds - outside_s, measured.seconds / 2),
        )
    work = Step(num_sequences=load.sequences, context_tokens=measured.context_tokens)
    return TimedStep(work=work, step_s=measured.seconds)


def _prefill_step(prompt: int) -> Step:
    """Return the step of a prompt that is alone, and fits into it."""
    return Step(
        num_sequences=IDLE,
        context_tokens=0,
        prefill_tokens=prompt,
        prefill_context_tokens=prompt / 2,
        prefill_ranks=1,
    )


def _points(
    measured: Sequence[Measured],
    timed: Sequence[TimedStep],
    before: Sequence[float],
    after: Sequence[float],
) -> Iterable[MeasuredPoint]:
    for each, step, prior, fitted in zip(measured, timed, before, after, strict=True):
        yield MeasuredPoint(
            kind=each.load.kind,
            sequences=each.load.sequences,
            prompt_tokens=each.load.prompt_tokens,
            seconds=step.step_s,
            prior_error_fraction=prior,
            error_fraction=fitted,
        )


def _observed(
    model: StepTimeModel, measured: Sequence[Measured], timed: Sequence[TimedStep]
) -> ObservedUtilization:
    """Return the most that any point used of the nominal figures, per rank."""
    stages = model.shard.parallelism.pipeline
    mbu, mfu = [], []
    for each, step in zip(measured, timed, strict=True):
        time = model.step(step.work)
        flop = time.decode_flop
        if each.load.kind == "decode":
            read = stages * time.decode_bytes
            nominal = model.speeds.memory_bytes_per_s
            mbu.append(
                observed_mbu_fraction(
                    step_bytes=read, step_s=step.step_s, memory_bytes_per_s=nominal
                )
            )
        else:
            exposed = model.constants.prefill_exposed_fraction
            peak = model.speeds.peak_flop_per_s * model.constants.prefill_efficiency
            flop = time.prefill_s / stages * peak / exposed
        mfu.append(stages * flop / step.step_s / model.speeds.peak_flop_per_s)
    return ObservedUtilization(mbu_fraction=max(mbu, default=None), mfu_fraction=max(mfu))


def typical_error(points: Iterable[MeasuredPoint], kind: str, *, is_prior: bool) -> float | None:
    """Return the median of the errors of a kind, without their signs; None without any."""
    found = [
        abs(each.prior_error_fraction if is_prior else each.error_fraction)
        for each in points
        if each.kind == kind
    ]
    return median(found) if found else None


def remarks_on(found: Calibrated) -> Iterable[str]:
    """Yield what is odd about the result."""
    for name in found.fit.at_bounds:
        yield (
            f"the {name} is at the end of its range: another GPU class or split than "
            f"{found.subject.request.gpu.name} {found.subject.parallelism}?"
        )
    left = typical_error(found.points, "decode", is_prior=False)
    if left is not None and left > MUCH_LEFT:
        yield (
            f"batches are still {left:.0%} off in the median: three constants do not express this "
            "engine, or something disturbed it; measure again, and trust a replay (--trace) more"
        )
    for name, share in (
        ("MBU", found.observed.mbu_fraction),
        ("MFU", found.observed.mfu_fraction),
    ):
        if share is not None and share > 1:
            yield f"observed {name} is {share:.0%}: no such GPU is so fast"


@dataclass(frozen=True, slots=True, kw_only=True)
class Circumstances:
    """What a file says beside the constants."""

    date: str
    measured_at_s: float
    num_requests: int
    has_metrics: bool
    cache: ReportedCache | None = None
    remarks: tuple[str, ...] = ()


def calibration_of(found: Calibrated, around: Circumstances) -> CalibrationFile:
    """Return the file that is written."""
    fit = found.fit
    return CalibrationFile(
        date=around.date,
        measured_at_s=around.measured_at_s,
        key=key_of(found.subject.request, found.subject.parallelism),
        constants=LearnedConstants(
            overhead_factor=fit.overhead_factor,
            bandwidth_efficiency=fit.bandwidth_efficiency,
            prefill_efficiency=fit.prefill_efficiency,
            covariance=fit.covariance,
        ),
        cache=around.cache,
        requests=around.num_requests,
        steps=round(found.num_steps),
        points=found.points,
        observed=found.observed,
        has_metrics=around.has_metrics,
        remarks=(*around.remarks, *remarks_on(found)),
    )
