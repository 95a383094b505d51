"""The questions of one tick, and what came of each of them."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum

from tonnage.cluster.answer import InstantVector
from tonnage.cluster.errors import PrometheusError
from tonnage.estimate.series import Series, Vector, concatenate

NOBODY = "-"
"""In place of a namespace, as none can be named: an answer about it tells that there are any."""


class Standing(IntEnum):
    """Of a set of queries: how far it is trusted not to keep the others from their answers."""

    USUAL = 0
    APART = 1
    """A failure of these namespaces is recent."""
    DOUBTED = 2
    """It failed by itself the last time that it was asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuerySet:
    """Queries by name, of the whole fleet or of some of its namespaces."""

    expressions: Mapping[str, str]
    """PromQL. What comes first is asked first."""
    namespaces: tuple[str, ...] = ()
    """That the expressions are limited to; empty: to none."""
    num_pods: int = 0
    """Whose series are expected: the larger part of the bytes goes to those who have more."""
    standing: Standing = Standing.USUAL

    @property
    def is_about_nobody(self) -> bool:
        return self.namespaces == (NOBODY,)

    def keys(self, name: str) -> Iterator[str]:
        """Yield what an answer is named by: the query, or query@namespace for each of them."""
        if not self.namespaces:
            yield name
        for namespace in self.namespaces:
            yield f"{name}@{namespace}"


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
        if not queries.is_about_nobody:
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
