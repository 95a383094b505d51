"""The request of a model on a GPU class as the catalogues have both, on the newest engine."""

from tonnage.catalog.engine import find_engine
from tonnage.catalog.engine_speed import prior_speed
from tonnage.catalog.gpu import built_in_gpus, find_gpu
from tonnage.catalog.models import built_in_model
from tonnage.sizing.request import SizingRequest, kv_cache_format
from tonnage.sizing.workload import Demand, Slo, Workload


def catalog_request(
    model: str, gpu: str, workload: Workload, *, context_tokens: int
) -> SizingRequest:
    """Return it without promises or demand; the context is cut off at the model's positions."""
    shape, board = built_in_model(model), find_gpu(gpu, built_in_gpus())
    return SizingRequest(
        shape=shape,
        gpu=board,
        engine=find_engine("0.33"),
        speed=prior_speed(board, shape.weight_format),
        weights=shape.weight_format,
        kv_format=kv_cache_format("auto", shape, "0.33"),
        context_tokens=min(context_tokens, shape.max_position_tokens or context_tokens),
        workload=workload,
        slo=Slo(),
        demand=Demand(),
    )
