"""``tonnage calibrate``: what runs of a load generator say of the speed of an engine."""

import shlex
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from statistics import median
from typing import Final, Literal

import click

from tonnage.api.hardware import MOST_GPUS
from tonnage.catalog.engine import batch_defaults
from tonnage.catalog.gpu import CatalogError
from tonnage.cli.commands.options import option, takes
from tonnage.cli.commands.output_files import single_model
from tonnage.cli.commands.plan_options import PlanInputOptions, asking, beside, class_of, terms_of
from tonnage.cli.console import Failure, failing, remark
from tonnage.cli.read.bench_results import BenchmarkRun, read_runs
from tonnage.cli.read.references import parsed_model
from tonnage.cli.results.planning import request_of
from tonnage.estimate.calibration_file import (
    CalibrationFile,
    LearnedConstants,
    MeasuredPoint,
    ObservedUtilization,
    dump,
    key_of,
)
from tonnage.estimate.fit import SpeedFit, TimedStep, errors, fit_speed
from tonnage.estimate.learner import constants_of
from tonnage.sizing.errors import SizingError
from tonnage.sizing.parallelism.draft import rank_of
from tonnage.sizing.parallelism.rules import check_parallelism
from tonnage.sizing.plan import IDLE
from tonnage.sizing.provenance import Figure
from tonnage.sizing.request import SizingRequest
from tonnage.sizing.serving.replica import mixed_step, with_chunks
from tonnage.sizing.split import Parallelism
from tonnage.sizing.step_time.model import StepTimeModel
from tonnage.sizing.step_time.speeds import observed_mbu_fraction, speeds
from tonnage.sizing.step_time.step import Step
from tonnage.sizing.workload import Lengths, Workload
from tonnage.units import count_of, significant

