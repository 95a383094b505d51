"""The cache that the engine of a load test reported, for plans that run it alike."""

from dataclasses import replace

from tonnage.estimate.calibration_file import CalibrationFile
from tonnage.sizing.plan import Sizing
from tonnage.sizing.provenance import Figure, Input, Origin
from tonnage.sizing.request import SizingRequest

SAME_UTILIZATION = 0.001
"""By which two shares of a GPU's memory are the same as written."""


def with_reported_cache(
    request: SizingRequest, sizing: Sizing, calibration: CalibrationFile
) -> SizingRequest | None:
    """Return the request with the cache that the engine of a load test reported; None: it is none.

    Only where that was started for the same longest request and share of the memory. Its
    max-num-seqs, of which it takes memory too, nobody told.
    """
    flags, cache = sizing.flags, calibration.cache
    if cache is None or sizing.budget.given_pool or cache.max_model_len != request.context_tokens:
        return None
    utilization = cache.gpu_memory_utilization
    if utilization is None or abs(utilization - flags.gpu_memory_utilization) > SAME_UTILIZATION:
        return None
    told = Input(
        figure=Figure.KV_CACHE,
        value=f"{cache.tokens:,.0f} tokens of a rank",
        origin=Origin.MEASURED,
    )
    return replace(
        request,
        num_gpus=flags.parallelism.num_gpus,
        measured_kv_tokens=cache.tokens,
        inputs=(*request.inputs, told),
    )
