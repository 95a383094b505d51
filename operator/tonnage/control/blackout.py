"""The circuit breaker: where many objects lose their metrics at once, nothing is scaled.

One object that goes blind has a fault of its own. Many at once have one in common, such as a change
of how Prometheus scrapes, and then the figures that are left may be half of what there is. It holds
the namespace that they are in, and all of them only where half went dark together: one tenant's
objects say nothing of another's.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from tonnage.control.state import Assessment
from tonnage.units import format_s

ONCE_S = 300.0
"""Within which metrics are lost at once: scrapes and rates end one after the other."""
LEAST_OBJECTS = 3
LEAST_SHARE = 0.3
"""Of the objects of a namespace whose traffic was ever measured."""
LEAST_NAMESPACES, LEAST_SHARE_OF_ALL = 2, 0.5
"""Of all namespaces and of all objects, that are dark before all are held: a tenant with several
namespaces must not hold everybody."""

BlindSince = Sequence[float | None]
"""When each object went blind; None: it sees."""


def blackouts(found: Iterable[Assessment]) -> Mapping[str, str]:
    """Say by namespace what was lost at once; only of objects that act and were ever measured."""
    watched = defaultdict[str, list[float | None]](list)
    for each in found:
        if each.is_acting and each.memory.traffic is not None:
            watched[each.state.view.namespace].append(each.memory.blind_since_s)
    everywhere = _lost(
        [since_s for some in watched.values() for since_s in some], least=LEAST_SHARE_OF_ALL
    )
    dark = [name for name, some in watched.items() if _share(some) >= LEAST_SHARE]
    if everywhere and len(dark) >= max(LEAST_NAMESPACES, LEAST_SHARE_OF_ALL * len(watched)):
        return dict.fromkeys(watched, everywhere)
    return {name: said for name, some in watched.items() if (said := _lost(some))}


def _share(blind_since_s: BlindSince) -> float:
    return _num_together(blind_since_s) / len(blind_since_s)


def _num_together(blind_since_s: BlindSince) -> int:
    blind_s = [each for each in blind_since_s if each is not None]
    together = (sum(first <= each <= first + ONCE_S for each in blind_s) for first in blind_s)
    return max(together, default=0)


def _lost(blind_since_s: BlindSince, *, least: float = LEAST_SHARE) -> str | None:
    """Say what was lost at once; None: too few objects to have a cause in common."""
    lost = _num_together(blind_since_s)
    if lost < LEAST_OBJECTS or lost < least * len(blind_since_s):
        return None
    return (
        f"{lost} of {len(blind_since_s)} objects lost their metrics within {format_s(ONCE_S)}: "
        "nothing is scaled until they are back"
    )
