"""How long answers are: what the moments, the overlap and the quantiles of output lengths are."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from statistics import NormalDist

from tonnage.sizing.tails import SQRT_2, normal_exceedance
from tonnage.sizing.workload import Workload

NORMAL = NormalDist()
STRATA = (0.0, 0.02, 0.07, 0.2, 0.45, 0.75, 1.0)
"""Shares of the requests, shortest first, that stand for one length each. Short answers are the
ones whose mean time per token fluctuates, so they are told apart."""
FIXED = 1e-9
SHORTEST = 2
"""Tokens of an answer that has a time per token after the first."""
BRIEF_ANSWERS = (1.5, 2.5, 3.5, 5.5)
"""Between them each number of tokens, or two, is a stratum of its own."""
BRIEF_SHARE = 0.03
"""Of the answers: where fewer are as brief, they are one stratum."""


@dataclass(frozen=True)
class Outputs:
    """Output lengths: exponential unless the second moment is known, then lognormal."""

    workload: Workload

    @property
    def mean_tokens(self) -> float:
        return self.workload.output_tokens

    @cached_property
    def scv(self) -> float:
        """Squared coefficient of variation."""
        second = self.workload.output_second_moment
        if second is None:
            return 1.0
        return max(0.0, second / self.mean_tokens**2 - 1)

    @property
    def is_exponential(self) -> bool:
        return self.workload.output_second_moment is None

    @property
    def is_fixed(self) -> bool:
        return self.scv < FIXED

    def moment(self, order: int) -> float:
        """Return a raw moment, in tokens to this power."""
        if self.is_exponential:
            return math.factorial(order) * self.mean_tokens**order
        spread: float = (1 + self.scv) ** (order * (order - 1) / 2)
        return spread * self.mean_tokens**order

    @cached_property
    def overlap(self) -> float:
        """``integral of P(out > x)^2 dx / mean``: 1 for one length, 1/2 for exponential ones.

        By so much of their excess variance do bursty arrivals raise that of the number running.

        Sources:
            [wilkinson1956] the variance of overflow traffic on many lines.
        """
        if self.is_exponential:
            return 0.5
        return 2 * normal_exceedance(math.sqrt(math.log1p(self.scv)) / SQRT_2)

    @cached_property
    def strata(self) -> tuple[tuple[float, float], ...]:
        """(share, tokens) of answers of two tokens or more."""
        if self.is_fixed:
            return ((1.0, max(SHORTEST, self.mean_tokens)),)
        least, *few, brief = (self._share_below(tokens) for tokens in BRIEF_ANSWERS)
        edges = [least, *few, brief] if brief > BRIEF_SHARE else [least]
        edges += [share for share in STRATA if share > max(edges)]
        strata = [(high - low, self._quantile((low + high) / 2)) for low, high in pairwise(edges)]
        total = sum(share for share, _ in strata)
        if total < FIXED:
            return ((1.0, SHORTEST),)
        return tuple((share / total, max(SHORTEST, tokens)) for share, tokens in strata)

    def _share_below(self, tokens: float) -> float:
        if self.is_exponential:
            return -math.expm1(-tokens / self.mean_tokens)
        sigma = math.sqrt(math.log1p(self.scv))
        return normal_exceedance(-math.log(tokens / self.mean_tokens) / sigma - sigma / 2)

    @cached_property
    def _quantile(self) -> Callable[[float], float]:
        if self.is_exponential:
            return lambda share: -self.mean_tokens * math.log1p(-share)
        sigma = math.sqrt(math.log1p(self.scv))
        median = self.mean_tokens * math.exp(-(sigma**2) / 2)
        return lambda share: median * math.exp(sigma * NORMAL.inv_cdf(share))
