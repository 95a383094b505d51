"""One answer of Prometheus: series by series, only what is read of it takes memory.

msgspec validates the document as it decodes it and hands each series on as soon as it is read, so
that beside the body there is never a tree of it. What no Prometheus writes refuses the answer.
"""

from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite, nan
from typing import Any, Final, Literal, Self

import msgspec
from msgspec import Raw, defstruct
from msgspec.structs import astuple

from tonnage.cluster.errors import PrometheusError
from tonnage.estimate.series import UNUSABLE, Vector

MAX_LABEL_CHARACTERS: Final = 256
"""Of a label that is kept. The longest of Kubernetes is a pod's name, 253."""
MAX_NUMBER_CHARACTERS: Final = 512
"""Of a number: VictoriaMetrics writes 1e300 in 301 digits."""
SETS_OF_ONE: Final = 32
"""Label sets of each pod asked for, above which all are read anew: pods report ever new ones."""
FEW: Final = 512
"""Label sets that the next tick reuses however few pods are asked for."""

Values = tuple[str | None, ...]
"""Of the labels that are kept, in their order; None: the series has no such label."""
Scalar = str | float | bool | None
"""What may be in the place of a time or of a value: nothing that could be large."""
Sample = tuple[Scalar, Scalar]
"""When a series was evaluated, and its value."""
Take = Callable[[Values, Sample | None], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesFilter:
    """What is kept of an answer."""

    labels: tuple[str, ...]
    """Names. The first two are the namespace's and the pod's, where there are ``pods``."""
    pods: frozenset[tuple[str, str]] | None = None
    """(namespace, pod) of which series are kept; None: of all, and of none at all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InstantVector:
    """An instant vector."""

    series: Vector
    is_partial: bool = False
    """A store behind Prometheus did not answer, or it warns of something."""
    num_dropped: int = 0
    """Series without a finite number, a sample or a place, or that were there before."""


class Labels(Mapping[str, str]):
    """The labels of a series: a third of a dict's memory, of which there may be 100,000s."""

    __slots__ = ("_places", "_values")

    def __init__(self, places: Mapping[str, int], values: Values) -> None:
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

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Labels) and self._places == other._places:
            return self._values == other._values
        return super().__eq__(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(dict(self))


class LabelSets:
    """The labels of all answers: equal ones are one object in all of them, and in each tick."""

    def __init__(self, kept: SeriesFilter) -> None:
        self._kept, self._pods = kept, kept.pods
        self._places = {name: place for place, name in enumerate(kept.labels)}
        self._sets: dict[Values, Labels] = {}
        self._texts: dict[str | None, str | None] = {}
        self.get = self._sets.get
        """Of label values that were there before, the labels."""
        self.too_long = Labels(self._places, (None,) * len(kept.labels))
        """In the place of labels of which one is longer than any name."""
        self._takers: list[Take] = []
        self._decoder = _decoder(kept.labels, self._takers)

    @property
    def number(self) -> int:
        return len(self._sets)

    def for_next(self, kept: SeriesFilter) -> Self:
        """Return the labels for the answers of the next tick: those of pods that are still there.

        Where pods report ever new ones, all begin anew.
        """
        is_outgrown = self.number > max(FEW, SETS_OF_ONE * len(kept.pods or ()))
        if kept == self._kept and not is_outgrown:
            return self
        following = type(self)(kept)
        if kept.labels == self._kept.labels and not is_outgrown:
            following._take_over(self._sets)
        return following

    def _take_over(self, sets: Mapping[Values, Labels]) -> None:
        pods = self._pods
        self._sets.update(
            (values, labels)
            for values, labels in sets.items()
            if pods is None or values[:2] in pods
        )
        self._texts = {text: text for values in self._sets for text in values}

    def add(self, values: Values) -> Labels | None:
        """Return new labels with these values; None: not of a pod that is asked for."""
        if self._pods is not None and values[:2] not in self._pods:
            return None
        if max(map(len, filter(None, values)), default=0) > MAX_LABEL_CHARACTERS:
            return self.too_long
        own = tuple(self._texts.setdefault(text, text) for text in values)
        labels = self._sets[own] = Labels(self._places, own)
        return labels

    def read(self, body: bytearray, take: Take) -> bool:
        """Hand each series of an answer on to ``take``; return whether the answer is partial.

        Raises:
            ValueError: it is no answer with a vector.
        """
        self._takers.append(take)
        try:
            document = self._decoder.decode(body)
        finally:
            self._takers.pop()
        return bool(document.isPartial) or bytes(document.warnings).strip() not in {b"[]", b"null"}


def _decoder(names: tuple[str, ...], takers: Sequence[Take]) -> msgspec.json.Decoder[Any]:
    """Return what decodes a document: each series goes to the last taker and is emptied.

    The decoder and what it refers to must form no ring, which no collector would find.
    """

    def hand_on(series: Any) -> None:
        takers[-1](astuple(series.metric), series.value)
        series.metric = series.value = None

    fields = {f"label_{place}": name for place, name in enumerate(names)}
    text = [(field, str | None, None) for field in fields]
    metric = defstruct("metric", text, rename=fields, gc=False)
    series = defstruct(
        "series",
        [("metric", metric), ("value", Sample | None, None)],
        namespace={"__post_init__": hand_on},
        gc=False,
    )
    of_series: Any = list[series]  # type: ignore[valid-type]
    data = defstruct("data", [("resultType", Literal["vector"]), ("result", of_series)])
    document = defstruct(
        "document",
        [
            ("status", Literal["success"]),
            ("data", data),
            ("isPartial", bool | None, None),
            ("warnings", Raw, Raw(b"[]")),
        ],
    )
    return msgspec.json.Decoder(document)


class AnswerReader:
    """Takes in an answer piece by piece, and reads it when it has ended."""

    def __init__(self, labels: LabelSets, *, max_series: int) -> None:
        self._labels, self._max_series = labels, max_series
        self._begin(bytearray())

    def _begin(self, body: bytearray) -> None:
        self._body = body
        self._found, self._values, self._times_s = list[Labels](), array("d"), array("d")
        """Of the same series in each, in the order in which they came."""
        self._num_series = self._num_dropped = 0

    @property
    def evaluated_at_s(self) -> float | None:
        """By Prometheus' clock, of the last series."""
        return self._times_s[-1] if self._times_s else None

    def feed(self, piece: bytes) -> None:
        """Take in the next piece."""
        self._body += piece

    def end(self) -> InstantVector:
        """Return what was read.

        Raises:
            PrometheusError: it broke off, was no instant vector, or has too many series.
        """
        try:
            is_partial = self._labels.read(self._body, self._take)
        except UnicodeDecodeError:
            # VictoriaMetrics writes labels as they were scraped: one refuses no other series.
            self._begin(bytearray(self._body.decode(errors="replace").encode()))
            return self.end()
        except (ValueError, RecursionError) as error:
            raise bad_answer() from error
        series = self._each_once()
        num_double = len(self._found) - len(series.labels)
        return InstantVector(
            series=series, is_partial=is_partial, num_dropped=self._num_dropped + num_double
        )

    def _take(self, values: Values, sample: Sample | None) -> None:
        self._num_series += 1
        if self._num_series > self._max_series:
            message = f"an answer has more than {self._max_series} series"
            raise PrometheusError(message, reason="QueryTooLarge")
        labels = self._labels.get(values)
        if labels is None:
            labels = self._labels.add(values)
            if labels is None:
                return
        at_s, value = sample or (None, None)
        at_s, value = _number(at_s), _number(value)
        is_usable = isfinite(value)
        if labels is self._labels.too_long or not isfinite(at_s):
            self._num_dropped += 1
            return
        self._num_dropped += not is_usable
        self._found.append(labels)
        self._values.append(value if is_usable else UNUSABLE)
        self._times_s.append(at_s)

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


def _number(part: Scalar) -> float:
    """Return a figure as it is written; NaN where that is no number."""
    if isinstance(part, str) and len(part) > MAX_NUMBER_CHARACTERS:
        return nan
    try:
        return float(part)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return nan


def bad_answer() -> PrometheusError:
    message = "Prometheus answered with something else than a result"
    return PrometheusError(message, reason="BadAnswer")
