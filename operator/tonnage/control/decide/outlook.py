"""What is coming, and what is needed now and was of late: pods, replicas on their way, and demand.

Replicas are held because demand may come back. A belief that engines are slow does not: what took N
of these takes fewer by as much as one is known to serve more by now, in the same requests and with
what promises have shown. Where they turn out slower than they were believed to be, as many stay.
"""

import math
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from itertools import takewhile

from tonnage.control.input.memory import (
    DecisionMemory,
    DemandMemory,
    Needed,
    ObjectMemory,
    PodMemory,
    ReplicaGoodput,
    UnschedulableBackoff,
)
from tonnage.control.input.state import (
    AUTO,
    Assessment,
    Chosen,
    Fleet,
    ModelState,
    PodView,
    Traffics,
)
from tonnage.control.learn.attainment import (
    burst_factor,
    burst_share,
    promised_quantile,
    reserved_requests_per_s,
)
from tonnage.control.observe.starting import why_unschedulable
from tonnage.estimate.calibration import memory_key
from tonnage.estimate.forecast import (
    CHANCE_Z,
    DemandSample,
    forecast,
    is_note_due,
    observe_demand,
    rescale,
    without_chance,
)
from tonnage.estimate.headroom import STARTS, headroom, held_starts, unmeasured_headroom
from tonnage.estimate.past import with_past
from tonnage.estimate.posterior import ObjectPosterior
from tonnage.policy.need import CurrentTraffic, Outlook, Supply, need, need_without_demand
from tonnage.policy.situation import Decision, Metrics, Need
from tonnage.settings import Settings
from tonnage.sizing.plan import Sizing, requests_per_s_asked
from tonnage.sizing.schedules import Event
from tonnage.units import format_s

NO_GPU = "InsufficientGPU"
MOST_DOUBLINGS = 2
"""Of the time until pods are asked for again that no node took: nobody tells when nodes come."""


def is_given_up(pod: PodView, fleet: Fleet) -> bool:
    """Tell whether no node has taken a pod for so long that none is expected to."""
    waited_s = fleet.now_s - pod.created_at_s
    is_stuck = pod.unschedulable is not None and not pod.is_deleting
    return is_stuck and waited_s > fleet.settings.pending_timeout_s


def num_unschedulable(state: ModelState, fleet: Fleet) -> int:
    """Return the pods that are given up, and go first where fewer are asked for.

    A ReplicaSet takes those away that are not Ready, a LeaderWorkerSet the highest index.
    """
    pods = state.pods
    if state.deployment and state.deployment.workload.is_group:
        from_highest = sorted(pods, key=_index_of, reverse=True)
        return sum(1 for _ in takewhile(lambda pod: is_given_up(pod, fleet), from_highest))
    return sum(is_given_up(pod, fleet) for pod in pods)


def _index_of(leader: PodView) -> int:
    index = leader.name.rpartition("-")[2]
    return int(index) if index.isdecimal() else -1


def is_replacing(state: ModelState, known: PodMemory, fleet: Fleet) -> bool:
    """Tell whether a pod that came when a replica was lost, or later, is still loading."""
    if known.lost_at_s is None:
        return False
    since_s = known.lost_at_s - fleet.settings.tick_s  # a loss shows at the tick after it
    return any(
        pod.created_at_s >= since_s
        and not (pod.is_ready or pod.is_deleting or pod.trouble or is_given_up(pod, fleet))
        for pod in state.pods
    )


def retry_at_s(back: UnschedulableBackoff, settings: Settings) -> float:
    """Return when pods are asked for again that no node took."""
    doublings = min(max(back.times - 1, 0), MOST_DOUBLINGS)
    return back.at_s + settings.pending_timeout_s * float(2**doublings)


def unplaced_reason(state: ModelState, back: UnschedulableBackoff | None, fleet: Fleet) -> str:
    """Return why no node takes pods that are given up, or took them when they were given back."""
    messages = (pod.unschedulable for pod in state.pods if is_given_up(pod, fleet))
    message = next(filter(None, messages), None)
    if message is not None:
        return why_unschedulable(message)
    return back.reason if back else NO_GPU


