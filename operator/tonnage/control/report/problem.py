"""What is wrong with an object, if anything: the one condition to read first."""

from collections.abc import Iterable
from typing import Final

from tonnage.api.status import Condition
from tonnage.control.input.finding import PENDING
from tonnage.units import one_line

BAD_WHEN_TRUE: Final = frozenset({"Stalled", "Drifted"})
ORDER: Final = (
    "Stalled",
    "CapacityAvailable",
    "PlanValid",
    "ScalingActive",
    "Approved",
    "Ready",
    "MetricsAvailable",
    "Drifted",
    "SLOMet",
    "SpeedPlausible",
    "KVCapacityAsPlanned",
    "CalibrationStored",
    "ErrorBudget",
)
"""Causes before what comes of them."""
CAUSES: Final = frozenset({"Stalled", "CapacityAvailable", "ScalingActive", "Ready"})
"""What says more of an object than why it has so many replicas."""
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
    by_type = {each.type: each for each in conditions}
    found = (by_type[kind] for kind in ORDER if kind in by_type)
    return next((each for each in found if _is_bad(each)), None)


def _is_bad(condition: Condition) -> bool:
    bad = "True" if condition.type in BAD_WHEN_TRUE else "False"
    return condition.status == bad and condition.reason not in AS_MEANT


def problem_cell(problem: Condition | None) -> str:
    """Return the cell of the table."""
    return one_line(problem.message, MOST_SHOWN) if problem else ""
