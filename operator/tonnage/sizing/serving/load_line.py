"""The load line: the highest steady load within every limit, and the slots for it."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from statistics import NormalDist

from tonnage.sizing.bounded import bounded
from tonnage.sizing.occupancy import Arrivals, Places
from tonnage.sizing.serving.search import crossing
from tonnage.sizing.serving.steady import (
    Replica,
    SteadyState,
    bare,
    load_at,
    num_running,
    places,
    steady_state,
    steps_of_answer,
)
from tonnage.sizing.tpot import tpot_excess
from tonnage.sizing.workload import Slo, Workload

DEFAULT_QUANTILE = 0.95
"""For fluctuations where no promise names one."""
BISECTIONS = 40
EXACT = 1e-12


Limit = Callable[[float], bool]
"""Does a mean number of decoding sequences stay within this limit?"""


def limits(
    replica: Replica, workload: Workload, slo: Slo, *, arrival_scv: float = 1.0
) -> Iterator[tuple[str, Limit]]:
    """Yield (name, limit): everything that bounds the mean number of decoding sequences.

    Places bound it by its mean: what waits for one is the business of the promise on TTFT. Every
    limit but the one on TPOT holds for all smaller numbers once it holds for one.
    """
    held = replica.sequences_held(workload.mean_context_tokens)
    if slo.tpot:
        excess = partial(_tpot_excess, replica, workload, slo, arrival_scv)
        yield "TimePerOutputToken", lambda n: excess(n) <= 0
    yield from _place_limits(replica, workload, held)


def _place_limits(replica: Replica, workload: Workload, held: float) -> Iterator[tuple[str, Limit]]:
    ranks = replica.num_queues
    per_step = replica.tokens_judged + _prefill_per_step(replica, workload)
    running = partial(num_running, replica, workload)
    yield "KVCache", lambda n: running(n) <= held
    yield "BatchedTokens", lambda n: n * per_step <= replica.max_batched_tokens * ranks
    if replica.max_num_seqs is not None:
        slots = replica.max_num_seqs * ranks
        yield "MaxNumSeqs", lambda n: running(n) <= slots


def _most_decoding(replica: Replica, workload: Workload) -> tuple[str, float]:
    """Return the place that runs out first, and the mean number decoding when it does."""
    held = replica.sequences_held(workload.mean_context_tokens)
    slots = (replica.max_num_seqs or math.inf) * replica.num_queues
    per_step = replica.tokens_judged + _prefill_per_step(replica, workload)
    batched = replica.max_batched_tokens * replica.num_queues / per_step
    name, most = ("MaxNumSeqs", slots) if slots < held else ("KVCache", held)
    if num_running(replica, workload, batched) <= most:
        return "BatchedTokens", batched
    # Prompts that fit one step are in prefill for one.
    decoding = most / (1 + 1 / steps_of_answer(replica, workload))
    if workload.new_prompt_tokens <= replica.prefill_room(decoding):
        return name, decoding
    return name, _highest(lambda n: num_running(replica, workload, n) <= most, batched)


def _prefill_per_step(replica: Replica, workload: Workload) -> float:
    """Return the prefill tokens beside each decoding sequence in a step."""
    return workload.new_prompt_tokens / steps_of_answer(replica, workload)


def top_requests_per_s(replica: Replica, workload: Workload) -> float:
    """Return what a replica serves at most, however long requests wait and take."""
    _, num_decoding = _most_decoding(replica, workload)
    return steady_state(replica, workload, num_decoding).requests_per_s


def _tpot_excess(
    replica: Replica, workload: Workload, slo: Slo, arrival_scv: float, num_decoding: float
) -> float:
    """Return the logarithm of misses over those allowed, for the worst promise: 0 at the limit."""
    state = steady_state(replica, workload, num_decoding)
    if math.isinf(workload.output_tokens) or state.requests_per_s == 0:
        # Nobody comes and nobody leaves: every step is the mean one.
        kept = all(state.tpot_s <= promise.limit_s for promise in slo.tpot)
        return -math.inf if kept else math.inf
    arrivals = Arrivals(requests_per_s=state.requests_per_s / replica.num_queues, scv=arrival_scv)
    room = places(replica, workload) if replica.max_num_seqs is not None else Places()
    load = load_at(replica, workload, arrivals)
    found = bounded(load, room) if load else None
    if load is None or found is None:
        return math.inf
    return max(tpot_excess(load, found, promise) for promise in slo.tpot)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadLine:
    """The highest load within all limits, and which one stops it."""

    state: SteadyState
    limited_by: str
    deviation: float = 0.0
    """Standard deviation of the number decoding on one data-parallel rank."""

    @property
    def requests_per_s(self) -> float:
        return self.state.requests_per_s


def load_line(
    replica: Replica, workload: Workload, slo: Slo, *, arrival_scv: float = 1.0
) -> LoadLine:
    """Return the highest steady load: the smallest of what each limit allows.

    A limit that no load keeps gives the empty load, zero requests per second.
    """
    limited_by, num_decoding = _most_decoding(replica, workload)
    if slo.tpot and num_decoding > 0:
        kept = _tpot_most(replica, workload, slo, arrival_scv, num_decoding)
        if kept < num_decoding:
            limited_by, num_decoding = "TimePerOutputToken", kept
    state = steady_state(replica, workload, num_decoding)
    deviation = _deviation(replica, workload, state, arrival_scv)
    return LoadLine(state=state, limited_by=limited_by, deviation=deviation)


def line_used(line: LoadLine, roomy: LoadLine, requests_per_s: float) -> LoadLine:
    """Return the load line of places for all (``roomy``), unless more than that is sustained.

    Where requests wait, fewer decode at once, so that TPOT is kept at loads at which TTFT is not:
    only that line says what the replica does at the rate that it sustains.
    """
    is_tpot = line.limited_by == "TimePerOutputToken"
    is_between = requests_per_s <= roomy.requests_per_s < line.requests_per_s
    return roomy if is_tpot and is_between else line


def _tpot_most(
    replica: Replica, workload: Workload, slo: Slo, arrival_scv: float, most: float
) -> float:
    """Return the highest mean number decoding, up to ``most``, that keeps the promises on TPOT."""
    if replica.max_num_seqs is None:
        return min(most, _unlimited_tpot_most(bare(replica), workload, slo, arrival_scv))
    excess = partial(_tpot_excess, replica, workload, slo, arrival_scv)
    return most if excess(most) <= 0 else crossing(excess, most)


@lru_cache(maxsize=256)
def _unlimited_tpot_most(
    replica: Replica, workload: Workload, slo: Slo, arrival_scv: float
) -> float:
    """Return it for places without end: the same whatever memory is left for the cache."""
    excess = partial(_tpot_excess, replica, workload, slo, arrival_scv)
    top = replica.max_batched_tokens * replica.num_queues / replica.tokens_judged
    ceiling = tpot_ceiling(replica, workload, slo) or top
    for high in (min(top, ceiling), top):
        if excess(high) > 0:
            return crossing(excess, high)
    return top


def _deviation(
    replica: Replica, workload: Workload, state: SteadyState, arrival_scv: float
) -> float:
    if math.isinf(workload.output_tokens) or state.requests_per_s == 0:
        return 0.0
    arrivals = Arrivals(requests_per_s=state.requests_per_s / replica.num_queues, scv=arrival_scv)
    load = load_at(replica, workload, arrivals)
    return math.sqrt(load.unbounded.variance / replica.num_queues) if load else math.inf


def _highest(limit: Limit, top: float) -> float:
    """Return the largest number up to ``top`` that keeps the limit; 0 when none does."""
    low, high = 0.0, top
    if limit(high):
        return high
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if limit(middle) else (low, middle)
    return low


def tpot_ceiling(replica: Replica, workload: Workload, slo: Slo) -> float | None:
    """Return the number of decoding sequences at which TPOT meets its limit; None: no limit."""
    if not slo.tpot:
        return None
    return _ceiling(bare(replica), workload, min(promise.limit_s for promise in slo.tpot))


@lru_cache(maxsize=256)
def _ceiling(replica: Replica, workload: Workload, limit_s: float) -> float:
    """Return it for a replica without places, which have no part in it."""

    def excess(num_decoding: float) -> float:
        return math.log(steady_state(replica, workload, num_decoding).tpot_s / limit_s)

    top = replica.max_batched_tokens * replica.num_queues / replica.tokens_judged
    return top if excess(top) <= 0 else crossing(excess, top, close=EXACT)


def slot_quantile(slo: Slo) -> float:
    """Return the strictest quantile promised: slots must do as often."""
    promised = [promise.quantile for promise in (*slo.tpot, *slo.ttft)]
    return max(promised, default=DEFAULT_QUANTILE if not slo.is_offline else 0.5)


def slots_for(line: LoadLine, slo: Slo, *, ceiling: float, num_queues: int) -> int:
    """Return ``--max-num-seqs``: running sequences at capacity and their fluctuation, exactly.

    Per data-parallel rank, as the flag counts. ``ceiling``: what memory holds, or what TPOT allows
    where that is less; the flag is never beyond it.
    """
    most = math.floor(ceiling / num_queues)
    stray = NormalDist().inv_cdf(slot_quantile(slo)) * line.deviation
    crowd = line.state.num_running / num_queues + stray
    return max(1, min(math.ceil(crowd), most) if math.isfinite(crowd) else most)
