"""The operator as a controller: its own tick, a simulated cluster in place of Kubernetes."""

from collections.abc import Iterator, Mapping
from types import MappingProxyType

from tonnage.catalog.gpu import Gpu, built_in_gpus
from tonnage.control.input.memory import Memory
from tonnage.control.input.state import Fleet, ModelState
from tonnage.control.tick import tick
from tonnage.estimate.fleet_scrapes import Answered, FleetScrapes, PodKey
from tonnage.estimate.metrics import FRESH_SCRAPES, bounds_near
from tonnage.estimate.pages import BUCKETS, CACHE, COLUMNS, metrics_of
from tonnage.estimate.samples import EngineSamples, fleet_samples
from tonnage.replay.prometheus import SeriesKey, SimulatedPrometheus, Target
from tonnage.replay.query import Query
from tonnage.replay.record import Record, moment_of_tick
from tonnage.replay.views import EPOCH_S, deployment_view, model_view, pod_views
from tonnage.settings import Settings
from tonnage.sizing.expected import slo_of


class Operator:
    """Ticks as the operator's loop does."""

    table: Mapping[str, Query] = MappingProxyType({})
    """It asks for raw samples."""
    reads_scrapes = True

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
        """Decide, and do what is to be written."""
        outcome = tick(self._fleet(record, prometheus, at_s), self.memory)
        self.memory = outcome.memory
        for writes in outcome.writes:
            record.cluster.apply(writes, at_s)
        (found,) = outcome.found
        record.moments.append(moment_of_tick(record, found, self.memory.calibrations, at_s))
        record.faults += [each.error for each in outcome.faults]

    def _fleet(self, record: Record, prometheus: SimulatedPrometheus, at_s: float) -> Fleet:
        engines = self._engines(record, prometheus, EPOCH_S + at_s)
        return Fleet(
            now_s=EPOCH_S + at_s,
            models=(_state(record, engines, at_s),),
            metrics_problem=None,
            calibrations=self.memory.calibrations,
            gpus=self._gpus,
            settings=self._settings_of(record),
            has_pod_monitors=True,
        )

    def _engines(
        self, record: Record, prometheus: SimulatedPrometheus, now_s: float
    ) -> Mapping[PodKey, tuple[EngineSamples, ...]]:
        """Take in what was scraped of late, and return the figures of all engines."""
        scrapes, answered = self._scrapes, Answered()
        interval_s = self.settings.scrape_interval_s
        since_s = now_s - FRESH_SCRAPES * interval_s - self.settings.tick_s
        bounds = _bounds(record)
        scrapes.expect(frozenset(prometheus.targets))
        for pod, target in prometheus.targets.items():
            for key in _wanted(target, bounds):
                labels = {"__name__": key[0], **dict(key[1]), **target.labels}
                scrapes.take(answered, hash((pod, key)), labels.copy, target.points(key, since_s))
        scrapes.add(answered)
        return fleet_samples(scrapes, now_s, interval_s)

    def _settings_of(self, record: Record) -> Settings:
        """Return the settings; in the act that creates the fleet one step may be all of it."""
        if not self._is_brought_up or record.cluster.template:
            return self.settings
        most = record.served.model.spec.scaling.max_replicas
        return self.settings.model_copy(update={"max_scale_up_replicas": most})


def _bounds(record: Record) -> frozenset[str]:
    """Return which bounds to ask for: around the limits of the promise."""
    slo = slo_of(record.served.model.spec)
    ttft, tpot = ({target.limit_s for target in targets} for targets in (slo.ttft, slo.tpot))
    return frozenset({"+Inf", *(str(float(bound)) for bound in bounds_near(ttft, tpot))})


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
