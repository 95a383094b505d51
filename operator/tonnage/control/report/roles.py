"""What an object says that has two others in its place: what both say, in one."""

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from tonnage.api.status import ReplicasStatus
from tonnage.control.input.finding import PENDING, Finding, State
from tonnage.control.input.state import Assessment, ModelView, RoleObject
from tonnage.control.report.kstatus import stall
from tonnage.manifests.roles import RoleManifest, is_written_for

ROLES_MISSING: Final = "RolesPending"
"""Reason of what waits for a ModelDeployment of a role to be made, or to follow the spec."""
TOPOLOGY: Final = "Topology"
"""Reason of what hangs on whether there are roles."""
SAID_OF_BOTH: Final = ("CapacityAvailable", "ScalingActive", "Approved", "SLOMet", "ErrorBudget")
"""Conditions that are False where one role says so, and present where both say something."""


Said = Mapping[str, Mapping[str, Mapping[str, Any]]]
"""What roles say of their present specs: conditions by the object's name, by type."""


def due(found: Assessment) -> tuple[RoleManifest, ...]:
    """Return the ModelDeployments of roles that are missing, or were written for another spec.

    Where nothing may be made none is missing; what is there follows its mode, too. Of one that is
    too large to be read nobody knows.
    """
    views = {role: each.view for role, each in found.state.roles.items()}
    return tuple(
        each
        for each in (found.apart.manifests if found.apart else ())
        if (_is_behind(views[each.role], each) if each.role in views else found.is_acting)
    )


def _is_behind(view: ModelView, wanted: RoleManifest) -> bool:
    return view.digest != wanted.digest and not view.is_oversized


def edited(found: Assessment) -> dict[str, RoleManifest]:
    """Return {field: ModelDeployment of a role} of what others made of what Tonnage wrote.

    What they wrote beside it stays.
    """
    roles = found.state.roles
    edits = dict[str, RoleManifest]()
    for each in found.apart.manifests if found.apart else ():
        if each.role in roles and roles[each.role].view.digest == each.digest:
            spec = json.loads(roles[each.role].view.manifest)["spec"]
            field = next(_departures(spec, each.spec, f"{each.name} spec"), None)
            edits |= {field: each} if field else {}
    return edits


def _departures(live: Any, wanted: Any, path: str) -> Iterator[str]:
    """Yield the fields that are not as they were written."""
    if not isinstance(wanted, Mapping) or not isinstance(live, Mapping):
        if live != wanted:
            yield path
        return
    for key, value in wanted.items():
        yield from _departures(live.get(key), value, f"{path}.{key}")


def has_roles(found: Assessment) -> bool:
    """Tell whether two objects are, or are to be, in place of this one."""
    return found.apart is not None or bool(found.state.own_roles)


def role_findings(found: Assessment, planned: Finding) -> Iterator[Finding]:
    """Yield the conditions of an object with two roles; ``planned``: where none are planned now."""
    said = _said(found)
    missing = ", ".join(each.role for each in due(found))
    stalled = stall(found)
    if stalled.state is None:
        stalled = _of_both("Stalled", said, is_bad="True") or stalled
    yield _ready(found, said, missing)
    yield _reconciling(found, stalled, missing)
    yield stalled
    yield _plan_valid(found, said) or planned
    edits = ", ".join(edited(found))
    message = f"somebody wrote {edits}: reapplied, later each time"
    yield Finding("Drifted", "True" if edits else None, "SpecEdited", message)
    for kind in SAID_OF_BOTH:
        if finding := _of_both(kind, said, is_bad="False"):
            yield finding


def said_by_roles(found: Assessment) -> frozenset[str]:
    """Return the types of conditions that repeat those of roles, which post Events themselves."""
    if not has_roles(found):
        return frozenset()
    own = _plan_valid(found, {})
    is_planned = own is None or _plan_valid(found, _said(found)) == own
    stalled = () if stall(found).state is not None else ("Stalled",)
    return frozenset((*SAID_OF_BOTH, *stalled, *(() if is_planned else ("PlanValid",))))


