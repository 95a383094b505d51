"""Predicted against simulated goodput, over a grid of workloads: CSV row by row, then a summary.

    python tests/bench/capacity.py --quantile 0.95 --every 10 --out capacity95.csv

The truth is the reference engine (``tests/support``), with other seeds than the product's and
ten times the requests; its standard error is a column. A run that was stopped goes on where it
was: the workloads that the file has are left out. ``--requests 6000`` is a quick look.
"""

import csv
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from statistics import linear_regression, median
from time import process_time

import click
from capacity_grid import (
    GROUPS,
    NUM_WORKLOADS,
    Case,
    alone_requests_per_s,
    cases,
    fleet_of,
    replica_of,
)
from fleet import Fleet, Load, Outcome, outcome
from measured import read_csv

from tonnage.sizing.errors import SizingError
from tonnage.sizing.plan import size_with
from tonnage.sizing.serving.replica import Replica
from tonnage.sizing.workload import Slo

USUAL_SLOPE = 8.0
"""Of the logarithm of misses over that of the rate, before any is known."""
LEAST_SLOPE = 0.5
ON_A_LINE = 0.8
"""Logarithms of misses up to which they lie about on one line."""
LONGEST_STEP = 0.5
"""Of the logarithm of the rate, towards a side of which nothing is known."""
OVERSHOOT = 1.3
TOLERANCE = 0.01
"""Of the logarithm of the rate: nearer the search does not come."""
COARSER = 4
"""A search has so many times fewer requests than what ends it."""
FAR = 0.03
"""Of the logarithm of the rate: corrections beyond are looked at again, the first no longer."""
MOST_WHOLE = 6
"""Runs of all requests: each correction may be twice as long as the one before."""
MOST_EVALUATIONS = 14
GOAL, MOST_BLOCKS = 0.01, 4
"""Standard error of a rate that is good enough, and so many times the requests at most for it."""
LEAST_RATE = 1 / 200
"""Of the first guess: a goodput below is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    """The highest rate that keeps every target, in simulation."""

    requests_per_s: float
    error: float
    """Standard error, as a share of it; infinite where too few missed."""
    evaluations: int
    nearest: Outcome
    """At the rate tried that was nearest."""


@dataclass(slots=True, kw_only=True)
class _Search:
    fleet: Fleet
    load: Load
    slo: Slo
    goal: float
    is_whole: bool = False
    tried: list[tuple[float, Outcome]] = field(default_factory=list)
    """By the logarithms of rates."""

    def add(self, at: float) -> Outcome:
        found = outcome(self.fleet, self.load, math.exp(at), self.slo, is_whole=self.is_whole)
        self.tried.append((at, found))
        return found

    @property
    def below(self) -> tuple[float, float] | None:
        """The highest rate at which the targets are kept, with the logarithm of misses there."""
        found = [(at, each.excess) for at, each in self.tried if each.excess <= 0]
        return max(found, default=None)

    @property
    def above(self) -> tuple[float, float] | None:
        floor = self.below[0] if self.below else -math.inf
        found = [(at, each.excess) for at, each in self.tried if each.excess > 0 and at > floor]
        return min(found, default=None)

    @property
    def slope(self) -> float:
        """Return how steeply misses grow: a line through the rates near the goodput."""
        near = [(at, each.excess) for at, each in self.tried if abs(each.excess) < ON_A_LINE]
        if len(near) < 2:
            near = [each for each in (self.below, self.above) if each]
        if len({at for at, _ in near}) < 2:
            return USUAL_SLOPE
        line = linear_regression(*zip(*near, strict=True))
        return max(LEAST_SLOPE, line.slope)

    @property
    def secant(self) -> float | None:
        """Return how steeply misses grow between both ends; None where one is missing."""
        low, high = self.below, self.above
        return (high[1] - low[1]) / (high[0] - low[0]) if low and high else None

    def next(self) -> float:
        """Return the rate to try: where a line meets zero, not too near to either end."""
        low, high = self.below, self.above
        if low is None or high is None:
            at, excess = high or low or (0.0, 0.0)
            # The further the longer: the line is a poor one far out.
            step = OVERSHOOT * abs(excess) / USUAL_SLOPE + 0.01 * len(self.tried) ** 2
            return at - math.copysign(min(LONGEST_STEP, step), excess)
        width = high[0] - low[0]
        share = low[1] / (low[1] - high[1])
        margin = 0.2 if len(self.tried) > 4 else 0.1
        return low[0] + width * min(1 - margin, max(margin, share))

    def meets(self) -> float:
        """Return where the line between both ends meets zero, or continues to."""
        low, high = self.below, self.above
        if low is None or high is None:
            at, excess = high or low or (0.0, 0.0)
            return at - excess / USUAL_SLOPE
        return low[0] + (high[0] - low[0]) * low[1] / (low[1] - high[1])

    @property
    def is_done(self) -> bool:
        if self.below is None or self.above is None:
            return False
        ends = (self.below, self.above)
        narrow = self.above[0] - self.below[0] <= TOLERANCE
        return narrow or min(abs(excess) for _, excess in ends) <= TOLERANCE * self.slope

    def truth(self, load: Load) -> Truth:
        """Return where as many miss as may, by all requests there: more if they leave it open.

        Where these correct it by much, once more: until they lie on both sides of it, or near. A
        line through what few requests said is a poor one where another target takes over.
        """
        at, slope = self.meets(), self.slope
        nearest = min(self.tried, key=lambda each: abs(each[0] - at))[1]
        error = nearest.error / slope / math.sqrt(COARSER)
        more = min(MOST_BLOCKS, math.ceil((error / self.goal) ** 2)) if math.isfinite(error) else 1
        more = max(1, more)
        whole_load = replace(
            load, num_requests=more * load.num_requests, num_blocks=more * load.num_blocks
        )
        search = replace(self, load=whole_load, is_whole=True, tried=[])
        for number in range(MOST_WHOLE):
            whole = search.add(at)
            slope = search.secant or slope
            by = search.meets() - at if search.secant else -whole.excess / slope
            longest = FAR * 2**number
            at += min(longest, max(-longest, by))
            if abs(by) <= FAR:
                break
        return Truth(
            requests_per_s=math.exp(at),
            error=whole.error / slope,
            evaluations=len(self.tried),
            nearest=whole,
        )


def true_goodput(
    fleet: Fleet, load: Load, slo: Slo, *, guess: float, goal: float = GOAL
) -> Truth | None:
    """Search from a guess, with a part of the requests, and finish with all of them.

    None where the targets are kept at no rate that is worth a replica.
    """
    part = replace(load, num_requests=math.ceil(load.num_requests / COARSER))
    search = _Search(fleet=fleet, load=part, slo=slo, goal=goal)
    at = math.log(guess)
    floor = at + math.log(LEAST_RATE)
    while at > floor:
        search.add(at)
        if search.is_done or len(search.tried) >= MOST_EVALUATIONS:
            return search.truth(load)
        at = search.next()
    return None


NUM_REQUESTS = {0.95: 60_000, 0.99: 240_000}
"""That count at least, by quantile."""
NUM_BLOCKS, LEAST_BLOCKS, BLOCK = 10, 3, 2000
"""Independent seeds among which they are shared out: fewer where each would have fewer than so."""
NEAR = 0.05
"""A prediction that differs by no more is right."""
REFUSED_SLOTS, REFUSED_FEWER = (1, 4, 16), 10
"""Tried where the product had no answer, with so many times fewer requests."""
REFUSED = "refused"
"""In place of a prediction."""
Row = dict[str, str]
COLUMNS = (
    "workload", "quantile", "groups", "max_num_seqs", "predicted_per_s", "simulated_per_s",
    "error_percent", "noise_percent", "simulated_by", "preemptions_per_request", "evaluations",
    "plan_s", "truth_s",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """What the product says of one replica."""

    replica: Replica
    """With the cache that memory leaves under the flags."""
    max_num_seqs: int
    requests_per_s: float


def predicted(case: Case) -> Prediction:
    """Ask the product: the only place where the bench does.

    Raises:
        SizingError: it has no answer.
    """
    sizing = size_with(case.request, case.split)
    return Prediction(
        replica=sizing.replica,
        max_num_seqs=sizing.flags.max_num_seqs,
        requests_per_s=sizing.goodput_requests_per_s,
    )


def load_for(case: Case, crowd: int, num_requests: int) -> Load:
    """Return the requests to try, at least; where they say too little, the search takes more."""
    return Load(
        traffic=case.request,
        num_requests=num_requests,
        crowd=crowd,
        num_blocks=min(NUM_BLOCKS, max(LEAST_BLOCKS, num_requests // BLOCK)),
    )


def truth_of(
    case: Case, found: Prediction, num_requests: int, *, goal: float = GOAL
) -> Truth | None:
    """Return the goodput under the flags of a prediction; None where there is none."""
    load = load_for(case, found.max_num_seqs * case.split.data, num_requests)
    fleet = fleet_of(case, found.replica, found.max_num_seqs)
    slo = case.request.slo
    return true_goodput(fleet, load, slo, guess=found.requests_per_s, goal=goal)


def row_of(case: Case, quantile: float, *, num_requests: int) -> Row:
    """Compare one workload."""
    began_s = process_time()
    row = {"workload": case.name, "quantile": f"{quantile}"}
    try:
        found = predicted(case)
    except SizingError as refusal:
        return row | _refused(case, refusal, num_requests // REFUSED_FEWER)
    planned_s = process_time()
    truth = truth_of(case, found, num_requests)
    return row | {
        "groups": "; ".join(case.groups(found.max_num_seqs)),
        "max_num_seqs": str(found.max_num_seqs),
        "predicted_per_s": f"{found.requests_per_s:.5g}",
        "simulated_per_s": "0",
        "error_percent": "inf",
        "plan_s": f"{planned_s - began_s:.3f}",
        "truth_s": f"{process_time() - planned_s:.1f}",
        **(_compared(found, truth) if truth else {}),
    }


def _refused(case: Case, refusal: SizingError, num_requests: int) -> Row:
    """Return what the best number of slots would have served, as a share of what one serves."""
    alone, flags = alone_requests_per_s(case), case.request.flags
    best = 0.0
    for slots in (flags.max_num_seqs,) if flags else REFUSED_SLOTS:
        replica = replica_of(case.request, case.split)
        guess = Prediction(replica=replica, max_num_seqs=slots, requests_per_s=alone * 0.3)
        truth = truth_of(case, guess, num_requests)
        best = max(best, truth.requests_per_s if truth else 0.0)
    return {
        "predicted_per_s": REFUSED,
        "simulated_per_s": f"{best:.5g}",
        "simulated_by": f"{best / alone:.1%} of one request after the other; {refusal}",
    }


def _compared(found: Prediction, truth: Truth) -> Row:
    nearest = truth.nearest
    ttft, tpot = nearest.total.ratios(nearest.slo)
    return {
        "simulated_per_s": f"{truth.requests_per_s:.5g}",
        "error_percent": f"{100 * (found.requests_per_s / truth.requests_per_s - 1):.2f}",
        "noise_percent": f"{100 * truth.error:.2f}",
        "simulated_by": "TTFT" if ttft >= tpot else "TPOT",
        "preemptions_per_request": (
            f"{nearest.total.num_preemptions / nearest.total.num_requests:.3f}"
        ),
        "evaluations": str(truth.evaluations),
    }


def summary(rows: Sequence[Row]) -> Iterator[str]:
    """Yield how far predictions are off, by what makes the workloads special."""
    answered = [row for row in rows if row["predicted_per_s"] != REFUSED]
    if len(answered) < len(rows):
        yield f"{len(rows) - len(answered)} of {len(rows)} refused"
    groups = {"all": answered}
    for name in GROUPS:
        groups[name] = [row for row in answered if name in row["groups"].split("; ")]
    for name in ("TTFT", "TPOT"):
        groups[f"bound by {name}"] = [row for row in answered if row["simulated_by"] == name]
    for name, members in groups.items():
        if members:
            yield f"{name:20} {_of_group(members)}"
    noises = sorted(float(row["noise_percent"]) for row in answered if row["noise_percent"])
    if noises:
        yield (
            f"standard error of the truth: median {median(noises):.2f} %, "
            f"p90 {_p90(noises):.2f} %, worst {noises[-1]:.2f} %"
        )


def _of_group(members: Sequence[Row]) -> str:
    errors = sorted(abs(float(row["error_percent"])) for row in members)
    worst = max(members, key=lambda row: abs(float(row["error_percent"])))
    within = sum(error <= 100 * NEAR for error in errors)
    return (
        f"n={len(members):3} within 5 %: {within:3} median {median(errors):.1f} % "
        f"p90 {_p90(errors):.1f} % worst {float(worst['error_percent']):+.1f} % "
        f"({worst['workload'][:3]})"
    )


def _p90(ordered: Sequence[float]) -> float:
    return ordered[math.ceil(0.9 * len(ordered)) - 1]


def rows_in(path: Path) -> list[Row]:
    """Return the rows of a file, none where there is no file."""
    return read_csv(path) if path.exists() else []


def append(path: Path, row: Row, columns: Sequence[str]) -> None:
    """Add a row to a file at once, so that nothing is lost when the run is stopped."""
    is_new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, columns)
        if is_new:
            writer.writeheader()
        writer.writerow(row)


@click.command()
@click.option("--quantile", type=float, default=0.95, show_default=True)
@click.option("--out", type=click.Path(path_type=Path), help="CSV to write, or to go on with.")
@click.option("--requests", type=int, help="That count in the truth; ten times the product's.")
@click.option("--every", type=int, default=1, help="One workload in so many.")
@click.option("--offset", type=int, default=0, help="The first of them.")
def main(
    *, quantile: float, out: Path | None, requests: int | None, every: int, offset: int
) -> None:
    """Compare a grid at one quantile."""
    found = rows_in(out) if out else []
    known = {row["workload"] for row in found}
    num_requests = requests or NUM_REQUESTS.get(quantile, max(NUM_REQUESTS.values()))
    for case in islice(cases(quantile), offset, NUM_WORKLOADS, every):
        if case.name in known:
            continue
        row = row_of(case, quantile, num_requests=num_requests)
        found.append(row)
        if out:
            append(out, row, COLUMNS)
        click.echo("  ".join(f"{row.get(column, '')}" for column in COLUMNS))
    for line in summary(found):
        click.echo(line)


if __name__ == "__main__":
    main()
