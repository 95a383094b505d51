"""What is known of one engine's speed, and of one object: values that are kept and shared."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from tonnage.estimate.kept_history import KeptHistory

COVARIANCES = 6

Three = tuple[float, float, float]
"""Of overheads, bandwidth and prefill: in this order everywhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedPosterior:
    """Constants of the step time as a speed key has learned them, with their doubt."""

    overhead_factor: float
    """Times the prior's overheads: per step, per kernel, per sequence, between GPUs."""
    bandwidth_efficiency: float
    prefill_efficiency: float
    covariance: tuple[float, float, float, float, float, float]
    """Of the logarithms of the three above, in this order: the upper triangle, row by row."""
    num_windows: int = 0
    """Rate windows that it stands on; 0: the prior."""
    num_steps: float = 0.0
    """Engine steps in them."""
    surprise: float = 0.0
    """Mean of recent standardized innovations, signed: far from 0 the regime has changed."""
    misfit: float = 0.0
    """Deviation of recent windows that no constants explain: those kept changing."""
    regime_at_s: float = 0.0
    """Unix time at which the engine was last taken to have changed."""
    learned_at_s: float = 0.0
    """Unix time of the last window that was taken in."""

    @property
    def constants(self) -> Three:
        """The overhead factor, the bandwidth efficiency and the prefill efficiency."""
        return self.overhead_factor, self.bandwidth_efficiency, self.prefill_efficiency

    @property
    def variances(self) -> Three:
        """Of the logarithms of the constants."""
        overhead, _, _, bandwidth, _, prefill = self.covariance
        return overhead, bandwidth, prefill


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryReport:
    """KV tokens of one data-parallel rank, as engines under one memory key reported them."""

    kv_tokens: float
    """In requests of the maximum length, as engines since 0.24 count them and plans do."""
    reported_at_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectPosterior:
    """What belongs to one ModelDeployment alone."""

    goodput_factor: float = 1.0
    """What kept and broken promises say beside the step time: times its goodput."""
    num_judged: float = 0.0
    """Requests that the factor stands on."""
    judged_at_s: float = 0.0
    burst_factor: float | None = None
    """What was late in bursts says of these: times what counts tell above the usual."""
    cold_start_s: float | None = None
    """Mean from created to Ready of its own pods."""
    cold_start_deviation_s: float = 0.0
    """Standard deviation of that."""
    num_starts: int = 0
    memory_key: str = ""
    """That the report below is about."""
    kv_tokens: float | None = None
    """What its own engines say of their pool: the truth for this object."""
    slots_moved_at_s: float | None = None
    """When its engines were last replaced for better flags of a batch."""
    demand: KeptHistory | None = None
    """When last kept; None: nothing that the last value does not tell."""


LARGEST_START = 3.0
"""Times the mean, that one more start counts for at most."""
START_GAIN = 0.3
"""Of a start that differs from those before, once there are some."""


def with_starts(known: ObjectPosterior, starts_s: Iterable[float]) -> ObjectPosterior:
    """Return what is known with more pods that became Ready so long after they were created."""
    for told_s in starts_s:
        mean_s, number = known.cold_start_s, known.num_starts + 1
        start_s = told_s if mean_s is None else min(told_s, LARGEST_START * mean_s)
        before_s = start_s if mean_s is None else mean_s
        gain = max(START_GAIN, 1 / number)
        variance = (1 - gain) * (known.cold_start_deviation_s**2 + gain * (start_s - before_s) ** 2)
        known = replace(
            known,
            cold_start_s=before_s + gain * (start_s - before_s),
            cold_start_deviation_s=math.sqrt(variance),
            num_starts=number,
        )
    return known


def not_to_come(known: ObjectPosterior, now_s: float) -> ObjectPosterior:
    """Return what is known, without a rollout of a time that is still to come.

    The clock that told it was ahead, and the next rollout would wait for as long.
    """
    moved_at_s = known.slots_moved_at_s
    if moved_at_s is None or moved_at_s <= now_s:
        return known
    return replace(known, slots_moved_at_s=now_s)
