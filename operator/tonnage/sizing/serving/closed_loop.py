"""A fixed number of users who each wait for an answer before they ask again.

The rate follows from the residence time, not the other way round: nobody arrives while all wait.
"""

import math
from dataclasses import dataclass, replace

from tonnage.sizing.serving.replica import Replica
from tonnage.sizing.serving.steady import (
    SteadyState,
    prefill_context_tokens,
    running_limit,
    steady_state,
    steps_of_answer,
)
from tonnage.sizing.serving.ttft import own_prefill_s, serving_s
from tonnage.sizing.step_time.step import Step
from tonnage.sizing.workload import Workload

ROUNDS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedLoop:
    """What so many users get of one replica."""

    state: SteadyState
    ttft_s: float
    """Of a typical request: waiting for a slot, for others' prefill, and its own."""

    @property
    def tpot_s(self) -> float:
        return self.state.tpot_s

    @property
    def requests_per_s(self) -> float:
        return self.state.requests_per_s


def closed_loop(replica: Replica, workload: Workload, concurrency: float) -> ClosedLoop:
    """Return the steady state that so many waiting users settle into.

    As many run as have room in the cache and a slot; the others wait for one. Users fall into
    step: answers that end together bring prompts that come together, and each waits for a share
    of the others. With n running, and a share ``rho`` of the time spent on the work ``S`` of
    their prompts::

        wait = bunching_fraction * (n - 1) * S * sqrt(rho)

    Never more than all the others' work, unlike the waiting of an open queue.

    Sources:
        [serving-measurements] closed loops of 4 to 512 users (the share, and the root).
    """
    running = num_at_once(replica, workload, concurrency)
    state = running_state(replica, workload, running)
    own_s = own_prefill_s(replica, workload, state, workload.prompt.mean_tokens)
    work_s = prefill_work_s(replica, workload)
    cycle_s = steps_of_answer(replica, workload) * state.step_s + own_s
    each = running / replica.model.dp_size
    load = min(1.0, each * work_s / cycle_s)
    ahead = replica.model.constants.bunching_fraction * max(0.0, each - 1) * math.sqrt(load)
    queue_s = ahead * work_s
    slot_s = (concurrency - running) * (cycle_s + queue_s) / running
    return ClosedLoop(
        state=state,
        ttft_s=serving_s(replica, running, workload.prompt.mean_tokens) + own_s + queue_s + slot_s,
    )


def num_at_once(replica: Replica, workload: Workload, concurrency: float) -> float:
    """Return how many of so many requests run at once; one does even where none fits."""
    return min(concurrency, running_limit(replica, workload))


def running_state(replica: Replica, workload: Workload, num_running: float) -> SteadyState:
    """Return the state in which so many requests decode or prefill, together."""
    num_decoding = num_running
    for _ in range(ROUNDS):
        state = steady_state(replica, workload, num_decoding)
        num_decoding *= num_running / state.num_running
    return steady_state(replica, workload, num_decoding)


def prefill_work_s(replica: Replica, workload: Workload) -> float:
    """Return the time that one prompt adds to the steps it is in: its work and its exchanges."""
    new = workload.new_prompt_tokens
    alone = Step(num_sequences=1, context_tokens=0)
    beside = replace(
        alone,
        prefill_tokens=new * replica.model.dp_size,
        prefill_context_tokens=prefill_context_tokens(workload),
    )
    idle, busy = replica.model.step(alone), replica.model.step(beside)
    return busy.prefill_s + busy.communication_s - idle.communication_s
