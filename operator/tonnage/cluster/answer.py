"""One answer of Prometheus, read as it comes in: only what is kept of it takes memory.

The parser is ijson's, which tells events; the document's form is walked here by generators. At no
time is more held than the series that are kept and one that is not ended yet.
"""

import math
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ijson  # type: ignore[import-untyped]

from tonnage.cluster.errors import PrometheusError
from tonnage.estimate.samples import Series
from tonnage.units import KIB

MAX_UNFINISHED_BYTES = 256 * KIB
"""Of an answer in which no series ends: one label could otherwise hold the whole of it."""
MAX_LABEL_CHARACTERS = 256
"""Of a label that is kept. The longest of Kubernetes is a pod's name, 253."""
STARTS, ENDS = frozenset({"start_map", "start_array"}), frozenset({"end_map", "end_array"})
NUM_PARTS = 2
"""Of a sample: when it was evaluated, and its value."""

Event = tuple[str, Any]
Part = Generator[None, Event, None]
"""Reads the next value of the document, of whatever form it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """What is kept of an answer."""

    labels: tuple[str, ...]
    """Names. The first two are the namespace's and the pod's, where ``pods`` are told."""
    pods: frozenset[tuple[str, str]] | None = None
    """(namespace, pod) of which series are kept; None: of all, and of none at all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """An instant vector."""

    series: Sequence[Series]
    is_partial: bool = False
    """A store behind Prometheus did not answer, or it warns of something."""
    num_dropped: int = 0
    """Series that were left out: no finite number, no sample at all, or there before."""


class Labels(Mapping[str, str]):
    """The labels of a series: a third of a dict's memory, of which there may be 100,000s."""

    __slots__ = ("_places", "_values")

    def __init__(self, places: Mapping[str, int], values: tuple[str | None, ...]) -> None:
        self._places, self._values = places, values

    def __getitem__(self, name: str) -> str:
        value = self._values[self._places[name]]
        if value is None:
            raise KeyError(name)
        return value

    def __iter__(self) -> Iterator[str]:
        return (name for name, place in self._places.items() if self._values[place] is not None)

    def __len__(self) -> int:
        return len(self._values) - self._values.count(None)

    def __repr__(self) -> str:
        return repr(dict(self))


Values = tuple[str | None, ...]
"""Of the labels that are kept, in their order; None: the series has no such label."""


class LabelSets:
    """The labels of all answers of a tick: equal ones are the same object in all of them."""

    def __init__(self, kept: Kept) -> None:
        self.places = {name: place for place, name in enumerate(kept.labels)}
        self._pods = kept.pods
        self._sets: dict[Values, Labels] = {}
        self._texts: dict[str | None, str | None] = {}

    def of(self, values: Values) -> Labels:
        known = self._sets.get(values)
        if known is None:
            own = tuple(self._texts.setdefault(text, text) for text in values)
            known = self._sets[own] = Labels(self.places, own)
        return known

    def has(self, values: Values) -> bool:
        """Tell whether a series with these labels is one of a pod that is asked for."""
        return self._pods is None or values[:2] in self._pods


class AnswerReader:
    """Takes in an answer piece by piece.

    The parser leads to the document and nothing leads back: what was read goes with the reader at
    once. In a cycle it would stay until the collector looks for old objects, which a process that
    holds many of them seldom has reason to: an hour's answers, most of its memory.
    """

    def __init__(self, labels: LabelSets, *, max_series: int) -> None:
        self._document = _Document(labels, max_series)
        self._unfinished_bytes = 0
        reading = self._document.read()
        next(reading)
        self._parser = ijson.basic_parse_coro(reading, use_float=True)

    @property
    def evaluated_at_s(self) -> float | None:
        """By Prometheus' clock, of the last series."""
        return self._document.evaluated_at_s

    def feed(self, piece: bytes) -> None:
        """Take in the next piece.

        Raises:
            PrometheusError: this is no answer, or one that is too large.
        """
        before = self._document.num_series
        try:
            self._parser.send(piece)
        except (ijson.JSONError, ValueError) as error:
            raise bad_answer() from error
        is_moving = self._document.num_series > before
        self._unfinished_bytes = 0 if is_moving else self._unfinished_bytes + len(piece)
        if self._unfinished_bytes > MAX_UNFINISHED_BYTES:
            message = f"an answer has a part of more than {MAX_UNFINISHED_BYTES} bytes"
            raise PrometheusError(message, reason="ResponseTooLarge")

    def end(self) -> Answer:
        """Return what was read.

        Raises:
            PrometheusError: it broke off, or was no instant vector.
        """
        try:
            self._parser.close()
        except (ijson.JSONError, ValueError) as error:
            raise bad_answer() from error
        return self._document.answer()


