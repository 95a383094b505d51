"""What was learned, as text: versioned JSON, each entry checked for itself when it is read.

Two kinds of document. The shared one::

    {"version": 3,
     "inherited": {KEY: bandwidth efficiency},
     "speed": {NAMESPACE: {KEY: {"overheadFactor", "bandwidthEfficiency", "prefillEfficiency",
                                 "covariance": [6 numbers], "numWindows", "numSteps", "surprise",
                                 "learnedAt"}}},
     "memory": {NAMESPACE: {KEY: {"kvTokens", "reportedAt"}}}}

and a shard of what belongs to one object each::

    {"version": 3,
     "objects": {UID: {"goodputFactor", "numJudged", "judgedAt", "coldStartSeconds",
                       "coldStartDeviationSeconds", "nodeWaitSeconds", "numStarts", "memoryKey",
                       "kvTokens", "slotsMovedAt", "burstFactor", "demand": see stored_history,
                       "ledger": see stored_ledger}}}

Times are in unix seconds. What is not known is left out. What a learner bounds is bounded as well
when it is read, by the same constants. Figures have six significant digits, and
covariances nine: near-singular ones lose their definiteness to less.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, TypeVar

from tonnage.estimate import burst_factor, promise
from tonnage.estimate.calibration import EVERYONE, Calibrations, Scope
from tonnage.estimate.checked import (
    LARGEST,
    LONGEST_NAME,
    CorruptedStateError,
    Field,
    NewerStateError,
    amount,
    check,
    count,
    entry_of,
    figure,
    figure_between,
    figure_up_to,
    name,
    number,
    values_of,
)
from tonnage.estimate.covariance import repair
from tonnage.estimate.posterior import (
    COVARIANCES,
    LONGEST_START_S,
    LONGEST_WAIT_S,
    MemoryReport,
    ObjectPosterior,
    SpeedPosterior,
)
from tonnage.estimate.stored_history import history_entry, read_history
from tonnage.estimate.stored_ledger import ledger_entry, read_ledger

VERSION: Final = 3
"""Raised when the meaning of a stored figure changes."""
WITHOUT_NAMESPACES: Final = 2
"""The version that shared one efficiency and one pool by key with all namespaces."""
COVARIANCE_DIGITS: Final = 9
LARGEST_FACTOR: Final = 100.0
LARGEST_EFFICIENCY: Final = 1.5
"""Somewhat above what can be: the nominal figure of a class may be too low."""

Entry = TypeVar("Entry")


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """What was read, and how much of it could not be taken over."""

    calibrations: Calibrations
    num_dropped: int = 0
    """Entries with a figure that we would not write."""
    num_widened: int = 0
    """Covariances that were none."""


def dump_shared(calibrations: Calibrations) -> str:
    """Write what namespaces share."""
    sections = {
        "inherited": {key: figure(each) for key, each in calibrations.inherited.items()},
        "speed": _by_namespace(calibrations.speed, SPEED),
        "memory": _by_namespace(calibrations.memory, MEMORY),
    }
    return _text(sections)


def dump_objects(objects: Mapping[str, ObjectPosterior]) -> str:
    """Write what belongs to one object each."""
    return _text({"objects": {uid: object_entry(each) for uid, each in objects.items()}})


def load_shared(text: str) -> Loaded:
    """Read what namespaces share, of this version or of the one before.

    Of version 2, an efficiency is a better prior for everybody; a pool is believed by all.

    Raises:
        NewerStateError: of a later version.
        CorruptedStateError: of no version at all.
    """
    state = _document(text)
    reader = _Reader()
    if state["version"] == WITHOUT_NAMESPACES:
        known = Calibrations(
            inherited=reader.entries(_section(state, "speed"), _old_efficiency),
            memory=reader.by_scope({EVERYONE: _section(state, "memory")}, _old_report),
        )
    else:
        known = Calibrations(
            inherited=reader.entries(_section(state, "inherited"), _efficiency),
            speed=reader.by_scope(_section(state, "speed"), reader.speed),
            memory=reader.by_scope(_section(state, "memory"), _report),
        )
    return reader.result(known)


def load_objects(text: str) -> Loaded:
    """Read a shard.

    Raises:
        NewerStateError: of a later version, or with a history of one.
        CorruptedStateError: of no version that had shards.
    """
    state = _document(text)
    if state["version"] == WITHOUT_NAMESPACES:
        raise CorruptedStateError(f"version {WITHOUT_NAMESPACES} had no shards")
    reader = _Reader()
    objects = reader.entries(_section(state, "objects"), reader.of_object)
    return reader.result(Calibrations(objects=objects))


def _text(sections: Mapping[str, Any]) -> str:
    return json.dumps({"version": VERSION, **sections}, sort_keys=True, separators=(",", ":"))


def _document(text: str) -> Mapping[str, Any]:
    try:
        state = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CorruptedStateError(f"no JSON: {type(error).__name__}") from error
    version = state.get("version") if isinstance(state, dict) else None
    if isinstance(version, bool) or not isinstance(version, int):
        raise CorruptedStateError("no object with a version")
    if version > VERSION:
        raise NewerStateError(f"version {version}, this operator knows up to {VERSION}")
    if version < WITHOUT_NAMESPACES:
        raise CorruptedStateError(f"version {version} is not read any more")
    return dict(state)


def _section(state: Mapping[str, Any], name: str) -> Any:
    return state.get(name, {})


class _Reader:
    """Reads entry by entry, and counts those that are none."""

    def __init__(self) -> None:
        self._num_dropped = self._num_widened = 0

    def entries(self, found: Any, read: Callable[[Any], Entry]) -> dict[str, Entry]:
        return dict(self._read(found, read))

    def by_scope(self, found: Any, read: Callable[[Any], Entry]) -> dict[Scope, Entry]:
        namespaces = self.entries(found, lambda entries: self.entries(entries, read))
        return {
            Scope(namespace, key): entry
            for namespace, entries in namespaces.items()
            for key, entry in entries.items()
        }

    def speed(self, entry: Any) -> SpeedPosterior:
        posterior = SpeedPosterior(**values_of(SPEED, entry))
        covariance, is_sound = repair(posterior.covariance)
        self._num_widened += not is_sound
        return replace(posterior, covariance=covariance)

    def of_object(self, entry: Any) -> ObjectPosterior:
        """Return an object; what cannot be of starts, history and ledger goes alone."""
        check(isinstance(entry, dict))
        starts = {"starts": entry} if STARTS[0].key in entry else {}
        return ObjectPosterior(
            **values_of(OBJECT, entry),
            **self.entries(starts, partial(values_of, STARTS)).get("starts", {}),
            demand=self.part(entry, "demand", read_history),
            ledger=self.part(entry, "ledger", read_ledger),
        )

    def part(
        self, entry: Mapping[str, Any], key: str, read: Callable[[Any], Entry]
    ) -> Entry | None:
        """Return a part of an entry; None: there is none, or it cannot be and goes alone."""
        found = {key: entry[key]} if entry.get(key) is not None else {}
        return self.entries(found, read).get(key)

    def result(self, known: Calibrations) -> Loaded:
        return Loaded(
            calibrations=known, num_dropped=self._num_dropped, num_widened=self._num_widened
        )

    def _read(self, found: Any, read: Callable[[Any], Entry]) -> Iterator[tuple[str, Entry]]:
        if not isinstance(found, dict):
            self._num_dropped += 1
            return
        for key, entry in found.items():
            try:
                check(0 < len(key) <= LONGEST_NAME)
                read_entry = read(entry)
            except NewerStateError:
                raise
            except (ValueError, TypeError, LookupError, OverflowError):
                self._num_dropped += 1
            else:
                yield key, read_entry


def _old_efficiency(entry: Any) -> float:
    return _efficiency(entry["bandwidthEfficiency"])


def _old_report(entry: Any) -> MemoryReport:
    return _report({**entry, "reportedAt": entry["changedAt"]})


def _report(entry: Any) -> MemoryReport:
    return MemoryReport(**values_of(MEMORY, entry))


def _covariance(entry: Any) -> tuple[float, ...]:
    check(isinstance(entry, list) and len(entry) == COVARIANCES)
    return tuple(map(number, entry))


_efficiency: Final = figure_up_to(LARGEST_EFFICIENCY)
_start_s: Final = figure_between(0, LONGEST_START_S)
SPEED: Final = (
    Field("overhead_factor", "overheadFactor", figure_up_to(LARGEST_FACTOR)),
    Field("bandwidth_efficiency", "bandwidthEfficiency", _efficiency),
    Field("prefill_efficiency", "prefillEfficiency", _efficiency),
    Field(
        "covariance",
        "covariance",
        _covariance,
        lambda each: [figure(value, COVARIANCE_DIGITS) for value in each],
    ),
    Field("num_windows", "numWindows", count, int),
    Field("num_steps", "numSteps", amount),
    Field("surprise", "surprise", number),
    Field("misfit", "misfit", amount, is_optional=True),
    Field("regime_at_s", "regimeAt", amount, round, is_optional=True),
    Field("learned_at_s", "learnedAt", amount, round),
)
MEMORY: Final = (
    Field("kv_tokens", "kvTokens", figure_up_to(LARGEST)),
    Field("reported_at_s", "reportedAt", amount, round),
)
STARTS: Final = (
    Field("cold_start_s", "coldStartSeconds", figure_up_to(LONGEST_START_S)),
    Field("cold_start_deviation_s", "coldStartDeviationSeconds", _start_s),
    Field("node_wait_s", "nodeWaitSeconds", figure_between(0, LONGEST_WAIT_S), is_optional=True),
    Field("num_starts", "numStarts", count, int),
)
OBJECT: Final = (
    Field("goodput_factor", "goodputFactor", figure_between(promise.LOWEST, promise.HIGHEST)),
    Field("num_judged", "numJudged", amount),
    Field("judged_at_s", "judgedAt", amount, round),
    Field(
        "burst_factor",
        "burstFactor",
        figure_between(burst_factor.LOWEST, burst_factor.HIGHEST),
        is_optional=True,
    ),
    Field("memory_key", "memoryKey", name, str),
    Field("kv_tokens", "kvTokens", figure_up_to(LARGEST), is_optional=True),
    Field("slots_moved_at_s", "slotsMovedAt", amount, round, is_optional=True),
    Field("planned_split", "plannedSplit", name, str, is_optional=True),
)


def object_entry(posterior: ObjectPosterior) -> dict[str, Any]:
    known = entry_of((*OBJECT, *STARTS), posterior)
    if posterior.demand is not None:
        known["demand"] = history_entry(posterior.demand)
    if posterior.ledger is not None:
        known["ledger"] = ledger_entry(posterior.ledger)
    return known


def _by_namespace(
    entries: Mapping[Scope, object], fields: Sequence[Field]
) -> dict[str, dict[str, Any]]:
    sections: dict[str, dict[str, Any]] = {}
    for scope, entry in entries.items():
        sections.setdefault(scope.namespace, {})[scope.key] = entry_of(fields, entry)
    return sections
