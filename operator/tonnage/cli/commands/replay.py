"""``tonnage replay``: what policies would have done with a trace. Needs no cluster."""

import math
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click

from tonnage.cli.commands.options import (
    FILE,
    PriceOptions,
    TrafficOptions,
    argument,
    files_option,
    format_option,
    option,
    page_option,
    parsed,
    takes,
)
from tonnage.cli.console import INTERRUPTED, print_error
from tonnage.replay.policy import DEFAULT, Policy, UnknownPolicyError, descriptions, policy_of
from tonnage.replay.traffic import SHAPES
from tonnage.units import HOUR_S, seconds

PERCENT: Final = 100
LEAST_TARGET: Final = 0.5
SPEEDS: Final = (0.1, 10.0)
MOST_TIMES: Final = 1e4
DRAWN: Final = "drawn"
START_UPS_S: Final = (1.0, 2 * HOUR_S)
"""Longer than that no image and no weights take; each is simulated from before the first request.
"""

HELP: Final = """Simulate autoscalers on a trace of requests. Needs no cluster.

Runs the operator's own decisions, and models of other autoscalers, against simulated engines on the
same arrivals, with cold starts, scrapes and draining pods. Prints, for each policy, GPU-hours and
their cost, the share of requests within the SLO, the worst hour, and how often it scaled, relative
to the smallest constant number of replicas that meets the target (best-static). All policies start
with the replicas that Tonnage would start for spec.demand.

TRACE is a csv, csv.gz, jsonl, jsonl.gz or parquet file with arrival_s, prompt_tokens,
output_tokens, or in the format of Azure, BurstGPT, Mooncake or Qwen-Bailian. Times count from its
first request. The output names the unit of its times and the columns that are not used.
Instead of a file, --prometheus generates a trace from your fleet's metrics, with its requests per
minute and its lengths per ten minutes, and prints the GPU-hours of the fleet itself too.

\b
Examples:
  tonnage replay trace.csv -f model.yaml
  tonnage replay trace.csv -f model.yaml --policy tonnage,static:6
  tonnage replay trace.parquet -f model.yaml --window 0h-48h --scale 0.25 \\
    --html replay.html
  tonnage replay -f model.yaml --shape step --start-up 240s,60s
  tonnage replay -f model.yaml --prometheus http://localhost:9090 --last 14d
  tonnage replay trace.csv -f model.yaml --speed 0.85     slower engines

Exit codes: 0 simulated; 2 the GPU class cannot serve it; 3 invalid input; 4 Prometheus does not
answer; 130 Ctrl-C; 1 unexpected error.
"""


def _policies(
    context: click.Context, _: click.Parameter, values: tuple[str, ...]
) -> tuple[Policy, ...]:
    texts = [part.strip() for value in values for part in value.split(",")]
    if "list" in texts:
        formatter = context.make_formatter()
        formatter.write_dl(list(descriptions().items()))
        click.echo(formatter.getvalue(), nl=False)
        context.exit()
    try:
        sys.path.append(str(Path.cwd()))  # where MODULE:CLASS of one's own is looked for, last
        return tuple(dict.fromkeys(map(policy_of, texts)))
    except UnknownPolicyError as error:
        raise click.BadParameter(str(error)) from error


def _starts(value: str) -> tuple[float, ...]:
    found = tuple(dict.fromkeys(seconds(part.strip()) for part in value.split(",")))
    low_s, high_s = START_UPS_S
    if not all(low_s <= start_s <= high_s for start_s in found):
        raise ValueError(f"{value!r} is not from {low_s:g}s to {high_s / HOUR_S:g}h")
    return found


def _window(value: str) -> tuple[float, float]:
    first, dash, last = value.partition("-")
    try:
        begins_s = 0.0 if first.strip() in {"0", "0s", "0m", "0h"} else seconds(first.strip())
        ends_s = seconds(last.strip())
    except ValueError as error:
        raise ValueError(f"{value!r} is not a time like 0h-48h: {error}") from error
    if not dash or begins_s >= ends_s:
        raise ValueError(f"{value!r} ends before it begins")
    return begins_s, ends_s


