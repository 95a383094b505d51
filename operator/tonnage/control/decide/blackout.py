"""The circuit breaker: where many objects lose their metrics at once, nothing is taken away.

One object that goes blind has a fault of its own. Many at once have one in common, such as a change
of how Prometheus scrapes, and then the figures that are left may be half of what there is. It holds
the namespace that they are in, and all of them only where half went dark together: one tenant's
objects say nothing of another's. What is held are replicas that would go, and more of objects that
are blind themselves. It ends half an hour after the loss: from then on each is decided by its own.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from tonnage.control.input.state import Assessment
from tonnage.control.input.times import rfc3339
from tonnage.units import count_of, format_s

ONCE_S = 300.0
"""Within which metrics are lost at once: scrapes and rates end one after the other."""
LASTS_S = 1800.0
"""For which a loss holds others: twice the longest window of a rate, so none reaches back to it."""
LEAST_OBJECTS = 3
LEAST_SHARE = 0.3
"""Of the objects of a namespace whose metrics this process ever saw whole."""
LEAST_NAMESPACES, LEAST_SHARE_OF_ALL = 2, 0.5
"""Of all namespaces and of all objects, that are dark before all are held: a tenant with several
namespaces must not hold everybody."""

Loss = tuple[str, float | None]
"""(namespace of an object, when it lost its metrics of late; None: it sees, or that is long ago)"""


def loss_of(found: Assessment, now_s: float) -> Loss | None:
    """Return what one object lost; None: it does not act, or was blind at first sight."""
    known = found.memory.traffic
    if not (found.is_acting and known.was_whole):
        return None
    since_s = known.blind_since_s
    is_late = since_s is not None and now_s - since_s < LASTS_S
    return found.state.view.namespace, since_s if is_late else None


def blackouts(losses: Iterable[Loss | None]) -> Mapping[str, str]:
    """Say by namespace what was lost at once."""
    watched = defaultdict[str, list[float | None]](list)
    for namespace, at_s in filter(None, losses):
        watched[namespace].append(at_s)
    everywhere = _common_loss(
        [since_s for some in watched.values() for since_s in some], least=LEAST_SHARE_OF_ALL
    )
    dark = [name for name, e in watched.items() if len(_together(e)) >= LEAST_SHARE * len(e)]
    if everywhere and len(dark) >= max(LEAST_NAMESPACES, LEAST_SHARE_OF_ALL * len(watched)):
        return dict.fromkeys(watched, everywhere)
    return {name: message for name, some in watched.items() if (message := _common_loss(some))}


def _together(lost_at_s: Sequence[float | None]) -> Sequence[float]:
    """Return the times of the most that were lost within so short a time."""
    known = sorted(each for each in lost_at_s if each is not None)
    ends = (bisect_right(known, first + ONCE_S) for first in known)
    first, end = max(enumerate(ends), key=lambda each: each[1] - each[0], default=(0, 0))
    return known[first:end]


def _common_loss(lost_at_s: Sequence[float | None], *, least: float = LEAST_SHARE) -> str | None:
    """Say what was lost at once; None: too few objects to have a cause in common."""
    together = _together(lost_at_s)
    if len(together) < LEAST_OBJECTS or len(together) < least * len(lost_at_s):
        return None
    return (
        f"{len(together)} of {count_of(len(lost_at_s), 'object')} lost their metrics within "
        f"{format_s(ONCE_S)}: until they are back, or {rfc3339(together[-1] + LASTS_S)}, no fleet "
        "shrinks, and objects without metrics grow only for schedules and minReplicas"
    )
