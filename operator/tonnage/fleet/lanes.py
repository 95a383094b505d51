"""Writes side by side, of which none waits long behind another that gets no answer.

A call to the API server cannot be broken off. One that gets no answer goes on beside the loop; its
object is offered again when that is over.
"""

import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final, NamedTuple

from tonnage.cluster.errors import HeldBackError, WorldError
from tonnage.control.write.writes import Writes
from tonnage.fleet.aside import Aside, Start, at_once
from tonnage.units import format_s

NUM_WRITERS: Final = 8
NAMESPACE_WRITERS: Final = 4
"""Of them, for one namespace; one, where its last answer was late."""
PATIENCE_S: Final = 2.0
"""For an answer. A phase in which all that is still waited for is later than that is over."""
PHASE_S: Final = 10.0
"""After which a phase begins no more, though answers come."""
MOST_REFUSED: Final = 512
"""Objects of which a late refusal is remembered; of those that are gone nobody asks."""
Phase = Callable[[Writes], WorldError | None]
"""Writes something of an object; returns what failed."""
Failures = Mapping[str, WorldError]
"""Of one phase, by UID of the object."""


class LeftError(HeldBackError):
    """There was no time or no writer for it: the next tick offers it again."""


class LateError(WorldError):
    """No answer came in time: it may still be carried out."""

    def __init__(self, message: str, *, refused: WorldError | None = None) -> None:
        """``refused``: what the same write was answered the last time, too late."""
        super().__init__(message)
        self.refused = refused

    @property
    def is_of_object(self) -> bool:
        return True

    @property
    def is_refusal(self) -> bool:
        return self.refused is not None

    @property
    def words(self) -> str:
        return self.refused.words if self.refused else super().words


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    """The writes of one object for which an answer is awaited, or there and not yet taken over."""

    namespace: str
    generation: int | None
    at_s: float
    work: Aside[tuple[WorldError | None, float]]
    """Comes to what failed, and when it was over."""


@dataclass(slots=True, kw_only=True)
class Lane:
    """Threads for one kind of writes: those that hang hold up no other kind."""

    start: Start = at_once
    patience_s: float = PATIENCE_S
    clock: Callable[[], float] = time.monotonic
    is_of_one_write: bool = False
    """An object has one kind of write in it: what was said to the last is said of the next."""
    _begun: dict[str, Begun] = field(default_factory=dict)
    """By UID."""
    _slow: dict[str, dict[str, float]] = field(default_factory=dict)
    """Namespaces whose last answer was late: nobody waits for theirs. Of each when what was late
    was begun, by UID: what was not comes first."""
    _late: list[WorldError] = field(default_factory=list)
    """What failed after nobody waited for it any more."""
    _refused: dict[str, tuple[int | None, WorldError]] = field(default_factory=dict)
    """(generation, what was refused after nobody waited for it any more), by UID, until an answer
    is another."""
    _news: threading.Event = field(default_factory=threading.Event)
    """Something has ended."""

    def run(self, phase: Phase, todo: Iterable[Writes]) -> Failures:
        """Do it for each, as far as answers come; return what failed.

        Where none comes in time, and the last one, of the same spec, was a refusal that came too
        late, that is told: what the API server takes long to refuse is refused all the same.
        """
        waiting = {each.uid: each for each in sorted(todo, key=self._late_at_s)}
        awaited, failed = set[str](), dict[str, WorldError]()
        end_s = self.clock() + PHASE_S
        while True:
            self._news.clear()
            failed |= self._collect(awaited)
            if self.clock() < end_s:
                awaited |= self._begin(phase, waiting)
            if all(self._begun[uid].work.is_under_way for uid in awaited):
                rest_s = self._rest_s(awaited)
                if rest_s <= 0:
                    break
                self._news.wait(rest_s)
        left = LeftError("other writes waited for the API server: left to the next tick")
        for uid in awaited:
            self._note_late(uid, self._begun[uid])
        unanswered = {uid: self._late_error(uid) for uid in awaited}
        return failed | unanswered | dict.fromkeys(waiting, left)

    def take_late(self) -> list[WorldError]:
        """Take over what failed after nobody waited for it any more: what it says of the server."""
        taken, self._late = self._late, []
        return taken

    def _late_at_s(self, writes: Writes) -> float:
        """Return when what was late of an object was begun: one that hangs holds up no other."""
        return self._slow.get(writes.namespace, {}).get(writes.uid, -math.inf)

    def _note_late(self, uid: str, begun: Begun) -> None:
        self._slow.setdefault(begun.namespace, {})[uid] = begun.at_s

    def _begin(self, phase: Phase, waiting: dict[str, Writes]) -> set[str]:
        """Begin as many as there are free writers for; return them."""
        busy = Counter(each.namespace for each in self._begun.values())
        begun = set[str]()
        for each in list(waiting.values()):
            if len(self._begun) >= NUM_WRITERS:
                break
            most = 1 if each.namespace in self._slow else NAMESPACE_WRITERS
            if each.uid in self._begun or busy[each.namespace] >= most:
                continue
            busy[each.namespace] += 1
            begun.add(each.uid)
            made = Begun(
                namespace=each.namespace,
                generation=each.generation,
                at_s=self.clock(),
                work=Aside(self.start),
            )
            self._begun[each.uid] = made
            made.work.begin(partial(self._time, phase, waiting.pop(each.uid)), self._news)
        return begun

    def _time(self, phase: Phase, writes: Writes) -> tuple[WorldError | None, float]:
        return phase(writes), self.clock()

    def _collect(self, awaited: set[str]) -> Failures:
        """Take over what has ended; return what failed of what is awaited, which it is no more."""
        failed = dict[str, WorldError]()
        for uid in [uid for uid, each in self._begun.items() if not each.work.is_under_way]:
            begun = self._begun.pop(uid)
            error, ended_at_s = begun.work.take() or (None, begun.at_s)
            if ended_at_s - begun.at_s > self.patience_s:
                self._note_late(uid, begun)
            else:
                self._slow.pop(begun.namespace, None)
            self._refused.pop(uid, None)
            if error and uid in awaited:
                failed[uid] = error
            elif error:
                self._late.append(error)
                self._remember_refusal(uid, begun, error)
            awaited.discard(uid)
        return failed

    def _remember_refusal(self, uid: str, begun: Begun, error: WorldError) -> None:
        if error.is_refusal and self.is_of_one_write:
            self._refused[uid] = begun.generation, error
        if len(self._refused) > MOST_REFUSED:
            del self._refused[next(iter(self._refused))]

    def _late_error(self, uid: str) -> LateError:
        generation, refused = self._refused.get(uid, (None, None))
        is_of_this = generation == self._begun[uid].generation
        late_s = format_s(self.patience_s)
        return LateError(
            f"no answer of the API server within {late_s}: it may still be done",
            refused=refused if is_of_this else None,
        )

    def _rest_s(self, awaited: Iterable[str]) -> float:
        """Return for how long an answer may yet come in time; 0 or less: none may."""
        known = (self._begun[uid] for uid in awaited)
        begun_at_s = (each.at_s for each in known if each.namespace not in self._slow)
        return max(begun_at_s, default=-math.inf) + self.patience_s - self.clock()


class Lanes(NamedTuple):
    """One for each kind of writes."""

    scaling: Lane
    templates: Lane
    telling: Lane
    posting: Lane


def lanes(start: Start = at_once) -> Lanes:
    """Return them. ``start``: runs a write here and now, or beside."""
    return Lanes(
        scaling=Lane(start=start),
        templates=Lane(start=start),
        telling=Lane(start=start, is_of_one_write=True),
        posting=Lane(start=start),
    )
