"""Requests with constants of a load test, of an operator, or of the slow end of a range."""

from dataclasses import replace
from typing import Final

from tonnage.estimate.calibration_file import CalibrationFile, check_key, key_of, speed_posterior_of
from tonnage.estimate.headroom import unmeasured_headroom
from tonnage.estimate.learner import constants_of, prior_posterior, slow_end
from tonnage.estimate.posterior import Three
from tonnage.estimate.speed import with_speed
from tonnage.settings import Settings
from tonnage.sizing.errors import SLOInfeasibleError
from tonnage.sizing.plan import OnSearch, Sizing, requests_per_s_asked
from tonnage.sizing.provenance import Figure, Input, Origin, speed_input, with_changed
from tonnage.sizing.request import SizingRequest, prior_of, spread_of, unstarted
from tonnage.sizing.search import size
from tonnage.units import significant

SPEED_RANGE: Final[float] = Settings.model_fields["speed_range"].default


def as_planned(request: SizingRequest, known: Three) -> SizingRequest:
    speed = with_speed(request.speed, known)
    inputs = with_changed(
        request.inputs, speed_input(speed, Origin.LOOKED_UP, remark="from status")
    )
    return replace(request, speed=speed, inputs=inputs)


def as_measured(request: SizingRequest, calibration: CalibrationFile) -> SizingRequest:
    """Return the request with measured constants; where its split is open, that is not compared.

    Raises:
        CalibrationFileError: they are of another engine, with both keys.
    """
    split = calibration.key.parallelism
    check_key(calibration, key_of(request, request.flags.parallelism if request.flags else split))
    speed = constants_of(speed_posterior_of(calibration), request.speed)
    written = (
        f"{significant(speed.bandwidth_efficiency)}, prefill "
        f"{significant(speed.prefill_efficiency)}, overheads "
        f"{significant(calibration.constants.overhead_factor)} times the prior's"
    )
    measured = Input(figure=Figure.SPEED, value=written, origin=Origin.MEASURED)
    return replace(request, speed=speed, inputs=with_changed(request.inputs, measured))


def first_fleet(
    plan: Sizing, calibration: CalibrationFile | None, *, on_search: OnSearch
) -> Sizing:
    """Return what the operator begins a plan with in Auto, before it has measured anything.

    The plan's flags, at the slow end of what is believed of their speed, with headroom over the
    demand where maxReplicas allows it.
    """
    prior = prior_of(plan.request)
    known = (
        prior_posterior(prior, spread_fraction=spread_of(plan.request, plan.parallelism))
        if calibration is None
        else speed_posterior_of(calibration)
    )
    speed = constants_of(slow_end(known, share=SPEED_RANGE), prior)
    try:
        asked = replace(unstarted(plan.request, plan.flags), speed=speed)
        found = size(asked, on_search=on_search)
    except SLOInfeasibleError:
        found = plan
    room = unmeasured_headroom(plan.request)
    more = found.replicas_for((1 + room) * (requests_per_s_asked(plan) or 0.0))
    most = plan.request.max_replicas
    return replace(found, replicas=more) if most is None or more <= most else found
