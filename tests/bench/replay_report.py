"""The pages of replays: how policies fare over all runs, who won case by case, and each run."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from statistics import fmean

from replay_cases import CONTEXT_TOKENS, MAX_REPLICAS, TARGET
from replay_others.registry import KNOWS_TRUTH
from replay_runs import Draw, Job, Run

from tonnage.replay.policies import LOST_SCRAPES
from tonnage.replay.policy import BEST_STATIC, IN_TIME, TONNAGE
from tonnage.units import HOUR_S, significant

Found = Mapping[Draw, Mapping[str, Run]]
"""The runs of a draw, by policy."""
IN_HINDSIGHT = frozenset({BEST_STATIC, KNOWS_TRUTH})
"""What is handed the traffic, or what a replica serves."""
BESIDE = IN_HINDSIGHT | {IN_TIME}
"""What nobody competes with: refusals, which any autoscaler could have, and what is handed the
traffic or what a replica serves."""
EVEN = 0.005
"""Costs that differ by no more are equal."""
NONE = "-"
WHOLE_MEANING = f"""\
- kept: runs in which {TARGET:.0%} of the requests met TTFT and TPOT. of what can be: of the runs
  that any policy of this table keeps which knows no more than Tonnage does.
- mean, worst: of the share of requests. worst hour: the least share in any 60 minutes of any run.
- over Tonnage's: GPU-hours of all runs that both have."""
MEANING = f"""\
Simulated, not measured. 8 billion parameters on H100, one GPU a replica, contextLength
{CONTEXT_TOKENS}, 1 to {MAX_REPLICAS} replicas. All policies get the same requests, engines, cold
starts and first replicas (Tonnage's plan for the demand that the spec declares). Rivals are models
of them, with the knobs that their projects ship unless a number stands behind the name.
Cold starts vary by 25 % to either side, {LOST_SCRAPES:.0%} of scrapes are lost.

- kept: requests with TTFT within 2 s and mean TPOT within 50 ms, of all that came; target
  {TARGET:.0%}. worst hour: the least share in any 60 minutes.
- of peak: GPU-hours over those of `{BEST_STATIC}`, in hindsight the smallest constant fleet that
  keeps the target.
- `{KNOWS_TRUTH}` is handed what a replica truly serves. `{IN_TIME}` is
  Tonnage with engines that refuse at once what would be late (refused counts as missed). Engines of
  any policy could do so: it is shown, not compared."""


def figures_of_policy(found: Found, policy: str) -> dict[Draw, Mapping[str, float]]:
    """Return the figures of a policy's runs that have any."""
    runs = ((draw, by_policy.get(policy)) for draw, by_policy in found.items())
    return {draw: run.figures for draw, run in runs if run and run.figures}


