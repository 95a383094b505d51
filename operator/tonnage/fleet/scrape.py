"""What is asked of Prometheus in one round, in how many parts, and what is said of the failures."""

import logging
import math
import re
import threading
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from tonnage.cluster.answer import Kept
from tonnage.cluster.prometheus import LATE
from tonnage.cluster.questions import Answers, QuerySet
from tonnage.estimate.metrics import DECIDING, TABLE
from tonnage.estimate.samples import PodKey
from tonnage.fleet.rounds import Rounds
from tonnage.settings import Settings
from tonnage.units import KB, KIB, MIB, MINUTE_S

LOG = logging.getLogger("tonnage.observe")
PART_PODS = KB
"""A thousand: a larger fleet is asked for in parts, of namespaces that have no more together."""
MAX_SETS = 32
"""Of queries in one tick that are asked by namespace: with more of these, some share a set."""
SPLIT_S = 10 * MINUTE_S
"""For so long a fleet is asked by namespace once a part of it kept us from reading the others."""
TOO_LARGE = frozenset({"ResponseTooLarge", "QueryTooLarge"})
LEAST_FLOOD_BYTES, POD_BYTES = MIB, 32 * KIB
"""Of all answers of a tick: a pod's own series take some 7 KiB."""
MAX_SKEW_S = 60
MAX_NAMES = 8
"""Named in one line of the log."""
NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
"""As the API server has it: nothing else gets into a query."""

Expressions = Callable[[Sequence[str]], Mapping[str, str]]
"""PromQL by name, limited to these namespaces; to none where none is named."""


@dataclass(slots=True, kw_only=True)
class Scraper:
    """Asks in as many parts as it takes. Remembers whether answers were too large."""

    rounds: Rounds
    settings: Settings
    _num_pods: int = 0
    """Of the round under way, as the next."""
    _num_queries: int = 0
    """Of each part."""
    _split_until_s: float = -math.inf
    _told: frozenset[str] = frozenset()

    def begin(
        self,
        expressions: Expressions,
        pods: Iterable[PodKey],
        now_s: float,
        news: threading.Event,
    ) -> None:
        """Begin to ask about these pods; ``news`` is set when all is answered."""
        known = frozenset(pods)
        divide = by_namespace if now_s < self._split_until_s else in_parts
        sets = divide(expressions, known)
        sets = sets or [QuerySet(expressions=expressions(()), num_pods=len(known))]
        self._num_queries = len(sets[0].expressions)
        self._num_pods = len(known)
        self.rounds.begin(sets, Kept(labels=kept_labels(self.settings), pods=known), news)

    def take(self, now_s: float) -> Answers | None:
        """Take over what Prometheus said since this was last asked, if it said anything."""
        answers = self.rounds.take()
        if answers is not None:
            hangs = hanging(answers, num_queries=self._num_queries)
            if hangs or is_flooded(answers, num_pods=self._num_pods):
                self._split_until_s = now_s + SPLIT_S
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


def is_flooded(answers: Answers, *, num_pods: int) -> bool:
    """Tell whether somebody's series kept us from reading those of others.

    Answers that come late are no sign of it by themselves: Prometheus may be slow, and would not
    be faster for more questions.
    """
    reasons = {reason for reason, _ in answers.problems.values()}
    are_many = answers.bytes_read > max(LEAST_FLOOD_BYTES, num_pods * POD_BYTES)
    return bool(reasons & TOO_LARGE) or (LATE in reasons and are_many)


def hanging(answers: Answers, *, num_queries: int) -> frozenset[str]:
    """Return the namespaces of which every query is late while others have answers."""
    late = Counter(
        namespace_of(key) for key, (reason, _) in answers.problems.items() if reason == LATE
    )
    found = frozenset(name for name, number in late.items() if name and number == num_queries)
    return found if answers.series else frozenset()


def kept_labels(settings: Settings) -> tuple[str, ...]:
    """Return the labels that the join reads of any answer, the namespace's and pod's first."""
    own = (label for query in TABLE.values() for label in query.own_labels)
    return tuple(
        dict.fromkeys((settings.namespace_label, settings.pod_label, "engine", *sorted(set(own))))
    )


def in_parts(expressions: Expressions, pods: Collection[PodKey]) -> list[QuerySet]:
    """Return the same queries for every thousand pods, or a namespace with more; none if few."""
    if len(pods) <= PART_PODS:
        return []
    together, room = list[list[str]](), 0
    num_pods = _num_pods(pods)
    for namespace, number in sorted(num_pods.items()):
        if number > room:
            together.append([])
            room = PART_PODS
        together[-1].append(namespace)
        room -= number
    return [_set_of(expressions, names, num_pods) for names in together]


def by_namespace(expressions: Expressions, pods: Iterable[PodKey]) -> list[QuerySet]:
    """Return the same queries for each namespace: what floods or breaks one fails there only."""
    num_pods, together = _num_pods(pods), defaultdict[int, list[str]](list)
    for place, namespace in enumerate(sorted(num_pods)):
        share = zlib.crc32(namespace.encode()) % MAX_SETS if len(num_pods) > MAX_SETS else place
        together[share].append(namespace)
    return [_set_of(expressions, names, num_pods) for _, names in sorted(together.items())]


def _num_pods(pods: Iterable[PodKey]) -> Mapping[str, int]:
    """Return the pods of each namespace whose name may get into a query."""
    found = Counter(namespace for namespace, _ in pods)
    return {name: number for name, number in found.items() if NAMESPACE.fullmatch(name)}


def _set_of(
    expressions: Expressions, names: Sequence[str], num_pods: Mapping[str, int]
) -> QuerySet:
    return QuerySet(
        expressions=expressions(names),
        namespaces=tuple(names),
        num_pods=sum(num_pods[name] for name in names),
    )


def nothing_decides(answers: Answers) -> tuple[str, str] | None:
    """Return (reason, message) when no query that a decision needs was answered anywhere."""
    needed = [name for name in DECIDING if name in TABLE]
    if any(name in answers.series for name in needed):
        return None
    problems = sorted(answers.problems.items())
    return next((problem for key, problem in problems if query_of(key) in needed), None)


def query_of(key: str) -> str:
    """Return the query that an answer is of, whatever its namespace.

    >>> query_of("running@serving"), query_of("running")
    ('running', 'running')
    """
    return key.partition("@")[0]


def namespace_of(key: str) -> str:
    """Return the namespace that an answer is of, empty where it is of all.

    >>> namespace_of("running@serving"), namespace_of("running")
    ('serving', '')
    """
    return key.partition("@")[2]


def describe(answers: Answers) -> str:
    """Say which queries failed and why, in one line; nothing when all is well."""
    by_problem: dict[tuple[str, str], list[str]] = defaultdict(list)
    for key, problem in sorted(answers.problems.items()):
        by_problem[problem].append(key)
    parts = [
        f"failed={_listed(keys)} reason={reason}: {message}"
        for (reason, message), keys in by_problem.items()
    ]
    if answers.partial:
        parts.append(f"partial={_listed(sorted(answers.partial))}")
    if is_skewed(answers):
        parts.append(f"the clock of Prometheus is more than {MAX_SKEW_S} s off ours")
    return "; ".join(parts)


def is_skewed(answers: Answers) -> bool:
    return abs(answers.clock_skew_s or 0.0) > MAX_SKEW_S


def _listed(keys: Sequence[str]) -> str:
    more = f" and {len(keys) - MAX_NAMES} more" if len(keys) > MAX_NAMES else ""
    return ",".join(keys[:MAX_NAMES]) + more
