"""The closed loop: a controller, a cluster in place of Kubernetes, traffic, and scrapes between."""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from heapq import heappop, heappush
from typing import Protocol

from tonnage.replay.cluster import EPOCH_S, Pod, ReplayedModel, SimulatedCluster
from tonnage.replay.operator import Operator
from tonnage.replay.prometheus import Fault, Page, Query, SimulatedPrometheus
from tonnage.replay.record import Record
from tonnage.settings import Settings


class Controller(Protocol):
    """What scales the cluster of a simulation."""

    @property
    def interval_s(self) -> float:
        """Time from one act to the next."""

    @property
    def table(self) -> Mapping[str, Query]:
        """What it may ask Prometheus by name."""

    @property
    def reads_scrapes(self) -> bool:
        """It takes scrapes as they are."""

    def act(self, record: Record, prometheus: SimulatedPrometheus, at_s: float) -> None:
        """Deploy or scale the cluster, and note a moment of it."""


class Simulation:
    """Runs a controller and scrapes on a clock of its own; the traffic begins at 0.

    The controller acts first so early that what it creates is Ready by then.
    """

    def __init__(
        self,
        served: ReplayedModel,
        *,
        settings: Settings,
        controller: Controller | None = None,
        faults: Sequence[Fault] = (),
    ) -> None:
        """``controller``: the operator with these settings, unless another is given."""
        self.settings, self._faults = settings, faults
        self._controller = controller or Operator(settings)
        self._prometheus = SimulatedPrometheus(settings, self._controller.table)
        self.record = Record(cluster=self._cluster(served))
        interval_s = self._controller.interval_s
        self.begins_s = -interval_s * math.ceil(served.start.longest_s / interval_s)
        self._events: list[tuple[float, int, Callable[[float], None]]] = []
        self._num_events = 0
        self._at(self.begins_s, self._act)

    def _cluster(self, served: ReplayedModel) -> SimulatedCluster:
        return SimulatedCluster(served=served)

    def run(self, until_s: float) -> Record:
        """Run to a time and serve what has come by then to the end."""
        cluster = self.record.cluster
        while self._events[0][0] <= until_s:
            at_s, _, happens = heappop(self._events)
            cluster.dispatch(at_s)
            happens(at_s)
        cluster.dispatch(until_s)
        cluster.finish()
        return self.record

    def _at(self, at_s: float, happens: Callable[[float], None]) -> None:
        """Let something happen at a time; of those at the same time, the first told comes first."""
        self._num_events += 1
        heappush(self._events, (at_s, self._num_events, happens))

    def _ready(self, pod: Pod, at_s: float) -> None:
        self.record.cluster.open(pod)
        if not (self._controller.table or self._controller.reads_scrapes):
            return  # nobody asks Prometheus, and scraping would be most of the work
        interval_s = self.settings.scrape_interval_s
        passed = math.floor(at_s / interval_s - pod.phase) + 1
        self._at((passed + pod.phase) * interval_s, partial(self._scrape, pod))

    def _scrape(self, pod: Pod, at_s: float) -> None:
        if pod.ended_s < math.inf:
            return
        pod.engine.advance(at_s)
        page: Page | None = pod.counters.page(at_s)
        for fault in self._faults:
            page = fault(page, pod.number, at_s)
        namespace = self.record.served.model.namespace
        self._prometheus.take(namespace, pod.name, EPOCH_S + at_s, page)
        self._at(at_s + self.settings.scrape_interval_s, partial(self._scrape, pod))

    def _act(self, at_s: float) -> None:
        cluster = self.record.cluster
        for pod in cluster.end_drained(at_s):
            self._prometheus.drop(self.record.served.model.namespace, pod.name)
        self._at(at_s + self._controller.interval_s, self._act)
        before = len(cluster.pods)
        self._controller.act(self.record, self._prometheus, at_s)
        for pod in cluster.pods[before:]:
            self._at(pod.ready_s, partial(self._ready, pod))
