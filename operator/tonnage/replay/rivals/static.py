"""A number of replicas that stays: what a rival must beat to be worth its risks."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from tonnage.estimate.metrics import Query
from tonnage.replay.rivals.rule import Signals, whole


@dataclass(slots=True, kw_only=True)
class Static:
    """Asks for ``factor`` times what it began with, rounded up."""

    factor: float
    began: int | None = None
    interval_s: float = 15.0
    table: Mapping[str, Query] = field(default_factory=dict)
    reads_engines: bool = False

    def replicas(self, signals: Signals) -> int:
        if self.began is None:
            self.began = signals.asked
        return whole(self.factor * self.began)
