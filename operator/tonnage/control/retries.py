"""When what the API server refused is tried again, apart from others that it refused. Pure."""

import zlib
from typing import Final

from tonnage.control.state import ObjectMemory, Retry

RETRY_S: Final = 15.0
"""After a write that was refused, before the next; twice as long after each further refusal."""
MOST_RETRY_S: Final = 300.0
MOST_DOUBLED: Final = 5
"""By then it is the most: powers of what is refused for weeks are no numbers any more."""
PLACES: Final = 997
SPREAD: Final = 0.2
"""Of a time, by which objects that were handled together come apart in each round."""


def waiting_retry(memory: ObjectMemory, generation: int, *, now_s: float) -> Retry | None:
    """Return what a write for this spec waits for; None: none was refused not long ago."""
    retry = memory.retry
    is_due = retry is None or retry.generation != generation or now_s >= retry.at_s
    return None if is_due else retry


def next_retry(
    memory: ObjectMemory, generation: int, *, is_of_template: bool, now_s: float
) -> Retry:
    """Return when to try again what was refused now: later each time."""
    before = memory.retry
    times = before.times + 1 if before and before.generation == generation else 1
    pause_s = min(MOST_RETRY_S, RETRY_S * 2.0 ** min(times - 1, MOST_DOUBLED))
    at_s = now_s + apart_s(pause_s, memory.uid)
    return Retry(generation=generation, times=times, at_s=at_s, is_of_template=is_of_template)


def apart_s(time_s: float, uid: str) -> float:
    """Return a time of an object's own, up to a fifth shorter: chance that needs none.

    >>> round(apart_s(300, "a")), round(apart_s(300, "b"))
    (287, 245)
    """
    return time_s * (1 - SPREAD * place_of(uid))


def place_of(uid: str) -> float:
    """Return an object's own place, from 0 to below 1."""
    return zlib.crc32(uid.encode()) % PLACES / PLACES
