"""Known events: which are in force at a time, and for which share of a year.

A schedule begins as Debian's cron runs a job. What would begin within an hour that the clock skips
begins right after it; what begins in one that comes twice does so once, in the first of them, as
long as neither minute nor hour is given with a star. Its duration is time that passes.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from zoneinfo import ZoneInfo

from cronsim import CronSim

from tonnage.api.schedules import Schedule
from tonnage.units import DAY_S, HOUR_S, MINUTE_S, seconds

REMEMBERED = 4096
"""Beginnings: by schedule and hour or minute, so that no tick need look for them again."""
YEAR_FROM_S, YEAR_S = 1_767_225_600.0, 365 * DAY_S
"""The year that is paid for: 2026, in UTC."""
MOST_CHANGES = 4_000
"""Events that begin or end within it; of more, the time that these take stands for the year."""


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
    found = []
    for schedule in schedules:
        length_s = seconds(schedule.duration)
        begins_s = _next_beginning(schedule, now_s - length_s)
        if begins_s <= now_s + lead_s:
            event = Event(
                schedule=schedule,
                begins_s=begins_s,
                ends_s=begins_s + length_s,
                has_begun=begins_s <= now_s,
            )
            found.append(event)
    return tuple(found)


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


def floor_of(event: Event, replicas_for: Callable[[float], int]) -> int:
    """Return the replicas that an event needs at least."""
    rate = event.requests_per_s
    return max(event.schedule.min_replicas or 0, replicas_for(rate) if rate else 0)


def shares_of_year(
    schedules: tuple[Schedule, ...],
    replicas: Sequence[int],
    replicas_for: Callable[[float], int],
    *,
    begins_s: float = YEAR_FROM_S,
    step_s: float = YEAR_S,
) -> list[dict[int, float]]:
    """Return for which share of each step how many replicas run: the most that an event asks for.

    ``replicas``: of each step beside the events. Steps come again all year, from a Unix time on.
    """
    time_s, at_s = [dict[int, float]() for _ in replicas], YEAR_FROM_S - begins_s
    step = math.floor(at_s / step_s)
    for length_s, events in _year_of(schedules):
        floor = max((floor_of(each, replicas_for) for each in events), default=0)
        until_s = at_s + length_s
        while at_s < until_s:
            place, next_s = step % len(replicas), min(until_s, (step + 1) * step_s)
            number = max(replicas[place], floor)
            time_s[place][number] = time_s[place].get(number, 0.0) + next_s - at_s
            step, at_s = step + (next_s < until_s), next_s
    return [
        {number: each / sum(some.values()) for number, each in some.items()} or {usual: 1.0}
        for usual, some in zip(replicas, time_s, strict=True)
    ]


@lru_cache(maxsize=16)
def _year_of(schedules: tuple[Schedule, ...]) -> tuple[tuple[float, tuple[Event, ...]], ...]:
    """Return the seconds between any two changes, and the events in force meanwhile."""
    found = list[tuple[float, tuple[Event, ...]]]()
    at_s, until_s = YEAR_FROM_S, YEAR_FROM_S + YEAR_S
    while at_s < until_s and len(found) < MOST_CHANGES:
        events = events_within(schedules, now_s=at_s, lead_s=YEAR_S)
        changes = (each.ends_s if each.has_begun else each.begins_s for each in events)
        next_s = min([until_s, *changes])
        found.append((next_s - at_s, tuple(each for each in events if each.has_begun)))
        at_s = next_s
    return tuple(found)
