"""The loop: observe the fleet once, decide each object, write what differs. A table of contents."""

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tonnage.cluster.calibration_store import CalibrationStore
from tonnage.cluster.errors import WorldError
from tonnage.cluster.kube import (
    AUTOSCALERS,
    DEPLOYMENTS,
    MODEL_DEPLOYMENTS,
    PODS,
    REPLICA_SETS,
    KubeApi,
    Resource,
)
from tonnage.estimate.calibration import Calibrations, is_material
from tonnage.fleet.act import Writer, Writes
from tonnage.fleet.assess import Assessment, Refusal, assess, constants_of, edited
from tonnage.fleet.learning import learn_from
from tonnage.fleet.measure import Traffics
from tonnage.fleet.observe import Observer
from tonnage.fleet.picture import Kind, Picture
from tonnage.fleet.state import Fleet, Memory, ModelState, ObjectMemory
from tonnage.fleet.status import recalled, report, rfc3339
from tonnage.fleet.writes import may_act, unwritten, writes_for
from tonnage.manifests.names import MANAGED_LABEL
from tonnage.policy.situation import Metrics
from tonnage.settings import Settings

LOG = logging.getLogger("tonnage.loop")
RELIST_S = 300
CALIBRATION_INTERVAL_S = 60
RELISTED: Sequence[tuple[Kind, Resource, str]] = (
    (Kind.MODEL, MODEL_DEPLOYMENTS, ""),
    (Kind.DEPLOYMENT, DEPLOYMENTS, f"{MANAGED_LABEL}=true"),
    (Kind.REPLICA_SET, REPLICA_SETS, f"{MANAGED_LABEL}=true"),
    (Kind.POD, PODS, f"{MANAGED_LABEL}=true"),
    (Kind.AUTOSCALER, AUTOSCALERS, ""),
)


@dataclass(slots=True, kw_only=True)
class Loop:
    """Everything that a tick needs, and what it remembers."""

    picture: Picture
    observer: Observer
    writer: Writer
    store: CalibrationStore
    settings: Settings
    kube: KubeApi
    now: Callable[[], float] = time.time
    memory: Memory = field(default_factory=Memory)
    relisted_at_s: float = 0.0
    ticks: int = 0

    def start_leading(self) -> None:
        """Take up what was learned before. Unreadable state is left aside, and said so."""
        try:
            known = self.store.read()
        except ValueError as error:
            LOG.warning("calibration starts from the priors: %s", error)
            known = Calibrations()
        self.memory = Memory(calibrations=known, written=known)

    def tick(self) -> tuple[Assessment, ...]:
        """Observe, decide, act; return what was found."""
        now_s = self.now()
        self._relist(now_s)
        fleet = self.observer.observe(self.picture.snapshot(), self.memory.calibrations, now_s)
        found = assess_fleet(fleet, self.memory)
        self._learn(found, fleet)
        writes = self._writes(found, fleet)
        failed = self.writer.act(writes, now=rfc3339(now_s))
        self._write_again(failed)
        self._write_calibration(now_s)
        self.ticks += 1
        return found

    def _learn(self, found: Iterable[Assessment], fleet: Fleet) -> None:
        observations = []
        for each in found:
            try:
                observations.append(constants_of(each, fleet))
            except Exception:
                LOG.exception("object=%s/%s nothing learned", *each.state.view.key)
        known, learned_at_s = learn_from(
            [each for each in observations if each],
            self.memory.calibrations,
            self.memory.learned_at_s,
            fleet,
        )
        self.memory = replace(self.memory, calibrations=known, learned_at_s=learned_at_s)

    def _writes(self, found: Iterable[Assessment], fleet: Fleet) -> list[Writes]:
        all_writes, objects = [], {}
        for each in found:
            try:
                writes, memory = self._writes_for(each, fleet)
            except Exception:
                LOG.exception("object=%s/%s nothing written", *each.state.view.key)
                memory = each.memory
            else:
                all_writes.append(writes)
            objects[each.state.view.uid] = memory
        self.memory = replace(self.memory, objects=objects)
        return all_writes

    def _writes_for(self, found: Assessment, fleet: Fleet) -> tuple[Writes, ObjectMemory]:
        known, interval_s = self.memory.calibrations, self.settings.status_interval_s
        reported = report(found, known, now_s=fleet.now_s, status_interval_s=interval_s)
        _log_decision(found, fleet)
        return writes_for(found, reported, fleet)

    def _write_again(self, failed: Mapping[str, WorldError]) -> None:
        """Forget that what failed was written, and remember why; what succeeded has no problem."""
        self.memory = replace(
            self.memory,
            objects={
                uid: unwritten(known, failed[uid])
                if uid in failed
                else replace(known, write_problem=None)
                for uid, known in self.memory.objects.items()
            },
        )

    def _relist(self, now_s: float) -> None:
        """Check the picture against lists: a watch is silent about what vanished in a re-list."""
        if now_s - self.relisted_at_s < RELIST_S:
            return
        namespaces = self.settings.namespaces or (None,)
        for kind, resource, selector in RELISTED:
            listed = (
                body
                for namespace in namespaces
                for body in self.kube.list(resource.path(namespace), label_selector=selector)
            )
            if ghosts := self.picture.reconcile(kind, listed):
                LOG.warning("kind=%s ghosts=%d removed from the picture", kind, ghosts)
        self.relisted_at_s = now_s

    def _write_calibration(self, now_s: float) -> None:
        """Write what was learned when a constant moved by more than 2 %, once a minute at most."""
        memory = self.memory
        moved = {
            key: entry
            for key, entry in memory.calibrations.speed.items()
            if is_material(_efficiency(memory.written, key), entry.bandwidth_efficiency)
        }
        is_new = memory.calibrations.memory != memory.written.memory
        is_due = now_s - memory.written_at_s >= CALIBRATION_INTERVAL_S
        if not (moved or is_new) or not is_due or not self.writer.may_write():
            return
        stamped = {key: replace(entry, changed_at_s=now_s) for key, entry in moved.items()}
        known = replace(memory.calibrations, speed={**memory.calibrations.speed, **stamped})
        try:
            self.store.write(known)
        except WorldError as error:
            LOG.warning("calibration not written: %s", error)
            return
        self.memory = replace(memory, calibrations=known, written=known, written_at_s=now_s)


