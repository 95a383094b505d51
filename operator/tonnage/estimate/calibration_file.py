"""What a load test of one engine found, as a file that plans and the operator read: versioned JSON.

The key stands in it in clear, so that a file for another engine is refused with words instead of a
digest that does not match.
"""

import json
from dataclasses import asdict, astuple, dataclass
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, Field, ValidationError, field_validator

from tonnage.api.base import ApiModel
from tonnage.api.strict_json import unique_keys
from tonnage.estimate.errors import CalibrationFileError
from tonnage.estimate.posterior import SpeedPosterior, UpperTriangle, repair
from tonnage.sizing.request import Flags, SizingRequest
from tonnage.sizing.split import Parallelism

VERSION: Final = 1
"""Bumped when the meaning of a figure changes: an older program then refuses the file."""
Text = Annotated[str, Field(min_length=1, max_length=512)]
Count = Annotated[int, Field(ge=1)]
Positive = Annotated[float, Field(gt=0)]
LATEST_S: Final = 253_402_300_799.0
"""The last second that a date of four digits can tell."""
SAME_UTILIZATION: Final = 0.001
"""By which two shares of a GPU's memory are the same as written."""
Efficiency = Annotated[float, Field(gt=0, le=1)]
Identity = tuple[object, ...]
"""What two keys of the same engine have in common."""


def _is_split(split: Parallelism) -> Parallelism:
    if min(astuple(split)) < 1:
        raise ValueError(f"{asdict(split)} is not a parallelism")
    return split


class CalibrationKey(ApiModel):
    """What the speed of an engine depends on."""

    model: Text
    model_digest: str
    """Of its configuration; empty where the catalogue has none."""
    weights: Text
    kv_cache: Text
    gpu: Text
    parallelism: Annotated[Parallelism, AfterValidator(_is_split)]
    engine: Text
    """Minor version of vLLM."""

    def __str__(self) -> str:
        digest = f" ({self.model_digest})" if self.model_digest else ""
        return (
            f"{self.model}{digest}, weights {self.weights}, kvCache {self.kv_cache}, {self.gpu}, "
            f"{self.parallelism}, vLLM {self.engine}"
        )

    @property
    def identity(self) -> Identity:
        """Return what must be equal: two names of one configuration are one model."""
        model = self.model_digest or self.model
        return model, self.weights, self.kv_cache, self.gpu, self.parallelism, self.engine


class LearnedConstants(ApiModel):
    """The constants that were fitted."""

    overhead_factor: Positive
    """Times the prior's overheads."""
    bandwidth_efficiency: Efficiency
    prefill_efficiency: Efficiency
    covariance: UpperTriangle
    """Of the logarithms of the three above: the upper triangle, row by row."""

    @field_validator("covariance")
    @classmethod
    def _is_one(cls, covariance: UpperTriangle) -> UpperTriangle:
        sound, is_one = repair(covariance)
        if not is_one:
            raise ValueError(f"{list(covariance)} is not the covariance of three constants")
        return sound


class ReportedCache(ApiModel):
    """What the engine says of its KV cache."""

    tokens: Positive
    """Of one data-parallel rank."""
    max_model_len: Count
    gpu_memory_utilization: Positive | None = None


class MeasuredPoint(ApiModel):
    """One load."""

    kind: Literal["prefill", "decode"]
    sequences: Count
    """Decoding at once; of prefill 1."""
    prompt_tokens: Count
    seconds: Positive
    """Of prefill until the first token, of decode for a step."""
    prior_error_fraction: float
    """Predicted over measured, less 1, before anything was fitted."""
    error_fraction: float
    """The same with the constants above."""


class ObservedUtilization(ApiModel):
    """The most of the nominal figures that a point used."""

    mbu_fraction: float | None = None
    mfu_fraction: float | None = None


class CalibrationFile(ApiModel):
    """All that one run of ``tonnage calibrate`` leaves."""

    version: Literal[1] = VERSION
    date: Text
    """ISO 8601."""
    measured_at_s: Annotated[float, Field(ge=0, le=LATEST_S)]
    """The same in Unix time."""
    key: CalibrationKey
    constants: LearnedConstants
    cache: ReportedCache | None = None
    requests: Count
    steps: Count
    """Decode steps that were timed."""
    points: Annotated[tuple[MeasuredPoint, ...], Field(min_length=1, max_length=200)]
    observed: ObservedUtilization
    has_metrics: bool = False
    """The engine said so itself too, in files of versions that asked it."""
    remarks: tuple[str, ...] = ()
    validation: Annotated[dict[str, object] | None, Field(exclude=True)] = None
    """Of a replay, in files of versions that replayed traffic: read, and not written again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadTest:
    """What the operator takes from a file."""

    speed: SpeedPosterior
    cache: ReportedCache | None


def load_test_of(file: CalibrationFile) -> LoadTest:
    return LoadTest(speed=speed_posterior_of(file), cache=file.cache)


def reported_kv_tokens(
    cache: ReportedCache | None, request: SizingRequest, flags: Flags
) -> float | None:
    """Return the tokens of one rank that an engine with these flags has, as one of its kind said.

    Only where that was started for the same longest request and share of the memory, and these take
    nothing beside: adapters, a given cache or token budget of a step. None: it does not say.
    """
    is_given = flags.kv_cache_bytes is not None or flags.num_gpu_blocks is not None
    is_other = request.adapters is not None or request.max_num_batched_tokens is not None
    if cache is None or is_given or is_other or cache.max_model_len != request.context_tokens:
        return None
    utilization = cache.gpu_memory_utilization
    if utilization is None or abs(utilization - flags.gpu_memory_utilization) > SAME_UTILIZATION:
        return None
    return cache.tokens


def key_of(request: SizingRequest, parallelism: Parallelism) -> CalibrationKey:
    """Return the key of what a request asks for, on one split."""
    return CalibrationKey(
        model=request.shape.name,
        model_digest=request.shape.digest,
        weights=request.weights.name,
        kv_cache=request.kv_format,
        gpu=request.gpu.name,
        parallelism=parallelism,
        engine=request.engine.minor,
    )


def dump(file: CalibrationFile) -> str:
    """Write a file."""
    return json.dumps(file.to_dict(), indent=2, ensure_ascii=False) + "\n"


def load(text: str) -> CalibrationFile:
    """Read a file back.

    Raises:
        CalibrationFileError: no JSON object, of another version, or a field is wrong; names it.
    """
    try:
        content: Any = json.loads(text, object_pairs_hook=unique_keys)
    except (ValueError, RecursionError) as error:
        raise CalibrationFileError(f"not JSON: {error}") from error
    version = content.get("version") if isinstance(content, dict) else None
    if version != VERSION:
        raise CalibrationFileError(
            f"not a calibration file of version {VERSION}: its version is {str(version)[:20]}"
        )
    try:
        return CalibrationFile.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise CalibrationFileError(f"{where}: {first['msg']}") from error


def check_key(file: CalibrationFile, asked: CalibrationKey) -> None:
    """Refuse a calibration of something else.

    Raises:
        CalibrationFileError: with both keys.
    """
    if file.key.identity != asked.identity:
        raise CalibrationFileError(f"the calibration is for {file.key}, not for {asked}")


def speed_posterior_of(file: CalibrationFile) -> SpeedPosterior:
    """Return what the file says as the learner keeps it.

    Each point counts as one window.
    """
    return SpeedPosterior(
        **dict(file.constants),
        num_windows=len(file.points),
        num_steps=float(file.steps),
        learned_at_s=file.measured_at_s,
    )
