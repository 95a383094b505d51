"""Requests with constants of a load test, or of an operator."""

from dataclasses import replace

from tonnage.catalog.engine_speed import SpeedConstants
from tonnage.estimate.calibration_file import CalibrationFile, check_key, key_of, speed_posterior_of
from tonnage.estimate.learner import constants_of, slow_end
from tonnage.estimate.posterior import Three
from tonnage.estimate.speed import with_speed
from tonnage.sizing.provenance import Figure, Input, Origin, speed_input, with_changed
from tonnage.sizing.request import SizingRequest, prior_of
from tonnage.units import significant


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


def slow_end_of(calibration: CalibrationFile, request: SizingRequest) -> SpeedConstants:
    """Return the constants at the slow end of what a load test left open: of 80 %."""
    return constants_of(slow_end(speed_posterior_of(calibration), share=0.8), prior_of(request))
