"""Times as Kubernetes writes them."""

from datetime import UTC, datetime
from functools import lru_cache
from typing import Final

LAST_S: Final = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC).timestamp()
"""The last second that has a name."""
REMEMBERED: Final = 256


@lru_cache(maxsize=REMEMBERED)
def rfc3339(now_s: float) -> str:
    """Write unix seconds as Kubernetes does; before 1970 and after the year 9999 the nearest.

    >>> rfc3339(0), rfc3339(1e15)
    ('1970-01-01T00:00:00Z', '9999-12-31T23:59:59Z')
    """
    known_s = min(max(now_s, 0.0), LAST_S)
    return datetime.fromtimestamp(known_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
