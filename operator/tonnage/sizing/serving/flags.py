"""The flags that a split of the model runs best with, and the engine group that they make."""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from tonnage.catalog.engine import batch_defaults
from tonnage.memoize import memoize
from tonnage.sizing.errors import DoesNotFitError
from tonnage.sizing.memory.budget import memory_budget
from tonnage.sizing.memory.ceiling import MemoryBudget, given_shortfall, shortfall
from tonnage.sizing.memory.layout import default_block_tokens
from tonnage.sizing.memory.starts import StartFigures, most_startable_seqs
from tonnage.sizing.parallelism.shard import Shard
from tonnage.sizing.provenance import most_times
from tonnage.sizing.request import Flags, SizingRequest
from tonnage.sizing.serving.goodput import NOTHING, Goodput, Length, goodput, runs_of
from tonnage.sizing.serving.load_line import (
    QueueLimits,
    bound_requests_per_s,
    queue_limits,
    top_requests_per_s,
    tpot_ceiling,
)
from tonnage.sizing.serving.replica import Replica, prompts_step_s
from tonnage.sizing.serving.trial import Trial
from tonnage.sizing.split import Parallelism
from tonnage.sizing.step_time.model import StepTimeModel
from tonnage.sizing.step_time.speeds import speeds
from tonnage.sizing.workload import Slo

MOST_SEQS = 4_096
"""Slots of an engine without a TPOT target, at most."""
STRIDE = 0.75
"""Ratio of neighbouring numbers of slots that are tried."""
CLOSER = 0.9
"""The same for the last steps."""
PATIENCE = 3
"""Neighbours that serve no more, after which fewer slots are not tried."""
GAIN = 1.01
"""What another number of slots must bring."""
TIE = 0.999
"""Share of the goodput that counts as the same: of those a small flag is taken."""
BUDGET_GAIN = 1.06
"""What another token budget must bring than the best of those before it."""
LEAST_SHARE = 0.01
"""Of the most that a replica serves at all: where the SLO leaves less, the number of replicas
swings from hundreds to none with the tenth digit of a length."""
BOUND_DOUBT = 1.15
"""What a replica may serve more than the fluid bound says: it knows no whole sequences."""
BUDGETS_TOKENS = tuple(512 * times for times in (1, 2, 4, 8, 32))