def given_back(
    back: UnschedulableBackoff | None, state: ModelState, decision: Decision, fleet: Fleet
) -> UnschedulableBackoff | None:
    """Count how often pods were asked for and given back, until a node takes one or none waits."""
    asked, why = state.replicas, unplaced_reason(state, back, fleet)
    placed = sum(pod.scheduled_at_s is not None and not pod.is_deleting for pod in state.pods)
    if back is not None:
        back = _carried_out(back, asked, fleet)
        may_ask = fleet.now_s >= retry_at_s(back, fleet.settings)
        # Where more are wanted than are asked for they wait, too.
        has_none_waiting = may_ask and placed >= max(asked, decision.replicas)
        back = None if placed > back.placed or has_none_waiting else back
    is_less = decision.replicas < asked and any(is_given_up(pod, fleet) for pod in state.pods)
    if is_less and any(reason.code == why for reason in decision.reasons):
        at_s, times = (back.at_s, back.times) if back else (fleet.now_s, 0)
        back = UnschedulableBackoff(at_s=at_s, times=times, placed=placed, reason=why, asked=asked)
    return back


def _carried_out(back: UnschedulableBackoff, asked: int, fleet: Fleet) -> UnschedulableBackoff:
    """Count pods as given back once fewer are asked for: once, until they are asked for again."""
    if back.asked is None or asked >= back.asked:
        return back
    is_again = back.times == 0 or fleet.now_s >= retry_at_s(back, fleet.settings)
    return replace(back, at_s=fleet.now_s, times=back.times + is_again, asked=None)


OVERDUE_SHARE = 0.25
"""Of a start, that a pod which takes longer than others did is given again and again."""


def lead_s(learned: ObjectPosterior, settings: Settings) -> float:
    """Return the time until a replica is Ready that is asked for now.

    A tick, the wait for a node, and a slow start on it.
    """
    start_s = settings.cold_start_s if learned.cold_start_s is None else learned.cold_start_s
    return learned.node_wait_s + start_s + learned.cold_start_deviation_s + settings.tick_s


def scale_down_window_s(learned: ObjectPosterior, settings: Settings) -> float:
    """Return the time for which a lower need must have held: longer where starts are long.

    What is taken away too early is missed for a lead, what is kept too long costs a lead or two.
    """
    return max(settings.scale_down_window_s, STARTS[0] * lead_s(learned, settings))


def held_s(
    known: DemandMemory, learned: ObjectPosterior, sizing: Sizing, settings: Settings
) -> float:
    """Return the same, or longer where demand is known to come back."""
    starts = held_starts(known.history.kept.held, quantile=promised_quantile(sizing))
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
    known, count = memory.demand, demand.newest
    most, unit = sizing.most_requests_per_s, memory_key(sizing.request, sizing.flags)
    before = known.most_requests_per_s
    if before and known.unit not in {"", unit}:  # other engines run than when it was noted
        known = replace(known, history=rescale(known.history, before / most))
    if known.past:
        scv = sizing.request.arrival_scv
        known = replace(known, history=with_past(known.history, known.past, most, scv=scv))
    sure = without_chance(count.requests, scv=sizing.request.arrival_scv) if count else 0.0
    lead, now = lead_s(memory.posterior, fleet.settings), demand.requests_per_s / most
    planned = [now, *(each.requests_per_s / most for each in events)]
    if is_note_due(known.history, fleet.now_s):
        planned.append(forecast(known.history, at_s=fleet.now_s, demand=now, lead_s=lead).demand)
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
        learned = replace(learned, demand=history.kept)
    known = DemandMemory(history=history, unit=unit, most_requests_per_s=most)
    return replace(memory, demand=known, posterior=learned)


def unseen_room(requests_per_s: float, chosen: Chosen, settings: Settings) -> float:
    """Return the headroom while no demand was measured.

    0 where replicas beside the plan would break a bound, take what other objects plan for, wait for
    somebody, never come, or keep no promise.
    """
    scaling, room = chosen.model.spec.scaling, unmeasured_headroom(chosen.sizing.request)
    if scaling.mode != AUTO or settings.max_gpus is not None:
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
    now = requests_per_s / most
    expected = forecast(known.history, at_s=fleet.now_s, demand=now, lead_s=lead)
    burst_requests_per_s, burst_origin = declared_burst(chosen)
    reserved = reserved_requests_per_s(known, learned, sizing)
    if reserved > burst_requests_per_s:
        burst_requests_per_s = reserved
        evidence = "learned from late requests" if learned.burst_factor else "as assumed"
        burst_origin = (
            f"in the last day bursts shorter than a start ({format_s(lead)}) had "
            f"{1 + burst_share(known, sizing):.1f} times the usual rate; "
            f"{burst_factor(learned):.2g} times their excess is planned, {evidence}"
        )
    return Outlook(
        requests_per_s=expected.demand * most,
        origin=f"by {expected.origin}",
        headroom=headroom(known.history.kept.rises, quantile=promised_quantile(sizing)),
        burst_requests_per_s=burst_requests_per_s,
        burst_origin=burst_origin,
    )


