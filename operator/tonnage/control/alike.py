"""Whether engines say the same as before, by every figure but when they said it. Pure."""

from dataclasses import fields
from operator import attrgetter
from typing import Final

from tonnage.estimate.samples import ArrivalWindow, EngineSamples, LengthWindow

SAME: Final = 0.01
"""By so much a figure may differ: it is the error that a rate is wanted with."""
TIMES: Final = frozenset({"age_s", "held_s", "scraped_at_s", "arrived"})
"""Of an engine's figures, those that move by themselves."""
WINDOWED: Final = frozenset({"arrivals", "lengths", "ttft_within", "tpot_within"})

Figures = tuple[str | float | None, ...]


def say_the_same(one: EngineSamples, other: EngineSamples) -> bool:
    return _figures(one) == _figures(other)


def are_alike(one: EngineSamples, other: EngineSamples) -> bool:
    now, then = _figures(one), _figures(other)
    return now == then or (len(now) == len(then) and all(map(_is_same, now, then)))


def _is_same(now: str | float | None, then: str | float | None) -> bool:
    if isinstance(now, float | int) and isinstance(then, float | int):
        return abs(now - then) <= SAME * abs(then)
    return now == then


_SINGLE = attrgetter(
    *(each.name for each in fields(EngineSamples) if each.name not in TIMES | WINDOWED)
)
_OF_ARRIVALS = attrgetter(*(each.name for each in fields(ArrivalWindow)))
_OF_LENGTHS = attrgetter(*(each.name for each in fields(LengthWindow)))


def _figures(each: EngineSamples) -> Figures:
    """Return everything that an engine says but when it said it, flat."""
    found = list(_SINGLE(each))
    for arrivals in each.arrivals.values():
        found += _OF_ARRIVALS(arrivals)
    for lengths in each.lengths.values():
        found += _OF_LENGTHS(lengths)
    for within in (each.ttft_within, each.tpot_within):
        for bound in within.items():
            found += bound
    return tuple(found)
