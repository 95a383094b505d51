"""Random numbers that are the same on every machine, compiled or not (xorshift64*)."""

import math
from array import array

MASK = (1 << 64) - 1
MULTIPLIER = 0x2545F4914F6CDD1D
SEED = 0x9E3779B97F4A7C15
SHARE = 1.0 / (1 << 53)


class Chance:
    """A stream of uniform shares, and what is made of them.

    Sources:
        [marsaglia2000] gamma variates by rejection, and the boost of shapes below 1.
    """

    def __init__(self, seed: int, skipped: int = 1) -> None:
        self.bits = (SEED * (2 * seed + 1)) & MASK
        for _ in range(skipped):
            self.share()

    def share(self) -> float:
        """Return a number from 0 up to, not including, 1."""
        bits = self.bits
        bits ^= bits >> 12
        bits ^= (bits << 25) & MASK
        bits ^= bits >> 27
        self.bits = bits
        bits = (bits * MULTIPLIER) & MASK
        return (bits >> 11) * SHARE

    def shares(self, count: int) -> "array[float]":
        """Return so many independent shares."""
        found = array("d", bytes(8 * count))
        view = found
        for index in range(count):
            view[index] = self.share()
        return found

    def even_shares(self, count: int) -> "array[float]":
        """Return one share from each of as many slices of equal width, in random order.

        The moments of a long-tailed distribution are then those of the sample, which those of
        independent draws are far from.
        """
        found = array("d", bytes(8 * count))
        view = found
        for index in range(count):
            view[index] = (index + self.share()) / count
        for index in range(count - 1, 0, -1):
            other = int(self.share() * (index + 1))
            view[index], view[other] = view[other], view[index]
        return found

    def gamma_gaps(self, count: int, shape: float) -> "array[float]":
        """Return times between arrivals of mean 1 and squared variation ``1 / shape``.

        A shape of 1 is a Poisson process. Beside it, by rejection.
        """
        found = array("d", bytes(8 * count))
        view = found
        for index in range(count):
            if shape == 1.0:
                view[index] = -math.log(1.0 - self.share())
            else:
                view[index] = self._gamma(shape) / shape
        return found

    def _gamma(self, shape: float) -> float:
        boost: float = 1.0
        if shape < 1.0:
            boost = (1.0 - self.share()) ** (1.0 / shape)
            shape += 1.0
        d = shape - 1.0 / 3.0
        c: float = 1.0 / math.sqrt(9.0 * d)
        while True:
            x = self._normal()
            v = 1.0 + c * x
            if v <= 0.0:
                continue
            v = v * v * v
            if math.log(1.0 - self.share()) < 0.5 * x * x + d - d * v + d * math.log(v):
                return d * v * boost

    def _normal(self) -> float:
        """Return a standard normal number, by the polar method."""
        while True:
            x, y = 2.0 * self.share() - 1.0, 2.0 * self.share() - 1.0
            square = x * x + y * y
            if 0.0 < square < 1.0:
                scale: float = math.sqrt(-2.0 * math.log(square) / square)
                return x * scale


def lognormal(normals: "array[float]", mean: float, sigma: float, longest: float) -> "array[int]":
    """Return whole lengths of 1 to ``longest`` with this mean, from standard normal numbers."""
    found = array("q", bytes(8 * len(normals)))
    view, known = found, normals
    for index in range(len(known)):
        length = mean * math.exp(sigma * known[index] - sigma * sigma / 2)
        view[index] = int(max(1.0, min(longest, length)) + 0.5)
    return found


def lengths(values: "array[float]", mean: float, longest: float) -> "array[int]":
    """Return whole lengths of 1 to ``longest``: a mean times each value."""
    found = array("q", bytes(8 * len(values)))
    view, known = found, values
    for index in range(len(known)):
        view[index] = int(max(1.0, min(longest, mean * known[index])) + 0.5)
    return found


def cut(lengths: "array[int]", taken: "array[int]", most: int) -> "array[int]":
    """Return each length, or what is left of ``most`` where that is less."""
    found = array("q", lengths)
    view, others = found, taken
    for index in range(len(view)):
        view[index] = min(view[index], most - others[index])
    return found


def parts(lengths: "array[int]", share: float) -> "array[int]":
    """Return the whole part of each length that is nearest to a share: one is always left."""
    found = array("q", bytes(8 * len(lengths)))
    if share > 0:
        view, known = found, lengths
        for index in range(len(known)):
            view[index] = min(known[index] - 1, int(known[index] * share + 0.5))
    return found


def exponentials(shares: "array[float]") -> "array[float]":
    """Return exponential numbers of mean 1 from uniform shares."""
    found = array("d", shares)
    view = found
    for index in range(len(view)):
        view[index] = -math.log1p(-view[index])
    return found


def passed(gaps: "array[float]") -> "array[float]":
    """Return the times after each of these gaps, in mean gaps."""
    found, total = array("d", gaps), 0.0
    view = found
    for index in range(len(view)):
        total += view[index]
        view[index] = total
    return scaled(found, len(view) / total)


def scaled(values: "array[float]", factor: float) -> "array[float]":
    """Return all values times a factor."""
    found = array("d", values)
    view = found
    for index in range(len(view)):
        view[index] *= factor
    return found
