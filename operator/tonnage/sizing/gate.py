"""Prompts that are served by the step: all that came during one are in the next.

Each waits for the rest of the step that it came in, and for the end of all that come with it.
"""

import math
from collections.abc import Sequence

from tonnage.sizing.stream import WorkStream
from tonnage.sizing.tails import Moments

FEW = 1.5
"""Prompts of a mean step up to which each number of them is followed."""
ROUNDS = 5
FAR = 5.0
"""Standard deviations of a number of prompts beyond which it does not occur."""


def rest_of_step(step_s: float) -> Moments:
    """Return the moments of what is left of a step at any moment."""
    return Moments(mean=step_s / 2, variance=step_s**2 / 12)


def quiet_share(work: WorkStream, step_s: float) -> float:
    """Return the share of prompts that meet no other: none just before, and none just after.

    Before: within their steps and the rest of the one that they came in.
    """
    before_s = 1.5 * step_s + work.mean_s
    return (1 - work.gap_within(before_s)) * (1 - work.gap_within(step_s / 2))


def gated_wait(work: WorkStream, step_s: float, evened: float = 0.0) -> Moments:
    """Return the wait of the prompts that meet others, beyond their own work and one step.

    A step lasts ``X = step + work that came in the last one``, so that with ``m2`` and ``m3`` the
    second and third moment of that work per second::

        E[X] = step / (1 - rho)
        Var[X] = m2 * E[X] / (1 - rho^2)
        third central moment = (m3 * E[X] + 3 * m2 * rho * Var[X]) / (1 - rho^3)

    A prompt comes at any moment of a step Y that is long as often as it is long; it waits for the
    rest of Y and for the work S that comes in Y. Prompts of its own burst come with it, or are
    what Y serves. ``evened``: of the prompts, the share that a router does not send to an engine
    in a long step, so that Y is any step and S does not depend on it.

    Sources:
        [takagi1986] the cycles of a gated queue with one station.
    """
    quiet = quiet_share(work, step_s)
    alone = rest_of_step(step_s)
    if work.followers:
        near = work.near(step_s / (1 - work.share) + work.mean_s)
        mates = near.burst(near.followers)
        met = _chance_wait(near, step_s) + mates + mates + rest_of_step(work.mean_s)
    else:
        met = _chance_wait(work, step_s).without(alone, quiet)
    if evened:
        met = met.mixed(_evened_wait(work, step_s).without(alone, quiet), evened)
    return met


def _chance_wait(work: WorkStream, step_s: float) -> Moments:
    """Return the rest of a step that is met by chance, and the work that comes in it."""
    rho, m2, m3 = work.share, work.second_per_s, work.third_per_s
    mean = step_s / (1 - rho)
    variance = m2 * mean / (1 - rho**2)
    third = (m3 * mean + 3 * m2 * rho * variance) / (1 - rho**3)
    y1, y2, y3 = _raw_moments_by_length(mean, variance, third)
    first = y1 * (1 / 2 + rho)
    second = y2 * (1 / 3 + rho + rho**2) + m2 * y1
    raw = y3 * (1 / 4 + rho + 1.5 * rho**2 + rho**3) + y2 * m2 * (1.5 + 3 * rho) + m3 * y1
    return Moments.of_raw(first, second, raw)


def _raw_moments_by_length(
    mean: float, variance: float, third: float
) -> tuple[float, float, float]:
    """Return the raw moments of a gamma variable that is met the more often the longer it is."""
    fourth = 1.5 * third**2 / variance + 3 * variance**2
    second = variance + mean**2
    return (
        second / mean,
        (third + 3 * mean * variance + mean**3) / mean,
        (fourth + 4 * mean * third + 6 * mean**2 * variance + mean**4) / mean,
    )


def _evened_wait(work: WorkStream, step_s: float) -> Moments:
    """Return the rest of any step, and the work that comes in any other."""
    mean = step_s / (1 - work.share)
    come = Moments(
        mean=work.share * mean, variance=work.second_per_s * mean, third=work.third_per_s * mean
    )
    second = come.variance + mean**2
    third = come.third + 3 * mean * come.variance + mean**3
    return Moments.of_raw(mean / 2, second / 3, third / 4) + come


def are_few(work: WorkStream, step_s: float) -> bool:
    """Tell whether a mean step serves so few prompts that each number of them stands out."""
    return work.jobs_per_s * step_s / (1 - work.share) < FEW


def alike_exceedance(work: WorkStream, step_s: float, spare_s: float) -> float:
    """Return P(wait > spare) of prompts of one length that come by chance, few to a step.

    The number in a step decides how many come in it. Of all moments in a step with k of them, and
    m others that come in it, those are late that have more than ``spare - m * work`` left of it.
    """
    mean = work.jobs_per_s * step_s / (1 - work.share)
    counts = range(math.ceil(mean + FAR * math.sqrt(mean)) + 3)
    lasts_s = [step_s + count * work.mean_s for count in counts]
    come = [_poisson(work.jobs_per_s * last_s, counts) for last_s in lasts_s]
    found = _poisson(mean, counts)
    for _ in range(ROUNDS):
        found = [
            sum(share * row[count] for share, row in zip(found, come, strict=True))
            for count in counts
        ]
    total_s = sum(share * last_s for share, last_s in zip(found, lasts_s, strict=True))
    late_s = sum(
        share * chance * min(last_s, max(0.0, last_s - spare_s + others * work.mean_s))
        for share, last_s, row in zip(found, lasts_s, come, strict=True)
        for others, chance in enumerate(row)
    )
    return late_s / total_s


def _poisson(mean: float, counts: Sequence[int]) -> list[float]:
    found = [math.exp(-mean)]
    for count in counts[1:]:
        found.append(found[-1] * mean / count)
    return found
