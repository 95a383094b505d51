"""The load line by the fluid steady state: what bounds the batch, the rate and what may queue.

It bounds and ranks, and starts a search; goodput decides.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache, partial
from typing import Final, NamedTuple

from tonnage.sizing.serving.replica import (
    Replica,
    SteadyState,
    mixed_step,
    num_running,
    running_limit,
    steady_state,
    steps_of_answer,
    tpot_s,
    undisturbed_tpot_s,
)
from tonnage.sizing.workload import NORMAL, Slo, Target, Workload

BISECTIONS = 40
EXACT = 1e-12
"""An excess this little below zero is as good as none."""
ROUNDS = 40
PRECISION = 1e-4
TINY = 1e-12
NOTHING = 1e-6
"""Share of the first bracket below which what is left of it is as good as 0."""
NEAR = 0.02
"""Least share of the bracket by which it shrinks, unless it is nearly closed."""
CLEAR = 5.0
"""A logarithm of misses over those allowed beyond which its size says nothing more."""

Limit = Callable[[float], bool]
"""Does a mean number of decoding sequences stay within this limit?"""


def limits(replica: Replica, workload: Workload, slo: Slo) -> Iterator[tuple[str, Limit]]:
    """Yield (name, limit): everything that bounds the mean number of decoding sequences."""
    ceiling = tpot_ceiling(replica, workload, slo)
    if ceiling is not None:
        yield "TimePerOutputToken", lambda n: n <= ceiling
    ranks = replica.model.dp_size
    sequences = replica.sequences_held(workload.mean_context_tokens)
    per_step = _per_step(replica, workload)
    running = partial(num_running, replica, workload)
    yield "KVCache", lambda n: running(n) <= sequences
    batched = replica.max_batched_tokens * replica.model.num_batches
    yield "BatchedTokens", lambda n: n * per_step <= batched
    if replica.max_num_seqs is not None:
        slots = replica.max_num_seqs * ranks
        yield "MaxNumSeqs", lambda n: running(n) <= slots


def _per_step(replica: Replica, workload: Workload) -> float:
    """Return the tokens that a decoding sequence, and the prompts beside it, take of a step."""
    prefill = workload.new_prompt_tokens / steps_of_answer(replica, workload)
    return replica.model.tokens_verified + prefill


def most_decoding(replica: Replica, workload: Workload) -> tuple[str, float]:
    """Return the limit that is met first, and the mean number decoding when it does."""
    ranks = replica.model.dp_size
    sequences = replica.sequences_held(workload.mean_context_tokens)
    slots = (replica.max_num_seqs or math.inf) * ranks
    batched = replica.max_batched_tokens * replica.model.num_batches / _per_step(replica, workload)
    name = "MaxNumSeqs" if slots + ranks <= sequences else "KVCache"  # one more each would be held
    most = min(slots, sequences)
    if num_running(replica, workload, batched) <= most:
        return "BatchedTokens", batched
    # Prompts that fit one step are in prefill for one.
    decoding = most / (1 + 1 / steps_of_answer(replica, workload))
    if workload.new_prompt_tokens <= replica.prefill_room(decoding):
        return name, decoding
    return name, _highest(lambda n: num_running(replica, workload, n) <= most, batched)


def _highest(limit: Limit, top: float) -> float:
    """Return the largest number up to ``top`` that keeps the limit; 0 when none does."""
    low, high = 0.0, top
    if limit(high):
        return high
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if limit(middle) else (low, middle)
    return low


def top_requests_per_s(replica: Replica, workload: Workload) -> float:
    """Return what a replica serves at most, however long requests wait and take."""
    _, num_decoding = most_decoding(replica, workload)
    return steady_state(replica, workload, num_decoding).requests_per_s


def bound_requests_per_s(replica: Replica, workload: Workload, slo: Slo) -> float:
    """Return the rate at which TPOT meets its limit, or slots or cache run out."""
    return _requests_per_s(replica, workload, tpot_ceiling(replica, workload, slo))


def requests_per_s_at(replica: Replica, workload: Workload, mean_tpot_s: float) -> float:
    """Return the rate at which the mean TPOT is this, or slots or cache run out."""
    return _requests_per_s(replica, workload, _mean_ceiling(_bare(replica), workload, mean_tpot_s))


def _requests_per_s(replica: Replica, workload: Workload, ceiling: float | None) -> float:
    _, num_decoding = most_decoding(replica, workload)
    if ceiling is not None:
        num_decoding = min(num_decoding, max(1.0, ceiling))
    return steady_state(replica, workload, num_decoding).requests_per_s


def tpot_ceiling(replica: Replica, workload: Workload, slo: Slo) -> float | None:
    """Return the number of decoding sequences beyond which TPOT misses its limit; None: no limit.

    No limit either where so many answers have one token that nothing can miss the target.
    """
    limited = (target for target in slo.tpot if can_be_missed(workload, target))
    bare = _bare(replica)
    return min((_ceiling(bare, workload, target) for target in limited), default=None)


def _bare(replica: Replica) -> Replica:
    """Return the replica without slots and cache, which have no part in a ceiling by TPOT."""
    return replace(replica, kv_pool_bytes=0.0, max_num_seqs=None)


@lru_cache(maxsize=256)
def _mean_ceiling(replica: Replica, workload: Workload, limit_s: float) -> float:
    def excess(num_decoding: float) -> float:
        return math.log(tpot_s(replica, workload, num_decoding) / limit_s)

    return _below(excess, _most_verified(replica))


@lru_cache(maxsize=256)
def _ceiling(replica: Replica, workload: Workload, target: Target) -> float:
    """Return the ceiling by the mean step, or a higher one by steps without prompts.

    These count where so many answers end before a prompt comes beside them as the target asks for.
    """

    def excess(num_decoding: float) -> float:
        too_few = target.quantile - undisturbed_share(replica, workload, num_decoding)
        slower = math.log(undisturbed_tpot_s(replica, workload, num_decoding) / target.limit_s)
        return max(too_few, slower)

    mean = _mean_ceiling(replica, workload, target.limit_s)
    return mean if excess(max(1.0, mean)) > 0 else _below(excess, _most_verified(replica))


def _below(excess: Callable[[float], float], top: float) -> float:
    return top if excess(top) <= 0 else crossing(excess, top)


def crossing(excess: Callable[[float], float], high: float) -> float:
    """Return a number below ``high`` at which the excess crosses zero; 0 when it is never below.

    The largest such number where the excess grows throughout.

    ``excess(high)`` is positive. False position between the ends; an end that stays twice counts
    half (the Illinois rule), so that a smooth excess takes some eight calls. One that leaps takes
    bisections.
    """
    least = NOTHING * high
    low, at_low, at_high = 0.0, -CLEAR, min(CLEAR, excess(high))
    side = 0
    for _ in range(ROUNDS):
        share = at_low / (at_low - at_high)
        middle = low + (high - low) * min(1 - NEAR, max(NEAR, share))
        found = max(-CLEAR, min(CLEAR, excess(middle)))
        if found <= 0:
            low, at_low = middle, min(found, -TINY)
            at_high, side = at_high / 2 if side < 0 else at_high, -1
        else:
            high, at_high = middle, found
            at_low, side = at_low / 2 if side > 0 else at_low, 1
        if -EXACT < found <= 0 or high - low <= PRECISION * high or high < least:
            break
    return low


def _most_verified(replica: Replica) -> float:
    """Return the sequences that decode in a step at most, by their tokens."""
    return replica.max_batched_tokens * replica.model.num_batches / replica.model.tokens_verified


def state_at(replica: Replica, workload: Workload, requests_per_s: float) -> SteadyState:
    """Return the steady state at an arrival rate; the fullest one where it serves less."""
    bare = _bare(replica)

    def excess(num_decoding: float) -> float:
        served = steady_state(bare, workload, num_decoding).requests_per_s
        return math.log(served / requests_per_s)

    top = _most_verified(replica)
    if excess(top) <= 0:
        return steady_state(bare, workload, top)
    return steady_state(replica, workload, crossing(excess, top))


SECOND_TOKEN: Final = 1.5
"""Drawn lengths are rounded to whole tokens."""
ROUNDING: Final = 1.01
"""Lengths are rounded by less than this ratio before they are run: a bound allows for it."""
PARTS: Final = 64
"""Even shares of the answers, of which each is taken at its middle."""


def can_be_missed(workload: Workload, target: Target) -> bool:
    """Tell whether a TPOT target can be missed: not where so many answers have one token.

    Percentiles are over all requests, as in vLLM's histogram, which counts those with 0.
    """
    return one_token_share(workload) < target.quantile


def one_token_share(workload: Workload) -> float:
    """Return the share of the answers that end with their first token.

    >>> from tonnage.sizing.workload import Lengths
    >>> prompt = Lengths(mean_tokens=100)
    >>> round(one_token_share(Workload(prompt=prompt, output_tokens=10)), 2)
    0.14
    """
    edge = ROUNDING * SECOND_TOKEN
    mean, sigma = workload.output_tokens, workload.output_sigma
    if sigma is None:
        return -math.expm1(-edge / mean)
    if sigma == 0:
        return float(mean < edge)
    return NORMAL.cdf(math.log(edge / mean) / sigma + sigma / 2)


def undisturbed_share(replica: Replica, workload: Workload, num_decoding: float) -> float:
    """Return the share of the answers that end before a prompt arrives beside them.

    With so many sequences decoding one prompt comes in ``steps_of_answer / num_decoding`` steps, at
    random::

        E[exp(-steps_after_the_first * num_decoding / steps_of_answer)]
    """
    arrivals = num_decoding / steps_of_answer(replica, workload)
    steps = replica.model.steps
    missed = (math.exp(-arrivals * steps(later)) if later else 1.0 for later in _later(workload))
    return math.fsum(missed) / PARTS


@lru_cache(maxsize=64)
def _later(workload: Workload) -> tuple[int, ...]:
    """Return the tokens after the first, of answers at even shares."""
    mean, sigma = workload.output_tokens, workload.output_sigma
    shares = ((part + 0.5) / PARTS for part in range(PARTS))
    tokens = (
        -mean * math.log1p(-share)
        if sigma is None
        else mean * math.exp(sigma * NORMAL.inv_cdf(share) - sigma**2 / 2)
        for share in shares
    )
    return tuple(max(0, round(each) - 1) for each in tokens)


WAIT_SHARE: Final = 0.8
"""Of the TTFT target of the highest percentile, that who is admitted last waits for slots: what is
left is for its own prompt, and for engines that are slower than believed (decision 79)."""
FEWEST_PROMPTS: Final = 4
"""Of mean length, that may wait in any case: chance alone has as many wait at an engine that keeps
its targets, and what it refuses then is late in the judgement (decision 79)."""
LONG: Final = 0.99
"""Quantile of a long prompt."""
DIGITS: Final = 2
"""Of both limits, which would else move with each digit of a constant."""


class QueueLimits(NamedTuple):
    """Where an engine begins to refuse requests. None: nowhere."""

    num_requests: int | None = None
    """Running and waiting, above which it refuses; all data-parallel ranks together."""
    prompt_tokens: int | None = None
    """Of requests without a first token, from which on it refuses."""


def queue_limits(replica: Replica, workload: Workload, slo: Slo) -> QueueLimits:
    """Return the limits with which nobody who is admitted waits for longer than the TTFT target.

    A request waits for two things. For slots and KV blocks of others, which end at the rate that a
    full replica serves::

        num_requests = num_running_when_full + WAIT_SHARE * ttft_limit_s * requests_per_s

    And for prompts before it, which a full batch reads in chunks of what decoding leaves of the
    token budget::

        prompt_tokens = ttft_limit_s * prompt_tokens_per_s

    A batch that is not full reads faster, so no share is left for slow engines here. Whole prompts
    count, as the engine counts them, those parts too that are read or that a cache holds.
    ``FEWEST_PROMPTS`` may wait in any case, and of tokens a long prompt beside them: else nobody is
    admitted while that is read. The second is left out with data-parallel ranks, of which each has
    an API server that counts for itself; requests are counted together. There those that run are as
    many as do when prompts take all of the token budget, not as many as could.

    Sources:
        [vllm-source] config/scheduler.py max_num_queued_reqs: ``data_parallel_size * max_num_seqs``
        plus the queue, max_num_queued_tokens: ``target_TTFT * prefill_throughput``; since 0.31
        v1/engine/admission_control.py SharedAdmissionStats; v1/engine/output_processor.py
        get_num_queued_tokens.
    """
    if not slo.ttft:
        return QueueLimits()
    limit_s = max(slo.ttft, key=lambda each: each.quantile).limit_s
    _, num_decoding = most_decoding(replica, workload)
    served_per_s = steady_state(replica, workload, num_decoding).requests_per_s
    waiting = max(FEWEST_PROMPTS, _rounded(WAIT_SHARE * limit_s * served_per_s))
    if replica.model.dp_size > 1:
        return QueueLimits(math.ceil(num_running(replica, workload, num_decoding)) + waiting)
    running = math.ceil(running_limit(replica, workload))
    tokens = max(
        workload.prompt.quantile(LONG) + FEWEST_PROMPTS * workload.prompt.mean_tokens,
        limit_s * _prompt_tokens_per_s(replica, workload, num_decoding),
    )
    return QueueLimits(running + waiting, _rounded(tokens))


def _prompt_tokens_per_s(replica: Replica, workload: Workload, num_decoding: float) -> float:
    """Return how fast prompts are read beside so many decoding sequences, cached parts included."""
    chunk = replica.prefill_room(num_decoding) * replica.model.num_microbatches
    step_s = replica.model.step(mixed_step(workload, num_decoding, chunk)).total_s
    return chunk * workload.prompt.mean_tokens / workload.new_prompt_tokens / step_s


def _rounded(value: float) -> int:
    places = max(0, math.floor(math.log10(max(1.0, value))) + 1 - DIGITS)
    return math.ceil(round(value, -places))
