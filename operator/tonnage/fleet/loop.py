"""The loop: observe the fleet once, decide each object, write what differs. A table of contents."""

import gc
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from statistics import median

from tonnage.cluster.calls import WorldError
from tonnage.control.input.finding import fault_id
from tonnage.control.input.memory import Memory
from tonnage.control.input.state import Assessment, Fleet, ModelState
from tonnage.control.input.times import rfc3339
from tonnage.control.observe.ownership import may_scale
from tonnage.control.report.status import newest_decision
from tonnage.control.series import FleetSeries, fleet_series
from tonnage.control.tick import TickResult, settled_in, tick, with_results
from tonnage.fleet.act import Writer
from tonnage.fleet.background import unheard
from tonnage.fleet.calibration import CalibrationConfigMap
from tonnage.fleet.lists import Lists
from tonnage.fleet.logs import Line
from tonnage.fleet.observe import Observer, key_of
from tonnage.fleet.past import PastReader
from tonnage.fleet.store import Key, Owner, Store
from tonnage.fleet.write_queue import BURST_S
from tonnage.settings import Settings
from tonnage.sizing.errors import SearchAbandonedError
from tonnage.units import format_s

LOG = logging.getLogger("tonnage.loop")
CHANGED_SHARE = 1 / 2
"""Of the time for searches, for changed specs while others wait: these come first, and leave the
rest to whoever waits, however often somebody edits."""
LEAST_PACES = 3
PACE_TICKS = 6
"""Of which the usual time between two ticks is taken: one that is late says nothing of it."""


@contextmanager
def _without_collector() -> Iterator[None]:
    """Look for no rings: a tick makes values, which hold none and are many."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@dataclass(slots=True, kw_only=True)
class Loop:
    """Everything that a tick needs, and what it remembers."""

    store: Store
    observer: Observer
    writer: Writer
    calibration: CalibrationConfigMap
    settings: Settings
    lists: Lists
    now: Callable[[], float] = time.time
    clock: Callable[[], float] = time.monotonic
    """What the time for searches is measured by."""
    memory: Memory = field(default_factory=Memory)
    past: PastReader | None = None
    """What was before this process; None: it is not asked for."""
    ticked_at_s: deque[float] = field(default_factory=lambda: deque(maxlen=PACE_TICKS))
    """When the last ticks began in which every object was decided."""
    held: frozenset[str] = frozenset()
    """Namespaces whose scaling the circuit breaker held in the last tick."""
    tell: Callable[[FleetSeries], None] = unheard
    """Takes what a tick found, for the operator's own metrics."""
    step: Callable[[str], AbstractContextManager[object]] = nullcontext
    """Measures a step of a tick."""
    gather: Callable[[], object] = unheard
    """Waits a moment for what changes together: the next tick begins a while after this one."""
    _live: Mapping[str, str] = field(default_factory=dict)
    """Namespaces of the objects that the last tick found, by UID."""
    _settled: Mapping[str, Assessment] = field(default_factory=dict)
    """What the last tick found, by UID, of objects of which all was done."""
    _shared: tuple[object, ...] = ()
    """By what it was decided, beside what is about each."""
    _is_complete: bool = True
    """False: the last tick failed."""
    _is_searching: bool = False
    """Searches of the last tick are to go on."""

    def start_leading(self) -> None:
        """Take up what was learned before, as far as it can be read."""
        self.memory = Memory(calibrations=self.calibration.read())
        self.observer.forget()
        self.lists.forget()
        if self.past:
            self.past.begin(self.now())
        self._live, self._settled = {}, {}

    @_without_collector()
    def tick(self) -> tuple[Assessment, ...]:
        """Observe, decide, act; return what was found."""
        self._is_complete = False
        with self.step("relist"):
            self.lists.check(self.now())
        with self.step("ask"):
            self._ask()
        now_s = self.now()
        with self.step("observe"):
            fleet = self._observe(now_s)
            self.store.serve(*served_by(fleet.models))
        with self.step("decide"):
            settled, self._settled = self._settled if self._shared == fleet.shared else {}, {}
            self.ticked_at_s.extend([] if settled else [now_s])
            end_after = within(self.settings.search_budget_s, self.clock)
            outcome = tick(
                fleet,
                self.memory,
                settled=settled,
                on_search=partial(end_after, 1),
                on_changed=partial(end_after, CHANGED_SHARE),
            )
        _log(outcome, fleet)
        self._log_blackouts(outcome)
        with self.step("act"):
            results = replace(self.writer, site=fleet.site).act(outcome.writes, now=rfc3339(now_s))
        self.memory = with_results(outcome, results, before=self.memory, now_s=now_s)
        self._is_searching = outcome.is_searching
        self._settled, self._shared = settled_in(outcome, results, self.memory), fleet.shared
        if self.past:
            self.past.found.clear()
        with self.step("keep"):
            views = (found.state.view for found in outcome.found)
            self._live = {view.uid: view.namespace for view in views}
            _apart(self._keep, "what was learned was not saved")
        with self.step("tell"):
            series = partial(fleet_series, outcome, fleet, most=self.settings.metrics_objects)
            _apart(lambda: self.tell(series()), "the operator's metrics were not updated")
        self._is_complete = True
        return outcome.found

    def end(self) -> None:
        """Keep what was learned since it was last kept."""
        self._keep(is_last=True)

    def pause_s(self) -> float:
        """Return how long to wait for news: less where writes wait for their turn.

        Not at all where searches do, and went on in this tick. Answers that are under way are
        waited for in the next tick; one that failed is no hurry.
        """
        if not self._is_complete:
            return self.settings.tick_s
        if self._is_searching:
            return 0.0
        longest_s = BURST_S if self.num_held else self.settings.tick_s
        return min(longest_s, self.observer.rounds.due_in_s)

    @property
    def num_held(self) -> int:
        return self.writer.queue.num_held

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
        fleet = self.observer.observe(
            self.store.snapshot(),
            self.memory.calibrations,
            now_s,
            has_groups=self.lists.has_groups,
            has_pod_monitors=self.lists.has_pod_monitors,
        )
        awaited = self.past.look(fleet.models, now_s) if self.past else frozenset()
        return replace(
            fleet,
            pace_s=pace_s(self.ticked_at_s),
            state_problem=self.calibration.problem,
            unstored=self.calibration.unstored,
            unlisted=self.lists.unlisted,
            pasts=dict(self.past.found) if self.past else {},
            past_awaited=awaited,
        )

    def _keep(self, *, is_last: bool = False) -> None:
        known = self.memory.calibrations
        known = self.calibration.keep(known, self.now(), live=self._live, is_last=is_last)
        self.memory = replace(self.memory, calibrations=known)

    def _log_blackouts(self, outcome: TickResult) -> None:
        """Write a line for each namespace whose scaling is held, and when it goes on."""
        held = {
            found.state.view.namespace: found.blackout for found in outcome.found if found.blackout
        }
        for namespace in sorted(held.keys() - self.held):
            LOG.error(Line("scaling stopped", namespace=namespace, message=held[namespace]))
        for namespace in sorted(self.held - held.keys()):
            LOG.info(Line("scaling goes on", namespace=namespace))
        self.held = frozenset(held)