def _is_ahead(found: Assessment) -> bool:
    """Tell whether the roles were made from an earlier spec, and none are planned for this one."""
    generation, roles = found.state.view.generation, found.state.own_roles.values()
    is_old = any(not is_written_for(each.view.digest, generation) for each in roles)
    return found.apart is None and is_old


def _ready(found: Assessment, said: Said, missing: str) -> Finding:
    if not said and not found.is_acting:
        message = f"mode is {found.mode}, no role exists"
        return Finding("Ready", "True", "StatusOnly", message)
    if missing:
        return Finding("Ready", "False", ROLES_MISSING, f"not as the spec asks: {missing}")
    if _is_ahead(found):
        why = found.refusal
        reason = (why.reason, why.message) if why else (PENDING, "the roles are of an earlier spec")
        return Finding("Ready", "False", *reason)
    both = _of_both("Ready", said, is_bad="False")
    return both or Finding("Ready", "False", ROLES_MISSING, "the roles have no status yet")


def _reconciling(found: Assessment, stalled: Finding, missing: str) -> Finding:
    is_going_on = found.is_acting and stalled.state is None
    if found.pending and _is_ahead(found):
        state: State | None = "True" if is_going_on else None
        return Finding("Reconciling", state, PENDING, found.pending.message)
    state = "True" if is_going_on and missing else None
    return Finding("Reconciling", state, ROLES_MISSING, f"made or changed: {missing}")


def _plan_valid(found: Assessment, said: Said) -> Finding | None:
    """Return whether roles are planned, and each can be; None: none are planned now."""
    if found.apart is None:
        return None
    own, of_role = found.apart.message, _of_both("PlanValid", said, is_bad="False")
    if of_role and of_role.state == "False":
        return of_role._replace(message=f"{of_role.message}; {own}")
    return Finding("PlanValid", "True", "Planned", own)


def _of_both(kind: str, said: Said, *, is_bad: State) -> Finding | None:
    """Return a condition as both roles have it: bad where one is, else that of the first."""
    met = {name: conditions[kind] for name, conditions in said.items() if kind in conditions}
    if not met or (is_bad == "False" and len(met) < len(said)):
        return None
    order = {is_bad: 0, "Unknown": 1}
    worst = min(met.values(), key=lambda each: order.get(each["status"], 2))
    message = "; ".join(f"{name}: {each['message']}" for name, each in met.items())
    return Finding(kind, worst["status"], worst["reason"], message)


def _said(found: Assessment) -> Said:
    return {other.view.name: _conditions(other) for other in found.state.own_roles.values()}


def _conditions(other: RoleObject) -> Mapping[str, Mapping[str, Any]]:
    """Return what the object of a role says of its present spec, by type of condition."""
    status = json.loads(other.view.status)
    if status.get("observedGeneration") != other.view.generation:
        return {}
    return {each["type"]: each for each in status.get("conditions") or ()}


def roles_replicas(found: Assessment) -> ReplicasStatus:
    """Return the replicas of both roles together, as they say themselves."""
    parts = [status.get("replicas") or {} for status in _statuses(found)]
    desired, current, ready = (
        sum(part.get(key) or 0 for part in parts) for key in ("desired", "current", "ready")
    )
    summary = " + ".join(str(part.get("summary") or "0/0") for part in parts) or "0/0"
    return ReplicasStatus(desired=desired, current=current, ready=ready, summary=summary)


def roles_slo(found: Assessment) -> str:
    """Return what the column says of the SLO: what either role misses, else whether it is met."""
    cells = [(status.get("display") or {}).get("slo") or "" for status in _statuses(found)]
    missed = [each for each in cells if each not in {"", "met"}]
    return ", ".join(missed) or ("met" if "met" in cells else "")


def _statuses(found: Assessment) -> list[dict[str, Any]]:
    return [json.loads(other.view.status) for other in found.state.own_roles.values()]
