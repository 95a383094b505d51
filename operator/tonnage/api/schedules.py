"""Known events: when they begin, how long they last, and what is needed while they do."""

from datetime import UTC, datetime
from typing import Annotated
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError
from pydantic import AfterValidator, Field

from tonnage.api.base import ApiModel, Rule, matches
from tonnage.api.fields import LongDuration, Rate

_CRON_WORD = "([*]|[0-9]{1,2}|[A-Za-z]{3})"
_CRON_TERM = f"{_CRON_WORD}(-{_CRON_WORD})?(/[0-9]{{1,2}})?"
_CRON_FIELD = f"{_CRON_TERM}(,{_CRON_TERM})*"
_CRON_PATTERN = f"^{_CRON_FIELD}( {_CRON_FIELD}){{4}}$"
"""Without L, W and #, which not every cron knows: what is left begins again within 50 years."""
_CRON_MESSAGE = "must be a cron expression with five fields, such as 0 8 * * 1-5"
_ANY_TIME = datetime(2000, 1, 1, tzinfo=UTC)


def _checked_cron(value: str) -> str:
    try:
        CronSim(value, _ANY_TIME)
    except CronSimError as error:
        raise ValueError(f"{_CRON_MESSAGE}: {str(error).lower()}") from error
    return value


Cron = Annotated[
    str,
    Field(max_length=100),
    matches(_CRON_PATTERN, _CRON_MESSAGE),
    AfterValidator(_checked_cron),
]
_ZONE_PATTERN = "^[A-Z][A-Za-z0-9+-]{0,13}(/[A-Z][A-Za-z0-9_+-]{0,30}){0,2}$"
"""Begins with a capital: localtime is another zone on each machine."""
_ZONE_MESSAGE = "must be the name of an IANA time zone, such as Europe/Berlin"


def _checked_zone(value: str) -> str:
    try:
        ZoneInfo(value)
    except (KeyError, ValueError, OSError) as error:  # unknown, no zone's file, a folder
        raise ValueError(f"{_ZONE_MESSAGE}: this name is unknown") from error
    return value


TimeZone = Annotated[
    str,
    Field(max_length=64),
    matches(_ZONE_PATTERN, _ZONE_MESSAGE),
    AfterValidator(_checked_zone),
]


class Schedule(ApiModel):
    """A recurring event. During it, Tonnage plans for at least the given load or replicas."""

    rules = (
        Rule(
            "has(self.minReplicas) || has(self.requestsPerSecond)",
            "needs minReplicas or requestsPerSecond",
            lambda it: it.min_replicas is not None or it.requests_per_second is not None,
        ),
    )

    cron: Cron
    """When the event begins: minute, hour, day of month, month, day of week."""
    time_zone: TimeZone = "Etc/UTC"
    """The IANA time zone of the cron expression, with its daylight saving time."""
    duration: LongDuration
    """How long each event lasts."""
    min_replicas: Annotated[int, Field(ge=1, le=1000)] | None = None
    """The minimum number of replicas during the event."""
    requests_per_second: Rate | None = None
    """The requests per second planned for during the event, unless more are expected anyway."""
