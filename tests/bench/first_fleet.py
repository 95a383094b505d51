"""Does the operator do what ``plan`` says? Plans of ``first_answers.txt``, run as their options say.

    python tests/bench/first_fleet.py [FIRST [LAST]] [--processes 2] [--hours 1]

Each feasible plan becomes a ModelDeployment of mode Auto, with three times the plan's replicas as
maxReplicas. The operator's own tick runs it against simulated engines that are as fast as believed,
under the planned rate (``tonnage.replay``); what it begins with is Ready when the traffic begins.
``settled`` are the replicas in the mean of the last third, ``late`` the late requests over those
allowed from minute 15 on, of the target that is missed most: above 1 the SLO is missed. ``begin``
is what it costs over the plan, ``hours`` the GPU-hours over the plan's in that time.
"""

import shlex
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import click
import yaml
from click.testing import CliRunner
from measured import PROCESSES, table

from slo_shares import slo_shares
from tonnage.api.objects import parse_model_deployment
from tonnage.catalog.gpu import built_in_gpus
from tonnage.cli.commands.init import init
from tonnage.replay.cluster import Record, ReplayedModel
from tonnage.replay.simulation import Simulation
from tonnage.replay.traffic import TrafficSource, traffic
from tonnage.settings import Settings
from tonnage.sizing.errors import SizingError
from tonnage.sizing.expected import expected_workload
from tonnage.sizing.plan import Sizing
from tonnage.sizing.request import ask, look_up
from tonnage.sizing.search import size
from tonnage.units import HOUR_S

LINES = Path(__file__).with_name("first_answers.txt")
TIMES = 3
"""The plan's replicas, that the operator may have."""
SETTLED_S = 900.0
WITHIN = 0.05
"""Of the plan's replicas, or one, that the settled ones may be off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstFleet:
    """A plan, and what the operator made of it."""

    line: str
    plan: Sizing
    record: Record
    duration_s: float

    @property
    def gpus(self) -> int:
        return self.plan.replicas * self.plan.parallelism.num_gpus

    @property
    def begun(self) -> tuple[int, int]:
        """Replicas that it began with, and their GPUs."""
        [first, *_] = [m for m in self.record.moments if m.at_s >= 0]
        number = self.record.cluster.pods[0].machine.num_gpus
        return first.replicas, first.replicas * number

    @property
    def settled(self) -> float:
        """GPUs in the mean of the last third."""
        from_s = 2 * self.duration_s / 3
        return self.record.gpu_s(from_s, self.duration_s) / (self.duration_s - from_s)

    @property
    def gpu_hours(self) -> float:
        return self.record.gpu_s(0, self.duration_s) / HOUR_S

    @property
    def late_ratio(self) -> float:
        return slo_shares(self.record, SETTLED_S, self.duration_s).worst_ratio


def plans() -> list[str]:
    return [line for line in LINES.read_text().splitlines() if line.startswith("plan ")]


def manifest(line: str) -> dict[str, Any] | None:
    """Return the ModelDeployment of a line of options, no split chosen; None: no plan has it."""
    options = shlex.split(line)[1:]
    found = CliRunner().invoke(init, options)
    if found.exit_code:
        return None
    given = yaml.safe_load(found.stdout)
    given["metadata"] |= {"namespace": "default", "uid": "uid-1"}
    asked = {part for part in options if "=" in part}
    for name in ("gpusPerReplica", "parallelism"):
        if not any(each.startswith(f"hardware.{name}") for each in asked):
            given["spec"]["hardware"].pop(name, None)
    return given


def run(line: str, hours: float) -> FirstFleet | None:
    """Return what the operator makes of a plan; None: there is none."""
    given = manifest(line)
    if given is None:
        return None
    spec = parse_model_deployment(given).spec
    try:
        plan = size(ask(spec, look_up(spec, built_in_gpus())))
    except SizingError:
        return None
    given["spec"]["scaling"] |= {"mode": "Auto", "maxReplicas": TIMES * plan.replicas}
    model = parse_model_deployment(given)
    rate, duration_s = float(spec.demand.requests_per_second), HOUR_S * hours
    found = traffic(
        TrafficSource(rate=lambda _: rate, shapes=[(0.0, expected_workload(model.spec))]),
        duration_s=duration_s,
        context_tokens=model.spec.context_length,
    )
    served = ReplayedModel(model=model, traffic=found)
    settings = Settings(prometheus_url="http://prometheus.test:9090")
    record = Simulation(served, settings=settings).run(duration_s)
    return FirstFleet(line=line, plan=plan, record=record, duration_s=duration_s)


def row(line: str, hours: float) -> list[str] | None:
    fleet = run(line, hours)
    if fleet is None:
        return None
    plan, flags = fleet.plan, fleet.record.cluster.pods[0].flags
    replicas, begun = fleet.begun
    kinds = [f"{p.parallelism} x {p.max_num_seqs}" for p in (plan.flags, flags)]
    kinds += [
        f"-> {p.flags.max_num_seqs}" for p in fleet.record.cluster.pods[-1:] if p.flags != flags
    ]
    hours_of_plan = fleet.gpus * hours
    problems = {m.problem for m in fleet.record.moments if m.problem}
    return [
        line.removeprefix("plan ").replace("--", ""),
        f"{plan.replicas} ({kinds[0]})",
        f"{replicas} ({' '.join(kinds[1:])})",
        f"{fleet.settled / fleet.record.cluster.pods[-1].machine.num_gpus:.2f}",
        f"{begun / fleet.gpus:.2f}",
        f"{fleet.settled / fleet.gpus:.2f}",
        f"{fleet.gpu_hours / hours_of_plan:.2f}",
        f"{fleet.late_ratio:.2f}",
        "; ".join(sorted(problems))[:60],
    ]


COLUMNS = ("plan", "planned", "begun", "settled", "begin", "end", "hours", "late", "problems")


@click.command()
@click.argument("first", default=1)
@click.argument("last", default=0)
@click.option("--every", default=1, help="One line in so many.")
@click.option("--hours", default=1.0)
@PROCESSES
def main(first: int, last: int, *, every: int, hours: float, processes: int) -> None:
    """Run the plans from line to line, and print a row of each."""
    lines = plans()[first - 1 : last or None : every]
    rows = []
    with ProcessPoolExecutor(processes) as pool:
        click.echo(table(COLUMNS, ()))
        for found in pool.map(row, lines, [hours] * len(lines)):
            if found:
                rows.append(found)
                click.echo(f"| {' | '.join(found)} |")
    large = [float(r[4]) for r in rows if int(r[1].split()[0]) >= 3]
    late = sum(float(r[7]) > 1 for r in rows)
    off = sum(abs(float(r[5]) - 1) > WITHIN for r in rows)
    click.echo(
        f"{len(rows)} plans; begin, median of 3 and more: {median(large or [0]):.2f}; {late} late; {off} settle off by more than 5 %"
    )


if __name__ == "__main__":
    main()
