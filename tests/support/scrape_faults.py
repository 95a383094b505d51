"""Faults of scrapes that tests need beside lost ones."""

import math
from collections.abc import Callable

from tonnage.engine.chance import Chance
from tonnage.replay.prometheus import Fault, Page


def sometimes(share: float, change: Callable[[Page], Page | None], *, seed: int = 0) -> Fault:
    """Return a fault that changes a share of all pages."""
    chance = Chance(seed)

    def fault(page: Page | None, *_: float) -> Page | None:
        return change(page) if page is not None and chance.share() < share else page

    return fault


def zeroed(share: float, *, seed: int = 0) -> Fault:
    """Return a fault by which a share of all pages say zero."""
    return multiplied(share, by=0.0, seed=seed)


def multiplied(share: float, *, by: float, seed: int = 0) -> Fault:
    """Return a fault by which a share of all pages say so many times what is."""
    return sometimes(
        share, lambda page: {key: by * value for key, value in page.items()}, seed=seed
    )


def without_numbers(share: float, *, seed: int = 0) -> Fault:
    """Return a fault by which a share of all pages have NaN everywhere."""
    return sometimes(share, lambda page: dict.fromkeys(page, math.nan), seed=seed)


def stale(share: float) -> Fault:
    """Return a fault by which a share of all scrapes find the page of the last one."""
    chance, last = Chance(0), dict[int, Page | None]()

    def fault(page: Page | None, pod: int, _: float) -> Page | None:
        if pod in last and chance.share() < share:
            return last[pod]
        last[pod] = page
        return page

    return fault


def silent(pod: int) -> Fault:
    """Return a fault by which one pod cannot be scraped."""
    return lying(pod, lambda _: None)


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
