"""Tails of distributions of which only the first three moments are known."""

import math
from dataclasses import dataclass
from statistics import NormalDist

SQRT_2 = math.sqrt(2)
SQRT_2_PI = math.sqrt(2 * math.pi)
NODES = tuple((z / 4, math.exp(-((z / 4) ** 2) / 2)) for z in range(-14, 15))
"""Deviates of a normal variable, and how much each counts."""
NORMAL = NormalDist()
RARE = 1e-6
PRECISE = 1e-7
MANY = 40
"""Shape of a gamma distribution beyond which its series is long."""
SYMMETRIC = 1e-3
"""Skewness below which a distribution is as good as normal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Moments:
    """Mean, variance and third central moment. All three add up for independent summands."""

    mean: float = 0.0
    variance: float = 0.0
    third: float = 0.0

    @property
    def skewness(self) -> float:
        return self.third / self.variance**1.5 if self.variance > 0 else 0.0

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

    def repeated(self, number: float) -> "Moments":
        """Return the moments of a sum of so many such values, independent of one another."""
        return Moments(
            mean=number * self.mean, variance=number * self.variance, third=number * self.third
        )

    def widened(self, variance: float) -> "Moments":
        """Return the moments with so much more variance, as skewed as before."""
        if self.variance <= 0:
            return self
        wider = max(0.0, 1 + variance / self.variance)
        return Moments(
            mean=self.mean, variance=wider * self.variance, third=wider**1.5 * self.third
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

    def without(self, part: "Moments", share: float) -> "Moments":
        """Return the moments of the other cases of a value that is so distributed in this share."""
        rest = 1 - share
        raw = zip(self._raw, part._raw, strict=True)
        return Moments.of_raw(*((whole - share * other) / rest for whole, other in raw))

    @classmethod
    def of_raw(cls, first: float, second: float, third: float) -> "Moments":
        """Return the moments of a value of which these are the mean powers."""
        return cls(
            mean=first,
            variance=max(0.0, second - first**2),
            third=third - 3 * first * second + 2 * first**3,
        )

    @property
    def _raw(self) -> tuple[float, float, float]:
        second = self.variance + self.mean**2
        return self.mean, second, self.third + 3 * self.mean * self.variance + self.mean**3

    def given_positive(self, share: float) -> "Moments":
        """Return the moments of a value that is zero except in this share of the cases."""
        return Moments.of_raw(*(power / share for power in self._raw))

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


def gamma_share(shape: float, value: float) -> float:
    """Return P(X < value) of a gamma variable of scale 1: its series, or nearly normal roots.

    Sources:
        [wilson1931] the cube root of a gamma variable is nearly normal.
    """
    if value <= 0:
        return 0.0
    if shape > MANY:
        root = math.cbrt(value / shape) - 1 + 1 / (9 * shape)
        return normal_exceedance(-3 * math.sqrt(shape) * root)
    if value > shape + 8 * math.sqrt(shape) + 12:
        return 1.0
    term = total = math.exp(shape * math.log(value) - value - math.lgamma(1 + shape))
    number = shape
    while term > PRECISE * total:
        number += 1
        term *= value / number
        total += term
    return min(1.0, total)


def capped_gamma(skew: float, beyond: float) -> Moments:
    """Return the moments of ``min(X, x)``, where ``P(X > x)`` is ``beyond``.

    X is a gamma variable of variance 1 and this skewness, shifted to mean 0.
    """
    skew = max(SYMMETRIC, skew)
    edge = NORMAL.inv_cdf(1 - min(1 - RARE, max(RARE, beyond)))
    total = first = second = third = 0.0
    for deviate, weight in NODES:
        value = (skew * min(edge, deviate) / 6 - skew**2 / 36 + 1) ** 3 * 2 / skew - 2 / skew
        total += weight
        first += weight * value
        second += weight * value**2
        third += weight * value**3
    return Moments.of_raw(first / total, second / total, third / total)


def normal_exceedance(distance: float) -> float:
    """Return P(Z > distance) of a standard normal variable.

    >>> round(normal_exceedance(1.96), 3)
    0.025
    """
    return math.erfc(distance / SQRT_2) / 2


def normal_density(distance: float) -> float:
    """Return the density of a standard normal variable."""
    return math.exp(-distance * distance / 2) / SQRT_2_PI
