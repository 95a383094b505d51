"""Rounds of questions to Prometheus, and what is said of failures: one at a time, beside the loop.

The fleet is queried in parts: a thousand pods each, and namespaces alone. Which namespace of a part
makes a query fail is not known. So each is queried alone for ten minutes after it, and those that
failed last come last.

A tick waits for the answers to its round; what people change does not. Where something changes
meanwhile, it is decided by the answers of the round before, and the round goes on.
"""

import logging
import re
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from math import inf

from tonnage.cluster.prometheus import CUT_OFF, THROTTLED, UNREACHABLE
from tonnage.cluster.queries import PARTIAL, Answers, QuerySet, query_of
from tonnage.estimate.fleet_scrapes import FleetScrapes, PodKey
from tonnage.estimate.metrics import DECIDING, FRESH_SCRAPES, HISTORY, SCRAPES
from tonnage.estimate.samples import EngineSamples, fleet_samples
from tonnage.fleet.background import BackgroundTask
from tonnage.settings import Settings
from tonnage.units import KB, MINUTE_S

Ask = Callable[[Sequence[QuerySet], FleetScrapes], Answers]


ALONE_S = 10.0 * MINUTE_S
PART_PODS = KB
"""A thousand: a larger fleet is queried in parts, of namespaces that have no more together."""
PART_NAMES = 32
"""Namespaces of a part: queried alone, they take one round."""
HISTORY_PODS = 250
"""Of which a round asks for a quarter of an hour: 33 KB of a pod of vLLM 0.32, half of what a round
may read, and as much again in memory."""
HISTORY_WEIGHT = 3
"""Times the bytes of a pod that a part with history may take: 59 KB in place of some 26."""
HISTORY_TRIES = 3
"""Rounds that ask for the history of a namespace while others keep its answer waiting."""
OF_NO_NAMESPACE = frozenset({UNREACHABLE, THROTTLED})
"""Failures that none can bring about."""
NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
"""As the API server has it: nothing else gets into a query."""

Expressions = Callable[[Sequence[str]], Mapping[str, str]]
"""PromQL by name, limited to these namespaces; to none where none is named."""
Alone = Mapping[str, float]
"""Until when each of these namespaces is queried alone."""


def parts_of(
    expressions: Expressions,
    pods: Collection[PodKey],
    alone: Alone,
    *,
    first: str = "",
    apart: Set[str] = frozenset(),
) -> list[QuerySet]:
    """Return the same queries for each part of a fleet; for all at once where it is small.

    ``first``: a namespace that was kept waiting: its part comes before its like, then those that
    follow it. Who failed last comes last. ``apart``: are in no part with others.
    """
    counted = Counter(namespace for namespace, _ in pods)
    num_pods = {name: counted[name] for name in sorted(counted) if NAMESPACE.fullmatch(name)}
    until_s = {name: alone[name] for name in num_pods if name in alone}
    is_small = len(pods) <= PART_PODS and len(num_pods) <= PART_NAMES
    is_uniform = apart.isdisjoint(num_pods) or apart >= num_pods.keys()
    if len(num_pods) <= 1 or (is_small and is_uniform and not until_s):
        return [QuerySet(expressions=expressions(()), num_pods=len(pods))]
    others = {name: number for name, number in num_pods.items() if name not in until_s}
    sets = [
        QuerySet(
            expressions=expressions(names),
            namespaces=tuple(names),
            num_pods=sum(num_pods[name] for name in names)
            * (1 if apart.isdisjoint(names) else HISTORY_WEIGHT),
        )
        for names in (
            *_together({name: number for name, number in others.items() if name in apart}),
            *_together({name: number for name, number in others.items() if name not in apart}),
            *([name] for name in until_s),
        )
    ]
    begin = next((place for place, each in enumerate(sets) if first in each.namespaces), 0)
    in_turn = [*sets[begin:], *sets[:begin]]
    return sorted(in_turn, key=lambda each: until_s.get(each.namespaces[0], 0.0))


def _together(num_pods: Mapping[str, int]) -> Iterator[Sequence[str]]:
    names, room = list[str](), PART_PODS
    for name, number in num_pods.items():
        if names and (number > room or len(names) == PART_NAMES):
            yield names
            names, room = [], PART_PODS
        names.append(name)
        room -= number
    if names:
        yield names


