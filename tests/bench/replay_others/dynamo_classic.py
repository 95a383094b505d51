"""NVIDIA Dynamo's first SLA planner: division by a profile, corrected by what is measured.

Follows ai-dynamo/dynamo components/planner/src/dynamo/planner/utils/{planner_core,
perf_interpolation}.py (up to 0.9). Every 180 s what TTFT and ITL were is divided by what the
profile has for that load. The correction of TTFT makes the work of prefill smaller and never
larger; that of ITL tightens the limit at which the throughput of decode is read off the profile.

It has engines that prefill and engines that decode, each rounded up. Here one engine does both, so
the shares of an engine's time that they take are added, and rounded up once. The profile is read
where it was measured, not between the points of a grid. Its budget of 8 GPUs is left out.

Requests and lengths are predicted by the last value, as it does itself with fewer than five
points. Its default is an ARIMA whose order is searched for: the package has no library that fits
one, and a fit of our own would be another predictor than the one that it ships.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from replay_others.inside import Profile, counters, profile_of
from tonnage.replay.baselines.rule import Signals, limit_s, whole
from tonnage.replay.prometheus import Query

INTERVAL_S: Final = 180.0
GRID: Final = 100
"""Steps of KV usage at which the profile is searched."""
QUANTILE: Final = 0.9
COUNTERS: Final = {
    "first_tokens": "time_to_first_token_seconds_count",
    "ttft_s": "time_to_first_token_seconds_sum",
    "gaps": "inter_token_latency_seconds_count",
    "gap_s": "inter_token_latency_seconds_sum",
    "finished": "request_generation_tokens_count",
    "input_tokens": "request_prompt_tokens_sum",
    "output_tokens": "request_generation_tokens_sum",
    "duration_s": "e2e_request_latency_seconds_sum",
}
TABLE: Final[Mapping[str, Query]] = counters(COUNTERS)


@dataclass(slots=True, kw_only=True)
class CounterGrowth:
    """What counters grew by since the last read, pods that are gone left out."""

    table: Mapping[str, Query]
    before: dict[str, Mapping[str, float]] = field(default_factory=dict)
    """By query and pod, at the last read."""

    def read(self, signals: Signals) -> dict[str, float]:
        now = {name: signals.by_pod(name) for name in self.table}
        grown = {name: _growth(found, self.before.get(name, {})) for name, found in now.items()}
        self.before.update(now)
        return grown


def _growth(now: Mapping[str, float], before: Mapping[str, float]) -> float:
    return sum(value - before.get(pod, 0.0) for pod, value in now.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class IntervalMeans:
    """Means of an interval, over all engines."""

    requests_per_s: float
    input_tokens: float
    output_tokens: float
    ttft_s: float
    itl_s: float
    duration_s: float

    @property
    def context_tokens(self) -> float:
        return self.input_tokens + self.output_tokens / 2


@dataclass(slots=True, kw_only=True)
class ClassicPlanner:
    """Divides what comes by what the profile says an engine does within ``share`` of the SLO."""

    share: float = 1.0
    profile: Callable[[Signals], Profile] = profile_of
    counted: CounterGrowth = field(default_factory=lambda: CounterGrowth(table=TABLE))
    interval_s: float = INTERVAL_S
    table: Mapping[str, Query] = field(default_factory=lambda: TABLE)

    def replicas(self, signals: Signals) -> int:
        seen = _interval_means(self.counted.read(signals))
        if seen is None or not signals.ready:
            return signals.asked
        return max(1, whole(self._prefill_share(seen, signals) + self._decode_share(seen, signals)))

    def _prefill_share(self, seen: IntervalMeans, signals: Signals) -> float:
        """Return the engines that prefill takes: less where TTFT was shorter than alone."""
        alone_s = self.profile(signals).ttft_s(seen.input_tokens)
        return seen.requests_per_s * alone_s * min(1.0, seen.ttft_s / alone_s)

    def _decode_share(self, seen: IntervalMeans, signals: Signals) -> float:
        """Return the engines that decode takes, at the limit that ITL was corrected to."""
        profile = self.profile(signals)
        num_decoding = seen.requests_per_s * seen.duration_s / signals.ready
        expected_s = profile.itl_s(max(1, round(num_decoding)), seen.context_tokens)
        correction = seen.itl_s / expected_s
        limit = self.share * limit_s(signals.slo.tpot, QUANTILE) / correction
        each = _best_tokens_per_s(seen.context_tokens, limit, signals, profile)
        return seen.requests_per_s * seen.output_tokens / each


def _interval_means(grown: Mapping[str, float]) -> IntervalMeans | None:
    """Return means of what counters grew by; None: an average has nothing to stand on."""
    finished, first_tokens, gaps = (grown[name] for name in ("finished", "first_tokens", "gaps"))
    if min(finished, first_tokens, gaps) <= 0:
        return None
    return IntervalMeans(
        requests_per_s=finished / INTERVAL_S,
        input_tokens=grown["input_tokens"] / finished,
        output_tokens=grown["output_tokens"] / finished,
        ttft_s=grown["ttft_s"] / first_tokens,
        itl_s=grown["gap_s"] / gaps,
        duration_s=grown["duration_s"] / finished,
    )


def _best_tokens_per_s(
    context_tokens: float, limit: float, signals: Signals, profile: Profile
) -> float:
    """Return the throughput at the highest KV usage within a limit of ITL, else at the lowest."""
    held = signals.kv_tokens / max(1.0, context_tokens)
    for step in range(GRID, 0, -1):
        num = min(signals.flags.max_num_seqs, int(held * step / GRID))
        if num and (itl_s := profile.itl_s(num, context_tokens)) <= limit:
            return num / itl_s
    return 1 / profile.itl_s(1, context_tokens)
