"""What is asked of Prometheus in one round, in how many parts, and what is said of the failures."""

import logging
import math
import re
import threading
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
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
SPLIT_PODS = KB
"""A thousand: a larger fleet is not asked for as a whole, but by namespace."""
MAX_SETS = 32
"""Of queries in one tick: with more namespaces than this, some share a set."""
SPLIT_S = 10 * MINUTE_S
"""For so long a fleet is asked by namespace once an answer for all of it was too large."""
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
    """Of the round under way."""
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
        is_split = len(known) > SPLIT_PODS or now_s < self._split_until_s
        sets = by_namespace(expressions, known) if is_split else []
        sets = sets or [QuerySet(expressions=expressions(()), num_pods=len(known))]
        self._num_pods = len(known)
        self.rounds.begin(sets, Kept(labels=kept_labels(self.settings), pods=known), news)

    def take(self, now_s: float) -> Answers | None:
        """Take over what Prometheus said since this was last asked, if it said anything."""
        answers = self.rounds.take()
        if answers is not None:
            if is_flooded(answers, num_pods=self._num_pods):
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


def kept_labels(settings: Settings) -> tuple[str, ...]:
    """Return the labels that the join reads of any answer, the namespace's and pod's first."""
    own = (label for query in TABLE.values() for label in query.own_labels)
    return tuple(
        dict.fromkeys((settings.namespace_label, settings.pod_label, "engine", *sorted(set(own))))
    )


def by_namespace(expressions: Expressions, pods: Iterable[PodKey]) -> list[QuerySet]:
    """Return the same queries for each namespace: what floods or breaks one fails there only."""
    num_pods: dict[str, int] = defaultdict(int)
    for namespace, _ in pods:
        num_pods[namespace] += 1
    together: dict[int, list[str]] = defaultdict(list)
    named = sorted(name for name in num_pods if NAMESPACE.fullmatch(name))
    for place, namespace in enumerate(named):
        share = zlib.crc32(namespace.encode()) % MAX_SETS if len(named) > MAX_SETS else place
        together[share].append(namespace)
    return [
        QuerySet(
            expressions=expressions(names),
            namespaces=tuple(names),
            num_pods=sum(num_pods[name] for name in names),
        )
        for _, names in sorted(together.items())
    ]


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
