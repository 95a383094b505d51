"""Time to first token: waiting for a slot and for prefill, then one's own prefill."""

import math

from tonnage.sizing.serving.replica import Replica
from tonnage.sizing.serving.steady import SteadyState
from tonnage.sizing.step_time.step import Step
from tonnage.sizing.workload import Workload


def own_prefill_s(replica: Replica, workload: Workload, state: SteadyState, prompt: float) -> float:
    """Return the time that one prompt's own chunks take beside the running batch.

    ``prompt``: its tokens before the cached share is taken off. Each step offers the token
    budget that the decoding sequences leave. On an idle replica no weights are read for others.
    """
    new = prompt * (1 - workload.cached_fraction)
    num_steps = math.ceil(new / replica.prefill_room(state.num_decoding))
    chunk = new / num_steps
    time = replica.model.step(
        Step(
            num_sequences=state.num_decoding,
            context_tokens=state.num_decoding * workload.mean_context_tokens,
            prefill_tokens=chunk,
            prefill_context_tokens=prompt - new / 2,
            prefill_ranks=1,
        )
    )
    return num_steps * time.total_s


def typical_ttft_s(replica: Replica, workload: Workload, state: SteadyState) -> float:
    """Return the TTFT of a mean prompt that waits for nothing but the step in progress."""
    own_s = own_prefill_s(replica, workload, state, workload.prompt.mean_tokens)
    return own_s + state.step_s / 2


def serving_s(replica: Replica, num_running: float, prompt_tokens: float) -> float:
    """Return the time before the first token that passes outside the engine's steps.

    Server and client in one: tokens are made of the prompt's text, and every answer that streams
    at that time takes its turn.
    """
    constants = replica.model.constants
    streaming = constants.per_running_request_s * num_running / replica.model.dp_size
    return constants.per_request_s + streaming + constants.per_prompt_token_s * prompt_tokens
