"""Rounds of questions to Prometheus: one at a time, asked beside the loop, handed over whole.

A tick waits for the answers to its round; what people change does not. Where something changes
meanwhile, it is decided by the answers of the round before, and the round goes on.
"""

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass

from tonnage.cluster.answer import Kept
from tonnage.cluster.questions import Answers, QuerySet

Ask = Callable[[Sequence[QuerySet], Kept], Answers]
Start = Callable[[Callable[[], None]], None]
"""Runs something: here and now, or beside."""


def at_once(work: Callable[[], None]) -> None:
    """Do it here and now."""
    work()


def beside(work: Callable[[], None]) -> None:
    """Do it in a thread of its own, which keeps no process from ending."""
    threading.Thread(target=work, name="metrics", daemon=True).start()


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    """What Prometheus said in one round."""

    answers: Answers
    ended_at_s: float
    """By the clock of the rounds."""


@dataclass(slots=True, kw_only=True)
class Rounds:
    """Asks when it is time, and keeps what was answered last."""

    ask: Ask
    every_s: float
    """Between the beginnings of two rounds; one that takes longer is followed by the next."""
    reusable_s: float
    """For so long after a round a change is decided by its answers."""
    start: Start = at_once
    clock: Callable[[], float] = time.monotonic
    heard: Heard | None = None
    """The last that was taken over."""
    _began_at_s: float | None = None
    _round: Future[Heard] | None = None
    """Under way, or done and not yet taken over."""

    @property
    def held_s(self) -> float:
        """Return how long ago the last answers came."""
        return self.clock() - self.heard.ended_at_s if self.heard else 0.0

    @property
    def is_reusable(self) -> bool:
        """Tell whether a change can be decided by what was answered last."""
        return self.heard is not None and self.held_s < self.reusable_s

    @property
    def due_in_s(self) -> float:
        """Return in what time there is something to wait for: a round under way, or the next."""
        if self._round is not None or self._began_at_s is None:
            return 0.0
        since_s = self.clock() - self._began_at_s
        return max(0.0, self.every_s - since_s) if since_s >= 0 else 0.0

    @property
    def is_due(self) -> bool:
        """Tell whether to begin one: no other is under way, or not taken over yet."""
        return self._round is None and self.due_in_s == 0

    def begin(self, questions: Sequence[QuerySet], kept: Kept, news: threading.Event) -> None:
        """Begin a round; ``news`` is set when it ends."""
        self._began_at_s = self.clock()
        self._round = asked = Future[Heard]()

        def work() -> None:
            try:
                answers = self.ask(questions, kept)
            except BaseException as error:
                asked.set_exception(error)
            else:
                asked.set_result(Heard(answers=answers, ended_at_s=self.clock()))
            news.set()

        self.start(work)

    def wait(self, news: threading.Event) -> None:
        """Wait until the round ends, or for news where they can be decided without it."""
        asked = self._round
        if asked is None or asked.done():
            return
        if self.is_reusable:
            news.wait()
        else:
            wait([asked])

    def take(self) -> Heard | None:
        """Take over what was answered since this was last asked, if anything was."""
        if self._round is None or not self._round.done():
            return None
        asked, self._round = self._round, None
        self.heard = asked.result()
        return self.heard

    def forget(self) -> None:
        """Begin anew: what was answered before says nothing of now."""
        if self._round is None or self._round.done():
            self.heard = self._began_at_s = self._round = None
