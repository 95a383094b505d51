"""How many requests came lately, by whoever counts them on the way in."""

from collections import deque
from dataclasses import dataclass, field

from tonnage.replay.rivals.rule import Signals


@dataclass(slots=True, kw_only=True)
class Arrivals:
    """What a counter of arrivals said within a window."""

    window_s: float
    seen: deque[tuple[float, int]] = field(default_factory=deque)

    def requests_per_s(self, signals: Signals) -> float | None:
        """Take the newest count, and return the rate over the window; None: it is the first."""
        self.seen.append((signals.at_s, signals.arrived))
        while len(self.seen) > 1 and self.seen[1][0] <= signals.at_s - self.window_s:
            self.seen.popleft()
        (first_s, before), (last_s, now) = self.seen[0], self.seen[-1]
        return (now - before) / (last_s - first_s) if last_s > first_s else None
