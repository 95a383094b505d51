"""WVA's model of a replica: a queue with a server whose speed depends on how many it serves.

Follows llm-d/llm-d-workload-variant-autoscaler internal/queueing/analyzer/queueanalyzer.go and
docs/developer-guide/slo-queuemodel.md (2026-08-18). With n requests of I prompt and O output
tokens in service::

    step(n)    = alpha + n * (beta * (I + O) / (O + 1) + gamma * (I + O / 2))
    prefill(n) = step(n) + (beta + gamma) * I
    decode(n)  = step(n) + beta + gamma * (I + O / 2)
    rate(n)    = n / (prefill(n) + O * decode(n))
"""

from dataclasses import dataclass
from typing import Final

from tonnage.replay.baselines.wva import MeanRequest

SPARE_QUEUE: Final = 100
"""Requests that wait at most; more are lost."""
LOWEST: Final = 0.001
HIGHEST: Final = 0.999
HALVINGS: Final = 24
LARGE: Final = 1e200


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """Seconds of a step: of itself, for each token computed, for each token read."""

    alpha_s: float
    beta_s: float
    gamma_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MeanLatencies:
    ttft_s: float
    itl_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueServer:
    """One replica with requests of one shape."""

    speed: Speed
    shape: MeanRequest
    max_batch: int

    def step_s(self, n: float) -> float:
        speed, prompt, output = self.speed, self.shape.input_tokens, self.shape.output_tokens
        each = speed.beta_s * (prompt + output) / (output + 1)
        return speed.alpha_s + n * (each + speed.gamma_s * (prompt + output / 2))

    def prefill_s(self, n: float) -> float:
        own_s = (self.speed.beta_s + self.speed.gamma_s) * self.shape.input_tokens
        return self.step_s(n) + own_s

    def decode_s(self, n: float) -> float:
        context = self.shape.input_tokens + self.shape.output_tokens / 2
        return self.step_s(n) + self.speed.beta_s + self.speed.gamma_s * context

    def rate(self, n: int) -> float:
        """Return the requests per second that leave while n are served."""
        return n / (self.prefill_s(n) + self.shape.output_tokens * self.decode_s(n))

    def rates(self) -> list[float]:
        return [self.rate(n) for n in range(1, self.max_batch + 1)]

    def latencies(self, requests_per_s: float, rates: list[float]) -> MeanLatencies:
        """Return the mean latencies at a rate; ``rates``: by how many are served."""
        in_system, served, left = _means(requests_per_s, rates)
        passed = requests_per_s * (1 - left)
        prefill_s = self.prefill_s(served)
        return MeanLatencies(
            ttft_s=(in_system - served) / passed + prefill_s + self.decode_s(served),
            itl_s=(served / passed - prefill_s) / self.shape.output_tokens,
        )

    def best_rate(self, *, ttft_s: float, itl_s: float) -> float:
        """Return the highest rate within both limits, or the lowest that is looked at."""
        rates = self.rates()
        low, high = LOWEST * rates[0], HIGHEST * rates[-1]
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            found = self.latencies(middle, rates)
            if found.ttft_s <= ttft_s and found.itl_s <= itl_s:
                low = middle
            else:
                high = middle
        return low


def _means(requests_per_s: float, rates: list[float]) -> tuple[float, float, float]:
    """Return the means in the system and in service, and the share that finds it full."""
    weight = total = 1.0
    in_system = served = 0.0
    num_rates = len(rates)
    for n in range(1, num_rates + SPARE_QUEUE + 1):
        busy = min(n, num_rates)
        weight *= requests_per_s / rates[busy - 1]
        total += weight
        in_system += n * weight
        served += busy * weight
        if total > LARGE:
            weight, total = weight / LARGE, total / LARGE
            in_system, served = in_system / LARGE, served / LARGE
    return in_system / total, served / total, weight / total
