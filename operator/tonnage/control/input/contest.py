"""What Tonnage and another writer did to one thing, in turn, and when Tonnage gives way.

A correction is a write of ours over what another manager made of what we had written. Who edits
once by hand is corrected. Who undoes that again and again is given way to: two writers that undo
each other restart engines for ever.
"""

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final, NamedTuple

from tonnage.units import DAY_S, format_s

CORRECTIONS: Final = 3
WITHIN_S: Final = 600
"""So many corrections in this time are a contest: the next change by another is left standing."""
NOBODY: Final = "somebody"
"""Where managedFields name nobody."""
Differences = frozenset[str]
"""Of a pod template from ours, each as it is told."""
QUIET_S: Final = 1800
"""It is tried again when the other has changed nothing for so long."""


class Fate(StrEnum):
    """What became of a write."""

    DONE = "done"
    UNDONE = "undone"
    """Refused, or held back: something else stood there than it was decided on."""
    UNKNOWN = "unknown"
    """No answer came: it may have been carried out."""


class Scaled(NamedTuple):
    """Replicas that were to be written, and what became of it."""

    replicas: int
    fate: Fate = Fate.DONE


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What stands on the Deployment."""

    value: str
    managers: tuple[str, ...]
    """Others than us that own it, or parts of it."""
    generation: int
    """Of the Deployment: the API server counts every change of its spec."""
    is_owned_whole: bool
    """It has one value, so who owns it wrote it. Of a template others may own what we never set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What another manager made of something that Tonnage had written."""

    managers: tuple[str, ...]
    was: str
    became: str
    generation: int
    at_s: float
    """When it was first seen."""
    is_overwritten: bool = False
    is_over: bool = False
    """What was seen since is ours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contest:
    """What is remembered of one thing that others may write too."""

    ours: str | None = None
    """As Tonnage left it; None: no baseline was observed."""
    change: Change | None = None
    """The newest by another."""
    corrected_at_s: tuple[float, ...] = ()
    """Of the last corrections."""
    awaited: tuple[str, int] | None = None
    """(value, generation): another value up to this generation is what our own write came to."""
    written_at: int | None = None
    """Generation of the Deployment that our last write of a whole value came to."""
    tried: str | None = None
    """What a write came to of which no answer tells whether it was carried out."""
    held_at: int | None = None
    """Generation of the ModelDeployment at which Tonnage gave way; None: it writes."""
    times_held: int = 0
    """That it gave way at this generation."""
    longest_quiet_s: float = QUIET_S

    @property
    def quiet_s(self) -> float:
        """For how long nobody else changes it before it is written again."""
        return min(self.longest_quiet_s, QUIET_S * 2.0 ** (self.times_held - 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class Rivals:
    """What is remembered of other writers of one Deployment."""

    deployment_uid: str | None = None
    replicas: Contest = Contest()
    template: Contest = Contest(longest_quiet_s=DAY_S)
    """It is tried again after twice as long each time: each write of it replaces pods."""
    stood_for: str | None = None
    """Digest of the spec that the Deployment was made for when it last stood as we wrote it."""
    dealt_with: Differences = frozenset()
    """Acknowledged differences of the template: corrected once or left, so no reason to reapply."""
    template_written_at: int | None = None
    """Generation of the Deployment that our last write of it comes to, until that is seen."""
    template_tried_at_s: float | None = None
    """When that was: what changes nothing, since a webhook makes the same of it, is never seen."""
    parked_at: int | None = None
    """Generation of the ModelDeployment at which another asked for no replica, and still does."""


def watched(contest: Contest, seen: Seen, *, spec_generation: int, now_s: float) -> Contest:
    """Take in what stands there: it is ours, as it was, or another's new change."""
    contest = _not_ahead(_let_go(contest, seen), now_s)
    contest = _resumed(contest, spec_generation, now_s)
    if contest.written_at is not None and seen.generation < contest.written_at:
        return contest  # what we wrote is not seen yet
    if contest.tried is not None and seen.value == contest.tried:
        return _as_ours(overwritten(contest, now_s=now_s), seen.value)
    if seen.value == contest.ours or not (seen.managers or _is_nobodys(contest, seen)):
        return _as_ours(contest, seen.value)
    if contest.awaited and seen.generation <= contest.awaited[1]:
        is_result = seen.value != contest.awaited[0]
        return _as_ours(contest, seen.value) if is_result else contest
    if contest.ours is None or not _is_new(contest.change, seen):
        return replace(contest, awaited=None)
    change = Change(
        managers=seen.managers or (NOBODY,),
        was=contest.ours,
        became=seen.value,
        generation=seen.generation,
        at_s=now_s,
    )
    contest = replace(contest, change=change, awaited=None)
    return given_way(contest, spec_generation=spec_generation, now_s=now_s)


def given_way(contest: Contest, *, spec_generation: int, now_s: float) -> Contest:
    """Give way where another correction is due shortly after as many as make a contest."""
    if contest.held_at is not None or not _is_contest(contest.corrected_at_s, now_s):
        return contest
    return replace(contest, held_at=spec_generation, times_held=contest.times_held + 1)


def _is_nobodys(contest: Contest, seen: Seen) -> bool:
    """Tell whether another wrote whom the API server does not name.

    It keeps no owner of replicas where the first writer gave none, as ours does.
    """
    return seen.is_owned_whole and contest.written_at is not None and contest.ours is not None


def _let_go(contest: Contest, seen: Seen) -> Contest:
    """Hold nothing where the other gave in: no part of it is another's any more."""
    is_ours = not (seen.managers or seen.is_owned_whole)
    return replace(contest, held_at=None) if is_ours else contest


def _not_ahead(contest: Contest, now_s: float) -> Contest:
    """Keep no time that is still to come, where the clock was set back."""
    change = contest.change
    return replace(
        contest,
        change=replace(change, at_s=min(change.at_s, now_s)) if change else None,
        corrected_at_s=tuple(min(at_s, now_s) for at_s in contest.corrected_at_s),
    )


def _resumed(contest: Contest, spec_generation: int, now_s: float) -> Contest:
    """Begin anew when the user's spec changed, or the other has been quiet."""
    if contest.held_at is None or contest.change is None:
        return contest
    is_same = contest.held_at == spec_generation
    if is_same and now_s - contest.change.at_s < contest.quiet_s:
        return contest
    return Contest(
        ours=contest.ours,
        written_at=contest.written_at,
        times_held=contest.times_held if is_same else 0,
        longest_quiet_s=contest.longest_quiet_s,
    )


def _as_ours(contest: Contest, value: str) -> Contest:
    over = replace(contest.change, is_over=True) if contest.change else None
    tried = contest.tried if value == contest.ours else None
    return replace(contest, ours=value, change=over, awaited=None, tried=tried)


def _is_new(change: Change | None, seen: Seen) -> bool:
    """Tell whether what stands there was changed since; who is fast does it between two looks."""
    if change is None or change.is_over or change.became != seen.value:
        return True
    is_back = change.is_overwritten and seen.generation != change.generation
    return is_back and seen.is_owned_whole


def _is_contest(corrected_at_s: tuple[float, ...], now_s: float) -> bool:
    """Tell whether enough corrections were made shortly after each other, and not long ago."""
    if len(corrected_at_s) < CORRECTIONS:
        return False
    first_s, last_s = corrected_at_s[-CORRECTIONS], corrected_at_s[-1]
    return last_s - first_s <= WITHIN_S and now_s - last_s <= WITHIN_S


def overwritten(contest: Contest, *, now_s: float) -> Contest:
    """Count a correction, once for each change: a write that fails is tried again."""
    change = contest.change
    if change is None or change.is_over or change.is_overwritten:
        return contest
    return replace(
        contest,
        change=replace(change, is_overwritten=True),
        corrected_at_s=(*contest.corrected_at_s, now_s)[-CORRECTIONS:],
    )


def corrected(contest: Contest, seen: Seen | None, *, now_s: float) -> Contest:
    """Count a correction, also of what stands there since nobody knows when (``seen``)."""
    counted = overwritten(contest, now_s=now_s)
    if counted is not contest or seen is None:
        return counted
    change = Change(
        managers=seen.managers or (NOBODY,),
        was=contest.ours or "what was written",
        became=seen.value,
        generation=seen.generation,
        at_s=now_s,
    )
    return overwritten(replace(contest, change=change), now_s=now_s)


def told(contest: Contest, what: str) -> str | None:
    """Say to whom Tonnage gave way, in numbers; None where it did not."""
    change, times = contest.change, contest.corrected_at_s
    if contest.held_at is None or change is None:
        return None
    who = " and ".join(change.managers)
    return (
        f"{who} changed the {what} from {change.was} to {change.became} after {len(times)} "
        f"corrections within {format_s(times[-1] - times[0])}: Tonnage does not write the {what} "
        f"until the spec changes or nobody else changes the {what} for {format_s(contest.quiet_s)}"
    )
