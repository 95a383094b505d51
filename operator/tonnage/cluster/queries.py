"""The questions of one tick, and what came of each of them."""

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from tonnage.cluster.errors import PrometheusError
from tonnage.estimate.fleet_scrapes import Answered


@dataclass(frozen=True, slots=True, kw_only=True)
class QuerySet:
    """Queries by name, of the whole fleet or of some of its namespaces."""

    expressions: Mapping[str, str]
    """PromQL. What comes first is asked first."""
    namespaces: tuple[str, ...] = ()
    """That the expressions are limited to; empty: to none."""
    num_pods: int = 0
    """Whose series are expected: the larger part of the bytes goes to those who have more."""

    def keys(self, name: str) -> Iterator[str]:
        """Yield what an answer is named by: the query, or query@namespace for each of them."""
        if not self.namespaces:
            yield name
        for namespace in self.namespaces:
            yield f"{name}@{namespace}"


@dataclass(slots=True, kw_only=True, eq=False)
class SetUnderWay:
    """The questions of one set that wait, and how those before them fared."""

    queries: QuerySet
    most_bytes: float
    """Of its answers together: a set that is flooded leaves the others what they need."""
    waiting: deque[tuple[str, str]]
    num_under_way: int = 0
    num_bytes: int = 0
    num_answered: int = 0
    failures: list[str] = field(default_factory=list)
    """Reasons."""
    is_slow: bool = False

    @property
    def turn(self) -> tuple[bool, int]:
        """Return what is least for the set that comes next: the slow ones are last.

        A namespace has one place at first, several together have two: where the time is short for
        all, some are through.
        """
        num_places = 1 if len(self.queries.namespaces) == 1 else 2
        return self.is_slow, self.num_under_way // num_places


def query_of(key: str) -> str:
    """Return the query that an answer is of, whatever its namespace.

    >>> query_of("running@serving"), query_of("running")
    ('running', 'running')
    """
    return key.partition("@")[0]


def namespace_of(key: str) -> str:
    """Return the namespace that an answer is of; "" for all.

    >>> namespace_of("running@serving"), namespace_of("running")
    ('serving', '')
    """
    return key.partition("@")[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryResult:
    """An answer, and what it says about the clock."""

    answered: Answered
    is_partial: bool = False
    """A store behind Prometheus did not answer, or it warns of something."""
    clock_skew_s: float | None = None
    """Of Prometheus against ours: above zero, it is ahead."""


@dataclass(slots=True, kw_only=True)
class Answers:
    """What Prometheus said in one tick, as answers come in, in any order."""

    answered: Answered = field(default_factory=Answered)
    """What was sampled."""
    queries: set[str] = field(default_factory=set)
    """That were answered, for some namespaces at least."""
    problems: dict[str, tuple[str, str]] = field(default_factory=dict)
    """(reason, message) by query, or by query@namespace where it was asked by namespace."""
    partial: set[str] = field(default_factory=set)
    """Queries, named as above, of which an answer is not whole: true as far as it goes."""
    bytes_read: int = 0
    """Of all bodies, unpacked."""
    clock_skew_s: float | None = None

    def add(self, name: str, queries: QuerySet, outcome: QueryResult) -> None:
        """Take in an answer."""
        self.answered.merge(outcome.answered)
        self.queries.add(name)
        if outcome.is_partial:
            self.partial.update(queries.keys(name))
        skews_s = [each for each in (self.clock_skew_s, outcome.clock_skew_s) if each is not None]
        self.clock_skew_s = min(skews_s, key=abs, default=None)

    def fail(self, name: str, queries: QuerySet, error: PrometheusError) -> None:
        """Note why there is none."""
        problem = (error.reason, str(error))
        self.problems.update((key, problem) for key in queries.keys(name))
