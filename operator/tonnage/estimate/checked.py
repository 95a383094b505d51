"""Figures of a stored state: what they may be when they are read, how they are written."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tonnage.units import PETA

DIGITS: Final = 6
LARGEST: Final = PETA
"""No figure that we write comes near."""
LONGEST_NAME: Final = 64

Reader = Callable[[Any], float]
"""Raises where a figure is none that we would write."""


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


def figure_up_to(most: float) -> Reader:
    """Return what reads a figure above 0."""
    return lambda value: _check_figure(value, 0 < number(value) <= most)


def figure_between(least: float, most: float) -> Reader:
    """Return what reads a figure between the bounds of its learner."""
    return lambda value: _check_figure(value, least <= number(value) <= most)


def _check_figure(value: float, is_sane: bool) -> float:
    check(is_sane)
    return float(value)


def name(value: Any) -> str:
    check(isinstance(value, str) and len(value) <= LONGEST_NAME)
    return str(value)


def figure(value: float, digits: int = DIGITS) -> float:
    """Return a figure as it is written."""
    return float(f"{value:.{digits}g}")


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a stored value: its attribute, its key in the text, and both directions."""

    attribute: str
    key: str
    read: Callable[[Any], Any]
    """Raises where the figure is none that we would write."""
    write: Callable[[Any], Any] = figure
    is_optional: bool = False
    """Texts may lack it: the value then has the default of its type."""


def entry_of(fields: Sequence[Field], value: object) -> dict[str, Any]:
    """Return a value as JSON; what is not known is left out."""
    found = ((each, getattr(value, each.attribute)) for each in fields)
    return {each.key: each.write(figure) for each, figure in found if figure is not None}


def values_of(fields: Sequence[Field], entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes that an entry holds.

    Raises:
        ValueError, TypeError, LookupError, OverflowError: with a figure that we would not write.
    """
    return {
        each.attribute: each.read(entry[each.key])
        for each in fields
        if not each.is_optional or each.key in entry
    }
