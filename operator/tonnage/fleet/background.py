"""Work that is done beside the loop, one piece at a time: what it comes to is taken over whole."""

import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")
Start = Callable[[Callable[[], None]], None]
"""Runs something: here and now, or beside."""


def run_inline(work: Callable[[], None]) -> None:
    work()


def beside(work: Callable[[], None]) -> None:
    """Do it in a thread of its own, which keeps no process from ending."""
    threading.Thread(target=work, name="aside", daemon=True).start()


def unheard(*_: object) -> None:
    """Do nothing: nobody listens."""


@dataclass(slots=True)
class BackgroundTask(Generic[T]):
    """A piece of work that is under way, or done and not yet taken over; or none."""

    start: Start = run_inline
    _work: Future[T] | None = None

    @property
    def is_free(self) -> bool:
        return self._work is None

    @property
    def is_under_way(self) -> bool:
        return self._work is not None and not self._work.done()

    def begin(self, do: Callable[[], T], news: threading.Event | None = None) -> None:
        """Begin one; ``news`` is set when it ends."""
        begun = Future[T]()

        def work() -> None:
            try:
                done = do()
            except BaseException as error:
                begun.set_exception(error)
            else:
                begun.set_result(done)
            if news:
                news.set()

        self.start(work)
        self._work = begun

    def wait(self, timeout_s: float | None = None) -> None:
        """Wait until it is done, or for so long."""
        wait([self._work] if self._work else [], timeout_s)

    def take(self) -> T | None:
        """Take over what it came to, if it is done; raise what it raised."""
        if self._work is None or not self._work.done():
            return None
        begun, self._work = self._work, None
        return begun.result()

    def drop(self) -> None:
        """Wait until it is done, and take over nothing of it."""
        self.wait()
        self._work = None
