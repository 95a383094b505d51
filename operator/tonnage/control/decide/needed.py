"""What is needed now, and what was of late: the window that scaling down looks at.

Replicas are held because demand may come back. A belief that engines are slow does not: what took N
of these takes fewer by as much as one is known to serve more by now, in the same requests and with
what promises have shown. Where they turn out slower than they were believed to be, as many stay.
"""

import math
from collections.abc import Iterable
from dataclasses import replace
from functools import partial

from tonnage.control.decide.outlook import (
    declared_burst,
    outlook_of,
    supply_of,
    unseen_room,
)
from tonnage.control.input.memory import DecisionMemory, Needed, ObjectMemory, ReplicaGoodput
from tonnage.control.input.state import Assessment, Chosen, Fleet
from tonnage.policy.need import CurrentTraffic, Outlook, need, need_without_demand
from tonnage.policy.situation import Metrics, Need
from tonnage.sizing.plan import requests_per_s_asked

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


def carry_last_need(known: DecisionMemory, now_s: float) -> DecisionMemory:
    """Carry the last recommendation forward: skipped ticks end no stabilization window."""
    recent = known.recent_needs
    if not recent:
        return known
    return replace(known, recent_needs=(*recent[:-1], replace(recent[-1], at_s=now_s)))


def needs_in_replicas_of_now(
    needs: Iterable[Needed], now: ReplicaGoodput
) -> tuple[tuple[float, int], ...]:
    """Return (time, replicas) of needs, told in replicas that serve what they do now.

    Each is told from how it was counted, so a belief that wavers takes nothing away twice.
    """
    return tuple((each.at_s, _replicas_now(each, now)) for each in needs)


def _replicas_now(need: Needed, now: ReplicaGoodput) -> int:
    before = need.served
    is_same = (before.engine, before.workload, before.slo) == (now.engine, now.workload, now.slo)
    if not is_same:
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
