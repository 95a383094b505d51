"""Tails of distributions of which only the first three moments are known."""

import math
from dataclasses import dataclass

SQRT_2 = math.sqrt(2)
SQRT_2_PI = math.sqrt(2 * math.pi)
SYMMETRIC = 1e-3
"""Skewness below which a distribution is as good as normal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Moments:
    """Mean, variance and third central moment. All three add up for independent summands."""

    mean: float = 0.0
    variance: float = 0.0
    third: float = 0.0

    def __add__(self, other: "Moments") -> "Moments":
        return Moments(
            mean=self.mean + other.mean,
            variance=self.variance + other.variance,
            third=self.third + other.third,
        )

    def times(self, factor: float) -> "Moments":
        """Return the moments of so many times the value."""
        return Moments(
            mean=factor * self.mean,
            variance=factor**2 * self.variance,
            third=factor**3 * self.third,
        )

    def mixed(self, other: "Moments", share: float) -> "Moments":
        """Return the moments of a value that is the other one in this share of the cases."""
        mean = (1 - share) * self.mean + share * other.mean
        variance = third = 0.0
        for weight, part in ((1 - share, self), (share, other)):
            off = part.mean - mean
            variance += weight * (part.variance + off**2)
            third += weight * (part.third + 3 * off * part.variance + off**3)
        return Moments(mean=mean, variance=variance, third=third)

    def given_positive(self, share: float) -> "Moments":
        """Return the moments of a value that is zero except in this share of the cases."""
        first = self.mean / share
        second = (self.variance + self.mean**2) / share
        third = (self.third + 3 * self.mean * self.variance + self.mean**3) / share
        return Moments(
            mean=first,
            variance=max(0.0, second - first**2),
            third=third - 3 * first * second + 2 * first**3,
        )

    def exceedance(self, value: float) -> float:
        """Return P(X > value) of the shifted gamma distribution (Pearson III) with these moments.

        Sources:
            [wilson1931] the cube root of a gamma variable is nearly normal.
        """
        if self.variance <= 0:
            return 1.0 if self.mean > value else 0.0
        deviation = math.sqrt(self.variance)
        distance = (value - self.mean) / deviation
        skew = self.third / (self.variance * deviation)
        if abs(skew) < SYMMETRIC:
            return normal_exceedance(distance)
        if skew < 0:
            return 1 - _gamma_exceedance(-distance, -skew)
        return _gamma_exceedance(distance, skew)


def _gamma_exceedance(distance: float, skew: float) -> float:
    root = 1 + skew * distance / 2
    if root <= 0:
        return 1.0
    return normal_exceedance(6 / skew * (math.cbrt(root) - 1) + skew / 6)


def normal_exceedance(distance: float) -> float:
    """Return P(Z > distance) of a standard normal variable.

    >>> round(normal_exceedance(1.96), 3)
    0.025
    """
    return math.erfc(distance / SQRT_2) / 2


def normal_density(distance: float) -> float:
    """Return the density of a standard normal variable."""
    return math.exp(-distance * distance / 2) / SQRT_2_PI
