"""What Dynamo's planner hears of its traffic: the counters of engines, between two looks."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from tonnage.estimate.metrics import Query
from tonnage.replay.rivals.rule import Signals, counters

COUNTERS: Final = {
    "prompts": "time_to_first_token_seconds_count",
    "prompt_tokens": "prompt_tokens_total",
    "cached_tokens": "prompt_tokens_cached_total",
    "finished": "request_generation_tokens_count",
    "input_tokens": "request_prompt_tokens_sum",
    "output_tokens": "request_generation_tokens_sum",
}
TABLE: Final[Mapping[str, Query]] = counters(COUNTERS)


@dataclass(slots=True, kw_only=True)
class CounterGrowth:
    """What counters grew by since the last read, pods that are gone left out."""

    table: Mapping[str, Query] = field(default_factory=lambda: TABLE)
    before: dict[str, Mapping[str, float]] = field(default_factory=dict)
    """By query and pod, at the last read."""

    def read(self, signals: Signals) -> dict[str, float]:
        now = {name: signals.by_pod(name) for name in self.table}
        grown = {name: _growth(found, self.before.get(name, {})) for name, found in now.items()}
        self.before.update(now)
        return grown


def _growth(now: Mapping[str, float], before: Mapping[str, float]) -> float:
    return sum(value - before.get(pod, 0.0) for pod, value in now.items())
