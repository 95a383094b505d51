"""Figures that a plan is asked with: they stay until what is measured has clearly left them.

A measured length differs a little in every tick, and each other question is another search. So
what was asked last is asked again while the measured figure is within 3 % of it; beyond that the
nearest on a grid of 3 % is taken, from which a figure that wavers by less than 1.5 % does not
return. Objects with like traffic so ask the same.

What that can cost: lengths of prompts or of answers that are 3 % too short give a goodput that is
1 to 3 % too high, and all of them at once, with the cached share, 4 to 6 % (8B and 70B models on
H100 and H200, 0 to 80 % cached); an efficiency that is 3 % too high, 1 to 5 %. Where few slots run,
a search says less than that: its standard error is 5 % there. Scaling down leaves 3 % for it; what
more is lost shows in promises.
"""

from functools import partial

from tonnage.estimate.lengths import MeasuredLengths
from tonnage.estimate.planning_constants import BAND
from tonnage.sizing.nearby import SEARCH_GRID_RATIO
from tonnage.sizing.workload import Workload
from tonnage.units import nearest


def has_left(value: float, asked: float) -> bool:
    """Tell whether a positive figure is out of the band around the one that was asked with."""
    return abs(value - asked) > BAND * asked


def steady(value: float, asked: float) -> float:
    """Return the figure to ask with; both are positive.

    >>> steady(4100, asked=4000)
    4000
    >>> round(steady(4200, asked=4000))
    4170
    """
    if not has_left(value, asked):
        return asked
    return nearest(value, ratio=1 + BAND)


def steady_lengths(measured: MeasuredLengths, asked: MeasuredLengths) -> MeasuredLengths:
    """Return the lengths to ask with. Of a prompt, the share that is computed is what costs."""
    was_computed = 1 - asked.cached_fraction
    computed = steady(1 - measured.cached_fraction, was_computed)
    return MeasuredLengths(
        prompt_tokens=steady(measured.prompt_tokens, asked.prompt_tokens),
        output_tokens=steady(measured.output_tokens, asked.output_tokens),
        cached_fraction=asked.cached_fraction if computed == was_computed else 1 - computed,
    )


def near_lengths(asked: MeasuredLengths, expected: MeasuredLengths) -> MeasuredLengths:
    """Return the lengths on a coarse grid around those that the spec expects."""
    near = partial(nearest, ratio=SEARCH_GRID_RATIO)
    computed = near(1 - asked.cached_fraction, origin=1 - expected.cached_fraction)
    return MeasuredLengths(
        prompt_tokens=near(asked.prompt_tokens, origin=expected.prompt_tokens),
        output_tokens=near(asked.output_tokens, origin=expected.output_tokens),
        cached_fraction=1 - min(1.0, computed),
    )


def lengths_of(workload: Workload) -> MeasuredLengths:
    """Return what the spec expects as if it were measured: the first that is asked with."""
    return MeasuredLengths(
        prompt_tokens=workload.prompt.mean_tokens,
        output_tokens=workload.output_tokens,
        cached_fraction=workload.cached_fraction,
    )
