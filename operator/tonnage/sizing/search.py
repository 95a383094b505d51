"""The search over splits: the one that costs least at the demand asked, or a reasoned no."""

import itertools
import math
import sys
from collections.abc import Iterable
from heapq import heapify, heappop, heappush
from typing import Final

from tonnage.sizing.checks import check_request
from tonnage.sizing.cost import gpu_hour
from tonnage.sizing.errors import (
    InvalidParallelismError,
    SeveralNodesError,
    SizingError,
    SLOInfeasibleError,
)
from tonnage.sizing.parallelism.candidates import explain_no_candidate
from tonnage.sizing.parallelism.draft import splits_for
from tonnage.sizing.plan import (
    Candidate,
    OnSearch,
    RankedCandidate,
    Sizing,
    confirm_targets,
    finalist_of,
    keep_searching,
    may_serve,
    outlines_of,
    rate_asked,
    requests_per_s_asked,
    simulate,
    size_with,
    state_at_capacity,
)
from tonnage.sizing.request import SizingRequest
from tonnage.sizing.serving.staffing import ROUNDING
from tonnage.sizing.split import Parallelism


def size(
    request: SizingRequest,
    *,
    is_within_node: bool = False,
    confirms: bool = True,
    on_search: OnSearch = keep_searching,
) -> Sizing:
    """Answer a request: keep the flags that run, or choose the split that costs least.

    At the demand asked, minReplicas counted; a class without a price costs its GPUs. Of equal costs
    the smaller replica is taken, then the one that serves most. Where no demand is known it is the
    least per token; where maxReplicas of no split serve it, the split of which these serve most.
    More than a node is tried only when nothing smaller will do, and not ``is_within_node``.
    ``confirms``: as ``size_with`` takes it, of flags that run.

    Raises:
        SeveralNodesError: a replica within a node will not do, one over several may.
        ContextTooLongError: the model has fewer positions than contextLength.
        InvalidKvCacheError, UnsupportedEngineError: the engine has no such cache for the model.
        InvalidParallelismError: the engine refuses every split of the GPUs asked for.
        DoesNotFitError: no split leaves room for one request of the maximum length.
        SLOInfeasibleError: splits fit, but one request alone misses the SLO on each.
    """
    check_request(request)
    if request.flags:
        split = request.flags.parallelism
        return size_with(request, split, confirms=confirms, on_search=on_search)
    splits = splits_for(request, num_gpus=request.num_gpus)
    if not splits:
        why = explain_no_candidate(
            request.shape,
            request.weights,
            num_gpus=request.num_gpus,
            nodes=request.nodes,
            sizes=request.sizes,
        )
        within = "engine.role or model.kvOffload takes no pipeline stages and no further node; "
        raise InvalidParallelismError(f"{within if request.is_within_node else ''}{why}")
    refusals: list[SizingError] = []
    node = request.gpu.gpus_per_node
    for is_beyond, each in itertools.groupby(splits, key=lambda split: split.num_gpus > node):
        tried = list(each)
        if is_beyond and is_within_node and next(outlines_of(request, tried, []), None):
            raise SeveralNodesError(f"no split within a node of {node} {request.gpu.name} serves")
        found, refused = cheapest(request, tried, on_search)
        if found:  # what each of more replicas serves, too
            return size_with(request, found.parallelism, on_search=on_search)
        refusals += refused
    # A split that fits but is too slow says more than a smaller one that does not fit.
    slow = [refusal for refusal in refusals if isinstance(refusal, SLOInfeasibleError)]
    raise min(reversed(slow), key=lambda each: each.excess) if slow else refusals[-1]


Cost = tuple[bool, float]
"""Of the demand, without one of a request per s: has the split no price; USD per hour, else GPUs.
The lowest first: a split without a price is taken only where no other serves."""
Rank = tuple[bool, Cost, int, float]
"""Of a split, the lowest first: is the demand beyond maxReplicas; what it costs (beyond: the less
the more they serve); the GPUs of one replica; the less the more that one serves."""
BISECTIONS: Final = 12
NO_LIMIT: Final[Rank] = (True, (True, math.inf), sys.maxsize, math.inf)


def rank_of_sizing(sizing: Sizing) -> Rank:
    """Return the rank of an answer."""
    replicas = None if requests_per_s_asked(sizing) is None else sizing.replicas
    each = sizing.staffing.each(sizing.request.max_replicas or sizing.replicas)
    return rank_by_cost(sizing.request, sizing.parallelism.num_gpus, replicas, each)


def cheapest(
    request: SizingRequest,
    splits: Iterable[Parallelism],
    on_search: OnSearch,
    *,
    limit: Rank = NO_LIMIT,
) -> tuple[Sizing | None, list[SizingError]]:
    """Return the best of some splits, leaving out what ranks higher, and what refuses others.

    What may be best goes first: a split by the cost of one replica, until its fluid bound is known,
    then by that, until short runs say what it may serve, until full runs say what it does, and once
    more by the rate that is shown to. What is found is best once nothing left may be better.
    """
    queue: list[tuple[Rank, int, Parallelism | Candidate | RankedCandidate | Sizing]] = [
        (_least_rank(request, split.num_gpus), number, split) for number, split in enumerate(splits)
    ]
    heapify(queue)
    best: Sizing | None = None
    refusals: list[SizingError] = []
    too_slow: list[SizingError] = []
    while queue and queue[0][0] <= (rank_of_sizing(best) if best else limit):
        _, number, tried = heappop(queue)
        if isinstance(tried, Parallelism):
            for outline in outlines_of(request, [tried], refusals):
                heappush(queue, (_rank_at(outline, outline.bound_requests_per_s), number, outline))
            continue
        if isinstance(tried, Candidate):
            least = _least_rate(tried, rank_of_sizing(best) if best else limit)
            if not least or may_serve(tried, least, on_search=on_search):
                finalist = finalist_of(tried, on_search=on_search)
                rank = _rank_at(tried, finalist.most_requests_per_s)
                heappush(queue, (rank, number, finalist))
            continue
        try:
            if isinstance(tried, RankedCandidate):
                within = rank_of_sizing(best) if best else limit
                most = _most_replicas(tried.outline, within)
                found = simulate(tried, most_replicas=most, on_search=on_search)
                heappush(queue, (rank_of_sizing(found), number, found))
                continue
            found = confirm_targets(tried, on_search)
            best = found if best is None else min(best, found, key=rank_of_sizing)
        except SizingError as refusal:
            too_slow.append(refusal)
    return best, [*refusals, *too_slow]


