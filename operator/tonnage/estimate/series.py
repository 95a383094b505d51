"""The series of an instant vector, in columns: what one tick holds 100,000s of."""

import math
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, compress, repeat
from operator import ne
from typing import Final, NamedTuple, overload

UNUSABLE: Final = math.inf
"""The value of a series that is there without one, as NaN or a text: what it is a part of cannot be
told without it. Unlike NaN it is itself a tick later."""


class Series(NamedTuple):
    """One series of an instant vector: its labels, its value and when it was evaluated."""

    labels: Mapping[str, str]
    value: float
    evaluated_at_s: float


class Vector(Sequence[Series]):
    """The series of an instant vector, part by part: a fifth of the memory of so many tuples."""

    __slots__ = ("labels", "times_s", "values")

    def __init__(
        self,
        labels: tuple[Mapping[str, str], ...],
        values: "array[float]",
        times_s: "array[float]",
    ) -> None:
        self.labels, self.values, self.times_s = labels, values, times_s

    @overload
    def __getitem__(self, place: int) -> Series: ...
    @overload
    def __getitem__(self, place: slice) -> "Vector": ...
    def __getitem__(self, place: int | slice) -> "Series | Vector":
        own = self.labels[place], self.values[place], self.times_s[place]
        return Vector(*own) if isinstance(place, slice) else Series(*own)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Series]:
        return map(Series, self.labels, self.values, self.times_s)

    def __len__(self) -> int:
        return len(self.labels)

    def where(self, is_kept: Sequence[bool]) -> "Vector":
        """Return the series of which that is true."""
        return Vector(
            tuple(compress(self.labels, is_kept)),
            array("d", compress(self.values, is_kept)),
            array("d", compress(self.times_s, is_kept)),
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(list(self))


def concatenate(parts: Iterable[Vector]) -> Vector:
    """Return all series, one part after the other."""
    known = list(parts)
    return Vector(
        tuple(chain.from_iterable(each.labels for each in known)),
        array("d", chain.from_iterable(each.values for each in known)),
        array("d", chain.from_iterable(each.times_s for each in known)),
    )


def changed_labels(now: Vector, then: Vector, *, with_values: bool) -> Iterable[Mapping[str, str]]:
    """Yield the labels of series with another value than then, and of those that only one has."""
    if now.labels == then.labels:  # one object each, as a rule
        is_same = not with_values or now.values == then.values
        return () if is_same else compress(now.labels, map(ne, now.values, then.values))
    values = [
        dict(zip(map(id, each.labels), each.values if with_values else repeat(0.0), strict=False))
        for each in (now, then)
    ]
    changed = {place for place, _ in values[0].items() ^ values[1].items()}
    return (labels for labels in (*now.labels, *then.labels) if id(labels) in changed)