OnSearch = Callable[[], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenFlags:
    """Flags, the engine group that they make, and what it serves by a coarse search."""

    flags: Flags
    replica: Replica
    goodput: Goodput = NOTHING


class FlagSearch:
    """The flags that serve most on one split, found with coarse runs."""

    def __init__(self, request: SizingRequest, shard: Shard, on_search: OnSearch) -> None:
        self._request, self._shard, self._between = request, shard, on_search
        self._late_at: list[tuple[int, float, float]] = []
        """(Token budget, slots, rate) at which first tokens are late in short runs."""

    def coarse(self, widest: ChosenFlags) -> ChosenFlags:
        """Return what short runs say of the flags of a split, to rank it by."""
        if self._request.slo.is_offline:
            return widest
        first = self._stall_free(widest)
        first = self._try(first, self._upper_bound(first), Length.COARSE)
        best = self._fewer(self._more(first))
        for tokens in self._budgets(widest):
            if tokens != first.flags.max_num_batched_tokens:
                best = self._under(tokens, best)
        return best

    def can_serve(self, widest: ChosenFlags, rate: float) -> bool:
        """Tell whether any flags keep a rate in short runs; those of its begin go first."""
        if self.keeps(self._stall_free(widest), rate):
            return True
        for tokens in sorted(self._budgets(widest), reverse=True):
            with suppress(DoesNotFitError):
                chosen, most = self._widest(tokens), self._slots_in_memory(tokens)
                more = min(most, math.ceil(chosen.flags.max_num_seqs / STRIDE))
                for seqs in itertools.islice((more, *_ladder(more)), PATIENCE + 1):
                    if self.keeps(self._with(chosen, max_num_seqs=seqs), rate):
                        return True
        return False

    def refine(self, coarse: ChosenFlags) -> ChosenFlags:
        """Return the flags of the highest goodput; of those that serve as much, the smallest."""
        rate = coarse.goodput.requests_per_s
        if not rate:
            return coarse
        most = self._slots_in_memory(coarse.flags.max_num_batched_tokens)
        return self._climb(self._try(coarse, rate, Length.MEDIUM), most)

    def _stall_free(self, widest: ChosenFlags) -> ChosenFlags:
        """Return the default budget, or the largest below it whose prompts keep TPOT by a step.

        Longer steps break the TPOT of answers of few tokens, of which moments of lengths know
        nothing (Sarathi-Serve, OSDI 2024, takes its budget so). They must serve clearly more.
        """
        slo, default = self._request.slo, widest.flags.max_num_batched_tokens
        limit_s = min((target.limit_s for target in slo.tpot), default=math.inf)
        budgets = (tokens for tokens in self._budgets(widest) if tokens <= default)
        for tokens in sorted(budgets, reverse=True):
            chosen = self._widest(tokens)
            if prompts_step_s(chosen.replica, self._request.workload) <= limit_s:
                return chosen
        return widest

    def _budgets(self, widest: ChosenFlags) -> Sequence[int]:
        """Return the engine's default, and the token budgets that may be taken instead.

        Beside a state of constant size vLLM cuts prompts at the ends of its long blocks, and does
        not start with a budget below one of them (vllm-project/vllm pull 34445); nor, beside some
        encoders, with one below the tokens of an item. For these no smaller one is taken.
        """
        default = widest.flags.max_num_batched_tokens
        if self._request.max_num_batched_tokens is not None:
            return (default,)
        is_cut_freely = _is_cut_freely(self._request, widest.replica)
        others = (each for each in BUDGETS_TOKENS if is_cut_freely or each > default)
        return tuple({default: None} | dict.fromkeys(others))

    def _widest(self, tokens: int) -> ChosenFlags:
        return self._largest(tokens, self._request.slo)

    def _slots_in_memory(self, tokens: int) -> int:
        """Return the slots that memory leaves: not all of them decode at a time, as TPOT asks."""
        return self._largest(tokens, Slo()).flags.max_num_seqs

    def _largest(self, tokens: int, slo: Slo) -> ChosenFlags:
        known, asked = _known_largest(self._request), (self._shard.parallelism, tokens, slo)
        if asked not in known:
            request = replace(self._request, slo=slo, max_num_batched_tokens=tokens)
            known[asked] = largest_fitting(request, self._shard)
        return known[asked]

    def upper_bound(self, widest: ChosenFlags) -> float:
        """Return what the fluid bound allows at most, of all token budgets that are tried."""
        bounds = [self._upper_bound(widest)]
        for tokens in self._budgets(widest):
            with suppress(DoesNotFitError):
                if tokens != widest.flags.max_num_batched_tokens:
                    bounds.append(self._upper_bound(self._widest(tokens)))
        return max(bounds)

    def _upper_bound(self, chosen: ChosenFlags) -> float:
        request = self._request
        return bound_requests_per_s(chosen.replica, request.workload, request.slo)

    def _try(self, chosen: ChosenFlags, guess: float, length: Length) -> ChosenFlags:
        trial = trial_of(self._request, chosen.replica)
        return replace(
            chosen, goodput=goodput(trial, guess, length=length, on_search=self._between)
        )

    def keeps(self, chosen: ChosenFlags, rate: float, length: Length = Length.COARSE) -> bool:
        """Tell whether a run keeps a rate; of none known, the least that is worth a replica.

        Where goodput is known no run is made.
        """
        top = top_requests_per_s(chosen.replica, self._request.workload)
        rate = rate or LEAST_SHARE * top
        if rate > BOUND_DOUBT * top:
            return False
        flags, is_short = chosen.flags, length is Length.COARSE
        if is_short and any(  # first tokens were late at no higher a rate, with no less to serve it
            flags.max_num_batched_tokens <= tokens and flags.max_num_seqs <= slots and rate >= least
            for tokens, slots, least in self._late_at
        ):
            return False
        runs = runs_of(trial_of(self._request, chosen.replica), length, self._between)
        if runs.known:
            return rate <= runs.known.requests_per_s
        if runs.ratio_within(rate) <= 1:
            return True
        if is_short and (slots := runs.late_slots(rate)):
            self._late_at.append((flags.max_num_batched_tokens, slots, rate))
        return False

    def _more(self, best: ChosenFlags) -> ChosenFlags:
        """Return the best among more slots: TPOT limits the mean of those that decode."""
        most = self._slots_in_memory(best.flags.max_num_batched_tokens)
        while (seqs := best.flags.max_num_seqs) < most and _used_slots(best) == seqs:
            rate = best.goodput.requests_per_s
            other = self._with(best, max_num_seqs=min(most, math.ceil(seqs / STRIDE)))
            if not rate or not self.keeps(other, GAIN * rate):
                break
            best = self._try(other, GAIN * rate, Length.COARSE)
        return best

    def _fewer(self, best: ChosenFlags) -> ChosenFlags:
        """Return the best among fewer slots: a short queue at the door can protect TPOT."""
        failed = 0
        for seqs in _ladder(_used_slots(best)):
            other, rate = self._with(best, max_num_seqs=seqs), best.goodput.requests_per_s
            if not self.keeps(other, GAIN * rate):
                failed += 1
                if rate and failed == PATIENCE:
                    break
                continue
            other = self._try(other, GAIN * rate or self._upper_bound(other), Length.COARSE)
            if other.goodput.requests_per_s > rate:
                best, failed = other, 0
        return best

    def _under(self, tokens: int, best: ChosenFlags) -> ChosenFlags:
        """Return the best under a token budget, where it serves more with many slots or as few.

        Fewer slots protect TPOT from long steps, and leave requests at the door; a small budget
        protects it with any number of slots.
        """
        rate = best.goodput.requests_per_s
        for other in self._other(tokens, best):
            if self.keeps(other, BUDGET_GAIN * rate):
                guess = BUDGET_GAIN * rate or self._upper_bound(other)
                return self._fewer(self._more(self._try(other, guess, Length.COARSE)))
        return best

    def _other(self, tokens: int, best: ChosenFlags) -> Iterator[ChosenFlags]:
        """Yield the most slots that a token budget leaves, as many as are used so far, and between.

        Fewer are tried too: beside longer steps of prompts less decodes at a time.
        A budget is given up where none of these serves clearly more.
        """
        with suppress(DoesNotFitError):
            widest, used = self._widest(tokens), _used_slots(best)
            most = widest.flags.max_num_seqs
            yield widest
            fewer = next(_ladder(used), used)
            for seqs in sorted({math.isqrt(most * used), used, fewer}, reverse=True):
                if seqs < most:
                    yield self._with(widest, max_num_seqs=seqs)

    def _climb(self, best: ChosenFlags, most: int) -> ChosenFlags:
        """Go on with longer runs to more slots or fewer while these serve more, then to the least.

        Which number has the fewest late requests hangs on the rate: at a higher one it is another.
        """
        while rate := best.goodput.requests_per_s:
            seqs = self._least_late(best, most)
            if seqs == _used_slots(best):
                break
            moved = self._try(self._with(best, max_num_seqs=seqs), rate, Length.MEDIUM)
            if moved.goodput.requests_per_s <= rate:
                break
            best = moved
        if not rate:  # longer runs found none
            return best
        return self._with(best, max_num_seqs=self._fewest(best, most))

    def _fewest(self, best: ChosenFlags, most: int) -> int:
        """Return the fewest slots that serve as much, and one step more where that does too.

        One less than the fewest may serve a tenth less, and a digit of a length makes it one.
        """
        seqs = _used_slots(best)
        while (tried := _fewer(seqs)) >= 1 and self._ties(best, tried):
            seqs = tried
        back = min(most, _more(seqs))
        return back if back > seqs and self._ties(best, back) else seqs

    def _ties(self, best: ChosenFlags, max_num_seqs: int) -> bool:
        rate = TIE * best.goodput.requests_per_s
        return self._late(self._with(best, max_num_seqs=max_num_seqs), rate, 1.0) <= 1

    def _least_late(self, best: ChosenFlags, most: int) -> int:
        """Return the slots with the fewest late requests at the rate found: uphill, either way."""
        rate = best.goodput.requests_per_s
        start = seqs = _used_slots(best)
        lowest = self._late(best, rate)
        for neighbour in (_more, _fewer):
            while 1 <= (tried := neighbour(seqs)) <= most:
                late = self._late(self._with(best, max_num_seqs=tried), rate, lowest)
                if late >= lowest:
                    break
                seqs, lowest = tried, late
            if seqs != start:
                return seqs
        return seqs

    def _late(self, chosen: ChosenFlags, rate: float, most: float = math.inf) -> float:
        """Return the late requests over those allowed at a rate, for the target missed most.

        Where they are more than ``most`` times as many, infinity.
        """
        trial = trial_of(self._request, chosen.replica)
        return runs_of(trial, Length.MEDIUM, self._between).ratio_within(rate, most)

    def _with(self, chosen: ChosenFlags, **changes: int) -> ChosenFlags:
        flags = replace(chosen.flags, **changes)  # type: ignore[arg-type]
        replica = replica_under(self._request, self._shard, flags)
        return replace(chosen, flags=flags, replica=replica)


@memoize
def _known_largest(_request: SizingRequest) -> dict[tuple[Parallelism, int, Slo], ChosenFlags]:
    """Return the most slots of splits so far, by token budget and SLO."""
    return {}


def _used_slots(chosen: ChosenFlags) -> int:
    """Return the slots that were ever used: more change nothing."""
    outcome = chosen.goodput.outcome
    seqs = chosen.flags.max_num_seqs
    return seqs if outcome is None else min(seqs, outcome.peak_running)


def _ladder(seqs: int) -> Iterator[int]:
    """Yield fewer slots, in descending order."""
    while seqs > 1:
        seqs = max(1, min(seqs - 1, math.floor(seqs * STRIDE)))
        yield seqs


def _more(seqs: int) -> int:
    return max(seqs + 1, math.ceil(seqs / CLOSER))


def _fewer(seqs: int) -> int:
    return min(seqs - 1, math.floor(seqs * CLOSER))


def trial_of(request: SizingRequest, replica: Replica) -> Trial:
    """Return what one replica is tried with."""
    return Trial(
        replica=replica,
        workload=request.workload,
        slo=request.slo,
        context_tokens=request.context_tokens,
        arrival_scv=request.arrival_scv,
        transfer_s=request.transfer_s,
    )


def with_queue_limits(request: SizingRequest, chosen: ChosenFlags) -> Flags:
    """Return the flags with what an engine refuses from, as it runs or would; None: never."""
    live = request.flags
    limits = QueueLimits()
    if live and live.refuse_requests:
        limits = QueueLimits(live.max_num_queued_reqs, live.max_num_queued_tokens)
    elif request.refuses_late:
        limits = queue_limits(chosen.replica, request.workload, request.slo)
    return replace(
        chosen.flags,
        max_num_queued_reqs=limits.num_requests,
        max_num_queued_tokens=limits.prompt_tokens,
    )


def largest_fitting(request: SizingRequest, shard: Shard) -> ChosenFlags:
    """Return the split with as many slots as the memory and the SLO ceiling leave.

    And with which it starts though the cache is as small as it may be. Slots cost sampler memory,
    so all are settled in rounds.

    Raises:
        DoesNotFitError: not even with a single slot.
    """
    flags = _flags(request, shard.parallelism, 1)
    single = ChosenFlags(flags=flags, replica=replica_under(request, shard, flags))
    seqs = most_slots(request, single.replica)
    while seqs > 1:
        flags = _flags(request, shard.parallelism, seqs)
        try:
            replica = replica_under(request, shard, flags)
        except DoesNotFitError:
            seqs //= 2
            continue
        most = most_slots(request, replica)
        if replica.layout.has_states:
            most = min(most, most_startable_seqs(start_figures(request, replica, flags)))
        if most >= seqs:
            return ChosenFlags(flags=flags, replica=replica)
        seqs = most
    return single


def widest_fitting(request: SizingRequest, shard: Shard) -> ChosenFlags:
    """Return the split with its slots under the default token budget, or the largest that fits.

    Raises:
        DoesNotFitError: not even with a single slot under the smallest budget.
    """
    try:
        return largest_fitting(request, shard)
    except DoesNotFitError:
        default = batch_defaults(request.gpu).max_num_batched_tokens
        most = 0 if request.max_num_batched_tokens else default
        for tokens in [each for each in reversed(BUDGETS_TOKENS) if each < most]:
            with suppress(DoesNotFitError):
                found = largest_fitting(replace(request, max_num_batched_tokens=tokens), shard)
                if _is_cut_freely(request, found.replica):
                    return found
        raise


def _is_cut_freely(request: SizingRequest, replica: Replica) -> bool:
    """Tell whether the engine starts with a budget below its default, as ``_budgets`` says."""
    shape = request.shape
    return not (
        shape.encoder_parameters or shape.num_uncounted_encoders or replica.layout.has_states
    )


def most_slots(request: SizingRequest, replica: Replica) -> int:
    """Return the slots of one rank that memory, TPOT and the token budget allow, one at least."""
    sequences = replica.sequences_held(request.workload.mean_context_tokens)
    allowed = tpot_ceiling(replica, request.workload, request.slo) if sequences else None
    each = (sequences if allowed is None else min(sequences, allowed)) / replica.model.dp_size
    budget = replica.max_batched_tokens // replica.model.tokens_verified
    return max(1, min(math.floor(each), budget, MOST_SEQS))


def _flags(request: SizingRequest, parallelism: Parallelism, max_num_seqs: int) -> Flags:
    return Flags(
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=request.max_num_batched_tokens
        or batch_defaults(request.gpu).max_num_batched_tokens,
        gpu_memory_utilization=request.engine.constants.gpu_memory_utilization,
        parallelism=parallelism,
    )


def replica_under(request: SizingRequest, shard: Shard, flags: Flags) -> Replica:
    """Return the engine group under these flags.

    Raises:
        DoesNotFitError: the cache does not hold one request of the maximum length, by an
            estimate for flags that nothing runs with yet, or as the flags give it.
    """
    without_cache = Replica(
        model=StepTimeModel(
            shard=shard,
            speeds=speeds(request.gpu, request.products, request.node_link_bytes_per_s),
            constants=request.speed,
            speculation=request.speculation,
        ),
        kv_pool_bytes=0.0,
        max_batched_tokens=flags.max_num_batched_tokens,
        max_num_seqs=flags.max_num_seqs,
        block_tokens=default_block_tokens(request.shape, request.switches.block_tokens),
        cache_rules=request.cache_rules,
    )
    return replace(without_cache, kv_pool_bytes=_pool_bytes(request, without_cache, flags))


def _pool_bytes(request: SizingRequest, replica: Replica, flags: Flags) -> float:
    """Return the cache of one rank: as a running engine reports it, else what the budget leaves.

    An engine that runs has shown that it holds one request: it would not have started. Not so with
    a cache that is given and too small: what is asked now is more than what runs, or nothing does.
    """
    context, measured = request.context_tokens, request.measured_kv_tokens
    needed = request_bytes(request, replica)
    if measured is not None:
        return max(measured * replica.bytes_per_reported_token(context), needed)
    budget = memory_budget(request, replica.model.shard, flags)
    has_run = request.flags is not None and request.has_started
    if has_run and budget.given_pool is None:
        return max(budget.kv_pool_bytes, needed)
    lacking = given_shortfall if request.flags and budget.given_pool else shortfall
    if lack := lacking(budget, request_bytes=needed, context_tokens=context):
        tokens = context * budget.kv_pool_bytes / needed
        room = f"; alone it has room for {tokens:,.0f} tokens" if budget.given_pool else ""
        raise DoesNotFitError(lack + room)
    return budget.kv_pool_bytes


def request_bytes(request: SizingRequest, replica: Replica) -> float:
    """Return the cache of one rank that one request of the maximum length may need."""
    return replica.blocks_reserved(request.context_tokens) * replica.layout.bytes_per_block


def pool_range_bytes(
    request: SizingRequest, replica: Replica, budget: MemoryBudget
) -> tuple[float, float]:
    """Return between which the cache of a rank lies; one that is measured or given is as it is."""
    pool = replica.kv_pool_bytes
    if request.measured_kv_tokens is not None or budget.given_pool:
        return pool, pool
    has_run = request.flags is not None and request.has_started
    least = request_bytes(request, replica) if has_run else 0.0
    times = most_times(request.inputs, "memory")
    high = min(budget.kv_pool_high_bytes * times, budget.total_bytes)
    return max(least, budget.kv_pool_low_bytes), max(least, high)


def start_figures(request: SizingRequest, replica: Replica, flags: Flags) -> StartFigures:
    """Return what decides whether an engine starts under these flags."""
    budget = memory_budget(request, replica.model.shard, flags)
    return StartFigures(
        engine=request.engine,
        budget=budget,
        layout=replica.layout,
        flags=flags,
        # What is not known to run holds no request for certain.
        pool_range_bytes=pool_range_bytes(replace(request, flags=None), replica, budget),
        context_tokens=request.context_tokens,
        num_layers=request.shape.num_layers,
        are_chosen=request.flags is None,
        captures_decode=request.switches.captures_decode,
        has_adapters=replica.model.shard.adapters is not None,
    )
