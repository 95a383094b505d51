"""The page of the replay benchmark: a table for each case, and who won, case by case."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from statistics import median

from replay_cases import CONTEXT_TOKENS, MAX_REPLICAS, TARGET, Case
from replay_others.registry import KNOWS_TRUTH
from replay_runs import Draw, Job, Run
from replay_whole import IN_HINDSIGHT, WHOLE_MEANING, over_all

from tonnage.replay.policy import IN_TIME, NEWEST_FIRST, STATIC_PEAK, TONNAGE
from tonnage.replay.scenario import LOST_SCRAPES
from tonnage.units import DAY_S, HOUR_S, format_s, significant

BESIDE = IN_HINDSIGHT | {NEWEST_FIRST, IN_TIME}
"""What nobody competes with: another queue or refusals, which any autoscaler could have, and what
is handed the traffic or what a replica serves."""
EVEN = 0.005
"""Costs that differ by no more are equal."""
NONE = "-"
HEADER = "| policy | GPU-h | of peak | kept | worst hour | actions/day |\n|---|---|---|---|---|---|"
LONG = (
    "Frontiers of knobs, the spread of seeds and a table of each case: `build/replay.md`, which "
    "the same run writes."
)
MEANING = f"""\
Simulated, not measured. 8 billion parameters on H100, one GPU a replica, contextLength
{CONTEXT_TOKENS}, 1 to {MAX_REPLICAS} replicas. All policies get the same requests, engines, cold
starts and first replicas (Tonnage's plan for the demand that the spec declares); those of rivals
are models of them, with the knobs that their projects ship unless a number stands behind the name.
Cold starts vary by 25 % to either side, {LOST_SCRAPES:.0%} of scrapes are lost.

- kept: requests with TTFT within 2 s and mean TPOT within 50 ms, of all that came; target
  {TARGET:.0%}. worst hour: the least share in any 60 minutes, of all seeds.
- of peak: GPU-hours over those of `{STATIC_PEAK}`, in hindsight the smallest constant fleet that
  keeps the target.
- `{KNOWS_TRUTH}` is handed what a replica truly serves. `{NEWEST_FIRST}` and `{IN_TIME}` are
  Tonnage with another order of the queue, and with engines that refuse at once what would be late
  (refused counts as missed). Engines of any policy could do so: both are shown, and not compared.
- With several seeds: medians, ratios each seed by itself; in brackets the least of the seeds. Not
  all policies have the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where policies meet: a case with one mean cold start and one speed of engines."""

    case: Case
    start_s: float
    speed: float | None

    @classmethod
    def of(cls, job: Job) -> "Place":
        return cls(case=job.draw.case, start_s=job.draw.start_s, speed=job.draw.speed)

    def __str__(self) -> str:
        engines = {None: ", engines drawn", 1.0: ""}.get(self.speed, f", engines x {self.speed}")
        return f"{self.case}, cold start {self.start_s:g} s{engines}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fared:
    """One policy at one place, by seed."""

    policy: str
    runs: Mapping[int, Run]
    """Those with figures."""
    judged: Callable[[Sequence[float]], float] = median
    """Which of the seeds' shares has to keep the target."""

    def values(self, name: str) -> list[float]:
        return [run.figures[name] for run in self.runs.values() if run.figures]

    def middle(self, name: str) -> float:
        return median(self.values(name))

    @property
    def keeps(self) -> bool:
        return bool(self.runs) and self.judged(self.values("attainment")) >= TARGET

    @property
    def actions_per_day(self) -> float:
        ups, downs = self.values("scaled_up"), self.values("scaled_down")
        spans_s = self.values("duration_s")
        return median(
            (up + down) * DAY_S / span_s
            for up, down, span_s in zip(ups, downs, spans_s, strict=True)
        )

    def over(self, other: "Fared | None") -> float | None:
        """Return the GPU-hours over another's, each seed by itself; the median."""
        ratios = [
            run.figures["gpu_hours"] / rival.figures["gpu_hours"]
            for seed, run in self.runs.items()
            if other and (rival := other.runs.get(seed)) and run.figures and rival.figures
        ]
        return median(ratios) if ratios else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Meeting:
    """All policies at one place."""

    place: Place
    fared: Mapping[str, Fared]
    """Those with figures, by name."""
    asked: frozenset[str]
    """All policies, those without figures too."""

    @property
    def own(self) -> Fared | None:
        return self.fared.get(TONNAGE)

    @property
    def families(self) -> dict[str, list[Fared]]:
        """Return each policy with all values of its knob that were run."""
        found: dict[str, list[Fared]] = {}
        for name, each in self.fared.items():
            found.setdefault(name.partition(":")[0], []).append(each)
        return found

    @property
    def blind(self) -> list[Fared]:
        """Return those that know no more than Tonnage, itself included.

        Of a policy that was run as it is shipped that alone: which other knob is best is hindsight.
        """
        return [
            each
            for base, family in self.families.items()
            if base not in BESIDE
            for each in family
            if each.policy == base or base not in self.asked
        ]

    @property
    def rivals(self) -> list[Fared]:
        """Return others of them that keep the target, the cheapest first."""
        found = [each for each in self.blind if each.keeps and each.policy != TONNAGE]
        return sorted(found, key=lambda each: each.middle("gpu_hours"))

    @property
    def in_each_seed(self) -> "Meeting":
        """Return it with the target to be kept in each of the seeds, not in their median."""
        fared = {name: replace(each, judged=min) for name, each in self.fared.items()}
        return replace(self, fared=fared)


def meetings(runs: Mapping[Job, Run]) -> list[Meeting]:
    """Return the places in the order of their jobs."""
    places: dict[Place, dict[str, dict[int, Run]]] = {}
    asked: dict[Place, set[str]] = {}
    for job, run in runs.items():
        asked.setdefault(Place.of(job), set()).add(job.policy)
        if run.figures:
            by_policy = places.setdefault(Place.of(job), {})
            by_policy.setdefault(job.policy, {})[job.draw.seed] = run
    return [
        Meeting(
            place=place,
            fared={name: Fared(policy=name, runs=found) for name, found in by_policy.items()},
            asked=frozenset(asked[place]),
        )
        for place, by_policy in places.items()
    ]


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
        LONG,
    ]
    failed = list(_failures(jobs, runs))
    if failed:
        sections += ["## Not run, or failed", "\n".join(failed)]
    return "\n\n".join(sections) + "\n"


