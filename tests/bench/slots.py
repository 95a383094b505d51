"""``--max-num-seqs`` of the plan against the best of a sweep, by the reference engine.

    python tests/bench/slots.py --out slots.csv

Random requests whose plan may choose the flag: its goodput, with the slots that it chose, over
that of the best number of slots. CSV row by row: a run that was stopped goes on where it was.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from statistics import median

import click
from capacity import Prediction, Row, append, load_for, predicted, rows_in
from capacity_grid import Case, cases, fleet_of
from capacity_truth import Truth, true_goodput
from fleet import FIRST_SEED

from tonnage.sizing.errors import SizingError
from tonnage.sizing.plan import size_with
from tonnage.sizing.request import Flags
from tonnage.sizing.serving.replica import Replica
from tonnage.sizing.workload import Slo

NUM_CASES, NUM_REQUESTS = 20, 20_000
AROUND = (0.25, 0.5, 0.7, 0.85, 1.2, 1.5, 2.0, 3.0, 5.0)
"""Of the plan's own slots: what is tried beside them, and where they are few each number."""
FEW = 8
OTHER_SEED = 5000
"""The best of a sweep is lucky too: so both are judged by other requests."""
WORSE, FALLS = 0.9, 2
"""The sweep ends when so many numbers of slots in a row serve so much less than the best."""
GOAL, JUDGES = 0.01, 3
"""Standard error of a goodput, and so many times the requests for the two that are compared."""
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


def replica_with(case: Case, found: Prediction, max_num_seqs: int) -> Replica:
    """Return the replica that the product sees under other slots: each costs memory.

    Raises:
        SizingError: they do not fit.
    """
    flags = Flags(
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=found.replica.max_batched_tokens,
        gpu_memory_utilization=case.request.engine.constants.gpu_memory_utilization,
        parallelism=case.split,
    )
    offline = replace(case.request, slo=Slo(), arrival_scv=1.0, flags=flags)
    return size_with(offline, case.split).replica


def swept(case: Case, found: Prediction, num_requests: int) -> dict[int, Truth]:
    """Return the goodput by slots: common random numbers, so that they differ by slots alone."""
    planned = found.max_num_seqs
    numbers = {math.ceil(planned * share) for share in AROUND} | {planned}
    if planned <= FEW:
        numbers |= set(range(1, 2 * FEW))
    known: dict[int, Truth] = {}
    guess, worse = found.requests_per_s, 0
    for number in sorted(each for each in numbers if each >= 1):
        truth = goodput(case, found, number, guess, num_requests)
        if truth is None:
            continue
        known[number] = truth
        guess = truth.requests_per_s
        best = max(each.requests_per_s for each in known.values())
        worse = worse + 1 if truth.requests_per_s < WORSE * best else 0
        is_flat = number > planned and _is_flat(known)
        if number > planned and (worse >= FALLS or is_flat):
            break
    return known


def _is_flat(known: dict[int, Truth]) -> bool:
    """Tell whether further slots change nothing: the last three serve the same."""
    last = [truth.requests_per_s for truth in list(known.values())[-3:]]
    return len(last) == 3 and max(last) <= min(last) * (1 + 1e-3)


def goodput(  # noqa: PLR0913
    case: Case,
    found: Prediction,
    max_num_seqs: int,
    guess: float,
    num_requests: int,
    *,
    seed: int = FIRST_SEED,
) -> Truth | None:
    try:
        replica = replica_with(case, found, max_num_seqs)
        fleet = fleet_of(case, replica, max_num_seqs)
    except (SizingError, ValueError):
        return None
    load = load_for(case, max_num_seqs * case.split.data, num_requests)
    load = replace(load, first_seed=seed)
    return true_goodput(fleet, load, case.request.slo, guess=guess, goal=GOAL)


def row_of(case: Case, quantile: float, num_requests: int) -> Row:
    found = predicted(case)
    known = swept(case, found, num_requests)
    best = max(known, key=lambda slots: (known[slots].requests_per_s, -slots))
    planned, top = (
        judged
        for slots in (found.max_num_seqs, best)
        if (
            judged := goodput(
                case,
                found,
                slots,
                known[slots].requests_per_s,
                JUDGES * num_requests,
                seed=OTHER_SEED,
            )
        )
    )
    return {
        "workload": case.name,
        "quantile": f"{quantile}",
        "planned": str(found.max_num_seqs),
        "best": str(best),
        "planned_per_s": f"{planned.requests_per_s:.5g}",
        "best_per_s": f"{top.requests_per_s:.5g}",
        "short_percent": f"{100 * (1 - planned.requests_per_s / top.requests_per_s):.2f}",
        "noise_percent": f"{100 * math.hypot(planned.error, top.error):.2f}",
        "sweep": " ".join(f"{each}:{truth.requests_per_s:.4g}" for each, truth in known.items()),
    }


def chosen(quantile: float) -> Iterator[Case]:
    """Yield workloads whose slots are for the plan to choose."""
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
    """Sweep the slots of random workloads."""
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
