"""WVA's extended Kalman filter: the three constants of its model, from TTFT and ITL.

Follows llm-d/llm-d-workload-variant-autoscaler internal/engines/analyzers/queueingmodel/tuner
(2026-08-18): a state that moves by 5 % a step, observations within 5 % nineteen times in twenty,
a gate at 7.378 on what is not believed, bounds of a hundredth to a hundred times of the start. In
its favour doubt goes on growing while observations are refused: else a poor start is for ever.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

CHANGE: Final = 0.05
ERROR: Final = 0.05
T_OF_ERROR: Final = 1.96
GATE: Final = 7.378
WIDEST: Final = 100.0
NUDGE: Final = 1e-3
"""Of a constant, by which slopes are found."""

Vector = Sequence[float]
Matrix = list[list[float]]
Observe = Callable[[Vector], Vector]


@dataclass(slots=True, kw_only=True)
class Filter:
    """The constants, how sure they are, and where they began."""

    state: list[float]
    covariance: Matrix
    began: tuple[float, ...]

    def update(self, observed: Vector, observe: Observe) -> bool:
        """Take two observations; tell whether they were believed."""
        prior = [row[:] for row in self.covariance]
        for index, value in enumerate(self.state):
            prior[index][index] += (CHANGE * value) ** 2
        expected, slopes = observe(self.state), self._slopes(observe)
        error = [seen - due for seen, due in zip(observed, expected, strict=True)]
        spread = _product(prior, _transpose(slopes))
        doubt = _product(slopes, spread)
        for index, seen in enumerate(observed):
            doubt[index][index] += (ERROR * seen / T_OF_ERROR) ** 2
        inverse = _inverse(doubt)
        weighed = [sum(a * b for a, b in zip(row, error, strict=True)) for row in inverse]
        if sum(a * b for a, b in zip(error, weighed, strict=True)) > GATE:
            self.covariance = prior
            return False
        gain = _product(spread, inverse)
        self.state = [
            min(WIDEST * start, max(start / WIDEST, value + _dot(row, error)))
            for start, value, row in zip(self.began, self.state, gain, strict=True)
        ]
        explained = _product(_product(gain, slopes), prior)
        self.covariance = [
            [a - b for a, b in zip(*rows, strict=True)]
            for rows in zip(prior, explained, strict=True)
        ]
        return True

    def _slopes(self, observe: Observe) -> Matrix:
        """Return how each observation changes with each constant."""
        at = observe(self.state)
        columns = []
        for index, value in enumerate(self.state):
            nudged = list(self.state)
            nudged[index] = value * (1 + NUDGE)
            found = observe(nudged)
            columns.append([(b - a) / (NUDGE * value) for a, b in zip(at, found, strict=True)])
        return _transpose(columns)


def new_filter(state: Vector) -> Filter:
    """Return a filter as unsure of its start as one step makes it."""
    covariance = [
        [(CHANGE * value) ** 2 if row == column else 0.0 for column in range(len(state))]
        for row, value in enumerate(state)
    ]
    return Filter(state=list(state), covariance=covariance, began=tuple(state))


def _dot(a: Vector, b: Vector) -> float:
    return math.fsum(x * y for x, y in zip(a, b, strict=True))


def _transpose(matrix: Matrix) -> Matrix:
    return [list(column) for column in zip(*matrix, strict=True)]


def _product(a: Matrix, b: Matrix) -> Matrix:
    columns = _transpose(b)
    return [[_dot(row, column) for column in columns] for row in a]


def _inverse(matrix: Matrix) -> Matrix:
    """Return the inverse of two by two."""
    (a, b), (c, d) = matrix
    determinant = a * d - b * c
    return [[d / determinant, -b / determinant], [-c / determinant, a / determinant]]
