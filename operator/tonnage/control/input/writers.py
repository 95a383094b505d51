"""What became of writes of ours, how others changed what we wrote, and when we reapply it.

An edit is reapplied over at once, then after 1, 2, 4 ... minutes. Between two of these it is left:
two writers that undo each other would restart engines for ever.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final, Self

from tonnage.api.status import Reason
from tonnage.control.input.times import backoff_s
from tonnage.manifests.changes import Change
from tonnage.units import DAY_S, count_of, format_s

LASTING: Final = 3
"""Failures in a row, after which a person is called for."""
MOST_RETRY_S: Final = 300.0
"""After a write that failed, before the next."""


class WriteKind(StrEnum):
    """Each backs off by itself."""

    SCALE = "scale"
    TEMPLATE = "template"
    """With what comes before it: roles, and what protects the pods."""
    CHILDREN = "children"
    STATUS = "status"
    EVENTS = "events"


class Fate(StrEnum):
    """Whether a write was carried out."""

    DONE = "done"
    NOT_APPLIED = "undone"
    """Refused, or held back: something else was there than it was decided on."""
    UNKNOWN = "unknown"
    """No answer came: it may have been carried out."""


class Cause(StrEnum):
    """Why a write is not done."""

    LATER = "later"
    """Nothing is wrong with it: the next tick tries again."""
    FAILED = "failed"
    """It lies in what was asked: others are answered."""
    REFUSED = "refused"
    """The API server will say so again."""
    BUG = "bug"
    NO_PATH = "no_path"
    """The Service is somebody else's: no write failed, and no request comes to the replicas."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What became of a write that is not done."""

    fate: Fate = Fate.NOT_APPLIED
    cause: Cause = Cause.LATER
    detail: str = ""


Results = Mapping[WriteKind, Result]
"""Of one object; what is not in it is done, or was not asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A write that fails for what it is, and when it is tried again."""

    cause: Cause
    detail: str
    generation: int
    """Of the spec: another one is tried at once."""
    times: int
    """In a row."""
    at_s: float
    """Of the next attempt."""

    @property
    def problem(self) -> str | None:
        """The message, where it calls for a person: a refusal, or a failure or bug that lasts."""
        is_lasting = self.cause in {Cause.FAILED, Cause.BUG} and self.times >= LASTING
        return self.detail if is_lasting or self.cause is Cause.REFUSED else None

    def is_waiting(self, generation: int | None, now_s: float) -> bool:
        """Tell whether what failed for this spec is not to be tried again yet.

        A time that no back-off can come to is of a clock that was set back.
        """
        return self.generation == generation and 0 < self.at_s - now_s <= MOST_RETRY_S


