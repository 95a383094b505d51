"""One ModelDeployment from a file: answered with a plan, or refused with the ways out."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from tonnage.api.objects import ModelDeployment
from tonnage.api.spec import Spec
from tonnage.api.status import Reason
from tonnage.catalog.gpu import CatalogError, Gpu
from tonnage.catalog.safetensors import Checkpoint
from tonnage.cli.answers.offers import Offer, offers
from tonnage.cli.answers.reported_cache import with_reported_cache
from tonnage.cli.answers.savings import Saving, savings
from tonnage.cli.answers.stored import as_stored
from tonnage.cli.read.scale_target import ScaleTarget, TargetError
from tonnage.control.observe.evicted import DISRUPTION_BUDGET, evictable, never_evictable
from tonnage.control.size.resized import resized
from tonnage.estimate.calibration_file import (
    CalibrationFile,
    CalibrationFileError,
    Validation,
    check_key,
    key_of,
    speed_posterior_of,
)
from tonnage.estimate.learner import constants_of
from tonnage.estimate.speed import with_speed
from tonnage.explain.at_demand import capacity_figures, demand_figures
from tonnage.explain.report import estimate_status, plan_status, sizing_reasons
from tonnage.manifests.arguments import argument_pairs
from tonnage.sizing.adapters import running_adapters
from tonnage.sizing.checks import with_running_cache
from tonnage.sizing.errors import SizingError
from tonnage.sizing.plan import Between, Sizing, keep_searching, requests_per_s_asked, size
from tonnage.sizing.provenance import (
    Figure,
    Input,
    Origin,
    as_guessed,
    demand_input,
    speed_input,
    with_changed,
    without_figures,
)
from tonnage.sizing.request import Flags, SizingRequest, as_textbook, ask, look_up
from tonnage.sizing.split import Parallelism
from tonnage.sizing.switches import switches_in
from tonnage.sizing.workload import Demand
from tonnage.units import significant


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedConstants:
    """Constants of the step time that the plan of a live object stands on."""

    overhead_factor: float
    bandwidth_efficiency: float
    prefill_efficiency: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What the command line adds to every object."""

    gpus: Mapping[str, Gpu]
    is_textbook: bool = False
    requests_per_s: float | None = None
    calibration: CalibrationFile | None = None
    """What was measured of an engine; refused for another."""
    planned: PlannedConstants | None = None
    """What an operator plans an object with."""
    guessed: frozenset[Figure] = frozenset()
    """What of a spec nobody said."""
    between: Between = keep_searching
    """Called before each run of the engine model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Live:
    """What runs for an object."""

    flags: Flags
    is_current: bool
    """It was made for the same part of the spec, so its flags stay whatever others would gain."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """An object that can be served, and the replicas within its bounds."""

    deployment: ModelDeployment
    sizing: Sizing
    replicas: int
    reasons: tuple[Reason, ...]
    validation: Validation | None = None
    """How well the constants were found to predict the user's own traffic."""
    savings: tuple[Saving, ...] = ()
    """Changes that would take fewer GPUs, the most first."""

    def to_dict(self) -> dict[str, Any]:
        """Return what status would hold."""
        validated = {} if self.validation is None else {"validation": self.validation.to_dict()}
        plan = plan_status(self.sizing, replicas=self.replicas, reasons=self.reasons)
        estimate = estimate_status(self.sizing, replicas=self.replicas)
        return {
            "metadata": identity(self.deployment),
            "atDemand": demand_figures(self.sizing, self.replicas),
            "atCapacity": capacity_figures(self.sizing, self.replicas),
            "plan": plan.to_dict(),
            "estimate": estimate.to_dict(),
            "savings": [each.to_dict() for each in self.savings],
            **validated,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """An object that cannot be served as its spec stands."""

    deployment: ModelDeployment
    code: str
    message: str
    offers: tuple[Offer, ...] = ()
    is_input: bool = False
    """Nothing was sized: what was asked names something unknown, or contradicts itself."""

    def to_dict(self) -> dict[str, Any]:
        """Return the condition that status would hold, without its time."""
        condition = {
            "type": "PlanValid",
            "status": "False",
            "reason": self.code,
            "message": self.message,
        }
        return {
            "metadata": identity(self.deployment),
            "conditions": [condition],
            "offers": [each.to_dict() for each in self.offers],
        }


def identity(deployment: ModelDeployment) -> dict[str, str]:
    return {"name": deployment.name, "namespace": deployment.namespace}


def answer(  # noqa: PLR0913  (one argument per thing that a spec may refer to)
    deployment: ModelDeployment,
    terms: Terms,
    *,
    model_config: str | None = None,
    target: ScaleTarget | None = None,
    checkpoint: Checkpoint | None = None,
    live: Live | None = None,
) -> Planned | Refused:
    """Size one object.

    ``model_config``: the text of the config.json that its spec refers to.
    ``target``: the Deployment that its spec scales; its flags stay as they are.
    ``checkpoint``: what the files of its model hold; without it weights are counted.
    ``live``: what runs for it, by which flags are chosen as the operator does.
    """
    try:
        request = request_of(
            deployment.spec,
            terms,
            model_config=model_config,
            target=target,
            checkpoint=checkpoint,
        )
    except (CatalogError, TargetError, CalibrationFileError) as error:
        return _not_asked(deployment, error)
    try:
        sizing = _sized(request, live, terms.between)
    except (CatalogError, SizingError) as error:
        return Refused(
            deployment=deployment,
            code=code_of(error),
            message=str(error),
            offers=offers(
                request, terms.gpus.values(), deployment.spec.scaling, between=terms.between
            ),
        )
    calibration = terms.calibration
    try:
        if calibration is not None:
            check_key(calibration, key_of(request, sizing.flags.parallelism))
            measured = with_reported_cache(request, sizing, calibration)
            sizing = sizing if measured is None else _sized(measured, live, terms.between)
            check_key(calibration, key_of(request, sizing.flags.parallelism))
    except CalibrationFileError as error:
        return _not_asked(deployment, error)
    except SizingError as error:
        return Refused(deployment=deployment, code=code_of(error), message=str(error))
    replicas, reasons = within_bounds(sizing, deployment)
    return Planned(
        deployment=deployment,
        sizing=sizing,
        replicas=replicas,
        reasons=reasons,
        validation=calibration.validation if calibration else None,
    )


def with_savings(planned: Planned, between: Between = keep_searching) -> Planned:
    """Return the plan with what would take fewer GPUs; each is a search of its own."""
    fewest = planned.deployment.spec.scaling.min_replicas
    found = savings(planned.sizing, planned.replicas, min_replicas=fewest, between=between)
    return replace(planned, savings=found)


def _not_asked(deployment: ModelDeployment, error: Exception) -> Refused:
    return Refused(deployment=deployment, code=code_of(error), message=str(error), is_input=True)


def _sized(request: SizingRequest, live: Live | None, between: Between) -> Sizing:
    if live is None or request.flags is not None:
        return size(request, between=between)

    @cache
    def size_with(flags: Flags | None, run: bool) -> Sizing:
        if run:
            return size(replace(request, flags=flags), between=between)
        return size(request, between=between) if flags is None else size_with(None, False)

    if live.is_current:
        return size_with(live.flags, True)
    return resized(size_with, live.flags, request)


def request_of(
    spec: Spec,
    terms: Terms,
    *,
    model_config: str | None = None,
    target: ScaleTarget | None = None,
    checkpoint: Checkpoint | None = None,
) -> SizingRequest:
    """Make the request of a spec on these terms; the arguments are those of ``answer``.

    Raises:
        CatalogError: a model, class or version is unknown, or lacks a figure.
        TargetError: the Deployment says too little about its engine.
        CalibrationFileError: what was measured is of another engine.
    """
    request = _with_notes(_request(spec, terms, model_config, target))
    request = replace(request, inputs=as_guessed(request.inputs, terms.guessed))
    request = request if checkpoint is None else as_stored(request, checkpoint)
    request = request if terms.planned is None else as_planned(request, terms.planned)
    return request if terms.calibration is None else as_measured(request, terms.calibration)


def as_planned(request: SizingRequest, known: PlannedConstants) -> SizingRequest:
    """Return the request with the constants that an operator plans with."""
    speed = with_speed(
        request.speed,
        overhead=known.overhead_factor,
        bandwidth=known.bandwidth_efficiency,
        prefill=known.prefill_efficiency,
    )
    inputs = with_changed(
        request.inputs, speed_input(speed, Origin.LOOKED_UP, remark="from status")
    )
    return replace(request, speed=speed, inputs=inputs)


def as_measured(request: SizingRequest, calibration: CalibrationFile) -> SizingRequest:
    """Return the request with measured constants; where its split is open, that is not compared.

    Raises:
        CalibrationFileError: they are of another engine, with both keys.
    """
    split = Parallelism(**calibration.key.parallelism.model_dump(by_alias=False))
    check_key(calibration, key_of(request, request.flags.parallelism if request.flags else split))
    speed = constants_of(speed_posterior_of(calibration), request.speed)
    written = (
        f"{significant(speed.bandwidth_efficiency)}, prefill "
        f"{significant(speed.prefill_efficiency)}, overheads "
        f"{significant(calibration.constants.overhead_factor)} times the prior's"
    )
    measured = Input(figure=Figure.SPEED, value=written, origin=Origin.MEASURED)
    return replace(request, speed=speed, inputs=with_changed(request.inputs, measured))


def _with_notes(request: SizingRequest) -> SizingRequest:
    """Return the request with what its model's configuration left open among its inputs."""
    origin = Origin.GUESSED if request.shape.num_uncounted_encoders else Origin.LOOKED_UP
    notes = (Input(figure=Figure.MODEL, value=note, origin=origin) for note in request.shape.notes)
    return replace(request, inputs=(*request.inputs, *notes))


def _request(
    spec: Spec, terms: Terms, model_config: str | None, target: ScaleTarget | None
) -> SizingRequest:
    version = target.engine_version if target else None
    known = look_up(spec, terms.gpus, model_config=model_config, engine_version=version)
    if target is None:
        return _on_these_terms(ask(spec, known), terms)
    flags = dict(argument_pairs(target.arguments))
    asked = with_running_cache(ask(spec, known), spec.model.kv_cache, flags)
    request = _on_these_terms(asked, terms)
    default = known.engine.constants.gpu_memory_utilization
    return replace(
        request,
        flags=target.flags(default_utilization=default),
        switches=switches_in(target.arguments),
        adapters=running_adapters(request.shape, flags),
    )


def code_of(error: Exception) -> str:
    """Name an error as the condition's reason does."""
    if isinstance(error, TargetError):
        return error.code
    if isinstance(error, CalibrationFileError):
        return "CalibrationMismatch"
    return type(error).__name__.removesuffix("Error")


def _on_these_terms(request: SizingRequest, terms: Terms) -> SizingRequest:
    if terms.requests_per_s is not None:
        rate = demand_input(terms.requests_per_s)
        request = replace(
            request,
            demand=Demand(requests_per_s=terms.requests_per_s),
            inputs=(*without_figures(request.inputs, Figure.DEMAND), rate),
        )
    return as_textbook(request) if terms.is_textbook else request


def within_bounds(sizing: Sizing, model: ModelDeployment) -> tuple[int, tuple[Reason, ...]]:
    """Return the replicas that the spec allows, and every reason for them."""
    reasons, scaling = (*sizing_reasons(sizing), *never_evictable(model)), model.spec.scaling
    needed, evicted = sizing.replicas, evictable(model)
    if needed > scaling.max_replicas:
        most = scaling.max_replicas
        sustained = significant(sizing.sustained_requests_per_s(most))
        asked = significant(requests_per_s_asked(sizing) or 0.0)
        message = (
            f"{needed} replicas are needed, maxReplicas allows {most}: they sustain {sustained} "
            f"of the {asked} requests/s asked for"
        )
        return most, (*reasons, Reason(code="MaxReplicas", message=message))
    if evicted and max(needed, scaling.min_replicas) < evicted[0]:
        message = f"with {needed} no node could be drained: {evicted[1]}"
        return evicted[0], (*reasons, Reason(code=DISRUPTION_BUDGET, message=message))
    if needed < scaling.min_replicas:
        message = f"{needed} would do, minReplicas asks for {scaling.min_replicas}"
        return scaling.min_replicas, (*reasons, Reason(code="MinReplicas", message=message))
    return needed, reasons
