"""Namespaces in which several objects cannot be written: one at a time is tried, ever later.

What an object is refused for is its own, until more of its namespace are: a webhook that is down.
"""

import time
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from tonnage.control.decide.retries import MOST_RETRY_S, pause_s
from tonnage.control.write.writes import Writes

LEAST_FAILING: Final = 3
"""Objects of one namespace, since anything of it was last written."""


@dataclass(slots=True)
class Pause:
    """What fails in one namespace."""

    failed: dict[str, int | None] = field(default_factory=dict)
    """Generation of each object that did, by UID, the longest ago first: a changed one is tried at
    once."""
    times: int = 0
    until_s: float = 0.0


@dataclass(slots=True, kw_only=True)
class Pauses:
    """Holds back what failed before in a namespace where much does. Replicas are never held."""

    clock: Callable[[], float] = time.monotonic
    _known: dict[str, Pause] = field(default_factory=dict)
    """By namespace."""

    def let_through(self, asked: Iterable[Writes]) -> Sequence[Writes]:
        """Return what may be tried now: of a namespace whose pause is over one that failed."""
        now_s, known = self.clock(), list(asked)
        self._known = {
            name: each for name, each in self._known.items() if now_s < each.until_s + MOST_RETRY_S
        }
        held = {each.uid: each.namespace for each in known if self._is_held(each)}
        turns = {self._next(namespace, held) for namespace in set(held.values())}
        return [each for each in known if each.uid not in held or each.uid in turns]

    def _is_held(self, writes: Writes) -> bool:
        pause = self._known.get(writes.namespace)
        return pause is not None and _is_known(pause, writes)

    def _next(self, namespace: str, held: Container[str]) -> str | None:
        """Return what failed longest ago of a namespace whose pause is over."""
        pause = self._known[namespace]
        is_over = self.clock() >= pause.until_s
        return next((uid for uid in pause.failed if uid in held), None) if is_over else None

    def note(self, failed: Iterable[Writes], written: Iterable[str]) -> None:
        """Take in what failed for its own sake, and the namespaces in which a write succeeded."""
        now_s, namespaces = self.clock(), set[str]()
        for namespace in written:
            self._known.pop(namespace, None)
        for each in failed:
            pause = self._known.setdefault(each.namespace, Pause(until_s=now_s))
            pause.failed.pop(each.uid, None)
            pause.failed[each.uid] = each.generation
            namespaces.add(each.namespace)
        for pause in map(self._known.__getitem__, namespaces):
            if len(pause.failed) >= LEAST_FAILING:
                pause.times += 1
                pause.until_s = now_s + pause_s(pause.times)


def _is_known(pause: Pause, writes: Writes) -> bool:
    is_of_many = len(pause.failed) >= LEAST_FAILING
    return is_of_many and pause.failed.get(writes.uid, -1) == writes.generation
