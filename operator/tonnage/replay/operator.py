"""The operator as a controller: its own tick, a simulated cluster in place of Kubernetes."""

from collections.abc import Mapping

from tonnage.catalog.gpu import Gpu, built_in_gpus
from tonnage.control.input.memory import Memory
from tonnage.control.input.state import Fleet, ModelState
from tonnage.control.tick import tick
from tonnage.estimate.joined import Scrape, join
from tonnage.estimate.metrics import TABLE, TPOT_BOUNDS_S, TTFT_BOUNDS_S, Query, bucket_matcher
from tonnage.replay.prometheus import SimulatedPrometheus
from tonnage.replay.record import Record, moment_of_tick
from tonnage.replay.views import EPOCH_S, deployment_view, model_view, pod_views
from tonnage.settings import Settings
from tonnage.sizing.expected import slo_of


class Operator:
    """Ticks as the operator's loop does."""

    table: Mapping[str, Query] = TABLE

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
        answers = prometheus.ask(EPOCH_S + at_s, le_matchers=_le_matchers(record))
        scrape = join(answers, self.settings)
        return Fleet(
            now_s=EPOCH_S + at_s,
            models=(_state(record, scrape, at_s),),
            metrics_problem=None,
            calibrations=self.memory.calibrations,
            gpus=self._gpus,
            settings=self._settings_of(record),
            has_pod_monitors=True,
        )

    def _settings_of(self, record: Record) -> Settings:
        """Return the settings; in the act that creates the fleet one step may be all of it."""
        if not self._is_brought_up or record.cluster.template:
            return self.settings
        most = record.served.model.spec.scaling.max_replicas
        return self.settings.model_copy(update={"max_scale_up_replicas": most})


def _le_matchers(record: Record) -> dict[str, str]:
    """Return which buckets to ask for: around the limits of the promise."""
    slo = slo_of(record.served.model.spec)
    return {
        "ttft": bucket_matcher({target.limit_s for target in slo.ttft}, TTFT_BOUNDS_S),
        "tpot": bucket_matcher({target.limit_s for target in slo.tpot}, TPOT_BOUNDS_S),
    }


def _state(record: Record, scrape: Scrape, at_s: float) -> ModelState:
    cluster = record.cluster
    pods = pod_views(cluster, at_s)
    keys = [(pod.namespace, pod.name) for pod in pods]
    return ModelState(
        view=model_view(cluster),
        model=cluster.model,
        deployment=deployment_view(cluster, at_s),
        pods=pods,
        engines=tuple(each for key in keys for each in scrape.engines.get(key, ())),
    )