def _number(value: str) -> float:
    try:
        return float(value)
    except ValueError:
        return math.nan


def _target(value: str) -> float:
    share = _number(value.removesuffix("%")) / PERCENT
    if not LEAST_TARGET <= share <= 1:
        raise ValueError(f"{value!r} is not a share from 50% to 100%")
    return share


def _speed(value: str) -> float | None:
    if value == DRAWN:
        return None
    low, high = SPEEDS
    factor = _number(value)
    if not low <= factor <= high:
        raise ValueError(f"{value!r} is neither 'drawn' nor from {low:g} to {high:g}")
    return factor


def _times(value: float) -> float:
    if not 0 < value <= MOST_TIMES:
        raise ValueError(f"{value} is not above 0 and up to {MOST_TIMES:g}")
    return value


def _count_option(name: str, default: int, help_text: str) -> Any:
    return option(
        name,
        type=click.IntRange(min=1, max=100),
        default=default,
        help=help_text,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOptions:
    """What the command was given."""

    # fmt: off
    trace_file: Path | None = argument(metavar="[TRACE]", required=False, type=FILE)
    names: tuple[str, ...] = files_option()
    shape: str | None = option("--shape", type=click.Choice(list(SHAPES)), metavar="SHAPE",
        help="Synthetic requests instead of a trace, at multiples of the rate in spec.demand. "
        + "; ".join(f"{name}: {each.summary}" for name, each in SHAPES.items()) + ".")
    traffic: TrafficOptions
    saved_trace: Path | None = option("--save-trace", metavar="FILE.csv[.gz]", type=FILE,
        help="Write the requests, before --scale, as a trace that replay can read.")
    policies: tuple[Policy, ...] = option("--policy", multiple=True, metavar="NAME[:KNOB][,...]",
        is_eager=True, callback=_policies,
        help=f"What to compare; may be repeated. Known are {', '.join(descriptions())}, the "
        f"last a class of your own; 'list' says what each is. Default: {','.join(DEFAULT)}, "
        "without those of the queue that the spec has.")
    starts_s: tuple[float, ...] = option("--start-up", metavar="DURATION[,...]", default="240s",
        callback=parsed(_starts),
        help="Mean time from creating a replica to Ready, each of them a case; 25 % to either "
        "side.")
    num_seeds: int = _count_option(
        "--seeds", 3, "Draws of cold starts, routes and sampled requests.")
    window_s: tuple[float, float] | None = option("--window", metavar="FROM-TO",
        callback=parsed(_window),
        help="Part of TRACE, such as 0h-48h.")
    times: float = option("--scale", type=float, default=1.0, callback=parsed(_times),
        help="Times as many requests: a random share of TRACE, or copies within 20 s; of a shape "
        "its rate.")
    speed: float | None = option("--speed", metavar="FACTOR|drawn", default="1.0",
        callback=parsed(_speed),
        help="Speed of the engines, as a multiple of the prior; drawn: other constants in each "
        "seed.")
    target: float | None = option("--target", metavar="PERCENT", callback=parsed(_target),
        help="Share of requests that must meet the SLO, as 99%. Default: the highest percentile of "
        "spec.slo.")
    prices: PriceOptions
    num_processes: int = _count_option("--processes", 2, "Runs at a time.")
    form: str = format_option(
        "text", "json", "yaml", more="json and yaml have every seed, and each policy over time.")
    page_file: str | None = page_option()
    # fmt: on


@click.command(help=HELP)
@takes(ReplayOptions)
def replay(*, options: ReplayOptions) -> None:
    try:
        from tonnage.cli.commands.replay_run import run  # noqa: PLC0415

        run(options)
    except KeyboardInterrupt:
        print_error("interrupted")
        sys.exit(INTERRUPTED)
