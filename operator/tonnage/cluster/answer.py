"""One answer of Prometheus, read as it comes in: only what is kept of it takes memory.

The parser is ijson's, which tells events; the document's form is walked here by generators. At no
time is more held than the series that are kept and one that is not ended yet. What Prometheus
writes as it always does is taken off before (``canonical``), and comes to the same.
"""

import json
import math
from array import array
from collections.abc import Callable, Container, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress, islice
from typing import Any, Self

import ijson  # type: ignore[import-untyped]

from tonnage.cluster.canonical import CanonicalReader, Text
from tonnage.cluster.errors import PrometheusError
from tonnage.estimate.series import UNUSABLE, Vector
from tonnage.units import KIB

MAX_UNFINISHED_BYTES = 256 * KIB
"""Of an answer in which no series ends: one label could otherwise hold the whole of it."""
MAX_LABEL_CHARACTERS = 256
"""Of a label that is kept. The longest of Kubernetes is a pod's name, 253."""
TEXTS_OF_ONE = 16
"""Of labels, that are remembered of each pod that is asked for: all queries tell the same ones, in
each tick."""
FEW = 512
"""Label sets, that are kept for the next tick however few pods are asked for."""
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

    series: Vector
    is_partial: bool = False
    """A store behind Prometheus did not answer, or it warns of something."""
    num_dropped: int = 0
    """Series without a finite number, a sample or a place, or that were there before."""


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
    """The labels of all answers: equal ones are one object in all of them, and in each tick."""

    def __init__(self, kept: Kept) -> None:
        self.places = {name: place for place, name in enumerate(kept.labels)}
        self._kept, self._pods = kept, kept.pods
        self._sets: dict[Values, Labels] = {}
        self._texts: dict[str | None, str | None] = {}
        self._read: dict[bytes, Labels | None] = {}
        self._most_read = TEXTS_OF_ONE * len(kept.pods or ())
        self.are_short = True
        """None was too long so far."""
        self.too_long = Labels(self.places, (None,) * len(self.places))
        """In the place of labels of which one is longer than any name."""

    @property
    def number(self) -> int:
        return len(self._sets)

    def for_next(self, kept: Kept) -> Self:
        """Return the labels for the answers of the next tick: those of pods that are still there.

        Where pods tell ever new ones, all begin anew.
        """
        is_outgrown = self.number > max(FEW, 2 * self._most_read)
        is_full = len(self._read) >= self._most_read
        if kept == self._kept and not is_full and not is_outgrown:
            return self
        known = type(self)(kept)
        if kept.labels == self._kept.labels and not is_outgrown:
            known._take_over(self)
        return known

    def _take_over(self, before: Self) -> None:
        pods = self._pods
        self._sets = {
            values: labels
            for values, labels in before._sets.items()
            if pods is None or values[:2] in pods
        }
        kept = {id(labels) for labels in self._sets.values()}
        self._read = {text: each for text, each in before._read.items() if id(each) in kept}
        self._texts = {text: text for values in self._sets for text in values}

    @property
    def texts(self) -> Container[bytes]:
        """JSON of labels that was read before."""
        return self._read

    def of(self, values: Values) -> Labels | None:
        """Return the labels with these values; None: not of a pod that is asked for."""
        if self._pods is not None and values[:2] not in self._pods:
            return None
        known = self._sets.get(values)
        if known is None:
            if max(map(len, filter(None, values)), default=0) > MAX_LABEL_CHARACTERS:
                self.are_short = False
                return self.too_long
            own = tuple(self._texts.setdefault(text, text) for text in values)
            known = self._sets[own] = Labels(self.places, own)
        return known

    def read_all(self, texts: Sequence[bytes]) -> list[Labels | None]:
        """Return the same for the JSON of the labels of each series.

        Raises:
            ValueError: one is none.
        """
        known = self._read
        try:
            return [known[text] for text in texts]
        except KeyError:
            told = json.loads(b"[%b]" % b",".join(texts))  # at once: in a tenth of the time
        if len(told) != len(texts):
            raise ValueError("labels of more series than there are")
        names, sets = tuple(self.places), self._sets
        values = [tuple(map(each.get, names)) for each in told]
        found = [sets.get(each) or self.of(each) for each in values]
        room = max(0, self._most_read - len(known))
        known.update(islice(zip(texts, found, strict=True), room))
        return found


class AnswerReader:
    """Takes in an answer piece by piece."""

    def __init__(self, labels: LabelSets, *, max_series: int) -> None:
        self._labels, self._canonical = labels, CanonicalReader(known=labels.texts)
        self._document = _Document(labels, max_series)
        self._unfinished_bytes = 0
        # What it is read into knows nothing of the parser: the collector would find no such ring.
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
        found: list[Text] = []
        try:
            self._parse(self._canonical.take(piece, found))
            self._document.take_texts(found)
        except (ijson.JSONError, ValueError) as error:
            raise bad_answer() from error
        is_moving = self._document.num_series > before
        self._unfinished_bytes = 0 if is_moving else self._unfinished_bytes + len(piece)
        if self._unfinished_bytes > MAX_UNFINISHED_BYTES:
            message = f"an answer has a part of more than {MAX_UNFINISHED_BYTES} bytes"
            raise PrometheusError(message, reason="ResponseTooLarge")

    def _parse(self, piece: bytes) -> None:
        self._document.first_stands_for_many = self._canonical.has_taken
        if piece:  # nothing would mean the end
            self._parser.send(piece)

    def end(self) -> Answer:
        """Return what was read.

        Raises:
            PrometheusError: it broke off, or was no instant vector.
        """
        try:
            self._parse(self._canonical.end())
            self._parser.close()
        except (ijson.JSONError, ValueError) as error:
            raise bad_answer() from error
        return self._document.answer()


