"""From runs of a load generator to a calibration: constants, how well they fit. Pure."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from statistics import median
from typing import Final, Literal

from tonnage.cli.console import Failure
from tonnage.cli.read.bench_results import BenchmarkRun
from tonnage.estimate.calibration_file import (
    CalibrationFile,
    LearnedConstants,
    MeasuredPoint,
    ObservedUtilization,
    key_of,
)
from tonnage.estimate.fit import SpeedFit, TimedStep, errors, fit_speed
from tonnage.estimate.learner import constants_of
from tonnage.sizing.parallelism.draft import rank_of
from tonnage.sizing.parallelism.rules import check_parallelism
from tonnage.sizing.plan import IDLE
from tonnage.sizing.request import SizingRequest
from tonnage.sizing.serving.steady import mixed_step, ranks_together
from tonnage.sizing.split import Parallelism
from tonnage.sizing.step_time.model import StepTimeModel
from tonnage.sizing.step_time.roofline import observed_mbu_fraction
from tonnage.sizing.step_time.speeds import speeds
from tonnage.sizing.step_time.step import Step
from tonnage.sizing.workload import Lengths, Workload
from tonnage.units import count_of, significant

MUCH_LEFT: Final = 0.05
"""Of a step's time, that a fit may leave in the median before that is said."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """The engine that was measured: what it serves, and how it is split."""

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
            speeds=speeds(request.gpu, request.products, request.node_link_bytes_per_s),
            constants=request.speed,
        )


def subject_of(request: SizingRequest, *, context: int = 1) -> Subject:
    """Return what was measured; a size of the split that the request leaves open is 1.

    Raises:
        Failure: the split has another number of GPUs than is asked for, or crosses nodes.
        SizingError: the engine refuses the split.
    """
    sizes = request.sizes
    split = Parallelism(
        tensor=sizes.tensor or 1,
        pipeline=sizes.pipeline or 1,
        data=sizes.data or 1,
        context=context,
    )
    if request.num_gpus not in {None, split.num_gpus}:
        gpus = count_of(request.num_gpus or 0, "GPU")
        raise Failure(f"{gpus} per replica, and {split} was measured: see hardware.parallelism")
    check_parallelism(request.shape, request.weights, split)
    if request.crosses_nodes(split):  # constants would make up for the link between them
        node = count_of(request.gpu.gpus_per_node, "GPU")
        raise Failure(f"{split} is over several nodes, each of {node}")
    return Subject(request=request, parallelism=split)


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibrated:
    """What the runs say together."""

    subject: Subject
    fit: SpeedFit
    points: tuple[MeasuredPoint, ...]
    observed: ObservedUtilization
    num_steps: float


def calibrate(
    subject: Subject, runs: Sequence[BenchmarkRun], *, max_batched_tokens: int
) -> Calibrated:
    """Fit the constants to runs of a load generator, whose steps are known in the mean.

    A run with one request at a time also times a prompt alone, where that fits into one step.
    """
    points = [point for run in runs for point in _points_of_run(subject, run, max_batched_tokens)]
    steps = (run.num_requests * run.output_tokens / max(1.0, run.num_decoding) for run in runs)
    return _fit_points(subject, points, num_steps=max(1.0, sum(steps)))


_Point = tuple[MeasuredPoint, TimedStep]
"""A load whose errors are not known yet, and its step."""


def _point(
    kind: Literal["prefill", "decode"], number: float, prompt: int, timed: TimedStep
) -> _Point:
    measured = MeasuredPoint(
        kind=kind,
        sequences=round(number),
        prompt_tokens=prompt,
        seconds=timed.step_s,
        prior_error_fraction=0.0,
        error_fraction=0.0,
    )
    return measured, timed


def _points_of_run(
    subject: Subject, run: BenchmarkRun, max_batched_tokens: int
) -> Iterator[_Point]:
    prompt = round(run.prompt_tokens)
    workload = Workload(
        prompt=Lengths(mean_tokens=run.prompt_tokens),
        output_tokens=run.output_tokens,
        output_second_moment=run.output_second_moment,
    )
    if not run.is_alone:
        number = max(1.0, run.num_decoding)
        prefill = number * run.prompt_tokens / (run.output_tokens - 1)
        chunk = min(run.prompt_tokens, max_batched_tokens)
        ranks = ranks_together(prefill / chunk, subject.parallelism.data)
        work = mixed_step(workload, number, prefill, chunk_tokens=chunk)
        timed = TimedStep(work=replace(work, prefill_ranks=ranks), step_s=run.tpot_s)
        yield _point("decode", number, prompt, timed)
        return
    timed = TimedStep(work=mixed_step(workload, 1.0, 0.0), step_s=run.tpot_s)
    yield _point("decode", 1, prompt, timed)
    if prompt <= max_batched_tokens:
        timed = TimedStep(work=_prefill_step(prompt), step_s=run.ttft_s)
        yield _point("prefill", 1, prompt, timed)


