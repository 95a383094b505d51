"""What is wrong with an object, if anything: the one condition to read first."""

from collections.abc import Iterable
from typing import Final

from tonnage.api.status import Condition
from tonnage.control.input.finding import PENDING
from tonnage.control.report.condition_types import CONDITION_TYPES
from tonnage.units import one_line

AS_MEANT: Final = frozenset(
    {
        "NotDeployed",
        "Paused",
        "RecommendOnly",
        "RolesPending",
        "SpecPending",
        "WaitingForReplicas",
        PENDING,
    }
)
"""Reasons of what is False because somebody wants it so, or while it comes about."""
MOST_SHOWN: Final = 160
"""Characters of a message, in a column of the table."""


def problem_of(conditions: Iterable[Condition]) -> Condition | None:
    """Return the first condition that says what is wrong."""
    bad = (each for each in conditions if _is_bad(each))
    return min(bad, key=lambda each: CONDITION_TYPES[each.type].rank, default=None)


def _is_bad(condition: Condition) -> bool:
    kind = CONDITION_TYPES[condition.type]
    return kind.is_bad(condition) and condition.reason not in AS_MEANT


def problem_cell(problem: Condition | None) -> str:
    """Return the cell of the table."""
    return one_line(problem.message, MOST_SHOWN) if problem else ""
