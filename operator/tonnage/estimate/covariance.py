"""Covariances of three figures, as upper triangles: whether they are one, and amends if not."""

import math
from collections.abc import Sequence
from typing import Final

UpperTriangle = tuple[float, float, float, float, float, float]

WIDE_VARIANCE: Final = 0.3**2
"""Where a covariance is none: as much doubt as before anything is measured, 30 % each way."""
SHRINKAGE: Final = 1e-6
"""Of correlations, what the rounding of a text may have added to them."""


def repair(entries: Sequence[float]) -> tuple[UpperTriangle, bool]:
    """Return a positive semi-definite matrix, and whether the given one was it.

    What rounding made indefinite gets correlations that are a millionth weaker. Of anything else
    only the variances are believed, and none below ``WIDE_VARIANCE``.

    >>> repair([0.04, 0.05, 0, 0.04, 0, 0.01])
    ((0.09, 0.0, 0.0, 0.09, 0.0, 0.09), False)
    """
    a, b, c, d, e, f = entries
    if is_positive_semidefinite((a, b, c, d, e, f)):
        return (a, b, c, d, e, f), True
    kept = 1 - SHRINKAGE
    shrunk = (a, kept * b, kept * c, d, kept * e, f)
    if is_positive_semidefinite(shrunk):
        return shrunk, True
    wide = [max(variance, WIDE_VARIANCE) for variance in (a, d, f)]
    return (wide[0], 0.0, 0.0, wide[1], 0.0, wide[2]), False


def is_positive_semidefinite(matrix: UpperTriangle) -> bool:
    """Tell whether all principal minors of the matrix of correlations are at least 0.

    >>> is_positive_semidefinite((1, 0.5, 0, 1, 0, 1)), is_positive_semidefinite((1, 2, 0, 1, 0, 1))
    (True, False)
    """
    a, b, c, d, e, f = matrix
    if min(a, d, f) < 0:
        return False
    pairs = [(b, a, d), (c, a, f), (e, d, f)]
    if any(shared and not first * second for shared, first, second in pairs):
        return False  # what does not vary at all varies with nothing
    r, s, t = (
        shared / math.sqrt(first) / math.sqrt(second) if shared else 0.0
        for shared, first, second in pairs
    )
    is_each_pair = max(abs(r), abs(s), abs(t)) <= 1
    return is_each_pair and 1 + 2 * r * s * t - r * r - s * s - t * t >= 0
