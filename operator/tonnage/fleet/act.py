"""The writes of one tick: scale first, then templates, then status, then Events.

What is about to replace pods is in the status before it does.

Every write is safe to be cut off before or after: the next tick reads what is there and goes on.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from http import HTTPStatus
from typing import Final

from tonnage.api.base import KIND
from tonnage.cluster.calls import (
    BugError,
    ConflictError,
    KubernetesError,
    WorldError,
    WriteFencedError,
)
from tonnage.cluster.kube import EVENTS, MODEL_DEPLOYMENTS, PODS, KubeApi
from tonnage.control.decide.situation import PodCost
from tonnage.control.input.finding import bug_message, fault_id
from tonnage.control.input.writers import Cause, Fate, Result, Results, WriteKind
from tonnage.control.write.writes import Scale, Writes
from tonnage.fleet.children import RESOURCES, Children, NoPathError, event, pinned
from tonnage.fleet.logs import Line
from tonnage.fleet.pods import controller_uid
from tonnage.fleet.write_queue import DeferredError, Failures, Item, WriteQueue
from tonnage.manifests.children import Site
from tonnage.manifests.names import (
    ADOPT_LABEL,
    API_VERSION,
    DELETION_COST_ANNOTATION,
    GROUPS,
    MANAGED_LABEL,
    MANAGER,
    SCALE_MANAGER,
    WORKLOADS,
    Manifest,
)
from tonnage.manifests.roles import RoleManifest
from tonnage.units import count_of

LOG = logging.getLogger("tonnage.act")
SCALE_ATTEMPTS = 3
SCALE, TEMPLATE, CHILDREN = WriteKind.SCALE, WriteKind.TEMPLATE, WriteKind.CHILDREN
STATUS = WriteKind.STATUS
HELD: Final = DeferredError("other objects' writes came first: written in a later tick")


class StaleError(WriteFencedError):
    """Something else stands there than was decided on: no failure, the next tick looks again."""


class StatusNotWrittenError(WriteFencedError):
    """The status does not say that pods are about to be replaced: they stay until it does."""

    def __init__(self, cause: WorldError) -> None:
        super().__init__(f"the status could not be written, so no pod is replaced: {cause}")
        self.is_refusal = self.is_of_object = cause.is_refusal


@dataclass(frozen=True, slots=True, kw_only=True)
class Writer:
    """Carries writes out. Before each attempt at one: is it still the object decided on?"""

    kube: KubeApi
    """Fenced by the Lease."""
    site: Site
    queue: WriteQueue = field(default_factory=WriteQueue)
    taken_names: set[tuple[str, str]] = field(default_factory=set)
    """(namespace, name) of Deployments in our way that no watch shows: added to, never read."""

    def act(self, all_writes: Iterable[Writes], *, now: str) -> dict[str, Results]:
        """Write what differs; return {UID: what became of it} of objects where not all is done."""
        asked = [writes for writes in all_writes if writes.kinds]
        failed = dict[Item, WorldError]()
        failed |= self._run(SCALE, self._move, (each for each in asked if each.scale))
        todo = self.queue.admit(each for each in asked if each.num_limited)
        admitted = {each.uid for each in todo}
        for each in asked:
            if each.uid not in admitted:
                failed |= {(each.uid, kind): HELD for kind in each.kinds - {SCALE}}
        # What a busy server refuses, the next tick offers again, at half the rate.
        replace(self, kube=self.kube.hasty())._act_on(todo, failed, now)
        self.queue.note(failed.values())
        return dict(_results(asked, failed))

    def _act_on(self, todo: Sequence[Writes], failed: dict[Item, WorldError], now: str) -> None:
        """Make all writes but those of replicas; what fails is added to ``failed``."""
        reports = [each for each in todo if each.status is not None]
        # Before the first pod is replaced.
        failed |= self._run(STATUS, self._write_status, (each for each in reports if each.rolls))
        made = [each for each in todo if each.makes]
        failed |= self._run(TEMPLATE, partial(self._template, dict(failed)), made)
        applied = (each for each in made if (each.uid, TEMPLATE) not in failed)
        looked_at = (each for each in applied if each.check_children)
        failed |= self._run(CHILDREN, lambda each: self._children(each).publish(each), looked_at)
        failed |= self._run(
            STATUS, self._write_status, (each for each in reports if not each.rolls)
        )
        eventful = [each for each in todo if each.event_records]
        failed |= self._run(WriteKind.EVENTS, partial(self._post, dict(failed), now), eventful)

    def _run(
        self, kind: WriteKind, phase: Callable[[Writes], None], some: Iterable[Writes]
    ) -> Failures:
        return self.queue.run(kind, partial(self._guard, phase), some)

    def _guard(self, phase: Callable[[Writes], None], writes: Writes) -> WorldError | None:
        """Run one object's phase; return the world's failure, which stays with that object.

        Without the Lease nothing is read for it either: a server that hangs holds up each read.
        """
        try:
            self.kube.check()
            phase(writes)
        except StaleError as error:
            LOG.info(Line("not written", object=writes.label, message=str(error)))
            return error
        except WorldError as error:
            LOG.warning(Line("write failed", object=writes.label, message=str(error)))
            return error
        except Exception as error:
            line = Line("internal error in a write", object=writes.label, fault=fault_id(error))
            LOG.exception(line)
            return BugError(bug_message(error))
        return None

    def _current(self, writes: Writes) -> KubeApi:
        """Return the API server to write to while the spec is the one decided on.

        That is asked before each attempt: what came before it may have taken a minute.
        """
        return self.kube.with_fence(lambda: self._check_current(writes))

    def _move(self, writes: Writes, first: Scale | None = None) -> None:
        """Write replicas through ``/scale``, while nothing else of the workload changes.

        ``first``: of a workload that was just made.

        Raises:
            WriteFencedError: the object is not the one any more that was decided on.
            StaleError: the workload asks for another number, is somebody else's now, or changes
                each time.
        """
        if (scale := first or writes.scale) is None:
            return
        resource = RESOURCES[scale.kind]
        for attempt in range(SCALE_ATTEMPTS):
            live = self.kube.get(resource.path(writes.namespace, scale.deployment))
            if (
                live is None
                or live["metadata"]["uid"] != scale.uid
                or live["spec"].get("replicas", 1) != scale.seen
            ):
                raise StaleError(
                    f"does not ask for {count_of(scale.seen, 'replica')} any more: decided again"
                )
            if not _may_be_scaled(live, writes):
                raise StaleError(f"the {scale.kind} now belongs to another object: decided again")
            for cost in scale.costs if attempt == 0 else ():
                self._mark(writes, cost)
            path = resource.path(writes.namespace, scale.deployment, "scale")
            version = live["metadata"]["resourceVersion"]
            body = {"metadata": {"resourceVersion": version}, "spec": {"replicas": scale.replicas}}
            try:
                self._current(writes).merge_patch(path, body, manager=SCALE_MANAGER)
            except ConflictError:
                continue
            line = Line("scaled", object=writes.label, before=scale.seen, replicas=scale.replicas)
            LOG.info(line)
            return
        raise StaleError(f"changed {SCALE_ATTEMPTS} times while replicas were written")

    def _mark(self, writes: Writes, cost: PodCost) -> None:
        """Write what a pod costs; where that fails, another pod goes, and that is all."""
        annotations = {DELETION_COST_ANNOTATION: str(cost.cost)}
        body = {"metadata": {"uid": cost.uid, "annotations": annotations}}
        try:
            path = PODS.path(writes.namespace, cost.pod)
            self._current(writes).merge_patch(path, body, manager=MANAGER)
        except KubernetesError as error:
            line = Line("not marked to go", object=writes.label, pod=cost.pod, message=str(error))
            LOG.warning(line)

    def _check_current(self, writes: Writes) -> None:
        """Ask whether the object is still the one that was decided on.

        Raises:
            WriteFencedError: it is gone, or another.
            StaleError: its spec is another: somebody may have set it to Paused.
        """
        found = self.kube.get(MODEL_DEPLOYMENTS.path(writes.namespace, writes.name))
        if found is None or found["metadata"]["uid"] != writes.uid:
            raise WriteFencedError(
                "the ModelDeployment was deleted or recreated: nothing is written"
            )
        generation = found["metadata"].get("generation")
        if writes.generation is not None and generation != writes.generation:
            raise StaleError("the spec changed meanwhile: decided again")

    def _template(self, failed: Failures, writes: Writes) -> None:
        """Write templates: not of rolls that could not be announced."""
        if cause := failed.get((writes.uid, STATUS)):
            raise StatusNotWrittenError(cause)
        for each in writes.roles:
            self._apply_role(writes, each)
        if writes.template is None and not writes.check_children:
            return
        self._children(writes).protect(writes)
        if writes.template is not None:
            self._apply_workload(writes, writes.template)

    def _apply_role(self, writes: Writes, wanted: RoleManifest) -> None:
        """Create the ModelDeployment of a role without force, or update what is provably ours."""
        path = MODEL_DEPLOYMENTS.path(writes.namespace, wanted.name)
        live, kube = self.kube.get(path), self._current(writes)
        if live is not None and controller_uid(live["metadata"]) != writes.uid:
            raise WriteFencedError(f"{KIND} {wanted.name} exists, not made by Tonnage: unchanged")
        manifest = wanted.manifest if live is None else pinned(wanted.manifest, live)
        kube.apply(path, manifest, manager=MANAGER, force=live is not None)
        LOG.info(Line("applied role", object=writes.label, role=wanted.role))

    def _children(self, writes: Writes) -> Children:
        return Children(kube=self._current(writes), site=self.site)

    def _apply_workload(self, writes: Writes, template: Manifest) -> None:
        """Create without force, or update what is provably ours."""
        kind = template["kind"]
        path = RESOURCES[kind].path(writes.namespace, writes.name)
        live = self.kube.get(path)
        kube = self._current(writes)
        if live is None:
            self._check_alone(writes, kind)
            made = kube.apply(path, template, manager=MANAGER, force=False)
            LOG.info(Line("created", object=writes.label, kind=kind))
            uid, wanted = made["metadata"]["uid"], writes.first_replicas or 1
            if wanted > 1:  # what was just made asks for one
                first = Scale(deployment=writes.name, kind=kind, uid=uid, seen=1, replicas=wanted)
                with suppress(StaleError):
                    self._move(writes, first)
            return
        if controller_uid(live["metadata"]) != writes.uid and not _is_handed_over(live, writes):
            self.taken_names.add((writes.namespace, writes.name))
            raise WriteFencedError(f"{kind} {writes.label} exists, not made by Tonnage: unchanged")
        if writes.creates:  # without its flags: nothing but the label is written
            if (live["metadata"].get("labels") or {}).get(MANAGED_LABEL) != "true":
                # Else just made: the watch will show it.
                metadata = {"uid": live["metadata"]["uid"], "labels": {MANAGED_LABEL: "true"}}
                kube.merge_patch(path, {"metadata": metadata}, manager=MANAGER)
            return
        kube.apply(path, pinned(template, live), manager=MANAGER, force=True)
        LOG.info(Line("applied template", object=writes.label))

    def _check_alone(self, writes: Writes, kind: str) -> None:
        """Ask whether a workload of the other kind has the name: its pods have the same labels.

        Raises:
            WriteFencedError: one does.
        """
        for other in WORKLOADS.keys() - {kind}:
            try:
                found = self.kube.get(RESOURCES[other].path(writes.namespace, writes.name))
            except KubernetesError as error:
                if other != GROUPS.kind or error.status != HTTPStatus.FORBIDDEN:
                    raise
                continue  # who may not read them has made none
            if found is not None:
                self.taken_names.add((writes.namespace, writes.name))
                raise WriteFencedError(
                    f"{other} {writes.label} is there: no {kind} is made beside it"
                )

    def _post(self, failed: Failures, now: str, writes: Writes) -> None:
        """Post Events: not of replicas or pods that stay as they were.

        One that is there already was posted before, and the answer was lost.
        """
        if not writes.is_oversized:
            self._check_current(writes)  # once for all of them: none is tried twice
        is_undone = any((writes.uid, kind) in failed for kind in (SCALE, TEMPLATE))
        for happening in writes.event_records:
            if not (happening.is_of_write and is_undone):
                with suppress(ConflictError):
                    path = EVENTS.path(writes.namespace)
                    self.kube.create(path, event(writes, happening, now))

    def _write_status(self, writes: Writes) -> None:
        if writes.status is None:
            return
        body = {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "metadata": {"name": writes.name, "namespace": writes.namespace, "uid": writes.uid},
            "status": writes.status.to_dict(),
        }
        path = MODEL_DEPLOYMENTS.path(writes.namespace, writes.name, "status")
        self._current(writes).apply(path, body, manager=MANAGER, force=True)


def _is_handed_over(live: Manifest, writes: Writes) -> bool:
    """Tell whether a Deployment that nobody controls was given to the object, and it takes it."""
    adopt = (live["metadata"].get("labels") or {}).get(ADOPT_LABEL)
    return controller_uid(live["metadata"]) is None and adopt == writes.uid and not writes.creates


def _may_be_scaled(live: Manifest, writes: Writes) -> bool:
    """Tell whether a Deployment is an object's, or its owner still opts in to being scaled."""
    if writes.model is not None and writes.model.spec.scale_target:
        return (live["metadata"].get("labels") or {}).get(MANAGED_LABEL) == "true"
    return controller_uid(live["metadata"]) == writes.uid or _is_handed_over(live, writes)


def _results(
    asked: Iterable[Writes], failed: Failures
) -> Iterator[tuple[str, dict[WriteKind, Result]]]:
    """Yield what became of an object's writes, where not all is done."""
    for each in asked:
        found = {
            kind: _result(error)
            for kind in each.kinds
            if (error := failed.get((each.uid, kind)))
            # An Event that is refused for what it says, or for a bug of ours, is not posted again.
            and not (kind is WriteKind.EVENTS and (error.is_refusal or isinstance(error, BugError)))
        }
        if TEMPLATE in found and each.check_children:
            found[CHILDREN] = Result()
        if found:
            yield each.uid, found


def _result(error: WorldError) -> Result:
    fate = Fate.NOT_APPLIED if error.is_undone else Fate.UNKNOWN
    if isinstance(error, BugError | NoPathError):
        cause = Cause.BUG if isinstance(error, BugError) else Cause.NO_PATH
        return Result(fate=fate, cause=cause, detail=str(error))
    cause = Cause.FAILED if error.is_of_object else Cause.LATER
    return Result(fate=fate, cause=Cause.REFUSED if error.is_refusal else cause, detail=error.words)
