"""Rounds of questions to Prometheus: one at a time, asked beside the loop, handed over whole.

A tick waits for the answers to its round; what people change does not. Where something changes
meanwhile, it is decided by the answers of the round before, and the round goes on.
"""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tonnage.cluster.queries import Answers, QuerySet
from tonnage.estimate.fleet_scrapes import FleetScrapes
from tonnage.fleet.background import BackgroundTask

Ask = Callable[[Sequence[QuerySet], FleetScrapes], Answers]


@dataclass(slots=True, kw_only=True)
class Rounds:
    """Asks when it is time, and knows how old the last answers are."""

    ask: Ask
    every_s: float
    """Between the beginnings of two rounds; one that takes longer is followed by the next."""
    reusable_s: float
    """For so long after a round a change is decided by its answers."""
    work: BackgroundTask[Answers] = field(default_factory=BackgroundTask)
    """The round under way, or done and not yet taken over."""
    clock: Callable[[], float] = time.monotonic
    _began_at_s: float | None = None
    """The last round: no answer is of later than of when it was asked for."""
    _taken_began_at_s: float | None = None
    """The last one whose answers were taken over."""

    @property
    def held_s(self) -> float:
        """Return how long ago the last answers were asked for."""
        began_at_s = self._taken_began_at_s
        return 0.0 if began_at_s is None else self.clock() - began_at_s

    @property
    def is_reusable(self) -> bool:
        """Tell whether a change can be decided by what was answered last."""
        return self._taken_began_at_s is not None and self.held_s < self.reusable_s

    @property
    def due_in_s(self) -> float:
        """Return in what time there is something to wait for: a round under way, or the next."""
        if not self.work.is_free:
            return 0.0
        return self.every_s if self._began_at_s is None else self._rest_s

    @property
    def is_due(self) -> bool:
        """Tell whether to begin one: no other is under way, or not taken over yet."""
        return self.work.is_free and self._rest_s == 0

    def begin(
        self, questions: Sequence[QuerySet], scrapes: FleetScrapes, news: threading.Event
    ) -> None:
        """Begin a round; ``news`` is set when it ends."""
        self._began_at_s = self.clock()
        self.work.begin(lambda: self.ask(questions, scrapes), news)

    def wait(self, news: threading.Event) -> None:
        """Wait until the round ends, or for news while they can be decided without it."""
        if not self.work.is_under_way:
            return
        if not (self.is_reusable and news.wait(self.reusable_s - self.held_s)):
            self.work.wait()

    def take(self) -> Answers | None:
        """Take over what was answered since this was last asked, if anything was."""
        answers = self.work.take()
        if answers is not None:
            self._taken_began_at_s = self._began_at_s
        return answers

    def forget(self) -> None:
        """Begin anew: what was answered before, or is about to be, says nothing of now."""
        self.work.wait()
        self.work.drop()
        self._began_at_s = self._taken_began_at_s = None

    @property
    def _rest_s(self) -> float:
        """Return in what time the next round is due, whether one is under way or not."""
        if self._began_at_s is None:
            return 0.0
        since_s = self.clock() - self._began_at_s
        return max(0.0, self.every_s - since_s) if since_s >= 0 else 0.0
