"""Replay every policy on every case, and write who kept the target at what cost.

    python tests/bench/replay.py --out runs --page tests/bench/replay.md --traces FOLDER
    python tests/bench/replay.py --out runs --only step,drift --policy tonnage,best-static --seeds 1
    python tests/bench/replay.py --out runs day.csv.gz:6 week.parquet:0.5:0h-48h --only day,week

Cases are the synthetic shapes and the traces given (``replay_cases``). Rivals run with the knobs
that their projects ship. A day takes too long for several seeds. Each run leaves a JSON file below
``--out``, and what has one is not run again, whatever the sources are now: start with another
folder after a change, or remove the files of a policy (``rm runs/*--tonnage.json``). A run that
failed is tried again.
"""

import time
from collections.abc import Sequence
from concurrent.futures.process import BrokenProcessPool
from itertools import chain, product
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
from replay_runs import Draw, Job, all_done, read, told

from tonnage.replay.policy import (
    BEST_STATIC,
    FCFS,
    IN_TIME,
    TONNAGE,
    UnknownPolicyError,
    policy_of,
)

POLICIES = (
    TONNAGE, FCFS, IN_TIME, BEST_STATIC, "hpa-concurrency", "keda-epp-queue",
    "llmd-slo", "wva2", "wva-queueing", "dynamo-classic", "ray", "true-rate", "wva-throughput",
    "llm-scaling-manager",
)  # fmt: skip
STARTS_S = (60.0, 120.0, 240.0, 600.0)
SEEDS = 5
LONG = frozenset({"diurnal"})
"""Cases that are run with one seed."""
DRAWN = "drawn"


def draws_of(
    cases: Sequence[Case],
    starts_s: Sequence[float],
    *,
    seeds: int,
    speeds: Sequence[float | None],
) -> list[Draw]:
    return [
        Draw(case=case, start_s=start_s, speed=speed, seed=seed)
        for case, start_s, speed, seed in product(cases, starts_s, speeds, range(seeds))
        if seed == 0 or not _is_long(case)
    ]


def jobs_of(draws: Sequence[Draw], names: Sequence[str]) -> list[Job]:
    """Return all runs, by draw."""
    policies = dict.fromkeys(str(policy_of(each, ALL)) for each in names)
    return [Job(draw=draw, policy=policy) for draw in draws for policy in policies]


def _is_long(case: Case) -> bool:
    return case.file is None and case.name in LONG


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
        "seeds": (range(SEEDS), {draw.seed for draw in draws}),
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


def _numbers(_: click.Context, parameter: click.Parameter, value: str) -> tuple[float, ...]:
    try:
        found = tuple(map(float, value.split(",")))
    except ValueError as error:
        raise click.BadParameter(str(error)) from error
    if not all(0 < each < float("inf") for each in found):
        raise click.BadParameter(f"{value}: not all are above 0")
    return found


def _speeds(_: click.Context, parameter: click.Parameter, value: str) -> tuple[float | None, ...]:
    return (None,) if value == DRAWN else _numbers(_, parameter, value)


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
    "--start-up",
    "starts_s",
    default="60,120,240,600",
    callback=_numbers,
    show_default=True,
    help="Mean cold starts in seconds.",
)
@click.option(
    "--speed",
    "speeds",
    default="1",
    callback=_speeds,
    show_default=True,
    help="SPEED,... of engines against what is believed; 'drawn': constants by seed.",
)
@click.option("--seeds", type=click.IntRange(min=1), default=SEEDS, show_default=True)
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
    speeds: tuple[float | None, ...],
    seeds: int,
    processes: int,
    page_only: bool,
) -> None:
    """Run what has no result yet."""
    try:
        known = traces_in(trace_folder) if trace_folder else ()
        cases = chosen_cases((*traces, *known), only)
        draws = draws_of(cases, starts_s, seeds=seeds, speeds=speeds)
        jobs = jobs_of(draws, names or POLICIES)
    except (NoCaseError, UnknownPolicyError) as error:
        raise click.UsageError(str(error)) from error
    folder.mkdir(parents=True, exist_ok=True)
    if not page_only:
        _run(jobs, folder, processes)
    runs = {job: run for job in jobs if (run := read(folder, job))}
    if page:
        write_page(page, report(jobs, runs, left_out=left_out(jobs)))
        click.echo(f"wrote {page}")
    failed = [job for job, run in runs.items() if run.error or run.faults]
    if failed or len(runs) < len(jobs):
        raise click.ClickException(
            f"{len(failed)} runs failed, {len(jobs) - len(runs)} were not run"
        )


def _run(jobs: Sequence[Job], folder: Path, num_processes: int) -> None:
    began_s, num_run = time.perf_counter(), 0
    known = sum(1 for job in jobs if (run := read(folder, job)) and not run.error)
    click.echo(f"{len(jobs)} runs, {known} of them done before")
    try:
        for job, run in chain.from_iterable(all_done(jobs, folder, num_processes)):
            num_run += 1
            click.echo(f"[{known + num_run}/{len(jobs)}] {job}: {told(run)}, {run.cpu_s:.0f} s")
    except BrokenProcessPool:
        click.echo("a process was ended from outside; start again to go on", err=True)
    click.echo(f"{num_run} runs in {time.perf_counter() - began_s:.0f} s")


if __name__ == "__main__":
    main()
