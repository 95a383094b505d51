"""Does the operator do what ``plan`` says? Plans of ``first_answers.txt``, run as options say.

    python tests/bench/plan_and_operator.py [--every 1] [--from 1] [--hours 1] [--processes 2]

Each feasible plan is a ModelDeployment of mode Auto, with three times the plan's replicas as
maxReplicas (``tests/support/first_fleet.py``). ``begin``: GPUs at first over the plan's.
``settled``: mean GPUs of the last third over the plan's. ``hours``: GPU-hours over the plan's.
``late``: late requests over those allowed from minute 15 on, of the target that is missed most;
above 1 the SLO is missed. ``until``: the minute of the last pod that came or went. ``restarts``:
changes of flags.
"""

from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from statistics import median

import click
from measured import PROCESSES, table

from first_fleet import plan_lines, question, run

LARGE = 3
"""Replicas of a plan from which on what it begins with is judged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    line: str
    replicas: int
    begin: float
    settled: float
    hours: float
    late: float
    until_s: float
    restarts: int
    is_as_planned: bool
    is_begun_as_said: bool

    def cells(self) -> list[str]:
        ratios = (self.begin, self.settled, self.hours, self.late)
        options = self.line.removeprefix("plan ").replace("--", "")
        off = "" if self.is_as_planned else "not as planned"
        said = "" if self.is_begun_as_said else "not begun as said"
        figures = (*(f"{each:.2f}" for each in ratios), f"{self.until_s / 60:.0f}")
        return [options, f"{self.replicas}", *figures, f"{self.restarts}", f"{off} {said}".strip()]


COLUMNS = (
    "plan", "replicas", "begin", "settled", "hours", "late", "until", "restarts", "remark",
)  # fmt: skip


def row(line: str, hours: float) -> Row | None:
    asked = question(line)
    if asked is None:
        return None
    begun, fleet = asked.begun, run(asked, hours)
    said = (asked.answer["replicasAtFirst"], asked.answer["plan"]["maxNumSeqs"])
    allowed = min(said[0], asked.model.spec.scaling.max_replicas)
    return Row(
        line=line,
        replicas=asked.answer["plan"]["replicas"],
        begin=begun.replicas * begun.flags.parallelism.num_gpus / asked.gpus,
        settled=fleet.settled_gpus / asked.gpus,
        hours=fleet.gpu_hours / (asked.gpus * hours),
        late=fleet.late_ratio,
        until_s=fleet.settles_at_s,
        restarts=fleet.restarts,
        is_as_planned=fleet.is_as_planned(),
        is_begun_as_said=(begun.replicas, begun.flags.max_num_seqs) == (allowed, said[1]),
    )


@click.command()
@click.option("--from", "first", default=1, help="The first line.")
@click.option("--every", default=1, help="One line in so many.")
@click.option("--hours", default=1.0, help="Simulated.")
@PROCESSES
def main(*, first: int, every: int, hours: float, processes: int) -> None:
    """Run the plans, print a row of each, and what they come to."""
    lines, rows = plan_lines()[first - 1 :: every], list[Row]()
    click.echo(table(COLUMNS, ()))
    with ProcessPoolExecutor(processes) as pool:
        for found in pool.map(row, lines, [hours] * len(lines)):
            if found:
                rows.append(found)
                click.echo(f"| {' | '.join(found.cells())} |")
    large = [each for each in rows if each.replicas >= LARGE]
    click.echo(
        f"{len(rows)} plans, {sum(each.is_as_planned for each in rows)} settled as planned, "
        f"{sum(each.is_begun_as_said for each in rows)} begun as said, "
        f"{sum(each.late > 1 for each in rows)} late, {sum(each.restarts > 0 for each in rows)} "
        f"restarted; of {len(large)} of {LARGE} replicas and more begin in the median "
        f"{median(each.begin for each in large) if large else 0:.2f} times the plan, "
        f"{sum(each.begin > 2 for each in large)} above 2; mean GPU-hours "
        f"{sum(each.hours for each in rows) / max(1, len(rows)):.2f}; settled in the median at "
        f"minute {median(each.until_s for each in rows) / 60 if rows else 0:.0f}"
    )


if __name__ == "__main__":
    main()
