"""What is remembered of one object from tick to tick, as far as it is only observed."""

from collections.abc import Iterable, Iterator

from tonnage.api.objects import ModelDeployment
from tonnage.control.input.state import Fleet, ModelState, ObjectMemory, PodView, Rolling, Traffics
from tonnage.control.measure.steady import lengths_of, steady_lengths
from tonnage.control.measure.traffic import is_blind, pods_named
from tonnage.estimate.burstiness import arrival_scv, noted
from tonnage.estimate.demand import ArrivalCount, MeasuredDemand
from tonnage.estimate.forecast import is_burst, without_chance
from tonnage.estimate.lengths import MeasuredLengths
from tonnage.estimate.metrics import WINDOWS
from tonnage.estimate.posterior import Start, not_to_come, with_starts
from tonnage.policy.need import Traffic
from tonnage.policy.situation import Metrics
from tonnage.settings import Settings
from tonnage.sizing.expected import expected_workload
from tonnage.values import replace


def not_ahead(memory: ObjectMemory, fleet: Fleet) -> ObjectMemory:
    """Begin to watch anew where the clock was set back: nothing of before is still to come."""
    now_s = fleet.now_s
    if not memory.recent_needs or memory.recent_needs[-1].at_s <= now_s:
        return memory

    back = memory.given_back

    def past(at_s: float | None) -> float | None:
        return None if at_s is None else min(at_s, now_s)

    return replace(
        memory,
        since_s=now_s,
        recent_needs=(),
        lost_at_s=past(memory.lost_at_s),
        stepped=(min(memory.stepped[0], now_s), memory.stepped[1]) if memory.stepped else None,
        judged_at_s=min(memory.judged_at_s, now_s),
        overloaded_at_s=past(memory.overloaded_at_s),
        burst_at_s=past(memory.burst_at_s),
        drained_by_s=None,
        served_since_s=past(memory.served_since_s),
        blind_since_s=past(memory.blind_since_s),
        queued_since_s=past(memory.queued_since_s),
        waiting_since_s=past(memory.waiting_since_s),
        short_since_s=past(memory.short_since_s),
        better_since_s=past(memory.better_since_s),
        better_asked=None,
        given_back=replace(back, at_s=min(back.at_s, now_s)) if back else None,
        window_began=None,
        posterior=not_to_come(memory.posterior, now_s),
        rolling=None,
        retry=None,
        status_retry=None,
        gauges_written_at_s=min(memory.gauges_written_at_s, now_s),
    )


def with_observed(
    memory: ObjectMemory, state: ModelState, fleet: Fleet, traffics: Traffics
) -> ObjectMemory:
    """Remember the pods that are there and what is measured of the traffic."""
    ready = {pod.name: pod for pod in state.pods if pod.is_ready and not pod.is_deleting}
    present = frozenset(pod.name for pod in state.pods)
    asked = state.deployment.replicas if state.deployment else 0
    # Fewer than are asked for: what an update replaced, or scaling down took away, is no loss.
    lost = memory.ready_pods - set(ready)
    has_lost = bool(lost) and len(ready) < asked
    demand = traffics.demand
    measured = Traffic(requests_per_s=demand.requests_per_s) if demand else None
    return replace(
        _with_arrivals(memory, state, fleet, traffics),
        ready_pods=frozenset(ready),
        loading_pods=frozenset(pod.name for pod in state.pods if _is_loading(pod, memory)),
        present_pods=present,
        vanished_at_s=memory.vanished_at_s if memory.present_pods <= present else fleet.now_s,
        last_replicas=asked,
        stepped=_stepped(memory, asked, fleet.now_s) or memory.stepped,
        window_began=_window_began(memory, asked, fleet),
        lost_at_s=fleet.now_s if has_lost else memory.lost_at_s,
        lost_pods=pods_named(lost, state.pods) if has_lost else memory.lost_pods,
        served_since_s=_served_since_s(memory, demand, fleet),
        was_whole=memory.was_whole or traffics.metrics is Metrics.COMPLETE,
        blind_since_s=_blind_since_s(memory, traffics, fleet),
        traffic=measured if traffics.metrics is Metrics.COMPLETE else memory.traffic or measured,
        lengths=traffics.lengths,
        asked_lengths=_asked_lengths(memory, state, traffics),
        posterior=with_starts(
            memory.posterior,
            _starts(memory, ready.values()),
            expected_s=fleet.settings.cold_start_s,
        ),
        rolling=_rolling(memory.rolling, state, fleet.now_s),
        seen_template=_seen_template(memory, state),
    )


def _is_loading(pod: PodView, memory: ObjectMemory) -> bool:
    """Tell whether a pod has not been Ready since it was made, as far as was seen and it tells."""
    is_new = memory.last_replicas is None or pod.name not in memory.present_pods
    has_loaded = not is_new and pod.name not in memory.loading_pods
    return not (pod.is_ready or pod.was_ready or has_loaded)


def _starts(memory: ObjectMemory, ready: Iterable[PodView]) -> Iterator[Start]:
    """Yield the starts that ended since the last tick.

    A pod that was Ready before, or at first sight, tells nothing of its start.
    """
    is_first = memory.last_replicas is None
    for pod in ready:
        is_new = not is_first and pod.name not in memory.present_pods
        was_seen = pod.name in memory.loading_pods or is_new
        taken_s, ready_s = pod.scheduled_at_s, pod.ready_at_s
        if was_seen and not pod.has_restarted and taken_s is not None and ready_s is not None:
            yield Start(waited_s=taken_s - pod.created_at_s, took_s=ready_s - taken_s)


