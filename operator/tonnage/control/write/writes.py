"""The writes that an assessment asks for, in the right mode, and what is remembered of them."""

from dataclasses import dataclass, replace

from tonnage.api.objects import ModelDeployment
from tonnage.api.status import Status
from tonnage.control.decide.situation import PodCost, costs_to_go
from tonnage.control.decide.template import roll_written
from tonnage.control.decide.writers import with_written
from tonnage.control.input.memory import ObjectMemory, ReportMemory, WriteMemory
from tonnage.control.input.state import Assessment, Fleet, ModelView
from tonnage.control.input.times import apart_s, backoff_s
from tonnage.control.input.writers import (
    MOST_RETRY_S,
    Cause,
    Failure,
    Fate,
    Result,
    Results,
    WriteKind,
)
from tonnage.control.observe.ownership import is_there, may_act, may_scale, owns_children
from tonnage.control.report.conditions import due, edited, said_by_roles
from tonnage.control.report.event_records import EventRecord, event_records
from tonnage.control.report.status import Reported
from tonnage.manifests.names import DEPLOYMENT, Manifest, num_nodes_in
from tonnage.manifests.roles import RoleManifest

CHILDREN_CHECK_S = 300
RETRY_S = 15.0
"""After a write that failed, before the next; twice as long after each further failure."""
NUM_CREATED = 6
"""Writes by which an object that nothing was made for gets its Deployment and what is beside it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """Replicas to write, if the Deployment still asks for what the decision was made on."""

    deployment: str
    uid: str
    """Of the Deployment: a namesake is left alone."""
    kind: str = DEPLOYMENT.kind
    """A LeaderWorkerSet in its place."""
    seen: int
    replicas: int
    costs: tuple[PodCost, ...] = ()
    """To write first: they let the pods with the least to do go."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Writes:
    """Everything that one tick writes for one object."""

    namespace: str
    name: str
    uid: str
    generation: int | None = None
    """Of the spec that was decided on."""
    model: ModelDeployment | None = None
    scale: Scale | None = None
    template: Manifest | None = None
    roles: tuple[RoleManifest, ...] = ()
    """ModelDeployments to make or change, of an object that has two in its place."""
    num_nodes: int = 1
    """Of a replica, which has a pod on each."""
    creates: bool = False
    """No Deployment was seen when this was decided."""
    first_replicas: int | None = None
    """For a Deployment that does not exist yet."""
    rolls: bool = False
    """The template replaces pods that run: the status, which says so, is written before it."""
    check_children: bool = False
    check_leftovers: bool = False
    """Of children that this spec does not ask for, and another one may have."""
    status: Status | None = None
    event_records: tuple[EventRecord, ...] = ()
    is_oversized: bool = False
    """The object is too large to be read once more before an Event of it is posted."""

    @property
    def label(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def makes(self) -> bool:
        """Tell whether anything is made or looked at beside replicas and status."""
        return self.template is not None or self.check_children or bool(self.roles)

    @property
    def kinds(self) -> frozenset[WriteKind]:
        """Return what is written or looked at."""
        asked = {
            WriteKind.SCALE: self.scale is not None,
            WriteKind.TEMPLATE: self.makes,
            WriteKind.CHILDREN: self.check_children,
            WriteKind.STATUS: self.status is not None,
            WriteKind.EVENTS: bool(self.event_records),
        }
        return frozenset(kind for kind, is_asked in asked.items() if is_asked)

    @property
    def num_limited(self) -> int:
        """How much of what is limited this asks for: all but replicas."""
        templates = 0 if self.template is None else NUM_CREATED if self.creates else 1
        reports = len(self.event_records) + (self.status is not None)
        return templates + len(self.roles) + self.check_children + reports

    @property
    def is_routine(self) -> bool:
        """Tell whether nothing is wanted, but at most that children are looked at."""
        return self.scale is None and self.num_limited == self.check_children


def writes_for(found: Assessment, reported: Reported, fleet: Fleet) -> tuple[Writes, ObjectMemory]:
    """Return what is to be written for one object, and the memory of it once it is carried out."""
    view, known, deployment = found.state.view, found.memory.written, found.state.deployment
    waiting = found.waiting_kinds(fleet.now_s)
    waits = bool(waiting & {WriteKind.TEMPLATE, WriteKind.CHILDREN})
    acts, is_leaving = may_act(found, fleet), view.is_deleting and not is_there(found, fleet)
    scale = _scale(found) if may_scale(found, fleet) else None
    # A status of what is too large to be read costs the API server as much as the object does.
    is_mute = view.is_oversized or WriteKind.STATUS in waiting
    may_apply = acts and WriteKind.TEMPLATE not in waiting
    may_apply = may_apply and not (is_mute and found.changes)  # said before it is done
    # None is made for no replica, since it asks for one.
    is_for_nothing = deployment is None and found.decision and found.decision.replicas < 1
    may_make = may_apply and fleet.settings.mode == "full" and not is_for_nothing
    template = found.template if may_make else None
    may_apply_roles = may_apply or (bool(found.state.own_roles) and not (waits or view.is_deleting))
    may_apply_roles = may_apply_roles and fleet.settings.mode == "full"
    roles, known = _roles(found, known, fleet) if may_apply_roles else ((), known)
    checks = acts and not waits and owns_children(found) and _is_check_due(found, fleet)
    is_scaling = scale is not None or (template is not None and deployment is None)
    rolls = template is not None and bool(found.changes)
    repeated = said_by_roles(found)
    events, said = event_records(
        reported.memory,
        [each for each in reported.conditions if each.type not in repeated],
        scaling=next(iter(reported.memory.decisions), None) if is_scaling else None,
        rolling=roll_written(deployment, found.changes) if rolls else None,
        now_s=fleet.now_s,
    )
    if is_mute:
        written_at_s = found.memory.reported.gauges_written_at_s
        said = replace(said, gauges_written_at_s=written_at_s)
    if reported.status is None and WriteKind.STATUS in known.failures:
        others = dict(known.failures)
        del others[WriteKind.STATUS]
        known = replace(known, failures=others)
    writes = Writes(
        namespace=view.namespace,
        name=view.name,
        uid=view.uid,
        generation=view.generation,
        model=found.state.model if isinstance(found.state.model, ModelDeployment) else None,
        scale=scale,
        template=template,
        roles=roles,
        num_nodes=num_nodes_in(template) if template else deployment.num_nodes if deployment else 1,
        creates=deployment is None,
        rolls=rolls,
        first_replicas=found.decision.replicas if found.decision else None,
        check_children=checks,
        check_leftovers=checks and _is_spec_new(found),
        status=None if is_mute or is_leaving else reported.status,
        event_records=() if is_leaving or fleet.settings.mode == "recommend" else events,
        is_oversized=view.is_oversized,
    )
    known = _with_check(known, found, fleet) if checks else known
    memory = with_written(
        replace(found.memory, reported=said, written=known),
        found,
        scaled=(scale.replicas, Fate.DONE) if scale else None,
        template=Fate.DONE if template is not None else None,
        now_s=fleet.now_s,
    )
    return writes, memory


def _roles(
    found: Assessment, known: WriteMemory, fleet: Fleet
) -> tuple[tuple[RoleManifest, ...], WriteMemory]:
    """Return the ModelDeployments of roles to apply: over edits of others as often as children."""
    edits = edited(found)
    if not edits or not _is_check_due(found, fleet):
        return due(found), known
    return (*due(found), *edits.values()), _with_check(known, found, fleet)


def _with_check(known: WriteMemory, found: Assessment, fleet: Fleet) -> WriteMemory:
    checked_at_s, generation = fleet.now_s, found.state.view.generation
    return replace(known, children_checked_at_s=checked_at_s, children_generation=generation)


def _is_check_due(found: Assessment, fleet: Fleet) -> bool:
    checked_at_s = found.memory.written.children_checked_at_s
    every_s = apart_s(CHILDREN_CHECK_S, found.memory.uid)
    is_due = checked_at_s is None or fleet.now_s - checked_at_s > every_s
    return is_due or found.template is not None or _is_spec_new(found)


def _is_spec_new(found: Assessment) -> bool:
    """Tell whether no children were looked at for this spec, as far as is remembered."""
    return found.memory.written.children_generation != found.state.view.generation


def _scale(found: Assessment) -> Scale | None:
    deployment, decision = found.state.deployment, found.decision
    if deployment is None or decision is None or decision.replicas == deployment.replicas:
        return None
    if owns_children(found) and deployment.owner_uid != found.state.view.uid:
        return None  # adopted first
    is_down = decision.replicas < deployment.replicas
    # Of groups that with the highest index goes.
    is_marked = is_down and owns_children(found) and not deployment.workload.is_group
    return Scale(
        deployment=deployment.name,
        uid=deployment.uid,
        kind=deployment.kind,
        seen=deployment.replicas,
        replicas=decision.replicas,
        costs=costs_to_go(found.state, decision.replicas) if is_marked else (),
    )


SCALE, TEMPLATE, CHILDREN = WriteKind.SCALE, WriteKind.TEMPLATE, WriteKind.CHILDREN
STATUS, EVENTS = WriteKind.STATUS, WriteKind.EVENTS


def with_object_results(
    memory: ObjectMemory, found: Assessment, writes: Writes, results: Results, *, now_s: float
) -> ObjectMemory:
    """Return the memory of what was really written: what is not done is due again."""
    if results.keys() & {SCALE, TEMPLATE}:
        memory = with_written(
            memory,
            found,
            scaled=(writes.scale.replicas, fate(results, SCALE)) if writes.scale else None,
            template=fate(results, TEMPLATE) if writes.template is not None else None,
            now_s=now_s,
        )
    return replace(
        memory,
        reported=_report_memory(memory.reported, found.memory.reported, results),
        written=_write_memory(memory.written, found, writes, results, now_s=now_s),
    )


def fate(results: Results, kind: WriteKind) -> Fate:
    return results[kind].fate if kind in results else Fate.DONE


def _report_memory(known: ReportMemory, before: ReportMemory, results: Results) -> ReportMemory:
    """Return what status and Events said, as far as they were written.

    An Event says of a decision or a rollout when that is carried out, not before.
    """
    if EVENTS in results:
        known = replace(known, bad=before.bad, posted=before.posted)
    if STATUS in results:
        known = replace(known, gauges_written_at_s=before.gauges_written_at_s)
    if results.keys() & {SCALE, TEMPLATE, EVENTS}:
        decision, roll = before.posted_decision, before.posted_roll
        known = replace(known, posted_decision=decision, posted_roll=roll)
    return known


def _write_memory(
    known: WriteMemory, found: Assessment, writes: Writes, results: Results, *, now_s: float
) -> WriteMemory:
    """Remember what failed, by kind, until it is tried again and done."""
    failures = {
        kind: each
        for kind, each in known.failures.items()
        if kind in results or _is_left(kind, each, writes, now_s)
    }
    for kind, result in results.items():
        if result.cause is not Cause.LATER and kind is not EVENTS:
            before = failures.get(kind)
            failures[kind] = failed_again(before, result, found.state.view, now_s=now_s)
    known = replace(known, failures=failures)
    if not results.keys() & {CHILDREN, TEMPLATE}:
        return known
    generation = found.memory.written.children_generation
    return replace(known, children_checked_at_s=None, children_generation=generation)


def failed_again(
    before: Failure | None, result: Result, view: ModelView, *, now_s: float
) -> Failure:
    """Return when to try again what failed now: later each time, apart from others."""
    times = before.times + 1 if before and before.generation == view.generation else 1
    wait_s = backoff_s(times, first_s=RETRY_S, longest_s=MOST_RETRY_S)
    return Failure(
        cause=result.cause,
        detail=result.detail,
        generation=view.generation,
        times=times,
        at_s=now_s + apart_s(wait_s, view.uid),
    )


def _is_left(kind: WriteKind, failure: Failure, writes: Writes, now_s: float) -> bool:
    """Tell whether what failed was not among what is done now, and still matters.

    What is not asked for again when its wait is over was done after all, or is not wanted any more.
    """
    if kind is SCALE or kind in writes.kinds:
        return False
    return failure.cause is Cause.NO_PATH or failure.is_waiting(writes.generation, now_s)
