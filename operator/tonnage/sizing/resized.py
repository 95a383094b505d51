"""Flags for a spec that changed: what runs stays where another choice gains too little. Pure."""

from collections.abc import Callable
from dataclasses import replace

from tonnage.sizing.errors import DoesNotFitError, SizingError, SLOInfeasibleError
from tonnage.sizing.parallelism.rules import has_sizes, has_whole_experts
from tonnage.sizing.plan import Sizing
from tonnage.sizing.request import Flags, SizingRequest, unstarted
from tonnage.sizing.search import cost_of, costs_less, rank_of_sizing

GAIN_WORTH_A_RESTART = 0.05
"""A spec change keeps the running flags unless others cost less, or serve more, by this."""
SizeWith = Callable[[Flags | None, bool], Sizing]
"""Sizes a spec for engines with these flags; True: they run, and stay."""


def size_changed_spec(size: SizeWith, live: Flags | None, request: SizingRequest) -> Sizing:
    """Choose flags for a spec that changed; those that run stay where others gain too little.

    ``request``: of that spec; what it says of flags, those that run must have.

    Raises:
        SizingError, SearchAbandonedError: as sizing does.
    """
    # What is refused goes with the spec: no flag of a batch stays for it.
    live = live and replace(
        live, max_num_queued_reqs=None, max_num_queued_tokens=None, context_tokens=None
    )
    kept = _size_with_live_flags(size, live, request)
    try:
        first = size(None, False)
    except DoesNotFitError:
        if kept is None:
            raise
        return kept
    best = size(first.flags, False)
    if kept is None:
        return best
    return best if _is_worth_a_restart(best, kept) else kept


def size_slow(plan: Sizing, slow: SizingRequest, size: Callable[[SizingRequest], Sizing]) -> Sizing:
    """Return a plan's flags with the replicas that they take of slower engines.

    ``slow``: the plan's request with slower constants. Where these keep the SLO at no rate, the
    plan stays. Other errors are those of ``size``.
    """
    try:
        found = size(unstarted(slow, plan.flags))
    except SLOInfeasibleError:
        return plan
    return replace(found, request=replace(found.request, flags=None, has_started=True))


def with_planned_split(best: Sizing, size_planned: Callable[[], Sizing]) -> Sizing:
    """Keep the split that was planned last, where nothing runs, unless another costs less.

    By 5 %: the split that a status shows is the one that is created a few ticks later, whatever
    moved a little meanwhile. ``size_planned`` answers for the split that was planned last.

    Raises:
        SearchAbandonedError: as sizing does.
    """
    try:
        planned = size_planned()
    except SizingError:
        return best
    is_short = rank_of_sizing(planned)[0]
    if is_short != rank_of_sizing(best)[0]:
        return best if is_short else planned
    return best if costs_less(best, planned, gain=GAIN_WORTH_A_RESTART) else planned


def _is_worth_a_restart(best: Sizing, kept: Sizing) -> bool:
    """Tell whether another split costs clearly less, or other flags clearly serve more.

    They are too where they serve the demand within maxReplicas, and those that run do not. Of one
    split the cost does not count: a capacity that moves by a percent may move a whole replica.
    """
    is_short = rank_of_sizing(kept)[0]
    if is_short != rank_of_sizing(best)[0]:
        return is_short
    if best.parallelism != kept.parallelism and cost_of(best) != cost_of(kept):
        return costs_less(best, kept, gain=GAIN_WORTH_A_RESTART)
    return _served_per_gpu(best) > (1 + GAIN_WORTH_A_RESTART) * _served_per_gpu(kept)


def _served_per_gpu(sizing: Sizing) -> float:
    return sizing.goodput_requests_per_s / sizing.parallelism.num_gpus


def _size_with_live_flags(
    size: SizeWith, live: Flags | None, request: SizingRequest
) -> Sizing | None:
    """Return what the flags that run give a changed spec; None where they will not do.

    They have shown that what ran before fits, not what is asked now.
    """
    if live is None or not _are_as_asked(live, request):
        return None
    try:
        kept = size(live, True)
    except SizingError:
        return None
    return None if kept.memory_doubt else kept


def _are_as_asked(live: Flags, request: SizingRequest) -> bool:
    split, sizes = live.parallelism, request.sizes
    is_split = request.num_gpus in {None, split.num_gpus} and has_sizes(split, sizes)
    if split.context > 1 and not request.shares_context:
        return False
    if sizes.expert is False and has_whole_experts(request.shape, request.weights, split):
        return False
    return is_split and request.max_num_batched_tokens in {None, live.max_num_batched_tokens}
