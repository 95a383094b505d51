"""Result files of load generators: the runs of ``vllm bench serve`` and of GuideLLM.

Field names are those of vLLM's ``benchmarks/serve.py`` (0.10 to 0.33) and of GuideLLM's
``GenerativeBenchmarksReport`` (0.3 to 0.8), whose summaries kept theirs while the rest moved.
"""

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from io import StringIO
from typing import Final

from tonnage.cli.console import ManifestError, failing
from tonnage.cli.read.manifest import Object, block, read_text
from tonnage.units import MIB, MILLION, MS_PER_S, count_of

MAX_BYTES: Final = 128 * MIB
"""A report of GuideLLM holds every request with its text: tens of MiB."""
MOST_VALUES: Final = 5 * MILLION
"""As many as 10,000 requests with the time of each of 500 tokens; an empty object in a list has 3
bytes in a file, and takes 72 of memory."""
MOST_ERRORS: Final = 0.02
FEWEST_TOKENS: Final = 2
"""Of an answer: its first token tells nothing of steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchmarkRun:
    """One run of a load generator, by the means over its requests."""

    source: str
    model: str | None
    """As the file names it; None: it does not."""
    num_requests: int
    is_alone: bool
    """One request at a time."""
    prompt_tokens: float
    output_tokens: float
    output_second_moment: float
    requests_per_s: float
    ttft_s: float
    """In the median."""
    tpot_s: float
    at_s: float | None
    """When it was made; None: the file does not say."""

    @property
    def num_decoding(self) -> float:
        """Return the sequences that decode, in the mean of the run, by Little's law."""
        return self.requests_per_s * (self.output_tokens - 1) * self.tpot_s


def read_runs(path: str) -> list[BenchmarkRun]:
    """Return the runs of a result file, of whichever program wrote it.

    Raises:
        Failure: the file is no such result, or a run in it tells nothing of steps; with the field.
    """
    with failing(ManifestError, where="--result "):
        return [run for where, content in _objects(path) for run in _runs(content, where)]


def _objects(path: str) -> Iterator[tuple[str, Object]]:
    """Yield the object of a file, or those of its lines, as ``--append-result`` writes them."""
    text = read_text(path, max_bytes=MAX_BYTES)
    num_values = sum(map(text.count, ",[{"))
    if num_values > MOST_VALUES:
        message = f"{num_values:,} values, more than {MOST_VALUES:,}: leave out single requests"
        raise ManifestError(f"{path}: {message} (--save-detailed)")
    try:
        found = iter([(path, json.loads(text))])
    except (ValueError, RecursionError):
        lines = ((f"{path}:{number}", line) for number, line in enumerate(StringIO(text), 1))
        found = ((where, _parse_json(line, where)) for where, line in lines if line.strip())
    for where, content in found:
        if not isinstance(content, Mapping):
            raise ManifestError(f"{where}: no JSON object")
        yield where, content


def _parse_json(line: str, where: str) -> object:
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ManifestError(f"{where}: no JSON: {error}") from error


def _runs(content: Object, where: str) -> Iterator[BenchmarkRun]:
    benchmarks = content.get("benchmarks")
    if isinstance(benchmarks, list):
        for number, each in enumerate(benchmarks, 1):
            yield _of_guidellm(each, f"{where}: benchmark {number}")
    elif "request_throughput" in content:
        yield _of_vllm(content, where)
    else:
        raise ManifestError(
            f"{where}: neither a result of 'vllm bench serve' (request_throughput) nor a report of "
            "GuideLLM (benchmarks)"
        )


