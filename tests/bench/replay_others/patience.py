"""Waiting until enough decisions in a row point the same way."""

import math
from dataclasses import dataclass

from tonnage.replay.baselines.rule import Signals


@dataclass(slots=True, kw_only=True)
class Patience:
    """Counts decisions to go up, or to go down, since the last one that did not."""

    up_s: float
    down_s: float
    ups: int = 0
    downs: int = 0

    def confirm(self, wanted: int, signals: Signals, interval_s: float) -> int:
        """Return the newest number wanted once its direction has been wanted long enough."""
        now = signals.asked
        self.ups = self.ups + 1 if wanted > now else 0
        self.downs = self.downs + 1 if wanted < now else 0
        is_up = self.ups and self.ups >= math.ceil(self.up_s / interval_s)
        is_down = self.downs and self.downs >= math.ceil(self.down_s / interval_s)
        if not (is_up or is_down):
            return now
        self.ups = self.downs = 0
        return wanted
