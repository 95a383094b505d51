"""Replay every policy on every case, and write who kept the target at what cost.

    python tests/bench/replay.py --out runs --page tests/bench/replay.md --traces FOLDER
    python tests/bench/replay.py --out runs --only step,drift --policy tonnage,static-peak --seeds 1
    python tests/bench/replay.py --out runs day.csv.gz:6 week.parquet:0.5:0h-48h --only day,week

Cases are the synthetic shapes and the traces given (``replay_cases``). Rivals run with the knobs
that their projects ship, and for the frontier of cost and attainment with others, at one cold start
and one seed. A day takes too long for several seeds. Each run leaves a JSON file below ``--out``,
and what has one is not run again, whatever the sources are now: start with another folder after a
change, or remove the files of a policy (``rm runs/*--tonnage.json``). A run that failed is tried
again.
"""

import time
from collections.abc import Sequence
from concurrent.futures.process import BrokenProcessPool
from itertools import chain, product
from pathlib import Path

import click
from bench_options import OUT, PAGE, PROCESSES
from measured import write_page
from replay_cases import (
    TRACES,
    Case,
    NoCaseError,
    chosen_cases,
    shape_cases,
    trace_case,
    traces_in,
)
from replay_others.registry import ALL, SWEEPS
from replay_report import details, report
from replay_runs import Draw, Job, Run, all_done, read

from tonnage.replay.policy import (
    IN_TIME,
    NEWEST_FIRST,
    OWN,
    STATIC_PEAK,
    TONNAGE,
    Policy,
    UnknownPolicyError,
    policy_of,
)

POLICIES = (
    TONNAGE, NEWEST_FIRST, IN_TIME, STATIC_PEAK, "hpa-concurrency", "keda-epp-queue",
    "llmd-slo", "wva2", "wva-queueing", "dynamo-classic", "ray", "true-rate", "wva-throughput",
    "llm-scaling-manager",
)  # fmt: skip
STARTS_S = (60.0, 120.0, 240.0, 600.0)
SEEDS = 5
LONG = frozenset({"diurnal"})
"""Cases that are run with one seed, and without other knobs."""
SWEPT_AT_S, SWEPT_SEED = 240.0, 0
DRAWN = "drawn"


def swept(names: Sequence[str]) -> list[str]:
    """Return a rival that has a knob by each of its values but the one that it is shipped with."""
    policies = [policy_of(each, ALL) for each in names]
    rivals = [each.name for each in policies if each.knob is None and each.name not in OWN]
    return [
        str(Policy(name=each, knob=knob))
        for each in rivals
        for knob in SWEEPS[each]
        if knob != ALL[each].default
    ]


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
        if seed == SWEPT_SEED or not _is_long(case)
    ]


def jobs_of(draws: Sequence[Draw], names: Sequence[str], *, sweep: bool) -> list[Job]:
    """Return all runs, by draw; ``sweep``: rivals with all values of their knobs, too."""
    policies, others = [str(policy_of(each, ALL)) for each in names], swept(names) if sweep else []
    return [
        Job(draw=draw, policy=policy)
        for draw in draws
        for policy in dict.fromkeys((*policies, *(others if _is_swept(draw) else ())))
    ]


def _is_swept(draw: Draw) -> bool:
    return (draw.start_s, draw.seed) == (SWEPT_AT_S, SWEPT_SEED) and not _is_long(draw.case)


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
        "knobs": (swept(POLICIES), set(policies)),
    }
    return [
        f"without the {what} {', '.join(map(_told, missing))}"
        for what, (whole, there) in asked.items()
        if (missing := [each for each in whole if each not in there])
    ]


def _told(value: object) -> str:
    return f"{value:g} s" if isinstance(value, float) else str(value)


def told(run: Run) -> str:
    if run.error:
        return f"FAILED: {run.error.strip().splitlines()[-1]}"
    if run.figures is None:
        return "; ".join(run.notes)
    faults = f", {len(run.faults)} ticks FAILED" if run.faults else ""
    return f"{run.figures['gpu_hours']:.2f} GPU-h, {run.figures['attainment']:.2%} kept{faults}"


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
@click.option(
    "--long-form",
    type=click.Path(path_type=Path),
    default="build/replay.md",
    show_default=True,
    help="With --page: Markdown of each case, of knobs and of seeds.",
)
@click.option("--only", callback=_names, help="CASE,...: shapes and names of traces.")
@click.option("--policy", "names", callback=_names, help="NAME[:KNOB],... instead of all.")
@click.option(
    "--traces",
    "trace_folder",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Folder with the traces of the whole benchmark, whose windows are known.",
)
@click.option(
    "--sweep/--no-sweep",
    default=True,
    help=f"Rivals with all values of their knobs, too: seed {SWEPT_SEED}, {SWEPT_AT_S:g} s.",
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
    long_form: Path,
    only: tuple[str, ...],
    names: tuple[str, ...],
    sweep: bool,
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
        jobs = jobs_of(draws, names or POLICIES, sweep=sweep)
    except (NoCaseError, UnknownPolicyError) as error:
        raise click.UsageError(str(error)) from error
    folder.mkdir(parents=True, exist_ok=True)
    if not page_only:
        _run(jobs, folder, processes)
    runs = {job: run for job in jobs if (run := read(folder, job))}
    if page:
        write_page(page, report(jobs, runs, left_out=left_out(jobs)))
        long_form.parent.mkdir(exist_ok=True)
        long_form.write_text(details(runs))
        click.echo(f"wrote {page} and {long_form}")
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
