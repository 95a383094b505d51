"""Time to first token: waiting for a slot and for prefill, then one's own prefill."""

import math
from dataclasses import dataclass
from statistics import NormalDist

from tonnage.sizing.steady import Replica, SteadyState, mixed_step
from tonnage.sizing.step import Step
from tonnage.sizing.workload import Promise, Slo, Workload

LARGE_LOAD = 1_500
"""Offered load from which the square-root limit stands in: they then differ by less than 0.004."""


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
            prefill_tokens=chunk * replica.num_queues,
            prefill_context_tokens=prompt - new / 2,
        )
    )
    return num_steps * time.total_s


def erlang_c(*, num_servers: float, offered: float) -> float:
    """Return the probability that all servers are busy; 1 when the load is not sustainable.

    ``offered`` is arrival rate times service time. Fractional servers are floored. The inverse
    of Erlang's blocking formula is built up server by server, which cannot overflow; a large
    load is so close to the square-root limit that its formula is taken instead.

    Sources:
        [halfin1981] with ``b = (c - a) / sqrt(a)``: ``1 / (1 + b * cdf(b) / pdf(b))``.

    >>> round(erlang_c(num_servers=2, offered=1), 3)
    0.333
    """
    servers = math.floor(num_servers)
    if servers <= offered:
        return 1.0
    if offered > LARGE_LOAD:
        return _square_root_limit((servers - offered) / math.sqrt(offered))
    inverse_blocking = 1.0
    for k in range(1, servers + 1):
        inverse_blocking = 1 + inverse_blocking * k / offered
        if math.isinf(inverse_blocking):
            return 0.0
    utilization = offered / servers
    blocking = 1 / inverse_blocking
    return blocking / (1 - utilization + utilization * blocking)


def _square_root_limit(spare: float) -> float:
    normal = NormalDist()
    density = normal.pdf(spare)
    return density / (density + spare * normal.cdf(spare))


@dataclass(frozen=True, slots=True, kw_only=True)
class Queueing:
    """What decides how long a request waits, beyond the mean load."""

    slots: float
    """Requests that one replica runs at once: max-num-seqs, or what its cache holds."""
    num_replicas_pooled: int = 1
    """Replicas that share one queue (a least-outstanding router); 1 behind a plain Service."""
    arrival_scv: float = 1.0
    """Squared coefficient of variation of the times between arrivals; 1: Poisson."""


def ttft_exceedance(
    replica: Replica,
    workload: Workload,
    state: SteadyState,
    promise: Promise,
    queueing: Queueing,
) -> float:
    """Return an upper estimate of P(TTFT > limit) for a replica in this state.

    The budget is what the limit leaves after the request's own prefill (at the promised
    quantile of prompt lengths) and the step in progress. Waiting for a slot follows Erlang C
    with an exponential tail, waiting behind other prompts the tail of a single server; both are
    widened by the burstiness of arrivals and added up.

    Sources:
        [kingman1961] the heavy-traffic tail ``exp(-2 (1 - rho) t / (s (ca2 + cs2)))``.
    """
    own_s = own_prefill_s(replica, workload, state, workload.prompt.quantile(promise.quantile))
    budget_s = promise.limit_s - own_s - state.step_s
    if budget_s < 0:
        return 1.0
    pool = queueing.num_replicas_pooled
    residence_s = state.num_running / state.requests_per_s if state.requests_per_s else 0.0
    slot_tail = _slot_tail(
        servers=queueing.slots * pool,
        offered=state.num_running * pool,
        residence_s=residence_s,
        budget_s=budget_s,
        variability=(queueing.arrival_scv + 1) / 2,
    )
    prefill_tail = _prefill_tail(replica, workload, state, budget_s, queueing)
    return min(1.0, slot_tail + prefill_tail)


def _slot_tail(
    *, servers: float, offered: float, residence_s: float, budget_s: float, variability: float
) -> float:
    if offered <= 0:
        return 0.0
    spare_per_s = (math.floor(servers) - offered) / residence_s
    if spare_per_s <= 0:
        return 1.0
    busy = erlang_c(num_servers=servers, offered=offered)
    return busy * math.exp(-spare_per_s * budget_s / variability)


def _prefill_tail(
    replica: Replica,
    workload: Workload,
    state: SteadyState,
    budget_s: float,
    queueing: Queueing,
) -> float:
    # A prompt waits for others only where their tokens fill the budget of whole steps.
    room = replica.prefill_room(state.num_decoding)
    crowded = mixed_step(workload, state.num_decoding, room * replica.num_queues)
    full_step_s = replica.step(crowded).total_s
    service_s = workload.new_prompt_tokens / room * full_step_s
    utilization = state.requests_per_s * service_s / replica.num_queues
    if utilization >= 1:
        return 1.0
    variability = queueing.arrival_scv + workload.prompt.scv
    exponent = 2 * (1 - utilization) * budget_s / (service_s * max(variability, 0.1))
    return utilization * math.exp(-exponent)


def keeps_ttft(
    replica: Replica,
    workload: Workload,
    state: SteadyState,
    slo: Slo,
    queueing: Queueing,
) -> bool:
    """Tell whether every promise on TTFT holds in this state."""
    return all(
        ttft_exceedance(replica, workload, state, promise, queueing) <= 1 - promise.quantile
        for promise in slo.ttft
    )


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
