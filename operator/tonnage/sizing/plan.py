"""One plan: the parallelism, the batch and the replicas for a request, or a reasoned no."""

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial

from tonnage.catalog.gpu import Gpu
from tonnage.sizing.checks import check_request
from tonnage.sizing.contender import (
    Contender,
    Outline,
    contender_of,
    contender_with,
    fewest_replicas,
    outline_of,
)
from tonnage.sizing.contest import Contest, Key
from tonnage.sizing.errors import InvalidParallelismError, SizingError, SLOInfeasibleError
from tonnage.sizing.memory.budget import memory_budget
from tonnage.sizing.memory.ceiling import MemoryBudget
from tonnage.sizing.parallelism.candidates import explain_no_candidate
from tonnage.sizing.parallelism.draft import splits_for
from tonnage.sizing.parallelism.shard import Shard
from tonnage.sizing.request import Flags, SizingRequest, on_gpu
from tonnage.sizing.serving.flags import memory_doubt, request_bytes
from tonnage.sizing.serving.load_line import LoadLine, line_used, load_line, tpot_ceiling
from tonnage.sizing.serving.staffing import Team, replicas_for
from tonnage.sizing.serving.steady import Replica, SteadyState, steps_of_answer
from tonnage.sizing.serving.ttft import own_prefill_s, typical_ttft_s
from tonnage.sizing.split import Parallelism
from tonnage.units import format_s, significant

