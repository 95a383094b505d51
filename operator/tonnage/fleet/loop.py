"""The loop: observe the fleet once, decide each object, write what differs. A table of contents."""

import logging
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from itertools import pairwise
from statistics import median

from tonnage.cluster.errors import KubernetesError
from tonnage.cluster.kube import (
    AUTOSCALERS,
    DEPLOYMENTS,
    MODEL_DEPLOYMENTS,
    PODS,
    REPLICA_SETS,
    KubeApi,
    Object,
    Resource,
)
from tonnage.control.series import FleetSeries, fleet_series
from tonnage.control.state import Assessment, Fleet, Memory, ModelState
from tonnage.control.status import newest_decision
from tonnage.control.tick import Outcome, tick, with_carried
from tonnage.control.times import rfc3339
from tonnage.control.writes import may_scale
from tonnage.fleet.act import Writer
from tonnage.fleet.aside import Aside
from tonnage.fleet.calibration import CalibrationConfigMap, StateProblem
from tonnage.fleet.limiter import BURST_S
from tonnage.fleet.logs import Line
from tonnage.fleet.observe import Observer, key_of
from tonnage.fleet.store import Key, Kind, Owner, Served, Store
from tonnage.manifests.names import MANAGED_LABEL
from tonnage.settings import Settings
from tonnage.sizing.errors import SearchAbandonedError
from tonnage.sizing.plan import Between
from tonnage.units import format_s

LOG = logging.getLogger("tonnage.loop")
RELIST_S = 300
LONGEST_UNLISTED_S = 2 * RELIST_S
"""After which nothing is decided before the lists are read."""
LEAST_PACES = 3
PACE_TICKS = 6
"""Of which the usual time between two ticks is taken: one that is late says nothing of it."""
NAMESPACE_GONE = frozenset({HTTPStatus.FORBIDDEN, HTTPStatus.NOT_FOUND})
"""What is said of a namespace that was deleted, and our rights in it with it."""
RELISTED: Sequence[tuple[Kind, Resource, str]] = (
    (Kind.MODEL, MODEL_DEPLOYMENTS, ""),
    (Kind.DEPLOYMENT, DEPLOYMENTS, f"{MANAGED_LABEL}=true"),
    (Kind.REPLICA_SET, REPLICA_SETS, f"{MANAGED_LABEL}=true"),
    (Kind.POD, PODS, f"{MANAGED_LABEL}=true"),
    (Kind.AUTOSCALER, AUTOSCALERS, ""),
)


def _untold(_: FleetSeries) -> None:
    """Nobody listens."""


def _unheeded(_: Collection[str]) -> None:
    """All namespaces are watched."""


def _at_once() -> None:
    """Nothing more is waited for."""


