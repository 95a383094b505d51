"""What is remembered of one object's traffic from tick to tick."""

from dataclasses import replace

from tonnage.api.objects import ModelDeployment
from tonnage.control.input.memory import DemandMemory, ObjectMemory, TrafficMemory
from tonnage.control.input.state import Fleet, ModelState, Traffics
from tonnage.control.measure.pods import starts_of, with_pods
from tonnage.control.measure.steady import lengths_of, steady_lengths
from tonnage.estimate.burstiness import add_count, arrival_scv
from tonnage.estimate.demand import ArrivalCount
from tonnage.estimate.forecast import is_burst, without_chance
from tonnage.estimate.lengths import MeasuredLengths
from tonnage.estimate.metrics import WINDOWS
from tonnage.estimate.posterior import with_starts
from tonnage.policy.need import CurrentTraffic
from tonnage.policy.situation import Metrics
from tonnage.sizing.expected import expected_workload


def with_observed(
    memory: ObjectMemory, state: ModelState, fleet: Fleet, traffics: Traffics
) -> ObjectMemory:
    """Remember the pods that are there, how they started, and what is measured of the traffic."""
    starts = starts_of(memory.pods, state)
    expected_s = fleet.settings.cold_start_s
    return replace(
        memory,
        pods=with_pods(memory.pods, state, fleet),
        traffic=_with_traffic(
            _with_arrivals(memory, state, fleet, traffics), state, fleet, traffics
        ),
        posterior=with_starts(memory.posterior, starts, expected_s=expected_s),
    )


def _with_traffic(
    known: TrafficMemory, state: ModelState, fleet: Fleet, traffics: Traffics
) -> TrafficMemory:
    demand, is_whole = traffics.demand, traffics.metrics is Metrics.COMPLETE
    measured = CurrentTraffic(requests_per_s=demand.requests_per_s) if demand else None
    has_come = known.served_since_s is None and measured and measured.requests_per_s > 0
    return replace(
        known,
        measured=measured if is_whole else known.measured or measured,
        lengths=traffics.lengths,
        asked_lengths=_asked_lengths(known, state, traffics),
        served_since_s=fleet.now_s if has_come else known.served_since_s,
        was_whole=known.was_whole or is_whole,
        blind_since_s=_blind_since_s(known, traffics, fleet),
    )


def _with_arrivals(
    memory: ObjectMemory, state: ModelState, fleet: Fleet, traffics: Traffics
) -> TrafficMemory:
    """Count what came since the last window; regular arrivals today promise none tomorrow.

    Windows in which replicas came or went count others than the rest. So do those that hold a
    burst, for which there is the reserve, and those beside it, that may hold its edge.
    """
    known, count = memory.traffic, traffics.demand.newest if traffics.demand else None
    if count is None or traffics.metrics is not Metrics.COMPLETE:
        return known
    model, at_s = state.model, fleet.windows_end_s
    if not isinstance(model, ModelDeployment):
        return known
    given = float(model.spec.demand.arrival_scv) if model.spec.demand else 1.0
    believed = given if known.arrival_scv is None else known.arrival_scv
    if _is_burst(memory.demand, count, believed):
        since_s = at_s - count.seconds
        clear = tuple(each for each in known.counted if each.at_s <= since_s)
        return replace(known, counted=clear, burst_at_s=at_s)
    is_beside = known.burst_at_s is not None and at_s - count.seconds < known.burst_at_s
    if is_beside or not _is_steady(memory, state, fleet):
        return known
    counted = add_count(known.counted, at_s=at_s, count=count.requests, seconds=count.seconds)
    found = max(1.0, arrival_scv(counted, believed, given=given))
    return replace(known, counted=counted, arrival_scv=None if found == given else found)


def _is_steady(memory: ObjectMemory, state: ModelState, fleet: Fleet) -> bool:
    """Tell whether no replica came or went in the last window."""
    at_s, pods = fleet.windows_end_s, memory.pods
    ready_s = max((pod.ready_at_s or at_s for pod in state.pods), default=at_s)
    changed_s = max(ready_s, pods.last_pod_removed_at_s, pods.stepped[0] if pods.stepped else 0.0)
    return at_s - changed_s > (WINDOWS[0] + 1) * fleet.settings.scrape_interval_s


def _is_burst(known: DemandMemory, count: ArrivalCount, scv: float) -> bool:
    if not known.most_requests_per_s:
        return False
    sure = without_chance(count.requests, scv=scv)
    return is_burst(known.history, sure=sure / count.seconds / known.most_requests_per_s)


def _asked_lengths(
    known: TrafficMemory, state: ModelState, traffics: Traffics
) -> MeasuredLengths | None:
    """Return the lengths to ask with: those of the spec until what is measured has left them."""
    measured, model = traffics.lengths, state.model
    if measured is None or not isinstance(model, ModelDeployment):
        return known.asked_lengths
    asked = known.asked_lengths or lengths_of(expected_workload(model.spec))
    return steady_lengths(measured, asked)


def _blind_since_s(known: TrafficMemory, traffics: Traffics, fleet: Fleet) -> float | None:
    """Return since when metrics are lost: who never had them in this process lost none."""
    if not (known.was_whole and traffics.is_blind):
        return None
    return fleet.now_s if known.blind_since_s is None else known.blind_since_s
