"""What was learned, as text: versioned JSON, each entry checked for itself when it is read.

The form::

    {"version": 4,
     "speed": {NAMESPACE: {KEY: fields of SpeedPosterior}},
     "memory": {NAMESPACE: {KEY: fields of MemoryReport}},
     "objects": {UID: fields of ObjectPosterior}}

What is not known is left out. The types of the fields bound what is read. Figures have six
significant digits, times are whole unix seconds, and covariances have nine digits: near-singular
ones lose their definiteness to less. Version 3 had other names for the fields, objects in shards,
and a history of demand in them.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields, replace
from typing import Annotated, Any, Final, TypeVar

from msgspec import Meta, ValidationError, convert, to_builtins

from tonnage.estimate.bounds import LONGEST_NAME
from tonnage.estimate.calibration import Calibrations, Scope
from tonnage.estimate.covariance import repair
from tonnage.estimate.posterior import MemoryReport, ObjectPosterior, SpeedPosterior

VERSION: Final = 4
"""Raised when the meaning of a stored figure changes."""
BEFORE: Final = 3
"""The oldest version that is read."""
DIGITS: Final = 6
COVARIANCE_DIGITS: Final = 9
STARTS: Final[tuple[str, ...]] = (
    "cold_start_s",
    "cold_start_deviation_s",
    "node_wait_s",
    "num_starts",
)
PARTS: Final[tuple[tuple[str, ...], ...]] = (STARTS, ("demand",))
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
    version: int = VERSION


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
    """Read what was learned, of this version or of the one before, a shard of that too.

    Raises:
        NewerStateError: of a later version.
        CorruptedStateError: of an older one, or of none at all.
    """
    state = _document(text)
    reader = _Reader(is_before=state["version"] == BEFORE)
    known = Calibrations(
        speed=reader.by_scope(state.get("speed", {}), reader.speed),
        memory=reader.by_scope(state.get("memory", {}), reader.memory),
        objects=reader.entries(state.get("objects", {}), reader.of_object),
    )
    return Loaded(
        calibrations=known,
        num_dropped=reader.num_dropped,
        num_widened=reader.num_widened,
        version=state["version"],
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
    if version < BEFORE:
        raise CorruptedStateError(f"version {version} is no longer supported")
    return dict(state)


class _Reader:
    """Reads entry by entry, and counts those that are none."""

    def __init__(self, *, is_before: bool) -> None:
        self.num_dropped = self.num_widened = 0
        self._is_before = is_before

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
        posterior = convert(self._named(entry), SpeedPosterior)
        covariance, is_sound = repair(posterior.covariance)
        self.num_widened += not is_sound
        return replace(posterior, covariance=covariance)

    def memory(self, entry: Any) -> MemoryReport:
        return convert(self._named(entry), MemoryReport)

    def of_object(self, entry: Any) -> ObjectPosterior:
        found = self._named(entry)
        for names in PARTS:
            part = {name: found.pop(name) for name in names if name in found}
            if part and self.entries({"part": part}, lambda each: convert(each, ObjectPosterior)):
                found |= part
        return convert(found, ObjectPosterior)

    def _named(self, entry: Any) -> dict[str, Any]:
        """Return an entry by the names of the fields of this version."""
        known = convert(entry, dict[str, Any])
        return {_field_of(key): each for key, each in known.items()} if self._is_before else known


def _field_of(key: str) -> str:
    """Return the field that version 3 named so.

    >>> _field_of("coldStartSeconds"), _field_of("slotsMovedAt")
    ('cold_start_s', 'slots_moved_at_s')
    """
    name = re.sub("[A-Z]", lambda found: f"_{found[0].lower()}", key)
    return re.sub("_at$", "_at_s", re.sub("_seconds$", "_s", name))
