"""The work queue of writes: by object and kind, at a rate, side by side in turn by namespace.

A token bucket says how much may be written at once; it slows down under overload. Replicas are
never limited. Nothing waits here: what finds no room is left to a later tick, so that replicas
decided then are not behind it. When what failed is tried again, the memory of its object says.

A call to the API server cannot be broken off. One that gets no answer goes on beside the loop; it
is offered again when that is over.
"""

import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Final

from tonnage.cluster.calls import WorldError, WriteFencedError
from tonnage.control.input.writers import WriteKind
from tonnage.control.size.fair_order import round_robin
from tonnage.control.write.writes import Writes
from tonnage.fleet.background import BackgroundTask, Start, run_inline
from tonnage.units import HOUR_S, format_s

BURST_S: Final = 5.0
"""So much time's writes may be made at once; where some are left, the next tick comes so soon."""
SLOWEST: Final = 1 / 64
"""Of the rate, to which failures that come again and again bring it."""
NUM_WRITERS: Final = 16
"""For replicas, and as many for all else: what hangs there holds up no replicas."""
KIND_WRITERS: Final = 8
"""Of those for all else, for one kind of write: one that hangs leaves room for the others."""
NAMESPACE_WRITERS: Final = 4
"""Of them, for one namespace and kind; one, where its last answer was late."""
PATIENCE_S: Final = 2.0
"""For an answer. A phase in which all that is still waited for is later than that is over."""
SLOW_SHARE: Final = 1 / 8
"""Of that, for an answer where the last one was late: enough for a namespace that is well again."""
LATE_S: Final = HOUR_S / 2
"""For so long at most it is remembered that an answer was late."""
PHASE_S: Final = 10.0
"""After which a phase begins no more, though answers come."""
Item = tuple[str, WriteKind]
"""The UID of an object, and which of its writes."""
Place = tuple[str, WriteKind]
"""A namespace, and which of its writes."""
Phase = Callable[[Writes], WorldError | None]
"""Writes something of an object; returns what failed."""
Failures = Mapping[Item, WorldError]


class DeferredError(WriteFencedError):
    """There was no time or no writer for it: the next tick offers it again."""


class WriteTimeoutError(WorldError):
    """No answer came in time: it may still be carried out."""

    is_of_object = True


@dataclass(frozen=True, slots=True, kw_only=True)
class InFlight:
    """A write for which an answer is awaited, or there and not yet taken over."""

    place: Place
    at_s: float
    work: BackgroundTask[tuple[WorldError | None, float]]
    """Comes to what failed, and when it was over."""


@dataclass(slots=True, kw_only=True)
class Pool:
    """Threads that write, of which none waits long behind another that gets no answer."""

    start: Start = run_inline
    most_of_kind: int = NUM_WRITERS
    patience_s: float = PATIENCE_S
    clock: Callable[[], float] = time.monotonic
    _begun: dict[Item, InFlight] = field(default_factory=dict)
    _slow: dict[Place, dict[str, float]] = field(default_factory=dict)
    """Where the last answer was late: the next is waited for no more than a moment. Of each when
    what was late was begun, by UID: what was not comes first."""
    _late: list[WorldError] = field(default_factory=list)
    """What failed after nobody waited for it any more."""
    _news: threading.Event = field(default_factory=threading.Event)
    """Something has ended."""

    def run(self, kind: WriteKind, phase: Phase, todo: Iterable[Writes]) -> Failures:
        """Do it for each, as far as answers come; return what failed."""

        def late_at_s(each: Writes) -> float:
            """Return when what was late of an object was begun: one that hangs delays no other."""
            return self._slow.get((each.namespace, kind), {}).get(each.uid, -math.inf)

        self._forget_late()
        waiting = {(each.uid, kind): each for each in sorted(todo, key=late_at_s)}
        awaited, failed = set[Item](), dict[Item, WorldError]()
        end_s = self.clock() + PHASE_S
        while True:
            self._news.clear()
            failed |= self._collect(awaited)
            if self.clock() < end_s:
                awaited |= self._begin(phase, waiting)
            if all(self._begun[item].work.is_under_way for item in awaited):
                rest_s = self._rest_s(awaited)
                if rest_s <= 0:
                    break
                self._news.wait(rest_s)
        for item in awaited:
            self._note_late(item, self._begun[item])
            why = f"did not answer within {format_s(self.patience_s)}: it may still be done"
            failed[item] = WriteTimeoutError(f"the API server {why}")
        deferred = DeferredError("other writes waited for the API server: written in the next tick")
        return failed | dict.fromkeys(waiting, deferred)

    def take_late(self) -> list[WorldError]:
        """Take over what failed after nobody waited for it any more: what it says of the server."""
        ended, self._late = self._late, []
        return ended

    def _forget_late(self) -> None:
        """Forget who was late long ago, and may be gone."""
        since_s = self.clock() - LATE_S
        for place, late in list(self._slow.items()):
            self._slow[place] = {uid: at_s for uid, at_s in late.items() if at_s > since_s}
            if not self._slow[place]:
                del self._slow[place]

    def _note_late(self, item: Item, begun: InFlight) -> None:
        self._slow.setdefault(begun.place, {})[item[0]] = begun.at_s

    def _begin(self, phase: Phase, waiting: dict[Item, Writes]) -> set[Item]:
        """Begin as many as there are free writers for; return them."""
        busy = Counter(each.place for each in self._begun.values())
        of_kind = Counter(kind for _, kind in self._begun)
        begun = set[Item]()
        for item, each in list(waiting.items()):
            if len(self._begun) >= NUM_WRITERS or of_kind[item[1]] >= self.most_of_kind:
                break
            place = each.namespace, item[1]
            most = 1 if place in self._slow else NAMESPACE_WRITERS
            if item in self._begun or busy[place] >= most:
                continue
            busy[place] += 1
            of_kind[item[1]] += 1
            begun.add(item)
            made = InFlight(place=place, at_s=self.clock(), work=BackgroundTask(self.start))
            self._begun[item] = made
            made.work.begin(partial(self._time, phase, waiting.pop(item)), self._news)
        return begun

    def _time(self, phase: Phase, writes: Writes) -> tuple[WorldError | None, float]:
        return phase(writes), self.clock()

    def _collect(self, awaited: set[Item]) -> Failures:
        """Take over what has ended; return what failed of what is awaited, which it is no more."""
        failed = dict[Item, WorldError]()
        for item in [item for item, each in self._begun.items() if not each.work.is_under_way]:
            begun = self._begun.pop(item)
            error, ended_at_s = begun.work.take() or (None, begun.at_s)
            if ended_at_s - begun.at_s > self.patience_s:
                self._note_late(item, begun)
            else:
                self._slow.pop(begun.place, None)
            if error and item in awaited:
                failed[item] = error
            elif error:
                self._late.append(error)
            awaited.discard(item)
        return failed

    def _rest_s(self, awaited: Iterable[Item]) -> float:
        """Return for how long an answer may yet come in time; 0 or less: none may."""
        known = (self._begun[item] for item in awaited)
        until_s = (
            each.at_s + self.patience_s * (SLOW_SHARE if each.place in self._slow else 1)
            for each in known
        )
        return max(until_s, default=-math.inf) - self.clock()


