"""Known events: which are in force by the time a replica asked for now is Ready, and their floor.

A schedule begins as Debian's cron runs a job. What would begin within an hour that the clock skips
begins right after it; what begins in one that comes twice does so once, in the first of them, as
long as neither minute nor hour is given with a star. Its duration is time that passes.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from functools import lru_cache
from zoneinfo import ZoneInfo

from cronsim import CronSim

from tonnage.api.schedules import Schedule
from tonnage.api.status import Reason
from tonnage.policy.need import Capacity
from tonnage.policy.situation import Need
from tonnage.units import HOUR_S, MINUTE_S, seconds, significant

REMEMBERED = 4096
"""Beginnings: by schedule and hour or minute, so that no tick need look for them again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One time that a schedule is in force."""

    schedule: Schedule
    begins_s: float
    ends_s: float
    has_begun: bool

    @property
    def requests_per_s(self) -> float:
        """That are to be planned for."""
        return float(self.schedule.requests_per_second or 0)

    def __str__(self) -> str:
        """Say when it begins, or ends, by the clocks of its own zone."""
        zone = self.schedule.time_zone
        at_s, verb = (self.ends_s, "lasts until") if self.has_begun else (self.begins_s, "begins")
        at = datetime.fromtimestamp(at_s, ZoneInfo(zone))
        return f"the event of {self.schedule.cron} {zone} {verb} {at:%Y-%m-%d %H:%M %Z}"


def events_within(
    schedules: Iterable[Schedule], *, now_s: float, lead_s: float
) -> tuple[Event, ...]:
    """Return what is in force at any moment from now until ``lead_s`` later.

    Of each schedule one event, the first: where it begins anew before it ends, it is in force all
    the same.
    """
    return tuple(event for each in schedules for event in _event(each, now_s, lead_s))


def _event(schedule: Schedule, now_s: float, lead_s: float) -> Iterator[Event]:
    length_s = seconds(schedule.duration)
    begins_s = _next_beginning(schedule, now_s - length_s)
    if begins_s <= now_s + lead_s:
        yield Event(
            schedule=schedule,
            begins_s=begins_s,
            ends_s=begins_s + length_s,
            has_begun=begins_s <= now_s,
        )


def _next_beginning(schedule: Schedule, after_s: float) -> float:
    """Return the first beginning after a time: of the hour, or else of the minute.

    Of what begins in every minute the search from the hour on finds the first alone.
    """
    for step_s in (HOUR_S, MINUTE_S):
        from_s = after_s // step_s * step_s
        begins_s = _beginning(schedule.cron, schedule.time_zone, from_s)
        if begins_s > after_s:
            break
    return begins_s


@lru_cache(maxsize=REMEMBERED)
def _beginning(cron: str, time_zone: str, after_s: float) -> float:
    """Return the first beginning after a time.

    Begun within the second of an hour that comes twice, the search also finds what is in the first.
    """
    begins = CronSim(cron, datetime.fromtimestamp(after_s, ZoneInfo(time_zone)))
    return next((at_s for each in begins if (at_s := each.timestamp()) > after_s), math.inf)


def raise_to_floor(wanted: Need, capacity: Capacity, events: Iterable[Event]) -> Need:
    """Return the need with the highest floor of the events; a floor below it changes nothing."""
    floors = [(_floor(event, capacity), event) for event in events]
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


def _floor(event: Event, capacity: Capacity) -> int:
    rate = event.requests_per_s
    return max(event.schedule.min_replicas or 0, capacity.replicas(rate) if rate else 0)


def _reason(event: Event, capacity: Capacity, replicas: int) -> Reason:
    if replicas == event.schedule.min_replicas:
        return Reason(code="Schedule", message=f"{event}: minReplicas {replicas}")
    message = (
        f"{event}: {significant(event.requests_per_s)} requests/s at "
        f"{significant(capacity.each_requests_per_s(replicas))} per replica need {replicas}"
    )
    return Reason(code="Schedule", message=message)