def cheaper_splits(
    request: SizingRequest,
    cost: Cost,
    *,
    is_beyond_node: bool = False,
    on_search: OnSearch = keep_searching,
) -> Sizing | None:
    """Return the best split within a node, or of several nodes, where it costs less than that.

    What bounds or short runs show to cost as much is not simulated.
    """
    node = request.gpu.gpus_per_node
    splits = splits_for(request, num_gpus=request.num_gpus)
    tried = [split for split in splits if (split.num_gpus > node) == is_beyond_node]
    found, _ = cheapest(request, tried, on_search, limit=(False, cost, 0, -math.inf))
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


def _least_rank(request: SizingRequest, num_gpus: int) -> Rank:
    """Return the rank of a split of so many GPUs that serves any rate."""
    demand = request.demand
    is_known = demand.requests_per_s is not None or demand.concurrency is not None
    return (
        False,
        _cost_at(request, num_gpus, 1 if is_known else None, math.inf),
        num_gpus,
        -math.inf,
    )


def _rank_at(outline: Candidate, requests_per_s: float) -> Rank:
    """Return the rank of a split of which each replica serves so much."""
    request, replica = outline.request, outline.widest.replica
    if requests_per_s <= 0:
        return True, (True, math.inf), outline.num_gpus, 0.0
    rate = rate_asked(request, replica, lambda: state_at_capacity(request, replica, requests_per_s))
    replicas = None if rate is None else math.ceil(rate * (1 - ROUNDING) / requests_per_s)
    return rank_by_cost(request, outline.num_gpus, replicas, requests_per_s)


def _least_rate(outline: Candidate, limit: Rank) -> float:
    """Return what each replica of a split has to serve at least to be within a limit."""
    low, high = 0.0, outline.bound_requests_per_s
    for _ in range(BISECTIONS if limit < NO_LIMIT else 0):
        middle = (low + high) / 2
        low, high = (low, middle) if _rank_at(outline, middle) <= limit else (middle, high)
    return low


def _most_replicas(outline: Candidate, limit: Rank) -> float:
    """Return the replicas of a split that are within a limit at most."""
    is_beyond, (has_no_price, amount), *_ = limit
    hour = gpu_hour(outline.request.gpu, outline.num_gpus)
    if is_beyond or has_no_price is not (hour is None):
        return math.inf
    each = hour.usd_per_replica(outline.num_gpus) if hour else outline.num_gpus
    return max(1, math.floor(amount / each)) if each else math.inf


def gpus_taken(sizing: Sizing) -> float:
    """Return the GPUs for the demand, minReplicas at least; without one, for a request per s."""
    replicas = None if requests_per_s_asked(sizing) is None else sizing.replicas
    request, num_gpus = sizing.request, sizing.parallelism.num_gpus
    return _gpus_of(request, num_gpus, replicas, sizing.goodput_requests_per_s)


def cost_of(sizing: Sizing, replicas: int | None = None) -> Cost:
    """Return what so many replicas cost, or those for the demand; without one a request per s."""
    if replicas is None and requests_per_s_asked(sizing) is not None:
        replicas = sizing.replicas
    request, num_gpus = sizing.request, sizing.parallelism.num_gpus
    return _cost_at(request, num_gpus, replicas, sizing.goodput_requests_per_s)


def costs_less(sizing: Sizing, other: Sizing, *, gain: float) -> bool:
    """Tell whether an answer costs less than another by a share."""
    has_no_price, amount = cost_of(sizing)
    return (has_no_price, (1 + gain) * amount) < cost_of(other)


def rank_by_cost(
    request: SizingRequest, num_gpus: int, replicas: int | None, requests_per_s: float
) -> Rank:
    """Return the rank of as many replicas, or, without a demand, of one."""
    most = request.max_replicas
    if replicas is not None and most is not None and replicas > most:
        return True, (False, -requests_per_s), num_gpus, -requests_per_s
    cost = _cost_at(request, num_gpus, replicas, requests_per_s)
    return False, cost, num_gpus, -requests_per_s


def _gpus_of(
    request: SizingRequest, num_gpus: int, replicas: int | None, requests_per_s: float
) -> float:
    if replicas is None:
        return num_gpus / requests_per_s
    return float(max(replicas, request.min_replicas) * num_gpus)


def _cost_at(
    request: SizingRequest, num_gpus: int, replicas: int | None, requests_per_s: float
) -> Cost:
    hour = gpu_hour(request.gpu, num_gpus)
    if hour is None:
        return True, _gpus_of(request, num_gpus, replicas, requests_per_s)
    if replicas is None:
        return False, hour.usd_per_replica(num_gpus) / requests_per_s
    return False, hour.usd * hour.gpus_paid(max(replicas, request.min_replicas), num_gpus)
