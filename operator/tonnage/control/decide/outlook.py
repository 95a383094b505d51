"""What is coming: replicas on their way, and demand when one asked for now would be Ready."""

import math
from collections.abc import Iterable
from dataclasses import replace

from tonnage.control.decide.pending import is_given_up
from tonnage.control.input.memory import DemandMemory, ObjectMemory
from tonnage.control.input.state import AUTO, Chosen, Fleet, ModelState, PodView, Traffics
from tonnage.control.measure.bursts import (
    burst_factor,
    burst_share,
    promised_quantile,
    reserved_requests_per_s,
)
from tonnage.estimate.calibration import memory_key
from tonnage.estimate.forecast import (
    CHANCE_Z,
    DemandSample,
    Forecast,
    History,
    forecast,
    is_note_due,
    observe_demand,
    rescale,
    without_chance,
)
from tonnage.estimate.headroom import UNSEEN, headroom
from tonnage.estimate.kept_record import kept_record, with_record
from tonnage.estimate.past import with_past
from tonnage.estimate.posterior import ObjectPosterior
from tonnage.estimate.scale_down_hold import STARTS, held_starts
from tonnage.policy.need import Outlook, Supply
from tonnage.policy.situation import Metrics
from tonnage.settings import Settings
from tonnage.sizing.plan import Sizing, requests_per_s_asked
from tonnage.sizing.schedules import Event, events_within
from tonnage.units import format_s

OVERDUE_SHARE = 0.25
"""Of a start, that a pod which takes longer than others did is given again and again."""


def lead_s(learned: ObjectPosterior, settings: Settings) -> float:
    """Return the time until a replica is Ready that is asked for now.

    A tick, the wait for a node, and a slow start on it.
    """
    start_s = settings.cold_start_s if learned.cold_start_s is None else learned.cold_start_s
    return learned.node_wait_s + start_s + learned.cold_start_deviation_s + settings.tick_s


def events_of(chosen: Chosen, learned: ObjectPosterior, fleet: Fleet) -> tuple[Event, ...]:
    """Return the known events that a replica which is asked for now is there for."""
    lead = lead_s(learned, fleet.settings)
    return events_within(chosen.model.spec.scaling.schedules, now_s=fleet.now_s, lead_s=lead)


def scale_down_window_s(learned: ObjectPosterior, settings: Settings) -> float:
    """Return the time for which a lower need must have held: longer where starts are long.

    What is taken away too early is missed for a lead, what is kept too long costs a lead or two.
    """
    return max(settings.scale_down_window_s, STARTS[0] * lead_s(learned, settings))


def held_s(
    known: DemandMemory, learned: ObjectPosterior, sizing: Sizing, settings: Settings
) -> float:
    """Return the same, or longer where demand is known to come back."""
    starts = held_starts(known.history.held, quantile=promised_quantile(sizing))
    return max(scale_down_window_s(learned, settings), starts * lead_s(learned, settings))


def supply_of(state: ModelState, learned: ObjectPosterior, fleet: Fleet) -> Supply:
    """Return the replicas that serve, and when those that are on their way will.

    A pod that no node can take counts as if its node came now, until it is given up; one whose
    container fails does not count. Replicas that are asked for and have no pod yet come last.
    """
    lead = lead_s(learned, fleet.settings)
    kept = [pod for pod in state.pods if not pod.is_deleting]
    ready = sum(pod.is_ready for pod in kept)
    due = [
        _due_s(pod, lead, learned.node_wait_s, fleet)
        for pod in kept
        if not pod.is_ready and not pod.trouble and not is_given_up(pod, fleet)
    ]
    due += [lead] * max(0, state.replicas - len(kept))
    return Supply(ready=ready, due_s=tuple(sorted(due)), lead_s=lead)


def _due_s(pod: PodView, lead: float, wait_s: float, fleet: Fleet) -> float:
    if pod.unschedulable is not None:
        return lead
    if pod.scheduled_at_s is None:
        left_s = lead - (fleet.now_s - pod.created_at_s)
    else:
        left_s = lead - wait_s - (fleet.now_s - pod.scheduled_at_s)
    return max(left_s, OVERDUE_SHARE * lead)


