"""How much may be written at once: a fleet-wide token bucket, which slows down under overload.

Replicas are never limited. Nothing waits here either: what finds no room is left to a later tick,
so that replicas decided then are not behind it.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from time import monotonic
from typing import Final

from tonnage.cluster.errors import WorldError
from tonnage.control.size.turns import by_turns
from tonnage.control.write.writes import Writes

BURST_S: Final = 5.0
"""So much time's writes may be made at once; where some are left, the next tick comes so soon."""
ROUTINE_EVERY: Final = 8
"""Of what is let through, the place that a look at children has beside what somebody waits for. A
process that begins has all of them to make: 1,000 take 20 s, and a change waited behind."""
SLOWEST: Final = 1 / 64
"""Of the rate, to which failures that come again and again bring it."""


@dataclass(slots=True, kw_only=True)
class Limiter:
    """Lets writes of status, Events, templates and children through, at a rate."""

    per_s: float = 50.0
    clock: Callable[[], float] = monotonic
    share: float = 1.0
    """Of the rate: halved by a tick in which the API server was busy or away, doubled by others."""
    _tokens: float = field(init=False)
    _at_s: float = field(init=False)
    _held: dict[str, int] = field(default_factory=dict)
    """By UID, in how many ticks in a row there was no room for it."""
    _passed: int = 0
    """What was let through since the last that was routine."""

    def __post_init__(self) -> None:
        self._tokens, self._at_s = self.per_s * BURST_S, self.clock()

    @property
    def num_held(self) -> int:
        """Return of how many objects something was left to a later tick."""
        return len(self._held)

    def admitted(self, wanted: Iterable[Writes]) -> Sequence[Writes]:
        """Return the objects whose writes are made now, each with all of them.

        Those whose replicas change come first. Then namespaces take turns, and within one, who was
        left longest: who makes many objects waits for them, and nobody else does. What is routine
        has a share of the places, and what the rest leaves.
        """
        self._refill()
        known = list(wanted)
        ordered = sorted(known, key=lambda each: -self._held.get(each.uid, 0))
        ordered = by_turns(ordered, namespace=lambda each: each.namespace)
        ordered = self._mixed(ordered)
        ordered.sort(key=lambda each: each.scale is None)
        found = []
        for each in ordered:
            if self._tokens <= 0:
                break
            self._tokens -= each.num_limited
            self._passed = 0 if each.is_routine else self._passed + 1
            found.append(each)
        left = ordered[len(found) :]
        self._held = {each.uid: self._held.get(each.uid, 0) + 1 for each in left}
        return found

    def _mixed(self, ordered: Iterable[Writes]) -> list[Writes]:
        """Put what is routine into each eighth place, over all ticks, and after the rest."""
        known = list(ordered)
        routine = (each for each in known if each.is_routine)
        urgent = (each for each in known if not each.is_routine)
        found = list[Writes]()
        for place, each in enumerate(urgent, self._passed + 1):
            found += islice(routine, int(place % ROUTINE_EVERY == 0))
            found.append(each)
        return [*found, *routine]

    def _refill(self) -> None:
        now_s, rate = self.clock(), self.per_s * self.share
        self._tokens = min(rate * BURST_S, self._tokens + rate * (now_s - self._at_s))
        self._at_s = now_s

    def note(self, failures: Iterable[WorldError]) -> None:
        """Slow down where the API server is busy or away, else pick up again."""
        if any(error.is_overload for error in failures):
            self.share = max(SLOWEST, self.share / 2)
        else:
            self.share = min(1.0, self.share * 2)
