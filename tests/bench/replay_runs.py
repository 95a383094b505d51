"""The runs of the replay benchmark, one JSON file each, so that a stopped benchmark goes on.

A file says what was asked, what came of it, and of which sources of Tonnage. One that failed is
tried again, one that ended is not; remove the files of a policy to run it anew.
"""

import hashlib
import json
import math
import re
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass, fields, replace
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

import click
import replay_others
from replay_cases import Case, View, scenario, setup_of
from replay_others.registry import ALL

import tonnage
from tonnage.replay.evaluation import QUANTILES
from tonnage.replay.policies import PolicyResult, Scenario
from tonnage.replay.policy import TONNAGE, policy_of
from tonnage.termination import process_pool
from tonnage.units import MINUTE_S

DIGITS = 12
"""Of a digest."""
BESIDE = frozenset({"cli", "cluster", "fleet"})
"""Parts of Tonnage that no replay imports."""
MOST_AT_ONCE = 24
"""Policies of a draw that one process runs, before anybody hears of them."""
USUAL = View()
REFUSING = "+inTime"
"""After the name of a policy: its engines refuse what would be late, for all else the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """What chance decides in a case, the same for all policies."""

    case: Case
    start_s: float
    """A cold start, in the mean."""
    speed: float | None
    """Of engines, against what is believed; None: drawn by seed."""
    seed: int
    declared: float = 1.0
    """Of the rate that comes, as the spec declares it."""
    view: View = USUAL

    def scenario(self) -> Scenario:
        found = scenario(
            self.case,
            start_s=self.start_s,
            seed=self.seed,
            speed=self.speed,
            declared=self.declared,
        )
        return self.view.of(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One policy in one draw."""

    draw: Draw
    policy: str

    def __str__(self) -> str:
        draw = self.draw
        view = "" if draw.view == USUAL else f"{draw.view}, "
        return f"{draw.case}, {draw.start_s:g} s, seed {draw.seed}, {view}{self.policy}"

    @property
    def file_name(self) -> str:
        draw = self.draw
        speed = "drawn" if draw.speed is None else f"{draw.speed:g}"
        parts = (
            str(draw.case),
            f"start {draw.start_s:g}",
            f"speed {speed}",
            f"seed {draw.seed}",
            *([] if draw.declared == 1 else [f"declared {draw.declared:g}"]),
            *([] if draw.view == USUAL else [str(draw.view)]),
            self.policy,
        )
        return "--".join(re.sub(r"[^A-Za-z0-9.-]+", "_", part) for part in parts) + ".json"

    def asked(self) -> dict[str, Any]:
        """Return all that a run hangs on but the sources, as data."""
        return {
            "case": str(self.draw.case),
            "startUpSeconds": self.draw.start_s,
            "speed": self.draw.speed,
            "seed": self.draw.seed,
            **({} if self.draw.declared == 1 else {"declared": self.draw.declared}),
            **({} if self.draw.view == USUAL else {"view": asdict(self.draw.view)}),
            "policy": self.policy,
            **setup_of(self.draw.case),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What came of a job, as its file has it."""

    cpu_s: float
    """What it took; the first of a draw pays for what the others share."""
    sources: str
    """Digest of the package that ran."""
    error: str | None = None
    """Why it failed; then there are no figures."""
    figures: dict[str, Any] | None = None
    """None: there is no such fleet, as notes say."""
    notes: tuple[str, ...] = ()
    faults: tuple[str, ...] = ()
    """Bugs that ticks met."""


def run_of(job: Job, drawn: Callable[[], Scenario], sources: str) -> Run:
    """Run a job; what goes wrong is part of the answer."""
    began_s = time.process_time()
    try:
        outcome = drawn().outcome_of(policy_of(job.policy, ALL), ALL)
    except Exception:  # told, with the run that it ended
        return Run(
            cpu_s=time.process_time() - began_s, sources=sources, error=traceback.format_exc()
        )
    return Run(
        cpu_s=time.process_time() - began_s,
        sources=sources,
        figures=figures_of(outcome),
        notes=outcome.notes,
        faults=outcome.faults,
    )


def figures_of(outcome: PolicyResult) -> dict[str, Any] | None:
    judged = outcome.judged
    if judged is None:
        return None
    return {
        "duration_s": judged.duration_s,
        "num_requests": judged.num_requests,
        "num_unserved": judged.num_unserved,
        "num_too_long": judged.num_too_long,
        "gpu_hours": judged.gpu_hours,
        "fluid_gpu_hours": outcome.fluid_gpu_hours,
        "attainment": judged.attainment,
        "worst_hour": judged.worst_hour,
        "scaled_up": judged.scaled_up,
        "scaled_down": judged.scaled_down,
        "mean_replicas": judged.mean_replicas,
        "max_replicas": judged.max_replicas,
        "wasted_replica_minutes": (judged.starting_s + judged.draining_s) / MINUTE_S,
        "ttft_s": _by_quantile(judged.ttft_s),
        "tpot_s": _by_quantile(judged.tpot_s),
    }


def _by_quantile(values: Sequence[float]) -> dict[str, float | None]:
    """None: endless, as of requests that nobody served, or of no requests."""
    return {
        f"p{100 * quantile:g}": value if math.isfinite(value) else None
        for quantile, value in zip(QUANTILES, values, strict=True)
    }


def sources_digest() -> str:
    """Return which Tonnage this is, uncommitted changes included, as far as a run can tell."""
    found = hashlib.sha256()
    for package in (Path(tonnage.__file__).parent, Path(replay_others.__file__).parent):
        for path in sorted(package.rglob("*")):
            name = path.relative_to(package)
            if path.suffix in {".py", ".toml"} and name.parts[0] not in BESIDE:
                found.update(str(name).encode() + path.read_bytes())
    return found.hexdigest()[:DIGITS]


def write(folder: Path, job: Job, run: Run) -> None:
    """Write a file as a whole: one that is there has ended."""
    path = folder / job.file_name
    draft = path.with_suffix(".draft")
    draft.write_text(json.dumps({"asked": job.asked(), **asdict(run)}, indent=1, allow_nan=False))
    draft.replace(path)


def read(folder: Path, job: Job) -> Run | None:
    """Return the run of a job; None: there is none, or another form, or another question."""
    path = folder / job.file_name
    if not path.exists():
        return None
    content = json.loads(path.read_text())
    if content.pop("asked") != job.asked() or content.keys() != {each.name for each in fields(Run)}:
        return None
    return Run(**content)


def all_done(
    jobs: Sequence[Job], folder: Path, num_processes: int
) -> Iterator[Sequence[tuple[Job, Run]]]:
    """Run what has no result yet, or failed, write its file, and yield some of one draw."""
    sources = sources_digest()
    found = ((job, read(folder, job)) for job in jobs)
    due: dict[Draw, list[Job]] = {}
    for job in (job for job, run in found if run is None or run.error):
        due.setdefault(job.draw, []).append(job)
    with process_pool(num_processes) as pool:
        futures = [
            pool.submit(_written, folder, draw, of_draw[first : first + MOST_AT_ONCE], sources)
            for draw, of_draw in due.items()
            for first in range(0, len(of_draw), MOST_AT_ONCE)
        ]
        for future in as_completed(futures):
            yield future.result()


def _written(
    folder: Path, draw: Draw, jobs: Sequence[Job], sources: str
) -> Sequence[tuple[Job, Run]]:
    """Run jobs of a draw, and write each file here, so that it stays if nobody waits for it."""
    drawn = cache(draw.scenario)
    found = []
    for job in jobs:
        found.append((job, run_of(job, drawn, sources)))
        write(folder, *found[-1])
    return found


def run_all(jobs: Sequence[Job], folder: Path, num_processes: int) -> None:
    """Run what has no result yet, and say what came of each."""
    folder.mkdir(parents=True, exist_ok=True)
    known = sum(1 for job in jobs if (run := read(folder, job)) and not run.error)
    click.echo(f"{len(jobs)} runs, {known} of them done before")
    try:
        for job, run in chain.from_iterable(all_done(jobs, folder, num_processes)):
            click.echo(f"{job}: {told(run)}, {run.cpu_s:.0f} s")
    except BrokenProcessPool:
        click.echo("a process was ended from outside; start again to go on", err=True)


def done(
    draws: Sequence[Draw], policies: Sequence[str], folder: Path, num_processes: int
) -> Mapping[Draw, Mapping[str, Run]]:
    """Run all policies in all draws, and return what came of each."""
    jobs = {draw: {policy: job_of(draw, policy) for policy in policies} for draw in draws}
    each = dict.fromkeys(job for by_policy in jobs.values() for job in by_policy.values())
    run_all([*each], folder, num_processes)
    return {
        draw: {name: run for name, job in by_policy.items() if (run := read(folder, job))}
        for draw, by_policy in jobs.items()
    }


def job_of(draw: Draw, policy: str) -> Job:
    """Return the job of a policy: Tonnage runs with its own flags in every view."""
    name, view = policy.removesuffix(REFUSING), draw.view
    if name != policy:
        view = replace(view, admission="inTime")
    if name == TONNAGE:
        view = replace(view, has_vllm_flags=False)
    return Job(draw=replace(draw, view=view), policy=name)


def told(run: Run) -> str:
    if run.error:
        return f"FAILED: {run.error.strip().splitlines()[-1]}"
    if run.figures is None:
        return "; ".join(run.notes)
    faults = f", {len(run.faults)} ticks FAILED" if run.faults else ""
    return f"{run.figures['gpu_hours']:.2f} GPU-h, {run.figures['attainment']:.2%} kept{faults}"
