"""The search over splits: the one that costs least at the demand asked, or a reasoned no."""

import itertools
import math
import sys
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from heapq import heapify, heappop, heappush
from typing import Final

from tonnage.catalog.engine_speed import speed_table
from tonnage.catalog.speed_range import together
from tonnage.sizing.checks import check_request
from tonnage.sizing.cost import gpu_hour
from tonnage.sizing.errors import (
    InvalidParallelismError,
    SeveralNodesError,
    SizingError,
    SLOInfeasibleError,
)
from tonnage.sizing.parallelism.draft import splits_for
from tonnage.sizing.parallelism.rules import explain_no_candidate
from tonnage.sizing.plan import (
    Candidate,
    OnSearch,
    Sizing,
    confirm_targets,
    keep_searching,
    may_serve,
    outline_of,
    outlines_of,
    ranked,
    rate_asked,
    refined,
    requests_per_s_asked,
    simulate,
    size_with,
    state_at_capacity,
)
from tonnage.sizing.request import SizingRequest, spread_of
from tonnage.sizing.serving.goodput import Length
from tonnage.sizing.serving.staffing import ROUNDING
from tonnage.sizing.split import Parallelism

OVER_NODES: Final = 1 / 3
"""By which share replicas over several nodes have to cost less than others: they need
LeaderWorkerSets and a fabric between nodes, and nobody measured their steps."""
SPEEDS: Final = tuple(step / 4 for step in range(-4, 5))
"""Powers of the spread of speeds at which a split is costed: evenly over the range."""
AS_STATED: Final = (0.0,)
"""At the stated speed alone."""
Cost = tuple[bool, float]
"""Of the demand, without one of a request per s: has the split no price; USD per hour, else GPUs.
The lowest first: a split without a price is taken only where no other serves."""
Rank = tuple[bool, Cost, int, float]
"""Of a split, the lowest first: is the demand beyond maxReplicas; what it costs, in the mean over
the range of speeds that is stated (beyond: the less the more they serve); the GPUs of one replica;
the less the more that one serves."""
NO_LIMIT: Final[Rank] = (True, (True, math.inf), sys.maxsize, math.inf)


def size(
    request: SizingRequest,
    *,
    is_within_node: bool = False,
    has_several_nodes: bool = False,
    confirms: bool = True,
    on_search: OnSearch = keep_searching,
) -> Sizing:
    """Answer a request: keep the flags that run, or choose a split (``choose``).

    At the demand asked, minReplicas counted; a class without a price costs its GPUs. Where no
    demand is known it is the least per token; where maxReplicas of no split serve it, the split of
    which these serve most.
    More than a node is tried only when nothing smaller will do, and not ``is_within_node``;
    ``has_several_nodes``: beside what is smaller.
    ``confirms``: as ``size_with`` takes it, of flags that run.

    Raises:
        SeveralNodesError: a replica within a node will not do, one over several may.
        ContextTooLongError: the model has fewer positions than contextLength.
        InvalidKvCacheError, UnsupportedEngineError: the engine has no such cache for the model.
        InvalidParallelismError: the engine refuses every split of the GPUs asked for.
        DoesNotFitError: no split leaves room for one request of the maximum length.
        SLOInfeasibleError: splits fit, but one request alone misses the SLO on each.
    """
    if request.flags:
        check_request(request)
        split = request.flags.parallelism
        return size_with(request, split, confirms=confirms, on_search=on_search)
    found = search(
        request,
        is_within_node=is_within_node,
        has_several_nodes=has_several_nodes,
        on_search=on_search,
    )  # what each of more replicas serves, too
    return size_with(request, found.parallelism, on_search=on_search)


def search(
    request: SizingRequest,
    *,
    is_within_node: bool = False,
    has_several_nodes: bool = False,
    limit: Rank = NO_LIMIT,
    on_search: OnSearch = keep_searching,
) -> Sizing:
    """Return the split that ``size`` takes, by full runs and for the demand alone.

    ``limit``: beyond which no split is chosen. Errors are those of ``size``.
    """
    check_request(request)
    splits = splits_for(request)
    if not splits:
        why = explain_no_candidate(request)
        within = "engine.role or model.kvOffload takes no pipeline stages and no further node; "
        raise InvalidParallelismError(f"{within if request.is_within_node else ''}{why}")
    refusals: list[SizingError] = []
    node = request.gpu.gpus_per_node
    beyond = [split for split in splits if split.num_gpus > node]
    smaller = [split for split in splits if split.num_gpus <= node]
    for tried in [list(splits)] if has_several_nodes else [smaller, beyond]:
        if tried is beyond and is_within_node and next(outlines_of(request, tried, []), None):
            raise SeveralNodesError(f"no split within a node of {node} {request.gpu.name} serves")
        found, refused = choose(request, tried, on_search, limit)
        if found:
            return found
        refusals += refused
    # A split that fits but is too slow says more than a smaller one that does not fit.
    slow = [refusal for refusal in refusals if isinstance(refusal, SLOInfeasibleError)]
    refusals = refusals or [SLOInfeasibleError("no split costs less")]
    raise min(reversed(slow), key=lambda each: each.excess) if slow else refusals[-1]


