"""How many prompt tokens may wait at an engine that refuses who would be late."""

import math

from tonnage.sizing.serving.load_line import top_requests_per_s
from tonnage.sizing.serving.replica import Replica
from tonnage.sizing.workload import Slo, Workload

WAIT_SHARE = 0.8
"""Of the TTFT target of the highest percentile, that who is admitted last waits behind others: what
is left is for its own prompt, and for engines that are slower than believed. With 1.0 an engine
10 % slower than believed makes nearly all late that it admits; with less, more of a burst is
refused (decision 79).
"""
FEWEST_PROMPTS = 4
"""Of mean length, that may wait in any case: chance alone has as many wait at an engine that keeps
its targets, and what it refuses then is late in the judgement (decision 79)."""
DIGITS = 2
"""Of the number, which would else move with each digit of a constant."""


def max_queued_tokens(replica: Replica, workload: Workload, slo: Slo) -> int:
    """Return the tokens of prompts without a first token from which on an engine refuses; 0: never.

    Never, too, where it has data-parallel ranks: each of its API servers counts for itself, and who
    chooses the server is not known here.

    ``tokens = WAIT_SHARE * ttft_limit_s * requests_per_s * mean_prompt_tokens``: the line moves as
    fast as a full replica serves whole requests, since prompts wait for slots, blocks and the token
    budget beside those that decode; ``FEWEST_PROMPTS`` may wait in any case. Whole prompts count,
    as the engine counts them, those parts too that are read or that a cache holds.

    Sources:
        [vllm-source] config/scheduler.py max_num_queued_tokens: ``target_TTFT *
        prefill_throughput``; v1/engine/output_processor.py get_num_queued_tokens.
    """
    if not slo.ttft or replica.model.dp_size > 1:
        return 0
    limit_s = max(slo.ttft, key=lambda each: each.quantile).limit_s
    mean_tokens = workload.prompt.mean_tokens
    tokens = WAIT_SHARE * limit_s * top_requests_per_s(replica, workload) * mean_tokens
    tokens = max(tokens, FEWEST_PROMPTS * mean_tokens)
    places = max(0, math.floor(math.log10(tokens)) + 1 - DIGITS)
    return int(round(tokens, -places))