def _seen_template(memory: ObjectMemory, state: ModelState) -> tuple[str, str] | None:
    live = state.deployment
    if live is None or live.observed_generation < live.generation:
        return memory.seen_template
    return live.uid, live.template_digest


def _rolling(before: Rolling | None, state: ModelState, now_s: float) -> Rolling | None:
    """Return how far the pods of a Deployment have been replaced; None: they are not."""
    live = state.deployment
    if live is None or not live.is_rolling:
        return None
    if before is None or before.template != live.template_digest:
        before = Rolling(template=live.template_digest, updated=0, ready=0, at_s=now_s)
    has_more = live.updated > before.updated or live.ready > before.ready
    return replace(
        before,
        updated=max(before.updated, live.updated),
        ready=max(before.ready, live.ready),
        at_s=now_s if has_more else before.at_s,
    )


def pace_s(settings: Settings) -> float:
    """Return the time in which the effect of a step shows in the rates."""
    return WINDOWS[0] * settings.scrape_interval_s


def window_base(memory: ObjectMemory, fleet: Fleet) -> int | None:
    """Return the replicas before the first change of the rate window that this moment is in."""
    began = memory.window_began
    is_within = began is not None and fleet.now_s - began[0] < pace_s(fleet.settings)
    return began[1] if began and is_within else None


def _stepped(memory: ObjectMemory, asked: int, now_s: float) -> tuple[float, int] | None:
    before = memory.last_replicas
    return None if before is None or before == asked else (now_s, before)


def _window_began(memory: ObjectMemory, asked: int, fleet: Fleet) -> tuple[float, int] | None:
    if window_base(memory, fleet) is not None:
        return memory.window_began
    return _stepped(memory, asked, fleet.now_s) or memory.window_began


def _with_arrivals(
    memory: ObjectMemory, state: ModelState, fleet: Fleet, traffics: Traffics
) -> ObjectMemory:
    """Count what came since the last window; regular arrivals today promise none tomorrow.

    Windows in which replicas came or went count others than the rest. So do those that hold a
    burst, for which there is the reserve, and those beside it, that may hold its edge.
    """
    count = traffics.demand.newest if traffics.demand else None
    if count is None or traffics.metrics is not Metrics.COMPLETE:
        return memory
    model, at_s = state.model, fleet.windows_end_s
    if not isinstance(model, ModelDeployment):
        return memory
    if _is_burst(memory, count, _given_scv(model)):
        since_s = at_s - count.seconds
        clear = tuple(each for each in memory.counted if each.at_s <= since_s)
        return replace(memory, counted=clear, burst_at_s=at_s)
    is_beside = memory.burst_at_s is not None and at_s - count.seconds < memory.burst_at_s
    interval_s = fleet.settings.scrape_interval_s
    ready_s = max((pod.ready_at_s or at_s for pod in state.pods), default=at_s)
    changed_s = max(ready_s, memory.vanished_at_s, memory.stepped[0] if memory.stepped else 0.0)
    is_whole = at_s - changed_s > (WINDOWS[0] + 1) * interval_s
    if is_beside or not is_whole:
        return memory
    counted = noted(memory.counted, at_s=at_s, count=count.requests, seconds=count.seconds)
    given = _given_scv(model)
    believed = given if memory.arrival_scv is None else memory.arrival_scv
    found = max(1.0, arrival_scv(counted, believed, given=given))
    return replace(memory, counted=counted, arrival_scv=None if found == given else found)


def _given_scv(model: ModelDeployment) -> float:
    """Return the burstiness that the spec tells of."""
    return float(model.spec.demand.arrival_scv) if model.spec.demand else 1.0


def _is_burst(memory: ObjectMemory, count: ArrivalCount, given_scv: float) -> bool:
    most = memory.most_requests_per_s
    if not most:
        return False
    believed = given_scv if memory.arrival_scv is None else memory.arrival_scv
    sure = without_chance(count.requests, scv=believed)
    return is_burst(memory.history, sure=sure / count.seconds / most)


def _asked_lengths(
    memory: ObjectMemory, state: ModelState, traffics: Traffics
) -> MeasuredLengths | None:
    """Return the lengths to ask with: those of the spec until what is measured has left them."""
    measured, model = traffics.lengths, state.model
    if measured is None or not isinstance(model, ModelDeployment):
        return memory.asked_lengths
    asked = memory.asked_lengths or lengths_of(expected_workload(model.spec))
    return steady_lengths(measured, asked)


def _served_since_s(
    memory: ObjectMemory, demand: MeasuredDemand | None, fleet: Fleet
) -> float | None:
    has_come = demand is not None and demand.requests_per_s > 0
    return fleet.now_s if memory.served_since_s is None and has_come else memory.served_since_s


def _blind_since_s(memory: ObjectMemory, traffics: Traffics, fleet: Fleet) -> float | None:
    """Return since when metrics are lost: who never had them in this process lost none."""
    if not (memory.was_whole and is_blind(traffics)):
        return None
    return fleet.now_s if memory.blind_since_s is None else memory.blind_since_s
