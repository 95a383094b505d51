"""The conditions of an object: what each rule says, with times; and the one to read first."""

from collections.abc import Iterable
from functools import lru_cache
from typing import Final

from tonnage.api.status import MESSAGE_LENGTH, Condition
from tonnage.control.input.finding import PENDING, Finding
from tonnage.control.input.state import Assessment, Fleet
from tonnage.control.report.condition_types import CONDITION_TYPES
from tonnage.control.report.roles import has_roles, role_findings
from tonnage.units import one_line

SHARED = 4096
"""Conditions that are one for all objects of which the same is said: each takes 1 KB."""
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


def conditions(found: Assessment, fleet: Fleet, *, now: str) -> tuple[Condition, ...]:
    """Return every condition that is present; a transition time moves only with its status."""
    rules = ((kind, each.rule(found, fleet)) for kind, each in CONDITION_TYPES.items())
    findings = role_findings(found, fleet) if has_roles(found) else rules
    planned = ((kind, _as_planned(kind, finding, found)) for kind, finding in findings if finding)
    return tuple(_condition(kind, finding, found, now) for kind, finding in planned)


def _as_planned(kind: str, finding: Finding, found: Assessment) -> Finding:
    """Leave what needs the plan as it was while a search is awaited, and say so if it lasts."""
    pending = found.pending
    if pending is None or not CONDITION_TYPES[kind].needs_plan:
        return finding
    before = found.memory.reported.conditions.get(kind)
    if before is None:
        return Finding("Unknown", PENDING, pending.message)
    if kind == "PlanValid" and pending.is_told:
        return Finding(before.status, PENDING, pending.message)
    return Finding(before.status, before.reason, before.message)


def _condition(kind: str, finding: Finding, found: Assessment, now: str) -> Condition:
    """Return a condition: the one of before, where it would say the same."""
    if len(finding.message) > MESSAGE_LENGTH:
        finding = finding._replace(message=finding.message[:MESSAGE_LENGTH])
    before, generation = found.memory.reported.conditions.get(kind), found.state.view.generation
    if before is None or before.status != finding.state:
        return _shared(kind, finding, now, generation)
    same = (before.reason, before.message, before.observed_generation)
    if same == (finding.reason, finding.message, generation):
        return before
    return _shared(kind, finding, before.last_transition_time, generation)


@lru_cache(maxsize=SHARED)
def _shared(kind: str, finding: Finding, since: str, generation: int) -> Condition:
    return Condition(
        type=kind,
        status=finding.state,
        reason=finding.reason,
        message=finding.message,
        last_transition_time=since,
        observed_generation=generation,
    )


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
