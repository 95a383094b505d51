"""How a number of requests fluctuates about its mean, up to the places that there are."""

import math
from dataclasses import dataclass
from typing import NamedTuple

from tonnage.sizing.tails import Moments, normal_density, normal_exceedance

SMALL = 150
"""Places up to which states are added up one by one; beyond, a count is nearly normal."""
NEGLIGIBLE = 1e-6
FAR = 6.0
"""Standard deviations above the mean beyond which places might as well be without end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Crowd:
    """A number of requests of which only so many have a place at once."""

    below: Moments
    """While a place is free."""
    full: float = 0.0
    """Share of the time in which none is."""
    places: float = math.inf

    @property
    def overall(self) -> Moments:
        if self.full == 0:
            return self.below
        return self.below.mixed(Moments(mean=self.places), self.full)


def crowd(*, mean: float, dispersion: float, places: float, stay: float) -> Crowd:
    """Return the crowd of a queue whose number, with places for all, has these moments.

    ``dispersion``: variance over mean. ``stay``: the ratio of the probabilities of one more and one
    fewer waiting. Below the number of places the distribution is the one of the Bernoulli-Poisson-
    Pascal family with these moments::

        P(k) / P(k - 1) = (mean / dispersion + (1 - 1 / dispersion) * (k - 1)) / k

    which is exact for Poisson arrivals where each request slows the others down linearly, and
    Erlang's for dispersion 1. Numbers more even than chance have a highest one (Binomial).

    Sources:
        [wilkinson1956] peaked traffic as a Pascal distribution; [halfin1981] many places.
    """
    deviation = math.sqrt(mean * dispersion)
    if mean == 0 or places > mean + FAR * (deviation + dispersion):
        return Crowd(below=unbounded(mean, dispersion))
    above = 1 / (1 - stay)
    if places > SMALL:
        return _many(mean, deviation, places, above)
    return _few(mean, dispersion, places, above)


def unbounded(mean: float, dispersion: float) -> Moments:
    """Return the moments where places are without end: those of a Pascal distribution."""
    variance = mean * dispersion
    return Moments(mean=mean, variance=variance, third=variance * max(0.0, 2 * dispersion - 1))


def _few(mean: float, dispersion: float, places: float, above: float) -> Crowd:
    # From the highest state down, relative to its probability. Places are between two numbers.
    whole = max(1, math.floor(places))
    base, more = mean / dispersion, 1 - 1 / dispersion
    total = first = second = third = 0.0
    highest = whole + 1 if base + more * whole > 0 else math.ceil(-base / more)
    beyond = float(highest > whole)
    weight, top = 1.0, 0.0
    for k in range(min(whole, highest), -1, -1):
        births = base + more * k
        weight *= (k + 1) / births if births > 0 else 1.0
        if k == whole:
            top = weight
        total += weight
        first += weight * k
        second += weight * k * k
        third += weight * k * k * k
        if k < mean and weight < NEGLIGIBLE * total:
            break
    more_places = _crowd_of(_Sums(total, first, second, third), above * beyond, whole + 1)
    sums = _Sums(total - top, first - top * whole, second - top * whole**2, third - top * whole**3)
    fewer_places = _crowd_of(sums, top * above, whole)
    share = min(1.0, max(0.0, places - whole))
    return Crowd(
        below=fewer_places.below.mixed(more_places.below, share),
        full=(1 - share) * fewer_places.full + share * more_places.full,
        places=places,
    )


class _Sums(NamedTuple):
    """Of the weights of states, and of these times the powers of their number."""

    total: float
    first: float
    second: float
    third: float


def _crowd_of(sums: _Sums, full: float, places: int) -> Crowd:
    total = sums.total
    if total <= NEGLIGIBLE * full:
        return Crowd(below=Moments(mean=places), full=1.0, places=places)
    m1, m2, m3 = sums.first / total, sums.second / total, sums.third / total
    below = Moments(mean=m1, variance=max(0.0, m2 - m1**2), third=m3 - 3 * m1 * m2 + 2 * m1**3)
    return Crowd(below=below, full=full / (full + total), places=places)


def _many(mean: float, deviation: float, places: float, above: float) -> Crowd:
    distance = (places - mean) / deviation
    density, share = normal_density(distance), 1 - normal_exceedance(distance)
    if share < NEGLIGIBLE:
        return Crowd(below=Moments(mean=places), full=1.0, places=places)
    waiting = density / deviation * above
    m1 = -density / share
    m2 = 1 - distance * density / share
    m3 = -(distance**2 + 2) * density / share
    normal = Moments(mean=m1, variance=max(0.0, m2 - m1**2), third=m3 - 3 * m1 * m2 + 2 * m1**3)
    scaled = normal.times(deviation)
    below = Moments(mean=max(0.0, mean + scaled.mean), variance=scaled.variance, third=scaled.third)
    return Crowd(below=below, full=waiting / (waiting + share), places=places)
