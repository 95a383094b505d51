"""The fleet's circuit breaker: when many objects lose their metrics at once, nothing is scaled.

One object that goes blind has a fault of its own. Many at once have one in common, such as a change
of how Prometheus scrapes, and then the figures that are left may be half of what there is.
"""

from collections.abc import Iterable

from tonnage.control.state import Assessment
from tonnage.units import format_s

ONCE_S = 300.0
"""Within which metrics are lost at once: scrapes and rates end one after the other."""
LEAST_OBJECTS = 3
LEAST_SHARE = 0.5
"""Of the objects whose traffic was ever measured."""


def blackout_of(found: Iterable[Assessment]) -> str | None:
    """Say what was lost at once; None: too few objects to have a cause in common."""
    watched = [each.memory for each in found if each.memory.traffic is not None]
    blind_s = [each.blind_since_s for each in watched if each.blind_since_s is not None]
    together = (sum(first <= each <= first + ONCE_S for each in blind_s) for first in blind_s)
    lost = max(together, default=0)
    if lost < LEAST_OBJECTS or lost < LEAST_SHARE * len(watched):
        return None
    return (
        f"{lost} of {len(watched)} objects lost their metrics within {format_s(ONCE_S)}: "
        "nothing is scaled until they are back"
    )
