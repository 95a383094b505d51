"""What llm-scaling-manager remembers: what full replicas served, of which lengths, how they start.

Follows ev-shindin/llm-scaling-manager internal/engines/analyzers/saturation: throughput_floor.go
(116fc310), shape_change.go (3eef4175), keys.go and constants.go (e673b93c) and start_est.go
(3efed19f), of September and October 2026. All of it is lost when its process ends; here it never
does.
"""

import math
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from statistics import median_low
from typing import Final, NamedTuple

from tonnage.replay.baselines.rule import ObservedPod
from tonnage.replay.baselines.wva import MeanRequest, is_other

SIZES: Final = (100.0, 500.0, 1500.0, 3000.0, 6000.0)
"""Tokens at which a class of prompts or answers ends."""
READINGS: Final = 10
"""That a window holds."""
SPACING_S: Final = 60.0
"""From one reading to the next that counts."""
ENOUGH: Final = 2
HOLD_S: Final = 300.0
"""The longest that a change of lengths keeps what was measured before it from asking."""
WEIGHT: Final = 0.3
"""Of a new start among those before."""


def size_class(tokens: float) -> int:
    """Return the class of a mean length.

    >>> size_class(99), size_class(100), size_class(9000)
    (0, 1, 5)
    """
    return bisect_right(SIZES, tokens)


class FullRate(NamedTuple):
    """Requests per second of a replica that has a queue."""

    requests_per_s: float
    readings: int
    is_own: bool
    """Of answers of this class; else of the class nearest to it."""

    @property
    def is_sure(self) -> bool:
        """It was read twice of such answers, and may ask for replicas."""
        return self.is_own and self.readings >= ENOUGH


@dataclass(slots=True, kw_only=True)
class RateWindow:
    """Readings a minute apart, of those between them the highest."""

    rates: deque[float] = field(default_factory=lambda: deque(maxlen=READINGS))
    counted_s: float = -math.inf
    last: float | None = None

    def take(self, rate: float, at_s: float) -> None:
        """Take a reading; after a minute with the same digits it is the old one read again."""
        before, self.last = self.last, rate
        if at_s < self.counted_s + SPACING_S:
            self.rates[-1] = max(self.rates[-1], rate)
        elif rate != before:
            self.rates.append(rate)
            self.counted_s = at_s


@dataclass(slots=True, kw_only=True)
class FullRates:
    """Windows by the classes of prompts and answers."""

    windows: dict[tuple[int, int], RateWindow] = field(default_factory=dict)

    def take(self, shape: MeanRequest, rate: float, at_s: float) -> None:
        self.windows.setdefault(_key(shape), RateWindow()).take(rate, at_s)

    def read(self, shape: MeanRequest) -> FullRate | None:
        """Return the median of the class, or of the nearest class of answers to such prompts."""
        prompt, own = _key(shape)
        for answer in _nearest_first(own):
            if window := self.windows.get((prompt, answer)):
                return FullRate(median_low(window.rates), len(window.rates), answer == own)
        return None


def _key(shape: MeanRequest) -> tuple[int, int]:
    return size_class(shape.input_tokens), size_class(shape.output_tokens)


def _nearest_first(own: int) -> Iterable[int]:
    """Return classes by how far they are, of two the one of shorter answers first."""
    return sorted(range(len(SIZES) + 1), key=lambda each: (abs(each - own), each))


@dataclass(slots=True, kw_only=True)
class ShapeWatch:
    """The lengths that the fleet is taken to serve, and whether they changed a while ago."""

    known: MeanRequest | None = None
    """When they last changed."""
    changed_s: float | None = None
    """Since when what was measured is of other lengths; None: it is of these."""
    gave_up_s: float = -math.inf

    def note(self, shape: MeanRequest, at_s: float) -> bool:
        """Take what is served now, and tell whether a change has not been measured yet."""
        is_new = self.known is not None and is_other(shape, self.known)
        if is_new or self.known is None:
            self.known = shape
        if self.changed_s is not None and at_s >= self.changed_s + HOLD_S:
            self.changed_s, self.gave_up_s = None, at_s
        if is_new and self.changed_s is None and at_s >= self.gave_up_s + HOLD_S:
            self.changed_s = at_s
        return is_new or self.changed_s is not None

    def settle(self) -> None:
        """Take the fleet for measured with these lengths."""
        self.changed_s, self.gave_up_s = None, -math.inf


@dataclass(slots=True, kw_only=True)
class Starts:
    """How long replicas took to be Ready, newer ones weighing more."""

    mean_s: float | None = None
    """None: none has started yet."""
    seen: set[str] = field(default_factory=set)

    def note(self, pods: Iterable[ObservedPod]) -> None:
        for name, took_s in self._new(pods):
            self.seen.add(name)
            before_s = took_s if self.mean_s is None else self.mean_s
            self.mean_s = (1 - WEIGHT) * before_s + WEIGHT * took_s

    def _new(self, pods: Iterable[ObservedPod]) -> Iterator[tuple[str, float]]:
        for pod in pods:
            if pod.ready_for_s is not None and pod.name not in self.seen:
                yield pod.name, pod.age_s - pod.ready_for_s