def details(runs: Mapping[Job, Run]) -> str:
    """Return the long form: the best of each knob, how far seeds are apart, and every case."""
    found = meetings(runs)
    cases = (_section(each, runs) for each in found)
    return "\n\n".join(["# Replay, in full", *_frontiers(found), *_seeds(found), *cases]) + "\n"


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
        f"Seeds: {told([job.draw.seed for job in jobs])}. "
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
    strict = _counted([each.in_each_seed for each in found])
    yield f"With the target kept in each of the seeds, not in their median, it {strict}."
    yield (
        "Compared are policies that keep the target and know no more than Tonnage does, with the "
        "knobs that their projects ship: others are in the long form. "
        f"`{STATIC_PEAK}` and `{KNOWS_TRUTH}` stand beside."
    )
    yield ""
    first = "cheapest that keeps the target, or who kept most"
    yield f"| case | {first} | Tonnage | {STATIC_PEAK} | {KNOWS_TRUTH} |"
    yield "|---|---|---|---|---|"
    for each in found:
        beside = " | ".join(_beside(each.fared.get(name)) for name in (STATIC_PEAK, KNOWS_TRUTH))
        words = verdict(each)[1] + (_worst_seed(each.own) if each.own else "")
        yield f"| {each.place} | {_first(each)} | {words} | {beside} |"


def _counted(found: Iterable[Meeting]) -> str:
    groups = Counter(verdict(each)[0] for each in found)
    return ", ".join(f"{kind} in {number}" for kind, number in groups.items()) or NONE


def _worst_seed(each: Fared) -> str:
    """Say how much the worst seed keeps, where that is too little but the median is not."""
    least = min(each.values("attainment"))
    return f"; {least:.2%} in the worst seed" if each.keeps and least < TARGET else ""


def _first(found: Meeting) -> str:
    """Return the cheapest that keeps the target; without one, who came nearest."""
    if kept := [each for each in found.blind if each.keeps]:
        best = min(kept, key=lambda each: each.middle("gpu_hours"))
        return f"{best.policy}, {_hours(best)} GPU-h{_worst_seed(best)}"
    if not found.blind:
        return NONE
    nearest = max(found.blind, key=lambda each: each.middle("attainment"))
    share = nearest.middle("attainment")
    return f"none; {nearest.policy} kept {share:.2%} at {_hours(nearest)} GPU-h"


def verdict(found: Meeting) -> tuple[str, str]:
    """Return how Tonnage fared in a word, and with figures."""
    own, rivals = found.own, found.rivals
    if own is None:
        return "has no figures", "no figures"
    if not own.keeps:
        missing = 100 * (TARGET - own.middle("attainment"))
        who = "where others keep it" if rivals else "as all do"
        return (
            f"misses the target {who}",
            f"**misses by {missing:.2f} points** at {_hours(own)} GPU-h",
        )
    if not rivals:
        return "alone keeps the target", f"alone keeps it, {_hours(own)} GPU-h"
    ratio = own.over(rivals[0]) or math.nan
    words = f"{abs(ratio - 1):.1%} {'dearer' if ratio > 1 else 'cheaper'} than {rivals[0].policy}"
    if abs(ratio - 1) <= EVEN:
        return "is even", f"even with {rivals[0].policy}"
    return ("loses", f"**{words}**") if ratio > 1 else ("wins", words)


def _beside(each: Fared | None) -> str:
    if each is None:
        return NONE
    return f"{_hours(each)}{'' if each.keeps else ', missed'}"


