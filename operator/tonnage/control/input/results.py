"""What became of writes, by kind, and what is remembered of those that failed."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

LASTING: Final = 3
"""Failures in a row, after which a person is called for."""


class WriteKind(StrEnum):
    """Each backs off by itself."""

    SCALE = "scale"
    TEMPLATE = "template"
    """With what comes before it: roles, and what protects the pods."""
    CHILDREN = "children"
    STATUS = "status"
    EVENTS = "events"
    EDITS = "edits"
    """What others made of the specs of roles, written over: later each time."""


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