@dataclass(slots=True, kw_only=True)
class WriteQueue:
    """Makes writes of replicas at once, and lets all others through at a rate."""

    per_s: float = 50.0
    start: Start = run_inline
    """Runs a write: here and now, or beside."""
    clock: Callable[[], float] = time.monotonic
    share: float = 1.0
    """Of the rate: halved by a tick in which the API server was busy or away, doubled by others."""
    replicas: Pool = field(init=False)
    others: Pool = field(init=False)
    _tokens: float = field(init=False)
    _at_s: float = field(init=False)
    _held: dict[str, int] = field(default_factory=dict)
    """By UID, in how many ticks in a row there was no room for it."""

    def __post_init__(self) -> None:
        self._tokens, self._at_s = self.per_s * BURST_S, self.clock()
        self.replicas = Pool(start=self.start, clock=self.clock)
        self.others = Pool(start=self.start, clock=self.clock, most_of_kind=KIND_WRITERS)

    @property
    def num_held(self) -> int:
        return len(self._held)

    def run(self, kind: WriteKind, phase: Phase, todo: Iterable[Writes]) -> Failures:
        """Do it for each, as far as answers come; return what failed."""
        pool = self.replicas if kind is WriteKind.SCALE else self.others
        return pool.run(kind, phase, todo)

    def admit(self, wanted: Iterable[Writes]) -> Sequence[Writes]:
        """Return the objects whose writes are made now, each with all of them.

        Those whose replicas change come first. Then namespaces take turns, and within one, who was
        left longest. Checks of children come last: at a start there is one for each object.
        """
        now_s, rate = self.clock(), self.per_s * self.share
        self._tokens = min(rate * BURST_S, self._tokens + rate * (now_s - self._at_s))
        self._at_s = now_s
        ordered = sorted(wanted, key=lambda each: -self._held.get(each.uid, 0))
        ordered = round_robin(ordered, namespace=lambda each: each.namespace)
        ordered.sort(key=lambda each: (each.scale is None, each.is_routine))
        found = []
        for each in ordered:
            if self._tokens <= 0:
                break
            self._tokens -= each.num_limited
            found.append(each)
        deferred = ordered[len(found) :]
        self._held = {each.uid: self._held.get(each.uid, 0) + 1 for each in deferred}
        return found

    def note(self, failures: Iterable[WorldError]) -> None:
        """Slow down where the API server is busy or away, else pick up again."""
        late = chain(self.replicas.take_late(), self.others.take_late())
        if any(error.is_overload for error in chain(late, failures)):
            self.share = max(SLOWEST, self.share / 2)
        else:
            self.share = min(1.0, self.share * 2)
