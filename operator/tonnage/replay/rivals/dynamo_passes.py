"""What Dynamo's planner hears of engines: here, the differences of their counters each 5 s.

Its workers send metrics of every forward pass. Counters have the sums of those between two reads:
step time is the mean gap between tokens, prompts count in the step that ends their prefill.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from tonnage.estimate.metrics import Query
from tonnage.replay.rivals.dynamo_model import Pass
from tonnage.replay.rivals.rule import Signals, gauges

COUNTERS: Final = {
    "steps": "iteration_tokens_total_count",
    "prompt": "prompt_tokens_total",
    "cached": "prompt_tokens_cached_total",
    "started": "time_to_first_token_seconds_count",
    "gap_s": "inter_token_latency_seconds_sum",
    "gaps": "inter_token_latency_seconds_count",
    "finished": "request_generation_tokens_count",
    "finished_input": "request_prompt_tokens_sum",
    "finished_output": "request_generation_tokens_sum",
}
TABLE: Final[Mapping[str, Query]] = {
    **gauges("running", "waiting", "kv_usage"),
    **{name: Query(metric=f"vllm:{metric}") for name, metric in COUNTERS.items()},
}


@dataclass(slots=True, kw_only=True)
class Traffic:
    """Requests that finished since the planner last looked, and their tokens."""

    finished: float = 0.0
    input_tokens: float = 0.0
    output_tokens: float = 0.0
    prompt_tokens: float = 0.0
    cached_tokens: float = 0.0


@dataclass(slots=True, kw_only=True)
class Passes:
    """The counters of the last read, by pod, and the traffic since the planner last looked."""

    before: dict[str, dict[str, float]] = field(default_factory=dict)
    traffic: Traffic = field(default_factory=Traffic)
    mean_prompt: float = 0.0
    """Tokens of the prompts that were started since the read before, or when last any were."""

    def read(self, signals: Signals) -> dict[str, Pass]:
        """Return what the steps of each pod were like since the last read."""
        values = {name: signals.by_pod(name) for name in TABLE}
        pods = [pod for pod in values["steps"] if pod in values["kv_usage"]]
        now = {pod: {name: values[name].get(pod, 0.0) for name in TABLE} for pod in pods}
        grown = {pod: self._growth(pod, found) for pod, found in now.items()}
        self.before = now
        for growth in grown.values():
            self._count(growth)
        return {pod: self._pass(now[pod], grown[pod], signals.told.kv_tokens) for pod in pods}

    def looked_at(self) -> Traffic:
        """Return the traffic so far, and begin anew."""
        found, self.traffic = self.traffic, Traffic()
        return found

    def _growth(self, pod: str, now: Mapping[str, float]) -> dict[str, float]:
        before = self.before.get(pod, {})
        return {name: now[name] - before.get(name, 0.0) for name in COUNTERS}

    def _count(self, growth: Mapping[str, float]) -> None:
        traffic = self.traffic
        traffic.finished += growth["finished"]
        traffic.input_tokens += growth["finished_input"]
        traffic.output_tokens += growth["finished_output"]
        traffic.prompt_tokens += growth["prompt"]
        traffic.cached_tokens += growth["cached"]
        if growth["started"]:
            self.mean_prompt = growth["prompt"] / growth["started"]

    def _pass(self, now: Mapping[str, float], growth: Mapping[str, float], kv_tokens: int) -> Pass:
        computed, steps = growth["prompt"] - growth["cached"], growth["steps"]
        return Pass(
            prefill_tokens=computed / steps if steps else 0.0,
            decode_tokens=now["kv_usage"] * kv_tokens,
            num_decoding=now["running"],
            queued_tokens=now["waiting"] * self.mean_prompt,
            wall_s=growth["gap_s"] / growth["gaps"] if growth["gaps"] else None,
        )
