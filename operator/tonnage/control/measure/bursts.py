"""The reserve for bursts that are over before a replica could be Ready, and how it fared."""

from collections.abc import Iterable
from dataclasses import replace

from tonnage.control.input.memory import DemandMemory, GoodputMemory, TrafficMemory
from tonnage.control.input.state import Fleet
from tonnage.estimate.burst_factor import FIRST, BurstTally, BurstWindow, add_window, factor_after
from tonnage.estimate.forecast import reserve, usual
from tonnage.estimate.posterior import ObjectPosterior
from tonnage.memoize import memoize
from tonnage.sizing.plan import Sizing

DEFAULT_QUANTILE = 0.95
"""Of promises, for a reserve where there are none."""


@memoize
def promised_quantile(sizing: Sizing) -> float:
    slo = sizing.request.slo
    targets: Iterable[float] = (each.quantile for each in (*slo.ttft, *slo.tpot))
    return max(targets, default=DEFAULT_QUANTILE)


def burst_share(known: DemandMemory, sizing: Sizing) -> float:
    """Return what counts of bursts tell above the usual, as a share of it; 0: too few to expect."""
    return reserve(known.history, quantile=promised_quantile(sizing))


def burst_factor(learned: ObjectPosterior) -> float:
    """Return by how much bursts are taken to be higher than counts tell."""
    return FIRST if learned.burst_factor is None else learned.burst_factor


def reserved_requests_per_s(known: DemandMemory, learned: ObjectPosterior, sizing: Sizing) -> float:
    """Return the rate to plan for bursts; 0: none."""
    share = burst_share(known, sizing)
    usually = usual(known.history) if share else None
    if usually is None:
        return 0.0
    return (1 + burst_factor(learned) * share) * usually * sizing.most_requests_per_s


def holds_burst(known: TrafficMemory, fleet: Fleet, window_s: float) -> bool:
    """Tell whether the last window of latencies has requests of a burst."""
    return known.burst_at_s is not None and fleet.now_s - known.burst_at_s <= window_s


def judge_bursts(
    known: GoodputMemory, learned: ObjectPosterior, window: BurstWindow, *, is_too_few: bool
) -> tuple[GoodputMemory, ObjectPosterior]:
    """Count what a window says of bursts, and move their factor if it says enough.

    ``is_too_few``: fewer replicas serve than the reserve asks for. What is late in a burst then
    says nothing of the reserve.
    """
    if window.is_burst and is_too_few:
        return known, learned
    tally, before = add_window(known.burst_tally, window), burst_factor(learned)
    factor = factor_after(before, tally) if window.is_burst else before
    if factor == before:
        return replace(known, burst_tally=tally), learned
    return replace(known, burst_tally=BurstTally()), replace(learned, burst_factor=factor)
