"""WVA's queueing model, its "SLO mode": the rate over what one replica serves within the SLO.

Follows llm-d/llm-d-workload-variant-autoscaler internal/{engines/analyzers/queueingmodel,
queueing/analyzer/queueanalyzer.go} and docs/developer-guide/slo-queuemodel.md (2026-08-18), a path
that its engine refuses to take. Rates are those that its router sends; latencies are means of a
minute; limits are those of the spec. Nothing is learned for 120 s after replicas were added, nor at
rates that the model takes for more than a replica can serve.

Its constants begin as llm-inferno/model-tuner pkg/estimator GuessInitState has them, which knows
no load: in its favour from a request alone on a replica, not from the first minute of traffic.

A replica is a queue with a server whose speed depends on how many it serves. With n requests of I
prompt and O output tokens in service::

    step(n)    = alpha + n * (beta * (I + O) / (O + 1) + gamma * (I + O / 2))
    prefill(n) = step(n) + (beta + gamma) * I
    decode(n)  = step(n) + beta + gamma * (I + O / 2)
    rate(n)    = n / (prefill(n) + O * decode(n))

An extended Kalman filter finds the three constants from TTFT and ITL: a state that moves by 5 % a
step, observations within 5 % nineteen times in twenty, a gate at 7.378 on what is not believed,
bounds of a hundredth to a hundred times of the start. In its favour doubt goes on growing while
observations are refused: else a poor start is for ever.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from replay_others.inside import IdleRequest, probe_of
from tonnage.replay.baselines.rule import Arrivals, Signals, limit_s, rates, scrapes_in, whole
from tonnage.replay.baselines.wva import (
    INTERVAL_S,
    PEAK_S,
    Gauge,
    MeanRequest,
    lengths,
    mean_shape,
    shapes,
)
from tonnage.replay.prometheus import Query

CHANGE: Final = 0.05
ERROR: Final = 0.05
T_OF_ERROR: Final = 1.96
GATE: Final = 7.378
WIDEST: Final = 100.0
NUDGE: Final = 1e-3
"""Of a constant, by which slopes are found."""

Vector = Sequence[float]
Observe = Callable[[Vector], Vector]


@dataclass(slots=True, kw_only=True)
class Filter:
    """The constants, how sure they are, and where they began."""

    state: list[float]
    covariance: NDArray[np.float64]
    began: tuple[float, ...]

    def update(self, observed: Vector, observe: Observe) -> bool:
        """Take two observations; tell whether they were believed."""
        prior = self.covariance + np.diag((CHANGE * np.array(self.state)) ** 2)
        error, slopes = np.subtract(observed, observe(self.state)), self._slopes(observe)
        spread = prior @ slopes.T
        doubt = slopes @ spread + np.diag((ERROR * np.array(observed) / T_OF_ERROR) ** 2)
        inverse = np.linalg.inv(doubt)
        if error @ inverse @ error > GATE:
            self.covariance = prior
            return False
        gain, began = spread @ inverse, np.array(self.began)
        found = self.state + gain @ error
        self.state = np.clip(found, began / WIDEST, began * WIDEST).tolist()
        self.covariance = prior - gain @ slopes @ prior
        return True

    def _slopes(self, observe: Observe) -> NDArray[np.float64]:
        """Return how each observation changes with each constant."""
        at, columns = np.array(observe(self.state)), []
        for index, value in enumerate(self.state):
            nudged = list(self.state)
            nudged[index] = value * (1 + NUDGE)
            columns.append((observe(nudged) - at) / (NUDGE * value))
        return np.column_stack(columns)


def new_filter(state: Vector) -> Filter:
    """Return a filter as unsure of its start as one step makes it."""
    covariance = np.diag((CHANGE * np.array(state)) ** 2)
    return Filter(state=list(state), covariance=covariance, began=tuple(state))


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


SETTLES_S: Final = 120.0
ALPHA_SHARE: Final = 0.9
"""Of the ITL, that is the step's own."""
DEFAULT_SPEED: Final = Speed(alpha_s=5e-3, beta_s=5e-5, gamma_s=5e-8)
QUANTILE: Final = 0.9