def still_alone(alone: Alone, now_s: float) -> dict[str, float]:
    """Return who is queried alone now, and until when."""
    return {name: until_s for name, until_s in alone.items() if 0 < until_s - now_s <= ALONE_S}


def alone_after(
    alone: Alone, sets: Sequence[QuerySet], pods: Collection[PodKey], answers: Answers, now_s: float
) -> Alone:
    """Return who is queried alone after a round that asked these sets about these pods.

    Where the time was too short to ask all, it is only those whose own answers failed.
    """
    everybody = {namespace for namespace, _ in pods}
    failed = {
        name
        for each in sets
        # What the end of a round cut off was kept waiting by others, unless it came first.
        if answers.faults(each) - OF_NO_NAMESPACE - (set() if each is sets[0] else {CUT_OFF})
        for name in each.namespaces or everybody
    }
    known = {} if first_kept_waiting(sets, answers) else still_alone(alone, now_s)
    return known | dict.fromkeys(failed, now_s + ALONE_S)


def first_kept_waiting(sets: Sequence[QuerySet], answers: Answers) -> str:
    """Return a namespace of the first part for which others took the time, if any."""
    waiting = (each for each in sets if answers.faults(each) - {PARTIAL} == {CUT_OFF})
    return next((each.namespaces[0] for each in waiting if each.namespaces), "")


LOG = logging.getLogger("tonnage.observe")
MAX_SKEW_S = 60
HistoricExpressions = Callable[[Sequence[str], bool], Mapping[str, str]]
"""PromQL by name, limited to these namespaces, with the last quarter of an hour or without."""
MAX_NAMES = 8
"""Named in one line of the log."""


