"""When what the API server did not take is tried again, apart from others. Pure."""

import zlib
from collections.abc import Set
from typing import Final

from tonnage.control.input.state import Assessment, ModelView
from tonnage.control.input.times import backoff_s
from tonnage.control.input.writers import Failure, Result, WriteKind

RETRY_S: Final = 15.0
"""After a write that failed, before the next; twice as long after each further failure."""
MOST_RETRY_S: Final = 300.0
PLACES: Final = 997
SPREAD: Final = 0.2
"""Of a time, by which objects that were handled together come apart in each round."""


def is_waiting(failure: Failure | None, generation: int | None, *, now_s: float) -> bool:
    """Tell whether what failed for this spec is not to be tried again yet.

    A time that no back-off can come to is of a clock that was set back.
    """
    if failure is None or failure.generation != generation:
        return False
    return 0 < failure.at_s - now_s <= MOST_RETRY_S


def waiting_kinds(found: Assessment, now_s: float) -> Set[WriteKind]:
    """Return the writes of an object that failed and are not to be tried again yet."""
    generation = found.state.view.generation
    failures = found.memory.written.failures.items()
    return {kind for kind, each in failures if is_waiting(each, generation, now_s=now_s)}


def failed_again(
    before: Failure | None, result: Result, view: ModelView, *, now_s: float
) -> Failure:
    """Return when to try again what failed now: later each time."""
    times = before.times + 1 if before and before.generation == view.generation else 1
    wait_s = backoff_s(times, first_s=RETRY_S, longest_s=MOST_RETRY_S)
    return Failure(
        cause=result.cause,
        detail=result.detail,
        generation=view.generation,
        times=times,
        at_s=now_s + apart_s(wait_s, view.uid),
    )


def apart_s(time_s: float, uid: str) -> float:
    """Return a time of an object's own, up to a fifth shorter: chance that needs none.

    >>> round(apart_s(300, "a")), round(apart_s(300, "b"))
    (287, 245)
    """
    return time_s * (1 - SPREAD * place_of(uid))


def place_of(uid: str) -> float:
    """Return a number of an object's own, from 0 to 1."""
    return zlib.crc32(uid.encode()) % PLACES / PLACES
