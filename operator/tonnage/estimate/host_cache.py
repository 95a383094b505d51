"""What a KV cache in host memory gives: the share of prompt tokens that came from it, over days.

A day is counted while engines tell of it, and only with as many prompt tokens as fill the cache and
come again. What earlier days gave counts half as much with each: a quiet day alone convicts none.
"""

from dataclasses import dataclass, replace
from typing import Final, Self

from tonnage.units import DAY_S

FILLED_AND_USED: Final = 2
"""Times the tokens of the cache in prompts, with fewer of which nothing could have come back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostCacheShare:
    """What it gave so far."""

    asked: str
    """Digest of what is asked for: model, GPUs, cache."""
    fraction: float
    """Of prompt tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostCacheDay:
    """The day that is being counted; tokens are of the mean engine."""

    asked: str = ""
    counted_at_s: float = 0.0
    """End of the last window: windows do not overlap."""
    watched_s: float = 0.0
    moved_tokens: float = 0.0
    started_tokens: float = 0.0

    def with_window(
        self, *, moved_per_s: float, started_per_s: float, at_s: float, longest_s: float
    ) -> Self:
        """Return the day with the rates of one more window, which are of ``longest_s`` at most."""
        seconds = min(max(at_s - self.counted_at_s, 0.0), longest_s)
        return replace(
            self,
            counted_at_s=at_s,
            watched_s=self.watched_s + seconds,
            moved_tokens=self.moved_tokens + seconds * moved_per_s,
            started_tokens=self.started_tokens + seconds * started_per_s,
        )

    def is_whole(self, cached_tokens: float) -> bool:
        """Tell whether so many tokens could have been cached, and have come back."""
        tokens = FILLED_AND_USED * cached_tokens
        return self.watched_s >= DAY_S and self.started_tokens > 0 and self.started_tokens >= tokens


def share_after(known: HostCacheShare | None, day: HostCacheDay) -> HostCacheShare:
    """Return what the cache gives by one more whole day."""
    before = known.fraction / 2 if known and known.asked == day.asked else 0.0
    today = min(1.0, day.moved_tokens / day.started_tokens)
    return HostCacheShare(asked=day.asked, fraction=max(today, before))
