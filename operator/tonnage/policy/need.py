"""The need: replicas for the demand to come and, beside it, for what will be waiting then."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from tonnage.api.status import Reason
from tonnage.policy.situation import Need
from tonnage.sizing.cost import fleet_usd_per_hour
from tonnage.sizing.plan import Sizing
from tonnage.sizing.schedules import Event, floor_of
from tonnage.units import count_of, format_s, significant

DOWN_MARGIN = 0.03
"""Replicas are taken away only if the rest would serve this much more than the demand: plans are
asked with lengths up to so far from those measured, and an answer that moves by it is no reason to
add a replica again. Headroom that is kept anyway is room enough."""
DRAIN_S = 300.0
"""In which the backlog of a start that long is drained. A replica that is added for it stays for
some starts, and the backlog grows with the start too: the time goes with its square, so that
draining costs the same however long a start takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CurrentTraffic:
    """What arrives and what waits."""

    requests_per_s: float
    waiting: float = 0.0
    origin: str = "measured"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """What is expected of the time when a replica that is asked for now is Ready."""

    requests_per_s: float
    origin: str
    headroom: float = 0.0
    """Share to add: demand rises so far above what was expected."""
    headroom_origin: str = "during a start, as it did before"
    burst_requests_per_s: float = 0.0
    """That comes at times, and is over before a replica could be Ready."""
    burst_origin: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Supply:
    """Replicas that serve, and when the others will."""

    ready: int
    due_s: tuple[float, ...]
    """From now until each of those in flight is Ready, ascending."""
    lead_s: float
    """Until one is that is asked for now."""