HELP: Final = """Fit the speed of an engine to results of a load generator.

Reads runs that 'vllm bench serve' or GuideLLM made at a fixed concurrency or rate, and fits the
overheads, the bandwidth efficiency and the prefill efficiency of the step-time formula to them.
Prints a file for 'tonnage plan --calibration', and for the operator.

It sends nothing. Without --result it prints the commands to run: a concurrency of 1 and three
higher ones, with the lengths of your requests, and new prompts each time. Run them on one replica,
not through a router, and without other traffic.

Takes the options of plan, since a result does not name the GPU class, the parallelism, the formats
or the version of vLLM. A parallelism size that is not given is 1.

\b
Examples:
  tonnage calibrate --gpu H100 --set engine.version=0.33 \\
      --model meta-llama/Llama-3.1-8B-Instruct --prompt 4000 --output 500
  tonnage calibrate -f model.yaml --set hardware.parallelism.tensor=2 \\
      --result bench.json > calibration.json
  tonnage plan -f model.yaml --calibration calibration.json

Exit codes: 0 success; 3 invalid input; 1 unexpected error.
"""
MUCH_LEFT: Final = 0.05
"""Of a step's time, that a fit may leave in the median before that is said."""
CONCURRENCIES: Final = (1, 8, 32, 64)
FEWEST_PROMPTS: Final = 16
PROMPTS_EACH: Final = 8
"""Requests of a run, for each that runs at once: its first and last ones have less company."""
UNSAID: Final = (
    "a result file says neither other traffic nor prompts from the prefix cache: none is assumed; "
    "times to first token include the network"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrateOptions:
    # fmt: off
    question: PlanInputOptions
    results: tuple[str, ...] = option("--result", multiple=True, metavar="FILE",
        help="File to read: a result of 'vllm bench serve' (--save-result or --append-result), or "
        "a JSON report of GuideLLM. May be repeated.")
    context: int = option("--context-parallel", type=click.IntRange(min=1, max=MOST_GPUS),
        default=1,
        help="Decode context parallel size of the engine.")
    # fmt: on


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


def calibrated(
    subject: Subject, runs: Sequence[BenchmarkRun], *, max_batched_tokens: int, source: str
) -> CalibrationFile:
    """Fit the constants to runs of a load generator, whose steps are known in the mean.

    A run with one request at a time also times a prompt alone, where that fits into one step.
    """
    loads = [load for run in runs for load in _points_of_run(subject, run, max_batched_tokens)]
    steps = (run.num_requests * run.output_tokens / max(1.0, run.num_decoding) for run in runs)
    model, timed = subject.model, [step for *_, step in loads]
    fit = fit_speed(model, timed)
    fitted = replace(model, constants=constants_of(fit.speed, model.constants))
    off = zip(loads, errors(model, timed), errors(fitted, timed), strict=True)
    measured_at_s = max((run.at_s for run in runs if run.at_s), default=time.time())
    file = CalibrationFile(
        date=datetime.fromtimestamp(measured_at_s, UTC).date().isoformat(),
        measured_at_s=measured_at_s,
        key=key_of(subject.request, subject.parallelism),
        constants=LearnedConstants.model_validate(fit.speed, from_attributes=True),
        requests=sum(run.num_requests for run in runs),
        steps=round(max(1.0, sum(steps))),
        points=tuple(
            MeasuredPoint(
                kind=kind,
                sequences=round(number),
                prompt_tokens=prompt,
                seconds=step.step_s,
                prior_error_fraction=prior,
                error_fraction=residual,
            )
            for (kind, number, prompt, step), prior, residual in off
        ),
        observed=_peak_utilization(model, loads),
    )
    remarks = (f"from {source}; {UNSAID}", *remarks_on(file, fit, subject))
    return file.model_copy(update={"remarks": remarks})


_Point = tuple[Literal["prefill", "decode"], float, int, TimedStep]
"""What is timed of how many sequences with prompts of which length, and its step."""


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
        work = mixed_step(workload, number, prefill, chunk_tokens=chunk)
        each = max(1.0, run.prompt_tokens / max_batched_tokens)
        work = with_chunks(work, subject.parallelism, chunks_of_prompt=each)
        timed = TimedStep(work=work, step_s=run.tpot_s)
        yield "decode", number, prompt, timed
        return
    timed = TimedStep(work=mixed_step(workload, 1.0, 0.0), step_s=run.tpot_s)
    yield "decode", 1, prompt, timed
    if prompt <= max_batched_tokens:
        work = Step(
            num_sequences=IDLE,
            context_tokens=0,
            prefill_tokens=prompt,
            prefill_context_tokens=prompt / 2,
            prefill_ranks=1,
            prefill_microbatches=1,
        )
        timed = TimedStep(work=work, step_s=run.ttft_s)
        yield "prefill", 1, prompt, timed


def _peak_utilization(model: StepTimeModel, points: Sequence[_Point]) -> ObservedUtilization:
    """Return the most that any point used of the nominal figures, per rank."""
    stages = model.shard.parallelism.pipeline
    mbu, mfu = [], []
    for kind, _, _, timed in points:
        time, step_s = model.step(timed.work), timed.step_s
        flop = time.decode_flop
        if kind == "decode":
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


def remarks_on(found: CalibrationFile, fit: SpeedFit, subject: Subject) -> Iterable[str]:
    for name in fit.at_bounds:
        yield (
            f"the {name} is at the end of its range: another GPU class or split than "
            f"{subject.request.gpu.name} {subject.parallelism}?"
        )
    if fit.unmoved:
        points = count_of(len(found.points), "point")
        yield (
            f"{points}, so {' and '.join(fit.unmoved)} stay as believed, with their doubt, and the "
            "error after is of no other load: measure more concurrencies"
        )
    residual = typical_error(found.points, "decode", is_prior=False)
    if residual > MUCH_LEFT:
        yield (
            f"batches are still {residual:.0%} off in the median: three constants do not express "
            "this engine, or something disturbed it: measure again"
        )
    for name, share in (("MBU", found.observed.mbu_fraction), ("MFU", found.observed.mfu_fraction)):
        if share is not None and share > 1:
            yield f"observed {name} is {share:.0%}: no such GPU is so fast"


@click.command(help=HELP)
@takes(CalibrateOptions)
def calibrate(*, options: CalibrateOptions) -> None:
    subject = _subject(options)
    if not options.results:
        click.echo("\n".join(bench_commands(subject)))
        remark(
            "Nothing was measured. Run these beside the server (--base-url where it is elsewhere), "
            "then give bench.json with --result"
        )
        return
    request, runs = subject.request, _runs_in(options.results, subject)
    defaults = batch_defaults(request.gpu, request.engine.minor)
    batched = request.max_num_batched_tokens or defaults.max_num_batched_tokens
    source = ", ".join(options.results)
    with failing(SizingError):
        file = calibrated(subject, runs, max_batched_tokens=batched, source=source)
    click.echo(dump(file))
    remark(f"{file.key}: {headline(file)}")
    for each in file.remarks:
        remark(f"Note: {each}")


def _subject(options: CalibrateOptions) -> Subject:
    question = options.question
    asked = asking(question, class_of(question), has_slo=False)
    resource = single_model(asked, question.names, command="calibrate")
    if Figure.ENGINE in resource.guessed:
        raise Failure("the version of vLLM is not given: --set engine.version=0.33")
    parsed = parsed_model(resource, asked)
    references = beside(question).of(parsed)
    with failing(CatalogError, SizingError):
        request = request_of(parsed.model.spec, terms_of(question), references)
        return subject_of(request, context=options.context)


def bench_commands(subject: Subject) -> Iterator[str]:
    """Yield runs of ``vllm bench serve`` that append to one file.

    With another seed each run has other prompts, which no prefix cache has seen.
    """
    workload = subject.request.workload
    lengths = (
        f"--random-input-len {workload.prompt.mean_tokens:.0f} "
        f"--random-output-len {workload.output_tokens:.0f}"
    )
    for concurrency in CONCURRENCIES:
        num_prompts = max(FEWEST_PROMPTS, PROMPTS_EACH * concurrency)
        yield (
            f"vllm bench serve --model {shlex.quote(subject.request.shape.name)} "
            f"--dataset-name random {lengths} --ignore-eos "
            f"--max-concurrency {concurrency} --num-prompts {num_prompts} --seed {concurrency} "
            "--append-result --result-filename bench.json"
        )


def _runs_in(results: Sequence[str], subject: Subject) -> list[BenchmarkRun]:
    runs, model = [run for path in results for run in read_runs(path)], subject.request.shape.name
    for run in runs:
        if run.model not in {None, model}:
            raise Failure(f"--result {run.source}: of model {run.model}, not {model}")
    if not runs:
        raise Failure("--result: there are no runs in these files")
    return runs
