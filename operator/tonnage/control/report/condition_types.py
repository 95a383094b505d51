"""Every type of condition: by which rule it is said, and what follows where it is bad.

``reasons`` has what each says, for the documentation.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from tonnage.api.status import Condition
from tonnage.control.decide.approval import approval
from tonnage.control.input.finding import Finding, State
from tonnage.control.input.state import Assessment, Fleet
from tonnage.control.report.kstatus import ready, reconciling, stalled
from tonnage.control.report.plausible import speed_plausible
from tonnage.control.report.rules import (
    calibration_stored,
    capacity_available,
    error_budget,
    kv_capacity,
    metrics_available,
    plan_valid,
    scaling_active,
    scaling_limited,
    slo_met,
    template_drift,
)


@dataclass(frozen=True, slots=True)
class ConditionType:
    """One type of condition of a ModelDeployment."""

    name: str
    rule: Callable[[Assessment, Fleet], Finding | None]
    """None: the condition is absent."""
    link: Literal["signal", "correction", "sizing", "caps", "decision"]
    """Of the chain from what is measured to what is decided, as ``tonnage explain`` shows it."""
    rank: int
    """The bad condition of the lowest rank is the problem of an object: causes come before what
    they cause. 0: never a problem."""
    bad_when: State = "False"
    has_event: bool = True
    """An Event says that it turned bad."""
    is_cause: bool = False
    """As a problem it says more of an object than why it has so many replicas."""
    needs_plan: bool = False
    """It stays as it was while the plan waits for its search."""
    is_joined: bool = False
    """Of an object with two roles it is that of both, and bad where one is bad."""

    def is_bad(self, condition: Condition) -> bool:
        """Tell whether one of this type says that something is wrong."""
        return self.rank > 0 and condition.status == self.bad_when


_TYPES: Final = (
    ConditionType("Ready", ready, "decision", 6, has_event=False, is_cause=True),
    ConditionType("Reconciling", reconciling, "decision", 0),
    ConditionType("Stalled", stalled, "decision", 1, bad_when="True", is_cause=True),
    ConditionType("PlanValid", plan_valid, "sizing", 3, needs_plan=True),
    ConditionType(
        "CapacityAvailable",
        capacity_available,
        "caps",
        2,
        is_cause=True,
        needs_plan=True,
        is_joined=True,
    ),
    ConditionType(
        "ScalingActive", scaling_active, "caps", 4, has_event=False, is_cause=True, is_joined=True
    ),
    ConditionType("ScalingLimited", scaling_limited, "caps", 0, needs_plan=True),
    ConditionType("SLOMet", slo_met, "signal", 9, needs_plan=True, is_joined=True),
    ConditionType("ErrorBudget", error_budget, "signal", 13, needs_plan=True, is_joined=True),
    ConditionType("SpeedPlausible", speed_plausible, "correction", 10, needs_plan=True),
    ConditionType("KVCapacityAsPlanned", kv_capacity, "correction", 11, needs_plan=True),
    ConditionType("Approved", approval, "decision", 5, needs_plan=True, is_joined=True),
    ConditionType("Drifted", template_drift, "decision", 8, bad_when="True"),
    ConditionType("MetricsAvailable", metrics_available, "signal", 7),
    ConditionType("CalibrationStored", calibration_stored, "correction", 12, has_event=False),
)
"""In the order in which a status has them."""
CONDITION_TYPES: Final[Mapping[str, ConditionType]] = {each.name: each for each in _TYPES}
