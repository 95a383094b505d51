"""The loop: observe the fleet once, decide each object, write what differs. A table of contents."""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from tonnage.cluster.kube import (
    AUTOSCALERS,
    DEPLOYMENTS,
    MODEL_DEPLOYMENTS,
    PODS,
    REPLICA_SETS,
    KubeApi,
    Resource,
)
from tonnage.control.state import Assessment, Fleet, Memory
from tonnage.control.tick import Outcome, tick, with_carried
from tonnage.control.times import rfc3339
from tonnage.control.writes import may_scale
from tonnage.fleet.act import Writer
from tonnage.fleet.calibration import CalibrationConfigMap, StateProblem
from tonnage.fleet.observe import Observer
from tonnage.fleet.store import Kind, Store
from tonnage.manifests.names import MANAGED_LABEL
from tonnage.settings import Settings
from tonnage.sizing.errors import SearchAbandonedError
from tonnage.sizing.plan import Between
from tonnage.units import format_s

LOG = logging.getLogger("tonnage.loop")
RELIST_S = 300
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

    store: Store
    observer: Observer
    writer: Writer
    calibration: CalibrationConfigMap
    settings: Settings
    kube: KubeApi
    now: Callable[[], float] = time.time
    clock: Callable[[], float] = time.monotonic
    """What the time for searches is measured by."""
    memory: Memory = field(default_factory=Memory)
    state_problem: StateProblem | None = None
    """With what was learned, when it was last read or written."""
    relisted_at_s: float = 0.0

    def start_leading(self) -> None:
        """Take up what was learned before, as far as it can be read."""
        kept = self.calibration.read()
        self.memory = Memory(calibrations=kept.calibrations)
        self.state_problem = kept.problem

    def tick(self) -> tuple[Assessment, ...]:
        """Observe, decide, act; return what was found."""
        now_s = self.now()
        self._relist(now_s)
        fleet = self.observer.observe(self.store.snapshot(), self.memory.calibrations, now_s)
        problem = self.state_problem
        told = (problem.reason, problem.message) if problem else None
        fleet = replace(fleet, state_problem=told)
        between = within(self.settings.search_budget_s, self.clock)
        outcome = tick(fleet, self.memory, between=between)
        _log(outcome, fleet)
        carried = self.writer.act(outcome.writes, now=rfc3339(now_s))
        self.memory = with_carried(outcome, carried, before=self.memory, now_s=now_s)
        live = {each.state.view.uid: each.state.view.namespace for each in outcome.found}
        kept = self.calibration.keep(self.memory.calibrations, now_s, live=live)
        self.memory = replace(self.memory, calibrations=kept.calibrations)
        self.state_problem = kept.problem
        return outcome.found

    def _relist(self, now_s: float) -> None:
        """Check the store against lists: a watch is silent about what vanished in a re-list."""
        if now_s - self.relisted_at_s < RELIST_S:
            return
        namespaces = self.settings.namespaces or (None,)
        for kind, resource, selector in RELISTED:
            listed = (
                body
                for namespace in namespaces
                for body in self.kube.list(resource.path(namespace), label_selector=selector)
            )
            if ghosts := self.store.reconcile(kind, listed):
                LOG.warning("kind=%s ghosts=%d removed from the store", kind, ghosts)
        self.relisted_at_s = now_s


def within(budget_s: float, clock: Callable[[], float]) -> Between:
    """Return what ends the searches of a tick when their time, from now on, is spent."""
    end_s = clock() + budget_s

    def between() -> None:
        if clock() >= end_s:
            raise SearchAbandonedError(f"{format_s(budget_s)} of each tick are for searches")

    return between


def _log(outcome: Outcome, fleet: Fleet) -> None:
    """Write a line for each decision that changes the number of replicas, and each bug."""
    waiting = sum(found.pending is not None for found in outcome.found)
    if waiting:
        LOG.info("objects=%d pending=%d wait for capacity searches", len(outcome.found), waiting)
    for fault in outcome.faults:
        LOG.error("object=%s/%s %s", *fault.key, fault.consequence, exc_info=fault.error)
    for found in outcome.found:
        decision, deployment = found.decision, found.state.deployment
        current = deployment.replicas if deployment else 0
        if decision is None or decision.replicas == current or not may_scale(found, fleet):
            continue
        reasons = "; ".join(f"{reason.code}: {reason.message}" for reason in decision.reasons)
        change = f"{current}->{decision.replicas}"
        LOG.info("object=%s/%s decision=%s %s", *found.state.view.key, change, reasons)
