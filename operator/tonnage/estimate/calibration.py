"""Everything learned, as it is kept in one ConfigMap: versioned, size-capped, shared by key."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from tonnage.estimate.speed import HIGHEST, SpeedCalibration
from tonnage.sizing.request import Flags, SizingRequest
from tonnage.units import PETA

VERSION = 2
"""Bumped when the meaning of a stored figure changes: older state is then dropped, not misread."""
MAX_ENTRIES = 500
"""Per kind; the oldest go first. About 100 bytes each: far below a ConfigMap's 1 MiB."""
WRITE_THRESHOLD = 0.02
KEY_LENGTH = 20
LARGEST = PETA
"""No figure that we write comes near."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryCalibration:
    """KV tokens of one data-parallel rank, as an engine with these flags reported them."""

    kv_tokens: float
    """In requests of the maximum length, as engines since 0.24 count them and plans do."""
    changed_at_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibrations:
    """Learned constants by key. Immutable: an update is a new value."""

    speed: Mapping[str, SpeedCalibration] = field(default_factory=dict)
    memory: Mapping[str, MemoryCalibration] = field(default_factory=dict)

    def with_speed(self, key: str, calibration: SpeedCalibration) -> "Calibrations":
        return replace(self, speed={**self.speed, key: calibration})

    def with_memory(self, key: str, calibration: MemoryCalibration) -> "Calibrations":
        return replace(self, memory={**self.memory, key: calibration})


def speed_key(request: SizingRequest, flags: Flags) -> str:
    """Return the key under which speed is learned: model, formats, GPU, split, engine minor."""
    split = flags.parallelism
    return _digest(
        request.shape.digest or request.shape.name,
        request.weights.name,
        request.kv_format,
        request.gpu.name,
        split.tensor,
        split.pipeline,
        split.data,
        request.engine.minor,
        request.engine_digest,
        *([split.context] if split.context > 1 else []),
    )


def memory_key(request: SizingRequest, flags: Flags) -> str:
    """Return the key under which KV tokens are learned: also all flags that share the memory."""
    return _digest(
        speed_key(request, flags),
        flags.max_num_seqs,
        flags.max_num_batched_tokens,
        flags.gpu_memory_utilization,
        request.context_tokens,
    )


def _digest(*parts: object) -> str:
    return hashlib.sha256("|".join(map(str, parts)).encode()).hexdigest()[:KEY_LENGTH]


def is_material(before: float | None, after: float) -> bool:
    """Tell whether a constant moved by more than 2 % since it was last written."""
    return before is None or abs(after - before) > WRITE_THRESHOLD * abs(before)


def dump(calibrations: Calibrations) -> str:
    """Write the state as JSON, the oldest entries beyond the cap left out."""
    return json.dumps(
        {
            "version": VERSION,
            "speed": {
                key: {
                    "bandwidthEfficiency": round(entry.bandwidth_efficiency, 5),
                    "busySteps": round(entry.busy_steps),
                    "changedAt": round(entry.changed_at_s),
                }
                for key, entry in _newest(calibrations.speed).items()
            },
            "memory": {
                key: {"kvTokens": entry.kv_tokens, "changedAt": round(entry.changed_at_s)}
                for key, entry in _newest(calibrations.memory).items()
            },
        },
        sort_keys=True,
    )


Entry = TypeVar("Entry", SpeedCalibration, MemoryCalibration)


def _newest(entries: Mapping[str, Entry]) -> dict[str, Entry]:
    newest = sorted(entries.items(), key=lambda item: -item[1].changed_at_s)
    return dict(newest[:MAX_ENTRIES])


def load(text: str) -> Calibrations:
    """Read the state back; entries that are not what we write are dropped, one by one.

    Raises:
        ValueError: no JSON object, or of another version.
    """
    try:
        state = json.loads(text)
    except RecursionError as error:
        raise ValueError("calibration is nested too deeply") from error
    if not isinstance(state, dict) or state.get("version") != VERSION:
        raise ValueError(f"calibration is not of version {VERSION}")
    return Calibrations(
        speed={
            key: SpeedCalibration(
                bandwidth_efficiency=entry["bandwidthEfficiency"],
                busy_steps=entry["busySteps"],
                changed_at_s=entry["changedAt"],
            )
            for key, entry in _entries(state, "speed", "bandwidthEfficiency", "busySteps")
            if 0 < entry["bandwidthEfficiency"] <= HIGHEST
        },
        memory={
            key: MemoryCalibration(kv_tokens=entry["kvTokens"], changed_at_s=entry["changedAt"])
            for key, entry in _entries(state, "memory", "kvTokens")
            if entry["kvTokens"] > 0
        },
    )


def _entries(
    state: Mapping[str, Any], kind: str, *fields: str
) -> list[tuple[str, Mapping[str, float]]]:
    found = state.get(kind)
    entries = found.items() if isinstance(found, dict) else ()
    return [
        (key, entry)
        for key, entry in entries
        if isinstance(entry, dict)
        and all(_is_figure(entry.get(name)) for name in (*fields, "changedAt"))
    ]


def _is_figure(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return 0 <= value <= LARGEST  # no NaN and no infinity either