def remembered_demand(
    memory: ObjectMemory, traffics: Traffics, sizing: Sizing, events: Iterable[Event], fleet: Fleet
) -> ObjectMemory:
    """Note what is measured now, and score what was forecast for now."""
    demand = traffics.demand
    if demand is None or traffics.metrics is not Metrics.COMPLETE:
        return memory
    known = _in_units_of(memory.demand, sizing)
    most, count = sizing.most_requests_per_s, demand.newest
    if known.past:
        scv = sizing.request.arrival_scv
        known = replace(known, history=with_past(known.history, known.past, most, scv=scv))
    sure = without_chance(count.requests, scv=sizing.request.arrival_scv) if count else 0.0
    lead, now = lead_s(memory.posterior, fleet.settings), demand.requests_per_s / most
    planned = [now, *(each.requests_per_s / most for each in events)]
    if is_note_due(known.history, fleet.now_s):
        planned.append(_forecast(known, now, lead, fleet).demand)
    note = DemandSample(
        at_s=fleet.now_s,
        demand=now,
        sure=now - CHANCE_Z * math.sqrt(2) * demand.standard_error_per_s / most,
        peak=sure / count.seconds / most if count else 0.0,
        planned=max(planned),
        lead_s=lead,
    )
    history = observe_demand(known.history, note)
    learned = memory.posterior
    if history.recent != known.history.recent:
        learned = replace(learned, demand=kept_record(history))
    known = DemandMemory(history=history, unit=_unit(sizing), most_requests_per_s=most)
    return replace(memory, demand=known, posterior=learned)


def recalled_demand(learned: ObjectPosterior) -> DemandMemory:
    """Return the records that were stored; demand of before comes from Prometheus."""
    if learned.demand is None:
        return DemandMemory()
    return DemandMemory(history=with_record(History(), learned.demand))


def _unit(sizing: Sizing) -> str:
    return memory_key(sizing.request, sizing.flags)


def _in_units_of(known: DemandMemory, sizing: Sizing) -> DemandMemory:
    """Tell demand in replicas as they are now, where other engines run than when it was noted."""
    before = known.most_requests_per_s
    if known.unit in {"", _unit(sizing)} or not before:
        return known
    return replace(known, history=rescale(known.history, before / sizing.most_requests_per_s))


def _forecast(known: DemandMemory, demand: float, lead: float, fleet: Fleet) -> Forecast:
    return forecast(known.history, at_s=fleet.now_s, demand=demand, lead_s=lead)


def unseen_room(requests_per_s: float, chosen: Chosen, settings: Settings) -> float:
    """Return the share to add to what spec.demand tells, while none of it was measured.

    A peak that it tells is room for as much. 0 where replicas beside the plan would break a bound,
    take what other objects plan for, wait for somebody, never come, or keep no promise.
    """
    scaling, request = chosen.model.spec.scaling, chosen.sizing.request
    room = max(0.0, (1 + UNSEEN) / request.demand.peak_ratio - 1)
    if scaling.mode != AUTO or settings.max_gpus is not None or request.slo.is_offline:
        return 0.0
    with_room = chosen.capacity.replicas((1 + room) * requests_per_s)
    return room if with_room <= scaling.max_replicas else 0.0


def outlook_of(
    requests_per_s: float, chosen: Chosen, memory: ObjectMemory, fleet: Fleet
) -> Outlook:
    """Return what is expected of the time when a replica asked for now is Ready."""
    known, learned = memory.demand, memory.posterior
    sizing, lead = chosen.sizing, lead_s(learned, fleet.settings)
    most = sizing.most_requests_per_s
    expected = _forecast(known, requests_per_s / most, lead, fleet)
    burst_requests_per_s, burst_origin = declared_burst(chosen)
    reserved = reserved_requests_per_s(known, learned, sizing)
    if reserved > burst_requests_per_s:
        burst_requests_per_s = reserved
        burst_origin = _burst_origin(known, learned, sizing, lead)
    return Outlook(
        requests_per_s=expected.demand * most,
        origin=f"by {expected.origin}",
        headroom=headroom(known.history.rises, quantile=promised_quantile(sizing)),
        burst_requests_per_s=burst_requests_per_s,
        burst_origin=burst_origin,
    )


def declared_burst(chosen: Chosen) -> tuple[float, str]:
    """Return (requests/s, origin) of the peak that spec.demand states; 0: it states none."""
    peak = requests_per_s_asked(chosen.sizing) if chosen.sizing.request.demand.is_peak else None
    return (peak, "by spec.demand.peakPercent") if peak else (0.0, "")


def _burst_origin(
    known: DemandMemory, learned: ObjectPosterior, sizing: Sizing, lead: float
) -> str:
    share, factor = burst_share(known, sizing), burst_factor(learned)
    stands_on = "as assumed" if learned.burst_factor is None else "learned from late requests"
    return (
        f"in the last day bursts shorter than a start ({format_s(lead)}) had {1 + share:.1f} times "
        f"the usual rate; {factor:.2g} times their excess is planned, {stands_on}"
    )
