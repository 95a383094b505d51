"""The cache that the engine of a load test reported, for plans that run it alike."""

from dataclasses import replace

from tonnage.estimate.calibration_file import CalibrationFile, reported_kv_tokens
from tonnage.sizing.plan import Sizing
from tonnage.sizing.provenance import cache_input
from tonnage.sizing.request import SizingRequest


def with_reported_cache(
    request: SizingRequest, sizing: Sizing, calibration: CalibrationFile
) -> SizingRequest | None:
    """Return the request with the cache that the engine of a load test reported, if one did."""
    tokens = reported_kv_tokens(calibration.cache, request, sizing.flags)
    if tokens is None:
        return None
    return replace(
        request,
        num_gpus=sizing.flags.parallelism.num_gpus,
        measured_kv_tokens=tokens,
        inputs=(*request.inputs, cache_input(tokens)),
    )
