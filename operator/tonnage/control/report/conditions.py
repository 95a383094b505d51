"""The conditions of an object, of both its roles too: types, rules, times; and which to read first.

``reasons`` has what each says, for the documentation.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, Literal

from tonnage.api.status import MESSAGE_LENGTH, Condition, Reason, ReplicasStatus
from tonnage.control.decide.approval import approval
from tonnage.control.input.finding import PENDING, Finding, State
from tonnage.control.input.state import Assessment, Fleet, ModelState
from tonnage.control.report.calibrated import speed_plausible
from tonnage.control.report.rules import (
    calibration_stored,
    capacity_available,
    error_budget,
    kv_capacity,
    metrics_available,
    plan_valid,
    ready,
    reconciling,
    scaling_active,
    scaling_limited,
    slo_met,
    stalled,
    template_drift,
    why_stalled,
)
from tonnage.manifests.roles import RoleManifest, is_written_for
from tonnage.units import one_line


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
    needs_history: bool = False
    """It stays while nobody knows the last quarter of an hour of the engines."""
    is_joined: bool = False
    """Of an object with two roles it is that of both, and bad where one is bad."""

    def is_bad(self, condition: Condition) -> bool:
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
    ConditionType(
        "ScalingLimited", scaling_limited, "caps", 0, needs_plan=True, needs_history=True
    ),
    ConditionType("SLOMet", slo_met, "signal", 9, needs_plan=True, is_joined=True),
    ConditionType("ErrorBudget", error_budget, "signal", 13, needs_plan=True, is_joined=True),
    ConditionType("SpeedPlausible", speed_plausible, "correction", 10, needs_plan=True),
    ConditionType("KVCapacityAsPlanned", kv_capacity, "correction", 11, needs_plan=True),
    ConditionType("Approved", approval, "decision", 5, needs_plan=True, is_joined=True),
    ConditionType("Drifted", template_drift, "decision", 8, bad_when="True"),
    ConditionType("MetricsAvailable", metrics_available, "signal", 7, needs_history=True),
    ConditionType("CalibrationStored", calibration_stored, "correction", 12, has_event=False),
)
"""In the order in which a status has them."""
CONDITION_TYPES: Final[Mapping[str, ConditionType]] = {each.name: each for each in _TYPES}


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
    bad = (
        each
        for each in conditions
        if CONDITION_TYPES[each.type].is_bad(each) and each.reason not in AS_MEANT
    )
    return min(bad, key=lambda each: CONDITION_TYPES[each.type].rank, default=None)


def problem_cell(problem: Condition | None) -> str:
    return one_line(problem.message, MOST_SHOWN) if problem else ""


ROLES_MISSING: Final = "RolesPending"
"""Reason of what waits for a ModelDeployment of a role to be made, or to follow the spec."""
TOPOLOGY: Final = "Topology"
"""Reason of what hangs on whether there are roles."""
JOINED: Final = tuple(each.name for each in CONDITION_TYPES.values() if each.is_joined)


RoleConditions = Mapping[str, Mapping[str, Mapping[str, Any]]]


def due(found: Assessment) -> tuple[RoleManifest, ...]:
    """Return the ModelDeployments of roles that are missing, or were written for another spec.

    Where nothing may be made none is missing; what is there follows its mode, too. Of one that is
    too large to be read nobody knows.
    """
    views = {role: each.view for role, each in found.state.roles.items()}

    def is_due(wanted: RoleManifest) -> bool:
        view = views.get(wanted.role)
        if view is None:
            return found.is_acting
        return view.digest != wanted.digest and not view.is_oversized

    return tuple(filter(is_due, found.apart.manifests if found.apart else ()))


def edited(found: Assessment) -> dict[str, RoleManifest]:
    """Return {field: ModelDeployment of a role} of what others made of what Tonnage wrote.

    What they wrote beside it stays.
    """
    roles = found.state.roles
    edits = dict[str, RoleManifest]()
    for each in found.apart.manifests if found.apart else ():
        if each.role in roles and roles[each.role].view.digest == each.digest:
            spec = json.loads(roles[each.role].view.manifest)["spec"]
            field = next(_departures(spec, each.manifest["spec"], f"{each.name} spec"), None)
            edits |= {field: each} if field else {}
    return edits


def _departures(live: Any, wanted: Any, path: str) -> Iterator[str]:
    """Yield the fields that are not as they were written; a list is one value, as in the CRD."""
    if isinstance(wanted, Mapping) and isinstance(live, Mapping):
        for key, value in wanted.items():
            yield from _departures(live.get(key), value, f"{path}.{key}")
    elif live != wanted:
        yield path


def has_roles(found: Assessment) -> bool:
    """Tell whether two objects are, or are to be, in place of this one."""
    return found.apart is not None or bool(found.state.own_roles)


def role_findings(found: Assessment, fleet: Fleet) -> Iterator[tuple[str, Finding | None]]:
    """Yield what each condition of an object with two roles says."""
    said = _said(found)
    missing = ", ".join(each.role for each in due(found))
    stall = stalled(found, fleet) or _of_both("Stalled", said)
    yield "Ready", _ready(found, said, missing)
    yield "Reconciling", _reconciling(found, missing) if stall is None else None
    yield "Stalled", stall
    yield "PlanValid", _plan_valid(found, said) or plan_valid(found, fleet)
    edits = ", ".join(edited(found))
    message = f"somebody changed {edits}: Tonnage reapplies it, at most once in 5 minutes"
    yield "Drifted", Finding("True", "SpecEdited", message) if edits else None
    for kind in JOINED:
        yield kind, _of_both(kind, said)


def said_by_roles(found: Assessment) -> frozenset[str]:
    """Return the types of conditions that repeat those of roles, which post Events themselves."""
    if not has_roles(found):
        return frozenset()
    own = _plan_valid(found, {})
    is_planned = own is None or _plan_valid(found, _said(found)) == own
    repeated = () if why_stalled(found) else ("Stalled",)
    return frozenset((*JOINED, *repeated, *(() if is_planned else ("PlanValid",))))


def _is_ahead(found: Assessment) -> bool:
    """Tell whether the roles were made from an earlier spec, and none are planned for this one."""
    generation, roles = found.state.view.generation, found.state.own_roles.values()
    is_old = any(not is_written_for(each.view.digest, generation) for each in roles)
    return found.apart is None and is_old


def _ready(found: Assessment, said: RoleConditions, missing: str) -> Finding:
    if not said and not found.is_acting:
        message = f"mode is {found.mode}: no role is created"
        return Finding("True", "StatusOnly", message)
    if missing:
        return Finding("False", ROLES_MISSING, f"not yet as in the spec: {missing}")
    if _is_ahead(found):
        earlier = Reason(PENDING, "the roles are not yet updated to the spec")
        return Finding("False", *(found.refusal or earlier))
    both = _of_both("Ready", said)
    return both or Finding("False", ROLES_MISSING, "the roles have no status yet")


def _reconciling(found: Assessment, missing: str) -> Finding | None:
    if not found.is_acting:
        return None
    if found.pending and _is_ahead(found):
        return Finding("True", PENDING, found.pending.message)
    return Finding("True", ROLES_MISSING, f"being made or updated: {missing}") if missing else None


def _plan_valid(found: Assessment, said: RoleConditions) -> Finding | None:
    """Return whether roles are planned, and each can be; None: none are planned now."""
    if found.apart is None:
        return None
    own, of_role = found.apart.message, _of_both("PlanValid", said)
    if of_role and of_role.state == "False":
        return of_role._replace(message=f"{of_role.message}; {own}")
    return Finding("True", "Planned", own)


def _of_both(kind: str, said: RoleConditions) -> Finding | None:
    """Return a condition as both roles have it: bad where one is, else that of the first.

    One that is bad when it is False is absent until both have it.
    """
    met = {name: conditions[kind] for name, conditions in said.items() if kind in conditions}
    bad_when = CONDITION_TYPES[kind].bad_when
    if not met or (bad_when == "False" and len(met) < len(said)):
        return None
    order = {bad_when: 0, "Unknown": 1}
    worst = min(met.values(), key=lambda each: order.get(each["status"], 2))
    message = "; ".join(f"{name}: {each['message']}" for name, each in met.items())
    return Finding(worst["status"], worst["reason"], message)


def _said(found: Assessment) -> RoleConditions:
    """Return what roles say of their present specs: conditions by the object's name, by type."""
    return {
        other.view.name: {each["type"]: each for each in status.get("conditions") or ()}
        if status.get("observedGeneration") == other.view.generation
        else {}
        for other, status in _statuses(found)
    }


def roles_replicas(found: Assessment) -> ReplicasStatus:
    """Return the replicas of both roles together, as they say themselves."""
    parts = [status.get("replicas") or {} for _, status in _statuses(found)]
    desired, current, ready = (
        sum(part.get(key) or 0 for part in parts) for key in ("desired", "current", "ready")
    )
    summary = " + ".join(str(part.get("summary") or "0/0") for part in parts) or "0/0"
    return ReplicasStatus(desired=desired, current=current, ready=ready, summary=summary)


def roles_slo(found: Assessment) -> str:
    """Return what the column says of the SLO: what either role misses, else whether it is met."""
    cells = [(status.get("display") or {}).get("slo") or "" for _, status in _statuses(found)]
    missed = [each for each in cells if each not in {"", "met"}]
    return ", ".join(missed) or ("met" if "met" in cells else "")


def _statuses(found: Assessment) -> Iterator[tuple[ModelState, dict[str, Any]]]:
    for other in found.state.own_roles.values():
        yield other, json.loads(other.view.status)
