"""Slots and token budget of the plan against the best of a sweep, judged by the reference engine.

    python tests/bench/slots.py --out slots.csv

Random requests whose plan may choose both flags. The sweep is by the product's own engine, over
each budget that may be taken and slots from one to what memory leaves; the best of it and the flags
of the plan are then served by the reference engine, with other requests. CSV row by row: a run that
was stopped goes on where it was.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path
from statistics import median

import click
from capacity import Row, append, load_for, predicted, rows_in
from capacity_grid import Case, cases, fleet_of
from capacity_truth import Truth, true_goodput

from tonnage.sizing.errors import SizingError
from tonnage.sizing.parallelism.draft import rank_of
from tonnage.sizing.plan import size_with
from tonnage.sizing.request import Flags
from tonnage.sizing.serving.flags import BUDGETS_TOKENS, replica_under, trial_of
from tonnage.sizing.serving.goodput import Length, goodput
from tonnage.sizing.serving.replica import Replica
from tonnage.sizing.workload import Slo

NUM_CASES, NUM_REQUESTS = 20, 60_000
STRIDE = 0.8
"""Ratio of neighbouring numbers of slots that are tried, and beside the plan's own each number."""
BESIDE = 3
OTHER_SEED = 5000
GOAL = 0.01
"""Standard error of a goodput."""
NEAR = 0.03
COLUMNS = (
    "workload",
    "quantile",
    "planned",
    "best",
    "planned_per_s",
    "best_per_s",
    "short_percent",
    "noise_percent",
    "sweep",
)


def flags_swept(case: Case, planned: Flags) -> Iterator[Flags]:
    """Yield what the plan may have chosen instead: budgets, and slots up to what memory leaves."""
    for tokens in {planned.max_num_batched_tokens: None} | dict.fromkeys(BUDGETS_TOKENS):
        request = replace(case.request, slo=Slo(), arrival_scv=1.0, max_num_batched_tokens=tokens)
        try:
            most = size_with(request, case.split).flags.max_num_seqs
        except SizingError:
            continue
        count = math.ceil(math.log(most) / -math.log(STRIDE)) + 1
        ladder = {math.ceil(most * STRIDE**step) for step in range(count)}
        near = range(planned.max_num_seqs - BESIDE, planned.max_num_seqs + BESIDE + 1)
        for slots in sorted(ladder.union(each for each in near if 1 <= each <= most)):
            yield replace(planned, max_num_seqs=slots, max_num_batched_tokens=tokens)


def replica_with(case: Case, flags: Flags) -> Replica:
    """Return the replica that the product sees under other flags: they cost memory.

    Raises:
        SizingError: they do not fit.
    """
    return replica_under(case.request, rank_of(case.request, case.split), flags)


def swept(case: Case, planned: Flags, guess: float) -> dict[Flags, float]:
    """Return the goodput by flags: common random numbers, so that they differ by flags alone."""
    known: dict[Flags, float] = {}
    for flags in flags_swept(case, planned):
        with suppress(SizingError):
            trial = trial_of(case.request, replica_with(case, flags))
            known[flags] = goodput(trial, guess, length=Length.MEDIUM).requests_per_s
    return known


def judged(case: Case, flags: Flags, guess: float, num_requests: int) -> Truth:
    """Return what the reference engine serves.

    Raises:
        ValueError: no rate keeps the targets.
    """
    slots = flags.max_num_seqs
    fleet = fleet_of(case, replica_with(case, flags), slots)
    load = replace(load_for(case, slots * case.split.data, num_requests), first_seed=OTHER_SEED)
    found = true_goodput(fleet, load, case.request.slo, guess=guess, goal=GOAL)
    if found is None:
        raise ValueError(f"{case.name}: nothing is kept with {slots} slots")
    return found


def row_of(case: Case, quantile: float, num_requests: int) -> Row:
    sizing = size_with(case.request, case.split)
    known = swept(case, sizing.flags, sizing.goodput_requests_per_s)
    best = max(known, key=lambda flags: (known[flags], -flags.max_num_seqs))
    planned, top = (
        judged(case, flags, known[flags], num_requests) for flags in (sizing.flags, best)
    )
    return {
        "workload": case.name,
        "quantile": f"{quantile}",
        "planned": _written(sizing.flags),
        "best": _written(best),
        "planned_per_s": f"{planned.requests_per_s:.5g}",
        "best_per_s": f"{top.requests_per_s:.5g}",
        "short_percent": f"{100 * (1 - planned.requests_per_s / top.requests_per_s):.2f}",
        "noise_percent": f"{100 * math.hypot(planned.error, top.error):.2f}",
        "sweep": " ".join(f"{_written(each)}:{rate:.4g}" for each, rate in known.items()),
    }


def _written(flags: Flags) -> str:
    return f"{flags.max_num_seqs}/{flags.max_num_batched_tokens}"


def chosen(quantile: float) -> Iterator[Case]:
    """Yield workloads whose slots and budget are for the plan to choose."""
    for case in cases(quantile, grid="slots "):
        if case.request.flags is None:
            try:
                predicted(case)
            except SizingError as refusal:
                click.echo(f"{case.name}: {refusal}")
                continue
            yield case


def summary(rows: Sequence[Row]) -> str:
    short = sorted(float(row["short_percent"]) for row in rows)
    within = sum(each <= 100 * NEAR for each in short)
    return (
        f"{within} of {len(rows)} within {NEAR:.0%} of the best; "
        f"median {median(short):.1f} % short, worst {short[-1]:.1f} %"
    )


@click.command()
@click.option("--quantile", type=float, default=0.95, show_default=True)
@click.option("--out", type=click.Path(path_type=Path), help="CSV to write, or to go on with.")
@click.option("--requests", type=int, default=NUM_REQUESTS, show_default=True)
@click.option("--cases", "num_cases", type=int, default=NUM_CASES, show_default=True)
def main(*, quantile: float, out: Path | None, requests: int, num_cases: int) -> None:
    """Sweep the flags of random workloads."""
    found = rows_in(out) if out else []
    known = {row["workload"] for row in found}
    for case in islice(chosen(quantile), num_cases):
        if case.name in known:
            continue
        row = row_of(case, quantile, requests)
        found.append(row)
        if out:
            append(out, row, COLUMNS)
        click.echo("  ".join(row.values()))
    click.echo(summary(found))


if __name__ == "__main__":
    main()
