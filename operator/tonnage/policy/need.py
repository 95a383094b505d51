"""The need: replicas for the demand and, beside it, to drain what is waiting."""

from dataclasses import dataclass

from tonnage.api.status import Reason
from tonnage.policy.situation import Need
from tonnage.sizing.plan import Sizing
from tonnage.units import format_s, significant

DOWN_MARGIN = 0.04
"""Replicas are taken away only if the rest would serve this much more than the demand."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """What arrives and what waits."""

    requests_per_s: float
    waiting: float = 0.0
    origin: str = "measured"


def need(sizing: Sizing, traffic: Traffic, *, drain_s: float, goodput_factor: float = 1.0) -> Need:
    """Return the replicas for a traffic, with reasons.

    The backlog counts as further demand over the time in which it is to be drained.
    ``goodput_factor``: of what the sizing says that a replica serves, what it is believed to.
    """
    rate = traffic.requests_per_s

    def replicas_for(requests_per_s: float) -> int:
        return sizing.replicas_for(requests_per_s / goodput_factor)

    for_demand = replicas_for(rate)
    with_backlog = replicas_for(rate + traffic.waiting / drain_s)
    each = significant(goodput_factor * sizing.goodput_requests_per_s)
    reasons = [
        Reason(
            code="Demand",
            message=f"{significant(rate)} requests/s ({traffic.origin}) at {each} per replica "
            f"need {for_demand}",
        )
    ]
    if with_backlog > for_demand:
        message = (
            f"{significant(traffic.waiting)} waiting, to be drained in {format_s(drain_s)}, "
            f"need {with_backlog}"
        )
        reasons.append(Reason(code="Backlog", message=message))
    margin = replicas_for(rate * (1 + DOWN_MARGIN) + traffic.waiting / drain_s)
    return Need(
        replicas=with_backlog,
        replicas_with_margin=max(with_backlog, margin),
        reasons=tuple(reasons),
    )


def need_without_demand(minimum: int) -> Need:
    """Return the need where no traffic is given or was ever seen: the smallest fleet allowed."""
    message = f"no demand is given and none was seen: minReplicas {minimum}"
    reason = Reason(code="NoDemand", message=message)
    return Need(replicas=minimum, replicas_with_margin=minimum, reasons=(reason,))
