"""One plan: the parallelism, the batch and the replicas for a request, or a reasoned no."""

import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from tonnage.sizing.checks import check_request
from tonnage.sizing.errors import InvalidParallelismError, SizingError, SLOInfeasibleError
from tonnage.sizing.memory.budget import memory_budget
from tonnage.sizing.memory.ceiling import MemoryBudget
from tonnage.sizing.parallelism.candidates import explain_no_candidate
from tonnage.sizing.parallelism.draft import rank_of, splits_for
from tonnage.sizing.parallelism.shard import Shard
from tonnage.sizing.request import Flags, SizingRequest
from tonnage.sizing.serving.demand import ServiceLevel, service_at
from tonnage.sizing.serving.flags import (
    Chosen,
    FlagSearch,
    largest_fitting,
    memory_doubt,
    replica_under,
    request_bytes,
    trial_of,
)
from tonnage.sizing.serving.goodput import Goodput, goodput
from tonnage.sizing.serving.load_line import (
    bound_requests_per_s,
    most_decoding,
    state_at,
    top_requests_per_s,
    tpot_ceiling,
)
from tonnage.sizing.serving.replica import Replica
from tonnage.sizing.serving.short_answers import can_be_missed
from tonnage.sizing.serving.staffing import Staffing, staffing_of
from tonnage.sizing.serving.steady import SteadyState, steady_state, steps_of_answer
from tonnage.sizing.serving.ttft import own_prefill_s, typical_ttft_s
from tonnage.sizing.split import Parallelism
from tonnage.sizing.workload import Routing, Target
from tonnage.units import format_s, significant

LEAST_SHARE = 0.01
"""Of the most that a replica serves at all: where the SLO leaves less, the number of replicas
swings from hundreds to none with the tenth digit of a length."""
IDLE = 1e-6
"""Mean decoding sequences of a replica that serves one request now and then."""
BOUND_DOUBT = 1.15
"""What a replica may serve more than the fluid bound says: it knows no whole sequences."""
FINALISTS = 4
"""Splits that are tried by short runs, at most, of those of one number of GPUs."""
HOPE = 1.3
"""Times what short runs find for one replica, that each of many may serve."""
NEAR = 0.93
"""Of the most that short runs found: splits that serve as much are simulated in full."""

Between = Callable[[], None]
"""Called before each run of the engine model; what it raises ends the search until it is asked
again, which goes on where it stopped."""


def keep_searching() -> None:
    """Let a search go on."""


@dataclass(frozen=True, kw_only=True)
class Sizing:
    """The answer: everything that is known about one way to serve the request."""

    request: SizingRequest
    flags: Flags
    shard: Shard
    budget: MemoryBudget
    replica: Replica
    idle: SteadyState
    goodput: Goodput
    """Of one replica."""
    staffing: Staffing
    replicas: int
    """For the demand asked; 1 where none is known."""

    @property
    def parallelism(self) -> Parallelism:
        return self.flags.parallelism

    @property
    def goodput_requests_per_s(self) -> float:
        return self.goodput.requests_per_s

    @property
    def limited_by(self) -> str:
        return self.goodput.limited_by

    @cached_property
    def at_capacity(self) -> SteadyState:
        """The steady state at goodput."""
        if self.request.slo.is_offline:
            _, num_decoding = most_decoding(self.replica, self.request.workload)
            return steady_state(self.replica, self.request.workload, num_decoding)
        return state_at(self.replica, self.request.workload, self.goodput_requests_per_s)

    @property
    def memory_ceiling_longest(self) -> float:
        """Requests of the maximum length that a replica admits at once."""
        return self.replica.requests_reserved(self.request.context_tokens)

    @property
    def memory_ceiling_typical(self) -> float:
        """Requests of the lengths that occur that the cache of a replica holds."""
        return self.replica.sequences_held(self.request.workload.mean_context_tokens)

    @property
    def slo_ceiling(self) -> float | None:
        return tpot_ceiling(self.replica, self.request.workload, self.request.slo)

    @property
    def kv_tokens(self) -> float:
        """Tokens that the cache of a replica holds in requests of the maximum length."""
        return self.memory_ceiling_longest * self.request.context_tokens

    @property
    def kv_tokens_range(self) -> tuple[float, float]:
        """Between which they lie nine times in ten; a measured or given number is what it is."""
        if self.request.measured_kv_tokens is not None or self.budget.given_pool:
            return self.kv_tokens, self.kv_tokens
        least = request_bytes(self.request, self.replica) if self.request.flags else 0.0
        tokens_per_byte = self.kv_tokens / self.replica.kv_pool_bytes
        low, high = self.budget.kv_pool_low_bytes, self.budget.kv_pool_high_bytes
        return max(least, low) * tokens_per_byte, max(least, high) * tokens_per_byte

    @property
    def memory_doubt(self) -> str | None:
        """Why the estimate would refuse the flags that run; None: it would not."""
        return memory_doubt(self.request, self.replica, self.flags)

    @property
    def output_tokens_per_s(self) -> float:
        return self.goodput_requests_per_s * self.request.workload.output_tokens

    @cached_property
    def most_requests_per_s(self) -> float:
        """What a replica serves however long requests wait and take."""
        return top_requests_per_s(self.replica, self.request.workload)

    def replicas_for(self, requests_per_s: float) -> int:
        """Return the replicas that sustain another rate."""
        return self.staffing.replicas_for(requests_per_s)

    def sustained_requests_per_s(self, num_replicas: int) -> float:
        """Return what so many replicas serve together within every target."""
        return num_replicas * self.staffing.each(num_replicas)

    def at(self, requests_per_s: float, num_replicas: int) -> ServiceLevel:
        """Return what requests meet at a rate on so many replicas."""
        trial = trial_of(self.request, self.replica)
        return service_at(trial, requests_per_s, num_replicas, self.request.routing)


