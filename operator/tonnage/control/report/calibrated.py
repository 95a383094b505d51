"""``status.calibration``: prior, evidence, what was learned, and what that changes in the plan."""

import math
from dataclasses import replace
from typing import Final

from tonnage.api.status import CalibrationStatus, LearnedConstant
from tonnage.catalog.engine_speed import SpeedConstants
from tonnage.control.input.state import Assessment, Fleet
from tonnage.control.input.times import rfc3339
from tonnage.control.learn.believed import beliefs
from tonnage.control.learn.learning import estimated_kv_tokens
from tonnage.estimate.calibration import memory_key, speed_key
from tonnage.estimate.learner import constants_of, deviation_of_step, slow_end
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
    planned = _planned_with(belief, speed)
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


def _planned_with(belief: Belief, speed: SpeedConstants) -> SpeedPosterior:
    """Return the constants of the plan: the slow end, or the middle where that keeps no SLO."""
    asked = belief.asked
    is_slow = speed == belief.constants_at(asked.slow)
    return asked.slow if is_slow or speed != belief.constants_at(asked.middle) else asked.middle


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
