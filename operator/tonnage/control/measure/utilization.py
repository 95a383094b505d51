"""How busy engines use their GPUs, for people: measured at a look, no decision depends on it."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean, median

from tonnage.catalog.engine_speed import SpeedConstants
from tonnage.control.input.memory import PodSpeed
from tonnage.control.input.state import Assessment, Chosen, Fleet, ModelState
from tonnage.estimate.learner import PodWindow
from tonnage.estimate.speed import observed_mbu, observed_mfu, predicted_gap_s
from tonnage.sizing.plan import Sizing


@dataclass(frozen=True, slots=True, kw_only=True)
class Utilization:
    """What busy engines show; None where none was busy, or none says it."""

    step_s: float | None = None
    mbu: float | None = None
    mfu: float | None = None
    dram_active: float | None = None
    """As DCGM says, over all time."""
    engine_mbu: float | None = None
    """By the engine's own count of bytes, over all time."""
    speeds: Mapping[str, PodSpeed] = field(default_factory=dict)
    """Of the pods that were busy, by name."""


def utilization(found: Assessment, chosen: Chosen, fleet: Fleet) -> Utilization:
    """Return the means over engines, and how each pod fares beside what is believed."""
    state, pods = found.state, found.observed.pods if found.observed else ()
    used = {pod.pod: list(_used(pod)) for pod in pods}
    active = (each.dram_active_fraction for each in state.engines)
    believed = chosen.belief.constants_at(chosen.belief.posterior)
    nodes = {each.name: each.node_name for each in state.pods}
    return Utilization(
        step_s=_mean(each.gap_s for pod in pods for each in pod.engines),
        mbu=_mean(mbu for of_pod in used.values() for mbu, _ in of_pod),
        mfu=_mean(mfu for of_pod in used.values() for _, mfu in of_pod),
        dram_active=_mean(each for each in active if each is not None),
        engine_mbu=_engine_mbu(state, chosen.sizing),
        speeds={
            pod.pod: PodSpeed(
                node=nodes.get(pod.pod),
                slower=_slower(pod, believed),
                mbu=median(mbu for mbu, _ in used[pod.pod]),
                mfu=median(mfu for _, mfu in used[pod.pod]),
                seen_at_s=fleet.windows_end_s,
            )
            for pod in pods
        },
    )


def _used(pod: PodWindow) -> Iterator[tuple[float, float]]:
    """Yield the bandwidth and the work of each engine, as shares of what is nominal."""
    for each in pod.engines:
        yield observed_mbu(pod.model, each), observed_mfu(pod.model, each)


def _engine_mbu(state: ModelState, sizing: Sizing) -> float | None:
    """Return the bandwidth that engines think they use, over the nominal one."""
    nominal = sizing.replica.model.speeds.memory_bytes_per_s
    return _mean(
        (each.read_bytes_per_s + each.write_bytes_per_s) / nominal
        for each in (engine.busy for engine in state.engines)
        if each.read_bytes_per_s is not None and each.write_bytes_per_s is not None
    )


def _slower(pod: PodWindow, constants: SpeedConstants) -> float:
    """Return the logarithm of the gap between tokens over the one believed.

    Of several engines the one in the middle.
    """
    model = replace(pod.model, constants=constants)
    return median(math.log(each.gap_s / predicted_gap_s(model, each)) for each in pod.engines)


def _mean(values: Iterable[float]) -> float | None:
    known: Sequence[float] = tuple(values)
    return fmean(known) if known else None
