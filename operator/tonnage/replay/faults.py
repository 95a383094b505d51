"""What can befall a scrape: functions that change what Prometheus gets of a pod."""

import math
from collections.abc import Callable

from tonnage.engine.chance import Chance
from tonnage.replay.prometheus import Page

Fault = Callable[[Page | None, int, float], Page | None]
"""Takes the page, the number of its pod in order of creation and the time; None: no page."""


def dropped(share: float, *, seed: int = 0) -> Fault:
    """Return a fault that loses a share of all scrapes."""
    return _sometimes(share, seed, lambda _: None)


def zeroed(share: float, *, seed: int = 0) -> Fault:
    """Return a fault by which a share of all pages say zero."""
    return multiplied(share, by=0.0, seed=seed)


def multiplied(share: float, *, by: float, seed: int = 0) -> Fault:
    """Return a fault by which a share of all pages say so many times what is."""
    return _sometimes(share, seed, lambda page: {key: by * value for key, value in page.items()})


def without_numbers(share: float, *, seed: int = 0) -> Fault:
    """Return a fault by which a share of all pages have NaN everywhere."""
    return _sometimes(share, seed, lambda page: dict.fromkeys(page, math.nan))


def stale(share: float, *, seed: int = 0) -> Fault:
    """Return a fault by which a share of all scrapes find the page of the last one."""
    chance, last = Chance(seed), dict[int, Page | None]()

    def fault(page: Page | None, pod: int, _: float) -> Page | None:
        if pod in last and chance.share() < share:
            return last[pod]
        last[pod] = page
        return page

    return fault


def silent(pod: int, *, from_s: float = 0.0, until_s: float = math.inf) -> Fault:
    """Return a fault by which one pod cannot be scraped for a time."""
    return lying(pod, lambda _: None, from_s=from_s, until_s=until_s)


def lying(
    pod: int,
    change: Callable[[Page], Page | None],
    *,
    from_s: float = 0.0,
    until_s: float = math.inf,
) -> Fault:
    """Return a fault by which one pod says something else than is, for a time."""

    def fault(page: Page | None, number: int, at_s: float) -> Page | None:
        is_due = page is not None and number == pod and from_s <= at_s < until_s
        return change(page) if is_due and page is not None else page

    return fault


def _sometimes(share: float, seed: int, change: Callable[[Page], Page | None]) -> Fault:
    chance = Chance(seed)

    def fault(page: Page | None, *_: float) -> Page | None:
        return change(page) if page is not None and chance.share() < share else page

    return fault
