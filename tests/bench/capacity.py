"""Predicted against simulated capacity, over the grid: CSV to standard output, then a summary.

python tests/bench/capacity.py --quantile 0.95 [--quick] > capacity.csv
"""

import csv
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from statistics import median

import click
from capacity_grid import Case, cases
from fleet import Draw, Fleet, Kept, Traffic, draws, kept, step_time_of

from tonnage.engine import EngineLimits
from tonnage.sizing.plan import Sizing

QUICK_EVERY = 10
SEED = 7
MIN_REQUESTS = 20_000
REQUESTS_PER_RUNNING = 60
"""Occupancy forgets itself within a residence: this many independent looks at it."""
WARM_UP_RESIDENCES = 4
TOLERANCE = 0.005
"""Width of the rate bracket at which the search ends."""


def engine_limits(sizing: Sizing) -> EngineLimits:
    """Return the limits of one engine under the flags of a plan."""
    layout = sizing.replica.layout
    return EngineLimits(
        max_num_seqs=sizing.flags.max_num_seqs,
        max_num_batched_tokens=sizing.flags.max_num_batched_tokens,
        num_blocks=math.floor(sizing.replica.kv_pool_bytes / layout.bytes_per_block),
        block_size=layout.block_tokens,
        max_model_len=sizing.request.context_tokens,
    )


def fleet_of(sizing: Sizing, **changes: object) -> Fleet:
    return Fleet(
        limits=engine_limits(sizing),
        step_time=step_time_of(sizing.replica),
        **changes,  # type: ignore[arg-type]
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What a fleet is tried with."""

    found: Sequence[Draw]
    warm_up: int


def load_for(sizing: Sizing, num_replicas: int = 1, *, scale: float = 1.0) -> Load:
    request = sizing.request
    traffic = Traffic(
        workload=request.workload,
        context_tokens=request.context_tokens,
        arrival_scv=request.arrival_scv,
    )
    crowd = sizing.flags.max_num_seqs * num_replicas
    warm_up = WARM_UP_RESIDENCES * crowd + 200
    counted = max(MIN_REQUESTS, REQUESTS_PER_RUNNING * crowd) * scale
    # Bursts say as much as so many times fewer requests.
    counted *= max(1.0, request.arrival_scv)
    if min((p.quantile for p in (*request.slo.ttft, *request.slo.tpot)), default=0) > 0.98:
        counted *= 2
    return Load(found=draws(traffic, warm_up + int(counted), SEED), warm_up=warm_up)


def simulated_capacity(sizing: Sizing, load: Load, guess: float) -> tuple[float, Kept]:
    """Return the highest rate that keeps the SLO: a bracket, then a search in logarithms."""
    fleet, slo = fleet_of(sizing), sizing.request.slo

    def tried(rate: float) -> tuple[float, Kept]:
        outcome = kept(fleet, load.found, rate, slo, warm_up=load.warm_up)
        return math.log(max(outcome.excess(slo), 1e-2)), outcome

    low, high = guess * 0.95, guess * 1.05
    at_low, _ = tried(low)
    while at_low > 0 and low > guess / 50:
        high, low = low, low * 0.85
        at_low, _ = tried(low)
    at_high, outcome = tried(high)
    while at_high <= 0 and high < guess * 50:
        low, at_low, high = high, at_high, high * 1.15
        at_high, outcome = tried(high)
    while high / low > 1 + TOLERANCE:
        share = min(0.8, max(0.2, at_low / (at_low - at_high))) if at_low < at_high else 0.5
        middle = low + (high - low) * share
        at_middle, seen = tried(middle)
        if at_middle > 0:
            high, at_high, outcome = middle, at_middle, seen
        else:
            low, at_low = middle, at_middle
    return (low + high) / 2, outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One workload: what was predicted, and what came out."""

    name: str
    quantile: float
    predicted: float
    simulated: float
    predicted_by: str
    simulated_by: str
    preemptions_per_request: float
    max_num_seqs: int

    @property
    def error(self) -> float:
        return self.predicted / self.simulated - 1

    def cells(self) -> dict[str, object]:
        return {
            "workload": self.name,
            "quantile": self.quantile,
            "predicted_per_s": f"{self.predicted:.4f}",
            "simulated_per_s": f"{self.simulated:.4f}",
            "error_percent": f"{100 * self.error:.2f}",
            "predicted_by": self.predicted_by,
            "simulated_by": self.simulated_by,
            "preemptions_per_request": f"{self.preemptions_per_request:.3f}",
            "max_num_seqs": self.max_num_seqs,
        }


def row_of(case: Case, quantile: float, *, scale: float = 1.0) -> Row:
    """Compare one workload."""
    sizing = case.sizing
    predicted = sizing.team.sustainable_requests_per_s(1)
    load = load_for(sizing, scale=scale)
    simulated, outcome = simulated_capacity(sizing, load, predicted)
    slo = sizing.request.slo
    by_ttft = outcome.ttft_share(slo) >= outcome.excess(slo)
    is_line = predicted >= sizing.line.requests_per_s * (1 - 1e-6)
    return Row(
        name=case.name,
        quantile=quantile,
        predicted=predicted,
        simulated=simulated,
        predicted_by=sizing.line.limited_by if is_line else "TimeToFirstToken",
        simulated_by="TimeToFirstToken" if by_ttft else "TimePerOutputToken",
        preemptions_per_request=outcome.num_preemptions / outcome.num_requests,
        max_num_seqs=sizing.flags.max_num_seqs,
    )


def rows(quantile: float, *, every: int = 1, offset: int = 0, grid: str = "") -> Iterator[Row]:
    for case in islice(cases(quantile, grid=grid), offset, None, every):
        yield row_of(case, quantile)


def summary(found: Sequence[Row]) -> Iterator[str]:
    """Yield the errors by what was predicted to bind."""
    groups = {"all": list(found)}
    for row in found:
        groups.setdefault(row.predicted_by, []).append(row)
    for name, members in groups.items():
        errors = sorted(abs(row.error) for row in members)
        worst = max(members, key=lambda row: abs(row.error))
        within = sum(error <= 0.05 for error in errors)
        yield (
            f"{name:20} n={len(members):3} median {median(errors):.1%} "
            f"p90 {errors[math.ceil(0.9 * len(errors)) - 1]:.1%} worst {worst.error:+.1%} "
            f"within 5 %: {within} ({worst.name})"
        )


@click.command()
@click.option("--quantile", type=float, default=0.95, show_default=True)
@click.option("--quick", is_flag=True, help="Every tenth workload.")
@click.option("--every", type=int, default=1)
@click.option("--offset", type=int, default=0)
@click.option("--grid", default="", help="Name of another grid of workloads, drawn anew.")
def main(*, quantile: float, quick: bool, every: int, offset: int, grid: str) -> None:
    """Compare a grid at one quantile."""
    found: list[Row] = []
    out: csv.DictWriter[str] | None = None
    step = QUICK_EVERY if quick else every
    for row in rows(quantile, every=step, offset=offset, grid=grid):
        found.append(row)
        if out is None:
            out = csv.DictWriter(sys.stdout, list(row.cells()))
            out.writeheader()
        out.writerow(row.cells())
        sys.stdout.flush()
    for line in summary(found):
        print(line, file=sys.stderr)  # noqa: T201


if __name__ == "__main__":
    main()
