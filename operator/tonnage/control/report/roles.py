"""What an object says that has two others in its place: what both say, in one."""

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from tonnage.api.status import Reason, ReplicasStatus
from tonnage.control.input.finding import PENDING, Finding
from tonnage.control.input.state import Assessment, Fleet, RoleObject
from tonnage.control.report.condition_types import CONDITION_TYPES
from tonnage.control.report.kstatus import stalled, why_stalled
from tonnage.control.report.rules import plan_valid
from tonnage.manifests.roles import RoleManifest, is_written_for

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
    message = f"somebody changed {edits}: Tonnage reapplies it, after growing delays"
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


def _statuses(found: Assessment) -> Iterator[tuple[RoleObject, dict[str, Any]]]:
    for other in found.state.own_roles.values():
        yield other, json.loads(other.view.status)
