"""Telling, once an answer takes long, how far it is."""

from collections.abc import Callable
from typing import Final

from tonnage.engine import schedule
from tonnage.sizing.plan import OnSearch
from tonnage.units import count_of

PATIENCE_S: Final = 2.0
BETWEEN_S: Final = 1.0
GROWTH: Final = 1.5
"""A long search speaks ever more seldom: a minute has nine lines, not sixty."""
UNCOMPILED: Final = (
    "The engine model is not compiled on this machine: plans take seconds; see CONTRIBUTING.md"
)


def is_compiled() -> bool:
    """Whether the engine model runs as an extension module; a source runs some 25 times slower."""
    return not str(schedule.__file__).endswith(".py")


class Progress:
    """Tells how far a search is; before that, once, that the engine model is not compiled."""

    def __init__(
        self,
        tell: Callable[[str], None],
        *,
        clock: Callable[[], float],
        is_compiled: bool,
        is_terminal: bool = True,
    ) -> None:
        self._tell, self._clock, self._is_known = tell, clock, is_compiled
        self._is_terminal = is_terminal

    def tell(self, message: str, *, is_shown: bool = True) -> None:
        if not self._is_known:
            self._is_known = True
            self._tell(UNCOMPILED)
        if is_shown:
            self._tell(message)

    def counting(self) -> OnSearch:
        """Return what to call before each run of the engine model.

        It shows their number on a terminal: files have nothing of how an answer was found.
        """
        num_runs = 0
        is_due = self._seldom()

        def on_search() -> None:
            nonlocal num_runs
            if is_due():
                runs = count_of(num_runs, "run")
                message = f"Searching for goodput: {runs} of the engine model so far"
                self.tell(message, is_shown=self._is_terminal)
            num_runs += 1

        return on_search

    def reading(self, name: str) -> Callable[[int, str], None]:
        """Return what to call with how many of something were read of a file so far."""
        is_due = self._seldom()

        def count_read(number: int, noun: str) -> None:
            if is_due():
                self._tell(f"Reading {name}: {count_of(f'{number:,}', noun)} so far")

        return count_read

    def _seldom(self) -> Callable[[], bool]:
        """Return what says whether to speak: first after the patience, then ever more seldom."""
        waits_s = PATIENCE_S
        speaks_at = self._clock() + waits_s

        def is_due() -> bool:
            nonlocal waits_s, speaks_at
            if (now := self._clock()) < speaks_at:
                return False
            waits_s *= GROWTH
            speaks_at = now + waits_s
            return True

        return is_due
