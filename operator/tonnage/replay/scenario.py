"""What every policy of a comparison gets alike: traffic, engines, cold starts, first replicas."""

from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from tonnage.api.objects import ModelDeployment
from tonnage.catalog.gpu import Gpu, built_in_gpus
from tonnage.engine.chance import Chance
from tonnage.replay.cluster import FirstPlan, ReplayedModel, StartupTime
from tonnage.replay.ground_truth import GroundTruth
from tonnage.replay.prometheus import drop_scrapes
from tonnage.replay.simulation import Controller, Operator, Simulation
from tonnage.replay.traces import Trace, drawn_from, times
from tonnage.replay.traffic import Shape, Traffic
from tonnage.settings import Settings
from tonnage.sizing.expected import expected_workload, slo_of
from tonnage.sizing.workload import Slo

SETTINGS: Final = Settings(prometheus_url="http://prometheus.replay:9090")
LOST_SCRAPES: Final = 0.01
FACTORS: Final = (0.75, 1.25)
"""Of the prior's efficiencies, evenly, where the truth is drawn."""
OVERHEADS: Final = (0.5, 2.0)
KV_DOUBT: Final = 0.05
"""To either side, as a share of the blocks."""
SPEED_SPREAD: Final = 0.03
"""Of single replicas, where the truth is drawn."""
FIRST_SEED: Final = 13_000


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One object, one draw of everything that chance decides."""

    model: ModelDeployment
    requests: TraceWorkload | SyntheticWorkload
    start: StartupTime
    planned: FirstPlan
    target: float
    """Share of requests to be kept."""
    speed: float | None = 1.0
    """Of engines, as a factor of what is believed; None: each constant is drawn."""
    seed: int = 0
    gpus: Mapping[str, Gpu] = field(default_factory=built_in_gpus, repr=False)
    """With the prices by which the operator chooses a split."""

    @property
    def slo(self) -> Slo:
        return slo_of(self.model.spec)

    def with_engine(self, field: str, value: str) -> "Scenario":
        """Return the same with another value of a field of the engine."""
        spec = self.model.spec
        if spec.engine is None:
            return self
        engine = spec.engine.model_copy(update={field: value})
        spec = spec.model_copy(update={"engine": engine})
        return replace(self, model=replace(self.model, spec=spec))

    def truth(self) -> GroundTruth:
        if self.speed is not None:
            return GroundTruth(speed=self.speed)
        chance = Chance(FIRST_SEED + self.seed)

        def between(low: float, high: float) -> float:
            return low + (high - low) * chance.share()

        low, high = OVERHEADS
        return GroundTruth(
            bandwidth_factor=between(*FACTORS),
            compute_factor=between(*FACTORS),
            prefill_factor=between(*FACTORS),
            overhead_factor=low * (high / low) ** chance.share(),
            kv_factor=between(1 - KV_DOUBT, 1 + KV_DOUBT),
        )

    def draw(self) -> Traffic:
        """Return the requests, the same for every policy."""
        spec, requests = self.model.spec, self.requests
        workload = expected_workload(spec)
        if isinstance(requests, SyntheticWorkload):
            return requests.shape.draw(
                workload,
                requests.requests_per_s,
                context_tokens=spec.context_length,
                seed=self.seed,
            )
        duration_s, trace = requests.duration_s, requests.trace
        if spec.role == "prefill":
            trace = replace(trace, output_tokens=array("q", [1]) * len(trace))
        return drawn_from(
            times(trace, requests.times, duration_s=duration_s, seed=self.seed),
            duration_s=duration_s,
            context_tokens=spec.context_length,
            cached_fraction=workload.cached_fraction,
        )

    def operator(self) -> Operator:
        return Operator(SETTINGS, gpus=self.gpus, is_brought_up=True)

    def simulation(self, drawn: Traffic, controller: Controller) -> Simulation:
        served = ReplayedModel(
            model=self.model,
            traffic=drawn,
            truth=self.truth(),
            start=self.start,
            speed_spread=0.0 if self.speed is not None else SPEED_SPREAD,
            seed=self.seed,
        )
        faults = (drop_scrapes(LOST_SCRAPES, seed=self.seed),)
        return Simulation(served, settings=SETTINGS, controller=controller, faults=faults)


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
