"""A sweep of splits that does not go through the search."""

from contextlib import suppress
from dataclasses import replace

from tonnage.api.spec import Spec
from tonnage.catalog.engine_speed import speed_table
from tonnage.catalog.gpu import built_in_gpus
from tonnage.catalog.speed_range import together
from tonnage.sizing.errors import SizingError
from tonnage.sizing.parallelism.draft import splits_for
from tonnage.sizing.plan import size_with
from tonnage.sizing.request import ask, look_up
from tonnage.sizing.search import rank_of_sizing


def mean_cost_of(sizing):
    """Return what an answer costs, in the mean over the range of speeds that is stated."""
    _, cost, *_ = rank_of_sizing(sizing)
    return cost


def swept_costs(request):
    """Yield what each split within a node costs in that mean, each searched by itself in full.

    A pipeline, whose steps nobody measured, is dearer by as much as it is more in doubt.
    """
    table = speed_table()
    step = table.spread_fraction["step"]
    doubt = together(step, table.unmeasured_fraction["pipeline"])
    for split in splits_for(request):
        if split.num_gpus <= request.gpu.gpus_per_node:
            with suppress(SizingError):
                has_no_price, amount = mean_cost_of(size_with(request, split))
                dearer = (1 + doubt) / (1 + step) if split.pipeline > 1 else 1.0
                yield has_no_price, amount * dearer


def up_to_the_error(cost):
    """Return what a simpler split may cost in place of one that costs as much."""
    has_no_price, amount = cost
    return has_no_price, (1 + speed_table().spread_fraction["step"]) * amount


def a_request(model, gpu, rate, prompt, output, **changes):
    """Return a request without targets, or with those in ``slo``."""
    spec = Spec.model_validate(
        {
            "model": {"id": model},
            "hardware": {"gpu": gpu},
            "contextLength": 16_384,
            "demand": {
                "requestsPerSecond": rate,
                "promptTokens": {"mean": prompt},
                "outputTokens": {"mean": output},
            },
            "scaling": {"maxReplicas": 1000},
            "engine": {"version": "0.33"},
        }
    )
    request = ask(spec, look_up(spec, built_in_gpus()))
    return replace(request, max_replicas=None, **changes)