def _unmeasured(_: str) -> AbstractContextManager[object]:
    return nullcontext()


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
    ticked_at_s: deque[float] = field(default_factory=lambda: deque(maxlen=PACE_TICKS))
    """When the last ticks began."""
    unlisted: Mapping[str, str] = field(default_factory=dict)
    """Namespaces that could not be read the last time, and what the API server said."""
    held: frozenset[str] = frozenset()
    """Namespaces whose scaling the circuit breaker held in the last tick."""
    readable: Callable[[Collection[str]], None] = _unheeded
    """Takes the namespaces that could be read, of those that are named in the settings."""
    tell: Callable[[FleetSeries], None] = _untold
    """Takes what a tick found, for the operator's own metrics."""
    step: Callable[[str], AbstractContextManager[object]] = _unmeasured
    """Measures a step of a tick."""
    gather: Callable[[], object] = _at_once
    """Waits a moment for what changes together: the next tick begins a while after this one."""
    lists: Aside[dict[str, str]] = field(default_factory=Aside)
    """The store's check against lists."""
    _live: Mapping[str, str] = field(default_factory=dict)
    """Namespaces of the objects that the last tick found, by UID."""
    _is_complete: bool = True
    """False: the last tick failed."""

    def start_leading(self) -> None:
        """Take up what was learned before, as far as it can be read."""
        kept = self.calibration.read()
        self.observer.rounds.forget()
        self.lists.wait()
        self.lists.drop()
        self.relisted_at_s = 0.0
        self.memory = Memory(calibrations=kept.calibrations)
        self._live = {}
        self.state_problem = kept.problem

    def tick(self) -> tuple[Assessment, ...]:
        """Observe, decide, act; return what was found."""
        self._is_complete = False
        with self.step("relist"):
            self._relist(self.now())
        with self.step("ask"):
            self._ask()
        now_s = self.now()
        self.ticked_at_s.append(now_s)
        with self.step("observe"):
            fleet = self._observe(now_s)
            self.store.serve(served_by(fleet.models))
        with self.step("decide"):
            between = within(self.settings.search_budget_s, self.clock)
            outcome = tick(fleet, self.memory, between=between)
        _log(outcome, fleet)
        self._log_blackouts(outcome)
        with self.step("act"):
            carried = self.writer.act(outcome.writes, now=rfc3339(now_s))
        self.memory = with_carried(outcome, carried, before=self.memory, now_s=now_s)
        with self.step("keep"):
            views = (found.state.view for found in outcome.found)
            self._live = {view.uid: view.namespace for view in views}
            self._keep()
        with self.step("tell"):
            self._tell(outcome, fleet)
        self._is_complete = True
        return outcome.found

    def end(self) -> None:
        """Keep what was learned since it was last kept."""
        self._keep(is_last=True)

    def pause_s(self) -> float:
        """Return how long to wait for news: less where writes wait for their turn.

        Answers that are under way are waited for in the next tick; one that failed is no hurry.
        """
        if not self._is_complete:
            return self.settings.tick_s
        longest_s = BURST_S if self.num_held else self.settings.tick_s
        return min(longest_s, self.observer.rounds.due_in_s)

    @property
    def num_held(self) -> int:
        """Return how many objects wait until it is their turn to be written."""
        return self.writer.limiter.num_held

    def _ask(self) -> None:
        """Ask Prometheus where it is time, and wait for what it says, unless something changed."""
        rounds, news = self.observer.rounds, self.store.changed
        if rounds.is_due:
            self.observer.begin_round(self.store.snapshot(), self.now(), news)
        rounds.wait(news)
        if news.is_set():
            self.gather()
        news.clear()  # what is observed now has all of it

    def _observe(self, now_s: float) -> Fleet:
        fleet = self.observer.observe(self.store.snapshot(), self.memory.calibrations, now_s)
        problem = self.state_problem
        return replace(
            fleet,
            pace_s=pace_s(self.ticked_at_s),
            state_problem=(problem.reason, problem.message) if problem else None,
            unlisted=self.unlisted,
        )

    def _keep(self, *, is_last: bool = False) -> None:
        kept = self.calibration.keep(
            self.memory.calibrations, self.now(), live=self._live, is_last=is_last
        )
        self.memory = replace(self.memory, calibrations=kept.calibrations)
        self.state_problem = kept.problem

    def _tell(self, outcome: Outcome, fleet: Fleet) -> None:
        """Hand out the series of the tick; a bug in them ends no tick."""
        try:
            self.tell(fleet_series(outcome, fleet, most=self.settings.metrics_objects))
        except Exception:
            LOG.exception(Line("the operator's own metrics were not told"))

    def _log_blackouts(self, outcome: Outcome) -> None:
        """Write a line for each namespace whose scaling is held, and when it goes on."""
        held = {
            found.state.view.namespace: found.blackout for found in outcome.found if found.blackout
        }
        for namespace in sorted(held.keys() - self.held):
            LOG.error(Line("scaling is held", namespace=namespace, message=held[namespace]))
        for namespace in sorted(self.held - held.keys()):
            LOG.info(Line("scaling goes on", namespace=namespace))
        self.held = frozenset(held)

    def _relist(self, now_s: float) -> None:
        """Check the store against lists: a watch is silent about what vanished in a re-list.

        Beside the loop, unless the last lists are long ago: then they are waited for.
        """
        since_s = now_s - self.relisted_at_s
        if self.lists.is_free and since_s >= RELIST_S:
            self.lists.begin(self._reconciled)
        if since_s >= LONGEST_UNLISTED_S:
            self.lists.wait()
        refused = self._listed_anew()
        if refused is None:
            return
        for namespace in refused.keys() - self.unlisted.keys():
            LOG.error(Line("left out", namespace=namespace, message=refused[namespace]))
        for namespace in self.unlisted.keys() - refused.keys():
            LOG.info(Line("served again", namespace=namespace))
        self.unlisted = refused
        self.readable(set(self.settings.namespaces) - refused.keys())
        self.relisted_at_s = now_s

    def _listed_anew(self) -> dict[str, str] | None:
        """Return what the lists came to, if they are done; where they failed, they are due again.

        Raises:
            KubernetesError: the API server fails, or lets us read no namespace at all.
        """
        try:
            return self.lists.take()
        except Exception:
            self.relisted_at_s = 0.0
            self.store.changed.clear()  # all of it is looked at when the lists are read again
            raise

    def _reconciled(self) -> dict[str, str]:
        """Read all lists into the store; return the namespaces that may not be read, and why."""
        refused: dict[str, str] = {}
        for kind, resource, selector in RELISTED:
            listed = self._listed(resource, selector, refused)
            if ghosts := self.store.reconcile(kind, listed, unlisted=refused):
                LOG.warning("kind=%s ghosts=%d removed from the store", kind, ghosts)
                self.store.changed.set()
        return refused

    def _listed(
        self, resource: Resource, selector: str, refused: dict[str, str]
    ) -> Iterator[Object]:
        """Yield a kind's objects; a namespace that may not be read is added to ``refused``.

        Raises:
            KubernetesError: the API server fails, or lets us read no namespace at all.
        """
        for namespace in self.settings.namespaces or (None,):
            try:
                yield from self.kube.list(resource.path(namespace), label_selector=selector)
            except KubernetesError as error:
                if namespace is None or error.status not in NAMESPACE_GONE:
                    raise
                refused[namespace] = str(error)
                if len(refused) == len(self.settings.namespaces):
                    raise