def size(request: SizingRequest, *, between: Between = keep_searching) -> Sizing:
    """Answer a request: keep the flags that run, or choose the smallest split that will do.

    A split will do when it fits, one request alone keeps the SLO, and maxReplicas of it serve the
    demand; where none serves it all, the one that serves most is taken. Among splits of the same
    number of GPUs the one with the highest goodput is taken; a tie goes to the first, plain tensor
    parallelism. More than a node is tried only when nothing smaller fits.

    Raises:
        ContextTooLongError: the model has fewer positions than contextLength.
        InvalidKvCacheError, UnsupportedEngineError: the engine has no such cache for the model.
        InvalidParallelismError: the engine refuses every split of the GPUs asked for.
        DoesNotFitError: no split leaves room for one request of the maximum length.
        SLOInfeasibleError: splits fit, but one request alone misses the SLO on each.
    """
    check_request(request)
    if request.flags:
        return size_with(request, request.flags.parallelism, between=between)
    splits = splits_for(request, num_gpus=request.num_gpus)
    if not splits:
        raise InvalidParallelismError(
            explain_no_candidate(
                request.shape,
                request.weights,
                num_gpus=request.num_gpus or 1,
                gpus_per_node=request.gpu.gpus_per_node,
            )
        )
    return _smallest(request, splits, between)


