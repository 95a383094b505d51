"""An engine model against a request log: recorded arrivals and lengths, replayed.

    python tests/bench/replay_recording.py requests.jsonl --max-num-seqs 8 --blocks 512 \\
        --block-tokens 128

The log has a line for each request with ``arrival_s``, ``prompt_tokens``, ``output_tokens``, and
the ``ttft_s`` and ``e2e_s`` that its client saw. Five constants of a step are fitted on the
requests that arrived in one half of the time, and tested on those of the other half, then the
other way round; every replay serves all requests from the first on. So what is tested is the
schedule: who waits how long, and who shares a step with whom.

A machine that others use too is not always as fast: the ratio of measured to predicted TPOT by
time shows where, and ``--without 105:132`` leaves out the requests that arrived then.
"""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass, fields, replace
from functools import cached_property, partial
from pathlib import Path
from statistics import mean, median

import click
import numpy as np
from scipy.optimize import minimize

from reference_engine import BlockTable, EngineGroup, EngineLimits, Request, Served, simulate
from reference_fast import FastServer, Floats, step_s

QUANTILES = (0.5, 0.9, 0.95, 0.99)
LATENCIES = ("ttft_s", "tpot_s", "e2e_s")
ROUNDS = 3
EVALUATIONS = 400
WINDOW_S = 10.0
LEAST_S = 1e-4
"""Added to both before their logarithms are compared: a client's clock is no better."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """One request, as its client saw it."""

    request: Request
    ttft_s: float
    e2e_s: float

    @property
    def tpot_s(self) -> float | None:
        later = self.request.output_tokens - 1
        return (self.e2e_s - self.ttft_s) / later if later else None


@dataclass(frozen=True, kw_only=True)
class StepConstants:
    """What a step takes, in seconds."""

    per_step_s: float = 0.01
    per_sequence_s: float = 0.002
    per_context_token_s: float = 1e-6
    per_prefill_token_s: float = 5e-4
    per_request_s: float = 0.005
    """Between client and engine, before the first token."""


@dataclass(frozen=True, eq=False)
class Line:
    """A step that is a line in all that it works on."""

    constants: StepConstants
    longest: int

    def decode_s(self, num_decoding: int) -> float:
        return self.constants.per_step_s + self.constants.per_sequence_s * num_decoding

    def mixed_s(self, num_decoding: int, prefill_tokens: int, own_tokens: int) -> float:
        prefill_s = self.constants.per_prefill_token_s * prefill_tokens
        return self.decode_s(num_decoding) + prefill_s

    @cached_property
    def attention_s(self) -> Floats:
        return self.constants.per_context_token_s * np.arange(self.longest + 2.0)

    @cached_property
    def prompt_attention_s(self) -> Floats:
        return np.zeros(self.longest + 2)


Replay = Callable[[EngineLimits, StepConstants, Sequence[Request]], Sequence[Served]]
"""An engine model: it serves requests in order of arrival, and returns what their clients saw."""


def by_fast_reference(
    limits: EngineLimits, constants: StepConstants, arrivals: Sequence[Request]
) -> Sequence[Served]:
    server = FastServer(limits, Line(constants, limits.max_model_len))
    for request in arrivals:
        server.submit(request)
    server.advance(math.inf)
    return server.completed


def by_reference(
    limits: EngineLimits, constants: StepConstants, arrivals: Sequence[Request]
) -> Sequence[Served]:
    line = Line(constants, limits.max_model_len)
    return simulate(EngineGroup(limits, partial(step_s, line)), arrivals)


ENGINES: dict[str, Replay] = {"fast-reference": by_fast_reference, "reference": by_reference}


def read_log(path: Path) -> list[Recorded]:
    """Return the requests of a log in order of arrival."""
    lines = sorted(
        (json.loads(line) for line in path.read_text().splitlines() if line.strip()),
        key=lambda line: line["arrival_s"],
    )
    return [
        Recorded(
            request=Request(
                number=number,
                prompt_tokens=line["prompt_tokens"],
                output_tokens=line["output_tokens"],
                arrival_s=line["arrival_s"],
            ),
            ttft_s=line["ttft_s"],
            e2e_s=line["e2e_s"],
        )
        for number, line in enumerate(lines)
    ]


@dataclass(frozen=True, kw_only=True)
class Bench:
    """A log, and an engine to replay it."""

    found: Sequence[Recorded]
    limits: EngineLimits
    replay: Replay

    def predicted(self, constants: StepConstants) -> list[Recorded]:
        """Return what the clients would have seen, in the order of the log."""
        arrivals = [each.request for each in self.found]
        served = self.replay(self.limits, constants, arrivals)
        by_number = {each.request.number: each for each in served}
        outside_s = constants.per_request_s
        return [
            replace(
                each,
                ttft_s=by_number[number].ttft_s + outside_s,
                e2e_s=by_number[number].e2e_s + outside_s,
            )
            for number, each in enumerate(self.found)
        ]

    def fitted(self, part: Sequence[int]) -> StepConstants:
        """Return the constants that bring TTFT and the time of a whole answer nearest."""
        names = [each.name for each in fields(StepConstants)]

        def constants_at(logarithms: Sequence[float]) -> StepConstants:
            values = (math.exp(each) for each in logarithms)
            return StepConstants(**dict(zip(names, values, strict=True)))

        def distance(logarithms: Sequence[float]) -> float:
            predicted = self.predicted(constants_at(logarithms))
            return mean(
                abs(_off(getattr(predicted[number], name), getattr(self.found[number], name)))
                for number in part
                for name in ("ttft_s", "e2e_s")
            )

        at = [math.log(value) for value in astuple(StepConstants())]
        for _ in range(ROUNDS):
            at = minimize(
                distance, at, method="Nelder-Mead", options={"maxfev": EVALUATIONS, "xatol": 1e-3}
            ).x
        return constants_at(at)

    def halves(self, without: tuple[float, float]) -> tuple[list[int], list[int]]:
        """Return the requests of the first half of the time, and of the second."""
        at_s = [each.request.arrival_s for each in self.found]
        middle_s = at_s[-1] / 2
        numbers = [
            number for number, each in enumerate(at_s) if not without[0] <= each < without[1]
        ]
        first = [number for number in numbers if at_s[number] < middle_s]
        return first, numbers[len(first) :]


def _off(value_s: float, measured_s: float) -> float:
    return math.log((value_s + LEAST_S) / (measured_s + LEAST_S))


def compared(
    measured: Sequence[Recorded], predicted: Sequence[Recorded], part: Sequence[int]
) -> list[str]:
    """Return a line for each latency: percentiles measured and predicted, and the median error."""
    lines = []
    for name in LATENCIES:
        pairs = [
            (one, other)
            for number in part
            if (one := getattr(measured[number], name)) is not None
            and (other := getattr(predicted[number], name)) is not None
        ]
        real, model = np.array(pairs).T
        cells = [
            f"p{100 * quantile:.0f} {np.quantile(real, quantile):.4f} "
            f"{np.quantile(model, quantile):.4f} "
            f"({np.quantile(model, quantile) / np.quantile(real, quantile) - 1:+.1%})"
            for quantile in QUANTILES
        ]
        each = median(abs(math.expm1(_off(other, one))) for one, other in pairs)
        lines.append(f"  {name:7} {'  '.join(cells)}  each request: median {each:.1%}")
    return lines


def by_time(measured: Sequence[Recorded], predicted: Sequence[Recorded]) -> str:
    """Return the median of measured over predicted TPOT, by when requests arrived."""
    ratios: dict[float, list[float]] = {}
    for one, other in zip(measured, predicted, strict=True):
        if one.tpot_s is not None and other.tpot_s is not None:
            start_s = WINDOW_S * (one.request.arrival_s // WINDOW_S)
            ratios.setdefault(start_s, []).append(one.tpot_s / other.tpot_s)
    return ", ".join(f"{start_s:g} s {median(each):.2f}" for start_s, each in ratios.items())


def _interval(_: click.Context, __: click.Parameter, value: str) -> tuple[float, float]:
    start, _, end = value.partition(":")
    return float(start), float(end)


@click.command()
@click.argument("log", type=click.Path(exists=True, path_type=Path))
@click.option("--engine", type=click.Choice(list(ENGINES)), default="fast-reference")
@click.option("--max-num-seqs", type=int, required=True)
@click.option("--blocks", type=int, required=True, help="KV blocks that the engine reported.")
@click.option("--block-tokens", type=int, default=16, show_default=True)
@click.option("--max-num-batched-tokens", type=int, default=2048, show_default=True)
@click.option("--max-model-len", type=int, default=4096, show_default=True)
@click.option("--without", callback=_interval, default="0:0", help="Arrivals, FROM:TO in seconds.")
def main(  # noqa: PLR0913
    *,
    log: Path,
    engine: str,
    max_num_seqs: int,
    blocks: int,
    block_tokens: int,
    max_num_batched_tokens: int,
    max_model_len: int,
    without: tuple[float, float],
) -> None:
    """Fit on one half of a log, test on the other, and the other way round."""
    limits = EngineLimits(
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        num_blocks=blocks,
        max_model_len=max_model_len,
        tables=(BlockTable(block_tokens=block_tokens),),
    )
    bench = Bench(found=read_log(log), limits=limits, replay=ENGINES[engine])
    first, second = bench.halves(without)
    for name, fit, test in (("first", first, second), ("second", second, first)):
        constants = bench.fitted(fit)
        predicted = bench.predicted(constants)
        words = ", ".join(f"{each.name} {getattr(constants, each.name):.3g}"
                          for each in fields(constants))  # fmt: skip
        click.echo(f"fitted on the {len(fit)} requests of the {name} half: {words}")
        click.echo(f"measured over predicted TPOT: {by_time(bench.found, predicted)}")
        click.echo("seconds measured, predicted:")
        for part, of in (("fitted", fit), ("tested", test)):
            click.echo(f" {part}: {len(of)} requests")
            for line in compared(bench.found, predicted, of):
                click.echo(line)


if __name__ == "__main__":
    main()
