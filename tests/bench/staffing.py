"""Do the replicas of the staffing rule keep the SLO in simulation, and does one fewer not?

    python tests/bench/staffing.py --quantile 0.95 [--every 5] > staffing.csv

For fleets of N replicas each workload is asked at a rate between what the rule says that N - 1
replicas and N sustain, in the middle of the two.
"""

import csv
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice

import click
from capacity import fleet_of, load_for
from capacity_grid import Case, cases
from fleet import kept

from tonnage.sizing.serving.staffing import replicas_for
from tonnage.sizing.workload import Routing

FLEETS = (1, 2, 4, 8, 32)
SCALE = 0.5
"""Of the requests that a capacity is looked for with: here one rate is tried."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What a fleet of the size asked for, and one of one fewer, did."""

    name: str
    routing: Routing
    num_replicas: int
    misses: float
    """Over those allowed, of the worst promise."""
    misses_of_one_fewer: float | None

    @property
    def suffices(self) -> bool:
        return self.misses <= 1

    @property
    def is_needed(self) -> bool:
        return self.misses_of_one_fewer is None or self.misses_of_one_fewer > 1


def verdict(case: Case, routing: Routing, num_replicas: int) -> Verdict | None:
    """Try one fleet; None where the rule does not ask for so many at any rate."""
    team = replace(case.sizing.team, routing=routing)
    enough = team.sustainable_requests_per_s(num_replicas)
    too_few = team.sustainable_requests_per_s(num_replicas - 1)
    rate = (enough + too_few) / 2
    if rate <= 0 or replicas_for(team, rate) != num_replicas:
        return None
    return Verdict(
        name=case.name,
        routing=routing,
        num_replicas=num_replicas,
        misses=misses(case, routing, num_replicas, rate),
        misses_of_one_fewer=misses(case, routing, num_replicas - 1, rate)
        if num_replicas > 1
        else None,
    )


def misses(case: Case, routing: Routing, num_replicas: int, requests_per_s: float) -> float:
    """Return misses over those allowed, of the worst promise."""
    load = load_for(case.sizing, num_replicas, scale=SCALE)
    fleet = fleet_of(case.sizing, num_replicas=num_replicas, routing=routing)
    slo = case.sizing.request.slo
    return kept(fleet, load.found, requests_per_s, slo, warm_up=load.warm_up).excess(slo)


def verdicts(quantile: float, *, every: int, fleets: tuple[int, ...] = FLEETS) -> Iterator[Verdict]:
    for case in islice(cases(quantile), 0, None, every):
        for routing in Routing:
            for num_replicas in fleets:
                found = verdict(case, routing, num_replicas)
                if found is not None:
                    yield found


@click.command()
@click.option("--quantile", type=float, default=0.95, show_default=True)
@click.option("--every", type=int, default=1, help="One workload in so many.")
@click.option("--most", type=int, default=max(FLEETS), help="Largest fleet.")
def main(*, quantile: float, every: int, most: int) -> None:
    """Try fleets of 1 to 32 replicas behind both kinds of routing."""
    out = csv.writer(sys.stdout)
    out.writerow(("workload", "routing", "replicas", "misses", "misses_of_one_fewer"))
    tally: Counter[tuple[str, int, str]] = Counter()
    fleets = tuple(size for size in FLEETS if size <= most)
    for found in verdicts(quantile, every=every, fleets=fleets):
        fewer = found.misses_of_one_fewer
        words = "" if fewer is None else f"{fewer:.2f}"
        out.writerow((found.name, found.routing, found.num_replicas, f"{found.misses:.2f}", words))
        sys.stdout.flush()
        key = found.routing, found.num_replicas
        tally.update([(*key, "tried")])
        tally.update([(*key, "suffices")] * found.suffices)
        tally.update([(*key, "is needed")] * found.is_needed)
        tally.update([(*key, "both")] * (found.suffices and found.is_needed))
    for key, count in sorted(tally.items()):
        print(*key, count, file=sys.stderr)  # noqa: T201


if __name__ == "__main__":
    main()
