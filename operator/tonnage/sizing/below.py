"""What may cost less than an answer that is known: other splits, and a bound of what any takes."""

import math

from tonnage.sizing.counting import counted
from tonnage.sizing.errors import InvalidParallelismError, SizingError
from tonnage.sizing.parallelism.draft import splits_for
from tonnage.sizing.plan import Between, Sizing, keep_searching, outlines_of
from tonnage.sizing.request import SizingRequest
from tonnage.sizing.search import IN_FULL, Cost, cheapest, cost_of


def size_below(
    request: SizingRequest,
    cost: Cost,
    *,
    is_beyond_node: bool = False,
    counts: bool = False,
    between: Between = keep_searching,
) -> Sizing | None:
    """Return the best split within a node, or of several nodes, where it costs less than that.

    What bounds or short runs show to cost as much is not simulated. ``counts``: only the number of
    replicas is asked for. The goodput is then a rate that each was seen to keep, no highest one,
    and flags are those of short runs, unless a replica less, or one of ten, hangs on better ones.
    """
    node = request.gpu.gpus_per_node
    splits = splits_for(request, num_gpus=request.num_gpus)
    tried = [split for split in splits if (split.num_gpus > node) == is_beyond_node]
    limit = (False, cost, 0, -math.inf)
    judge = counted(request) if counts else IN_FULL
    found, _ = cheapest(request, tried, between, limit=limit, judge=judge)
    return found if found and cost_of(found) < cost else None


def fewest_gpus(request: SizingRequest) -> float:
    """Return the GPUs below which no split within a node serves the demand, by fluid bounds.

    Raises:
        SizingError: none fits, or none keeps the SLO for one request alone.
    """
    refusals: list[SizingError] = []
    splits = splits_for(request, num_gpus=None)
    within = [split for split in splits if split.num_gpus <= request.gpu.gpus_per_node]
    rate = request.demand.requests_per_s or 0.0
    fewest = math.inf
    for split in within:
        if split.num_gpus >= fewest:
            break  # the smallest come first
        for outline in outlines_of(request, [split], refusals):
            replicas = max(1, math.ceil(rate / outline.bound_requests_per_s))
            fewest = min(fewest, replicas * outline.num_gpus)
    if fewest == math.inf:
        raise refusals[-1] if refusals else InvalidParallelismError("no split within a node")
    return fewest
