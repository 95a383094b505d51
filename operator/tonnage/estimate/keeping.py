"""When something learned is worth a write, and which of it stays where there is no room for all."""

import hashlib
import json
import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, Final, TypeVar

from tonnage.estimate.calibration import Calibrations, Scope, is_material
from tonnage.estimate.checked import entry_of
from tonnage.estimate.kept_history import KEPT_S
from tonnage.estimate.posterior import MemoryReport, ObjectPosterior, SpeedPosterior
from tonnage.estimate.stored import MEMORY, SPEED, dump_objects, dump_shared, object_entry
from tonnage.estimate.stored_history import history_entry
from tonnage.units import KIB

MAX_SHARED_BYTES: Final = 768 * KIB
MAX_SHARD_BYTES: Final = 512 * KIB
"""A ConfigMap ends at 1 MiB, managedFields and names included."""
NUM_SHARDS: Final = 16
DEVIATION_SHARE, DEVIATION_FLOOR = 0.3, 0.01
"""A doubt is worth a write when it changed by both: the share of itself, and of the constant."""
EVIDENCE_GROWTH: Final = 4
ENOUGH_WINDOWS, ENOUGH_REQUESTS = 16, 500
"""More evidence than this changes little of how fast a constant moves, so is not written alone."""
BETWEEN_ENTRIES: Final = len(":{:},")

Learned = TypeVar("Learned")


def shard_of(uid: str) -> int:
    """Return where an object's posterior is kept: the same in every version and process."""
    return hashlib.sha256(uid.encode()).digest()[0] % NUM_SHARDS


def is_look_due(uid: str, *, before_s: float, now_s: float) -> bool:
    """Tell whether an hour ended in which an object's history of demand stays as it was kept.

    Hours end for the objects of a shard at the same time, so that one write keeps them all, and
    for every shard at another time.
    """
    offset_s = shard_of(uid) * KEPT_S / NUM_SHARDS
    return (before_s + offset_s) // KEPT_S != (now_s + offset_s) // KEPT_S


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
        or before.demand != after.demand
        or before.ledger != after.ledger
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Candidate:
    owner: str
    is_live: bool
    at_s: float
    num_bytes: int
    place: tuple[str, ...]


def fitting_shared(
    known: Calibrations, *, live: Collection[str], max_bytes: int = MAX_SHARED_BYTES
) -> Calibrations:
    """Return what fits of the shared constants; ``live``: namespaces that have objects.

    The oldest of other namespaces goes first. Among those that have objects each keeps its
    newest: one that learns under ever new keys displaces its own.
    """
    if len(dump_shared(known)) <= max_bytes:
        return known
    candidates = [
        *(
            _of_scope("speed", scope, each.learned_at_s, entry_of(SPEED, each), live)
            for scope, each in known.speed.items()
        ),
        *(
            _of_scope("memory", place, report.reported_at_s, entry_of(MEMORY, report), live)
            for place, report in known.memory.items()
        ),
    ]
    nothing = replace(known, speed={}, memory={})
    kept = _fitting(candidates, max_bytes - len(dump_shared(nothing)))
    return replace(
        known,
        speed=_kept_scopes(known.speed, "speed", kept),
        memory=_kept_scopes(known.memory, "memory", kept),
    )


def _of_scope(
    kind: str, scope: Scope, at_s: float, entry: Mapping[str, Any], live: Collection[str]
) -> _Candidate:
    return _Candidate(
        owner=scope.namespace,
        is_live=scope.namespace in live,
        at_s=at_s,
        num_bytes=_size(entry, *scope),
        place=(kind, *scope),
    )


def _kept_scopes(
    entries: Mapping[Scope, Learned], kind: str, kept: Collection[tuple[str, ...]]
) -> dict[Scope, Learned]:
    return {scope: entry for scope, entry in entries.items() if (kind, *scope) in kept}


def fitting_objects(
    objects: Mapping[str, ObjectPosterior],
    *,
    live: Collection[str],
    max_bytes: int = MAX_SHARD_BYTES,
) -> Mapping[str, ObjectPosterior]:
    """Return what fits into a shard; ``live``: UIDs of the objects that are there.

    Ledgers go first, which decide nothing, and all at once; then histories of demand, then the
    oldest of those that are gone.
    """
    if len(dump_objects(objects)) <= max_bytes:
        return objects
    if any(each.ledger for each in objects.values()):
        objects = {uid: replace(each, ledger=None) for uid, each in objects.items()}
        return fitting_objects(objects, live=live, max_bytes=max_bytes)
    objects = _with_fewer_histories(objects, live, max_bytes)
    if len(dump_objects(objects)) <= max_bytes:
        return objects
    candidates = (
        _Candidate(
            owner=uid,
            is_live=uid in live,
            at_s=posterior.judged_at_s,
            num_bytes=_size(object_entry(posterior), uid),
            place=(uid,),
        )
        for uid, posterior in objects.items()
    )
    kept = _fitting(candidates, max_bytes - len(dump_objects({})))
    return {uid: posterior for uid, posterior in objects.items() if (uid,) in kept}


def _with_fewer_histories(
    objects: Mapping[str, ObjectPosterior], live: Collection[str], max_bytes: int
) -> Mapping[str, ObjectPosterior]:
    """Return all objects, with the histories that there is room for beside them."""
    without = {uid: replace(each, demand=None) for uid, each in objects.items()}
    candidates = (
        _Candidate(
            owner=uid,
            is_live=uid in live,
            at_s=posterior.demand.kept_at_s,
            num_bytes=_size(history_entry(posterior.demand), "demand"),
            place=(uid,),
        )
        for uid, posterior in objects.items()
        if posterior.demand is not None
    )
    kept = _fitting(candidates, max_bytes - len(dump_objects(without)))
    return {uid: objects[uid] if (uid,) in kept else each for uid, each in without.items()}


def _size(entry: Mapping[str, Any], *names: str) -> int:
    """Return the bytes that an entry takes at most: as if alone in its namespace."""
    text = json.dumps(entry, separators=(",", ":"))
    return len(text) + sum(len(json.dumps(name)) for name in names) + BETWEEN_ENTRIES


def _fitting(candidates: Iterable[_Candidate], max_bytes: int) -> set[tuple[str, ...]]:
    newest = sorted(candidates, key=lambda each: (-each.at_s, each.place))
    ranks, seen = dict[tuple[str, ...], int](), Counter[str]()
    for each in newest:
        ranks[each.place] = seen[each.owner] if each.is_live else 0
        seen[each.owner] += 1
    order = sorted(newest, key=lambda each: (not each.is_live, ranks[each.place]))
    totals = accumulate(each.num_bytes for each in order)
    return {each.place for each, total in zip(order, totals, strict=True) if total <= max_bytes}
