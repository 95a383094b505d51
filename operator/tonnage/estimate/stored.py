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
                       "kvTokens", "slotsMovedAt", "burstFactor", "demand": see stored_history}}}

Times are in unix seconds. What is not known is left out. What a learner bounds is bounded as well
when it is read, by the same constants. Figures have six significant digits, and
covariances nine: near-singular ones lose their definiteness to less.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

from tonnage.estimate import burst_factor, promise
from tonnage.estimate.calibration import EVERYONE, Calibrations, Scope
from tonnage.estimate.checked import (
    LARGEST,
    LONGEST_NAME,
    CorruptedStateError,
    NewerStateError,
    amount,
    check,
    count,
    figure,
    name,
    number,
    positive,
    within,
)
from tonnage.estimate.covariance import repaired
from tonnage.estimate.kept_history import KeptHistory
from tonnage.estimate.posterior import (
    COVARIANCES,
    LONGEST_START_S,
    LONGEST_WAIT_S,
    MemoryReport,
    ObjectPosterior,
    SpeedPosterior,
)
from tonnage.estimate.stored_history import history_entry, read_history

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
        "speed": _by_namespace(calibrations.speed, speed_entry),
        "memory": _by_namespace(calibrations.memory, memory_entry),
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
            memory=reader.scoped({EVERYONE: _section(state, "memory")}, _old_report),
        )
    else:
        known = Calibrations(
            inherited=reader.entries(_section(state, "inherited"), _efficiency),
            speed=reader.scoped(_section(state, "speed"), reader.speed),
            memory=reader.scoped(_section(state, "memory"), _report),
        )
    return reader.loaded(known)


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
    return reader.loaded(Calibrations(objects=objects))


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

    def scoped(self, found: Any, read: Callable[[Any], Entry]) -> dict[Scope, Entry]:
        namespaces = self.entries(found, lambda entries: self.entries(entries, read))
        return {
            Scope(namespace, key): entry
            for namespace, entries in namespaces.items()
            for key, entry in entries.items()
        }

    def speed(self, entry: Any) -> SpeedPosterior:
        covariance, is_sound = repaired(_covariance(entry))
        posterior = SpeedPosterior(
            overhead_factor=positive(entry["overheadFactor"], LARGEST_FACTOR),
            bandwidth_efficiency=_efficiency(entry["bandwidthEfficiency"]),
            prefill_efficiency=_efficiency(entry["prefillEfficiency"]),
            covariance=covariance,
            num_windows=count(entry["numWindows"]),
            num_steps=amount(entry["numSteps"]),
            surprise=number(entry["surprise"]),
            misfit=amount(entry.get("misfit", 0.0)),
            regime_at_s=amount(entry.get("regimeAt", 0.0)),
            learned_at_s=amount(entry["learnedAt"]),
        )
        self._num_widened += not is_sound
        return posterior

    def of_object(self, entry: Any) -> ObjectPosterior:
        check(isinstance(entry, dict))
        pool, moved_at_s = entry.get("kvTokens"), entry.get("slotsMovedAt")
        bursts = entry.get("burstFactor")
        return replace(
            self._starts(entry),
            goodput_factor=within(entry["goodputFactor"], promise.LOWEST, promise.HIGHEST),
            num_judged=amount(entry["numJudged"]),
            judged_at_s=amount(entry["judgedAt"]),
            burst_factor=None
            if bursts is None
            else within(bursts, burst_factor.LOWEST, burst_factor.HIGHEST),
            memory_key=name(entry["memoryKey"]),
            kv_tokens=None if pool is None else positive(pool, LARGEST),
            slots_moved_at_s=None if moved_at_s is None else amount(moved_at_s),
            demand=self._demand(entry.get("demand")),
        )

    def _starts(self, entry: Any) -> ObjectPosterior:
        """Return what is known of starts alone; nothing, where no clock can have told that."""
        found = dict(self._read({"starts": entry}, _read_starts))
        return found.get("starts", ObjectPosterior())

    def _demand(self, entry: Any) -> KeptHistory | None:
        """Return the history of demand; one that is none is left out alone."""
        found = dict(self._read({} if entry is None else {"demand": entry}, read_history))
        return found.get("demand")

    def loaded(self, known: Calibrations) -> Loaded:
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
    return MemoryReport(
        kv_tokens=positive(entry["kvTokens"], LARGEST), reported_at_s=amount(entry["changedAt"])
    )


def _report(entry: Any) -> MemoryReport:
    return MemoryReport(
        kv_tokens=positive(entry["kvTokens"], LARGEST), reported_at_s=amount(entry["reportedAt"])
    )


def _read_starts(entry: Any) -> ObjectPosterior:
    mean = entry.get("coldStartSeconds")
    if mean is None:
        return ObjectPosterior()
    return ObjectPosterior(
        cold_start_s=positive(mean, LONGEST_START_S),
        cold_start_deviation_s=within(entry["coldStartDeviationSeconds"], 0, LONGEST_START_S),
        node_wait_s=within(entry.get("nodeWaitSeconds", 0), 0, LONGEST_WAIT_S),
        num_starts=count(entry["numStarts"]),
    )


def _covariance(entry: Any) -> list[float]:
    found = entry["covariance"]
    check(isinstance(found, list) and len(found) == COVARIANCES)
    return [number(each) for each in found]


def _efficiency(value: Any) -> float:
    return positive(value, LARGEST_EFFICIENCY)


def speed_entry(posterior: SpeedPosterior) -> dict[str, Any]:
    return {
        "overheadFactor": figure(posterior.overhead_factor),
        "bandwidthEfficiency": figure(posterior.bandwidth_efficiency),
        "prefillEfficiency": figure(posterior.prefill_efficiency),
        "covariance": [figure(each, COVARIANCE_DIGITS) for each in posterior.covariance],
        "numWindows": posterior.num_windows,
        "numSteps": figure(posterior.num_steps),
        "surprise": figure(posterior.surprise),
        "misfit": figure(posterior.misfit),
        "regimeAt": round(posterior.regime_at_s),
        "learnedAt": round(posterior.learned_at_s),
    }


def memory_entry(report: MemoryReport) -> dict[str, Any]:
    return {"kvTokens": figure(report.kv_tokens), "reportedAt": round(report.reported_at_s)}


def object_entry(posterior: ObjectPosterior) -> dict[str, Any]:
    known = {
        "goodputFactor": figure(posterior.goodput_factor),
        "numJudged": figure(posterior.num_judged),
        "judgedAt": round(posterior.judged_at_s),
        "coldStartDeviationSeconds": figure(posterior.cold_start_deviation_s),
        "numStarts": posterior.num_starts,
        "memoryKey": posterior.memory_key,
    }
    if posterior.cold_start_s is not None:
        known["coldStartSeconds"] = figure(posterior.cold_start_s)
        known["nodeWaitSeconds"] = figure(posterior.node_wait_s)
    if posterior.burst_factor is not None:
        known["burstFactor"] = figure(posterior.burst_factor)
    if posterior.kv_tokens is not None:
        known["kvTokens"] = figure(posterior.kv_tokens)
    if posterior.slots_moved_at_s is not None:
        known["slotsMovedAt"] = round(posterior.slots_moved_at_s)
    if posterior.demand is not None:
        known["demand"] = history_entry(posterior.demand)
    return known


def _by_namespace(
    entries: Mapping[Scope, Entry], write: Callable[[Entry], dict[str, Any]]
) -> dict[str, dict[str, Any]]:
    sections: dict[str, dict[str, Any]] = {}
    for scope, entry in entries.items():
        sections.setdefault(scope.namespace, {})[scope.key] = write(entry)
    return sections
