"""Quantiles of histograms, as Prometheus tells them.

Follows prometheus/prometheus promql/quantile.go bucketQuantile, of classic buckets from zero on.
"""

import math
from collections.abc import Mapping


def quantile(within: Mapping[float, float], q: float) -> float | None:
    """Return a quantile of what ``within`` counts by upper bound; None where it counts nothing.

    Evenly spread in a bucket; beyond the last finite bound it is that bound.

    >>> quantile({1.0: 50, 2.0: 100, math.inf: 100}, 0.9)
    1.8
    """
    total = within.get(math.inf, 0.0)
    if total <= 0:
        return None
    rank, low, before = q * total, 0.0, 0.0
    for bound, count in sorted(within.items()):
        if math.isinf(bound):
            break
        if count >= rank:
            return low + (bound - low) * (rank - before) / (count - before)
        low, before = bound, count
    return low
