"""Do the replicas that the product asks for keep the SLO in simulation, and does one fewer not?

    python tests/bench/staffing.py --quantile 0.95 --every 8 --out staffing.csv

Fleets of N replicas are asked at a rate between what the product says that N - 1 replicas and N
sustain, in the middle of the two. CSV row by row: a run that was stopped goes on where it was.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

import click
from capacity import Row, append, load_for, predicted, rows_in
from capacity_grid import NUM_WORKLOADS, Case, cases, fleet_of
from fleet import Outcome, outcome

from tonnage.sizing.errors import SizingError
from tonnage.sizing.plan import size_with
from tonnage.sizing.workload import Routing

FLEETS = (1, 2, 4, 8, 32)
NUM_REQUESTS, PER_REPLICA = 30_000, 2000
"""That count: as many at least, and for each replica."""
COLUMNS = (
    "workload",
    "routing",
    "replicas",
    "requests_per_s",
    "misses",
    "misses_error",
    "misses_of_one_fewer",
)


def asked(case: Case, routing: Routing, num_replicas: int) -> float | None:
    """Ask the product for a rate that takes so many replicas; None where no rate does.

    The only place where the bench asks, but for the flags (``capacity.predicted``).

    Raises:
        SizingError: it has no answer.
    """
    sizing = size_with(replace(case.request, routing=routing), case.split)
    enough = sizing.sustained_requests_per_s(num_replicas)
    too_few = sizing.sustained_requests_per_s(num_replicas - 1) if num_replicas > 1 else 0.0
    rate = (enough + too_few) / 2
    return rate if rate > 0 and sizing.replicas_for(rate) == num_replicas else None


def row_of(case: Case, routing: Routing, num_replicas: int, *, num_requests: int) -> Row | None:
    """Try one fleet; None where the product does not ask for so many at any rate."""
    try:
        rate = asked(case, routing, num_replicas)
    except SizingError:
        return None
    if rate is None:
        return None
    found = tried(case, routing, num_replicas, rate, num_requests)
    fewer = ""
    if num_replicas > 1:
        worse = tried(case, routing, num_replicas - 1, rate, num_requests)
        fewer = f"{ratio(worse):.3f}"
    return {
        "workload": case.name,
        "routing": str(routing),
        "replicas": str(num_replicas),
        "requests_per_s": f"{rate:.5g}",
        "misses": f"{ratio(found):.3f}",
        "misses_error": f"{found.error * ratio(found):.3f}",
        "misses_of_one_fewer": fewer,
    }


def ratio(found: Outcome) -> float:
    """Return misses over those allowed, of the worst target."""
    return max(found.total.ratios(found.slo))


def tried(
    case: Case, routing: Routing, num_replicas: int, requests_per_s: float, num_requests: int
) -> Outcome:
    flags = predicted(case)
    load = load_for(
        case,
        flags.max_num_seqs * case.split.data * num_replicas,
        max(num_requests, PER_REPLICA * num_replicas),
    )
    fleet = fleet_of(
        case, flags.replica, flags.max_num_seqs, num_replicas=num_replicas, routing=routing
    )
    return outcome(fleet, load, requests_per_s, case.request.slo)


def summary(rows: Sequence[Row]) -> Iterator[str]:
    """Yield how many fleets suffice, how many are needed, and both, by routing and size."""
    tally: Counter[tuple[str, int, str]] = Counter()
    for row in rows:
        suffices = float(row["misses"]) <= 1
        fewer = row["misses_of_one_fewer"]
        is_needed = not fewer or float(fewer) > 1
        key = row["routing"], int(row["replicas"])
        words = {"tried": True, "suffice": suffices, "are needed": is_needed,
                 "right": suffices and is_needed}  # fmt: skip
        tally.update((*key, word) for word, holds in words.items() if holds)
    for routing, size in sorted({(routing, size) for routing, size, _ in tally}):
        counts = {word: tally[routing, size, word] for word in ("right", "suffice", "are needed")}
        words = ", ".join(f"{word} {count}" for word, count in counts.items())
        yield f"{routing:17} {size:3} replicas: {tally[routing, size, 'tried']} tried, {words}"


@click.command()
@click.option("--quantile", type=float, default=0.95, show_default=True)
@click.option("--out", type=click.Path(path_type=Path), help="CSV to write, or to go on with.")
@click.option("--requests", type=int, default=NUM_REQUESTS, show_default=True)
@click.option("--every", type=int, default=1, help="One workload in so many.")
@click.option("--offset", type=int, default=0, help="The first of them.")
@click.option("--most", type=int, default=max(FLEETS), help="Largest fleet.")
def main(  # noqa: PLR0913
    *, quantile: float, out: Path | None, requests: int, every: int, offset: int, most: int
) -> None:
    """Try fleets of 1 to 32 replicas behind both kinds of routing."""
    found = rows_in(out) if out else []
    known = {(row["workload"], row["routing"], row["replicas"]) for row in found}
    for case in islice(cases(quantile), offset, NUM_WORKLOADS, every):
        for routing in Routing:
            for size in FLEETS:
                if size > most or (case.name, str(routing), str(size)) in known:
                    continue
                row = row_of(case, routing, size, num_requests=requests)
                if row is None:
                    continue
                found.append(row)
                if out:
                    append(out, row, COLUMNS)
                click.echo("  ".join(row.values()))
    for line in summary(found):
        click.echo(line)


if __name__ == "__main__":
    main()
