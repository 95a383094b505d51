"""The plan of one split: its batch and its replicas for a request, or a reasoned no."""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from tonnage.memoize import memoize
from tonnage.sizing.errors import SizingError, SLOInfeasibleError, WillNotStartError
from tonnage.sizing.memory.budget import memory_budget
from tonnage.sizing.memory.ceiling import MemoryBudget, shortfall
from tonnage.sizing.memory.starts import StartDoubt, start_doubts
from tonnage.sizing.parallelism.draft import rank_of
from tonnage.sizing.parallelism.shard import Shard
from tonnage.sizing.request import Flags, SizingRequest, spread_of
from tonnage.sizing.serving.flags import (
    BOUND_DOUBT,
    LEAST_SHARE,
    ChosenFlags,
    FlagSearch,
    pool_range_bytes,
    replica_under,
    request_bytes,
    start_figures,
    trial_of,
    widest_fitting,
    with_queue_limits,
)
from tonnage.sizing.serving.goodput import LARGE_ERROR, Goodput, Length, goodput, runs_of
from tonnage.sizing.serving.load_line import (
    bound_requests_per_s,
    can_be_missed,
    most_decoding,
    state_at,
    top_requests_per_s,
    tpot_ceiling,
)
from tonnage.sizing.serving.replica import (
    Replica,
    SteadyState,
    own_prefill_s,
    steady_state,
    steps_of_answer,
    typical_ttft_s,
)
from tonnage.sizing.serving.staffing import (
    ServiceLevel,
    Staffing,
    fleet_of,
    service_at,
    staffing_of,
)
from tonnage.sizing.split import Parallelism
from tonnage.sizing.workload import Routing, Target
from tonnage.units import format_s, significant

IDLE = 1e-6
"""Mean decoding sequences of a replica that serves one request now and then."""
TAIL = 0.9
"""Percentiles from which the mean bounds a target."""
SHORT_RUN_DOUBT = 1.2
"""Times what short runs find, that full ones are taken to find at most, and the other way round: a
margin for leaving splits out, no bound. Full runs were seen to find 1.17 and 1.19 times as much."""
LONGER_RUN_DOUBT = 1.08
"""The same of runs of medium length: full ones were seen to find 1.06 times as much."""
FULL_RUN_DOUBT = 1.02
"""The same of one full run, whose goodput longer ones may find."""

CONFIRMATION_STEP = 0.002
"""By which share a rate falls that its own run does not keep, the first time; then more."""
CONFIRMATIONS = 12

