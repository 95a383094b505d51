"""The closed loop: the operator's own tick, a cluster in place of Kubernetes, scrapes between."""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from heapq import heappop, heappush
from typing import Final

from tonnage.catalog.gpu import built_in_gpus
from tonnage.control.state import Fleet, Memory, ModelState
from tonnage.control.tick import tick
from tonnage.estimate.metrics import (
    LATENCY_BOUNDS_S,
    TABLE,
    TPOT_BOUNDS_S,
    TTFT_BOUNDS_S,
    bucket_matcher,
)
from tonnage.estimate.samples import Scrape, join
from tonnage.replay.cluster import Cluster, Pod
from tonnage.replay.counters import Ladders
from tonnage.replay.faults import Fault
from tonnage.replay.prometheus import Page, Prometheus
from tonnage.replay.record import Record, Served, moment
from tonnage.replay.views import deployment_view, model_view, pod_views
from tonnage.settings import Settings
from tonnage.sizing.expected import slo_of
from tonnage.sizing.plan import Between, nothing
from tonnage.sizing.request import ask, look_up

EPOCH_S: Final = 1_767_225_600.0
"""Unix time at which the traffic of a simulation begins: 2026-01-01T00:00:00Z."""


class Simulation:
    """Runs ticks and scrapes on a clock of its own; the traffic begins at 0.

    The first tick comes so early that what it creates is Ready by then.
    """

    def __init__(
        self,
        served: Sequence[Served],
        *,
        settings: Settings,
        faults: Sequence[Fault] = (),
        memory: Memory | None = None,
        between: Between = nothing,
    ) -> None:
        """``memory``: what an operator knew before; ``between``: as ``tick`` takes it."""
        self.settings = settings
        self.memory = memory or Memory()
        self._between, self._faults = between, faults
        self._gpus = built_in_gpus()
        self._prometheus = Prometheus(settings, TABLE)
        self.records = [self._record(each) for each in served]
        self.records.sort(key=lambda record: record.served.model.key)
        self._le_matchers = self._matchers()
        longest_s = max(each.start.longest_s for each in served)
        self.begins_s = -settings.tick_s * math.ceil(longest_s / settings.tick_s)
        self._events: list[tuple[float, int, Callable[[float], None]]] = []
        self._num_events = 0
        self._at(self.begins_s, self._tick)
        for record in self.records:
            for at_s, truth in record.served.changes:
                self._at(at_s, partial(record.cluster.change, truth))

    def _record(self, served: Served) -> Record:
        spec = served.model.spec
        slo = slo_of(spec)
        request = ask(spec, look_up(spec, self._gpus))
        cluster = Cluster(
            model=served.model,
            request=request,
            traffic=served.traffic,
            truth=served.truth,
            ladders=Ladders(
                ttft_s=LATENCY_BOUNDS_S if slo.ttft else (),
                tpot_s=LATENCY_BOUNDS_S if slo.tpot else (),
            ),
            start=served.start,
            speed_spread=served.speed_spread,
            seed=served.seed,
        )
        return Record(served=served, cluster=cluster)

    def _matchers(self) -> Mapping[str, str]:
        slos = [slo_of(record.served.model.spec) for record in self.records]
        return {
            "ttft": bucket_matcher(
                {target.limit_s for slo in slos for target in slo.ttft}, TTFT_BOUNDS_S
            ),
            "tpot": bucket_matcher(
                {target.limit_s for slo in slos for target in slo.tpot}, TPOT_BOUNDS_S
            ),
        }

    def run(self, until_s: float) -> list[Record]:
        """Run to a time and serve what has come by then to the end."""
        while self._events[0][0] <= until_s:
            at_s, _, happens = heappop(self._events)
            for each in self.records:
                each.cluster.dispatch(at_s)
            happens(at_s)
        for each in self.records:
            each.cluster.dispatch(until_s)
            each.cluster.finish()
        return self.records

    def _at(self, at_s: float, happens: Callable[[float], None]) -> None:
        """Let something happen at a time; of those at the same time, the first told comes first."""
        self._num_events += 1
        heappush(self._events, (at_s, self._num_events, happens))

    def _ready(self, record: Record, pod: Pod, at_s: float) -> None:
        interval_s = self.settings.scrape_interval_s
        record.cluster.open(pod)
        passed = math.floor(at_s / interval_s - pod.phase) + 1
        self._at((passed + pod.phase) * interval_s, partial(self._scrape, record, pod))

    def _scrape(self, record: Record, pod: Pod, at_s: float) -> None:
        if pod.ended_s < math.inf:
            return
        pod.engine.advance(at_s)
        page: Page | None = pod.counters.page(at_s)
        for fault in self._faults:
            page = fault(page, pod.number, at_s)
        self._prometheus.take(record.served.model.namespace, pod.name, EPOCH_S + at_s, page)
        self._at(at_s + self.settings.scrape_interval_s, partial(self._scrape, record, pod))

    def _tick(self, at_s: float) -> None:
        for record in self.records:
            for pod in record.cluster.end_drained(at_s):
                self._prometheus.drop(record.served.model.namespace, pod.name)
        self._at(at_s + self.settings.tick_s, self._tick)
        fleet = self._fleet(at_s)
        outcome = tick(fleet, self.memory, between=self._between)
        self.memory = outcome.memory
        by_uid = {writes.uid: writes for writes in outcome.writes}
        for record, found in zip(self.records, outcome.found, strict=True):
            cluster = record.cluster
            before = len(cluster.pods)
            if writes := by_uid.get(record.served.model.uid):
                cluster.apply(writes, at_s)
            for pod in cluster.pods[before:]:
                self._at(pod.ready_s, partial(self._ready, record, pod))
            record.moments.append(moment(record, found, outcome.memory.calibrations, at_s))
            record.faults += [each for each in outcome.faults if each.key == found.state.view.key]

    def _fleet(self, at_s: float) -> Fleet:
        answers = self._prometheus.ask(EPOCH_S + at_s, le_matchers=self._le_matchers)
        scrape = join(answers, self.settings)
        return Fleet(
            now_s=EPOCH_S + at_s,
            models=tuple(self._state(record, scrape, at_s) for record in self.records),
            metrics_problem=None,
            calibrations=self.memory.calibrations,
            gpus=self._gpus,
            settings=self.settings,
            has_pod_monitors=True,
        )

    def _state(self, record: Record, scrape: Scrape, at_s: float) -> ModelState:
        cluster = record.cluster
        pods = pod_views(cluster, at_s, epoch_s=EPOCH_S)
        keys = [(pod.namespace, pod.name) for pod in pods]
        return ModelState(
            view=model_view(cluster),
            model=cluster.model,
            deployment=deployment_view(cluster, at_s),
            pods=pods,
            engines=tuple(each for key in keys for each in scrape.engines.get(key, ())),
        )
