"""Whether a status differs enough from the one that stands there to be written."""

import math
from collections.abc import Mapping
from typing import Any

from tonnage.control.report.reasons import CONDITIONS

MATERIAL = 0.10
FLOORS = {
    "queueDepth": 2.0,
    "running": 2.0,
    "requestsPerSecond": 0.05,
    "deviationFraction": 0.05,
    "coldStartDeviationSeconds": 10.0,
    "nodeWaitSeconds": 10.0,
    "errorBudgetLeft": 0.05,
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


def facts(status: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the part of a status whose every change is written at once.

    Numbers of the plan and of replicas, and conditions of ours without messages and times: what
    others write beside them no apply takes away. The rest are gauges and words that go along with
    the next write: two limits that nearly touch change places with every waver of the load.
    """
    plan = dict(status.get("plan") or {})
    for word in ("reasons", "limitedBy"):
        plan.pop(word, None)
    return {
        "generation": status.get("observedGeneration"),
        "replicas": status.get("replicas"),
        "plan": plan,
        "decisions": [each["time"] for each in status.get("decisions") or ()],
        "proposals": [each["digest"] for each in status.get("proposals") or ()],
        "conditions": sorted(
            (each["type"], each["status"], each["reason"])
            for each in status.get("conditions") or ()
            if each["type"] in CONDITIONS
        ),
    }


def gauges_moved(before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
    """Tell whether any number that a status shows changed materially, appeared or vanished."""
    for section in GAUGE_SECTIONS:
        old, new = before.get(section) or {}, after.get(section) or {}
        names = () if old == new else old.keys() | new.keys()
        if any(_is_moved(name, old.get(name), new.get(name)) for name in names):
            return True
    return False


def _is_moved(name: str, before: Any, after: Any) -> bool:
    if before == after:
        return False
    olds, news = _numbers(name, before), _numbers(name, after)
    if olds.keys() != news.keys():
        return True
    paths = ((part, name if part == "value" else part) for part in news)
    return any(is_moved(shown, olds[part], news[part]) for part, shown in paths)


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


def _numbers(name: str, value: Any) -> Mapping[str, float]:
    """Return the numbers of a figure by part, but counters."""
    parts = value if isinstance(value, dict) else {"value": value}
    return {
        part: float(number)
        for part, number in parts.items()
        if not (name in COUNTERS or part in COUNTERS or isinstance(number, bool))
        and isinstance(number, int | float)
        and math.isfinite(number)
    }
