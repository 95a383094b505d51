"""Times as Kubernetes writes them, waits after failures, and times of an object's own."""

import math
import zlib
from datetime import UTC, datetime
from functools import lru_cache
from typing import Final

LAST_S: Final = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC).timestamp()
"""The last second that has a name."""
REMEMBERED: Final = 256
MOST_DOUBLED: Final = 32
"""By then it is the longest: powers of what fails for weeks are no numbers any more."""
PLACES: Final = 997
SPREAD: Final = 0.2
"""Of a time, by which objects that were handled together come apart in each round."""


@lru_cache(maxsize=REMEMBERED)
def rfc3339(now_s: float) -> str:
    """Write unix seconds as Kubernetes does; before 1970 and after the year 9999 the nearest.

    >>> rfc3339(0), rfc3339(1e15)
    ('1970-01-01T00:00:00Z', '9999-12-31T23:59:59Z')
    """
    known_s = min(max(now_s, 0.0), LAST_S)
    return datetime.fromtimestamp(known_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def age_s(at_s: float, now_s: float) -> float:
    """Return how long ago a time was; for ever, where it is to come: the clock was set back.

    So no wait that began at it is longer than it was meant.

    >>> age_s(40, 100), age_s(86_400, 100)
    (60, inf)
    """
    return now_s - at_s if at_s <= now_s else math.inf


def backoff_s(times: int, *, first_s: float, longest_s: float) -> float:
    """Return the wait after so many failures in a row: each twice as long as the one before.

    >>> [backoff_s(times, first_s=15, longest_s=300) for times in (1, 2, 3, 9, 5000)]
    [15.0, 30.0, 60.0, 300, 300]
    """
    return min(longest_s, first_s * 2.0 ** min(times - 1, MOST_DOUBLED))


def apart_s(time_s: float, uid: str) -> float:
    """Return a time of an object's own, up to a fifth shorter: chance that needs none.

    >>> round(apart_s(300, "a")), round(apart_s(300, "b"))
    (287, 245)
    """
    return time_s * (1 - SPREAD * place_of(uid))


def place_of(uid: str) -> float:
    """Return a number of an object's own, from 0 to 1."""
    return zlib.crc32(uid.encode()) % PLACES / PLACES
