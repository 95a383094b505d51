"""Figures of a stored state: what they may be when they are read, how they are written."""

from typing import Any, Final

from tonnage.units import PETA

DIGITS: Final = 6
LARGEST: Final = PETA
"""No figure that we write comes near."""
LONGEST_NAME: Final = 64


class NewerStateError(ValueError):
    """Written by a later version of the operator, which must find it again."""


class CorruptedStateError(ValueError):
    """No state that any version wrote."""


def check(is_sane: bool) -> None:
    """Stop reading an entry that we would not write.

    Raises:
        ValueError: it is none.
    """
    if not is_sane:
        raise ValueError


def number(value: Any) -> float:
    """Return a finite number of either sign: no bool, no NaN, nothing that we never write."""
    check(isinstance(value, int | float) and not isinstance(value, bool))
    check(-LARGEST <= value <= LARGEST)
    return float(value)


def amount(value: Any) -> float:
    check(number(value) >= 0)
    return float(value)


def count(value: Any) -> int:
    check(isinstance(value, int))
    return int(amount(value))


def positive(value: Any, largest: float) -> float:
    check(0 < number(value) <= largest)
    return float(value)


def within(value: Any, least: float, most: float) -> float:
    """Return a figure between the bounds that whoever learns it keeps."""
    check(least <= number(value) <= most)
    return float(value)


def name(value: Any) -> str:
    check(isinstance(value, str) and len(value) <= LONGEST_NAME)
    return str(value)


def figure(value: float, digits: int = DIGITS) -> float:
    """Return a figure as it is written."""
    return float(f"{value:.{digits}g}")