OnSearch = Callable[[], None]
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
        return state_at_capacity(self.request, self.replica, self.goodput_requests_per_s)

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
        """Between which they lie nine times in ten; a measured or given number is what it is.

        An assumption counts too much memory, never too little: it moves the high end alone.
        """
        tokens_per_byte = self.kv_tokens / self.replica.kv_pool_bytes
        low, high = pool_range_bytes(self.request, self.replica, self.budget)
        return low * tokens_per_byte, high * tokens_per_byte

    @property
    def memory_doubt(self) -> str | None:
        """Why the estimate would refuse the flags that run; None: it would not, or was measured."""
        request = self.request
        if request.flags is None or request.measured_kv_tokens is not None:
            return None
        needed = request_bytes(request, self.replica)
        context = request.context_tokens
        return shortfall(self.budget, request_bytes=needed, context_tokens=context)

    @cached_property
    def start_doubts(self) -> tuple[StartDoubt, ...]:
        """Why engines with these flags will not start, or may not; empty: none is known.

        Flags whose cache is measured were started with.
        """
        if self.request.measured_kv_tokens is not None:
            return ()
        return tuple(start_doubts(start_figures(self.request, self.replica, self.flags)))

    def check_start(self) -> None:
        """Refuse flags that no engine starts with.

        Raises:
            WillNotStartError: with the flag to change.
        """
        for doubt in self.start_doubts:
            if doubt.code == "WillNotStart":
                raise WillNotStartError(doubt.message)

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
        trial, routing = trial_of(self.request, self.replica), self.request.routing
        return service_at(trial, requests_per_s, num_replicas, routing, self.goodput.length)

    def keeps_targets(
        self, each_requests_per_s: float, num_replicas: int, *, on_search: OnSearch = keep_searching
    ) -> bool:
        """Tell whether so many replicas keep every target at this rate of each."""
        fleet = fleet_of(trial_of(self.request, self.replica), num_replicas, self.request.routing)
        runs = runs_of(fleet, self.goodput.length, on_search)
        return runs.outcome(each_requests_per_s).ratio <= 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A split: its widest batch, what it serves at most, and what runs so far say of its flags."""

    request: SizingRequest
    shard: Shard
    widest: ChosenFlags
    idle: SteadyState
    bound_requests_per_s: float
    chosen: ChosenFlags
    """The best flags by these runs; before any the widest."""
    runs: Length | None = None
    """Short ones, or of medium length; flags that run are taken as they are. None: none yet."""

    @property
    def num_gpus(self) -> int:
        return self.shard.parallelism.num_gpus

    @property
    def requests_per_s(self) -> float:
        """By these runs; offline, where there are none, as the memory ceiling gives it."""
        if self.request.slo.is_offline:
            return top_requests_per_s(self.widest.replica, self.request.workload)
        return self.chosen.goodput.requests_per_s

    @property
    def most_requests_per_s(self) -> float:
        """What each of some replicas is taken to serve by full runs at most."""
        if self.runs is None or not _serves_alike(self.request):
            return self.bound_requests_per_s
        doubt = SHORT_RUN_DOUBT if self.runs is Length.COARSE else LONGER_RUN_DOUBT
        return doubt * self.requests_per_s


def outlines_of(
    request: SizingRequest, splits: Iterable[Parallelism], refusals: list[SizingError]
) -> Iterator[Candidate]:
    """Yield the splits on which one request alone keeps the SLO; note what refuses others."""
    for split in splits:
        try:
            yield outline_of(request, split)
        except SizingError as refusal:
            refusals.append(refusal)


def outline_of(request: SizingRequest, parallelism: Parallelism) -> Candidate:
    """Return what the fluid arithmetic says of a split, with the flags that run or the widest.

    Raises:
        DoesNotFitError, InvalidKvCacheError, SLOInfeasibleError: this split will not do.
    """
    known = _outlines(request)
    if parallelism not in known:
        try:
            known[parallelism] = _outlined(request, parallelism)
        except SizingError as refusal:
            known[parallelism] = refusal
    found = known[parallelism]
    if isinstance(found, SizingError):
        raise found.with_traceback(None)  # else it grows by the frames of each time
    return found


@memoize
def _outlines(_request: SizingRequest) -> dict[Parallelism, Candidate | SizingError]:
    """Return what is known of the splits of a request so far, or why they will not do."""
    return {}


def _outlined(request: SizingRequest, parallelism: Parallelism) -> Candidate:
    shard = rank_of(request, parallelism)
    if flags := request.flags:
        widest = ChosenFlags(flags=flags, replica=replica_under(request, shard, flags))
    else:
        widest = widest_fitting(request, shard)
    idle = steady_state(widest.replica, request.workload, IDLE)
    alone = latencies_alone(request, widest.replica, idle)
    name, target, alone_s = max(
        alone, key=lambda each: each[2] / each[1].limit_s, default=("", None, 0.0)
    )
    if target and alone_s > target.limit_s:
        raise SLOInfeasibleError(
            f"{name}: one request alone on {request.gpu.name} {parallelism} takes "
            f"{format_s(alone_s)}, the SLO is {format_s(target.limit_s)}",
            excess=alone_s / target.limit_s,
            is_ttft=name == "timeToFirstToken",
        )
    if request.flags is None and not request.slo.is_offline:
        bound = FlagSearch(request, shard, keep_searching).upper_bound(widest)
    else:
        bound = bound_requests_per_s(widest.replica, request.workload, request.slo)
    if any(target.quantile < TAIL for target in request.slo.tpot):
        # Half of the answers may keep a limit that their mean misses.
        bound = max(bound, top_requests_per_s(widest.replica, request.workload))
    # A prompt's last step makes the first token: an answer of one holds its slot for no other.
    first = 1 + 1 / steps_of_answer(widest.replica, request.workload)
    return Candidate(
        request=request,
        shard=shard,
        widest=widest,
        idle=idle,
        bound_requests_per_s=bound * first * BOUND_DOUBT,
        chosen=widest,
    )


def may_serve(tried: Candidate, each_requests_per_s: float, *, on_search: OnSearch) -> bool:
    """Tell whether each replica of a split may serve a rate, by runs at that rate alone.

    By short ones with any flags, or by a longer one with those that shorter ones chose.
    """
    request = tried.request
    if request.flags or request.slo.is_offline or not _serves_alike(request):
        return True
    search = FlagSearch(request, tried.shard, on_search)
    if tried.runs is None:
        return search.can_serve(tried.widest, each_requests_per_s / SHORT_RUN_DOUBT)
    if tried.runs is Length.COARSE:
        return search.keeps(tried.chosen, each_requests_per_s / LONGER_RUN_DOUBT, Length.MEDIUM)
    return search.keeps(tried.chosen, each_requests_per_s / FULL_RUN_DOUBT, Length.FULL)


def ranked(outline: Candidate, *, on_search: OnSearch) -> Candidate:
    """Try a split with short runs; one whose flags run, or offline, is taken as it is."""
    request = outline.request
    if request.flags is not None:
        return replace(outline, runs=Length.MEDIUM)
    chosen = FlagSearch(request, outline.shard, on_search).coarse(outline.widest)
    return replace(outline, chosen=chosen, runs=Length.COARSE)


def _serves_alike(request: SizingRequest) -> bool:
    """Tell whether each of many replicas serves what one alone does.

    Of bursts, and behind a router that counts, each of many serves up to several times as much.
    """
    return request.routing is Routing.SERVICE and request.arrival_scv <= 1


def size_with(
    request: SizingRequest,
    parallelism: Parallelism,
    *,
    confirms: bool = True,
    on_search: OnSearch = keep_searching,
) -> Sizing:
    """Answer a request for one split of the model over GPUs.

    ``confirms``: run it once more at the demand and at capacity, where every target is to be kept.

    Raises:
        DoesNotFitError, SLOInfeasibleError: this split will not do.
    """
    outline = outline_of(request, parallelism)
    finalist = refined(ranked(outline, on_search=on_search), on_search=on_search)
    found = simulate(finalist, on_search=on_search)
    return confirm_targets(found, on_search) if confirms else with_replicas(found)


def refined(finalist: Candidate, *, on_search: OnSearch) -> Candidate:
    """Return the finalist with the flags that longer runs take; flags that run stay."""
    if finalist.runs is Length.MEDIUM:
        return finalist
    search = FlagSearch(_with_scv_of_replica(finalist), finalist.shard, on_search)
    chosen = search.refine(search.coarse(finalist.widest))
    return replace(finalist, chosen=chosen, runs=Length.MEDIUM)


def as_answer(sizing: Sizing, on_search: OnSearch) -> Sizing:
    """Return what a search found as an answer: by longer runs, where full ones leave much open."""
    if sizing.goodput.length is not Length.FULL or sizing.goodput.standard_error <= LARGE_ERROR:
        return sizing
    return size_with(sizing.request, sizing.parallelism, on_search=on_search)


def simulate(
    finalist: Candidate,
    *,
    most_replicas: float | None = None,
    on_search: OnSearch = keep_searching,
) -> Sizing:
    """Return what one replica serves within the SLO, and how many the demand takes.

    ``most_replicas``: no larger fleets are simulated, nor than slow engines take for the demand,
    and nothing by longer runs than full ones. None: it is the answer, and both are.

    Raises:
        SLOInfeasibleError: the queues leave no rate that is worth a replica.
    """
    request, shard, chosen = finalist.request, finalist.shard, finalist.chosen
    served = _goodput(request, chosen, on_search, is_last=most_replicas is None)
    top = top_requests_per_s(chosen.replica, request.workload)
    if served.requests_per_s <= LEAST_SHARE * top:
        why = _what_fails(finalist)
        raise SLOInfeasibleError(
            f"{request.gpu.name} {shard.parallelism}: one request alone meets the SLO, but no "
            f"rate that is worth a replica does ({why})",
            is_ttft=why.startswith("TTFT"),
        )
    found = Sizing(
        request=request,
        flags=with_queue_limits(request, chosen),
        shard=shard,
        budget=memory_budget(request, shard, chosen.flags),
        replica=chosen.replica,
        idle=finalist.idle,
        goodput=served,
        staffing=Staffing(each_requests_per_s=((1, served.requests_per_s),)),
        replicas=1,
    )
    spread = spread_of(request, chosen.flags.parallelism)
    rate = (1 + spread) * (requests_per_s_asked(found) or math.inf)

    def is_enough(few: int, each: float) -> bool:
        return most_replicas is not None and (few >= most_replicas or few * each >= rate)

    staffing = staffing_of(
        trial_of(request, chosen.replica),
        served.requests_per_s,
        request.routing,
        is_enough=is_enough,
        on_search=on_search,
    )
    return with_replicas(replace(found, staffing=staffing))


def _with_scv_of_replica(finalist: Candidate) -> SizingRequest:
    """Return the request with the burstiness that reaches one of the replicas behind a Service."""
    request, each = finalist.request, finalist.requests_per_s
    rate = request.demand.requests_per_s
    if not rate or not each or request.routing is not Routing.SERVICE:
        return request
    replicas = max(1, math.ceil(rate / each))
    return replace(request, arrival_scv=1 + (request.arrival_scv - 1) / replicas)


def _goodput(
    request: SizingRequest, chosen: ChosenFlags, on_search: OnSearch, *, is_last: bool
) -> Goodput:
    if request.slo.is_offline:
        name, num_decoding = most_decoding(chosen.replica, request.workload)
        state = steady_state(chosen.replica, request.workload, num_decoding)
        return Goodput(
            requests_per_s=state.requests_per_s, standard_error=0, limited_by=name, outcome=None
        )
    bound = bound_requests_per_s(chosen.replica, request.workload, request.slo)
    guess = chosen.goodput.requests_per_s
    trial = trial_of(request, chosen.replica)
    length = Length.LONG if is_last else Length.FULL
    found = goodput(trial, guess or bound, length=length, near=chosen.goodput, on_search=on_search)
    if request.flags is None and found.limited_by == "MaxNumSeqs":
        return replace(found, limited_by="TimeToFirstToken")  # more slots would serve less
    return found


def confirm_targets(sizing: Sizing, on_search: OnSearch) -> Sizing:
    """Return the sizing with its replicas, which keep every target at the demand and at capacity.

    What each of several serves is read between fleets that were simulated, and a run at a lower
    rate can be late where one at a higher is not: until both runs keep the targets the rate falls.

    Raises:
        SLOInfeasibleError: no rate near to the one that was found keeps them.
    """
    rate_ratio = 1.0
    for step in range(CONFIRMATIONS):
        slower = with_replicas(with_rates(sizing, rate_ratio))
        if slower.request.slo.is_offline:
            return slower
        number, asked = slower.replicas, requests_per_s_asked(slower)
        rates = (slower.staffing.each(number), *([asked / number] if asked else []))
        if all(slower.keeps_targets(each, number, on_search=on_search) for each in rates):
            return slower
        rate_ratio *= 1 - CONFIRMATION_STEP * (step + 1)
    raise SLOInfeasibleError(
        f"{sizing.request.gpu.name} {sizing.parallelism}: no rate near "
        f"{significant(sizing.goodput_requests_per_s)} requests/s of a replica keeps every target"
    )


def with_rates(sizing: Sizing, rate_ratio: float) -> Sizing:
    """Return the sizing of which each replica serves so many times as much."""
    goodput, staffing = sizing.goodput, sizing.staffing
    each = tuple((few, rate_ratio * rate) for few, rate in staffing.each_requests_per_s)
    return replace(
        sizing,
        goodput=replace(goodput, requests_per_s=rate_ratio * goodput.requests_per_s),
        staffing=replace(staffing, each_requests_per_s=each),
    )


def with_replicas(sizing: Sizing) -> Sizing:
    """Return the sizing with the replicas that the demand takes."""
    rate = requests_per_s_asked(sizing)
    return replace(sizing, replicas=sizing.replicas_for(rate)) if rate else sizing


def requests_per_s_asked(sizing: Sizing) -> float | None:
    """Return the rate that the demand means; requests in flight turn over once per residence.

    A closed loop: those who wait for an answer ask again when they have it, so the rate follows
    from the residence time at the load line.
    """
    return rate_asked(sizing.request, sizing.replica, lambda: sizing.at_capacity)


def rate_asked(
    request: SizingRequest, replica: Replica, at_capacity: Callable[[], SteadyState]
) -> float | None:
    """Return the rate that a demand means to replicas of a kind; None where none is known."""
    demand, workload = request.demand, request.workload
    if demand.concurrency is None:
        return demand.requests_per_s
    state = at_capacity()
    first_s = typical_ttft_s(replica, workload, state)
    return demand.concurrency / (first_s + steps_of_answer(replica, workload) * state.step_s)


def state_at_capacity(
    request: SizingRequest, replica: Replica, requests_per_s: float
) -> SteadyState:
    """Return the steady state of a replica at its goodput; offline, at the memory ceiling."""
    if request.slo.is_offline:
        _, num_decoding = most_decoding(replica, request.workload)
        return steady_state(replica, request.workload, num_decoding)
    return state_at(replica, request.workload, requests_per_s)


def latencies_alone(
    request: SizingRequest, replica: Replica, idle: SteadyState
) -> Iterator[tuple[str, Target, float]]:
    """Yield (field, target, seconds) of what one request alone on an idle replica takes."""
    workload, slo = request.workload, request.slo
    for target in slo.tpot:
        if can_be_missed(workload, target):
            yield "timePerOutputToken", target, idle.tpot_s
    for target in slo.ttft:
        prompt = min(workload.prompt.mean_tokens, workload.prompt.quantile(target.quantile))
        yield "timeToFirstToken", target, own_prefill_s(replica, workload, idle, prompt)


def _what_fails(outline: Candidate) -> str:
    """Name what leaves no rate: the prefill of a long prompt alone, else a request or two."""
    replica, workload, idle = outline.widest.replica, outline.request.workload, outline.idle
    for target in outline.request.slo.ttft:
        tokens = workload.prompt.quantile(target.quantile)
        own_s = own_prefill_s(replica, workload, idle, tokens)
        if outline.request.transfer_s >= target.limit_s:
            return f"TTFT {target}: its cache takes {format_s(outline.request.transfer_s)} to come"
        if own_s + idle.step_s > target.limit_s:
            return (
                f"TTFT {target}: a prompt of {significant(tokens)} tokens takes {format_s(own_s)}"
            )
    return f"one alone has a TPOT of {format_s(idle.tpot_s)}: a prompt beside it is too much"
