"""WVA's queueing model, its "SLO mode": the rate over what one replica serves within the SLO.

Follows llm-d/llm-d-workload-variant-autoscaler internal/engines/analyzers/queueingmodel and
docs/developer-guide/slo-queuemodel.md (2026-08-18), a path that its engine refuses to take. Rates
are those that its router sends; latencies are means of a minute; limits are those of the spec.
Nothing is learned for 120 s after replicas were added, nor at rates that the model takes for more
than a replica can serve.

Its constants begin as llm-inferno/model-tuner pkg/estimator GuessInitState has them, which knows
no load: in its favour from a request alone on a replica, not from the first minute of traffic.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from replay_others.inside import IdleRequest, probe_of
from replay_others.kalman import Filter, Vector, new_filter
from replay_others.queueing_model import HIGHEST, MeanLatencies, QueueServer, Speed
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
        found = self.filter = self.filter or _new_filter(self.probe(signals))
        self._learn(found, signals, shape, rate / signals.ready)
        slo, share = signals.told.slo, self.share
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
    alpha_s, beta_s, gamma_s = state
    speed = Speed(alpha_s=alpha_s, beta_s=beta_s, gamma_s=gamma_s)
    return QueueServer(speed=speed, shape=shape, max_batch=signals.told.flags.max_num_seqs)


def _latencies(signals: Signals) -> MeanLatencies | None:
    ttfts, gaps = signals.total("ttfts"), signals.total("gaps")
    ttft_s, gap_s = signals.total("ttft_s"), signals.total("gap_s")
    if not ttfts or not gaps or not ttft_s or not gap_s:
        return None
    return MeanLatencies(ttft_s=ttft_s / ttfts, itl_s=gap_s / gaps)


def _new_filter(probe: IdleRequest) -> Filter:
    speed = first_guess(probe)
    return new_filter((speed.alpha_s, speed.beta_s, speed.gamma_s))


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
