"""``tonnage calibrate``: what runs of a load generator say of the speed of an engine."""

import math
import shlex
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click

from tonnage.catalog.engine import batch_defaults, parse_version
from tonnage.catalog.gpu import CatalogError
from tonnage.cli.answers.calibrating import calibrate as fit_runs
from tonnage.cli.answers.calibrating import calibration_of
from tonnage.cli.answers.subject import Subject, subject_of
from tonnage.cli.commands.forms import serialize
from tonnage.cli.commands.options import (
    FILE,
    CatalogOptions,
    format_option,
    option,
    takes,
)
from tonnage.cli.console import Failure, failing, output, remark, show
from tonnage.cli.read.bench_results import BenchmarkRun, read_runs
from tonnage.cli.read.calibration import check_target, write_calibration
from tonnage.cli.text.calibration import calibration
from tonnage.estimate.calibration_file import CalibrationFile, key_of
from tonnage.sizing.errors import SizingError
from tonnage.sizing.expected import GUESSED_OUTPUT_TOKENS, GUESSED_PROMPT_TOKENS
from tonnage.sizing.split import Parallelism

WEIGHTS: Final = (
    "auto", "bfloat16", "float16", "fp8", "int8", "int4", "mxfp4", "nvfp4",
)  # fmt: skip

HELP: Final = """Fit the speed of an engine to results of a load generator.

Reads runs that 'vllm bench serve' or GuideLLM made at a fixed concurrency or rate, and fits the
overheads, the bandwidth efficiency and the prefill efficiency of the step-time formula to them. The
result is a file for 'tonnage plan --calibration', and for the operator.

It sends nothing. Without --result it prints the commands to run: a concurrency of 1 and three
higher ones, with the lengths of your requests, and new prompts each time. Run them on one replica,
not through a router, and while nobody else uses it.

A result does not name the GPU class, the split, the formats or the version of vLLM: give --gpu,
--engine-version and what is not the default.

\b
Examples:
  tonnage calibrate --gpu H100 --engine-version 0.33 \\
      --model meta-llama/Llama-3.1-8B-Instruct --prompt 4000 --output 500
  tonnage calibrate --gpu H100 --engine-version 0.33 \\
      --model meta-llama/Llama-3.1-8B-Instruct \\
      --result bench.json --save calibration.json
  tonnage plan -f model.yaml --calibration calibration.json

Exit codes: 0 success; 3 invalid input; 1 unexpected error.
"""
CONCURRENCIES: Final = (1, 8, 32, 64)
FEWEST_PROMPTS: Final = 16
PROMPTS_EACH: Final = 8
"""Requests of a run, for each that runs at once: its first and last ones have less company."""
LEAST_CONTEXT: Final = 4096
UNSAID: Final = (
    "a result file says neither other traffic nor prompts from the prefix cache: none is assumed; "
    "times to first token include the network"
)


def _ranks_option(name: str, help_text: str) -> Any:
    return option(name, type=click.IntRange(min=1, max=4096), default=1, help=help_text)


