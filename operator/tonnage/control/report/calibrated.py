"""What was learned, as the status has it, and whether engines are as fast as they can be."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from statistics import median
from typing import Final

from tonnage.api.status import CalibrationStatus, LearnedConstant, Reason
from tonnage.catalog.engine_speed import SpeedConstants
from tonnage.control.input.finding import Finding, is_false, said_before
from tonnage.control.input.memory import PodSpeed
from tonnage.control.input.state import Assessment, Fleet
from tonnage.control.input.times import rfc3339
from tonnage.control.learn.believed import beliefs, estimated_kv_tokens
from tonnage.control.measure.causes import SLOW_POD, slow_pod, slowest
from tonnage.estimate.calibration import memory_key, speed_key
from tonnage.estimate.learner import BAND, constants_of, deviation_of_step, slow_end
from tonnage.estimate.planning_constants import Belief, step_ratio
from tonnage.estimate.posterior import SpeedPosterior
from tonnage.explain.report import round_estimate
from tonnage.memoize import memoize
from tonnage.sizing.plan import Sizing
from tonnage.sizing.serving.load_line import bound_requests_per_s

ALL_DIGITS: Final = 12
"""``tonnage diff`` plans with what is planned: a digit less may tip the flags."""


def calibration_status(found: Assessment, fleet: Fleet) -> CalibrationStatus | None:
    """Return a copy of what was learned; None where nothing is planned."""
    chosen, own = found.chosen, found.memory.posterior
    if chosen is None:
        return None
    request, flags = chosen.sizing.request, chosen.sizing.flags
    belief, known = chosen.belief, chosen.belief.posterior
    seen = beliefs(found.state, fleet).sources_of(speed_key(request, flags))
    is_own_pool = own.kv_tokens is not None and own.memory_key == memory_key(request, flags)
    overhead, bandwidth, prefill, step = learned_constants(belief, request.speed)
    return CalibrationStatus(
        evidence=seen.source,
        corroborating_namespaces=seen.num_others,
        windows=known.num_windows,
        busy_steps=round(known.num_steps),
        changed_at=_time(known.learned_at_s),
        overhead_factor=overhead,
        bandwidth_efficiency=bandwidth,
        prefill_efficiency=prefill,
        step_time=step,
        requests_per_second=round_estimate(
            chosen.goodput_factor * chosen.sizing.goodput_requests_per_s
        ),
        prior_requests_per_second=round_estimate(
            _prior_requests_per_s(
                chosen.sizing, belief.prior, belief.constants, fleet.settings.speed_range
            )
        ),
        goodput_factor=round_estimate(chosen.goodput_factor),
        judged_requests=round(own.num_judged),
        judged_at=_time(own.judged_at_s),
        goodput_factor_reason=found.memory.goodput.reason,
        kv_tokens=math.floor(own.kv_tokens or 0.0) if is_own_pool else None,
        prior_kv_tokens=math.floor(estimated_kv_tokens(chosen.sizing)),
        cold_start_seconds=None if own.cold_start_s is None else round_estimate(own.cold_start_s),
        cold_start_deviation_seconds=round_estimate(own.cold_start_deviation_s)
        if own.num_starts
        else None,
        node_wait_seconds=round_estimate(own.node_wait_s) if own.num_starts else None,
        cold_starts=own.num_starts,
    )


def _time(at_s: float) -> str | None:
    return rfc3339(at_s) if at_s else None


def learned_constants(belief: Belief, speed: SpeedConstants) -> tuple[LearnedConstant, ...]:
    """Return overhead, bandwidth and prefill, and the step time that they make together.

    ``speed``: what the plan was sized with.
    """
    asked = belief.asked
    is_slow = speed == belief.constants_at(asked.slow)  # else the middle, where that keeps no SLO
    is_other = speed != belief.constants_at(asked.middle)
    planned = asked.slow if is_slow or is_other else asked.middle
    each = [
        _constant(prior, learned, with_it, math.sqrt(max(0.0, variance)))
        for prior, learned, with_it, variance in zip(
            belief.prior.constants,
            belief.posterior.constants,
            planned.constants,
            belief.posterior.variances,
            strict=True,
        )
    ]
    step = _constant(
        1.0,
        step_ratio(belief.posterior, belief.prior),
        step_ratio(planned, belief.prior),
        deviation_of_step(belief.posterior),
    )
    return (*each, step)


def _constant(prior: float, learned: float, planned: float, deviation: float) -> LearnedConstant:
    return LearnedConstant(
        prior=round_estimate(prior),
        learned=round_estimate(learned),
        planned=round_estimate(planned, ALL_DIGITS),
        deviation_fraction=round_estimate(deviation),
    )


@memoize
def _prior_requests_per_s(
    sizing: Sizing, before_any: SpeedPosterior, constants: SpeedConstants, share: float
) -> float:
    """Return what a replica would be planned for, were nothing learned of it.

    The goodput that was found, scaled as the fluid bound differs: no other search is made for it.
    """
    workload, slo = sizing.request.workload, sizing.request.slo
    prior = constants_of(slow_end(before_any, share=share), constants)
    replica = sizing.replica
    before = replace(replica, model=replace(replica.model, constants=prior))
    if sizing.request.measured_kv_tokens is not None:
        each_bytes = sizing.replica.bytes_per_reported_token(sizing.request.context_tokens)
        before = replace(before, kv_pool_bytes=estimated_kv_tokens(sizing) * each_bytes)
    now = bound_requests_per_s(sizing.replica, workload, slo)
    ratio = bound_requests_per_s(before, workload, slo) / now if now > 0 else 1.0
    return ratio * sizing.goodput_requests_per_s


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
    doubts = [  # nothing reads faster than memory, or computes faster than the peak
        Reason("FasterThanPossible", f"{name} {value:.0%}, more than the GPU class can do")
        for name, value in middle.items()
        if value > 1 - PHYSICS_SLACK * (1 - ease)
    ]
    doubts += _at_the_edge(chosen.belief, ease)
    pod, behind = slowest(speeds)
    if behind > ease * math.log1p(SLOW_POD):
        doubts.append(slow_pod(pod, behind, speeds))
    if not doubts:
        shares = ", ".join(f"{name} {value:.0%}" for name, value in middle.items())
        return Finding("True", "Plausible", shares)
    return Finding("False", doubts[0].code, "; ".join(each.message for each in doubts))


def _at_the_edge(belief: Belief, ease: float) -> Iterator[Reason]:
    """Yield the constants that the learner holds at its bounds, or that cannot be."""
    edge = AT_EDGE * ease
    for name, value, prior, most, band, variance in zip(
        ("overhead factor", "bandwidth efficiency", "prefill efficiency"),
        belief.posterior.constants,
        belief.prior.constants,
        (math.inf, 1.0, 1.0),  # that is possible
        BAND,
        belief.posterior.variances,
        strict=True,
    ):
        deviation = math.sqrt(max(0.0, variance))
        low, high = prior / band, min(most, prior * band)
        is_at_edge = abs(math.log(value / prior)) >= edge * math.log(band)
        is_impossible = value > most * math.exp(ease * CERTAIN * deviation)
        if belief.is_measured and (is_at_edge or is_impossible):
            message = f"{name} {value:.2f}, plausible are {low:.2f} to {high:.2f}"
            yield Reason("ConstantOutOfRange", message)
