"""Replay whole policies on hours that no rule was fitted to, and compare them over all of these.

    python tests/bench/replay_unseen.py --traces FOLDER --out runs --page PAGE

Chance draws the windows of the traces, the rates, the cold starts, how fast engines are and how far
a spec is from the rate that comes; the seed is fixed, and another one is as good. A policy is
judged over all cases, not against the best of the others in each. Runs are files, as those of
``replay.py``.
"""

import random
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import click
from measured import OUT, PAGE, PROCESSES, TRACES, table, write_page
from replay_cases import TARGET, Case, NoCaseError
from replay_report import WHOLE_MEANING, Found, cell, figures_of_policy, over_all
from replay_runs import REFUSING, Draw, done

from tonnage.replay.policy import BEST_STATIC, TONNAGE
from tonnage.replay.traces import read_trace
from tonnage.units import HOUR_S, format_s

SEED = 35
SCALING = (
    TONNAGE, "llmd-slo", "wva-queueing", "wva-throughput", "llm-scaling-manager",
    "hpa-concurrency", "ray", "dynamo-classic",
)  # fmt: skip
POLICIES = (*SCALING, *(f"{name}{REFUSING}" for name in SCALING), BEST_STATIC)
STARTS_S = (60.0, 120.0, 180.0, 300.0, 480.0)
SPEEDS = (None, None, 1.0, 1.0, 0.75, 1.3)
"""Of engines against what is believed; None: each constant is drawn."""
DECLARED = (1.0, 1.0, 1.0, 1.0, 1 / 3, 3.0)
HOURS = (1.0, 1.0, 1.5)
SHAPES = ("steady", "step", "ramp", "drift", "bursts", "llmd")


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Traffic of one kind: a trace, and the windows of it that are drawn."""

    file: str
    times: tuple[float, float]
    number: int
    from_hour: float
    until_hour: float
    days: int = 1


FAMILIES = (
    Family(file="azure2023_conv.csv.gz", times=(3, 18), number=3, from_hour=0, until_hour=1),
    Family(file="azure2023_code.csv.gz", times=(3, 12), number=3, from_hour=0, until_hour=1),
    Family(file="servegen_mlarge_14d_x125.parquet", times=(31, 72), number=3, from_hour=0,
           until_hour=24, days=14),
    Family(file="servegen_tenant_office_c69_7d.parquet", times=(25, 56), number=6, from_hour=6,
           until_hour=18, days=7),
    Family(file="servegen_tenant_steady_c78_12h.parquet", times=(4, 10), number=3, from_hour=0,
           until_hour=12),
)  # fmt: skip
FEWEST = 200
"""Requests of a window: with fewer it is drawn again."""
MOST_TRIES = 1000
MEANING = f"""\
# Replay: whole policies on hours that no rule was fitted to

Written by `tests/bench/replay_unseen.py`.

Simulated, not measured: the model, the GPU and the promises of [the benchmark](replay.md). Chance
drew windows of the traces, rates, cold starts, how fast engines are and what the spec declares of
the rate. All policies get the same of it. Rivals run with the knobs that their projects ship and
with Tonnage's flags.

{WHOLE_MEANING}
- `{BEST_STATIC}`: in hindsight the smallest constant fleet that keeps the target; only the cases
  that have one count, and its ratio is over Tonnage's in those.
- `{REFUSING}`: engines of the same policy refuse at once what would be late, by
  vLLM's limits of the queue, as Tonnage's plan has them; refused counts as missed."""


def draws_in(folder: Path) -> Iterator[Draw]:
    """Yield the cases: windows of the traces in a folder, then shapes.

    Raises:
        TraceError, NoCaseError: one of them cannot be read, or has no such window.
    """
    chance = random.Random(SEED)  # noqa: S311
    cases = [case for family in FAMILIES for case in windows(family, folder, chance)]
    cases += [Case(name=name, times=chance.uniform(0.5, 1.3)) for name in SHAPES for _ in range(2)]
    for number, case in enumerate(cases):
        yield Draw(
            case=case,
            start_s=chance.choice(STARTS_S),
            speed=chance.choice(SPEEDS),
            seed=100 + number,
            declared=chance.choice(DECLARED),
        )


def windows(family: Family, folder: Path, chance: random.Random) -> Iterator[Case]:
    path = folder / family.file
    arrival_s = read_trace(path).arrival_s
    for _ in range(family.number):
        from_s, until_s = _window(family, arrival_s, chance)
        name = path.name.partition(".")[0]
        times = round(chance.uniform(*family.times), 1)
        yield Case(name=name, file=path, times=times, from_s=from_s, until_s=until_s)


def _window(
    family: Family, arrival_s: Sequence[float], chance: random.Random
) -> tuple[float, float]:
    for _ in range(MOST_TRIES):
        hours = min(chance.choice(HOURS), family.until_hour - family.from_hour)
        day_s = 24 * HOUR_S * chance.randrange(family.days)
        first = chance.uniform(family.from_hour, family.until_hour - hours)
        from_s = day_s + round(first * HOUR_S)
        until_s = from_s + hours * HOUR_S
        if bisect_left(arrival_s, until_s) - bisect_left(arrival_s, from_s) >= FEWEST:
            return from_s, until_s
    raise NoCaseError(f"{family.file}: no window of {MOST_TRIES} has {FEWEST} requests")


def page_of(found: Found, policies: Sequence[str]) -> str:
    """Return the page: all cases together, by family, then case by case."""
    families = list(dict.fromkeys(draw.case.name for draw in found))
    parts = [
        MEANING,
        f"{len(found)} cases of {len(families)} families.",
        "## Over all cases",
        over_all(found, policies),
        "## By family",
        "Kept of the cases / mean of the shares / GPU-hours.",
        _families(found, families, policies),
        "## By case",
        "Share kept / GPU-hours.",
        table(
            ["case", "cold start", "speed", "declared", *policies],
            [
                [*_case(draw), *(cell(each.get(p)) for p in policies)]
                for draw, each in found.items()
            ],
        ),
    ]
    return "\n\n".join(parts) + "\n"


def _families(found: Found, families: Sequence[str], policies: Sequence[str]) -> str:
    rows = []
    for name in families:
        cells = [name]
        for policy in policies:
            of_all = figures_of_policy(found, policy)
            figures = [each for draw, each in of_all.items() if draw.case.name == name]
            shares = [each["attainment"] for each in figures]
            cells.append(
                f"{sum(each >= TARGET for each in shares)} of {len(shares)} / {fmean(shares):.1%}"
                f" / {sum(each['gpu_hours'] for each in figures):.1f}"
                if shares
                else "-"
            )
        rows.append(cells)
    return table(["family", *policies], rows)


def _case(draw: Draw) -> list[str]:
    speed = "drawn" if draw.speed is None else f"{draw.speed:g}"
    return [str(draw.case), format_s(draw.start_s), speed, f"{draw.declared:.2g}"]


@click.command()
@TRACES
@OUT
@PAGE
@click.option("--policy", "names", help="NAME,... instead of all.")
@PROCESSES
def main(
    *, traces: Path, folder: Path, page: Path | None, names: str | None, processes: int
) -> None:
    """Replay policies on cases that chance drew, and write how each fares over all of these."""
    policies = names.split(",") if names else POLICIES
    found = done(list(draws_in(traces)), policies, folder, processes)
    if page:
        write_page(page, page_of(found, policies))
    click.echo(over_all(found, policies))


if __name__ == "__main__":
    main()