def _fit_points(subject: Subject, points: Sequence[_Point], *, num_steps: float) -> Calibrated:
    model, timed = subject.model, [step for _, step in points]
    fit = fit_speed(model, timed)
    fitted = replace(model, constants=constants_of(fit.speed, model.constants))
    off = zip(points, errors(model, timed), errors(fitted, timed), strict=True)
    return Calibrated(
        subject=subject,
        fit=fit,
        points=tuple(
            point.model_copy(update={"prior_error_fraction": prior, "error_fraction": residual})
            for (point, _), prior, residual in off
        ),
        observed=_peak_utilization(model, points),
        num_steps=num_steps,
    )


def _prefill_step(prompt: int) -> Step:
    """Return the step of a prompt that is alone, and fits into it."""
    return Step(
        num_sequences=IDLE,
        context_tokens=0,
        prefill_tokens=prompt,
        prefill_context_tokens=prompt / 2,
        prefill_ranks=1,
    )


def _peak_utilization(model: StepTimeModel, points: Sequence[_Point]) -> ObservedUtilization:
    """Return the most that any point used of the nominal figures, per rank."""
    stages = model.shard.parallelism.pipeline
    mbu, mfu = [], []
    for point, timed in points:
        time, step_s = model.step(timed.work), timed.step_s
        flop = time.decode_flop
        if point.kind == "decode":
            read = stages * time.decode_bytes
            nominal = model.speeds.memory_bytes_per_s
            mbu.append(
                observed_mbu_fraction(step_bytes=read, step_s=step_s, memory_bytes_per_s=nominal)
            )
        else:
            flop = time.prefill_flop
        mfu.append(stages * flop / step_s / model.speeds.peak_flop_per_s)
    return ObservedUtilization(mbu_fraction=max(mbu, default=None), mfu_fraction=max(mfu))


def typical_error(points: Iterable[MeasuredPoint], kind: str, *, is_prior: bool) -> float:
    """Return the median of the errors of a kind, without their signs; there are some."""
    return median(
        abs(each.prior_error_fraction if is_prior else each.error_fraction)
        for each in points
        if each.kind == kind
    )


def headline(file: CalibrationFile) -> str:
    """Say how far the formula was off before and after, and what the constants are."""
    errors = [
        f"{name} error {typical_error(file.points, kind, is_prior=True):.1%} before, "
        f"{typical_error(file.points, kind, is_prior=False):.1%} after"
        for name, kind in (("TPOT", "decode"), ("TTFT", "prefill"))
        if any(each.kind == kind for each in file.points)
    ]
    found = file.constants
    return (
        f"{'; '.join(errors)} (medians); bandwidth efficiency "
        f"{significant(found.bandwidth_efficiency)}, prefill efficiency "
        f"{significant(found.prefill_efficiency)}, overheads {significant(found.overhead_factor)}"
    )


def remarks_on(found: Calibrated) -> Iterable[str]:
    """Yield what is odd about the result."""
    for name in found.fit.at_bounds:
        yield (
            f"the {name} is at the end of its range: another GPU class or split than "
            f"{found.subject.request.gpu.name} {found.subject.parallelism}?"
        )
    residual = typical_error(found.points, "decode", is_prior=False)
    if residual > MUCH_LEFT:
        yield (
            f"batches are still {residual:.0%} off in the median: three constants do not express "
            "this engine, or something disturbed it: measure again"
        )
    for name, share in (
        ("MBU", found.observed.mbu_fraction),
        ("MFU", found.observed.mfu_fraction),
    ):
        if share is not None and share > 1:
            yield f"observed {name} is {share:.0%}: no such GPU is so fast"


def calibration_of(
    found: Calibrated, *, measured_at_s: float, num_requests: int, remark: str
) -> CalibrationFile:
    """Return the file that is written."""
    return CalibrationFile(
        date=datetime.fromtimestamp(measured_at_s, UTC).date().isoformat(),
        measured_at_s=measured_at_s,
        key=key_of(found.subject.request, found.subject.parallelism),
        constants=LearnedConstants.model_validate(found.fit.speed, from_attributes=True),
        requests=num_requests,
        steps=round(found.num_steps),
        points=found.points,
        observed=found.observed,
        remarks=(remark, *remarks_on(found)),
    )
