"""Trying a rate: the engine model serves it, and the SLO says how many requests were too late.

The requests are the same draws for every rate, fixed by a seed. Arrivals are a renewal process of
gamma distributed gaps with the squared variation that the spec gives; lengths spread evenly over
their distributions.
"""

import itertools
import math
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache, partial

from tonnage.engine.chance import (
    Chance,
    cut,
    exponentials,
    lengths,
    lognormal,
    parts,
    passed,
    scaled,
)
from tonnage.engine.core import Engine
from tonnage.engine.limits import EngineLimits
from tonnage.engine.routing import send, serve
from tonnage.engine.step_costs import StepCosts
from tonnage.engine.table import RequestTable
from tonnage.sizing.serving.replica import Replica
from tonnage.sizing.step_time.model import step_costs
from tonnage.sizing.workload import NORMAL, Routing, Slo, Target, Workload

BLOCKS = 16
"""Parts of a run that are counted apart, for the standard error."""
WARM_UP = 2.0
"""Times the requests in the replicas at their fullest: not counted at the start, and half as many
at the end, where nobody arrives any more."""
BACKLOG = 1.5
"""Times the root of the number of requests: how many of them may wait at the end of a run. Where
more do, the queue grows, by chance no more."""
NARROW = 8
"""Blocks of a window that count as held from the first token on."""
MOST_BLOCKS = 1 << 40
"""More than any cache has."""
PARTS = 64
"""Of a run that may end early: after each it is seen whether too many are late."""
SHOWN = (0.5, 0.95, 0.99)
"""Percentiles shown beside those of the SLO."""
LAST = 8
"""The part of a run at its end that this is judged by: one in so many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """What is tried: replicas of one kind, the traffic, and what reaches each."""

    replica: Replica
    workload: Workload
    slo: Slo
    context_tokens: int
    arrival_scv: float = 1.0
    num_replicas: int = 1
    routing: Routing = Routing.SERVICE
    transfer_s: float = 0.0
    """Part of every TTFT: the KV cache comes from another engine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """How one SLO target fared."""

    target: Target
    is_ttft: bool
    late: tuple[int, ...]
    """By part of the run."""
    counted: int

    @property
    def ratio(self) -> float:
        """Requests that were late over those that may be: above 1 the target is missed."""
        return sum(self.late) / max(1, self.counted) / (1 - self.target.quantile)

    @property
    def standard_error(self) -> float:
        """Of the logarithm of the ratio, from the parts of the run."""
        late = sum(self.late)
        if not late:
            return math.inf
        mean = late / len(self.late)
        squares = sum((each - mean) ** 2 for each in self.late)
        return math.sqrt(squares / (len(self.late) - 1) * len(self.late)) / late


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """TTFT and TPOT at one percentile."""

    quantile: float
    ttft_s: float
    """Infinite: it grows as long as the rate lasts."""
    tpot_s: float | None
    """None: no answer has a second token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialResult:
    """What became of a rate."""

    counts: tuple[Count, ...]
    backlog: float
    """The wait at the end over the one at which a queue counts as growing."""
    running: float
    """Sequences decoding at a time on all ranks of one replica, in the mean over busy time."""
    kv_usage: float
    """Share of the KV blocks held, in the mean over busy time."""
    full: float
    """Share of its busy time in which a rank uses all of its slots."""
    busy: float
    """Share of the time in which a replica steps."""
    peak_running: int
    """Of one rank."""
    latencies: tuple[Latency, ...]
    """By percentile, ascending."""

    @property
    def worst(self) -> Count | None:
        return max(self.counts, key=lambda count: count.ratio, default=None)

    @property
    def ratio(self) -> float:
        """Return the largest of what is asked: above 1 the rate is not kept."""
        worst = self.worst
        return max(self.backlog, worst.ratio if worst else 0.0)


def engine_limits(trial: Trial) -> EngineLimits:
    """Return the limits of one engine of the trial."""
    replica, speculation = trial.replica, trial.replica.model.speculation
    block_tokens, number, fixed_blocks, windows, window_blocks = _tables(replica, trial.workload)
    most = replica.max_batched_tokens // replica.model.tokens_verified
    limits = EngineLimits(
        max_num_seqs=min(replica.max_num_seqs or most, most),
        max_num_batched_tokens=replica.max_batched_tokens,
        num_blocks=MOST_BLOCKS,
        block_size=block_tokens,
        num_tables=number,
        fixed_blocks=fixed_blocks,
        window_tables=windows,
        window_blocks=window_blocks,
        max_model_len=trial.context_tokens,
        num_draft_tokens=speculation.num_draft_tokens if speculation else 0,
        acceptance_rate=speculation.acceptance_rate if speculation else 0.0,
        num_ranks=replica.model.dp_size,
    )
    capacity_blocks = int(replica.kv_pool_bytes // replica.layout.bytes_per_block)
    return replace(limits, num_blocks=max(capacity_blocks, limits.blocks_for(trial.context_tokens)))


def _tables(replica: Replica, workload: Workload) -> tuple[int, int, int, int, int]:
    """Return block tokens, tables, fixed blocks, window tables and their blocks of a sequence.

    Tables whose blocks are shorter than the longest count as often as they have blocks in it. A
    window of a few of these is full at the lengths that occur, or it grows like the rest.
    """
    groups = [group for group in replica.layout.groups if not group.state_blocks]
    fixed = sum(group.state_blocks for group in replica.layout.groups)
    size = max((group.block_tokens for group in groups), default=replica.layout.block_tokens)
    number = windows = most = 0.0
    for group in groups:
        window, tokens = group.share.window_tokens, group.block_tokens
        full = 0 if window is None else -(-window // tokens) + 1
        if window is not None and window < min(NARROW * size, workload.mean_context_tokens):
            fixed += full
            continue
        number += size / tokens
        if full:
            windows += size / tokens
            most += full
    window_blocks = math.ceil(most / round(windows)) if windows else 0
    return size, round(number), fixed, round(windows), window_blocks


class TrialRun:
    """The engines of a trial at one rate, after they have served it."""

    def __init__(
        self, trial: Trial, requests_per_s: float, count: int, *, most_ratio: float = math.inf
    ) -> None:
        """Serve so many requests at a rate, of all replicas together.

        ``most_ratio``: what one engine serves ends once its ratio is above that (``is_cut``).
        """
        drawn = requests(
            trial.workload,
            arrival_scv=trial.arrival_scv,
            context_tokens=trial.context_tokens,
            count=count,
        )
        self.trial, self.table = trial, drawn.table(requests_per_s)
        self.limits = limits = engine_limits(trial)
        costs, seeds = engine_costs(trial.replica, limits.max_num_seqs), range(trial.num_replicas)
        self.engines = [Engine(limits, costs, self.table, seed) for seed in seeds]
        self.is_cut = False
        if most_ratio < math.inf and trial.num_replicas == 1:
            self.is_cut = not self._serve_within(most_ratio)
        else:
            serve(self.engines, self.table, trial.routing, drawn.routes)
        self.peak_running = max(engine.peak_running for engine in self.engines)
        self.first, self.last = self._counted_range(self.peak_running)

    def _counted_range(self, peak_running: int) -> tuple[int, int]:
        """Return the first request that counts, and the one after the last."""
        count = self.table.size
        crowd = peak_running * self.limits.num_ranks * self.trial.num_replicas
        return min(count // 3, int(WARM_UP * crowd) + BLOCKS), count - min(count // 4, crowd)

    def _serve_within(self, most_ratio: float) -> bool:
        """Serve all requests with one engine, or until more are late than this ratio allows."""
        [engine], table = self.engines, self.table
        edges = range(0, table.size, max(1, table.size // PARTS))
        for first, last in itertools.pairwise((0, *(edge + 1 for edge in edges), table.size)):
            send(engine, table, first, last)
            if self._is_above(most_ratio, last - 1):
                return False
        engine.advance(math.inf)
        return True

    def late_slots(self) -> float:
        """Return up to how many slots of an engine too many first tokens are late; 0: of none.

        Where nothing was preempted fewer slots start none of them earlier; nor do more, where these
        were never all in use.
        """
        if self.table.num_preempted() or not any(
            late(self.first, self.last) > (1 - target.quantile) * (self.last - self.first)
            for target, is_ttft, late in self._judged()
            if is_ttft
        ):
            return 0.0
        slots = self.limits.max_num_seqs
        return math.inf if self.peak_running < slots else slots

    def _is_above(self, most_ratio: float, num_arrived: int) -> bool:
        """Tell whether those late so far are too many, however many requests run at once later."""
        peak = self.engines[0].peak_running
        earliest, latest = self._counted_range(peak)
        first, last = self._counted_range(max(peak, self.limits.max_num_seqs))
        until, most = min(last, num_arrived), most_ratio * (latest - earliest)
        return until > first and any(
            late(first, until) > most * (1 - target.quantile) for target, _, late in self._judged()
        )

    def _judged(self) -> Iterator[tuple[Target, bool, Callable[[int, int], int]]]:
        """Yield each target, whether it is of TTFT, and what counts who is late from row to row."""
        table, slo = self.table, self.trial.slo
        for target in slo.ttft:
            limit_s = target.limit_s - self.trial.transfer_s
            yield target, True, partial(table.late_starts, limit_s=limit_s)
        for target in slo.tpot:
            yield target, False, partial(table.slow_outputs, limit_s=target.limit_s)

    def outcome(self) -> TrialResult:
        """Return what became of the requests that count."""
        table, engines = self.table, self.engines
        span_s = table.arrival_s[self.last - 1] - table.arrival_s[0]
        busy_s = sum(engine.busy_s for engine in engines)
        backlog = self._num_queued(span_s) / (BACKLOG * math.sqrt(table.size))
        capacity_blocks = sum(engine.context_s for engine in engines)
        blocks = self.limits.num_blocks * self.trial.replica.model.dp_size
        return TrialResult(
            counts=tuple(self._counts()),
            backlog=backlog,
            running=sum(engine.decoding_s for engine in engines) / busy_s,
            kv_usage=capacity_blocks / (busy_s * blocks),
            full=sum(engine.full_s for engine in engines)
            / (busy_s * self.trial.replica.model.dp_size),
            busy=min(1.0, busy_s / len(engines) / span_s),
            peak_running=self.peak_running,
            latencies=tuple(self._latencies(is_growing=backlog > 1)),
        )

    def _num_queued(self, span_s: float) -> float:
        """Return the requests that wait at the end, by how long the last of those that count do."""
        table = self.table
        first = self.last - (self.last - self.first) // LAST
        return table.wait_s(first, self.last) / max(1, self.last - first) * table.size / span_s

    def _latencies(self, *, is_growing: bool) -> Iterator[Latency]:
        """Yield what is met at each percentile; ``is_growing``: waits only become longer."""
        slo = self.trial.slo
        shown = sorted({*SHOWN, *(target.quantile for target in (*slo.ttft, *slo.tpot))})
        ttft_s, tpot_s = self.table.spread_s(self.first, self.last, (*shown, 1.0))
        for quantile, start_s, gap_s in zip(shown, ttft_s, tpot_s, strict=False):
            yield Latency(
                quantile=quantile,
                ttft_s=math.inf if is_growing else start_s + self.trial.transfer_s,
                tpot_s=gap_s if tpot_s[-1] else None,
            )

    def _counts(self) -> Iterator[Count]:
        edges = [
            self.first + (self.last - self.first) * part // BLOCKS for part in range(BLOCKS + 1)
        ]
        parts = list(itertools.pairwise(edges))
        for target, is_ttft, late in self._judged():
            yield Count(
                target=target,
                is_ttft=is_ttft,
                late=tuple(late(low, high) for low, high in parts),
                counted=self.last - self.first,
            )


def refused_share(
    trial: Trial, requests_per_s: float, count: int, *, most_requests: int, most_tokens: int
) -> float:
    """Return the share that one engine refuses at a rate, of the last half of so many requests.

    ``most_requests``, ``most_tokens``: the limits of its queue; 0: none.
    """
    drawn = requests(
        trial.workload,
        arrival_scv=trial.arrival_scv,
        context_tokens=trial.context_tokens,
        count=count,
    )
    limits = replace(
        engine_limits(trial), max_queued_reqs=most_requests, max_queued_tokens=most_tokens
    )
    engine = Engine(
        limits,
        engine_costs(trial.replica, limits.max_num_seqs),
        table := drawn.table(requests_per_s),
    )
    return serve([engine], table, trial.routing, drawn.routes)[count // 2 :].count(-1) / (
        count - count // 2
    )


def engine_costs(replica: Replica, max_num_seqs: int) -> StepCosts:
    """Return the costs for some more slots than asked, so that few tables serve all."""
    slots = 16
    while slots < max_num_seqs:
        slots *= 2
    return step_costs(
        replica.model, max_num_seqs=slots, max_batched_tokens=replica.max_batched_tokens
    )


SEED = 36
"""Of those tried, the one whose arrivals make queues wait most like any others."""
REMEMBERED = 12
"""Draws, of 6 MB each where a run is the longest: a plan takes fewer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Requests:
    """Requests before their arrivals are scaled to a rate."""

    at: "array[float]"
    """In mean gaps between arrivals."""
    prompt_tokens: "array[int]"
    output_tokens: "array[int]"
    cached_tokens: "array[int]"
    routes: "array[float]"
    """Shares by which a router chooses."""

    def table(self, requests_per_s: float) -> RequestTable:
        """Return them as they arrive at a rate."""
        arrival_s = scaled(self.at, 1 / requests_per_s)
        return RequestTable(self.prompt_tokens, self.output_tokens, self.cached_tokens, arrival_s)


