"""Time to first token: waiting for a slot and for prefill, then one's own prefill."""

import math
from collections.abc import Iterator
from dataclasses import replace

from tonnage.sizing.occupancy import Bounded, Occupancy
from tonnage.sizing.search import excess_of
from tonnage.sizing.steady import Replica, SteadyState
from tonnage.sizing.step import Step
from tonnage.sizing.stream import WorkStream
from tonnage.sizing.tails import Moments, normal_exceedance
from tonnage.sizing.workload import Promise, Workload

SPREAD = 3.5
"""Standard deviations of the logarithm of a length on either side: all but one prompt in 4,000."""
STRATA = 8
HALVINGS = 12


def prefill_tokens_per_s(*, peak_flop_per_s: float, flop_per_token: float) -> float:
    """Return the prompt tokens per second at a given share of peak already applied.

    >>> prefill_tokens_per_s(peak_flop_per_s=80e15, flop_per_token=64e9)
    1250000.0
    """
    return peak_flop_per_s / flop_per_token


def shared_prefill_s(
    *, new_prompt_tokens: float, tokens_per_s: float, num_concurrent: float = 1
) -> float:
    """Return the time of a prefill that shares the engine evenly with others.

    >>> shared_prefill_s(new_prompt_tokens=80_000, tokens_per_s=80_000, num_concurrent=16)
    16.0
    """
    return new_prompt_tokens * num_concurrent / tokens_per_s


def own_prefill_s(replica: Replica, workload: Workload, state: SteadyState, prompt: float) -> float:
    """Return the time that one prompt's own chunks take beside the running batch.

    ``prompt``: its tokens before the cached share is taken off. Each step offers the token
    budget that the decoding sequences leave. On an idle replica no weights are read for others.
    """
    new = prompt * (1 - workload.cached_fraction)
    num_steps = math.ceil(new / replica.prefill_room(state.num_decoding))
    chunk = new / num_steps
    time = replica.step(
        Step(
            num_sequences=state.num_decoding,
            context_tokens=state.num_decoding * workload.mean_context_tokens,
            prefill_tokens=chunk,
            prefill_context_tokens=prompt - new / 2,
            prefill_ranks=1,
        )
    )
    return num_steps * time.total_s


def ttft_exceedance(load: Occupancy, state: Bounded, limit_s: float) -> float:
    """Return P(TTFT > limit) on one engine at an arrival rate, as the engine's histogram counts it.

    What passes between client and engine (``serving_s``) is not in that histogram, nor in here.

    A request waits for a place, or else for the prompts before it, then for the rest of a step, and
    then takes its own steps. Averaged over prompt lengths; what is longer than the limit allows
    even alone is late for certain.
    """
    own = _Own(load, load.pace.room_tokens(state.decoding.mean))
    prompts = own.filling
    if prompts.share >= 1:
        return 1.0
    waits = [own.wait(prompts)] if prompts.share else []
    if state.queue is not None:
        waits.append((state.seen_full, state.queue.wait()))
    allowed_s = limit_s - load.decode_s / 2
    kept = 0.0
    for share, tokens in own.strata(allowed_s):
        spare_s = allowed_s - own.time_s(tokens)
        late = sum(part * wait.exceedance(spare_s) for part, wait in waits)
        kept += share * max(0.0, 1 - late)
    return 1 - kept


class _Own:
    """What a prompt's own steps take beside the running batch."""

    def __init__(self, load: Occupancy, room_tokens: float) -> None:
        self._load, self._pace, self._room_tokens = load, load.pace, room_tokens
        self._new = 1 - load.pace.workload.cached_fraction

    @property
    def filling(self) -> WorkStream:
        """The prompts as the work of one server: each with its share of the steps it fills."""
        work = self._load.work
        if not work.mean_s:
            return work
        steps = self._pace.workload.new_prompt_tokens / self._room_tokens
        longer = 1 + self._load.decode_s * steps / work.mean_s
        return replace(
            work,
            mean_s=work.mean_s * longer,
            second_s2=work.second_s2 * longer**2,
            third_s3=work.third_s3 * longer**3,
        )

    def wait(self, prompts: WorkStream) -> tuple[float, Moments]:
        """Return the share of the prompts that others delay, and by how much.

        Prompts that fill a step are served one by one. Short ones are served by the step: all that
        came during one are in the next, and each waits for the end of all. Of such a gated queue
        the wait is longer, with steps of ``t`` without prefill, by::

            W * rho / (1 + rho) + 3/2 * t * rho / (1 - rho)

        where W is the wait of one by one.

        Sources:
            [takagi1986] the cycles of a gated queue with one station.
        """
        share, one_by_one = prompts.wait_share(), prompts.wait()
        new_tokens = self._pace.workload.new_prompt_tokens
        shared = 1 - min(1.0, new_tokens / self._room_tokens)
        work, step_s = self._load.work, self._load.decode_s
        rho = work.share
        mean_s = share * one_by_one.mean
        longer_s = mean_s * rho / (1 + rho) + 1.5 * step_s * rho / (1 - rho)
        joined = (1 - share) * work.gap_within(step_s)
        delayed = share + shared * joined
        factor = (mean_s + shared * longer_s) / delayed / one_by_one.mean
        return delayed, one_by_one.times(factor)

    def time_s(self, prompt_tokens: float) -> float:
        steps = math.ceil(prompt_tokens * self._new / self._room_tokens)
        return self._pace.prompt_s(prompt_tokens) + self._load.decode_s * steps

    def strata(self, limit_s: float) -> Iterator[tuple[float, float]]:
        """Yield (share, tokens) of the prompts that alone stay within the limit."""
        prompt = self._pace.workload.prompt
        sigma = prompt.sigma
        if sigma == 0:
            if self.time_s(prompt.mean_tokens) <= limit_s:
                yield 1.0, prompt.mean_tokens
            return
        median = prompt.mean_tokens * math.exp(-(sigma**2) / 2)

        def length(strays: float) -> float:
            return min(prompt.longest_tokens, median * math.exp(sigma * strays))

        low, high = -SPREAD, SPREAD
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            fits = self.time_s(length(middle)) <= limit_s
            low, high = (middle, high) if fits else (low, middle)
        width = (low + SPREAD) / STRATA
        below = 0.0
        for number in range(1, STRATA + 1):
            edge = -SPREAD + number * width
            share = 1 - normal_exceedance(edge)
            yield share - below, length(edge - width / 2)
            below = share


def ttft_excess(load: Occupancy, state: Bounded, promise: Promise) -> float:
    """Return the logarithm of misses over those allowed: 0 where the promise is just kept."""
    return excess_of(ttft_exceedance(load, state, promise.limit_s), promise.quantile)


def typical_ttft_s(replica: Replica, workload: Workload, state: SteadyState) -> float:
    """Return the TTFT of a mean prompt that waits for nothing but the step in progress."""
    own_s = own_prefill_s(replica, workload, state, workload.prompt.mean_tokens)
    return own_s + state.step_s / 2


def serving_s(replica: Replica, num_running: float, prompt_tokens: float) -> float:
    """Return the time before the first token that passes outside the engine's steps.

    Server and client in one: tokens are made of the prompt's text, and every answer that streams
    at that time takes its turn.
    """
    constants = replica.constants
    streaming = constants.per_running_request_s * num_running / replica.num_queues
    return constants.per_request_s + streaming + constants.per_prompt_token_s * prompt_tokens
