"""What is asked of Prometheus in one round, and what is said of the failures."""

import logging
import threading
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from tonnage.cluster.answer import SeriesFilter
from tonnage.cluster.questions import Answers, QuerySet, query_of
from tonnage.estimate.metrics import DECIDING, TABLE
from tonnage.estimate.samples import PodKey
from tonnage.fleet.parts import Alone, Expressions, alone_after, first_kept_waiting, parts_of
from tonnage.fleet.rounds import Rounds
from tonnage.settings import Settings

LOG = logging.getLogger("tonnage.observe")
MAX_SKEW_S = 60
MAX_NAMES = 8
"""Named in one line of the log."""


@dataclass(slots=True, kw_only=True)
class Scraper:
    """Asks in as many parts as it takes. Remembers which namespaces to query alone."""

    rounds: Rounds
    settings: Settings
    _pods: frozenset[PodKey] = frozenset()
    """Of the round under way, as the next."""
    _sets: Sequence[QuerySet] = ()
    _alone: Alone = field(default_factory=dict)
    _first: str = ""
    """A namespace whose part comes first in the next round."""
    _told: frozenset[str] = frozenset()

    def begin(
        self,
        expressions: Expressions,
        pods: Iterable[PodKey],
        now_s: float,
        news: threading.Event,
    ) -> None:
        """Begin to ask about these pods; ``news`` is set when all is answered."""
        self._pods = frozenset(pods)
        self._sets = parts_of(expressions, self._pods, self._alone, now_s, first=self._first)
        kept = SeriesFilter(labels=kept_labels(self.settings), pods=self._pods)
        self.rounds.begin(self._sets, kept, news)

    def take(self, now_s: float) -> Answers | None:
        """Take over what Prometheus said since this was last asked, if it said anything."""
        answers = self.rounds.take()
        if answers is not None:
            self._alone = alone_after(self._alone, self._sets, self._pods, answers, now_s)
            self._first = first_kept_waiting(self._sets, answers) or self._first
            self._tell(answers)
        return answers

    def _tell(self, answers: Answers) -> None:
        """Write one line when other queries fail than before, or the clocks drifted apart."""
        reasons = {reason for reason, _ in answers.problems.values()}
        skewed = {"skew"} if is_skewed(answers) else set()
        told = frozenset({*answers.problems, *reasons, *answers.partial, *skewed})
        if told and told != self._told:
            LOG.warning("metrics: %s", describe(answers))
        elif self._told and not told:
            LOG.info("metrics: every query is answered again")
        self._told = told


def kept_labels(settings: Settings) -> tuple[str, ...]:
    """Return the labels that the join reads of any answer, the namespace's and pod's first."""
    own = (label for query in TABLE.values() for label in query.own_labels)
    return tuple(
        dict.fromkeys((settings.namespace_label, settings.pod_label, "engine", *sorted(set(own))))
    )


def nothing_decides(answers: Answers) -> tuple[str, str] | None:
    """Return (reason, message) when no query that a decision needs was answered anywhere."""
    needed = [name for name in DECIDING if name in TABLE]
    if any(name in answers.series for name in needed):
        return None
    problems = sorted(answers.problems.items())
    return next((problem for key, problem in problems if query_of(key) in needed), None)


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
