"""``tonnage calibrate``: a short load test of one live engine, and what it says of its speed."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click

from tonnage.cli.commands.options import (
    duration_option,
    format_option,
    gpus_option,
    model_config_option,
)
from tonnage.cli.console import INTERRUPTED, Failure, complain
from tonnage.sizing.split import Parallelism

WEIGHTS: Final = (
    "auto", "bfloat16", "float16", "fp8", "int8", "int4", "mxfp4", "nvfp4",
)  # fmt: skip

HELP: Final = """Measure the speed of a live vLLM server with a short load test.

Sends random prompts, first one by one, then in growing batches, and fits the overheads, the
bandwidth efficiency and the prefill efficiency of the step-time formula to what comes back. Measure
one replica, not a router, and while nobody else uses it. The result is a file for 'tonnage plan
--calibration'. With --trace, then replays your own traffic and compares the latencies with the SLO
and with the prediction.

With --result nothing is sent: the constants are fitted to runs that 'vllm bench serve' or GuideLLM
made before, at a fixed concurrency or rate. Such a file does not name the GPU class, the split, the
formats or the version of vLLM: give --gpu, --engine-version and what is not the default. Run with a
concurrency of 1 and with two higher ones, without a prefix cache.

Nothing is written when the test is refused or stopped: others are being served (--yes measures all
the same), another model, several replicas, more than 5 % of the prompts from the prefix cache, more
than 2 % errors, --max-ttft, --max-seconds, Ctrl-C.

The API key is read from --api-key-file, or from the environment: TONNAGE_API_KEY or OPENAI_API_KEY.

\b
Examples:
  tonnage calibrate --url http://vllm:8000 --gpu H100 \\
      --model meta-llama/Llama-3.1-8B-Instruct --save calibration.json
  tonnage calibrate --url http://vllm:8000 --gpu H200 --tensor-parallel 2 \\
      --model my/model --model-config config.json --save calibration.json
  tonnage calibrate --url http://vllm:8000 --gpu H100 --model my/model \\
      --trace lengths.csv --ttft 2s --tpot 50ms --max-num-seqs 64 \\
      --max-seconds 900 --save calibration.json
  tonnage calibrate --result bench.json --gpu H100 --engine-version 0.33 \\
      --model meta-llama/Llama-3.1-8B-Instruct --save calibration.json
  tonnage plan -f model.yaml --calibration calibration.json

Exit codes: 0 measured; 2 stopped; 3 refused, or the input is invalid; 130 Ctrl-C; 1 unexpected
error.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrateOptions:
    """What the command was given."""

    url: str | None
    results: tuple[str, ...]
    model: str
    served_model_name: str | None
    gpu: str
    weights: str
    kv_cache: str
    tensor: int
    pipeline: int
    data: int
    context: int
    engine_version: str | None
    gpus_folder: Path | None
    config_file: str | None
    form: str
    target: Path | None
    max_concurrency: int | None
    max_num_seqs: int | None
    max_num_batched_tokens: int | None
    max_seconds: float
    max_ttft_s: float
    may_share: bool
    api_key_file: Path | None
    trace_file: Path | None
    ttft_limit_s: float | None
    tpot_limit_s: float | None

    @property
    def parallelism(self) -> Parallelism:
        return Parallelism(
            tensor=self.tensor, pipeline=self.pipeline, data=self.data, context=self.context
        )


SERVER_OPTIONS: Final = {
    "trace_file": "--trace",
    "api_key_file": "--api-key-file",
    "served_model_name": "--served-model-name",
    "may_share": "--yes",
    "max_concurrency": "--max-concurrency",
    "max_num_seqs": "--max-num-seqs",
}
"""Options that a load test needs, by their field."""


def check_source(options: CalibrateOptions) -> None:
    """Refuse what does not go together.

    Raises:
        Failure: neither --url nor --result is given, or both, or an option of the other one.
    """
    if (options.url is None) == (not options.results):
        raise Failure("give either --url or --result")
    if options.results:
        given = [name for field, name in SERVER_OPTIONS.items() if getattr(options, field)]
        if given:
            raise Failure(f"{', '.join(given)} needs --url: with --result nothing is sent")
        if options.engine_version is None:
            raise Failure("--result does not name the version of vLLM: give --engine-version")


def _split_option(name: str, destination: str, help_text: str) -> Callable[..., Any]:
    return click.option(
        f"--{name}",
        destination,
        type=click.IntRange(min=1, max=4096),
        default=1,
        show_default=True,
        help=help_text,
    )


@click.command(help=HELP)
@click.option("--url", help="Address of one vLLM server, such as http://vllm:8000.")
@click.option(
    "--result",
    "results",
    multiple=True,
    metavar="FILE",
    help="Instead of --url: a result of 'vllm bench serve' (--save-result or --append-result), or "
    "a JSON report of GuideLLM. May be repeated.",
)
@click.option("--model", required=True, help="Hugging Face id of the model.")
@click.option(
    "--served-model-name", help="Name that the server has for the model, if it is another."
)
@click.option("--gpu", required=True, metavar="CLASS", help="GPU class of the catalogue.")
@_split_option("tensor-parallel", "tensor", "Tensor-parallel size of the server.")
@_split_option("pipeline-parallel", "pipeline", "Pipeline-parallel size.")
@_split_option("data-parallel", "data", "Data-parallel size.")
@_split_option("context-parallel", "context", "Decode context parallel size.")
@click.option("--weights", type=click.Choice(WEIGHTS), default="auto", show_default=True)
@click.option(
    "--kv-cache",
    type=click.Choice(["auto", "bfloat16", "float16", "fp8"]),
    default="auto",
    show_default=True,
)
@click.option(
    "--engine-version", help="Version of vLLM. Default: as the server says; required with --result."
)
@gpus_option
@model_config_option
@format_option("text", "json", "yaml")
@click.option(
    "--save",
    "target",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Write the calibration there.",
)
@click.option(
    "--max-concurrency",
    type=click.IntRange(min=1, max=4096),
    help="Most requests at once. Default: --max-num-seqs, else 64.",
)
@click.option(
    "--max-num-seqs",
    type=click.IntRange(min=1, max=65536),
    help="The flag that the server runs with, for the prediction of a replay.",
)
@click.option(
    "--max-num-batched-tokens",
    type=click.IntRange(min=16, max=2_000_000),
    help="The same. Default: the engine's for this GPU.",
)
@click.option(
    "--max-seconds",
    type=click.FloatRange(min=1, max=86_400),
    default=300,
    show_default=True,
    help="Longest that the test may take, a replay included.",
)
@duration_option("--max-ttft", "max_ttft_s", "Stop when a first token takes longer.", "30s")
@click.option("--yes", "may_share", is_flag=True, help="Measure even while others are served.")
@click.option(
    "--api-key-file", type=click.Path(path_type=Path), help="File with the key of the endpoint."
)
@click.option(
    "--trace",
    "trace_file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Requests to replay: csv, csv.gz, jsonl or parquet with arrival_s, prompt_tokens, "
    "output_tokens.",
)
@duration_option("--ttft", "ttft_limit_s", "SLO target at p95 of time to first token, as 2s.")
@duration_option("--tpot", "tpot_limit_s", "SLO target at p95 of time per output token, as 50ms.")
def calibrate(**given: Any) -> None:
    options = CalibrateOptions(**given)
    try:
        from tonnage.cli.commands.calibration_run import run  # noqa: PLC0415

        check_source(options)
        run(options)
    except KeyboardInterrupt:
        complain("interrupted; nothing was written")
        sys.exit(INTERRUPTED)
