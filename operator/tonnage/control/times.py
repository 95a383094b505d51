"""Times as Kubernetes writes them."""

from datetime import UTC, datetime


def rfc3339(now_s: float) -> str:
    """Write unix seconds as Kubernetes does.

    >>> rfc3339(0)
    '1970-01-01T00:00:00Z'
    """
    return datetime.fromtimestamp(now_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
