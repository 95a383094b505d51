"""Requests in flight over a target for each replica, as proxies that hold them count them."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from replay_others.patience import Patience
from tonnage.replay.baselines.rule import Signals, whole
from tonnage.replay.prometheus import Query

SAMPLE_S: Final = 10.0


@dataclass(slots=True, kw_only=True)
class InFlight:
    """Asks for so many replicas that each has ``target`` requests in the mean of ``counts``.

    The mean is over what there was so far until the window is full.
    """

    target: float
    counts: deque[int]
    patience: Patience
    interval_s: float = SAMPLE_S
    table: Mapping[str, Query] = field(default_factory=dict)

    def replicas(self, signals: Signals) -> int:
        self.counts.append(signals.in_flight)
        mean = sum(self.counts) / len(self.counts)
        return self.patience.confirm(whole(mean / self.target), signals, self.interval_s)


def in_flight(target: float, *, window_s: float, up_s: float, down_s: float) -> InFlight:
    """Return the rule with a mean over a window, and the time that either direction has to last."""
    return InFlight(
        target=target,
        counts=deque(maxlen=round(window_s / SAMPLE_S)),
        patience=Patience(up_s=up_s, down_s=down_s),
    )
