"""NVIDIA Dynamo's planner for engines that prefill and decode, in both of its modes.

Follows ai-dynamo/dynamo components/src/dynamo/planner/core/{throughput_scaling,load_scaling}.py
and config/defaults.py (1.5.1). Every 180 s the throughput mode divides the requests that are
predicted by what an engine serves within the SLA; every 5 s the load mode adds one replica where
all engines are late, or takes one away where the others would stay within ``sensitivity``. With
both, as by default, throughput is a floor under load.

Requests are predicted by its ``constant`` predictor, the last value, not by ARIMA. Until its model
of a step is ready the goodput that is believed stands for the profile it would be started with.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

from replay_others.dynamo_classic import CounterGrowth
from replay_others.dynamo_model import Limits, StepModel
from replay_others.inside import Pass, counters, passes_of
from tonnage.estimate.metrics import Query
from tonnage.replay.rivals.rule import Signals, limit_s, whole

LOAD_S: Final = 5.0
THROUGHPUT_S: Final = 180.0
SENSITIVITY: Final = 0.8
QUANTILE: Final = 0.9

COUNTERS: Final = {
    "prompts": "time_to_first_token_seconds_count",
    "prompt_tokens": "prompt_tokens_total",
    "cached_tokens": "prompt_tokens_cached_total",
    "finished": "request_generation_tokens_count",
    "input_tokens": "request_prompt_tokens_sum",
    "output_tokens": "request_generation_tokens_sum",
}
TABLE: Final[Mapping[str, Query]] = counters(COUNTERS)

IsLate = Callable[[Pass], bool]
IsSafe = Callable[[Pass], bool]


@dataclass(slots=True, kw_only=True)
class Traffic:
    """What counters grew by since the planner last looked, and when it did."""

    since_s: float
    sums: dict[str, float] = field(default_factory=lambda: dict.fromkeys(TABLE, 0.0))

    def add(self, grown: Mapping[str, float]) -> None:
        for name, value in grown.items():
            self.sums[name] += value


@dataclass(slots=True, kw_only=True)
class Planner:
    """Load mode over the floor of throughput mode, as by default."""

    sensitivity: float = SENSITIVITY
    """Of a limit, that must be kept with one replica less."""
    model: StepModel = field(default_factory=StepModel)
    counted: CounterGrowth = field(default_factory=lambda: CounterGrowth(table=TABLE))
    traffic: Traffic | None = None
    hits: float = 0.0
    """Share of prompt tokens that the cache held, of the last interval."""
    floor: int = 1
    passes: Callable[[Signals], Mapping[str, Pass]] = passes_of
    interval_s: float = LOAD_S
    table: Mapping[str, Query] = field(default_factory=lambda: TABLE)

    def replicas(self, signals: Signals) -> int:
        passes = self.passes(signals).values()
        traffic = self._observed(signals, passes)
        limits = self._limits(signals)
        if signals.at_s >= traffic.since_s + THROUGHPUT_S:
            self.floor = self._by_throughput(traffic, signals, limits)
            self.traffic = Traffic(since_s=signals.at_s)
        if signals.pending or not passes:
            return signals.asked
        return max(self.floor, self._by_load(signals.asked, passes, limits))

    def _observed(self, signals: Signals, passes: Collection[Pass]) -> Traffic:
        """Take what engines say; return the traffic since the throughput mode last looked."""
        for each in passes:
            self.model.take(each)
        grown = self.counted.read(signals)
        if grown["prompts"]:
            self.model.prompts.append(grown["prompt_tokens"] / grown["prompts"])
        self.traffic = self.traffic or Traffic(since_s=signals.at_s)
        self.traffic.add(grown)
        return self.traffic

    def _limits(self, signals: Signals) -> Limits:
        told = signals.told
        return Limits(
            max_batched_tokens=told.flags.max_num_batched_tokens,
            max_num_seqs=told.flags.max_num_seqs,
            kv_tokens=told.kv_tokens,
            ttft_s=limit_s(told.slo.ttft, QUANTILE),
            itl_s=limit_s(told.slo.tpot, QUANTILE),
        )

    def _by_throughput(self, traffic: Traffic, signals: Signals, limits: Limits) -> int:
        """Return what the next interval needs, if it brings what the last one did."""
        seen, passed_s = traffic.sums, signals.at_s - traffic.since_s
        if not seen["finished"]:
            return signals.asked
        if seen["prompt_tokens"]:
            self.hits = min(1.0, seen["cached_tokens"] / seen["prompt_tokens"])
        each = signals.told.believed_requests_per_s
        if self.model.is_ready:
            prompt, output = (
                seen[name] / seen["finished"] for name in ("input_tokens", "output_tokens")
            )
            each = self.model.best_rate(prompt, output, limits, self.hits)
        return max(1, whole(seen["finished"] / passed_s / each))

    def _by_load(self, now: int, passes: Collection[Pass], limits: Limits) -> int:
        if not self.model.is_ready:
            return now
        factor = now / (now - 1) if now > 1 else 1.0
        steps = (
            self._step(passes, self._starts_late(limits), self._starts_safely(limits, factor)),
            self._step(passes, self._decodes_late(limits), self._decodes_safely(limits, factor)),
        )
        if max(steps) > 0:
            return now + 1
        return max(1, now + max(steps))

    @staticmethod
    def _step(passes: Collection[Pass], is_late: IsLate, is_safe: IsSafe) -> int:
        if all(is_late(each) for each in passes):
            return 1
        return -1 if all(is_safe(each) for each in passes) else 0

    def _starts_late(self, limits: Limits) -> IsLate:
        model, hits = self.model, self.hits
        return lambda seen: (
            model.ttft_s(seen.queued_tokens, seen.decode_tokens, limits, hits) > limits.ttft_s
        )

    def _starts_safely(self, limits: Limits, factor: float) -> IsSafe:
        """Tell whether the queue alone stays within its share of what prefill leaves."""

        def is_safe(seen: Pass) -> bool:
            tokens = factor * seen.decode_tokens
            own_s = self.model.ttft_s(0.0, tokens, limits, self.hits)
            after_s = self.model.ttft_s(factor * seen.queued_tokens, tokens, limits, self.hits)
            return after_s - own_s < self.sensitivity * (limits.ttft_s - own_s)

        return is_safe

    def _decodes_late(self, limits: Limits) -> IsLate:
        return lambda seen: self.model.itl_s(seen.decode_tokens) > limits.itl_s

    def _decodes_safely(self, limits: Limits, factor: float) -> IsSafe:
        def is_safe(seen: Pass) -> bool:
            tokens = factor * (seen.decode_tokens + seen.queued_tokens)
            is_fast = self.model.itl_s(tokens) < self.sensitivity * limits.itl_s
            return tokens < limits.kv_tokens and is_fast

        return is_safe