@lru_cache(maxsize=REMEMBERED)
def requests(
    workload: Workload, *, arrival_scv: float, context_tokens: int, count: int
) -> Requests:
    """Return so many requests of a workload, none longer than the engine takes."""
    outputs = _outputs(workload, context_tokens, count)
    prompt = workload.prompt
    longest = min(prompt.longest_tokens, context_tokens - 1)
    normals = _normals(count, SEED + 1) if prompt.sigma else array("d", bytes(8 * count))
    drawn = lognormal(normals, prompt.mean_tokens, prompt.sigma, longest)
    prompts = cut(drawn, outputs, context_tokens)
    return Requests(
        at=_arrivals(count, arrival_scv),
        prompt_tokens=prompts,
        output_tokens=outputs,
        cached_tokens=parts(prompts, workload.cached_fraction),
        routes=_routes(count),
    )


def _outputs(workload: Workload, context_tokens: int, count: int) -> "array[int]":
    mean, sigma = workload.output_tokens, workload.output_sigma
    longest = max(1, context_tokens - 1)
    if sigma is not None:
        return lognormal(_normals(count, SEED + 2), mean, sigma, longest)
    return lengths(_exponentials(count), mean, longest)


@lru_cache(maxsize=16)
def _normals(count: int, seed: int) -> "array[float]":
    return array("d", map(NORMAL.inv_cdf, Chance(seed).even_shares(count)))


@lru_cache(maxsize=8)
def _exponentials(count: int) -> "array[float]":
    return exponentials(Chance(SEED + 3).even_shares(count))


@lru_cache(maxsize=16)
def _arrivals(count: int, arrival_scv: float) -> "array[float]":
    """Return when requests arrive, in mean gaps; the last after as many gaps as there are."""
    return passed(Chance(SEED + 4).gamma_gaps(count, 1 / arrival_scv))


@lru_cache(maxsize=8)
def _routes(count: int) -> "array[float]":
    return Chance(SEED + 5).shares(count)
