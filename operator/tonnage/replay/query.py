"""What a rival asks Prometheus: one metric, as it is or over a window."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, NamedTuple

NEAR: Final = 1.1
"""Mean intervals between samples within which a window's edge is extrapolated to."""
LEAST: Final = 2
"""Samples of a slope."""
Points = Sequence[tuple[float, float]]
"""(time, value) in order of time."""


class Series(NamedTuple):
    """One series of an answer."""

    labels: Mapping[str, str]
    value: float
    evaluated_at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """One metric, how it is reduced over a window, and its own labels that are kept."""

    metric: str
    function: str | None = None
    """None: as the newest scrape has it; else one of ``OVER_TIME``."""
    scrapes: int = 1
    """Of the window."""
    own_labels: tuple[str, ...] = ()


def rate(points: Points, window_s: float, at_s: float) -> float | None:
    """Return the growth of a counter per second, extrapolated to the edges as Prometheus does.

    Sources:
        [prometheus-source] promql/functions.go, extrapolatedRate.
    """
    if len(points) < LEAST:
        return None
    (first_s, first), (last_s, last) = points[0], points[-1]
    falls = sum(before for (_, before), (_, value) in pairwise(points) if value < before)
    grown = last - first + falls
    if grown <= 0:
        return 0.0
    sampled_s = last_s - first_s
    mean_s = sampled_s / (len(points) - 1)
    before_s, after_s = (
        gap_s if gap_s < NEAR * mean_s else mean_s / 2
        for gap_s in (first_s - (at_s - window_s), at_s - last_s)
    )
    before_s = min(before_s, sampled_s * first / grown)  # no counter was below zero
    return grown * (sampled_s + before_s + after_s) / sampled_s / window_s


def _highest(points: Points, _window_s: float, _at_s: float) -> float | None:
    return max((value for _, value in points), default=None)


OVER_TIME: Final[Mapping[str, Callable[[Points, float, float], float | None]]] = {
    "rate": rate,
    "max_over_time": _highest,
}