def _of_vllm(content: Object, where: str) -> BenchmarkRun:
    concurrency, rate = content.get("max_concurrency"), content.get("request_rate")
    if concurrency is None and rate in {"inf", None}:
        raise ManifestError(
            f"{where}: request_rate is inf without max_concurrency: all requests at once are no "
            "steady load; run it with --max-concurrency"
        )
    if content.get("spec_decode_num_drafts"):
        raise ManifestError(f"{where}: the engine drafted tokens (spec_decode_num_drafts)")
    completed = _figure(content, "completed", where)
    _check_errors(completed, content.get("failed") or 0, where)
    outputs = _figure(content, "total_output_tokens", where) / completed
    return _check_run(
        BenchmarkRun(
            source=where,
            model=_text(content, "model_id"),
            num_requests=round(completed),
            is_alone=concurrency == 1,
            prompt_tokens=_figure(content, "total_input_tokens", where) / completed,
            output_tokens=outputs,
            output_second_moment=_second_moment(content.get("output_lens"), outputs),
            requests_per_s=_figure(content, "request_throughput", where),
            ttft_s=_figure(content, "median_ttft_ms", where) / MS_PER_S,
            tpot_s=_figure(content, "mean_tpot_ms", where) / MS_PER_S,
            at_s=_second_of(_text(content, "date")),
        )
    )


def _second_moment(lengths: object, mean: float) -> float:
    """Return that of the answers (``--save-detailed``), else as if all had the same length."""
    found = [each for each in lengths if each] if isinstance(lengths, list) else []
    return sum(each**2 for each in found) / len(found) if found else mean**2


def _second_of(date: str | None) -> float | None:
    """Return the second of a date as vLLM writes it, in the time zone of this machine."""
    try:
        return datetime.strptime(date or "", "%Y%m%d-%H%M%S").astimezone().timestamp()
    except ValueError:
        return None


def _of_guidellm(content: object, where: str) -> BenchmarkRun:
    metrics = block(content, "metrics")
    config = block(content, "config") or block(content, "args")  # args: 0.3
    strategy = block(config, "strategy")
    kind = strategy.get("type_")
    if kind == "throughput":
        raise ManifestError(
            f"{where}: strategy throughput sends all requests at once, which is no steady load; "
            "run it with concurrent, or leave this benchmark out"
        )
    totals = block(metrics, "request_totals") or block(content, "request_totals")  # 0.3
    completed = _figure(totals, "successful", where)
    _check_errors(completed, totals.get("errored") or 0, where)

    def summary(name: str, figure: str = "mean") -> float:
        found = block(metrics, name, "successful")
        return _figure(found, figure, f"{where}: metrics.{name}.successful")

    outputs = summary("output_token_count")
    spread = block(metrics, "output_token_count", "successful").get("std_dev") or 0.0
    return _check_run(
        BenchmarkRun(
            source=where,
            model=_text(block(config, "backend"), "model")
            or _text(block(content, "worker"), "backend_model"),  # 0.3
            num_requests=round(completed),
            is_alone=kind == "synchronous" or strategy.get("streams") == 1,
            prompt_tokens=summary("prompt_token_count"),
            output_tokens=outputs,
            output_second_moment=outputs**2 + spread**2,
            requests_per_s=summary("requests_per_second"),
            ttft_s=summary("time_to_first_token_ms", "median") / MS_PER_S,
            tpot_s=summary("inter_token_latency_ms") / MS_PER_S,
            at_s=block(content).get("end_time"),
        )
    )


def _check_run(run: BenchmarkRun) -> BenchmarkRun:
    if run.output_tokens < FEWEST_TOKENS:
        raise ManifestError(
            f"{run.source}: outputs of {run.output_tokens:.1f} tokens on average are too short: "
            f"{FEWEST_TOKENS} at least"
        )
    return run


def _check_errors(completed: float, failed: float, where: str) -> None:
    if failed > MOST_ERRORS * (completed + failed):
        raise ManifestError(
            f"{where}: {failed:.0f} of {count_of(f'{completed + failed:.0f}', 'request')} failed, "
            f"more than {MOST_ERRORS:.0%}"
        )


def _figure(content: Object, name: str, where: str) -> float:
    value = content.get(name)
    if isinstance(value, int | float) and 0 < value < math.inf:
        return float(value)
    raise ManifestError(f"{where}: {name} is missing, or no positive number")


def _text(content: Object, name: str) -> str | None:
    value = content.get(name)
    return value if isinstance(value, str) and value not in {"", "None"} else None
