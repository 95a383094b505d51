"""When something learned is worth a write, and which of it stays where there is no room for all."""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from tonnage.estimate.calibration import Calibrations, Scope, is_material
from tonnage.estimate.kept_record import is_news
from tonnage.estimate.posterior import MemoryReport, ObjectPosterior, SpeedPosterior
from tonnage.estimate.stored import dump, entry_of, text_of
from tonnage.units import KIB

MAX_BYTES: Final = 768 * KIB
"""A ConfigMap ends at 1 MiB, managedFields and names included."""
DEVIATION_SHARE, DEVIATION_FLOOR = 0.3, 0.01
"""A doubt is worth a write when it changed by both: the share of itself, and of the constant."""
EVIDENCE_GROWTH: Final = 4
ENOUGH_WINDOWS, ENOUGH_REQUESTS = 16, 500
"""More evidence than this changes little of how fast a constant moves, so is not written alone."""
NOBODY: Final = ""
"""In place of the namespace of what belongs to no object that is there."""


def has_moved(before: Calibrations, after: Calibrations) -> bool:
    """Tell whether anything is new, or differs enough from what was written, to be written."""
    return (
        _any_moved(before.speed, after.speed, _speed_moved)
        or _any_moved(before.memory, after.memory, _memory_moved)
        or _any_moved(before.objects, after.objects, _object_moved)
    )


def _any_moved(before: Mapping[Any, Any], after: Mapping[Any, Any], moved: Any) -> bool:
    return any(
        known is None or (known is not entry and moved(known, entry))
        for known, entry in ((before.get(key), entry) for key, entry in after.items())
    )


def _speed_moved(before: SpeedPosterior, after: SpeedPosterior) -> bool:
    return (
        any(map(is_material, before.constants, after.constants))
        or any(map(_deviation_moved, before.variances, after.variances))
        or _evidence_moved(before.num_windows, after.num_windows, ENOUGH_WINDOWS)
    )


def _memory_moved(before: MemoryReport, after: MemoryReport) -> bool:
    return is_material(before.kv_tokens, after.kv_tokens)


def _object_moved(before: ObjectPosterior, after: ObjectPosterior) -> bool:
    return (
        is_material(before.goodput_factor, after.goodput_factor)
        or _optional_moved(before.burst_factor, after.burst_factor)
        or _evidence_moved(before.num_judged, after.num_judged, ENOUGH_REQUESTS)
        or _optional_moved(before.cold_start_s, after.cold_start_s)
        or is_material(before.node_wait_s, after.node_wait_s)
        or _optional_moved(before.kv_tokens, after.kv_tokens)
        or before.memory_key != after.memory_key
        or before.slots_moved_at_s != after.slots_moved_at_s
        or before.planned_split != after.planned_split
        or (after.demand is not None and is_news(before.demand, after.demand))
    )


def _optional_moved(before: float | None, after: float | None) -> bool:
    return before is not None if after is None else is_material(before, after)


def _deviation_moved(variance_before: float, variance_after: float) -> bool:
    before, after = (math.sqrt(max(0.0, each)) for each in (variance_before, variance_after))
    change = abs(after - before)
    return change > DEVIATION_FLOOR and change > DEVIATION_SHARE * before


def _evidence_moved(before: float, after: float, enough: float) -> bool:
    """Tell whether evidence multiplied while it was little, or most of it is gone."""
    known, now = min(before, enough), min(after, enough)
    grew = now > known and now >= min(enough, max(1.0, EVIDENCE_GROWTH * known))
    return grew or now < known / 2


Place = tuple[str, Scope | str]
"""Of what kind, and its key there."""


class _Candidate(NamedTuple):
    at_s: float
    place: Place
    namespace: str
    num_bytes: int


def fitting(
    known: Calibrations, *, live: Mapping[str, str], max_bytes: int = MAX_BYTES
) -> Calibrations:
    """Return what fits; ``live``: namespaces of the objects that are there, by UID.

    What belongs to none of them goes first, the oldest of it first. Then each time the oldest of
    the namespace that takes most: who learns under ever new keys displaces its own.
    """
    excess = len(dump(known)) - max_bytes
    if excess <= 0:
        return known
    rooms, used = defaultdict[str, list[_Candidate]](list), defaultdict[str, int](int)
    for each in sorted(_candidates(known, live), reverse=True):
        rooms[each.namespace].append(each)
        used[each.namespace] += each.num_bytes
    evicted = set[Place]()
    while excess > 0 and any(rooms.values()):
        largest = max(used, key=lambda name: (used[name], name))
        namespace = NOBODY if rooms[NOBODY] else largest
        oldest = rooms[namespace].pop()
        evicted.add(oldest.place)
        used[namespace] -= oldest.num_bytes
        excess -= oldest.num_bytes
    return Calibrations(
        speed={at: each for at, each in known.speed.items() if ("speed", at) not in evicted},
        memory={at: each for at, each in known.memory.items() if ("memory", at) not in evicted},
        objects={at: each for at, each in known.objects.items() if ("objects", at) not in evicted},
    )


def _candidates(known: Calibrations, live: Mapping[str, str]) -> Iterator[_Candidate]:
    namespaces = set(live.values())

    def of_scope(kind: str, scope: Scope, at_s: float, entry: object) -> _Candidate:
        owner = scope.namespace if scope.namespace in namespaces else NOBODY
        return _Candidate(at_s, (kind, scope), owner, _size(scope.key, entry))

    for scope, speed in known.speed.items():
        yield of_scope("speed", scope, speed.learned_at_s, speed)
    for scope, report in known.memory.items():
        yield of_scope("memory", scope, report.reported_at_s, report)
    for uid, each in known.objects.items():
        owner = live.get(uid, NOBODY)
        yield _Candidate(each.judged_at_s, ("objects", uid), owner, _size(uid, each))


def _size(key: str, entry: object) -> int:
    """Return the bytes that an entry takes, with a comma before or after it."""
    return len(text_of({key: entry_of(entry)})) - 1