LEAST_SHARE = 0.02
"""Of the most that a replica serves at all: where the promises leave less, the number of replicas
swings from hundreds to none with the tenth digit of a length."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizing:
    """The answer: everything that is known about one way to serve the request."""

    request: SizingRequest
    flags: Flags
    shard: Shard
    budget: MemoryBudget
    replica: Replica
    line: LoadLine
    idle: SteadyState
    team: Team
    sustainable_requests_per_s: float
    """Of one replica, within every promise."""
    replicas: int
    """For the demand asked; 1 where none is known."""

    @property
    def parallelism(self) -> Parallelism:
        return self.flags.parallelism

    @property
    def most_requests_per_s(self) -> float:
        return self.sustainable_requests_per_s

    @property
    def at_capacity(self) -> SteadyState:
        return self.line.state

    @property
    def memory_ceiling_promised(self) -> float:
        """Requests of the promised context length that a replica admits at once."""
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
        """Tokens that the cache of a replica holds in requests of the promised length."""
        return self.memory_ceiling_promised * self.request.context_tokens

    @property
    def kv_tokens_range(self) -> tuple[float, float]:
        """Between which they lie nine times in ten; a measured number is what it is."""
        if self.request.measured_kv_tokens is not None:
            return self.kv_tokens, self.kv_tokens
        left, spread = self.budget.kv_pool_bytes, self.budget.kv_pool_spread_bytes
        least = request_bytes(self.request, self.replica) if self.request.flags else 0.0
        tokens_per_byte = self.kv_tokens / self.replica.kv_pool_bytes
        low, high = max(least, left - spread), max(least, left + spread)
        return low * tokens_per_byte, high * tokens_per_byte

    @property
    def memory_doubt(self) -> str | None:
        """Why the estimate would refuse the flags that run; None: it would not."""
        return memory_doubt(self.request, self.replica, self.flags)

    @property
    def output_tokens_per_s(self) -> float:
        return self.sustainable_requests_per_s * self.request.workload.output_tokens

    def replicas_for(self, requests_per_s: float) -> int:
        """Return the replicas that sustain another rate."""
        return replicas_for(self.team, requests_per_s)


def size(request: SizingRequest) -> Sizing:
    """Answer a request: keep the flags that run, or choose the smallest split that will do.

    A split will do when it fits, one request alone keeps the SLO, and maxReplicas of it serve the
    demand; where none serves it all, the one that serves most is taken. Among splits of the same
    number of GPUs the one with the highest sustainable rate is taken; a tie goes to the first,
    plain tensor parallelism. More than a node is tried only when nothing smaller fits.

    Raises:
        ContextTooLongError: the model has fewer positions than are promised.
        InvalidKvCacheError, UnsupportedEngineError: the engine has no such cache for the model.
        InvalidParallelismError: the engine refuses every split of the GPUs asked for.
        DoesNotFitError: no split leaves room for one request of the promised length.
        SLOInfeasibleError: splits fit, but one request alone misses the SLO on each.
    """
    check_request(request)
    if request.flags:
        return size_with(request, request.flags.parallelism)
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
    return _smallest(request, splits)


def _smallest(request: SizingRequest, splits: Iterable[Parallelism]) -> Sizing:
    contest: Contest[Outline | Contender, Sizing]
    contest = Contest(partial(outline_of, request), closer, Sizing)
    for num_gpus, each in itertools.groupby(splits, key=lambda split: split.num_gpus):
        if num_gpus > request.gpu.gpus_per_node and contest.winner(_fastest):
            break
        same_size = list(each)
        outlines = [contest.enter(split) for split in same_size]
        # Where none can be enough, they are left alone unless all sizes are like that.
        if any(outline and _may_be_enough(outline) for outline in outlines):
            fastest = contest.winner(_fastest, same_size)
            if fastest and _is_enough(fastest):
                return staffed(fastest)
    if fastest := contest.winner(_fastest):
        return staffed(fastest)
    # A split that fits but is too slow says more than a smaller one that does not fit.
    refusals = contest.refusals
    slow = [refusal for refusal in refusals if isinstance(refusal, SLOInfeasibleError)]
    raise (slow or refusals)[-1]


def _fastest(known: Outline | Contender | Sizing) -> Key:
    return (-known.most_requests_per_s,)


def _may_be_enough(known: Outline | Contender) -> bool:
    most, rate = known.request.max_replicas, known.request.demand.requests_per_s
    return most is None or not rate or fewest_replicas(rate, known.most_requests_per_s) <= most


def _is_enough(sizing: Sizing) -> bool:
    """Tell whether maxReplicas serve the demand.

    How many would is a search: it is left out where maxReplicas alone and pooled fall short.
    """
    most, rate = sizing.request.max_replicas, requests_per_s_asked(sizing)
    if most is None or not rate:
        return True
    if rate > most * sizing.sustainable_requests_per_s and not sizing.team.sustains(rate, most):
        return False
    return sizing.replicas_for(rate) <= most


def closer(known: Outline | Contender) -> Contender | Sizing:
    """Look closer at a split: at its flags, then at what one replica sustains.

    Raises:
        DoesNotFitError, SLOInfeasibleError: this split will not do.
    """
    return (
        judged(known)
        if isinstance(known, Contender)
        else contender_with(known.request, known.shard)
    )


def size_with(request: SizingRequest, parallelism: Parallelism) -> Sizing:
    """Answer a request for one split of the model over GPUs.

    Raises:
        DoesNotFitError, SLOInfeasibleError: this split will not do.
    """
    return staffed(judged(contender_of(request, parallelism)))


def judged(contender: Contender) -> Sizing:
    """Return what one replica of a contender sustains; how many replicas it takes is left open.

    Raises:
        SLOInfeasibleError: the queues leave no rate that is worth a replica.
    """
    request, flags, replica = contender.request, contender.flags, contender.replica
    lines = partial(
        load_line, workload=request.workload, slo=request.slo, arrival_scv=request.arrival_scv
    )
    line, roomy = lines(replica), lines(replace(replica, max_num_seqs=None))
    team = Team(
        replica=replica,
        workload=request.workload,
        slo=request.slo,
        line=line,
        slots=flags.max_num_seqs * replica.num_queues,
        routing=request.routing,
        arrival_scv=request.arrival_scv,
    )
    sustainable = team.sustainable_requests_per_s(1)
    if sustainable <= LEAST_SHARE * contender.top_requests_per_s:
        raise SLOInfeasibleError(
            f"{request.gpu.name} {flags.parallelism}: one request alone keeps the SLO, but no "
            f"rate keeps it that is worth a replica ({_what_fails(contender, line)})"
        )
    return Sizing(
        request=request,
        flags=flags,
        shard=contender.shard,
        budget=memory_budget(request, contender.shard, flags),
        replica=replica,
        line=replace(
            line_used(line, roomy, sustainable), limited_by=contender.chosen_for or line.limited_by
        ),
        idle=contender.idle,
        team=team,
        sustainable_requests_per_s=sustainable,
        replicas=1,
    )


def staffed(sizing: Sizing) -> Sizing:
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


def _what_fails(contender: Contender, line: LoadLine) -> str:
    """Name what leaves no rate: the prefill of a long prompt alone, else what stops the load."""
    replica, workload, idle = contender.replica, contender.request.workload, contender.idle
    for promise in contender.request.slo.ttft:
        tokens = workload.prompt.quantile(promise.quantile)
        own_s = own_prefill_s(replica, workload, idle, tokens)
        if own_s + idle.step_s > promise.limit_s:
            return (
                f"TTFT {promise}: a prompt of {significant(tokens)} tokens takes {format_s(own_s)}"
            )
    return f"limited by {line.limited_by}"


def alternatives(request: SizingRequest, gpus: Iterable[Gpu]) -> list[Sizing]:
    """Answer the request on other GPU classes, cheapest in GPUs first; the refused left out."""
    answers = []
    for gpu in gpus:
        try:
            answers.append(size(on_gpu(request, gpu)))
        except (SizingError, LookupError):
            continue
    return sorted(answers, key=lambda answer: answer.flags.parallelism.num_gpus)