def served_by(models: Iterable[ModelState]) -> Served:
    """Return the Deployments that objects name, whether or not they are there."""
    deployments, owners = set[Key](), set[Owner]()
    for state in models:
        deployments.add(key_of(state.view, state.model))
        if state.deployment:
            owners.add((state.view.namespace, state.deployment.uid))
    return Served(deployments=deployments, owners=owners)


def pace_s(ticked_at_s: Sequence[float]) -> float:
    """Return the usual time between two ticks; 0 where there were too few to tell.

    >>> pace_s([0, 70, 140, 900, 970])
    70.0
    """
    apart_s = [after_s - before_s for before_s, after_s in pairwise(ticked_at_s)]
    return float(median(apart_s)) if len(apart_s) >= LEAST_PACES else 0.0


def within(budget_s: float, clock: Callable[[], float]) -> Between:
    """Return what ends the searches of a tick when their time, from now on, is spent."""
    end_s = clock() + budget_s

    def between() -> None:
        if clock() >= end_s:
            raise SearchAbandonedError(f"{format_s(budget_s)} of each tick are for searches")

    return between


def _log(outcome: Outcome, fleet: Fleet) -> None:
    """Write a line for each decision, once, and each bug."""
    waiting = sum(found.pending is not None for found in outcome.found)
    if waiting:
        LOG.info(Line("waiting for capacity searches", objects=len(outcome.found), pending=waiting))
    for fault in outcome.faults:
        LOG.error(Line(fault.consequence, object="/".join(fault.key)), exc_info=fault.error)
    for found in outcome.found:
        memory = outcome.memory.objects[found.state.view.uid]
        decision = newest_decision(found.memory, memory)
        if decision is None:
            continue
        LOG.info(
            Line(
                "decision",
                object="/".join(found.state.view.key),
                mode=found.mode,
                replicas=decision.from_replicas,
                wanted=decision.to_replicas,
                reason=decision.code,
                acts=may_scale(found, fleet),
                message=_reasons(found),
            )
        )


def _reasons(found: Assessment) -> str:
    reasons = found.decision.reasons if found.decision else ()
    return "; ".join(f"{reason.code}: {reason.message}" for reason in reasons)
