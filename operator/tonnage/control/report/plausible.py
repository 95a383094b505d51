"""Whether engines are no faster than they can be, and which pod is slower than the others."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from statistics import median
from typing import Final

from tonnage.api.status import Reason
from tonnage.control.input.finding import Finding, is_false, said_before
from tonnage.control.input.memory import PodSpeed
from tonnage.control.input.state import Assessment, Fleet
from tonnage.control.measure.causes import SLOW_POD, slowest
from tonnage.estimate.learner import BAND
from tonnage.estimate.planning_constants import Belief

TYPE: Final = "SpeedPlausible"
SMOOTHING: Final = 0.3
"""Weight of the last look."""
KEPT_S: Final = 900.0
"""For so long a pod that is not busy any more is still judged by what it did."""
MIN_WINDOWS: Final = 2
"""Looks at which a pod was busy, before it is judged."""
BACK: Final = 0.7
"""Of a limit's logarithm: what was beyond it is well again below."""
PHYSICS_SLACK: Final = 0.1
AT_EDGE: Final = 0.97
"""Of the logarithm of the learner's band."""
CERTAIN: Final = 2.0
"""Standard deviations by which an efficiency must be above 1."""


def with_speeds(
    found: Assessment, newest: Mapping[str, PodSpeed], now_s: float
) -> Mapping[str, PodSpeed]:
    """Smooth what each pod does; a pod that is gone or idle for long is forgotten."""
    present = {pod.name for pod in found.state.pods}
    kept = {
        name: speed
        for name, speed in found.memory.reported.speeds.items()
        if name in present and now_s - speed.seen_at_s < KEPT_S
    }
    seen = {name: _smooth(kept.get(name), speed) for name, speed in newest.items()}
    return {**kept, **seen}


def _smooth(before: PodSpeed | None, now: PodSpeed) -> PodSpeed:
    if before is None:
        return now
    if now.seen_at_s == before.seen_at_s:
        return before  # as Prometheus said it, in however many ticks

    def smooth(old: float, new: float) -> float:
        return old + SMOOTHING * (new - old)

    return replace(
        now,
        slower=smooth(before.slower, now.slower),
        mbu=smooth(before.mbu, now.mbu),
        mfu=smooth(before.mfu, now.mfu),
        windows=before.windows + 1,
    )


def speed_plausible(found: Assessment, _: Fleet) -> Finding:
    """False where a figure is not possible, or one pod lags behind."""
    chosen, of_pods = found.chosen, found.memory.reported.speeds
    speeds = {name: each for name, each in of_pods.items() if each.windows >= MIN_WINDOWS}
    if chosen is None or not speeds:
        # A process that began just now would else tell of doubts that it will not have.
        before = said_before(found, TYPE) if of_pods else None
        return before or Finding("Unknown", "NotBusy", "no replica was busy for long enough")
    ease = BACK if is_false(found, TYPE) else 1.0
    middle = {
        "MBU": median(each.mbu for each in speeds.values()),
        "MFU": median(each.mfu for each in speeds.values()),
    }
    doubts = [
        *_beyond_physics(middle, ease),
        *_at_the_edge(chosen.belief, ease),
        *_slow_pod(speeds, ease),
    ]
    if not doubts:
        shares = ", ".join(f"{name} {value:.0%}" for name, value in middle.items())
        return Finding("True", "Plausible", shares)
    return Finding("False", doubts[0].code, "; ".join(each.message for each in doubts))


def _beyond_physics(middle: Mapping[str, float], ease: float) -> Iterator[Reason]:
    """Nothing reads faster than memory, or computes faster than the peak."""
    for name, value in middle.items():
        if value > 1 - PHYSICS_SLACK * (1 - ease):
            message = f"{name} {value:.0%}, more than the GPU class can do"
            yield Reason("FasterThanPossible", message)


def _at_the_edge(belief: Belief, ease: float) -> Iterator[Reason]:
    """Yield the constants that the learner holds at its bounds, or that cannot be."""
    edge = AT_EDGE * ease
    deviations = [math.sqrt(max(0.0, each)) for each in belief.posterior.variances]
    for (name, value, prior, most), band, deviation in zip(
        _constants(belief), BAND, deviations, strict=True
    ):
        low, high = prior / band, min(most, prior * band)
        is_at_edge = abs(math.log(value / prior)) >= edge * math.log(band)
        is_impossible = value > most * math.exp(ease * CERTAIN * deviation)
        if belief.is_measured and (is_at_edge or is_impossible):
            message = f"{name} {value:.2f}, plausible are {low:.2f} to {high:.2f}"
            yield Reason("ConstantOutOfRange", message)


def _constants(belief: Belief) -> tuple[tuple[str, float, float, float], ...]:
    """Return (name, learned, prior, most that is possible) of each, in the learner's order."""
    names = ("overhead factor", "bandwidth efficiency", "prefill efficiency")
    most = (math.inf, 1.0, 1.0)
    return tuple(zip(names, belief.posterior.constants, belief.prior.constants, most, strict=True))


def _slow_pod(speeds: Mapping[str, PodSpeed], ease: float) -> Iterator[Reason]:
    """Yield the pod that lags most behind the one in the middle of the others."""
    pod, behind = slowest(speeds)
    if behind <= ease * math.log1p(SLOW_POD):
        return
    where = f"pod {pod} on node {node}" if (node := speeds[pod].node) else f"pod {pod}"
    yield Reason(
        "SlowPod",
        f"{where} takes {math.expm1(behind):.0%} longer for the same step than the median "
        "of the other pods: look for throttling, other load, or a slower link on that node",
    )
