"""What is known of a split before anyone waits in its queues, and what bounds them.

An outline has the places that memory and TPOT leave at most, a contender the flags. Each takes a
fraction of the time of what comes after it, and no replica sustains more than its places let
through: a split whose places let too little through need not be asked for the rest.
"""

import math
from dataclasses import dataclass

from tonnage.sizing.errors import SLOInfeasibleError
from tonnage.sizing.parallelism.draft import rank_of
from tonnage.sizing.parallelism.shard import Shard
from tonnage.sizing.request import Flags, SizingRequest
from tonnage.sizing.serving.flags import most_places, replica_under, settle
from tonnage.sizing.serving.load_line import top_requests_per_s
from tonnage.sizing.serving.staffing import ROUNDING
from tonnage.sizing.serving.steady import Replica, SteadyState, steady_state
from tonnage.sizing.serving.ttft import typical_ttft_s
from tonnage.sizing.split import Parallelism
from tonnage.units import format_s

BINARY_ROUNDING = 1e-9
"""Share by which rates differ at most that are equal on paper."""
IDLE = 1e-6
"""Mean decoding sequences of a replica that serves one request now and then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outline:
    """A split, and what its replica sustains at most."""

    request: SizingRequest
    shard: Shard
    most_requests_per_s: float

    @property
    def parallelism(self) -> Parallelism:
        return self.shard.parallelism


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """A split that fits, and on which one request alone keeps the promises."""

    request: SizingRequest
    flags: Flags
    shard: Shard
    replica: Replica
    idle: SteadyState
    top_requests_per_s: float
    """That its places let through, however long requests wait and take."""
    chosen_for: str | None
    """The limit that the flags were chosen for; None: they were given."""

    @property
    def parallelism(self) -> Parallelism:
        return self.shard.parallelism

    @property
    def most_requests_per_s(self) -> float:
        """Return what a replica sustains at most, be it alone or one of many."""
        return self.top_requests_per_s * (1 + BINARY_ROUNDING)


def fewest_replicas(requests_per_s: float, most_requests_per_s: float) -> int:
    """Return the number below which no replicas are enough that sustain so much at most."""
    if most_requests_per_s == 0:
        return 1
    return max(1, math.ceil(requests_per_s * (1 - ROUNDING) / most_requests_per_s))


def outline_of(request: SizingRequest, parallelism: Parallelism) -> Outline:
    """Return what is known of a split whose flags are still to be chosen.

    Raises:
        InvalidKvCacheError: the engine does not keep such a cache.
    """
    shard = rank_of(request, parallelism)
    top = top_requests_per_s(most_places(request, shard, parallelism), request.workload)
    return Outline(request=request, shard=shard, most_requests_per_s=top * (1 + BINARY_ROUNDING))


def contender_of(request: SizingRequest, parallelism: Parallelism) -> Contender:
    """Return the split with the flags that run, or with those that it runs best with.

    Raises:
        DoesNotFitError, SLOInfeasibleError: this split will not do.
    """
    return contender_with(request, rank_of(request, parallelism))


def contender_with(request: SizingRequest, shard: Shard) -> Contender:
    """Return the contender of a shard; the arguments and errors are those of ``contender_of``."""
    flags, chosen_for = request.flags, None
    if flags is None:
        flags, chosen_for = settle(request, shard, shard.parallelism)
    replica = replica_under(request, shard, flags)
    idle = steady_state(replica, request.workload, IDLE)
    _check_alone(request, replica, idle)
    return Contender(
        request=request,
        flags=flags,
        shard=shard,
        replica=replica,
        idle=idle,
        top_requests_per_s=top_requests_per_s(replica, request.workload),
        chosen_for=chosen_for,
    )


def _check_alone(request: SizingRequest, replica: Replica, idle: SteadyState) -> None:
    """Refuse a split on which one request alone on an idle replica misses a promise.

    Raises:
        SLOInfeasibleError: with the latency reached and the one promised.
    """
    first_s = typical_ttft_s(replica, request.workload, idle)
    reached = {
        "timePerOutputToken": (idle.tpot_s, request.slo.tpot),
        "timeToFirstToken": (first_s, request.slo.ttft),
    }
    for name, (alone_s, promises) in reached.items():
        for promise in promises:
            if alone_s > promise.limit_s:
                raise SLOInfeasibleError(
                    f"{name}: one request alone on {request.gpu.name} "
                    f"{replica.shard.parallelism} takes {format_s(alone_s)}, the SLO is "
                    f"{format_s(promise.limit_s)}"
                )