def _smallest(request: SizingRequest, splits: Iterable[Parallelism], between: Between) -> Sizing:
    found: list[Sizing] = []
    skipped: list[Outline] = []
    too_few: list[Finalist] = []
    refusals: list[SizingError] = []
    for num_gpus, each in itertools.groupby(splits, key=lambda split: split.num_gpus):
        if num_gpus > request.gpu.gpus_per_node and (found or too_few or skipped):
            break
        outlines = list(outlines_of(request, each, refusals))
        if not any(_may_be_enough(request, each.bound_requests_per_s) for each in outlines):
            skipped += outlines
            continue
        finalists = _finalists(outlines, between)
        if not any(_may_be_enough(request, HOPE * each.requests_per_s) for each in finalists):
            too_few += finalists
            continue
        best = _best_of(finalists, refusals, between)
        if best and _is_enough(best):
            return with_replicas(best)
        found += [best] if best else []
    most = _best_of([*too_few, *_finalists(skipped, between)], refusals, between)
    found += [most] if most else []
    if found:
        return with_replicas(max(found, key=lambda sizing: sizing.goodput_requests_per_s))
    # A split that fits but is too slow says more than a smaller one that does not fit.
    slow = [refusal for refusal in refusals if isinstance(refusal, SLOInfeasibleError)]
    raise (slow or refusals)[-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outline:
    """A split before anything is simulated: its widest batch, and what it serves at most."""

    request: SizingRequest
    shard: Shard
    widest: Chosen
    idle: SteadyState
    bound_requests_per_s: float

    @property
    def num_gpus(self) -> int:
        return self.shard.parallelism.num_gpus


def outlines_of(
    request: SizingRequest, splits: Iterable[Parallelism], refusals: list[SizingError]
) -> Iterator[Outline]:
    """Yield the splits on which one request alone keeps the SLO; note what refuses others."""
    for split in splits:
        try:
            yield outline_of(request, split)
        except SizingError as refusal:
            refusals.append(refusal)


def outline_of(request: SizingRequest, parallelism: Parallelism) -> Outline:
    """Return what the fluid arithmetic says of a split, with the flags that run or the widest.

    Raises:
        DoesNotFitError, InvalidKvCacheError, SLOInfeasibleError: this split will not do.
    """
    shard = rank_of(request, parallelism)
    widest = _running(request, shard) or largest_fitting(request, shard)
    idle = steady_state(widest.replica, request.workload, IDLE)
    _check_alone(request, widest.replica, idle)
    bound = bound_requests_per_s(widest.replica, request.workload, request.slo)
    # A prompt's last step makes the first token: an answer of one holds its slot for no other.
    first = 1 + 1 / steps_of_answer(widest.replica, request.workload)
    return Outline(
        request=request,
        shard=shard,
        widest=widest,
        idle=idle,
        bound_requests_per_s=bound * first * BOUND_DOUBT,
    )


def _running(request: SizingRequest, shard: Shard) -> Chosen | None:
    if request.flags is None:
        return None
    return Chosen(flags=request.flags, replica=replica_under(request, shard, request.flags))


@dataclass(frozen=True, slots=True, kw_only=True)
class Finalist:
    """A split, and what short runs say of its best flags."""

    outline: Outline
    coarse: Chosen

    @property
    def requests_per_s(self) -> float:
        """By short runs; where there are none, offline, by the fluid bound."""
        request, bound = self.outline.request, self.outline.bound_requests_per_s
        if request.slo.is_offline or request.flags is not None:
            return bound
        return self.coarse.goodput.requests_per_s


def finalist_of(outline: Outline, *, between: Between) -> Finalist:
    """Try a split with short runs; one whose flags run, or offline, is taken as it is."""
    request, coarse = outline.request, outline.widest
    if request.flags is None:
        coarse = FlagSearch(request, outline.shard, between).coarse(coarse)
    return Finalist(outline=outline, coarse=coarse)


def _best_of(
    finalists: list[Finalist], refusals: list[SizingError], between: Between
) -> Sizing | None:
    """Simulate the splits that come near the most that short runs found."""
    most = max((finalist.requests_per_s for finalist in finalists), default=0.0)
    best: Sizing | None = None
    for finalist in finalists:
        if finalist.requests_per_s < NEAR * most:
            continue
        try:
            sizing = simulate(finalist, between=between)
        except SizingError as refusal:
            refusals.append(refusal)
            continue
        if best is None or sizing.goodput_requests_per_s > best.goodput_requests_per_s:
            best = sizing
    return best


def _finalists(outlines: list[Outline], between: Between) -> list[Finalist]:
    """Try splits in the order of their bounds, until none may serve more than what is found."""
    found: list[Finalist] = []
    ranked = sorted(outlines, key=lambda outline: -outline.bound_requests_per_s)
    for outline in ranked[:FINALISTS]:
        most = max((finalist.requests_per_s for finalist in found), default=0.0)
        if outline.bound_requests_per_s <= most:
            break
        found.append(finalist_of(outline, between=between))
    return found


def _may_be_enough(request: SizingRequest, requests_per_s: float) -> bool:
    """Tell whether maxReplicas that serve so much each may serve the demand."""
    most, rate = request.max_replicas, request.demand.requests_per_s
    return most is None or not rate or rate <= most * requests_per_s


def _is_enough(sizing: Sizing) -> bool:
    """Tell whether maxReplicas serve the demand."""
    most, rate = sizing.request.max_replicas, requests_per_s_asked(sizing)
    return most is None or not rate or sizing.staffing.sustains(rate, most)


def size_with(
    request: SizingRequest, parallelism: Parallelism, *, between: Between = keep_searching
) -> Sizing:
    """Answer a request for one split of the model over GPUs.

    Raises:
        DoesNotFitError, SLOInfeasibleError: this split will not do.
    """
    outline = outline_of(request, parallelism)
    return with_replicas(simulate(finalist_of(outline, between=between), between=between))


def simulate(finalist: Finalist, *, between: Between = keep_searching) -> Sizing:
    """Return what one replica serves within the SLO; how many replicas it takes is left open.

    Raises:
        SLOInfeasibleError: the queues leave no rate that is worth a replica.
    """
    outline, chosen = finalist.outline, finalist.coarse
    request, shard = outline.request, outline.shard
    if request.flags is None:
        search = FlagSearch(_as_split(request, finalist), shard, between)
        chosen = search.refined(search.coarse(outline.widest))
    served = _goodput(request, chosen, between)
    top = top_requests_per_s(chosen.replica, request.workload)
    if served.requests_per_s <= LEAST_SHARE * top:
        raise SLOInfeasibleError(
            f"{request.gpu.name} {shard.parallelism}: one request alone keeps the SLO, but no "
            f"rate keeps it that is worth a replica ({_what_fails(outline)})"
        )
    return Sizing(
        request=request,
        flags=chosen.flags,
        shard=shard,
        budget=memory_budget(request, shard, chosen.flags),
        replica=chosen.replica,
        idle=outline.idle,
        goodput=served,
        staffing=staffing_of(
            trial_of(request, chosen.replica),
            served.requests_per_s,
            request.routing,
            between=between,
        ),
        replicas=1,
    )


def _as_split(request: SizingRequest, finalist: Finalist) -> SizingRequest:
    """Return the request with the burstiness that reaches one of the replicas behind a Service."""
    rate, each = request.demand.requests_per_s, finalist.requests_per_s
    if not rate or not each or request.routing is not Routing.SERVICE:
        return request
    replicas = max(1, math.ceil(rate / each))
    return replace(request, arrival_scv=1 + (request.arrival_scv - 1) / replicas)


def _goodput(request: SizingRequest, chosen: Chosen, between: Between) -> Goodput:
    if request.slo.is_offline:
        name, num_decoding = most_decoding(chosen.replica, request.workload)
        state = steady_state(chosen.replica, request.workload, num_decoding)
        return Goodput(
            requests_per_s=state.requests_per_s, standard_error=0, limited_by=name, outcome=None
        )
    bound = bound_requests_per_s(chosen.replica, request.workload, request.slo)
    guess = chosen.goodput.requests_per_s
    trial = trial_of(request, chosen.replica)
    found = goodput(trial, guess or bound, near=chosen.goodput, between=between)
    if request.flags is None and found.limited_by == "MaxNumSeqs":
        return replace(found, limited_by="TimeToFirstToken")  # more slots would serve less
    return found


def with_replicas(sizing: Sizing) -> Sizing:
    """Return the sizing with the replicas that the demand takes."""
    rate = requests_per_s_asked(sizing)
    return replace(sizing, replicas=sizing.replicas_for(rate)) if rate else sizing


def requests_per_s_asked(sizing: Sizing) -> float | None:
    """Return the rate that the demand means; requests in flight turn over once per residence.

    A closed loop: those who wait for an answer ask again when they have it, so the rate follows
    from the residence time at the load line.
    """
    demand, workload = sizing.request.demand, sizing.request.workload
    if demand.concurrency is None:
        return demand.requests_per_s
    state = sizing.at_capacity
    first_s = typical_ttft_s(sizing.replica, workload, state)
    return demand.concurrency / (first_s + steps_of_answer(sizing.replica, workload) * state.step_s)


def _check_alone(request: SizingRequest, replica: Replica, idle: SteadyState) -> None:
    """Refuse a split on which one request alone on an idle replica misses a target.

    Raises:
        SLOInfeasibleError: with the latency reached and the one asked for.
    """
    workload, slo = request.workload, request.slo
    for target in slo.tpot:
        if can_be_missed(workload, target):
            _check_target(request, replica, "timePerOutputToken", idle.tpot_s, target)
    for target in slo.ttft:
        prompt = min(workload.prompt.mean_tokens, workload.prompt.quantile(target.quantile))
        own_s = own_prefill_s(replica, workload, idle, prompt)
        _check_target(request, replica, "timeToFirstToken", own_s, target)


def _check_target(
    request: SizingRequest, replica: Replica, name: str, alone_s: float, target: Target
) -> None:
    if alone_s > target.limit_s:
        raise SLOInfeasibleError(
            f"{name}: one request alone on {request.gpu.name} {replica.model.shard.parallelism} "
            f"takes {format_s(alone_s)}, the SLO is {format_s(target.limit_s)}"
        )


def _what_fails(outline: Outline) -> str:
    """Name what leaves no rate: the prefill of a long prompt alone, else a request or two."""
    replica, workload, idle = outline.widest.replica, outline.request.workload, outline.idle
    for target in outline.request.slo.ttft:
        tokens = workload.prompt.quantile(target.quantile)
        own_s = own_prefill_s(replica, workload, idle, tokens)
        if own_s + idle.step_s > target.limit_s:
            return (
                f"TTFT {target}: a prompt of {significant(tokens)} tokens takes {format_s(own_s)}"
            )
    return f"one alone has a TPOT of {format_s(idle.tpot_s)}: a prompt beside it is too much"


def fewest_gpus(request: SizingRequest) -> float:
    """Return the GPUs below which no split within a node serves the demand, by fluid bounds.

    Raises:
        SizingError: none fits, or none keeps the SLO for one request alone.
    """
    refusals: list[SizingError] = []
    splits = splits_for(request, num_gpus=None)
    within = [split for split in splits if split.num_gpus <= request.gpu.gpus_per_node]
    rate = request.demand.requests_per_s or 0.0
    taken = [
        max(1, math.ceil(rate / outline.bound_requests_per_s)) * outline.num_gpus
        for outline in outlines_of(request, within, refusals)
    ]
    if not taken:
        raise refusals[-1] if refusals else InvalidParallelismError("no split within a node")
    return min(taken)
