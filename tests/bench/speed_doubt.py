"""Which constants of the fit its rows cannot tell apart, or say nothing about."""

from collections.abc import Iterator, Sequence
from itertools import combinations

import numpy as np
from fit_speed import PRIOR_WEIGHT, fit
from speed_formula import Sample, columns_of, formula
from speed_priors import PRIORS

STEP = 1e-4
NOISE = 0.08
"""Of the logarithm of a row: what the constants leave unexplained in the median, and some more."""
CORRELATED, UNMOVED = 0.6, 0.9


def doubt_lines(samples: Sequence[Sample]) -> Iterator[str]:
    """Yield pairs that move together, and constants that stay as wide as their prior."""
    values = fit(samples)
    names = list(PRIORS)
    columns = columns_of(samples)
    middle = np.log(formula(values, columns))
    slopes = np.stack(
        [
            (np.log(formula({**values, name: values[name] * (1 + STEP)}, columns)) - middle) / STEP
            for name in names
        ],
        axis=1,
    )
    widths = np.array([PRIORS[name][1] for name in names])
    precision = slopes.T @ slopes / NOISE**2 + np.diag((PRIOR_WEIGHT / widths) ** 2)
    covariance = np.linalg.inv(precision)
    deviation = np.sqrt(np.diag(covariance))
    correlation = covariance / np.outer(deviation, deviation)
    yield "| constants that move together | correlation |"
    yield "|---|---|"
    for one, other in combinations(range(len(names)), 2):
        if abs(correlation[one, other]) >= CORRELATED:
            yield f"| {names[one]}, {names[other]} | {correlation[one, other]:+.2f} |"
    kept = [
        name
        for name, found, width in zip(names, deviation, widths, strict=True)
        if found > UNMOVED * width / PRIOR_WEIGHT
    ]
    yield ""
    yield f"Left where their priors put them, since rows say little about them: {', '.join(kept)}."