class _Document:
    """The form of an answer, walked by generators, and what is kept of it."""

    def __init__(self, labels: LabelSets, max_series: int) -> None:
        self._labels, self._max_series = labels, max_series
        self._found: dict[int, Series] = {}
        """By identity of the labels."""
        self.num_series = self._num_dropped = 0
        self._is_partial = self._is_vector = self._has_result = self._is_success = False
        self._nothing: list[str | None] = [None] * len(labels.places)
        self._metric = self._nothing.copy()
        self._sample: list[Any] = []
        self.evaluated_at_s: float | None = None

    def answer(self) -> Answer:
        """Return what was read.

        Raises:
            PrometheusError: it was no instant vector.
        """
        if not (self._is_success and self._is_vector and self._has_result):
            raise bad_answer()
        return Answer(
            series=list(self._found.values()),
            is_partial=self._is_partial,
            num_dropped=self._num_dropped,
        )

    def read(self) -> Part:
        """Walk the whole document, event by event."""
        parts: Mapping[str, Callable[[], Part]] = {
            "status": self._read_status,
            "data": self._read_data,
            "warnings": self._read_warning,
            "isPartial": self._read_warning,
        }
        yield from _object(parts)
        yield  # the parser itself refuses what comes after the document

    def _read_status(self) -> Part:
        event, value = yield
        self._is_success = value == "success"
        yield from _rest(event)

    def _read_warning(self) -> Part:
        """Read a flag, or a list of warnings: true, and a list that is not empty, are news."""
        event, value = yield
        num_parts = yield from _rest(event)
        self._is_partial |= bool(value) or num_parts > 0

    def _read_data(self) -> Part:
        yield from _object({"resultType": self._read_type, "result": self._read_vector})

    def _read_type(self) -> Part:
        event, value = yield
        self._is_vector = value == "vector"
        yield from _rest(event)

    def _read_vector(self) -> Part:
        event, _ = yield
        if event != "start_array":
            raise bad_answer()
        parts: Mapping[str, Callable[[], Part]] = {
            "metric": self._read_metric,
            "value": self._read_sample,
        }
        while True:
            event, _ = yield
            if event == "end_array":
                break
            self._metric, self._sample = self._nothing.copy(), []
            if event == "start_map":
                yield from _members(parts)
            else:
                yield from _rest(event)
            self._take()
        self._has_result = True

    def _read_metric(self) -> Part:
        event, _ = yield
        if event != "start_map":
            yield from _rest(event)
            return
        places = self._labels.places
        while True:
            event, name = yield
            if event == "end_map":
                return
            event, text = yield
            if event != "string":
                yield from _rest(event)
            elif name in places:
                self._metric[places[name]] = text

    def _read_sample(self) -> Part:
        event, _ = yield
        if event != "start_array":
            yield from _rest(event)
            return
        while True:
            event, part = yield
            if event == "end_array":
                return
            self._sample.append(part)
            yield from _rest(event)

    def _take(self) -> None:
        """Keep the series that was just read, if it is one."""
        self.num_series += 1
        if self.num_series > self._max_series:
            message = f"an answer has more than {self._max_series} series"
            raise PrometheusError(message, reason="QueryTooLarge")
        values = tuple(self._metric)
        if not self._labels.has(values):
            return
        sample = self._finite_sample()
        is_long = any(text and len(text) > MAX_LABEL_CHARACTERS for text in values)
        if sample is None or is_long:
            self._num_dropped += 1
            return
        evaluated_at_s, value = sample
        if evaluated_at_s != self.evaluated_at_s:
            self.evaluated_at_s = evaluated_at_s
        labels = self._labels.of(values)
        known = self._found.get(id(labels))
        self._num_dropped += known is not None
        if known is None or value > known.value:  # as max by does with two of the same
            self._found[id(labels)] = Series(
                labels=labels, value=value, evaluated_at_s=self.evaluated_at_s
            )

    def _finite_sample(self) -> tuple[float, float] | None:
        if len(self._sample) != NUM_PARTS:
            return None
        try:
            evaluated_at_s, value = map(float, self._sample)
        except (TypeError, ValueError):
            return None
        are_finite = math.isfinite(value) and math.isfinite(evaluated_at_s)
        return (evaluated_at_s, value) if are_finite else None


def bad_answer() -> PrometheusError:
    message = "Prometheus answered with something else than a result"
    return PrometheusError(message, reason="BadAnswer")


def _object(parts: Mapping[str, Callable[[], Part]]) -> Part:
    event, _ = yield
    if event != "start_map":
        raise bad_answer()
    yield from _members(parts)


def _members(parts: Mapping[str, Callable[[], Part]]) -> Part:
    """Read an object that has begun: the members that have a part by it, no others."""
    while True:
        event, key = yield
        if event == "end_map":
            return
        part = parts.get(key)
        if part:
            yield from part()
        else:
            event, _ = yield
            yield from _rest(event)


def _rest(event: str) -> Generator[None, Event, int]:
    """Pass over the rest of a value that began with this event; return how much it held."""
    num_parts, depth = 0, int(event in STARTS)
    while depth:
        event, _ = yield
        depth += (event in STARTS) - (event in ENDS)
        num_parts += 1
    return max(0, num_parts - 1)
