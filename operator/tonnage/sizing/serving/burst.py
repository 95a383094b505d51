"""Prompts that all arrive at once: how long until one of them gets its first token."""

import math

from tonnage.sizing.serving.closed_loop import prefill_work_s, running_state
from tonnage.sizing.serving.replica import Replica
from tonnage.sizing.serving.steady import running_limit, steps_of_answer
from tonnage.sizing.serving.ttft import serving_s
from tonnage.sizing.step_time.step import Step
from tonnage.sizing.workload import Workload


def burst_ttft_s(
    replica: Replica, workload: Workload, num_prompts: int, *, quantile: float = 0.5
) -> float:
    """Return the time to first token that a share of a burst stays within, on an idle replica.

    Prompts are prefilled in order, as many at once as fit in the token budget, beside those that
    already decode. Those without room in the cache or a slot wait for a whole round of answers.
    """
    num_ranks = replica.model.dp_size
    at_once = max(1, math.floor(min(num_prompts, running_limit(replica, workload) / num_ranks)))
    position = math.ceil(quantile * num_prompts / num_ranks) - 1
    rounds, ahead = divmod(max(0, position), at_once)
    first_s = serving_s(replica, min(num_prompts, at_once), workload.prompt.mean_tokens)
    whole_round_s = 0.0
    if rounds:
        decoding = running_state(replica, workload, at_once * num_ranks)
        whole_round_s = steps_of_answer(replica, workload) * decoding.step_s
    return first_s + rounds * whole_round_s + prefill_in_order_s(replica, workload, ahead + 1)


def prefill_in_order_s(replica: Replica, workload: Workload, num_prompts: int) -> float:
    """Return the time until so many prompts of each rank have been prefilled, one after another."""
    steps = math.ceil(num_prompts * workload.new_prompt_tokens / replica.prefill_room(num_prompts))
    decoding = num_prompts / 2 * replica.model.dp_size
    beside = Step(num_sequences=decoding, context_tokens=decoding * workload.prompt.mean_tokens)
    return (
        num_prompts * prefill_work_s(replica, workload) + steps * replica.model.step(beside).total_s
    )