NO_LEAD = Supply(ready=0, due_s=(), lead_s=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """What replicas serve: by a sizing, and by what promises kept and broken leave of it."""

    sizing: Sizing
    goodput_factor: float = 1.0

    def each_requests_per_s(self, num_replicas: int) -> float:
        """Return what one of so many replicas serves within every target."""
        return self.goodput_factor * self.sizing.staffing.each(num_replicas)

    @property
    def most_requests_per_s(self) -> float:
        """That a replica serves where promises do not matter."""
        most = max(self.sizing.most_requests_per_s, self.sizing.goodput_requests_per_s)
        return self.goodput_factor * most

    def replicas(self, requests_per_s: float) -> int:
        return self.sizing.replicas_for(requests_per_s / self.goodput_factor)

    def replicas_draining(self, requests_per_s: float, backlog_per_s: float) -> int:
        """Return the replicas that serve a rate and a backlog beside; 0: there is none."""
        if backlog_per_s <= 0:
            return 0
        return math.ceil((requests_per_s + backlog_per_s) / self.most_requests_per_s)


def need(
    capacity: Capacity,
    traffic: CurrentTraffic,
    *,
    drain_s: float,
    outlook: Outlook | None = None,
    supply: Supply = NO_LEAD,
) -> Need:
    """Return the replicas for a traffic, with reasons.

    ``drain_s``: the least time that replicas which are added are given to drain a backlog.
    """
    rate, reasons = _planned_rate(capacity, traffic, outlook, supply.lead_s)
    for_rate = capacity.replicas(rate)
    time_s = max(drain_s, supply.lead_s**2 / DRAIN_S)
    backlog = backlog_left(traffic, supply, capacity.most_requests_per_s)
    draining = capacity.replicas_draining(traffic.requests_per_s, backlog / time_s)
    if draining > for_rate:
        reasons.append(_backlog_reason(traffic, supply, backlog, time_s, draining))
    more = max(rate, (1 + DOWN_MARGIN) * traffic.requests_per_s)
    rest = capacity.replicas_draining(more, traffic.waiting / time_s)
    return Need(
        replicas=max(for_rate, draining),
        replicas_with_margin=max(for_rate, draining, capacity.replicas(more), rest),
        reasons=tuple(reasons),
        planned_requests_per_s=rate,
    )


def _planned_rate(
    capacity: Capacity, traffic: CurrentTraffic, outlook: Outlook | None, lead_s: float
) -> tuple[float, list[Reason]]:
    """Return the rate to plan for: what comes, what is expected to, and a reserve for bursts."""
    rate = traffic.requests_per_s
    needed = capacity.replicas(rate)
    message = (
        f"{significant(rate)} requests/s ({traffic.origin}) at "
        f"{significant(capacity.each_requests_per_s(needed))} per replica need {needed}"
    )
    reasons = [Reason(code="Demand", message=message)]
    if outlook is None:
        return rate, reasons
    if outlook.requests_per_s > rate:
        reasons += _forecast_reasons(capacity, rate, outlook, lead_s)
        rate = outlook.requests_per_s
    room, burst = outlook.headroom, outlook.burst_requests_per_s
    more = rate * (1 + room)
    if more > rate:
        text = f"{room:.0%} more, as demand may exceed the forecast {outlook.headroom_origin},"
        reasons += _reasons_for_more("Headroom", text, capacity, rate, more)
    if burst > more:
        text = f"{significant(burst)} requests/s in bursts ({outlook.burst_origin})"
        reasons += _reasons_for_more("Reserve", text, capacity, more, burst)
    return max(more, burst), reasons


def backlog_left(traffic: CurrentTraffic, supply: Supply, most_requests_per_s: float) -> float:
    """Return the requests that wait when a replica that is asked for now is Ready.

    Those in flight count from when they will be; what waits is served as fast as engines can,
    ``most_requests_per_s`` by each of them.
    """
    backlog, at_s, ready = traffic.waiting, 0.0, supply.ready
    for due_s in (*(due for due in supply.due_s if due < supply.lead_s), supply.lead_s):
        growth = traffic.requests_per_s - ready * most_requests_per_s
        backlog = max(0.0, backlog + (due_s - at_s) * growth)
        at_s, ready = due_s, ready + 1
    return backlog


def _forecast_reasons(
    capacity: Capacity, rate: float, outlook: Outlook, lead_s: float
) -> list[Reason]:
    """Say what the outlook adds, if it adds a replica."""
    needed = capacity.replicas(outlook.requests_per_s)
    if needed == capacity.replicas(rate):
        return []
    message = (
        f"{significant(outlook.requests_per_s)} requests/s in {format_s(lead_s)}, when a "
        f"replica asked for now is Ready ({outlook.origin}), need {needed}"
    )
    return [Reason(code="Forecast", message=message)]


def _reasons_for_more(
    code: str, text: str, capacity: Capacity, rate: float, more: float
) -> list[Reason]:
    """Say what a higher rate adds and costs, if it adds a replica."""
    before, needed = capacity.replicas(rate), capacity.replicas(more)
    if needed <= before:
        return []
    gpu, num_gpus = capacity.sizing.request.gpu, capacity.sizing.parallelism.num_gpus
    usd, added = fleet_usd_per_hour(gpu, gpus_per_replica=num_gpus, replicas=1), needed - before
    price = "" if usd is None else f" ({added * usd:.2f} {gpu.price.currency} per hour)"
    return [Reason(code=code, message=f"{text} need {needed}, {added} more{price}")]


def _backlog_reason(
    traffic: CurrentTraffic, supply: Supply, backlog: float, time_s: float, replicas: int
) -> Reason:
    text = f"{significant(traffic.waiting)} queued now"
    if supply.lead_s:
        text += f", {significant(backlog)} will be queued in {format_s(supply.lead_s)}"
        if supply.due_s:
            text += f" with {count_of(len(supply.due_s), 'more replica')} on the way"
    message = f"{text}: to drain them in {format_s(time_s)} needs {replicas}"
    return Reason(code="Backlog", message=message)


def need_without_demand(minimum: int) -> Need:
    """Return the need where no traffic is given or was ever seen: the smallest fleet allowed."""
    message = f"no demand is configured and none was measured: minReplicas {minimum}"
    reason = Reason(code="NoDemand", message=message)
    return Need(replicas=minimum, replicas_with_margin=minimum, reasons=(reason,))


def raise_to_floor(wanted: Need, capacity: Capacity, events: Iterable[Event]) -> Need:
    """Return the need with the highest floor of the events; a floor below it changes nothing."""
    floors = [(floor_of(event, capacity.replicas), event) for event in events]
    if not floors:
        return wanted
    replicas, event = max(floors, key=lambda each: each[0])
    if replicas <= wanted.replicas:
        return replace(wanted, floor=replicas)
    return replace(
        wanted,
        floor=replicas,
        planned_requests_per_s=max(wanted.planned_requests_per_s or 0.0, event.requests_per_s),
        replicas=replicas,
        replicas_with_margin=max(replicas, wanted.replicas_with_margin),
        reasons=(*wanted.reasons, _reason(event, capacity, replicas)),
    )


def _reason(event: Event, capacity: Capacity, replicas: int) -> Reason:
    if replicas == event.schedule.min_replicas:
        return Reason(code="Schedule", message=f"{event}: minReplicas {replicas}")
    message = (
        f"{event}: {significant(event.requests_per_s)} requests/s at "
        f"{significant(capacity.each_requests_per_s(replicas))} per replica need {replicas}"
    )
    return Reason(code="Schedule", message=message)
