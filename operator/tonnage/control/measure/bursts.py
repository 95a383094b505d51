"""The reserve for bursts that are over before a replica could be Ready, and how it fared."""

from collections.abc import Iterable

from tonnage.control.input.state import Chosen, Fleet, ObjectMemory
from tonnage.estimate.burst_factor import FIRST, BurstTally, BurstWindow, factor_after, tallied
from tonnage.estimate.forecast import reserve, usual
from tonnage.sizing.plan import Sizing
from tonnage.values import replace

DEFAULT_QUANTILE = 0.95
"""Of promises, for a reserve where there are none."""


def promised_quantile(sizing: Sizing) -> float:
    slo = sizing.request.slo
    targets: Iterable[float] = (each.quantile for each in (*slo.ttft, *slo.tpot))
    return max(targets, default=DEFAULT_QUANTILE)


def burst_share(memory: ObjectMemory, sizing: Sizing) -> float:
    """Return what counts of bursts tell above the usual, as a share of it; 0: too few to expect."""
    return reserve(memory.history, quantile=promised_quantile(sizing))


def burst_factor(memory: ObjectMemory) -> float:
    """Return by how much bursts are taken to be higher than counts tell."""
    known = memory.posterior.burst_factor
    return FIRST if known is None else known


def reserved_requests_per_s(memory: ObjectMemory, sizing: Sizing) -> float:
    """Return the rate to plan for bursts; 0: none."""
    share, usually = burst_share(memory, sizing), usual(memory.history)
    if not share or usually is None:
        return 0.0
    return (1 + burst_factor(memory) * share) * usually * sizing.most_requests_per_s


def holds_burst(memory: ObjectMemory, fleet: Fleet, window_s: float) -> bool:
    """Tell whether the last window of latencies has requests of a burst."""
    return memory.burst_at_s is not None and fleet.now_s - memory.burst_at_s <= window_s


def judge_bursts(
    memory: ObjectMemory, chosen: Chosen, window: BurstWindow, *, serving: int
) -> ObjectMemory:
    """Count what a window says of bursts, and move their factor if it says enough.

    What is late where fewer replicas serve than the reserve asks for says nothing of the reserve.
    """
    wanted = chosen.capacity.replicas(reserved_requests_per_s(memory, chosen.sizing))
    if window.is_burst and serving < wanted:
        return memory
    tally = tallied(memory.burst_tally, window)
    memory, before = replace(memory, burst_tally=tally), burst_factor(memory)
    factor = factor_after(before, tally) if window.is_burst else before
    if factor == before:
        return memory
    posterior = replace(memory.posterior, burst_factor=factor)
    return replace(memory, posterior=posterior, burst_tally=BurstTally())
