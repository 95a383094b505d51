"""What is asked of Prometheus in one round, and what is said of the failures."""

import logging
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from math import inf

from tonnage.cluster.queries import Answers, QuerySet, query_of
from tonnage.estimate.fleet_scrapes import FleetScrapes, PodKey
from tonnage.estimate.metrics import DECIDING, FRESH_SCRAPES, SCRAPES
from tonnage.estimate.samples import EngineSamples, fleet_samples
from tonnage.fleet.parts import Alone, alone_after, first_kept_waiting, parts_of
from tonnage.fleet.rounds import Rounds
from tonnage.settings import Settings

LOG = logging.getLogger("tonnage.observe")
MAX_SKEW_S = 60
HistoricExpressions = Callable[[Sequence[str], bool], Mapping[str, str]]
"""PromQL by name, limited to these namespaces, with the last quarter of an hour or without."""
MAX_NAMES = 8
"""Named in one line of the log."""


@dataclass(slots=True, kw_only=True)
class Scraper:
    """Asks in as many parts as it takes. Remembers which namespaces to query alone."""

    rounds: Rounds
    settings: Settings
    _scrapes: FleetScrapes = field(init=False)
    _answered_at_s: dict[str, float] = field(default_factory=dict)
    """When scrapes were last answered, by namespace."""
    _began_at_s: float = 0.0
    _pods: frozenset[PodKey] = frozenset()
    """Of the round under way, as the next."""
    _sets: Sequence[QuerySet] = ()
    _alone: Alone = field(default_factory=dict)
    _first: str = ""
    """A namespace whose part comes first in the next round."""
    _told: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        self._begin_anew()

    def begin(
        self,
        expressions: HistoricExpressions,
        pods: Iterable[PodKey],
        now_s: float,
        news: threading.Event,
    ) -> None:
        """Begin to ask about these pods; ``news`` is set when all is answered."""
        self._pods = frozenset(pods)
        if now_s < self._began_at_s:  # the clock was set back
            self._begin_anew()
        self._began_at_s = now_s
        recent_s = FRESH_SCRAPES * self.settings.scrape_interval_s + self.settings.tick_s

        def texts(names: Sequence[str]) -> Mapping[str, str]:
            """Ask for a quarter of an hour where scrapes were missed: at the start, say."""
            known_s = [self._answered_at_s.get(name, -inf) for name in names or self._namespaces]
            return expressions(names, now_s - min(known_s, default=now_s) > recent_s)

        self._sets = parts_of(texts, self._pods, self._alone, now_s, first=self._first)
        self._scrapes.expect(self._pods)
        self.rounds.begin(self._sets, self._scrapes, news)

    def take(self, now_s: float) -> Answers | None:
        """Take over what Prometheus said since this was last asked, if it said anything."""
        answers = self.rounds.take()
        if answers is not None:
            self._alone = alone_after(self._alone, self._sets, self._pods, answers, now_s)
            self._first = first_kept_waiting(self._sets, answers) or self._first
            self._scrapes.add(answers.answered)
            self._note_answered(answers)
            self._tell(answers)
        return answers

    @property
    def _namespaces(self) -> Set[str]:
        return {namespace for namespace, _ in self._pods}

    def _note_answered(self, answers: Answers) -> None:
        namespaces = self._namespaces
        for each in self._sets:
            if next(each.keys(SCRAPES)) not in answers.problems:
                names = each.namespaces or namespaces
                self._answered_at_s |= dict.fromkeys(names, self._began_at_s)
        known = self._answered_at_s
        self._answered_at_s = {name: known[name] for name in namespaces & known.keys()}

    def samples(self, at_s: float) -> Mapping[PodKey, tuple[EngineSamples, ...]]:
        """Return the figures of all engines at a time by Prometheus' clock."""
        self._scrapes.forget_silent(at_s)
        return fleet_samples(self._scrapes, at_s)

    def forget(self) -> None:
        """Begin anew: ask for the last quarter of an hour again."""
        self.rounds.forget()
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._scrapes, self._answered_at_s = FleetScrapes(self.settings), {}

    def _tell(self, answers: Answers) -> None:
        """Write one line when other queries fail than before, or the clocks drifted apart."""
        reasons = {reason for reason, _ in answers.problems.values()}
        skewed = {"skew"} if is_skewed(answers) else set()
        reported = frozenset({*answers.problems, *reasons, *answers.partial, *skewed})
        if reported and reported != self._told:
            LOG.warning("metrics: %s", describe(answers))
        elif self._told and not reported:
            LOG.info("metrics: every query is answered again")
        self._told = reported


def nothing_decides(answers: Answers) -> tuple[str, str] | None:
    """Return (reason, message) when no query that a decision needs was answered anywhere."""
    if answers.queries.issuperset(DECIDING):
        return None
    problems = sorted(answers.problems.items())
    return next((problem for key, problem in problems if query_of(key) in DECIDING), None)


def describe(answers: Answers) -> str:
    """Say which queries failed and why, in one line; nothing when all is well."""
    by_problem: dict[tuple[str, str], list[str]] = defaultdict(list)
    for key, problem in sorted(answers.problems.items()):
        by_problem[problem].append(key)
    parts = [
        f"failed={_first_names(keys)} reason={reason}: {message}"
        for (reason, message), keys in by_problem.items()
    ]
    if answers.partial:
        parts.append(f"partial={_first_names(sorted(answers.partial))}")
    if is_skewed(answers):
        parts.append(f"the clock of Prometheus is more than {MAX_SKEW_S} s off ours")
    return "; ".join(parts)


def is_skewed(answers: Answers) -> bool:
    return abs(answers.clock_skew_s or 0.0) > MAX_SKEW_S


def _first_names(keys: Sequence[str]) -> str:
    more = f" and {len(keys) - MAX_NAMES} more" if len(keys) > MAX_NAMES else ""
    return ",".join(keys[:MAX_NAMES]) + more