def declared_burst(chosen: Chosen) -> tuple[float, str]:
    """Return (requests/s, origin) of the peak that spec.demand states; 0: it states none."""
    peak = requests_per_s_asked(chosen.sizing) if chosen.sizing.request.demand.is_peak else None
    return (peak, "by spec.demand.peakPercent") if peak else (0.0, "")


GAP_TICKS = 4
"""Without a tick for so many intervals, the window is not known to be quiet. Intervals are as long
as the last ones were: a fleet whose ticks are slow is watched as well as it can be."""


def remember_need(
    found: Assessment, chosen: Chosen, wanted: Need, fleet: Fleet, hold_s: float
) -> DecisionMemory:
    """Add this moment to the window that scaling down looks at: what a later one tops is left out.

    A need that stands on missing data proves nothing: what is there counts as needed. The window
    begins with the first decision, however late that comes, and anew after a gap without ticks.
    """
    known, settings = found.memory.decided, fleet.settings
    recent = known.recent_needs
    if not recent or fleet.now_s - recent[-1].at_s > GAP_TICKS * max(settings.tick_s, fleet.pace_s):
        known, recent = replace(known, since_s=fleet.now_s), ()
    needed = wanted.replicas_with_margin
    if found.traffics.metrics is not Metrics.COMPLETE and found.state.deployment:
        needed = max(needed, found.state.deployment.replicas)
    kept = [each for each in recent if fleet.now_s - each.at_s < hold_s and each.replicas > needed]
    new = Needed(at_s=fleet.now_s, replicas=needed, served=chosen.replica_goodput)
    return replace(known, recent_needs=(*kept, new))


def needs_in_replicas_of_now(
    needs: Iterable[Needed], now: ReplicaGoodput
) -> tuple[tuple[float, int], ...]:
    """Return (time, replicas) of needs, told in replicas that serve what they do now.

    Each is told from how it was counted, so a belief that wavers takes nothing away twice.
    """
    return tuple((each.at_s, _replicas_now(each, now)) for each in needs)


def _replicas_now(need: Needed, now: ReplicaGoodput) -> int:
    before = need.served
    if (before.engine, before.workload, before.slo) != (now.engine, now.workload, now.slo):
        return need.replicas  # of other engines, or in other requests
    return math.ceil(min(1.0, before.requests_per_s / now.requests_per_s) * need.replicas)


def need_for_demand(found: Assessment, memory: ObjectMemory, chosen: Chosen, fleet: Fleet) -> Need:
    """Return the need for what is measured, else for what was last measured, else expected."""
    demand = found.traffics.demand
    needed = partial(need, chosen.capacity, drain_s=fleet.settings.backlog_drain_s)
    if demand is not None:
        return needed(
            CurrentTraffic(requests_per_s=demand.requests_per_s, waiting=demand.waiting),
            outlook=outlook_of(demand.requests_per_s, chosen, memory, fleet),
            supply=supply_of(found.state, memory.posterior, fleet),
        )
    if memory.traffic.measured is not None:
        last = replace(memory.traffic.measured, origin="last measured")
        burst, why = declared_burst(chosen)
        outlook = Outlook(
            requests_per_s=last.requests_per_s,
            origin="as last measured",
            burst_requests_per_s=burst,
            burst_origin=why,
        )
        return needed(last, outlook=outlook)
    expected = requests_per_s_asked(chosen.sizing)
    if expected is None:
        return need_without_demand(chosen.model.spec.scaling.min_replicas)
    which = "peak of" if chosen.sizing.request.demand.is_peak else "expected by"
    traffic = CurrentTraffic(requests_per_s=expected, origin=f"{which} spec.demand")
    begins = found.traffics.metrics is Metrics.NEVER
    outlook = Outlook(
        requests_per_s=expected,
        origin="by spec.demand",
        headroom=unseen_room(expected, chosen, fleet.settings) if begins else 0.0,
        headroom_origin="until it is measured",
    )
    return needed(traffic, outlook=outlook)