BISECTIONS: Final = 12
NEAR: Final = (2.0, 8.0, 32.0)
"""Times the least that any split may cost, within which they are searched one after another."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """What a split has to be within, and how that is judged."""

    limit: Rank = NO_LIMIT
    powers: tuple[float, ...] = SPEEDS


def rank_of_sizing(sizing: Sizing, powers: tuple[float, ...] = SPEEDS) -> Rank:
    """Return the rank of an answer."""
    rate = requests_per_s_asked(sizing)
    each = sizing.staffing.each(sizing.request.max_replicas or sizing.replicas)

    def replicas_at(speed: float) -> int:
        return sizing.replicas if speed == 1 else sizing.replicas_for((rate or 0.0) / speed)

    found = None if rate is None else replicas_at
    return rank_by_cost(sizing.request, sizing.parallelism.num_gpus, found, each, powers)


def complexity(split: Parallelism, gpus_per_node: int) -> tuple[bool, bool, bool, int]:
    """Return what makes a split the less simple: nodes, a pipeline, data parallelism, kinds of it.

    One GPU is simpler than tensor parallelism, and no step of data-parallel ranks was measured.
    """
    sizes = (split.tensor, split.pipeline, split.data, split.context)
    kinds = sum(size > 1 for size in sizes)
    return split.num_gpus > gpus_per_node, split.pipeline > 1, split.data > 1, kinds


def choose(
    request: SizingRequest,
    splits: Collection[Parallelism],
    on_search: OnSearch,
    limit: Rank = NO_LIMIT,
) -> tuple[Sizing | None, list[SizingError]]:
    """Return the simplest split that costs as little as any within the model's error, or why none.

    First of those that cost at most some times as much as any may by its fluid bound: of others it
    is soon known that they do not.
    """
    least = _least_bound(request, splits)
    for near in (*(min(limit, _times(least, times)) for times in NEAR), limit):
        found, refusals = _simplest(request, splits, on_search, near)
        if found and near < (wide := min(limit, _clearly_below(found, 1 / (1 + OVER_NODES) - 1))):
            return _simplest(request, splits, on_search, wide)
        if found or near == limit:
            break
    return found, refusals


def _least_bound(request: SizingRequest, splits: Iterable[Parallelism]) -> Rank:
    """Return the rank that any split has at least, by fluid bounds."""
    least = NO_LIMIT
    for split in sorted(splits, key=lambda split: split.num_gpus):
        if _least_rank(request, split.num_gpus) >= least:
            continue
        for outline in outlines_of(request, [split], []):
            least = min(least, _rank_at(outline, outline.bound_requests_per_s, SPEEDS))
    return least


def _times(rank: Rank, times: float) -> Rank:
    """Return the limit that is some times a rank; of one beyond maxReplicas there is none."""
    is_beyond, (has_no_price, amount), *_ = rank
    return NO_LIMIT if is_beyond else (False, (has_no_price, times * amount), 0, -math.inf)


def _simplest(
    request: SizingRequest, splits: Iterable[Parallelism], on_search: OnSearch, limit: Rank
) -> tuple[Sizing | None, list[SizingError]]:
    """Return the split of ``choose`` within a limit.

    What is not measured of a model or a board is the same for all of its splits: the error that
    tells them apart is that of a measured step, and of pipelines, of which none was measured.
    """
    best: Sizing | None = None
    chosen, gain, refusals = 0, 0.0, list[SizingError]()
    level = partial(complexity, gpus_per_node=request.gpu.gpus_per_node)
    grouped = itertools.groupby(sorted(splits, key=level), key=level)
    levels = [(_error(*kinds), list(alike)) for kinds, alike in grouped]
    for number, (error, alike) in enumerate(levels):
        bar = Bar(limit=limit)
        if best is not None:
            bar = Bar(limit=min(limit, _clearly_below(best, error)))
        found, refused = cheapest(request, alike, on_search, bar)
        refusals += refused
        if found:
            best, chosen, gain = found, number, error
    if best is not None:  # one that was not clearly better than the simplest may be as good as it
        bar = Bar(limit=min(limit, _clearly_below(best, 1 / (1 + gain) - 1)))
        simpler = (cheapest(request, each, on_search, bar)[0] for _, each in levels[:chosen])
        best = next(filter(None, simpler), best)
    return best, refusals


def _error(is_beyond: bool, has_stages: bool, *_: object) -> float:
    """Return by which share splits of a complexity may be off beside a simpler one."""
    if is_beyond:
        return OVER_NODES
    table = speed_table()
    step, stages = table.spread_fraction["step"], table.unmeasured_fraction["pipeline"]
    return together(step, stages) if has_stages else step


def _clearly_below(sizing: Sizing, gain: float) -> Rank:
    """Return the limit within which others cost less by a share; beyond maxReplicas, serve more."""
    is_beyond, (has_no_price, amount), *_ = rank_of_sizing(sizing)
    less = amount * (1 + gain) if is_beyond else amount / (1 + gain)
    return is_beyond, (has_no_price, less), 0, -math.inf


def cheapest(
    request: SizingRequest, alike: Collection[Parallelism], on_search: OnSearch, bar: Bar
) -> tuple[Sizing | None, list[SizingError]]:
    """Return the best of some splits, leaving out what ranks higher, and what refuses others.

    What may be best goes first: a split by the cost of one replica, until its fluid bound is known,
    then by that, until short runs say what it may serve, until full runs say what it does, and once
    more by the rate that is shown to. What is found is best once nothing left may be better; what
    full runs said of one is what others have to be better than, too.
    """
    queue: list[tuple[Rank, int, Tried]] = [
        (_least_rank(request, split.num_gpus), number, split) for number, split in enumerate(alike)
    ]
    heapify(queue)
    best: Sizing | None = None
    refusals: list[SizingError] = []
    too_slow: list[SizingError] = []
    within = nearly = bar.limit
    while queue and queue[0][0] <= within:
        _, number, tried = heappop(queue)
        try:
            if isinstance(tried, Sizing):
                found = confirm_targets(tried, on_search)
                if (rank := rank_of_sizing(found, bar.powers)) <= within:
                    best, within = found, rank
            else:
                now = replace(bar, limit=min(within, nearly))
                for rank, known in _tried_further(request, tried, now, on_search):
                    heappush(queue, (rank, number, known))
                    nearly = min(nearly, rank) if isinstance(known, Sizing) else nearly
        except SizingError as refusal:
            (refusals if isinstance(tried, Parallelism) else too_slow).append(refusal)
            if isinstance(tried, Sizing):  # others were left out for it
                rest = [split for split in alike if split != tried.parallelism]
                best, refused = cheapest(request, rest, on_search, bar)
                return best, [*refusals, *too_slow, *refused]
    return best, [*refusals, *too_slow]


Tried = Parallelism | Candidate | Sizing
"""A split, by how much is known of it."""


def _tried_further(
    request: SizingRequest, tried: Parallelism | Candidate, bar: Bar, on_search: OnSearch
) -> Iterator[tuple[Rank, Tried]]:
    """Yield what the next, longer look says of a split, if it may still be within a limit."""
    if isinstance(tried, Parallelism):
        known = outline_of(request, tried)
    else:
        least = _least_rate(tried, bar)
        if least and not may_serve(tried, least, on_search=on_search):
            return
        if tried.runs is Length.MEDIUM:
            most = _most_replicas(tried, bar)
            found = simulate(tried, most_replicas=most, on_search=on_search)
            yield rank_of_sizing(found, bar.powers), found
            return
        longer = ranked if tried.runs is None else refined
        known = longer(tried, on_search=on_search)
    yield _rank_at(known, known.most_requests_per_s, bar.powers), known


def cheaper_splits(
    request: SizingRequest, cost: Cost, *, on_search: OnSearch = keep_searching
) -> Sizing | None:
    """Return the split that a plan takes, also of several nodes, where it costs less than that."""
    splits = splits_for(request)
    found, _ = choose(request, splits, on_search, limit_below(request, cost))
    return found if found and cost_of(found) < cost else None


def limit_below(request: SizingRequest, cost: Cost) -> Rank:
    """Return the limit of what may cost less than this at the stated speed."""
    has_no_price, amount = cost
    return False, (has_no_price, (1 + spread_of(request)) * amount), 0, -math.inf


def next_best(
    request: SizingRequest, cost: Cost, *, on_search: OnSearch = keep_searching
) -> Sizing | None:
    """Return the split within a node that costs least, however simple others are, below a cost."""
    splits = splits_for(request)
    within = [split for split in splits if split.num_gpus <= request.gpu.gpus_per_node]
    bar = Bar(limit=(False, cost, 0, -math.inf), powers=AS_STATED)
    return cheapest(request, within, on_search, bar)[0]


def fewest_gpus(request: SizingRequest, *, is_within_node: bool = True) -> float:
    """Return the GPUs below which no split serves the demand, by fluid bounds.

    Raises:
        SizingError: none fits, or none keeps the SLO for one request alone.
    """
    refusals: list[SizingError] = []
    most = request.gpu.gpus_per_node if is_within_node else math.inf
    rate = request.demand.requests_per_s or 0.0
    fewest = math.inf
    for split in splits_for(request):
        if split.num_gpus >= fewest or split.num_gpus > most:
            break  # the smallest come first
        for outline in outlines_of(request, [split], refusals):
            needed = math.ceil(rate / outline.bound_requests_per_s)
            replicas = max(1, request.min_replicas, needed)
            fewest = min(fewest, replicas * outline.num_gpus)
    if fewest == math.inf:
        raise refusals[-1] if refusals else InvalidParallelismError("no split within a node")
    return fewest


def _least_rank(request: SizingRequest, num_gpus: int) -> Rank:
    """Return the rank of a split of so many GPUs that serves any rate."""
    demand = request.demand
    is_known = demand.requests_per_s is not None or demand.concurrency is not None
    cost = _cost_at(request, num_gpus, 1 if is_known else None, math.inf)
    return False, cost, num_gpus, -math.inf


def _rank_at(outline: Candidate, requests_per_s: float, powers: tuple[float, ...]) -> Rank:
    """Return the rank of a split of which each replica serves so much."""
    request, replica = outline.request, outline.widest.replica
    if requests_per_s <= 0:
        return True, (True, math.inf), outline.num_gpus, 0.0
    rate = rate_asked(request, replica, lambda: state_at_capacity(request, replica, requests_per_s))

    def replicas_at(speed: float) -> int:
        return math.ceil((rate or 0.0) * (1 - ROUNDING) / requests_per_s / speed)

    found = None if rate is None else replicas_at
    return rank_by_cost(request, outline.num_gpus, found, requests_per_s, powers)


def _least_rate(outline: Candidate, bar: Bar) -> float:
    """Return what each replica of a split has to serve at least to be within a limit."""
    low, high = 0.0, outline.bound_requests_per_s
    for _ in range(BISECTIONS if bar.limit < NO_LIMIT else 0):
        middle = (low + high) / 2
        is_within = _rank_at(outline, middle, bar.powers) <= bar.limit
        low, high = (low, middle) if is_within else (middle, high)
    return low


def _most_replicas(outline: Candidate, bar: Bar) -> float:
    """Return the replicas of a split that are within a limit at most."""
    is_beyond, (has_no_price, amount), *_ = bar.limit
    hour = gpu_hour(outline.request.gpu, outline.num_gpus)
    if is_beyond or has_no_price is not (hour is None):
        return math.inf
    each = hour.usd_per_replica(outline.num_gpus) if hour else outline.num_gpus
    most = (1 + spread_of(outline.request)) ** max(bar.powers) * amount
    return max(1, math.floor(most / each)) if each else math.inf


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
    request: SizingRequest,
    num_gpus: int,
    replicas_at: Callable[[float], int] | None,
    requests_per_s: float,
    powers: tuple[float, ...],
) -> Rank:
    """Return the rank of as many replicas as a speed over the stated one takes; None: of one."""
    most, spread = request.max_replicas, 1 + spread_of(request)
    if replicas_at is None:
        cost = _cost_at(request, num_gpus, None, requests_per_s)
        return False, cost, num_gpus, -requests_per_s
    if most is not None and replicas_at(1.0) > most:
        return True, (False, -requests_per_s), num_gpus, -requests_per_s
    is_loop = request.demand.concurrency is not None  # it asks slower engines for less
    speeds = (1.0,) if is_loop else (spread**power for power in powers)
    costs = [_cost_at(request, num_gpus, replicas_at(each), requests_per_s) for each in speeds]
    amount = sum(amount for _, amount in costs) / len(costs)
    return False, (costs[0][0], amount), num_gpus, -requests_per_s


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
