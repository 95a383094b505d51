"""The fewest replicas that serve a demand, where nobody asks what each could serve beside it."""

import math
from dataclasses import replace
from typing import Final

from tonnage.sizing.plan import (
    LEAST_SHARE,
    Between,
    Finalist,
    Outline,
    Sizing,
    requests_per_s_asked,
)
from tonnage.sizing.request import SizingRequest, spread_of
from tonnage.sizing.search import Judge, Rank, in_full, rank_by_cost, rank_of_sizing
from tonnage.sizing.serving.flags import ChosenFlags, FlagSearch, trial_of
from tonnage.sizing.serving.goodput import MOST, NOTHING, Length, ratio_at
from tonnage.sizing.serving.load_line import top_requests_per_s
from tonnage.sizing.serving.staffing import ROUNDING, Staffing, serves_as_alone

MOST_COUNTED: Final = 10
"""Replicas up to which each number is tried: a search for the rate of one takes as many runs."""
FLAGS_DOUBT: Final = 1.03
"""What the best flags serve over those that short runs find, at most times."""
FEWEST_LATE: Final = 100
"""Requests that may be late in a full run, from which one of it says whether targets are kept."""


def counted(request: SizingRequest) -> Judge:
    """Return how a search answers that asks for the number of replicas alone."""
    return Judge(
        answer=by_count, bound_of=_bound_of, enough_requests_per_s=enough_requests_per_s(request)
    )


def enough_requests_per_s(request: SizingRequest) -> float:
    """Return the rate of one replica with which the fewest replicas serve the demand.

    Also were their steps longer by the spread of their prior. Infinity: no rate is asked for.
    """
    rate = request.demand.requests_per_s
    return (1 + spread_of(request)) * rate / _least(request) if rate else math.inf


def can_be_counted(outline: Outline) -> bool:
    """Tell whether one run of one replica says if some number of them serves the demand.

    Not for a closed loop or offline, nor where what one serves hangs on how many there are, where
    few requests may be late, or where a plan may refuse so low a rate.
    """
    request = outline.request
    slo, rate = request.slo, request.demand.requests_per_s
    if not rate or slo.is_offline or not serves_as_alone(request.routing, request.arrival_scv):
        return False
    top = top_requests_per_s(outline.widest.replica, request.workload)
    strictest = max(target.quantile for target in (*slo.ttft, *slo.tpot))
    has_enough_late = (1 - strictest) * MOST[Length.FULL] >= FEWEST_LATE
    return has_enough_late and rate / _least(request) > LEAST_SHARE * top


def expected_replicas(finalist: Finalist) -> int:
    """Return how many replicas the rate of short runs comes to; that of a finalist is not 0."""
    request = finalist.outline.request
    rate = (request.demand.requests_per_s or 0.0) * (1 - ROUNDING)
    return max(_least(request), math.ceil(rate / finalist.requests_per_s))


def count_replicas(finalist: Finalist, most: int, between: Between) -> Sizing | None:
    """Return the answer for a split with the fewest replicas; None: it takes more than ``most``.

    Each number is tried by a full run of one replica at its part of the demand, with the flags of
    short runs; where one replica less hangs on these, with better ones. The goodput is a rate that
    each was seen to keep: its part of the demand, or more by the spread of the prior.
    """
    outline, chosen = finalist.outline, finalist.coarse
    asked, least = outline.request.demand.requests_per_s or 0.0, _least(outline.request)
    number = max(least, min(most, expected_replicas(finalist)))
    while number <= most and not _keeps(outline, chosen, asked / number, between):
        number += 1
    while least < number and _keeps(outline, chosen, asked / (number - 1), between):
        number -= 1
    if least < number and _keeps(outline, chosen, asked / (number - 1) / FLAGS_DOUBT, between):
        better = FlagSearch(outline.request, outline.shard, between).refine(chosen)
        if _keeps(outline, better, asked / (number - 1), between):
            chosen, number = better, number - 1
    return _sizing(outline, chosen, number, between) if number <= most else None


def _bound_of(best: Sizing) -> Rank:
    """Return the rank that a better answer may have at most, by cost and size."""
    return (*rank_of_sizing(best)[:3], -math.inf)


def by_count(finalist: Finalist, bound: Rank, between: Between) -> Sizing | None:
    """Return what full runs say of a split by its replicas alone; None: it ranks no lower."""
    outline = finalist.outline
    ranks = (
        rank_by_cost(outline.request, outline.num_gpus, number, math.inf)
        for number in range(1, MOST_COUNTED + 2)
    )
    most = sum(rank < bound for rank in ranks)
    if can_be_counted(outline) and min(most, expected_replicas(finalist)) <= MOST_COUNTED:
        found = count_replicas(finalist, min(most, MOST_COUNTED), between)
        if found is not None or most <= MOST_COUNTED:
            return found
    found = in_full(finalist, between, refines=False)
    return in_full(finalist, between) if _may_take_fewer(found) else found


def _may_take_fewer(sizing: Sizing) -> bool:
    """Tell whether better flags than those of short runs may save one replica in ten."""
    rate = requests_per_s_asked(sizing) or 0.0
    return sizing.replicas_for(rate / FLAGS_DOUBT) <= 0.9 * sizing.replicas


def _least(request: SizingRequest) -> int:
    return max(1, request.min_replicas)


def _keeps(outline: Outline, chosen: ChosenFlags, requests_per_s: float, between: Between) -> bool:
    """Tell whether a replica keeps every target at a rate."""
    trial = trial_of(outline.request, chosen.replica)
    return ratio_at(trial, requests_per_s, length=Length.FULL, between=between) <= 1


def _sizing(outline: Outline, chosen: ChosenFlags, number: int, between: Between) -> Sizing:
    request = outline.request
    rate = (request.demand.requests_per_s or 0.0) / number
    more = (1 + spread_of(request)) * rate
    kept = more if _keeps(outline, chosen, more, between) else rate
    served = replace(NOTHING, requests_per_s=kept)
    return outline.sizing(chosen, served, Staffing(each_requests_per_s=((1, kept),)), number)
