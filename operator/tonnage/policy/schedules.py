"""The floor that known events put under the replicas, by the time a new one is Ready."""

from collections.abc import Iterable
from dataclasses import replace

from tonnage.api.status import Reason
from tonnage.policy.need import Capacity
from tonnage.policy.situation import Need
from tonnage.sizing.schedules import Event, floor_of
from tonnage.units import significant


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