def _section(found: Meeting, runs: Mapping[Job, Run]) -> str:
    place = found.place
    first = next(iter(found.fared.values()))
    told = f"{first.middle('num_requests'):,.0f} requests in {_span(first.middle('duration_s'))}"
    lines = [
        f"## {place}",
        "",
        f"{told}; as a fluid {significant(first.middle('fluid_gpu_hours'))} GPU-h.",
        "",
        HEADER,
        *(_row(found, each) for each in found.fared.values()),
    ]
    notes = dict.fromkeys(
        f"{job.policy}: {note}"
        for job, run in runs.items()
        if Place.of(job) == place
        for note in run.notes
    )
    return "\n".join([*lines, *([""] if notes else []), *(f"- {note}" for note in notes)])


def _row(found: Meeting, each: Fared) -> str:
    kept, worst = each.values("attainment"), each.values("worst_hour")
    least = f" ({min(kept):.2%})" if len(kept) > 1 else ""
    share = f"{median(kept):.2%}{least}"
    cells = (
        each.policy,
        _hours(each),
        _ratio(each.over(found.fared.get(STATIC_PEAK))),
        share if each.keeps else f"**{share}**",
        f"{min(worst):.2%}",
        f"{each.actions_per_day:.0f}",
    )
    return f"| {' | '.join(cells)} |"


SHARES = (0.99, 0.95)
"""Of requests, for which a frontier names the cheapest knob."""


def _frontiers(found: Sequence[Meeting]) -> list[str]:
    """Return a section on each policy at the best of its knobs; none where none was swept."""
    rows = [
        f"| {meeting.place} | {name} | {len(family)} | "
        + " | ".join(_cheapest(family, share) for share in SHARES)
        + " |"
        for meeting in found
        if any(len(family) > 1 for family in meeting.families.values())
        for name, family in meeting.families.items()
    ]
    if not rows:
        return []
    told = (
        "The cheapest value of each policy's knob that keeps so much, in hindsight, with one seed: "
        "the knob's value (- as shipped), GPU-hours, kept. Tonnage has no knob."
    )
    wanted = " | ".join(f"{share:.0%} kept" for share in SHARES)
    header = f"| case | policy | values | {wanted} |\n|---|---|---|{'---|' * len(SHARES)}"
    return ["## Frontiers", told, "\n".join([header, *rows])]


def _cheapest(family: Sequence[Fared], share: float) -> str:
    seed = min(set[int].intersection(*(set(each.runs) for each in family)), default=None)
    if seed is None:
        return "no seed that all have"
    first = {each.policy: each.runs[seed].figures or {} for each in family}
    kept = [(run["gpu_hours"], name) for name, run in first.items() if run["attainment"] >= share]
    if not kept:
        most = max(run["attainment"] for run in first.values())
        return f"none, {most:.2%} at best"
    gpu_hours, name = min(kept)
    knob = name.partition(":")[2] or NONE
    return f"{knob}, {significant(gpu_hours)} GPU-h, {first[name]['attainment']:.2%}"


def _seeds(found: Sequence[Meeting]) -> list[str]:
    """Return a section on how far seeds are apart; none where nothing was run with several."""
    rows = [
        f"| {meeting.place} | {each.policy} | {_told_seeds(each.runs)} | "
        f"{_spread(each.values('gpu_hours'), significant)} | "
        f"{_spread(each.values('attainment'), '{:.2%}'.format)} |"
        for meeting in found
        for each in meeting.fared.values()
        if len(each.runs) > 1
    ]
    if not rows:
        return []
    header = "| case | policy | seeds | GPU-h | kept |\n|---|---|---|---|---|"
    return ["## Seeds", "Least, median and most of the seeds.", "\n".join([header, *rows])]


def _spread(values: Sequence[float], written: Callable[[float], str]) -> str:
    return " / ".join(map(written, (min(values), median(values), max(values))))


def _told_seeds(seeds: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(seeds)))


def _not_run(jobs: Sequence[Job], runs: Mapping[Job, Run]) -> Iterator[str]:
    """Yield what has no run, the policies of a place with the same seeds in one line."""
    seeds: dict[tuple[Place, str], list[int]] = {}
    for job in jobs:
        if job not in runs:
            seeds.setdefault((Place.of(job), job.policy), []).append(job.draw.seed)
    together: dict[tuple[Place, str], list[str]] = {}
    for (place, policy), missing in seeds.items():
        together.setdefault((place, _told_seeds(missing)), []).append(policy)
    for (place, told), policies in together.items():
        yield f"- {place}, seed {told}, not run: {', '.join(policies)}"


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
    return significant(each.middle("gpu_hours"))


def _ratio(value: float | None) -> str:
    return NONE if value is None else f"{value:.2f}"


def _span(duration_s: float) -> str:
    if duration_s < 2 * HOUR_S:
        return format_s(duration_s)
    return f"{significant(duration_s / HOUR_S)} h"
