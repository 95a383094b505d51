"""Which cases of many ``make test`` runs; ``make test-all`` runs the others too."""

from collections.abc import Callable, Hashable, Iterable
from typing import Any

import pytest


def one_of_each(
    cases: Iterable[Any], kind: Callable[[Any], Hashable], *, name: Callable[[Any], str] = str
) -> list[Any]:
    """Return parameters of which all but the first of each kind are marked thorough."""
    seen: set[Hashable] = set()
    made = []
    for case in cases:
        is_new = kind(case) not in seen
        seen.add(kind(case))
        made.append(pytest.param(case, id=name(case), marks=() if is_new else pytest.mark.thorough))
    return made


def one_in(number: int, cases: Iterable[Any], *, name: Callable[[Any], str] = str) -> list[Any]:
    """Return parameters of which all but one in so many are marked thorough."""
    return [
        pytest.param(case, id=name(case), marks=pytest.mark.thorough if index % number else ())
        for index, case in enumerate(cases)
    ]
