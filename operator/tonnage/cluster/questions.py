"""The questions of one tick, and what came of each of them."""

from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tonnage.cluster.answer import InstantVector
from tonnage.cluster.errors import PrometheusError
from tonnage.estimate.series import Series, Vector, concatenate


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

    answer: InstantVector
    clock_skew_s: float | None = None
    """Of Prometheus against ours: above zero, it is ahead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """What Prometheus said in one tick: of each query series, a problem, or both by namespace."""

    series: Mapping[str, Sequence[Series]] = field(default_factory=dict)
    """By query; one that failed everywhere is not in it."""
    problems: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """(reason, message) by query, or by query@namespace where it was asked by namespace."""
    partial: frozenset[str] = frozenset()
    """Queries, named as above, of which an answer is not whole: true as far as it goes."""
    num_dropped: int = 0
    """Samples that were no finite number, and what was no sample."""
    bytes_read: int = 0
    """Of all bodies, unpacked."""
    clock_skew_s: float | None = None


@dataclass(slots=True)
class Gathering:
    """Answers as they come in, in any order."""

    bytes_read: int = 0
    _series: dict[str, dict[tuple[str, ...], Vector]] = field(
        default_factory=lambda: defaultdict(dict)
    )
    """By query, and by the namespaces that it was asked for."""
    _problems: dict[str, tuple[str, str]] = field(default_factory=dict)
    _partial: set[str] = field(default_factory=set)
    _skews_s: list[float] = field(default_factory=list)
    _num_dropped: int = 0

    def add(self, name: str, queries: QuerySet, outcome: QueryResult) -> None:
        """Take in an answer."""
        self._series[name][queries.namespaces] = outcome.answer.series
        self._num_dropped += outcome.answer.num_dropped
        if outcome.answer.is_partial:
            self._partial.update(queries.keys(name))
        if outcome.clock_skew_s is not None:
            self._skews_s.append(outcome.clock_skew_s)

    def fail(self, name: str, queries: QuerySet, error: PrometheusError) -> None:
        """Note why there is none."""
        problem = (error.reason, str(error))
        self._problems.update((key, problem) for key in queries.keys(name))

    def answers(self) -> Answers:
        """Return everything so far, in the same order in whichever order it came."""
        return Answers(
            series={
                name: concatenate(parts[namespaces] for namespaces in sorted(parts))
                for name, parts in self._series.items()
            },
            problems=self._problems,
            partial=frozenset(self._partial),
            num_dropped=self._num_dropped,
            bytes_read=self.bytes_read,
            clock_skew_s=min(self._skews_s, key=abs, default=None),
        )