class _Document:
    """What was read of an answer so far."""

    def __init__(self, labels: LabelSets, max_series: int) -> None:
        self._labels, self._max_series = labels, max_series
        self._found, self._values, self._times_s = list[Labels](), array("d"), array("d")
        """Of the same series in each, in the order in which they came."""
        self.num_series = self._num_dropped = 0
        self._is_partial = self._is_vector = self._has_result = self._is_success = False
        self._nothing: list[str | None] = [None] * len(labels.places)
        self._metric = self._nothing.copy()
        self._sample: list[Any] = []
        self.first_stands_for_many = False
        """The first element of the result is none: series that were taken stood there."""

    @property
    def evaluated_at_s(self) -> float | None:
        return self._times_s[-1] if self._times_s else None

    def answer(self) -> Answer:
        """Return all of it.

        Raises:
            PrometheusError: it is no instant vector.
        """
        if not (self._is_success and self._is_vector and self._has_result):
            raise bad_answer()
        series = self._each_once()
        return Answer(
            series=series,
            is_partial=self._is_partial,
            num_dropped=self._num_dropped + len(self._found) - len(series.labels),
        )

    def _each_once(self) -> Vector:
        """Return the series; of two with the same labels the larger, as ``max by`` does."""
        found, values, times_s = self._found, self._values, self._times_s
        places = dict(zip(map(id, found), range(len(found)), strict=True))
        if len(places) == len(found):
            return Vector(tuple(found), values, times_s)
        for place, labels in enumerate(found):
            if values[place] > values[places[id(labels)]]:
                places[id(labels)] = place
        kept = sorted(places.values())
        return Vector(
            tuple(found[place] for place in kept),
            array("d", (values[place] for place in kept)),
            array("d", (times_s[place] for place in kept)),
        )

    def read(self) -> Part:
        """Read all of it."""
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
        parts = {"metric": self._read_metric, "value": self._read_sample}
        is_first = True
        while True:
            event, _ = yield
            if event == "end_array":
                break
            is_first, was_first = False, is_first
            if was_first and self.first_stands_for_many:
                continue
            self._metric, self._sample = self._nothing.copy(), []
            if event == "start_map":
                yield from _members(parts)
            else:
                yield from _rest(event)
            self.take(self._labels.of(tuple(self._metric)), self._sample)
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

    def take(self, labels: Labels | None, sample: Sequence[Any]) -> None:
        """Keep the series that was just read, if it is one."""
        self._count(1)
        if labels is None:
            return
        figures = _figures(sample)
        if figures is None:
            self._num_dropped += 1
        else:
            self._keep(labels, *figures)

    def take_texts(self, texts: Sequence[Text]) -> None:
        """Keep series by the texts of their parts."""
        if not texts:
            return
        self._count(len(texts))
        found = self._labels.read_all([told for told, _, _ in texts])
        labels = [each for each in found if each is not None]
        if len(labels) < len(found):
            texts = list(compress(texts, (each is not None for each in found)))
        values = array("d", [_number(value) for _, _, value in texts])
        times_s = _times_s([at for _, at, _ in texts])
        are_finite = all(map(math.isfinite, values)) and all(map(math.isfinite, times_s))
        if self._labels.are_short and are_finite:
            self._found += labels
            self._values += values
            self._times_s += times_s
        else:
            for each in zip(labels, times_s, values, strict=True):
                self._keep(*each)

    def _count(self, number: int) -> None:
        self.num_series += number
        if self.num_series > self._max_series:
            message = f"an answer has more than {self._max_series} series"
            raise PrometheusError(message, reason="QueryTooLarge")

    def _keep(self, labels: Labels, evaluated_at_s: float, value: float) -> None:
        """Keep a series with a place and a time; of one without a value that it is there."""
        is_placed = labels is not self._labels.too_long and math.isfinite(evaluated_at_s)
        self._num_dropped += not (is_placed and math.isfinite(value))
        if is_placed:
            self._found.append(labels)
            self._values.append(value if math.isfinite(value) else UNUSABLE)
            self._times_s.append(evaluated_at_s)


def _times_s(texts: Sequence[bytes]) -> "array[float]":
    """Return times as they are written: that of the first stands for all that are like it."""
    if texts and texts.count(texts[0]) == len(texts):
        return array("d", [float(texts[0])]) * len(texts)
    return array("d", map(float, texts))


def _number(part: Any) -> float:
    """Return a figure as it is written; NaN where that is no number."""
    try:
        return float(part)
    except (TypeError, ValueError):
        return math.nan


def _figures(sample: Sequence[Any]) -> tuple[float, float] | None:
    return (_number(sample[0]), _number(sample[1])) if len(sample) == NUM_PARTS else None


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
