"""The questions of one tick, and what came of each of them.

One answer of Prometheus: series by series, only what is read of it takes memory.

msgspec validates the document as it decodes it and hands each series on as soon as it is read, so
that beside the body there is never a tree of it. Labels that were read before are not decoded
again: the same bytes are the same series. What no Prometheus writes refuses the answer.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import suppress
from dataclasses import dataclass, field
from math import nan
from typing import Final

import msgspec
from msgspec import Raw

from tonnage.cluster.calls import PrometheusError
from tonnage.estimate.fleet_scrapes import Answered, FleetScrapes, Samples
from tonnage.estimate.metrics import HISTORY
from tonnage.units import KIB

PARTIAL: Final = "MetricsPartial"


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
    most_kept_bytes: float
    """Of what is kept of these, in memory."""
    waiting: deque[tuple[str, str]]
    num_under_way: int = 0
    num_bytes: int = 0
    kept_bytes: int = 0
    num_answered: int = 0
    failures: list[str] = field(default_factory=list)
    """Reasons."""
    is_slow: bool = False

    @property
    def turn(self) -> tuple[bool, int]:
        """Return what is least for the set that comes next: the slow ones are last.

        A namespace has one place at first, several have two: where time is short, some are through.
        """
        num_places = 1 if len(self.queries.namespaces) == 1 else 2
        return self.is_slow, self.num_under_way // num_places


def query_of(key: str) -> str:
    """Return the query that an answer is of, whatever its namespace.

    >>> query_of("running@serving"), query_of("running")
    ('running', 'running')
    """
    return key.partition("@")[0]


Answer = tuple[Answered, bool, float | None]
"""What was sampled; whether that is partial, since a store behind Prometheus did not answer or it
warns of something; by how much its clock is ahead of ours."""


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

    def add(self, name: str, queries: QuerySet, answer: Answer) -> None:
        """Take in an answer."""
        answered, is_partial, skew_s = answer
        self.answered.merge(answered)
        self.queries.add(name)
        if is_partial:
            self.partial.update(queries.keys(name))
        skews_s = [each for each in (self.clock_skew_s, skew_s) if each is not None]
        self.clock_skew_s = min(skews_s, key=abs, default=None)

    def fail(self, name: str, queries: QuerySet, error: PrometheusError) -> None:
        """Note why there is none."""
        problem = (error.reason, str(error))
        self.problems.update((key, problem) for key in queries.keys(name))

    def faults(self, part: QuerySet) -> Set[str]:
        """Return why answers of a part are missing, and ``PARTIAL`` where one is not whole.

        A history that is too large is no fault: it is begun anew.
        """
        asked = [next(part.keys(name)) for name in part.expressions if name != HISTORY]
        found = {self.problems[key][0] for key in asked if key in self.problems}
        return found if self.partial.isdisjoint(asked) else {PARTIAL, *found}


MAX_NUMBER_CHARACTERS: Final = 512
"""Of a number: VictoriaMetrics writes 1e300 in 301 digits."""
SERIES_BYTES: Final = 256 * KIB
"""Of the samples of a series as they are written, and of its labels: decoded, one series after the
other, they take some twenty times as much."""
Scalar = str | float | bool | None
"""What may be in the place of a time or of a value: nothing that could be large."""
Take = Callable[[bytes, bytes], None]
"""Of a series its labels and its values, as JSON."""
TAKERS: Final[list[Take]] = []
ONE_AT_A_TIME: Final = threading.Lock()
LABELS: Final = msgspec.json.Decoder(dict[str, str])
FIGURES: Final = msgspec.json.Decoder(list[tuple[float, float]], strict=False)
"""Samples as Prometheus writes them."""
WHATEVER: Final = msgspec.json.Decoder(list[tuple[Scalar, Scalar]], strict=False)
"""Samples with something in the place of a figure that is none."""


def _number(part: Scalar) -> float:
    """Return a figure as it is written; NaN where that is no number."""
    if isinstance(part, str) and len(part) > MAX_NUMBER_CHARACTERS:
        return nan
    try:
        return float(part)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return nan


def _samples(values: bytes) -> Samples:
    with suppress(ValueError):
        return FIGURES.decode(values)
    read = ((_number(at_s), _number(value)) for at_s, value in WHATEVER.decode(values))
    return [(at_s, value) for at_s, value in read if abs(at_s) < float("inf")]


class _Series(msgspec.Struct, gc=False):
    """Goes to the last taker, and is emptied: never is there more than one."""

    metric: Raw
    values: Raw

    def __post_init__(self) -> None:
        metric, values = bytes(self.metric), bytes(self.values)
        self.metric = self.values = NOTHING
        if len(values) > SERIES_BYTES:
            message = f"the samples of a series have more than {SERIES_BYTES} bytes: {WHO_ANSWERS}"
            raise PrometheusError(message, reason="QueryTooLarge")
        if len(metric) <= SERIES_BYTES:  # no label that is read is so long
            TAKERS[-1](metric, values)


class _Data(msgspec.Struct):
    resultType: Raw  # noqa: N815
    result: list[_Series]


class _Document(msgspec.Struct):
    """An answer. A message about a text would repeat it: what could be one is compared here."""

    status: Raw
    data: _Data
    isPartial: bool | None = None  # noqa: N815
    warnings: Raw = Raw(b"[]")


NOTHING: Final = Raw()
WHO_ANSWERS: Final = "see what your engines' pages have, and who answers at settings.prometheusUrl"
DOCUMENT: Final = msgspec.json.Decoder(_Document)


def read_matrix(body: bytes | bytearray, take: Take) -> bool:
    """Hand over each series of an answer, one by one; return whether the answer is partial.

    Raises:
        ValueError: it broke off, or is no matrix. RecursionError: it nests too deep.
        PrometheusError: one of its series is too large.
    """
    with ONE_AT_A_TIME:
        TAKERS.append(take)
        try:
            read = DOCUMENT.decode(body)
        finally:
            TAKERS.pop()
    if (bytes(read.status), bytes(read.data.resultType)) != (b'"success"', b'"matrix"'):
        raise ValueError("no matrix")
    return bool(read.isPartial) or bytes(read.warnings).strip() not in {b"[]", b"null"}


class AnswerReader:
    """Takes in an answer piece by piece, and reads it when it has ended."""

    def __init__(self, scrapes: FleetScrapes, *, max_series: int) -> None:
        self._scrapes, self._max_series = scrapes, max_series
        self._body, self._num_series, self._most_kept_bytes = bytearray(), 0, 0.0
        self.answered = Answered()

    def feed(self, piece: bytes) -> None:
        self._body += piece

    def end(self, *, most_kept_bytes: float) -> bool:
        """Read the answer; return whether it is partial.

        Raises:
            PrometheusError: it broke off, was no matrix, or has more than is kept of one.
        """
        self._most_kept_bytes = most_kept_bytes
        try:
            return read_matrix(self._body, self._take)
        except (ValueError, RecursionError) as error:
            raise bad_answer() from error

    def _take(self, metric: bytes, values: bytes) -> None:
        self._num_series += 1
        if self._num_series > self._max_series:
            message = f"an answer has more than {self._max_series} series: {WHO_ANSWERS}"
            raise PrometheusError(message, reason="QueryTooLarge")

        def labels() -> Mapping[str, str]:
            # VictoriaMetrics writes labels as they were scraped: one refuses no other series.
            return LABELS.decode(metric.decode(errors="replace"))

        self._scrapes.take(self.answered, hash(metric), labels, _samples(values))
        if self.answered.kept_bytes > self._most_kept_bytes:
            message = (
                "the series, samples and engines of this tick's answers take more memory than the "
                f"{max(0.0, self._most_kept_bytes):.0f} bytes that remain: {WHO_ANSWERS}"
            )
            raise PrometheusError(message, reason="QueryTooLarge")


def bad_answer() -> PrometheusError:
    message = "Prometheus answered with something other than a query result"
    return PrometheusError(message, reason="BadAnswer")
