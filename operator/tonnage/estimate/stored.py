"""What was learned, as text: versioned JSON, each entry checked for itself when it is read.

The form::

    {"version": 4,
     "speed": {NAMESPACE: {KEY: fields of SpeedPosterior}},
     "memory": {NAMESPACE: {KEY: fields of MemoryReport}},
     "objects": {UID: fields of ObjectPosterior}}

What is not known is left out. The types of the fields bound what is read. Figures have six
significant digits, times are whole unix seconds, and covariances have nine digits: near-singular
ones lose their definiteness to less.
"""

import json
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, dataclass, fields, replace
from typing import Annotated, Any, Final, NamedTuple, TypeVar

from msgspec import Meta, ValidationError, convert, to_builtins

from tonnage.estimate.calibration import Calibrations, Scope, is_material
from tonnage.estimate.headroom import LONGEST_NAME, is_news
from tonnage.estimate.posterior import MemoryReport, ObjectPosterior, SpeedPosterior, repair
from tonnage.units import KIB

VERSION: Final = 4
"""Raised when the meaning of a stored figure changes."""
DIGITS: Final = 6
COVARIANCE_DIGITS: Final = 9
STARTS: Final = ("cold_start_s", "cold_start_deviation_s", "node_wait_s", "num_starts")
PARTS: Final[tuple[tuple[str, ...], ...]] = (STARTS, ("demand",), ("trial", "unmended"))
"""Fields of an object that go alone where one of them cannot be."""

Key = Annotated[str, Meta(min_length=1, max_length=LONGEST_NAME)]
Entry = TypeVar("Entry")


class NewerStateError(ValueError):
    """Written by a later version of the operator, which must find it again."""


class CorruptedStateError(ValueError):
    """No state that this version reads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """What was read, and how much of it could not be taken over."""

    calibrations: Calibrations
    num_dropped: int = 0
    """Entries with a figure that we would not write."""
    num_widened: int = 0
    """Covariances that were none."""


def dump(known: Calibrations) -> str:
    """Write all that was learned."""
    sections = {
        "speed": _by_namespace(known.speed),
        "memory": _by_namespace(known.memory),
        "objects": {uid: entry_of(each) for uid, each in known.objects.items()},
    }
    return text_of({"version": VERSION, **sections})


def text_of(value: object) -> str:
    """Return JSON without blanks, in one order."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def entry_of(value: Any) -> dict[str, Any]:
    """Return the fields of a value as they are written, without those that are as at first."""
    found = ((each, getattr(value, each.name)) for each in fields(value))
    return {
        each.name: _written(each.name, to_builtins(figure))
        for each, figure in found
        if each.default is MISSING or figure != each.default
    }


def _written(name: str, value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_written(name, each) for each in value]
    if not isinstance(value, float):
        return value
    if name.endswith("_at_s"):
        return round(value)
    return float(f"{value:.{COVARIANCE_DIGITS if name == 'covariance' else DIGITS}g}")


def _by_namespace(entries: Mapping[Scope, object]) -> dict[str, dict[str, Any]]:
    sections: dict[str, dict[str, Any]] = {}
    for scope, entry in entries.items():
        sections.setdefault(scope.namespace, {})[scope.key] = entry_of(entry)
    return sections


def load(text: str) -> Loaded:
    """Read what was learned.

    Raises:
        NewerStateError: of a later version.
        CorruptedStateError: of an older one, or of none at all.
    """
    state = _document(text)
    reader = _Reader()
    known = Calibrations(
        speed=reader.by_scope(state.get("speed", {}), reader.speed),
        memory=reader.by_scope(state.get("memory", {}), reader.memory),
        objects=reader.entries(state.get("objects", {}), reader.of_object),
    )
    return Loaded(
        calibrations=known,
        num_dropped=reader.num_dropped,
        num_widened=reader.num_widened,
    )


def _document(text: str) -> Mapping[str, Any]:
    try:
        state = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CorruptedStateError(f"not JSON: {type(error).__name__}") from error
    version = state.get("version") if isinstance(state, dict) else None
    if isinstance(version, bool) or not isinstance(version, int):
        raise CorruptedStateError("not an object with a version")
    if version > VERSION:
        raise NewerStateError(f"version {version}, this operator knows up to {VERSION}")
    if version < VERSION:
        raise CorruptedStateError(f"version {version} is no longer supported")
    return dict(state)


class _Reader:
    """Reads entry by entry, and counts those that are none."""

    def __init__(self) -> None:
        self.num_dropped = self.num_widened = 0

    def by_scope(self, found: Any, read: Callable[[Any], Entry]) -> dict[Scope, Entry]:
        return {
            Scope(namespace, key): entry
            for namespace, entries in self.entries(found, lambda each: each).items()
            for key, entry in self.entries(entries, read).items()
        }

    def entries(self, found: Any, read: Callable[[Any], Entry]) -> dict[str, Entry]:
        known = dict[str, Entry]()
        if not isinstance(found, dict):
            self.num_dropped += 1
            return known
        for key, entry in found.items():
            try:
                known[convert(key, Key)] = read(entry)
            except ValidationError:
                self.num_dropped += 1
        return known

    def speed(self, entry: Any) -> SpeedPosterior:
        posterior = convert(entry, SpeedPosterior)
        covariance, is_sound = repair(posterior.covariance)
        self.num_widened += not is_sound
        return replace(posterior, covariance=covariance)

    def memory(self, entry: Any) -> MemoryReport:
        return convert(entry, MemoryReport)

    def of_object(self, entry: Any) -> ObjectPosterior:
        found = convert(entry, dict[str, Any])
        for names in PARTS:
            part = {name: found.pop(name) for name in names if name in found}
            if part and self.entries({"part": part}, lambda each: convert(each, ObjectPosterior)):
                found |= part
        return convert(found, ObjectPosterior)


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
        or _any_moved(
            before.memory, after.memory, lambda was, now: is_material(was.kv_tokens, now.kv_tokens)
        )
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


def _object_moved(before: ObjectPosterior, after: ObjectPosterior) -> bool:
    return (
        is_material(before.goodput_factor, after.goodput_factor)
        or before.trial != after.trial
        or [each.most for each in before.unmended] != [each.most for each in after.unmended]
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