@dataclass(slots=True, kw_only=True)
class QueueingModel:
    """Keeps replicas within ``share`` of the limits of the SLO, by its model of them."""

    share: float
    scrape_interval_s: float
    gauge: Gauge = field(default_factory=Gauge)
    arrivals: Arrivals = field(default_factory=lambda: Arrivals(window_s=PEAK_S))
    filter: Filter | None = None
    asked: int = 0
    probe: Callable[[Signals], IdleRequest] = probe_of
    grown_s: float = -math.inf
    interval_s: float = INTERVAL_S

    @property
    def table(self) -> Mapping[str, Query]:
        scrapes = scrapes_in(PEAK_S, self.scrape_interval_s)
        metrics = {
            "ttft_s": "time_to_first_token_seconds_sum",
            "ttfts": "time_to_first_token_seconds_count",
            "gap_s": "inter_token_latency_seconds_sum",
            "gaps": "inter_token_latency_seconds_count",
        }
        return {**rates(metrics, scrapes=scrapes), **lengths(self.scrape_interval_s)}

    def replicas(self, signals: Signals) -> int:
        if signals.asked > self.asked > 0:
            self.grown_s = signals.at_s
        self.asked = signals.asked
        rate, shape = self.arrivals.requests_per_s(signals), mean_shape(shapes(signals))
        if not (rate and shape.output_tokens and signals.ready):
            return self.gauge.replicas(signals, signals.asked)
        if self.filter is None:
            self.filter = new_filter(astuple(first_guess(self.probe(signals))))
        found = self.filter
        self._learn(found, signals, shape, rate / signals.ready)
        slo, share = signals.slo, self.share
        best = _server(signals, shape, found.state).best_rate(
            ttft_s=share * limit_s(slo.ttft, QUANTILE), itl_s=share * limit_s(slo.tpot, QUANTILE)
        )
        return self.gauge.replicas(signals, max(1, whole(rate / best)))

    def _learn(
        self, found: Filter, signals: Signals, shape: MeanRequest, requests_per_s: float
    ) -> None:
        seen = _latencies(signals)
        most = HIGHEST * _server(signals, shape, found.state).rates()[-1]
        if seen is None or requests_per_s > most or signals.at_s < self.grown_s + SETTLES_S:
            return

        def observe(state: Vector) -> Vector:
            server = _server(signals, shape, state)
            rates = server.rates()
            due = server.latencies(min(requests_per_s, HIGHEST * rates[-1]), rates)
            return due.ttft_s, due.itl_s

        found.update((seen.ttft_s, seen.itl_s), observe)


def _server(signals: Signals, shape: MeanRequest, state: Vector) -> QueueServer:
    speed = Speed(**dict(zip(("alpha_s", "beta_s", "gamma_s"), state, strict=True)))
    return QueueServer(speed=speed, shape=shape, max_batch=signals.flags.max_num_seqs)


def _latencies(signals: Signals) -> MeanLatencies | None:
    ttfts, gaps = signals.total("ttfts"), signals.total("gaps")
    ttft_s, gap_s = signals.total("ttft_s"), signals.total("gap_s")
    if not ttfts or not gaps or not ttft_s or not gap_s:
        return None
    return MeanLatencies(ttft_s=ttft_s / ttfts, itl_s=gap_s / gaps)


def first_guess(probe: IdleRequest) -> Speed:
    """Return constants that would explain the latencies of a request alone.

    ``alpha = 0.9 ITL``, ``beta + gamma = (TTFT - alpha) / I``, and what is left of ITL is
    ``beta + gamma * (I + (O + 1) / 2)``; the defaults where that makes no sense.
    """
    alpha_s = ALPHA_SHARE * probe.itl_s
    both_s = (probe.ttft_s - alpha_s) / probe.input_tokens
    context = probe.input_tokens + (probe.output_tokens + 1) / 2
    gamma_s = (probe.itl_s - alpha_s - both_s) / (context - 1)
    if not 0 < gamma_s < both_s:
        return DEFAULT_SPEED
    return Speed(alpha_s=alpha_s, beta_s=both_s - gamma_s, gamma_s=gamma_s)
