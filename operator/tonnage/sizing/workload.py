"""What is asked of a replica: the shape of the traffic and the SLO targets."""

import math
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from statistics import NormalDist

from tonnage.api.hardware import Role
from tonnage.units import count_of, format_s, significant

PERCENT = 100
NORMAL = NormalDist()
Z_OF_P99 = NORMAL.inv_cdf(0.99)
EXPONENTIAL_P99 = math.log(100)


@dataclass(frozen=True, kw_only=True)
class Lengths:
    """A distribution of token counts, as far as it is known: a mean and perhaps a p99.

    Lognormal, and cut off at the longest that the engine takes.
    """

    mean_tokens: float
    p99_tokens: float | None = None
    longest_tokens: float = math.inf

    @cached_property
    def sigma(self) -> float:
        """The spread of a lognormal distribution with this mean and p99; 0 when p99 is unknown.

        Solves ``ln(p99 / mean) = z * sigma - sigma^2 / 2``; a p99 beyond what any lognormal with
        this mean reaches counts as the widest one.
        """
        if self.p99_tokens is None or self.p99_tokens <= self.mean_tokens:
            return 0.0
        z = Z_OF_P99
        return z - math.sqrt(max(0.0, z * z - 2 * math.log(self.p99_tokens / self.mean_tokens)))

    def quantile(self, q: float) -> float:
        """Return the length that a share q of the requests stays below.

        >>> round(Lengths(mean_tokens=4000, p99_tokens=7000).quantile(0.99))
        7000
        >>> Lengths(mean_tokens=4000).quantile(0.99)
        4000
        """
        if self.sigma == 0:
            return self.mean_tokens
        z = NORMAL.inv_cdf(q)
        length = self.mean_tokens * math.exp(z * self.sigma - self.sigma**2 / 2)
        return min(length, self.longest_tokens)

    def share_within(self, tokens: float) -> float:
        """Return the share of the requests that have no more tokens, of which there are some."""
        if self.sigma == 0 or tokens >= self.longest_tokens:
            return float(tokens >= self.mean_tokens)
        return NORMAL.cdf(math.log(tokens / self.mean_tokens) / self.sigma + self.sigma / 2)

    def moment(self, order: int) -> float:
        """Return a raw moment: ``E[min(X, longest) ** order]``.

        >>> round(Lengths(mean_tokens=100, p99_tokens=300).moment(1), 6)
        100.0
        """
        sigma, longest = self.sigma, self.longest_tokens
        whole: float = math.exp(sigma**2 * order * (order - 1) / 2) * self.mean_tokens**order
        if sigma == 0 or math.isinf(longest):
            return whole
        edge = (math.log(longest / self.mean_tokens) + sigma**2 / 2) / sigma
        below = NORMAL.cdf(edge - order * sigma)
        cut: float = longest**order * NORMAL.cdf(-edge)
        return whole * below + cut

    @cached_property
    def scv(self) -> float:
        """Squared coefficient of variation."""
        return max(0.0, self.moment(2) / self.moment(1) ** 2 - 1)

    @property
    def second_moment(self) -> float:
        return self.mean_tokens**2 * (1 + self.scv)


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """The mean request. Outputs are taken as exponential unless their second moment is known."""

    prompt: Lengths
    output_tokens: float
    cached_fraction: float = 0.0
    """Share of the prompt tokens that the prefix cache holds."""
    output_second_moment: float | None = None
    given_output_p99_tokens: float | None = None
    """As somebody said it; the moments are those after contextLength cuts the longest."""

    def of_role(self, role: Role | None) -> "Workload":
        """Return what is left of requests for engines of a role.

        prefill makes one token of each. decode finds all of a prompt in its cache but the last
        token, which is computed again.

        Sources:
            [vllm-source] kv_connector/v1/nixl; v1/core/sched/scheduler.py.
        """
        if role == "prefill":
            return replace(
                self, output_tokens=1.0, output_second_moment=1.0, given_output_p99_tokens=1.0
            )
        if role == "decode":
            return replace(self, cached_fraction=1 - 1 / max(1.0, self.prompt.mean_tokens))
        return self

    @property
    def new_prompt_tokens(self) -> float:
        return self.prompt.mean_tokens * (1 - self.cached_fraction)

    @property
    def output_sigma(self) -> float | None:
        """The spread of lognormal outputs; None: they are exponential."""
        second_moment = self.output_second_moment
        if second_moment is None:
            return None
        return math.sqrt(math.log1p(max(0.0, second_moment / self.output_tokens**2 - 1)))

    @property
    def output_p99_tokens(self) -> float:
        """The length that one output in a hundred exceeds.

        >>> of_mean = Workload(prompt=Lengths(mean_tokens=1), output_tokens=400)
        >>> round(of_mean.output_p99_tokens)
        1842
        """
        sigma, given = self.output_sigma, self.given_output_p99_tokens
        if given is not None:
            return given
        if sigma is None:
            return self.output_tokens * EXPONENTIAL_P99
        return self.output_tokens * math.exp(Z_OF_P99 * sigma - sigma**2 / 2)

    @property
    def mean_context_tokens(self) -> float:
        """Tokens of a decoding sequence, seen from a step: longer outputs are seen more often.

        ``prompt + E[out^2] / (2 E[out])``
        """
        second_moment = self.output_second_moment
        if second_moment is None:
            second_moment = 2 * self.output_tokens**2
        return self.prompt.mean_tokens + second_moment / (2 * self.output_tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A latency that a share of the requests must not exceed."""

    quantile: float
    limit_s: float

    def __str__(self) -> str:
        return f"p{self.quantile * PERCENT:.0f} {format_s(self.limit_s)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Slo:
    """The SLO targets on time to first token and time per output token. Both empty: offline."""

    ttft: tuple[Target, ...] = ()
    tpot: tuple[Target, ...] = ()

    @property
    def is_offline(self) -> bool:
        return not self.ttft and not self.tpot


class Routing(StrEnum):
    """What spreads requests over replicas."""

    SERVICE = "Service"
    """A plain Service: random, so every replica is a queue of its own."""
    LEAST_OUTSTANDING = "LeastOutstanding"
    """A router that knows how busy each replica is: all slots share one queue."""


def users_from_concurrency(*, concurrent_requests: float, duty_fraction: float) -> float:
    """Return the users that so many requests in flight serve.

    >>> users_from_concurrency(concurrent_requests=60, duty_fraction=0.2)
    300.0
    """
    return concurrent_requests / duty_fraction


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """How much is asked for: a rate, or so many requests that are always in flight."""

    requests_per_s: float | None = None
    concurrency: float | None = None
    duty_fraction: float = 1.0
    """Share of the time in which a user waits for an answer; the others are idle meanwhile."""
    peak_ratio: float = 1.0
    """What is asked for is a peak: so many times what usually comes."""

    @property
    def is_peak(self) -> bool:
        return self.peak_ratio > 1

    @property
    def usual(self) -> "Demand":
        """What is paid for: the demand without its peak."""
        rate, concurrency = (
            None if value is None else value / self.peak_ratio
            for value in (self.requests_per_s, self.concurrency)
        )
        return replace(self, requests_per_s=rate, concurrency=concurrency, peak_ratio=1.0)

    @property
    def num_users(self) -> float | None:
        """Users, of which ``concurrency`` are in flight at any time; None: a rate is asked for."""
        if self.concurrency is None:
            return None
        return users_from_concurrency(
            concurrent_requests=self.concurrency, duty_fraction=self.duty_fraction
        )

    def __str__(self) -> str:
        if self.is_peak:
            peak = self.requests_per_s or self.concurrency or 0.0
            return f"{self.usual}, {significant(peak)} at the peak"
        if self.requests_per_s is not None:
            return f"{significant(self.requests_per_s)} requests/s"
        if self.concurrency is None:
            return "not given"
        in_flight = f"{significant(self.concurrency)} requests always in flight"
        if self.duty_fraction == 1:
            return in_flight
        users = count_of(f"{self.num_users:.0f}", "user")
        return f"{in_flight} ({users}, {self.duty_fraction:.0%} of the time)"
