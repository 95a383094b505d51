"""Flags for a spec that changed: what runs stays where another choice gains too little. Pure."""

from collections.abc import Callable

from tonnage.sizing.errors import DoesNotFitError, SizingError
from tonnage.sizing.plan import Sizing
from tonnage.sizing.request import Flags, SizingRequest

GAIN_WORTH_A_RESTART = 0.05
"""A spec change keeps the running flags unless others raise a replica's capacity by more."""
SizeWith = Callable[[Flags | None, bool], Sizing]
"""Sizes a spec for engines with these flags; True: they run, and stay."""


def resized(size: SizeWith, live: Flags | None, request: SizingRequest) -> Sizing:
    """Choose flags for a spec that changed; those that run stay where others gain too little.

    ``request``: of that spec; what it says of flags, those that run must have.

    Raises:
        SizingError, SearchAbandonedError: as sizing does.
    """
    kept = _kept(size, live, request)
    try:
        first = size(None, False)
    except DoesNotFitError:
        if kept is None:
            raise
        return kept
    best = size(first.flags, False)
    if kept is None:
        return best
    worth_it = best.goodput_requests_per_s * kept.flags.parallelism.num_gpus > (
        1 + GAIN_WORTH_A_RESTART
    ) * (kept.goodput_requests_per_s * best.flags.parallelism.num_gpus)
    return best if worth_it else kept


def _kept(size: SizeWith, live: Flags | None, request: SizingRequest) -> Sizing | None:
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
    has_size = request.num_gpus in {None, live.parallelism.num_gpus}
    return has_size and request.max_num_batched_tokens in {None, live.max_num_batched_tokens}
