"""How much may be written at once: a fleet-wide token bucket, which slows down under overload.

Replicas are never limited. Nothing waits here either: what finds no room is left to a later tick,
so that replicas decided then are not behind it.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Final

from tonnage.cluster.errors import WorldError
from tonnage.control.size.turns import by_turns
from tonnage.control.write.writes import Writes

BURST_S: Final = 5.0
"""So much time's writes may be made at once; where some are left, the next tick comes so soon."""
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

    def __post_init__(self) -> None:
        self._tokens, self._at_s = self.per_s * BURST_S, self.clock()

    @property
    def num_held(self) -> int:
        """Return of how many objects something was left to a later tick."""
        return len(self._held)

    def admit(self, wanted: Iterable[Writes]) -> Sequence[Writes]:
        """Return the objects whose writes are made now, each with all of them.

        Those whose replicas change come first. Then namespaces take turns, and within one, who was
        left longest: who makes many objects waits for them, and nobody else does. Checks of
        children come last: a process that starts has one for each object, 20 s of writes for 1,000.
        """
        self._refill()
        ordered = sorted(wanted, key=lambda each: -self._held.get(each.uid, 0))
        ordered = by_turns(ordered, namespace=lambda each: each.namespace)
        ordered.sort(key=lambda each: (each.scale is None, each.is_routine))
        found = []
        for each in ordered:
            if self._tokens <= 0:
                break
            self._tokens -= each.num_limited
            found.append(each)
        left = ordered[len(found) :]
        self._held = {each.uid: self._held.get(each.uid, 0) + 1 for each in left}
        return found

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
