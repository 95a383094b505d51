"""What is told of an object as an Event: replicas that change, and what turns bad; each once.

A condition is told when it turns bad and when the reason why it is bad changes. While it waits for
a search it says nothing new, and a restart finds in the status what was told before.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from tonnage.api.status import Condition, DecisionStatus
from tonnage.control.input.finding import PENDING
from tonnage.control.input.memory import ReportMemory
from tonnage.control.input.times import age_s
from tonnage.control.report.conditions import CONDITION_TYPES
from tonnage.units import count_of

EVENT_INTERVAL_S: Final = 600
"""One warning of each reason per object in this time, however often it comes and goes."""
LATE_S: Final = 120.0
"""For which what is usual after a start is no Event: Prometheus takes so long for a new monitor."""
USUAL_AT_FIRST: Final = frozenset({"MetricsMissing", "MetricsIncomplete"})
OTHER_WRITER_REASONS: Final = frozenset(
    {"ConflictingWriter", "ConflictingScaler", "ScaledToZeroExternally"}
)
"""Somebody else has a hand in the replicas or the template."""


@dataclass(frozen=True, slots=True)
class EventRecord:
    """An Event to post."""

    reason: str
    message: str
    at: str
    """When what it tells of began; an Event that is posted again has the same."""
    is_warning: bool = False
    is_of_write: bool = False
    """Tells of a write of this tick: not where that fails."""


def event_records(
    known: ReportMemory,
    conditions: Iterable[Condition],
    *,
    scaling: DecisionStatus | None,
    rolling: str | None,
    now_s: float,
) -> tuple[tuple[EventRecord, ...], ReportMemory]:
    """Return the Events of this tick, and the memory of what was told.

    ``scaling``: the decision that is carried out now; ``rolling``: for what pods are replaced now.
    """
    reported = bad_conditions(conditions, known.bad, now_s=now_s)
    posted = dict(known.posted)
    events = []
    if scaling and scaling.time != known.posted_decision:
        known = replace(known, posted_decision=scaling.time)
        after = count_of(scaling.to_replicas, "replica")
        message = f"{scaling.from_replicas} -> {after}: {scaling.message}"
        events.append(EventRecord("Scaled", message, at=scaling.time, is_of_write=True))
    if rolling and rolling != known.posted_roll:
        events.append(EventRecord("RollingPods", rolling, at=str(now_s), is_of_write=True))
    at = str(int(now_s // EVENT_INTERVAL_S))
    for each in conditions:
        if each.reason == PENDING or reported.get(each.type) in {None, known.bad.get(each.type)}:
            continue
        last_s = posted.get(each.reason)
        if last_s is None or now_s - last_s >= EVENT_INTERVAL_S:
            posted[each.reason] = now_s
            events.append(EventRecord(each.reason, each.message, at=at, is_warning=True))
    return tuple(events), replace(known, bad=reported, posted_roll=rolling, posted=posted)


def bad_conditions(
    conditions: Iterable[Condition], before: Mapping[str, str], *, now_s: float
) -> Mapping[str, str]:
    """Return {type: reason} of what is bad; what waits for a search is as bad as it was."""

    def is_told(each: Condition) -> bool:
        kind = CONDITION_TYPES.get(each.type)
        has_event = kind is not None and kind.has_event and kind.is_bad(each)
        if each.reason not in USUAL_AT_FIRST:
            return has_event or each.reason in OTHER_WRITER_REASONS
        since_s = datetime.fromisoformat(each.last_transition_time).timestamp()
        return has_event and age_s(since_s, now_s) >= LATE_S

    reasons = {
        each.type: before.get(each.type) if each.reason == PENDING else each.reason
        for each in conditions
        if each.reason == PENDING or is_told(each)
    }
    return {kind: reason for kind, reason in reasons.items() if reason is not None}
