"""The closed loop: a controller, a cluster in place of Kubernetes, traffic, and scrapes between.

And what every policy of a comparison gets alike: traffic, engines, cold starts, first replicas.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from heapq import heappop, heappush
from typing import Final, Protocol

from tonnage.api.objects import ModelDeployment
from tonnage.catalog.gpu import Gpu, built_in_gpus
from tonnage.control.input.memory import Memory
from tonnage.control.input.state import DeploymentView, Fleet, ModelState, ModelView, PodView
from tonnage.control.tick import tick
from tonnage.estimate.fleet_scrapes import Answered, FleetScrapes, PodKey
from tonnage.estimate.metrics import (
    BUCKETS,
    CACHE,
    COLUMNS,
    FRESH_SCRAPES,
    judged_bounds,
    metrics_of,
)
from tonnage.estimate.samples import EngineSamples, fleet_samples
from tonnage.manifests.children import site_of
from tonnage.replay.cluster import (
    EPOCH_S,
    FirstPlan,
    Pod,
    Record,
    ReplayedModel,
    SimulatedCluster,
    moment_of_tick,
)
from tonnage.replay.prometheus import Fault, Page, Query, SeriesKey, SimulatedPrometheus, Target
from tonnage.replay.traces import Trace
from tonnage.replay.traffic import Shape
from tonnage.settings import Settings
from tonnage.sizing.expected import expected_workload


class Operator:
    """Ticks as the operator's loop does."""

    table = None

    def __init__(
        self,
        settings: Settings,
        *,
        gpus: Mapping[str, Gpu] | None = None,
        is_brought_up: bool = False,
    ) -> None:
        """``gpus``: other than those of the catalogue, or with other prices.

        ``is_brought_up``: a fleet is created whole, as if the steps up to it were over.
        """
        self.settings, self.memory = settings, Memory()
        self.interval_s = settings.tick_s
        self._is_brought_up = is_brought_up
        self._gpus = built_in_gpus() if gpus is None else gpus
        self._scrapes = FleetScrapes(settings)

    def act(self, record: Record, prometheus: SimulatedPrometheus, at_s: float) -> None:
        outcome = tick(self._fleet(record, prometheus, at_s), self.memory)
        self.memory = outcome.memory
        for writes in outcome.writes:
            record.cluster.apply(writes, at_s)
        (found,) = outcome.found
        record.moments.append(moment_of_tick(record, found, self.memory.calibrations, at_s))
        record.faults += [each.error for each in outcome.faults]

    def _fleet(self, record: Record, prometheus: SimulatedPrometheus, at_s: float) -> Fleet:
        engines = self._engines(record, prometheus, EPOCH_S + at_s)
        settings = self._settings_of(record)
        return Fleet(
            now_s=EPOCH_S + at_s,
            models=(_state(record, engines, at_s),),
            metrics_problem=None,
            calibrations=self.memory.calibrations,
            gpus=self._gpus,
            settings=settings,
            site=site_of(settings, has_pod_monitors=True),
        )

    def _engines(
        self, record: Record, prometheus: SimulatedPrometheus, now_s: float
    ) -> Mapping[PodKey, tuple[EngineSamples, ...]]:
        """Take in what was scraped of late, and return the figures of all engines."""
        scrapes, answered = self._scrapes, Answered()
        settings = self.settings
        since_s = now_s - FRESH_SCRAPES * settings.scrape_interval_s - settings.tick_s
        bounds = _bounds(record)
        scrapes.expect(frozenset(prometheus.targets))
        for pod, target in prometheus.targets.items():
            for key in _wanted(target, bounds):
                labels = {"__name__": key[0], **dict(key[1]), **target.labels}
                scrapes.take(answered, hash((pod, key)), labels.copy, target.points(key, since_s))
        scrapes.add(answered)
        return fleet_samples(scrapes, now_s)

    def _settings_of(self, record: Record) -> Settings:
        """Return the settings; in the act that creates the fleet one step may be all of it."""
        if not self._is_brought_up or record.cluster.template:
            return self.settings
        most = record.cluster.model.spec.scaling.max_replicas
        return self.settings.model_copy(update={"max_scale_up_replicas": most})


def _bounds(record: Record) -> frozenset[str]:
    """Return which bounds to ask for: around the limits of the promise."""
    slo = record.cluster.request.slo
    ttft, tpot = ({target.limit_s for target in targets} for targets in (slo.ttft, slo.tpot))
    return frozenset({"+Inf", *(str(float(bound)) for bound in judged_bounds(ttft, tpot))})


def _wanted(target: Target, bounds: frozenset[str]) -> Iterator[SeriesKey]:
    """Yield the series of a target that the operator asks for."""
    for metric in (*metrics_of(COLUMNS), CACHE):
        yield from target.keys.get(metric, ())
    for metric in BUCKETS:
        yield from (k for k in target.keys.get(metric, ()) if dict(k[1])["le"] in bounds)


def _state(
    record: Record, found: Mapping[PodKey, tuple[EngineSamples, ...]], at_s: float
) -> ModelState:
    cluster = record.cluster
    pods = pod_views(cluster, at_s)
    keys = [(pod.namespace, pod.name) for pod in pods]
    return ModelState(
        view=model_view(cluster),
        model=cluster.model,
        deployment=deployment_view(cluster, at_s),
        pods=pods,
        engines=tuple(each for key in keys for each in found.get(key, ())),
    )


