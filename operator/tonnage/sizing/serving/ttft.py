"""Time to first token: waiting for a slot and for prefill, then one's own prefill."""

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property

from tonnage.sizing.bounded import Bounded
from tonnage.sizing.gate import (
    alike_exceedance,
    are_few,
    gated_wait,
    quiet_share,
    rest_of_step,
)
from tonnage.sizing.occupancy import Occupancy
from tonnage.sizing.serving.search import excess_of
from tonnage.sizing.serving.steady import Replica, SteadyState
from tonnage.sizing.step_time.step import Step
from tonnage.sizing.stream import WorkStream
from tonnage.sizing.tails import Moments, normal_exceedance
from tonnage.sizing.workload import Promise, Workload

SPREAD = 3.5
"""Standard deviations of the logarithm of a length on either side: all but one prompt in 4,000."""
STRATA = 8
HALVINGS = 12
NEVER = 1e-6


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
    if own.filling.share >= 1:
        return 1.0
    kept = 0.0
    for share, tokens in own.strata(limit_s):
        spare_s = limit_s - own.time_s(tokens)
        late = own.delayed(spare_s)
        if state.wait is not None:
            late += state.seen_full * state.wait.exceedance(spare_s)
        kept += share * max(0.0, 1 - late)
    return 1 - kept


class _Own:
    """What a prompt's own steps take beside the running batch, and others' before them."""

    def __init__(self, load: Occupancy, room_tokens: float) -> None:
        self._load, self._pace, self._room_tokens = load, load.pace, room_tokens
        self._new = 1 - load.pace.workload.cached_fraction
        self._step_s = load.decode_s

    @cached_property
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

    def delayed(self, spare_s: float) -> float:
        """Return P(others' prompts and the rest of a step take longer than this).

        Prompts that fill a step are served one by one. Short ones are served by the step.
        """
        if self._stand_out:
            return alike_exceedance(self._load.work, self._step_s, spare_s)
        return sum(share * wait.exceedance(spare_s) for share, wait in self._waits)

    @property
    def _stand_out(self) -> bool:
        """Tell whether prompts are all alike and few, so that each makes a step of its length."""
        work = self._load.work
        by_chance = work.mean_s > 0 and not work.followers and not self._load.arrivals.evened
        alike = self._pace.workload.prompt.sigma == 0 and self._together == 1
        return by_chance and alike and are_few(work, self._step_s)

    @cached_property
    def _together(self) -> float:
        """The share of the prompts that are served with all that they meet."""
        work = self._load.work
        at_once = self._room_tokens / max(1.0, self._pace.workload.new_prompt_tokens)
        mates = 2 * work.followers_within(work.mean_s)
        return min(1.0, max(0.0, at_once - 1) / max(1.0, mates))

    @cached_property
    def _waits(self) -> tuple[tuple[float, Moments], ...]:
        """The delays by others' prompts, and the share of each."""
        work, step_s, together = self._load.work, self._step_s, self._together
        if not work.mean_s:
            return ((1.0, rest_of_step(step_s)),)
        rest, quiet = rest_of_step(step_s), quiet_share(work, step_s)
        some, one_by_one = self.filling.wait_share(), self.filling.wait()
        alone = (1 - together) * (1 - some) + together * quiet
        waits = [(alone, rest), ((1 - together) * some, rest + one_by_one)]
        if together * (1 - quiet) > NEVER:
            gated = gated_wait(work, step_s, self._load.arrivals.evened)
            waits.append((together * (1 - quiet), gated))
        return tuple(waits)

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
