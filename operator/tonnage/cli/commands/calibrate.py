"""``tonnage calibrate``: what runs of a load generator say of the speed of an engine."""

import shlex
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import click

from tonnage.api.hardware import MOST_GPUS
from tonnage.catalog.engine import batch_defaults
from tonnage.catalog.gpu import CatalogError
from tonnage.cli.commands.options import option, takes
from tonnage.cli.commands.output_files import single_model
from tonnage.cli.commands.plan import class_of
from tonnage.cli.commands.plan_options import PlanInputOptions, asking, beside, terms_of
from tonnage.cli.console import Failure, failing, remark
from tonnage.cli.read.bench_results import BenchmarkRun, read_runs
from tonnage.cli.read.references import parsed_model
from tonnage.cli.results.calibrating import Subject, calibration_of, headline, subject_of
from tonnage.cli.results.calibrating import calibrate as fit_runs
from tonnage.cli.results.planning import request_of
from tonnage.estimate.calibration_file import CalibrationFile, dump
from tonnage.sizing.errors import SizingError
from tonnage.sizing.provenance import Figure

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
    """What the command was given."""

    # fmt: off
    question: PlanInputOptions
    results: tuple[str, ...] = option("--result", multiple=True, metavar="FILE",
        help="File to read: a result of 'vllm bench serve' (--save-result or --append-result), or "
        "a JSON report of GuideLLM. May be repeated.")
    context: int = option("--context-parallel", type=click.IntRange(min=1, max=MOST_GPUS),
        default=1,
        help="Decode context parallel size of the engine.")
    # fmt: on


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
    file = _fitted(options, subject, _runs_in(options.results, subject))
    click.echo(dump(file))
    remark(f"{file.key}: {headline(file)}")
    for each in file.remarks:
        remark(f"Note: {each}")


def _subject(options: CalibrateOptions) -> Subject:
    """Return the engine that the options name.

    Raises:
        Failure: a name is unknown, no version is given, or the engine refuses the split.
    """
    question = options.question
    asked = asking(question, class_of(question), has_slo=False)
    resource = single_model(asked, question.names, command="calibrate")
    if Figure.ENGINE in resource.guessed:
        raise Failure("the version of vLLM is not given: --set engine.version=0.33")
    parsed = parsed_model(resource, asked)
    references = beside(question).references(parsed)
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
    """Return the runs of all files.

    Raises:
        Failure: a file is no result, or of another model, or there are none.
    """
    runs, model = [run for path in results for run in read_runs(path)], subject.request.shape.name
    for run in runs:
        if run.model not in {None, model}:
            raise Failure(f"--result {run.source}: of model {run.model}, not {model}")
    if not runs:
        raise Failure("--result: there are no runs in these files")
    return runs


def _fitted(
    options: CalibrateOptions, subject: Subject, runs: Sequence[BenchmarkRun]
) -> CalibrationFile:
    request = subject.request
    defaults = batch_defaults(request.gpu, request.engine.minor)
    batched = request.max_num_batched_tokens or defaults.max_num_batched_tokens
    with failing(SizingError):
        found = fit_runs(subject, runs, max_batched_tokens=batched)
    return calibration_of(
        found,
        measured_at_s=max((run.at_s for run in runs if run.at_s), default=time.time()),
        num_requests=sum(run.num_requests for run in runs),
        remark=f"from {', '.join(options.results)}; {UNSAID}",
    )