@dataclass(slots=True, kw_only=True)
class Rounds:
    """Asks when it is time, in as many parts as it takes, and knows how old the last answers are.

    One that takes longer than the time between two is followed by the next. Remembers which
    namespaces to query alone.
    """

    ask: Ask
    settings: Settings
    work: BackgroundTask[Answers] = field(default_factory=BackgroundTask)
    """The round under way, or done and not yet taken over."""
    clock: Callable[[], float] = time.monotonic
    _began_at_s: float | None = None
    """The last round: no answer is of later than of when it was asked for."""
    _taken_began_at_s: float | None = None
    """The last one whose answers were taken over."""
    _asked_at_s: float = 0.0
    """The last round, by the clock of ticks."""
    _scrapes: FleetScrapes = field(init=False)
    _answered_at_s: dict[str, float] = field(default_factory=dict)
    """When scrapes were last answered, by namespace."""
    _tries: dict[str, int] = field(default_factory=dict)
    """Of the history of each namespace of which it is awaited."""
    _historic: Set[str] = frozenset()
    """Namespaces of whose history the round under way asks."""
    _pods: frozenset[PodKey] = frozenset()
    """Of the round under way, as the next."""
    _sets: Sequence[QuerySet] = ()
    _alone: Alone = field(default_factory=dict)
    _first: str = ""
    """A namespace whose part comes first in the next round."""
    _told: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        self._begin_anew()

    @property
    def held_s(self) -> float:
        """Return how long ago the last answers were asked for."""
        began_at_s = self._taken_began_at_s
        return 0.0 if began_at_s is None else self.clock() - began_at_s

    @property
    def _reusable_s(self) -> float:
        """Return for how long a change is decided by the last answers: they are fresh."""
        return FRESH_SCRAPES * self.settings.scrape_interval_s

    @property
    def is_reusable(self) -> bool:
        """Tell whether a change can be decided by what was answered last."""
        return self._taken_began_at_s is not None and self.held_s < self._reusable_s

    @property
    def due_in_s(self) -> float:
        """Return in what time there is something to wait for: a round under way, or the next."""
        if not self.work.is_free:
            return 0.0
        return self.settings.tick_s if self._began_at_s is None else self._rest_s

    @property
    def is_due(self) -> bool:
        """Tell whether to begin one: no other is under way, or not taken over yet."""
        return self.work.is_free and self._rest_s == 0

    @property
    def _rest_s(self) -> float:
        """Return in what time the next round is due, whether one is under way or not."""
        if self._began_at_s is None:
            return 0.0
        since_s = self.clock() - self._began_at_s
        return max(0.0, self.settings.tick_s - since_s) if since_s >= 0 else 0.0

    def begin(
        self,
        expressions: HistoricExpressions,
        pods: Iterable[PodKey],
        now_s: float,
        news: threading.Event,
    ) -> None:
        """Begin to ask about these pods; ``news`` is set when all is answered."""
        self._pods = frozenset(pods)
        if now_s < self._asked_at_s:  # the clock was set back
            self._begin_anew()
        self._asked_at_s = now_s
        self._historic = self._next_historic(now_s)

        def texts(names: Sequence[str]) -> Mapping[str, str]:
            return expressions(names, not self._historic.isdisjoint(names or self._namespaces))

        alone, scrapes = still_alone(self._alone, now_s), self._scrapes
        sets = parts_of(texts, self._pods, alone, first=self._first, apart=self._historic)
        self._sets = sets
        scrapes.expect(self._pods, anew=self._historic)
        self._began_at_s = self.clock()
        self.work.begin(lambda: self.ask(sets, scrapes), news)

    def wait(self, news: threading.Event) -> None:
        """Wait until the round ends, or for news while they can be decided without it."""
        if not self.work.is_under_way:
            return
        if not (self.is_reusable and news.wait(self._reusable_s - self.held_s)):
            self.work.wait()

    def take(self, now_s: float) -> Answers | None:
        """Take over what Prometheus said since this was last asked, if it said anything."""
        answers = self.work.take()
        if answers is not None:
            self._taken_began_at_s = self._began_at_s
            self._alone = alone_after(self._alone, self._sets, self._pods, answers, now_s)
            self._first = first_kept_waiting(self._sets, answers) or self._first
            self._scrapes.add(answers.answered)
            namespaces, known = self._namespaces, self._answered_at_s
            for each in self._sets:
                if next(each.keys(SCRAPES)) not in answers.problems:
                    known |= dict.fromkeys(each.namespaces or namespaces, self._asked_at_s)
            self._answered_at_s = {name: known[name] for name in namespaces & known.keys()}
            self._note_history(answers)
            self._tell(answers)
        return answers

    @property
    def awaited(self) -> Set[str]:
        """The namespaces whose last quarter of an hour is yet to be read."""
        return frozenset(self._tries)

    def _next_historic(self, now_s: float) -> Set[str]:
        """Return the next namespaces whose engines were not watched: at the start all wait."""
        recent_s = self._reusable_s + self.settings.tick_s
        num_pods, tries = Counter(namespace for namespace, _ in self._pods), self._tries
        missed = {
            name for name in num_pods if now_s - self._answered_at_s.get(name, -inf) > recent_s
        }
        in_turn = [*(name for name in tries if name in num_pods), *sorted(missed - tries.keys())]
        self._tries = {name: tries.get(name, 0) for name in in_turn}
        found, room = set[str](), HISTORY_PODS
        for name in in_turn:
            if not found or num_pods[name] <= room:
                found.add(name)
                room -= num_pods[name]
        return found

    def _note_history(self, answers: Answers) -> None:
        """Await no more what was answered, or cannot be; what waits on comes last."""
        for name in sorted(self._historic):
            problem = answers.problems.get(f"{HISTORY}@{name}") or answers.problems.get(HISTORY)
            is_watched = self._answered_at_s.get(name) == self._asked_at_s
            tries = self._tries.pop(name, HISTORY_TRIES) + is_watched
            is_late = problem is not None and problem[0] == CUT_OFF and tries < HISTORY_TRIES
            if is_late or not is_watched:
                self._tries[name] = tries

    @property
    def _namespaces(self) -> Set[str]:
        return {namespace for namespace, _ in self._pods}

    def samples(self, at_s: float) -> Mapping[PodKey, tuple[EngineSamples, ...]]:
        """Return the figures of all engines at a time by Prometheus' clock."""
        self._scrapes.forget_silent(at_s)
        return fleet_samples(self._scrapes, at_s)

    def forget(self) -> None:
        """Begin anew: what was answered before, or is about to be, says nothing of now."""
        self.work.drop()
        self._began_at_s = self._taken_began_at_s = None
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._scrapes, self._answered_at_s, self._tries = FleetScrapes(self.settings), {}, {}

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
