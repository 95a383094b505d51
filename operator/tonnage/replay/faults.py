"""What can befall a scrape: functions that change what Prometheus gets of a pod."""

from collections.abc import Callable

from tonnage.engine.chance import Chance
from tonnage.replay.prometheus import Page

Fault = Callable[[Page | None, int, float], Page | None]
"""Takes the page, the number of its pod in order of creation and the time; None: no page."""


def drop_scrapes(share: float, *, seed: int = 0) -> Fault:
    """Return a fault that loses a share of all scrapes."""
    chance = Chance(seed)
    return lambda page, *_: None if page is not None and chance.share() < share else page