def model_view(cluster: SimulatedCluster) -> ModelView:
    model = cluster.model
    return ModelView(
        namespace=model.namespace,
        name=model.name,
        uid=model.uid,
        generation=model.generation,
        created="",
        manifest="{}",
        status="{}",
    )


def deployment_view(cluster: SimulatedCluster, at_s: float) -> DeploymentView | None:
    """Return the Deployment; None before the first template."""
    template = cluster.template
    if template is None:
        return None
    model, kept = cluster.model, cluster.remaining_pods
    return DeploymentView(
        namespace=model.namespace,
        name=model.name,
        uid=f"deployment-of-{model.uid}",
        owner_uid=model.uid,
        is_opted_in=True,
        replicas=cluster.replicas,
        generation=cluster.generation,
        observed_generation=cluster.generation,
        ready=cluster.num_ready(at_s),
        updated=sum(pod.flags == template.flags for pod in kept),
        total=len(kept),
        digest=template.digest,
        flags=template.flags_text,
        made_from=template.made_from,
        gpus_per_replica=template.machine.num_gpus,
        template_managers=frozenset(),
        template_digest=template.flags_text,
        pod_spec_digest=template.flags_text,
        problems=(),
    )


def pod_views(cluster: SimulatedCluster, at_s: float) -> tuple[PodView, ...]:
    return tuple(
        PodView(
            namespace=cluster.model.namespace,
            name=pod.name,
            uid=pod.name,
            replica_set_uid=f"replica-set-of-{cluster.model.uid}",
            is_ready=pod.ready_s <= at_s,
            is_deleting=pod.deleted_s <= at_s,
            created_at_s=EPOCH_S + pod.created_s,
            scheduled_at_s=EPOCH_S + pod.created_s,
            was_ready=False,
            has_restarted=False,
            ready_at_s=EPOCH_S + pod.ready_s if pod.ready_s <= at_s else None,
            unschedulable=None,
            trouble=None,
        )
        for pod in cluster.live
    )


class Controller(Protocol):
    """What scales the cluster of a simulation."""

    @property
    def interval_s(self) -> float:
        """Time from one act to the next."""

    @property
    def table(self) -> Mapping[str, Query] | None:
        """What it may ask Prometheus by name; None: it takes scrapes as they are."""

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
        self._prometheus = SimulatedPrometheus(settings, self._controller.table or {})
        self.record = Record(cluster=SimulatedCluster(served=served))
        interval_s = self._controller.interval_s
        self.begins_s = -interval_s * math.ceil(served.start.longest_s / interval_s)
        self._events: list[tuple[float, int, Callable[[float], None]]] = []
        self._num_events = 0
        self._at(self.begins_s, self._act)

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
        if self._controller.table == {}:
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
        namespace = self.record.cluster.model.namespace
        self._prometheus.take(namespace, pod.name, EPOCH_S + at_s, page)
        self._at(at_s + self.settings.scrape_interval_s, partial(self._scrape, pod))

    def _act(self, at_s: float) -> None:
        cluster = self.record.cluster
        for pod in cluster.end_drained(at_s):
            self._prometheus.drop(self.record.cluster.model.namespace, pod.name)
        self._at(at_s + self._controller.interval_s, self._act)
        before = len(cluster.pods)
        self._controller.act(self.record, self._prometheus, at_s)
        for pod in cluster.pods[before:]:
            self._at(pod.ready_s, partial(self._ready, pod))


SETTINGS: Final = Settings(prometheus_url="http://prometheus.replay:9090")


class ReplayError(Exception):
    """The question is understood, and there is nothing to simulate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceWorkload:
    """Requests that came: the part of a trace that is replayed, and how many times of it."""

    trace: Trace
    """From 0 on."""
    duration_s: float
    times: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SyntheticWorkload:
    """Synthetic requests of a shape."""

    shape: Shape
    requests_per_s: float
    """In the mean."""


def first_plan(model: ModelDeployment, gpus: Mapping[str, Gpu] | None = None) -> FirstPlan:
    """Return what the operator deploys when it sees an object for the first time.

    All of it: the steps in which it brings up a large fleet are over when the traffic begins.
    ``gpus``: with other prices than those of the catalogue.

    Raises:
        ReplayError: it deploys nothing, or what cannot be simulated.
    """
    nobody, length = Shape(summary="nobody", duration_s=0.0), model.spec.context_length
    none = nobody.draw(expected_workload(model.spec), 0.0, context_tokens=length)
    simulation = Simulation(
        ReplayedModel(model=model, traffic=none),
        settings=SETTINGS,
        controller=Operator(SETTINGS, gpus=gpus, is_brought_up=True),
    )
    try:
        record = simulation.run(simulation.begins_s)
    except ValueError as error:  # of EngineCounters: what it cannot count
        raise ReplayError(str(error)) from error
    if record.faults:
        raise record.faults[0]
    (first,) = record.moments
    template, goodput = record.cluster.template, first.goodput_requests_per_s
    if template is None or goodput is None:
        raise ReplayError(first.problem or f"scaling.mode {model.spec.scaling.mode} deploys none")
    return FirstPlan(
        flags=template.flags, replicas=record.cluster.replicas, believed_requests_per_s=goodput
    )
