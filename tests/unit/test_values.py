"""Values with some fields replaced are what ``dataclasses.replace`` makes."""

import dataclasses
from dataclasses import dataclass, field
from functools import cached_property

import pytest

from tonnage.values import replace


@dataclass(frozen=True, slots=True, kw_only=True)
class Plain:
    first: float
    second: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Longer(Plain):
    third: str = ""


@dataclass(frozen=True, slots=True)
class Single:
    only: float


@dataclass(frozen=True, kw_only=True)
class Cached:
    first: float
    second: float = 2.0

    @cached_property
    def total(self) -> float:
        return self.first + self.second


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    first: float
    second: float = 2.0

    def __post_init__(self) -> None:
        if self.first < 0:
            raise ValueError("first is below 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    first: float
    second: float = field(init=False, default=2.0)


@pytest.mark.parametrize(
    ("value", "changes"),
    [
        (Plain(first=1.0), {"second": (1, 2)}),
        (Plain(first=1.0), {"first": 2.0, "second": (1,)}),
        (Longer(first=1.0, second=(3,), third="a"), {"first": 2.0}),
        (Single(1.0), {"only": 2.0}),
        (Cached(first=1.0), {"first": 2.0}),
        (Checked(first=1.0), {"first": 2.0}),
        (Counted(first=1.0), {"first": 2.0}),
    ],
    ids=lambda each: type(each).__name__,
)
def test_it_replaces_as_dataclasses_does(value, changes):
    before = dataclasses.replace(value)

    replaced = replace(value, **changes)

    assert replaced == dataclasses.replace(value, **changes)
    assert type(replaced) is type(value)
    assert value == before != replaced


def test_a_value_of_which_nothing_changes_is_returned_as_it_is():
    value = Plain(first=1.0)

    assert replace(value, first=value.first) is value


def test_what_was_computed_of_the_old_value_is_not_taken_over():
    value = Cached(first=1.0)
    assert value.total == 3.0

    assert replace(value, first=2.0).total == 4.0


def test_a_value_is_checked_as_when_it_was_made():
    with pytest.raises(ValueError, match="below 0"):
        replace(Checked(first=1.0), first=-1.0)


def test_a_field_that_is_not_there_is_refused():
    with pytest.raises((AttributeError, TypeError)):
        replace(Plain(first=1.0), fourth=1.0)