SOMEBODY: Final = "somebody"
"""Where managedFields name nobody."""
PARKED: Final = "ScaledToZeroExternally"
CONFLICT: Final = "ConflictingWriter"
FIRST_S: Final = 60.0
"""From the first reapply to the second; each time it is twice as long."""
REPLICAS_LONGEST_S: Final = 1800.0
"""A write of replicas is cheap, and with too few of them requests are late."""
TEMPLATE_LONGEST_S: Final = DAY_S
"""A write of the template replaces pods, which load for minutes: given up for so long."""
UNSEEN_S: Final = 60.0
"""In which a write of ours is seen; what is not seen then has changed nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What others make of replicas, or of the template, and how often we reapplied ours."""

    longest_s: float
    """The longest wait. So long without an edit, and earlier reapplies are forgotten."""
    edit: str | None = None
    """Who changed what of it; None: it is as we wrote it."""
    is_new: bool = False
    """It was not so at the last look."""
    in_backoff: bool = False
    """The edit stays until the wait is over."""
    edited_at_s: float = 0.0
    """When an edit was last seen."""
    times: int = 0
    """That ours was reapplied."""
    reapplied_at_s: float = 0.0
    generation: int | None = None
    """Of the spec for which that was counted."""

    @property
    def wait_s(self) -> float:
        """The time from the last reapply to the next."""
        return backoff_s(self.times, first_s=FIRST_S, longest_s=self.longest_s)

    @property
    def conflict(self) -> str | None:
        """Who undid how many reapplies, for a person; None: nobody did."""
        if self.edit is None or not self.times:
            return None
        due = f"Tonnage corrects it {format_s(self.wait_s)} after the last time"
        due = f"{due}, or once the spec changes" if self.in_backoff else "Tonnage corrects it now"
        return f"{self.edit} after {count_of(self.times, 'correction')}: {due}"

    def looked_at(self, edit: str | None, *, generation: int, now_s: float) -> Self:
        """Take in how another changed it, and whether that is left for now."""
        if edit is self.edit is None and not self.times and generation == self.generation:
            return self
        is_forgotten = self.edit is None and now_s - self.edited_at_s >= self.longest_s
        is_same = generation == self.generation and not is_forgotten
        times, reapplied_at_s = self.times if is_same else 0, min(self.reapplied_at_s, now_s)
        is_waiting = times > 0 and now_s - reapplied_at_s < self.wait_s
        return type(self)(
            longest_s=self.longest_s,
            edit=edit,
            is_new=edit is not None and edit != self.edit,
            in_backoff=edit is not None and is_waiting,
            edited_at_s=min(self.edited_at_s, now_s) if edit is None else now_s,
            times=times,
            reapplied_at_s=reapplied_at_s,
            generation=generation,
        )

    def count_reapply(self, now_s: float) -> Self:
        """Count a write of ours, where it is over an edit."""
        if self.edit is None:
            return self
        return replace(self, edit=None, times=self.times + 1, reapplied_at_s=now_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """How a pod template differs from what we wrote."""

    compared: tuple[object, ...]
    """What it was found by."""
    is_known: bool = False
    """What this version writes, for the spec and the flags that are recorded, is what we wrote."""
    has_pod_monitors: bool | None = None
    """The cluster served PodMonitors then; None: that is not known."""
    changes: tuple[Change, ...] = ()
    """That applying ours brings back."""
    added: tuple[Change, ...] = ()
    """Beside it: applying ours leaves them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldOwnership:
    """What is remembered of other writers of one Deployment. Written by ``decide.writers``."""

    deployment_uid: str | None = None
    replicas: Part = Part(longest_s=REPLICAS_LONGEST_S)
    template: Part = Part(longest_s=TEMPLATE_LONGEST_S)
    our_replicas: int | None = None
    """As we left them; None: no baseline was observed."""
    tried_replicas: int | None = None
    """Of a write of which no answer tells whether it was carried out."""
    replicas_generation: int | None = None
    """Of the Deployment, that our last write of replicas came to."""
    parked: str | None = None
    """Who asked for no replica, since this spec."""
    parked_generation: int | None = None
    """Of the spec, at which somebody asked for no replica, and still does."""
    drift: Drift | None = None
    """From the template that we wrote; None: there is none of ours."""
    acknowledged: frozenset[str] = frozenset()
    """Differences that our last write made or met: no reason to write again."""
    template_generation: int | None = None
    """Of the Deployment, that our last write of the template comes to, until that is seen."""
    template_at_s: float | None = None
    """When it was made; None: no answer tells whether it was."""
    recorded: tuple[str | int | None, ...] = ()
    """What we recorded on the Deployment, in the order of ``RECORD``."""

    @property
    def left(self) -> Reason | None:
        """Why the number of replicas is left to another writer; None: it is not."""
        if self.parked is not None:
            return Reason(PARKED, self.parked)
        return Reason(CONFLICT, self.replicas.conflict or "") if self.replicas.in_backoff else None

    @property
    def conflict(self) -> Reason | None:
        """A conflict about replicas, about the template, or both."""
        if self.parked is not None:
            return Reason(PARKED, self.parked)
        conflict = "; ".join(filter(None, (self.replicas.conflict, self.template.conflict)))
        return Reason(CONFLICT, conflict) if conflict else None

    def is_template_awaited(self, now_s: float) -> bool:
        """Tell whether our last write of the template may yet be seen, or is seen just now."""
        if self.template_generation is None or self.template_at_s is None:
            return False
        return 0 <= now_s - self.template_at_s < UNSEEN_S
