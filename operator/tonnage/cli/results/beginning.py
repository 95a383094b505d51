"""What the operator begins a plan with, before it has measured speed or demand."""

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from tonnage.catalog.engine_speed import SpeedConstants
from tonnage.estimate.headroom import unmeasured_headroom
from tonnage.estimate.speed import with_speed
from tonnage.sizing.errors import SLOInfeasibleError
from tonnage.sizing.plan import OnSearch, Sizing, requests_per_s_asked
from tonnage.sizing.request import prior_of, spread_of
from tonnage.sizing.resized import size_slow
from tonnage.sizing.search import size

if TYPE_CHECKING:  # what only a calibration needs
    from tonnage.estimate.calibration_file import CalibrationFile


def first_fleet(
    plan: Sizing,
    calibration: "CalibrationFile | None",
    *,
    has_headroom: bool,
    on_search: OnSearch,
) -> Sizing:
    """Return what the operator begins with, by the default of ``settings.speedRange``.

    It has the plan's flags, and the replicas that they take at the slow end of the range of speeds.
    ``has_headroom``: with more replicas for a higher demand, where maxReplicas allows them.
    """
    slow = replace(plan.request, speed=_slow_speed(plan, calibration))
    most = plan.request.max_replicas
    found = size_slow(plan, slow, partial(size, on_search=on_search))
    try:
        room = unmeasured_headroom(plan.request) if has_headroom else 0.0
        more = found.replicas_for((1 + room) * (requests_per_s_asked(found) or 0.0))
    except SLOInfeasibleError:
        return found
    return replace(found, replicas=more) if most is None or more <= most else found


def _slow_speed(plan: Sizing, calibration: "CalibrationFile | None") -> SpeedConstants:
    request = plan.request
    if calibration is not None:
        from tonnage.cli.results.measured import slow_end_of  # noqa: PLC0415  (slow)

        return slow_end_of(calibration, request)
    prior = prior_of(request)
    # The spread is that of eight in ten, as the range is.
    slower = 1 + spread_of(request, plan.parallelism)
    bandwidth, prefill = prior.bandwidth_efficiency, prior.prefill_efficiency
    return with_speed(prior, (slower, bandwidth / slower, prefill / slower))