def _tokens_option(name: str, default: int, help_text: str) -> Any:
    return option(
        name,
        type=click.IntRange(min=2, max=10_000_000),
        default=default,
        metavar="TOKENS",
        help=f"{help_text}, in the commands that are printed.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrateOptions:
    """What the command was given."""

    results: tuple[str, ...] = option(
        "--result",
        multiple=True,
        metavar="FILE",
        help="A result of 'vllm bench serve' (--save-result or --append-result), or a JSON report "
        "of GuideLLM. May be repeated.",
    )
    model: str = option("--model", required=True, help="Hugging Face id of the model.")
    gpu: str = option("--gpu", required=True, metavar="CLASS", help="GPU class of the catalogue.")
    engine_version: str = option("--engine-version", required=True, help="Version of vLLM.")
    tensor: int = _ranks_option("--tensor-parallel", "Tensor-parallel size of the server.")
    pipeline: int = _ranks_option("--pipeline-parallel", "Pipeline-parallel size.")
    data: int = _ranks_option("--data-parallel", "Data-parallel size.")
    context: int = _ranks_option("--context-parallel", "Decode context parallel size.")
    weights: str = option("--weights", type=click.Choice(WEIGHTS), default="auto")
    kv_cache: str = option(
        "--kv-cache",
        type=click.Choice(["auto", "bfloat16", "float16", "fp8"]),
        default="auto",
    )
    max_num_batched_tokens: int | None = option(
        "--max-num-batched-tokens",
        type=click.IntRange(min=16, max=2_000_000),
        help="The flag that the server runs with. Default: the engine's for this GPU.",
    )
    prompt_tokens: int = _tokens_option(
        "--prompt", GUESSED_PROMPT_TOKENS, "Demand: tokens of a prompt, in the mean"
    )
    output_tokens: int = _tokens_option(
        "--output", GUESSED_OUTPUT_TOKENS, "Demand: tokens of an answer, in the mean"
    )
    catalog: CatalogOptions
    form: str = format_option("text", "json", "yaml")
    target: Path | None = option(
        "--save", metavar="FILE", type=FILE, help="Write the calibration there."
    )

    def subject(self, context_tokens: int) -> Subject:
        """Return the engine that the options name.

        Raises:
            Failure: a name is unknown, or the engine refuses the split.
        """
        with failing(CatalogError):
            major, minor = parse_version(self.engine_version)
        changes = {
            "model.id": self.model,
            "model.weights": self.weights,
            "model.kvCache": self.kv_cache,
            "hardware.gpu": self.gpu,
            "engine.version": f"{major}.{minor}",
            "contextLength": context_tokens,
        }
        split = Parallelism(
            tensor=self.tensor, pipeline=self.pipeline, data=self.data, context=self.context
        )
        gpus, config = self.catalog.gpus(), self.catalog.config()
        return subject_of(tuple(changes.items()), split, gpus, config=config)


@click.command(help=HELP)
@takes(CalibrateOptions)
def calibrate(*, options: CalibrateOptions) -> None:
    if options.results:
        _fit(options)
    else:
        _propose(options)


def _propose(options: CalibrateOptions) -> None:
    """Print what to run.

    Raises:
        Failure: a name is unknown, or there is something to write without a result.
    """
    if options.target is not None:
        raise Failure("--save needs --result: without it the commands to run are printed")
    options.subject(max(LEAST_CONTEXT, options.prompt_tokens + options.output_tokens))
    commands = [*bench_commands(options.model, options.prompt_tokens, options.output_tokens)]
    click.echo("\n".join(commands) if options.form == "text" else serialize(commands, options.form))
    remark(
        "Nothing was measured. Run these beside the server (--base-url where it is elsewhere), "
        "then give bench.json with --result"
    )


def bench_commands(model: str, prompt_tokens: int, output_tokens: int) -> Iterator[str]:
    """Yield runs of ``vllm bench serve`` that append to one file.

    With another seed each run has other prompts, which no prefix cache has seen.
    """
    for concurrency in CONCURRENCIES:
        num_prompts = max(FEWEST_PROMPTS, PROMPTS_EACH * concurrency)
        yield (
            f"vllm bench serve --model {shlex.quote(model)} --dataset-name random "
            f"--random-input-len {prompt_tokens} --random-output-len {output_tokens} --ignore-eos "
            f"--max-concurrency {concurrency} --num-prompts {num_prompts} --seed {concurrency} "
            "--append-result --result-filename bench.json"
        )


def _fit(options: CalibrateOptions) -> None:
    """Fit, write and show.

    Raises:
        Failure: a file is no result, or of another model; nothing was written.
    """
    runs = _runs_in(options)
    longest = math.ceil(max(run.prompt_tokens + run.output_tokens for run in runs))
    subject = options.subject(max(LEAST_CONTEXT, longest))
    target = options.target
    if target is not None:
        check_target(target, key_of(subject.request, subject.parallelism))
    file = _file(options, subject, runs)
    if target is not None:
        write_calibration(target, file)
    if options.form == "text":
        show(output(is_wide=True), calibration(file, subject.request.speed))
    else:
        click.echo(serialize(file.to_dict(), options.form))
    remark(
        "No file was named with --save: nothing was written"
        if target is None
        else f"Wrote {target}"
    )


def _runs_in(options: CalibrateOptions) -> list[BenchmarkRun]:
    """Return the runs of all files.

    Raises:
        Failure: a file is no result, or of another model, or there are none.
    """
    runs = [run for path in options.results for run in read_runs(path)]
    for run in runs:
        if run.model not in {None, options.model}:
            raise Failure(f"--result {run.source}: of model {run.model}, not {options.model}")
    if not runs:
        raise Failure("--result: there are no runs in these files")
    return runs


def _file(
    options: CalibrateOptions, subject: Subject, runs: Sequence[BenchmarkRun]
) -> CalibrationFile:
    request = subject.request
    defaults = batch_defaults(request.gpu, request.engine.minor)
    batched = options.max_num_batched_tokens or defaults.max_num_batched_tokens
    with failing(SizingError):
        found = fit_runs(subject, runs, max_batched_tokens=batched)
    return calibration_of(
        found,
        measured_at_s=max((run.at_s for run in runs if run.at_s), default=time.time()),
        num_requests=sum(run.num_requests for run in runs),
        remark=f"from {', '.join(options.results)}; {UNSAID}",
    )
