"""``tonnage calibrate``: a short load test of one live engine, and what it says of its speed."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click

from tonnage.cli.commands.options import (
    FILE,
    CatalogOptions,
    duration_option,
    format_option,
    option,
    takes,
)
from tonnage.cli.commands.trace_options import TraceOptions
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


def _ranks_option(name: str, help_text: str) -> Any:
    return option(
        name,
        type=click.IntRange(min=1, max=4096),
        default=1,
        help=help_text,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrateOptions:
    """What the command was given."""

    url: str | None = option("--url", help="Address of one vLLM server, such as http://vllm:8000.")
    results: tuple[str, ...] = option(
        "--result",
        multiple=True,
        metavar="FILE",
        help="Instead of --url: a result of 'vllm bench serve' (--save-result or --append-result), "
        "or a JSON report of GuideLLM. May be repeated.",
    )
    model: str = option("--model", required=True, help="Hugging Face id of the model.")
    served_model_name: str | None = option(
        "--served-model-name", help="Name that the server has for the model, if it is another."
    )
    gpu: str = option("--gpu", required=True, metavar="CLASS", help="GPU class of the catalogue.")
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
    engine_version: str | None = option(
        "--engine-version",
        help="Version of vLLM. Default: as the server says; required with --result.",
    )
    catalog: CatalogOptions
    form: str = format_option("text", "json", "yaml")
    target: Path | None = option(
        "--save", metavar="FILE", type=FILE, help="Write the calibration there."
    )
    max_concurrency: int | None = option(
        "--max-concurrency",
        type=click.IntRange(min=1, max=4096),
        help="Most requests at once. Default: --max-num-seqs, else 64.",
    )
    max_num_seqs: int | None = option(
        "--max-num-seqs",
        type=click.IntRange(min=1, max=65536),
        help="The flag that the server runs with, for the prediction of a replay.",
    )
    max_num_batched_tokens: int | None = option(
        "--max-num-batched-tokens",
        type=click.IntRange(min=16, max=2_000_000),
        help="The same. Default: the engine's for this GPU.",
    )
    max_seconds: float = option(
        "--max-seconds",
        type=click.FloatRange(min=1, max=86_400),
        default=300,
        help="Longest that the test may take, a replay included.",
    )
    max_ttft_s: float = duration_option(
        "--max-ttft",
        default="30s",
        help="Stop when a first token takes longer.",
    )
    may_share: bool = option("--yes", is_flag=True, help="Measure even while others are served.")
    api_key_file: Path | None = option(
        "--api-key-file", type=FILE, help="File with the key of the endpoint."
    )
    trace_file: Path | None = option(
        "--trace",
        type=FILE,
        metavar="FILE",
        help="Requests to replay: csv, csv.gz, jsonl or parquet with arrival_s, prompt_tokens, "
        "output_tokens.",
    )
    traces: TraceOptions
    ttft_limit_s: float | None = duration_option(
        "--ttft", help="SLO target at p95 of time to first token, as 2s."
    )
    tpot_limit_s: float | None = duration_option(
        "--tpot", help="SLO target at p95 of time per output token, as 50ms."
    )

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


@click.command(help=HELP)
@takes(CalibrateOptions)
def calibrate(*, options: CalibrateOptions) -> None:
    try:
        from tonnage.cli.commands.calibration_run import run  # noqa: PLC0415

        check_source(options)
        run(options)
    except KeyboardInterrupt:
        complain("interrupted; nothing was written")
        sys.exit(INTERRUPTED)