def _efficiency(known: Calibrations, key: str) -> float | None:
    entry = known.speed.get(key)
    return entry.bandwidth_efficiency if entry else None


def assess_fleet(fleet: Fleet, memory: Memory) -> tuple[Assessment, ...]:
    """Assess every object, in order; what one grows by, the next cannot have."""
    found = []
    free_gpus = _free_gpus(fleet)
    for state in fleet.models:
        known = memory.objects.get(state.view.uid) or _first_sight(state, fleet)
        assessment = _isolated(state, fleet, known, free_gpus)
        if free_gpus is not None:
            free_gpus -= _growth_gpus(assessment, fleet)
        found.append(assessment)
    return tuple(found)


def _first_sight(state: ModelState, fleet: Fleet) -> ObjectMemory:
    """Remember an object anew: what somebody edited before we looked counts as dealt with.

    A new version of the operator would otherwise undo old edits with its own template.
    """
    return replace(recalled(state.view, now_s=fleet.now_s), healed=edited(state))


def _isolated(
    state: ModelState, fleet: Fleet, known: ObjectMemory, free_gpus: int | None
) -> Assessment:
    """Assess one object; a bug in that must not stop the others."""
    try:
        return assess(state, fleet, known, free_gpus=free_gpus)
    except Exception:
        LOG.exception("object=%s/%s internal error", *state.view.key)
        message = "see the operator's log"
        return Assessment(
            state=state,
            memory=known,
            traffics=Traffics(
                metrics=Metrics.MISSING,
                reason="InternalError",
                message=message,
                demand=None,
                lengths=known.lengths,
            ),
            refusal=Refusal(reason="InternalError", message=message),
        )


def _free_gpus(fleet: Fleet) -> int | None:
    """Return what the budget leaves; a model without a Deployment uses none."""
    if fleet.settings.max_gpus is None:
        return None
    return fleet.settings.max_gpus - sum(_gpus_in_use(state) for state in fleet.models)


def _gpus_in_use(state: ModelState) -> int:
    deployment = state.deployment
    return deployment.replicas * deployment.gpus_per_replica if deployment else 0


def _growth_gpus(found: Assessment, fleet: Fleet) -> int:
    if found.decision is None or found.sizing is None or not may_act(found, fleet):
        return 0
    current = found.state.deployment.replicas if found.state.deployment else 0
    grown = max(0, found.decision.replicas - current)
    return grown * found.sizing.flags.parallelism.num_gpus


def _log_decision(found: Assessment, fleet: Fleet) -> None:
    """Write one line for each decision that changes the number of replicas."""
    decision, deployment = found.decision, found.state.deployment
    current = deployment.replicas if deployment else 0
    if decision is None or decision.replicas == current or not may_act(found, fleet):
        return
    view = found.state.view
    reasons = "; ".join(f"{reason.code}: {reason.message}" for reason in decision.reasons)
    LOG.info(
        "object=%s/%s decision=%d->%d %s",
        view.namespace, view.name, current, decision.replicas, reasons,
    )  # fmt: skip
