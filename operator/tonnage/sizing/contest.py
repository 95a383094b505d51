"""Splits against one another: each is looked at only as closely as it takes to know the winner."""

import heapq
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar, cast

from tonnage.sizing.errors import SizingError
from tonnage.sizing.split import Parallelism

Key = tuple[float, ...]
"""What is compared, in this order: the least wins."""
Stage = TypeVar("Stage")
"""What is known of a split so far."""
Final = TypeVar("Final")
"""All that is to be known of it."""


class Contest(Generic[Stage, Final]):
    """The splits of one request, and what is known of each.

    ``outline`` says what is known at once; ``closer`` looks closer, at some expense, until a
    ``final`` comes of it. Both raise SizingError where the split will not do.
    """

    def __init__(
        self,
        outline: Callable[[Parallelism], Stage],
        closer: Callable[[Stage], Stage | Final],
        final: type[Final],
    ) -> None:
        self._outline, self._closer, self._final = outline, closer, final
        self._known: dict[Parallelism, Stage | Final | SizingError] = {}

    @property
    def refusals(self) -> list[SizingError]:
        """Return the reasons against those found out, in the order in which they entered."""
        return [known for known in self._known.values() if isinstance(known, SizingError)]

    def enter(self, split: Parallelism) -> Stage | None:
        """Return what is known of a split at once; None where it will not do."""
        try:
            outline = self._outline(split)
        except SizingError as refusal:
            self._known[split] = refusal
            return None
        self._known[split] = outline
        return outline

    def winner(
        self,
        bound: Callable[[Stage | Final], Key],
        among: Iterable[Parallelism] | None = None,
    ) -> Final | None:
        """Return what is known of the split with the least key, the first of equals.

        ``bound``: no part of it exceeds that of the key, and of a final it is the key. The split
        with the least bound is looked at closer until that is a final: the key of no other can be
        less. None where none will do; of all of them the reason is known then.
        """
        queue: list[tuple[Key, int, Parallelism]] = []
        for place, split in enumerate(self._known if among is None else among):
            self._push(queue, bound, place, split)
        while queue:
            _, place, split = heapq.heappop(queue)
            known = self._known[split]
            if isinstance(known, self._final):
                return known
            self._look_closer(split)
            self._push(queue, bound, place, split)
        return None

    def _push(
        self,
        queue: list[tuple[Key, int, Parallelism]],
        bound: Callable[[Stage | Final], Key],
        place: int,
        split: Parallelism,
    ) -> None:
        known = self._known[split]
        if not isinstance(known, SizingError):
            heapq.heappush(queue, (bound(known), place, split))

    def _look_closer(self, split: Parallelism) -> None:
        try:
            self._known[split] = self._closer(cast("Stage", self._known[split]))
        except SizingError as refusal:
            self._known[split] = refusal