def over_all(found: Found, policies: Sequence[str]) -> str:
    """Return the table of how each policy fares in all runs that it has."""
    by_policy = {name: figures_of_policy(found, name) for name in policies}
    kept = {
        name: {draw for draw, each in figures.items() if each["attainment"] >= TARGET}
        for name, figures in by_policy.items()
    }
    can_be = set[Draw]().union(*(kept[name] for name in policies if name not in IN_HINDSIGHT))
    rows = [
        "| policy | runs | kept | of what can be | mean | worst | worst hour | over Tonnage's |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, figures in by_policy.items():
        if not figures:
            continue
        shares = [each["attainment"] for each in figures.values()]
        hours = [each["worst_hour"] for each in figures.values()]
        ratio = _gpu_hours_over(figures, by_policy.get(TONNAGE, {}))
        rows.append(
            f"| {name} | {len(shares)} | {len(kept[name])} "
            f"| {len(kept[name] & can_be)} of {len(figures.keys() & can_be)} "
            f"| {fmean(shares):.1%} | {min(shares):.1%} | {min(hours):.1%} | {ratio:.2f} |"
        )
    return "\n".join(rows)


def _gpu_hours_over(
    figures: Mapping[Draw, Mapping[str, float]], own: Mapping[Draw, Mapping[str, float]]
) -> float:
    both = figures.keys() & own.keys()
    hours, of_own = (sum(each[draw]["gpu_hours"] for draw in both) for each in (figures, own))
    return hours / of_own if of_own else math.nan


def cell(run: Run | None) -> str:
    """Return the share kept and the GPU-hours of one run."""
    if run is None or run.figures is None:
        return NONE
    share = f"{run.figures['attainment']:.2%}"
    shown = share if run.figures["attainment"] >= TARGET else f"**{share}**"
    return f"{shown} / {run.figures['gpu_hours']:.2f}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fared:
    """One policy in one draw."""

    policy: str
    attainment: float
    gpu_hours: float

    @property
    def keeps(self) -> bool:
        return self.attainment >= TARGET


@dataclass(frozen=True, slots=True, kw_only=True)
class Meeting:
    """All policies in one draw."""

    place: str
    fared: Mapping[str, Fared]
    """Those with figures, by name."""

    @property
    def own(self) -> Fared | None:
        return self.fared.get(TONNAGE)

    @property
    def blind(self) -> list[Fared]:
        """Return those that know no more than Tonnage, itself included."""
        return [each for name, each in self.fared.items() if name.partition(":")[0] not in BESIDE]

    @property
    def rivals(self) -> list[Fared]:
        """Return others of them that keep the target, the cheapest first."""
        found = [each for each in self.blind if each.keeps and each.policy != TONNAGE]
        return sorted(found, key=lambda each: each.gpu_hours)


def place_of(draw: Draw) -> str:
    """Name where policies meet."""
    return f"{draw.case}, cold start {draw.start_s:g} s"


def meetings(runs: Mapping[Job, Run]) -> list[Meeting]:
    """Return the draws in the order of their jobs."""
    found: dict[Draw, dict[str, Fared]] = {}
    for job, run in runs.items():
        if run.figures:
            attainment, gpu_hours = run.figures["attainment"], run.figures["gpu_hours"]
            fared = Fared(policy=job.policy, attainment=attainment, gpu_hours=gpu_hours)
            found.setdefault(job.draw, {})[job.policy] = fared
    return [Meeting(place=place_of(draw), fared=each) for draw, each in found.items()]


def report(jobs: Sequence[Job], runs: Mapping[Job, Run], *, left_out: Sequence[str]) -> str:
    """Return the summary; ``left_out``: what of the whole benchmark was not asked for, in words."""
    found = meetings(runs)
    sections = [
        "# Replay: policies on the same requests",
        "Written by `tests/bench/replay.py`.",
        "\n".join(_covered(jobs, runs, left_out)),
        MEANING,
        "## Over all runs",
        WHOLE_MEANING,
        over_all(*_whole(runs)),
        "## Wins and losses",
        "\n".join(_wins(found)),
    ]
    failed = list(_failures(jobs, runs))
    if failed:
        sections += ["## Not run, or failed", "\n".join(failed)]
    return "\n\n".join(sections) + "\n"


def _whole(runs: Mapping[Job, Run]) -> tuple[Mapping[Draw, Mapping[str, Run]], list[str]]:
    """Return the runs by draw, and the policies as they are shipped where they ran so."""
    found: dict[Draw, dict[str, Run]] = {}
    for job, run in runs.items():
        found.setdefault(job.draw, {})[job.policy] = run
    names = dict.fromkeys(job.policy for job in runs)
    shipped = [each for each in names if ":" not in each]
    return found, shipped or list(names)


def _covered(jobs: Sequence[Job], runs: Mapping[Job, Run], left_out: Sequence[str]) -> list[str]:
    def told(values: Sequence[object]) -> str:
        return ", ".join(dict.fromkeys(map(str, values)))

    ended = [run for run in runs.values() if not run.error]
    sources = _sources(runs)
    lines = [
        f"{len(ended)} of {len(jobs)} runs, {sum(run.cpu_s for run in ended) / HOUR_S:.2g} h of "
        "CPU; sources " + (told([*sources]) or NONE) + ".",
        f"Cases: {told([job.draw.case for job in jobs])}. "
        f"Cold starts: {told([f'{job.draw.start_s:g} s' for job in jobs])}. "
        f"Policies: {told([job.policy.partition(':')[0] for job in jobs])}.",
    ]
    if len(sources) > 1:
        lines += [f"By {source}: {told(policies)}." for source, policies in sources.items()]
    if mixed := [policy for policy, num in Counter(chain(*sources.values())).items() if num > 1]:
        lines.append(f"**Runs of {told(mixed)} by different sources may not belong together.**")
    if left_out:
        lines.append(f"**Partial: {'; '.join(left_out)}.**")
    return lines


def _sources(runs: Mapping[Job, Run]) -> Mapping[str, Sequence[str]]:
    """Return the policies that ran, by the digest of the sources that they ran by."""
    found: dict[str, dict[str, None]] = {}
    for job, run in runs.items():
        found.setdefault(run.sources, {})[job.policy.partition(":")[0]] = None
    return {source: tuple(policies) for source, policies in sorted(found.items())}


def _wins(found: Sequence[Meeting]) -> Iterator[str]:
    """Yield who won where; nothing is averaged over cases."""
    yield f"Of {len(found)} cases with figures Tonnage {_counted(found)}."
    yield (
        "Compared are policies that keep the target and know no more than Tonnage does, with the "
        "knobs that their projects ship. "
        f"`{BEST_STATIC}` and `{KNOWS_TRUTH}` stand beside."
    )
    yield ""
    first = "cheapest that keeps the target, or who kept most"
    yield f"| case | {first} | Tonnage | {BEST_STATIC} | {KNOWS_TRUTH} |"
    yield "|---|---|---|---|---|"
    for each in found:
        beside = " | ".join(_beside(each.fared.get(name)) for name in (BEST_STATIC, KNOWS_TRUTH))
        yield f"| {each.place} | {_first(each)} | {verdict(each)[1]} | {beside} |"


def _counted(found: Iterable[Meeting]) -> str:
    groups = Counter(verdict(each)[0] for each in found)
    return ", ".join(f"{kind} in {number}" for kind, number in groups.items()) or NONE


def _first(found: Meeting) -> str:
    """Return the cheapest that keeps the target; without one, who came nearest."""
    if kept := [each for each in found.blind if each.keeps]:
        best = min(kept, key=lambda each: each.gpu_hours)
        return f"{best.policy}, {_hours(best)} GPU-h"
    if not found.blind:
        return NONE
    nearest = max(found.blind, key=lambda each: each.attainment)
    return f"none; {nearest.policy} kept {nearest.attainment:.2%} at {_hours(nearest)} GPU-h"


def verdict(found: Meeting) -> tuple[str, str]:
    """Return how Tonnage fared in a word, and with figures."""
    own, rivals = found.own, found.rivals
    if own is None:
        return "has no figures", "no figures"
    if not own.keeps:
        missing = 100 * (TARGET - own.attainment)
        who = "where others keep it" if rivals else "as all do"
        return (
            f"misses the target {who}",
            f"**misses by {missing:.2f} points** at {_hours(own)} GPU-h",
        )
    if not rivals:
        return "alone keeps the target", f"alone keeps it, {_hours(own)} GPU-h"
    ratio = own.gpu_hours / rivals[0].gpu_hours
    words = f"{abs(ratio - 1):.1%} {'dearer' if ratio > 1 else 'cheaper'} than {rivals[0].policy}"
    if abs(ratio - 1) <= EVEN:
        return "is even", f"even with {rivals[0].policy}"
    return ("loses", f"**{words}**") if ratio > 1 else ("wins", words)


def _beside(each: Fared | None) -> str:
    if each is None:
        return NONE
    return f"{_hours(each)}{'' if each.keeps else ', missed'}"


def _not_run(jobs: Sequence[Job], runs: Mapping[Job, Run]) -> Iterator[str]:
    """Yield what has no run, the policies of a draw in one line."""
    missing: dict[Draw, list[str]] = {}
    for job in (job for job in jobs if job not in runs):
        missing.setdefault(job.draw, []).append(job.policy)
    for draw, policies in missing.items():
        yield f"- {place_of(draw)}, not run: {', '.join(policies)}"


def _failures(jobs: Sequence[Job], runs: Mapping[Job, Run]) -> Iterator[str]:
    yield from _not_run(jobs, runs)
    for job, run in ((job, runs[job]) for job in jobs if job in runs):
        if run.error:
            yield f"- {job}: {_why(job, run.error)}"
        elif run.figures is None:
            yield f"- {job}: no such fleet: {'; '.join(run.notes)}"
        else:
            yield from (f"- {job}: a tick failed: {fault}" for fault in run.faults)


def _why(job: Job, error: str) -> str:
    """Return what was raised; of a trace its name, not where it lies on one machine."""
    last = error.strip().splitlines()[-1]
    file = job.draw.case.file
    return last if file is None else last.replace(str(file), file.name)


def _hours(each: Fared) -> str:
    return significant(each.gpu_hours)
