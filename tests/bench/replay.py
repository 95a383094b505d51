"""Replay every policy on every case, and write who kept the target at what cost.

    python tests/bench/replay.py --out runs --page tests/bench/replay.md --traces FOLDER
    python tests/bench/replay.py --out runs --only step,drift --policy tonnage,best-static
    python tests/bench/replay.py --out runs day.csv.gz:6 week.parquet:0.5:0h-48h --only day,week

Cases are the synthetic shapes and the traces given (``replay_cases``). Rivals run with the knobs
that their projects ship. One seed draws the requests of a case: ``replay_unseen.py`` has others.
Each run leaves a JSON file below ``--out``, and what has one is not run again, whatever the sources
are now: start with another folder after a change, or remove the files of a policy
(``rm runs/*--tonnage.json``). A run that failed is tried again.
"""

from collections.abc import Sequence
from itertools import product
from pathlib import Path

import click
from measured import OUT, PAGE, PROCESSES, write_page
from replay_cases import (
    TRACES,
    Case,
    NoCaseError,
    chosen_cases,
    shape_cases,
    trace_case,
    traces_in,
)
from replay_others.registry import ALL
from replay_report import report
from replay_runs import Draw, Job, read, run_all

from tonnage.replay.policy import (
    BEST_STATIC,
    IN_TIME,
    TONNAGE,
    UnknownPolicyError,
    policy_of,
)

POLICIES = (
    TONNAGE, IN_TIME, BEST_STATIC, "hpa-concurrency", "keda-epp-queue",
    "llmd-slo", "wva2", "wva-queueing", "dynamo-classic", "ray", "true-rate", "wva-throughput",
    "llm-scaling-manager",
)  # fmt: skip
STARTS_S = (60.0, 120.0, 240.0, 600.0)


def jobs_of(cases: Sequence[Case], starts_s: Sequence[float], names: Sequence[str]) -> list[Job]:
    """Return all runs, by case and cold start."""
    policies = dict.fromkeys(str(policy_of(each, ALL)) for each in names)
    return [
        Job(draw=Draw(case=case, start_s=start_s, speed=1.0, seed=0), policy=policy)
        for case, start_s, policy in product(cases, starts_s, policies)
    ]


def left_out(jobs: Sequence[Job]) -> list[str]:
    """Return what of the whole benchmark is not among the jobs."""
    draws, policies = {job.draw for job in jobs}, {job.policy for job in jobs}
    asked: dict[str, tuple[Sequence[object], set[object]]] = {
        "cases": (shape_cases(), {draw.case for draw in draws}),
        "traces": (
            [trace_case(each).name for each in TRACES],
            {draw.case.name for draw in draws if draw.case.file},
        ),
        "cold starts": (STARTS_S, {draw.start_s for draw in draws}),
        "policies": (POLICIES, set(policies)),
    }
    return [
        f"without the {what} {', '.join(map(_told, missing))}"
        for what, (whole, there) in asked.items()
        if (missing := [each for each in whole if each not in there])
    ]


def _told(value: object) -> str:
    return f"{value:g} s" if isinstance(value, float) else str(value)


def _names(_: click.Context, __: click.Parameter, value: str | None) -> tuple[str, ...]:
    return tuple(part.strip() for part in value.split(",")) if value else ()


@click.command()
@click.argument("traces", nargs=-1, metavar="[FILE[:SCALE[:FROM-TO]]]...")
@OUT
@PAGE
@click.option("--only", callback=_names, help="CASE,...: shapes and names of traces.")
@click.option("--policy", "names", callback=_names, help="NAME[:KNOB],... instead of all.")
@click.option(
    "--traces",
    "trace_folder",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Folder with the traces of the whole benchmark, whose windows are known.",
)
@click.option(
    "--start-up", "starts_s", multiple=True, type=click.FloatRange(0), default=STARTS_S,
    show_default=True, help="Mean cold start in seconds.",
)  # fmt: skip
@PROCESSES
@click.option("--page-only", is_flag=True, help="Run nothing: the page of what there is.")
def main(  # noqa: PLR0913
    *,
    traces: tuple[str, ...],
    trace_folder: Path | None,
    folder: Path,
    page: Path | None,
    only: tuple[str, ...],
    names: tuple[str, ...],
    starts_s: tuple[float, ...],
    processes: int,
    page_only: bool,
) -> None:
    """Run what has no result yet."""
    try:
        known = traces_in(trace_folder) if trace_folder else ()
        cases = chosen_cases((*traces, *known), only)
        jobs = jobs_of(cases, starts_s, names or POLICIES)
    except (NoCaseError, UnknownPolicyError) as error:
        raise click.UsageError(str(error)) from error
    if not page_only:
        run_all(jobs, folder, processes)
    runs = {job: run for job in jobs if (run := read(folder, job))}
    if page:
        write_page(page, report(jobs, runs, left_out=left_out(jobs)))
        click.echo(f"wrote {page}")
    failed = [job for job, run in runs.items() if run.error or run.faults]
    if failed or len(runs) < len(jobs):
        raise click.ClickException(
            f"{len(failed)} runs failed, {len(jobs) - len(runs)} were not run"
        )


if __name__ == "__main__":
    main()
