"""What is known of one engine's speed, and of one object: values that are saved and shared.

What stands beside a field bounds it when it is read: by the constants that bound its learner.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Final, NamedTuple

from msgspec import Meta

from tonnage.estimate.headroom import Amount, Count, KeptRecord, Name, Number, Positive
from tonnage.units import HOUR_S, MINUTE_S

UpperTriangle = tuple[float, float, float, float, float, float]

WIDE_VARIANCE: Final = 0.3**2
"""Where a covariance is none: as much doubt as before anything is measured, 30 % each way."""
SHRINKAGE: Final = 1e-6
"""Of correlations, what the rounding of a text may have added to them."""

GOODPUT_FACTORS = (0.05, 1.5)
BURST_FACTORS = (1.0, 3.0)
"""Times what counts tell above the usual: a burst lasts for all gaps of a window, or for one."""
LARGEST_FACTOR = 100.0
LARGEST_EFFICIENCY = 1.5
"""Somewhat above what can be: the nominal figure of a class may be too low."""
LONGEST_START_S = 2 * HOUR_S
"""From when a node took a pod until it is Ready. What seems to take longer was no start, or two
clocks differ: the start probe of our own pods ends one that loads 1.6 TB after less."""
LONGEST_WAIT_S = 15 * MINUTE_S
"""For a node, that one wait counts for at most: where nodes are added for pods they come sooner. A
longer wait says that there was none, not how long the next one takes."""

Overhead = Annotated[float, Meta(gt=0, le=LARGEST_FACTOR)]
Efficiency = Annotated[float, Meta(gt=0, le=LARGEST_EFFICIENCY)]
GoodputFactor = Annotated[float, Meta(ge=GOODPUT_FACTORS[0], le=GOODPUT_FACTORS[1])]
BurstFactor = Annotated[float, Meta(ge=BURST_FACTORS[0], le=BURST_FACTORS[1])]
Start = Annotated[float, Meta(gt=0, le=LONGEST_START_S)]
Deviation = Annotated[float, Meta(ge=0, le=LONGEST_START_S)]
Wait = Annotated[float, Meta(ge=0, le=LONGEST_WAIT_S)]
Share = Annotated[float, Meta(ge=0, le=1)]
MOST_TARGETS = 16

Three = tuple[float, float, float]
"""Of overheads, bandwidth and prefill: in this order everywhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedPosterior:
    """Constants of the step time as a speed key has learned them, with their doubt."""

    overhead_factor: Overhead
    """Times the prior's overheads: per step, per kernel, per sequence, between GPUs."""
    bandwidth_efficiency: Efficiency
    prefill_efficiency: Efficiency
    covariance: tuple[Number, Number, Number, Number, Number, Number]
    """Of the logarithms of the three above, in this order: the upper triangle, row by row."""
    num_windows: Count = 0
    """Rate windows that it was learned from; 0: the prior."""
    num_steps: Amount = 0.0
    """Engine steps in them."""
    surprise: Number = 0.0
    """Mean of recent standardized innovations, signed: far from 0 the regime has changed."""
    misfit: Amount = 0.0
    """Deviation of recent windows that no constants explain: those kept changing."""
    regime_at_s: Amount = 0.0
    """Unix time at which the engine was last taken to have changed."""
    learned_at_s: Amount = 0.0
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

    kv_tokens: Positive
    """In requests of the maximum length, as engines since 0.24 count them and plans do."""
    reported_at_s: Amount = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """Steps of the factor, until more replicas have shown whether they help."""

    target: Name
    late_share: Share
    """Of the requests, before the first step."""
    replicas: Count
    """Before the last one."""
    requests_per_s_each: Positive
    """Before the first one, like the factor."""
    factor: GoodputFactor


