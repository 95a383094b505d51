"""Requests with what was measured: constants of a load test or an operator, and a cache."""

from collections.abc import Callable, Iterable
from dataclasses import replace

from tonnage.catalog.gpu import Gpu
from tonnage.estimate.calibration_file import (
    CalibrationFile,
    check_key,
    key_of,
    reported_kv_tokens,
    speed_posterior_of,
)
from tonnage.estimate.errors import CalibrationFileError
from tonnage.estimate.learner import constants_of
from tonnage.estimate.posterior import Three
from tonnage.estimate.speed import with_speed
from tonnage.sizing.checks import check_request
from tonnage.sizing.compare import Measured
from tonnage.sizing.plan import Sizing, size_with
from tonnage.sizing.provenance import Figure, Input, Origin, cache_input, speed_input, with_changed
from tonnage.sizing.request import SizingRequest, on_gpu
from tonnage.units import significant


def as_planned(request: SizingRequest, known: Three) -> SizingRequest:
    """Return the request with the constants that an operator plans with."""
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


def size_as_measured(
    request: SizingRequest,
    sizing: Sizing,
    calibration: CalibrationFile,
    size: Callable[[SizingRequest], Sizing],
) -> Sizing:
    """Return the plan of a measured request with the cache that its engine reported, if it did.

    Raises:
        CalibrationFileError: the plan is of another engine.
        SizingError: with that cache nothing serves.
    """
    check_key(calibration, key_of(request, sizing.flags.parallelism))
    measured = with_reported_cache(request, sizing, calibration)
    sizing = sizing if measured is None else size(measured)
    check_key(calibration, key_of(request, sizing.flags.parallelism))
    return sizing


def with_reported_cache(
    request: SizingRequest, sizing: Sizing, calibration: CalibrationFile
) -> SizingRequest | None:
    """Return the request with the cache that the engine of a load test reported, if one did."""
    tokens = reported_kv_tokens(calibration.cache, request, sizing.flags)
    if tokens is None:
        return None
    return replace(
        request,
        num_gpus=sizing.flags.parallelism.num_gpus,
        measured_kv_tokens=tokens,
        inputs=(*request.inputs, cache_input(tokens)),
    )


def measured_classes(
    request: SizingRequest, gpus: Iterable[Gpu], calibrations: Iterable[CalibrationFile]
) -> dict[str, Measured]:
    """Return what the classes are asked whose engines were measured, by name.

    Raises:
        CalibrationFileError: one is of another model, engine or format, of a class that is not
            compared, or of one that another is of too.
        SizingError, CatalogError: what was measured will not do for the request.
    """
    classes, found = {gpu.name: gpu for gpu in gpus}, dict[str, Measured]()
    for file in calibrations:
        name = file.key.gpu
        if name not in classes or name in found:
            why = "another file calibrates it too" if name in found else "it is not compared"
            raise CalibrationFileError(f"the calibration is of GPU class {name}: {why}")
        asked = as_measured(on_gpu(request, classes[name]), file)
        split = file.key.parallelism
        check_request(asked)
        reported = with_reported_cache(asked, size_with(asked, split), file)
        found[name] = Measured(request=reported or asked, parallelism=split)
    return found
