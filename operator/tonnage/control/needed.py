"""What was needed of late: the window that scaling down looks at."""

import math
from dataclasses import replace

from tonnage.control.state import Assessment, Fleet, ObjectMemory
from tonnage.estimate.belief import BAND, Belief
from tonnage.policy.situation import Metrics, Need

GAP_TICKS = 4
"""Without a tick for so many intervals, the window is not known to be quiet. Intervals are as long
as the last ones were: a fleet whose ticks are slow is watched as well as it can be."""


def remember_need(
    found: Assessment, held: Belief, wanted: Need, fleet: Fleet, hold_s: float
) -> ObjectMemory:
    """Add this moment to the window that scaling down looks at: what a later one tops is left out.

    A need that stands on missing data proves nothing: what is there counts as needed. The window
    begins with the first decision, however late that comes, and anew after a gap without ticks.
    """
    memory, settings = in_steps_of(found.memory, held), fleet.settings
    recent = memory.recent_needs
    if not recent or fleet.now_s - recent[-1][0] > GAP_TICKS * max(settings.tick_s, fleet.pace_s):
        memory, recent = replace(memory, since_s=fleet.now_s), ()
    needed = wanted.replicas_with_margin
    if found.traffics.metrics is not Metrics.COMPLETE and found.state.deployment:
        needed = max(needed, found.state.deployment.replicas)
    kept = [each for each in recent if fleet.now_s - each[0] < hold_s and each[1] > needed]
    return replace(memory, recent_needs=(*kept, (fleet.now_s, needed)))


def in_steps_of(memory: ObjectMemory, held: Belief) -> ObjectMemory:
    """Tell earlier needs in engines as fast as these are known to be by now.

    Replicas are held because demand may come back. A belief that engines are slow does not: what
    took N of these takes at most as many times N as a step takes less. Where they turn out slower,
    needs are told in the fastest that they were believed to be.
    """
    now, before = held.asked, memory.needs_told_with
    if before is None or before.key != now.key:
        return replace(memory, needs_told_with=now)
    ratio = now.step_ratio_to(before)
    if ratio > 1 - BAND:
        return memory
    needs = tuple((at_s, math.ceil(ratio * each)) for at_s, each in memory.recent_needs)
    return replace(memory, recent_needs=needs, needs_told_with=now)
