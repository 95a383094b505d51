"""Whether a status differs enough from the one that stands there to be written."""

import math
from collections.abc import Mapping
from typing import Any

from tonnage.api.status import Status
from tonnage.control.report.reasons import CONDITIONS

MATERIAL = 0.10
FLOORS = {
    "queueDepth": 2.0,
    "running": 2.0,
    "requestsPerSecond": 0.05,
    "refusedPerSecond": 0.05,
    "deviationFraction": 0.05,
    "coldStartDeviationSeconds": 10.0,
    "nodeWaitSeconds": 10.0,
    "errorBudgetLeft": 0.05,
    "movedPromptFraction": 0.02,
}
"""A gauge that differs by less than this has not changed, whatever the ratio."""
COUNTS = frozenset({"queueDepth", "running"})
"""Of requests that come and go at random: they waver by the root of what they are."""


def is_moved(name: str, before: float, after: float) -> bool:
    """Tell whether a shown gauge changed by 10 %, by more than its floor, and not by chance.

    >>> is_moved("queueDepth", 0, 1), is_moved("stepSeconds", 0.040, 0.045)
    (False, True)
    >>> is_moved("running", 18, 20.5), is_moved("running", 180, 205)
    (False, True)
    """
    change, larger = abs(after - before), max(abs(before), abs(after))
    chance = math.sqrt(larger) if name in COUNTS else 0.0
    return change > max(FLOORS.get(name, 0.0), MATERIAL * larger, chance)


def facts(status: Status) -> tuple[object, ...]:
    """Return the part of a status whose every change is written at once.

    Numbers of the plan and of replicas, and conditions of ours without messages and times: what
    others write beside them no apply takes away. The rest are gauges and words that go along with
    the next write: two limits that nearly touch change places with every waver of the load.
    """
    return (
        status.observed_generation,
        status.replicas,
        status.plan and status.plan.model_copy(update={"reasons": (), "limited_by": ""}),
        [each.time for each in status.decisions],
        [each.digest for each in status.proposals],
        sorted(
            (each.type, each.status, each.reason)
            for each in status.conditions
            if each.type in CONDITIONS
        ),
    )


GAUGE_SECTIONS = ("estimate", "measured", "calibration")
COUNTERS = frozenset(
    {
        "busySteps",
        "windows",
        "judgedRequests",
        "coldStarts",
        "corroboratingNamespaces",
        "deviationFraction",
    }
)
"""Grows for ever, or shrinks: goes along, asks for no write of its own."""
NUMBERS = frozenset({int, float})
"""A bool is none."""
Figures = Mapping[tuple[str, str, str], float]
"""By section, name and part; what is no object is its own ``value``."""


def figures(status: Mapping[str, Any]) -> Figures:
    """Return the numbers that a status shows, but counters."""
    return {
        (section, name, part): number
        for section in GAUGE_SECTIONS
        for name, shown in (status.get(section) or {}).items()
        if name not in COUNTERS
        for part, number in (shown if isinstance(shown, dict) else {"value": shown}).items()
        if part not in COUNTERS and type(number) in NUMBERS and math.isfinite(number)
    }


def figures_moved(before: Figures, after: Figures) -> bool:
    """Tell whether any number that a status shows changed materially, appeared or vanished."""
    if before.keys() != after.keys():
        return True
    changed = (key for key, number in after.items() if number != before[key])
    return any(
        is_moved(key[1] if key[2] == "value" else key[2], before[key], after[key])
        for key in changed
    )
