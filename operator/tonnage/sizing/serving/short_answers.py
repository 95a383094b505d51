"""Answers of few tokens: those of one have no TPOT, and beside others often no prompt is read.

The percentiles of TPOT are over all requests, as in vLLM's histogram, which observes an answer of
one token with 0. So a target may be kept by answers that met nothing of what slows the mean step.
"""

import math
from functools import lru_cache
from typing import Final

from tonnage.sizing.serving.replica import Replica
from tonnage.sizing.serving.steady import steps_of_answer
from tonnage.sizing.workload import NORMAL, Target, Workload

SECOND_TOKEN: Final = 1.5
"""Drawn lengths are rounded to whole tokens."""
ROUNDING: Final = 1.01
"""Lengths are rounded by less than this ratio before they are run: a bound allows for it."""
PARTS: Final = 64
"""Even shares of the answers, of which each is taken at its middle."""


def can_be_missed(workload: Workload, target: Target) -> bool:
    """Tell whether a TPOT target can be missed: not where so many answers have one token."""
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
    shares = ((part + 0.5) / PARTS for part in range(PARTS))
    return tuple(max(0, round(_tokens_at_share(workload, share)) - 1) for share in shares)


def _tokens_at_share(workload: Workload, share: float) -> float:
    mean, sigma = workload.output_tokens, workload.output_sigma
    if sigma is None:
        return -mean * math.log1p(-share)
    return mean * math.exp(sigma * NORMAL.inv_cdf(share) - sigma**2 / 2)
