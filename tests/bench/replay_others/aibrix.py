"""AIBrix's own two algorithms, on the share of the KV cache in use, read from the engines.

Follows vllm-project/aibrix pkg/controller/podautoscaler/algorithm/{kpa,apa}.go and
context/context.go (2026-08-23): every 10 s; windows of 180 s and 60 s; twice as many or half as
many at a time; a tenth of tolerance; 300 s after a change before it goes down. As coded, the KPA
divides the mean of pods by the target of one, which asks for one or two replicas whatever there
are.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from tonnage.estimate.metrics import Query
from tonnage.replay.rivals.rule import Signals, gauges, whole

RESYNC_S: Final = 10.0
STABLE_S: Final = 180.0
PANIC_S: Final = 60.0
PANIC_RATIO: Final = 2.0
TOLERANCE: Final = 0.1
RATE: Final = 2.0
DOWN_AFTER_S: Final = 300.0


@dataclass(slots=True, kw_only=True)
class Window:
    """The mean KV usage of pods, each 10 s, and when the number of them changed."""

    values: list[tuple[float, float]] = field(default_factory=list)
    changed_s: float | None = None
    """The start counts: what is deployed has not been idle for long."""

    def take(self, signals: Signals) -> bool:
        """Take the newest mean of pods; tell whether there is any."""
        if self.changed_s is None:
            self.changed_s = signals.at_s
        used = signals.by_pod("kv_usage")
        if used:
            self.values.append((signals.at_s, sum(used.values()) / len(used)))
        self.values = [each for each in self.values if each[0] > signals.at_s - STABLE_S]
        return bool(self.values)

    def mean(self, window_s: float, at_s: float) -> float:
        found = [value for when, value in self.values if when > at_s - window_s]
        return sum(found) / len(found) if found else 0.0

    def confirm(self, wanted: int, signals: Signals) -> int:
        """Keep what there is where it would go down too soon after a change."""
        found = min(signals.told.max_replicas, max(signals.told.min_replicas, wanted))
        is_soon = signals.at_s < (self.changed_s or 0.0) + DOWN_AFTER_S
        if found < signals.asked and is_soon:
            return signals.asked
        if found != signals.asked:
            self.changed_s = signals.at_s
        return found


@dataclass(slots=True, kw_only=True)
class Kpa:
    """Knative's algorithm: a stable window, and a short one that panics."""

    target: float
    window: Window = field(default_factory=Window)
    interval_s: float = RESYNC_S
    table: Mapping[str, Query] = field(default_factory=lambda: gauges("kv_usage"))

    def replicas(self, signals: Signals) -> int:
        if not self.window.take(signals):
            return signals.asked
        stable, panic = (self.window.mean(s, signals.at_s) for s in (STABLE_S, PANIC_S))
        wanted = self._wanted(stable, signals)
        if stable <= 0 or panic / stable > PANIC_RATIO:
            wanted = max(wanted, self._wanted(panic, signals), signals.asked)
        return self.window.confirm(wanted, signals)

    def _wanted(self, mean: float, signals: Signals) -> int:
        now, ratio = signals.asked, mean / self.target
        if abs(ratio - 1) <= TOLERANCE:
            return now
        wanted = whole(ratio)
        return min(max(wanted, math.floor(now / RATE)), max(1, math.ceil(now * RATE)))


@dataclass(slots=True, kw_only=True)
class Apa:
    """The number there is, times the mean usage over the target."""

    target: float
    window: Window = field(default_factory=Window)
    interval_s: float = RESYNC_S
    table: Mapping[str, Query] = field(default_factory=lambda: gauges("kv_usage"))

    def replicas(self, signals: Signals) -> int:
        if not self.window.take(signals):
            return signals.asked
        ratio = self.window.mean(STABLE_S, signals.at_s) / self.target
        return self.window.confirm(_proportional(signals.asked, ratio), signals)


def _proportional(now: int, ratio: float) -> int:
    if ratio > 1 + TOLERANCE:
        return min(whole(now * ratio), math.ceil(now * RATE))
    if ratio < 1 - TOLERANCE:
        return max(whole(now * ratio), math.floor(now / RATE))
    return now