class Unmended(NamedTuple):
    """The share of requests that more replicas did not mend."""

    target: Name
    most: Share
    """As trials have shown."""
    share: Share
    """As seen of late."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectPosterior:
    """What belongs to one ModelDeployment alone."""

    goodput_factor: GoodputFactor = 1.0
    """Learned from SLO attainment: multiplies the goodput that the step time allows."""
    num_judged: Amount = 0.0
    """Requests that the factor was learned from."""
    judged_at_s: Amount = 0.0
    """When the factor was last moved."""
    trial: Trial | None = None
    unmended: Annotated[tuple[Unmended, ...], Meta(max_length=MOST_TARGETS)] = ()
    kept_load: Amount = 0.0
    """The highest load, of what the step time allows, at which targets were met; fades in a day."""
    burst_factor: BurstFactor | None = None
    """Learned from late requests in bursts: multiplies the burst reserve that counts suggest."""
    cold_start_s: Start | None = None
    """Mean time from scheduled to Ready, of its own pods and of the expected start."""
    cold_start_deviation_s: Deviation = 0.0
    """Standard deviation of that."""
    node_wait_s: Wait = 0.0
    """Mean for which its own pods waited for a node before."""
    num_starts: Count = 0
    memory_key: Name = ""
    """That the report below is about."""
    kv_tokens: Positive | None = None
    """What its own engines say of their pool: the truth for this object."""
    slots_moved_at_s: Amount | None = None
    """When its engines were last replaced for better flags of a batch."""
    planned_split: Name | None = None
    """That it was last planned with while nothing ran or was made, and for which spec."""
    demand: KeptRecord | None = None
    """How forecasts and plans of its demand fared; None: not known."""


LARGEST_START = 3.0
"""Times the mean, that one more start counts for at most."""
START_GAIN = 0.3
"""Of a start that differs from those before, once there are some."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodStart:
    """How one pod came to be Ready, by times of two clocks: the API server's and its node's."""

    waited_s: float
    """From its creation until a node took it."""
    took_s: float
    """From then until it was Ready."""


def with_starts(
    known: ObjectPosterior, starts: Iterable[PodStart], *, expected_s: float
) -> ObjectPosterior:
    """Return what is known with more starts; one that no clock can have told teaches nothing.

    ``expected_s``: of a start, before there was any. It counts as much as the first.
    """
    expected_s = min(expected_s, LONGEST_START_S)
    for each in starts:
        if not 0 < each.took_s <= LONGEST_START_S:
            continue
        mean_s = expected_s if known.cold_start_s is None else known.cold_start_s
        more_s = min(each.took_s, LARGEST_START * mean_s) - mean_s
        waited_s = min(max(each.waited_s, 0.0), LONGEST_WAIT_S)
        gain = max(START_GAIN, 1 / (known.num_starts + 2))
        variance = (1 - gain) * (known.cold_start_deviation_s**2 + gain * more_s**2)
        known = replace(
            known,
            cold_start_s=mean_s + gain * more_s,
            cold_start_deviation_s=math.sqrt(variance),
            node_wait_s=known.node_wait_s + gain * (waited_s - known.node_wait_s),
            num_starts=known.num_starts + 1,
        )
    return known


def not_to_come(known: ObjectPosterior, now_s: float) -> ObjectPosterior:
    """Return what is known, without a rollout or a step of a time that is still to come.

    The clock that stamped it was ahead, and what follows would wait for as long.
    """
    moved_at_s = known.slots_moved_at_s
    return replace(
        known,
        slots_moved_at_s=None if moved_at_s is None else min(moved_at_s, now_s),
        judged_at_s=min(known.judged_at_s, now_s),
    )


def repair(entries: Sequence[float]) -> tuple[UpperTriangle, bool]:
    """Return a positive semi-definite matrix, and whether the given one was it.

    What rounding made indefinite gets correlations that are a millionth weaker. Of anything else
    only the variances are believed, and none below ``WIDE_VARIANCE``.

    >>> repair([0.04, 0.05, 0, 0.04, 0, 0.01])
    ((0.09, 0.0, 0.0, 0.09, 0.0, 0.09), False)
    """
    a, b, c, d, e, f = entries
    if is_positive_semidefinite((a, b, c, d, e, f)):
        return (a, b, c, d, e, f), True
    kept = 1 - SHRINKAGE
    shrunk = (a, kept * b, kept * c, d, kept * e, f)
    if is_positive_semidefinite(shrunk):
        return shrunk, True
    wide = [max(variance, WIDE_VARIANCE) for variance in (a, d, f)]
    return (wide[0], 0.0, 0.0, wide[1], 0.0, wide[2]), False


def is_positive_semidefinite(matrix: UpperTriangle) -> bool:
    """Tell whether all principal minors of the matrix of correlations are at least 0.

    >>> is_positive_semidefinite((1, 0.5, 0, 1, 0, 1)), is_positive_semidefinite((1, 2, 0, 1, 0, 1))
    (True, False)
    """
    a, b, c, d, e, f = matrix
    if min(a, d, f) < 0:
        return False
    pairs = [(b, a, d), (c, a, f), (e, d, f)]
    if any(shared and not first * second for shared, first, second in pairs):
        return False  # what does not vary at all varies with nothing
    r, s, t = (
        shared / math.sqrt(first) / math.sqrt(second) if shared else 0.0
        for shared, first, second in pairs
    )
    is_each_pair = max(abs(r), abs(s), abs(t)) <= 1
    return is_each_pair and 1 + 2 * r * s * t - r * r - s * s - t * t >= 0