def _apart(part: Callable[[], None], otherwise: str) -> None:
    """Do what no decision waits for; a bug in it ends no tick."""
    try:
        part()
    except WorldError:
        raise
    except Exception as error:
        line = Line(otherwise, fault=fault_id(error))
        LOG.exception(line)


def served_by(models: Iterable[ModelState]) -> tuple[Set[Key], Set[Owner]]:
    """Return the workloads that objects name, whether or not they are there; those there by UID.

    Workers are owned by their leader.
    """
    deployments, owners = set[Key](), set[Owner]()
    for state in models:
        deployments.add(key_of(state.view, state.model))
        if state.deployment:
            owners.add((state.view.namespace, state.deployment.uid))
            if state.deployment.num_nodes > 1:
                owners |= {(pod.namespace, pod.uid) for pod in state.pods}
    return deployments, owners


def pace_s(ticked_at_s: Sequence[float]) -> float:
    """Return the usual time between two ticks; 0 where there were too few to tell.

    >>> pace_s([0, 70, 140, 900, 970])
    70.0
    """
    apart_s = [after_s - before_s for before_s, after_s in pairwise(ticked_at_s)]
    return float(median(apart_s)) if len(apart_s) >= LEAST_PACES else 0.0


def within(budget_s: float, clock: Callable[[], float]) -> Callable[[float], None]:
    """Return what ends the searches of a tick when this share of their time is spent.

    It counts from the first of them on, so that one is begun in each tick.
    """
    begun_s = list[float]()

    def end_after(share: float) -> None:
        now_s = clock()
        if not begun_s:
            begun_s.append(now_s)
        if now_s - begun_s[0] >= share * budget_s:
            spent = format_s(share * budget_s)
            raise SearchAbandonedError(f"{spent} of each tick are for searches like this one")

    return end_after


def _log(outcome: TickResult, fleet: Fleet) -> None:
    """Write a line for each decision, once, and each bug."""
    waiting = sum(found.pending is not None for found in outcome.found)
    if waiting:
        LOG.info(Line("waiting for capacity searches", objects=len(outcome.found), pending=waiting))
    for fault in outcome.faults:
        line = Line(fault.consequence, object="/".join(fault.key), fault=fault_id(fault.error))
        LOG.error(line, exc_info=fault.error)
    for found in outcome.found:
        memory = outcome.memory.objects[found.state.view.uid]
        decision = newest_decision(found.memory.reported, memory.reported)
        if decision is None:
            continue
        reasons = found.decision.reasons if found.decision else ()
        LOG.info(
            Line(
                "decision",
                object="/".join(found.state.view.key),
                mode=found.mode,
                replicas=decision.from_replicas,
                wanted=decision.to_replicas,
                reason=decision.code,
                acts=may_scale(found, fleet),
                message="; ".join(f"{code}: {message}" for code, message in reasons),
            )
        )
