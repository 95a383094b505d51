"""One ModelDeployment from a file: answered with a plan, or refused with the ways out."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import Any, Final

from tonnage.api.objects import ModelDeployment
from tonnage.api.spec import Scaling, Spec
from tonnage.api.status import Reason
from tonnage.catalog.config.formats.quantization import WEIGHT_FORMATS
from tonnage.catalog.gpu import CatalogError, Gpu
from tonnage.catalog.safetensors import Checkpoint
from tonnage.cli.checkpoint import WIDE_FORMATS, as_stored
from tonnage.cli.scale_target import ScaleTarget, TargetError
from tonnage.explain.report import estimate_status, plan_status, sizing_reasons, usd_per_hour
from tonnage.sizing.errors import SizingError
from tonnage.sizing.plan import Sizing, alternatives, requests_per_s_asked, size
from tonnage.sizing.provenance import Figure, Input, Origin, demand_input, without
from tonnage.sizing.request import SizingRequest, as_textbook, ask, look_up, with_prior
from tonnage.sizing.switches import switches_in
from tonnage.sizing.workload import Demand
from tonnage.units import significant

NUM_GPUS_TRIED: Final = (1, 2, 4, 8, 16)
CONTEXT_STEP_TOKENS: Final = 512
MAX_OFFERS: Final = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What the command line adds to every object."""

    gpus: Mapping[str, Gpu]
    is_textbook: bool = False
    requests_per_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """An object that can be served, and the replicas within its bounds."""

    deployment: ModelDeployment
    sizing: Sizing
    replicas: int
    reasons: tuple[Reason, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return what status would hold."""
        plan = plan_status(self.sizing, replicas=self.replicas, reasons=self.reasons)
        estimate = estimate_status(self.sizing, replicas=self.replicas)
        return {
            "metadata": identity(self.deployment),
            "plan": plan.to_dict(),
            "estimate": estimate.to_dict(),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """Changes to the spec with which the answer would be yes."""

    changes: tuple[str, ...]
    sizing: Sizing


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """An object that cannot be served as its spec stands."""

    deployment: ModelDeployment
    code: str
    message: str
    offers: tuple[Offer, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the condition that status would hold, without its time."""
        condition = {
            "type": "PlanValid",
            "status": "False",
            "reason": self.code,
            "message": self.message,
        }
        return {"metadata": identity(self.deployment), "conditions": [condition]}


def identity(deployment: ModelDeployment) -> dict[str, str]:
    return {"name": deployment.name, "namespace": deployment.namespace}


def answer(
    deployment: ModelDeployment,
    terms: Terms,
    *,
    model_config: str | None = None,
    target: ScaleTarget | None = None,
    checkpoint: Checkpoint | None = None,
) -> Planned | Refused:
    """Size one object.

    ``model_config``: the text of the config.json that its spec refers to.
    ``target``: the Deployment that its spec scales; its flags stay as they are.
    ``checkpoint``: what the files of its model hold; without it weights are counted.
    """
    try:
        request = request_of(
            deployment.spec,
            terms,
            model_config=model_config,
            target=target,
            checkpoint=checkpoint,
        )
    except (CatalogError, TargetError) as error:
        return Refused(deployment=deployment, code=code_of(error), message=str(error))
    try:
        sizing = size(request)
    except (CatalogError, SizingError) as error:
        return Refused(
            deployment=deployment,
            code=code_of(error),
            message=str(error),
            offers=offers(request, terms.gpus.values(), deployment.spec.scaling),
        )
    replicas, reasons = within_bounds(sizing, deployment.spec.scaling)
    return Planned(deployment=deployment, sizing=sizing, replicas=replicas, reasons=reasons)


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
    """
    request = _with_notes(_request(spec, terms, model_config, target))
    return request if checkpoint is None else as_stored(request, checkpoint)


def _with_notes(request: SizingRequest) -> SizingRequest:
    """Return the request with what its model's configuration left open among its inputs."""
    origin = Origin.GUESSED if request.shape.num_uncounted_towers else Origin.LOOKED_UP
    notes = (Input(figure=Figure.MODEL, value=note, origin=origin) for note in request.shape.notes)
    return replace(request, inputs=(*request.inputs, *notes))


def _request(
    spec: Spec, terms: Terms, model_config: str | None, target: ScaleTarget | None
) -> SizingRequest:
    version = target.engine_version if target else None
    known = look_up(spec, terms.gpus, model_config=model_config, engine_version=version)
    request = _on_these_terms(ask(spec, known), terms)
    if target is None:
        return request
    default = known.engine.constants.gpu_memory_utilization
    return replace(
        request,
        flags=target.flags(default_utilization=default),
        switches=switches_in(target.arguments),
    )


def code_of(error: Exception) -> str:
    """Name an error as the condition's reason does."""
    if isinstance(error, TargetError):
        return error.code
    return type(error).__name__.removesuffix("Error")


def _on_these_terms(request: SizingRequest, terms: Terms) -> SizingRequest:
    if terms.requests_per_s is not None:
        rate = demand_input(terms.requests_per_s)
        request = replace(
            request,
            demand=Demand(requests_per_s=terms.requests_per_s),
            inputs=(*without(request.inputs, Figure.DEMAND), rate),
        )
    return as_textbook(request) if terms.is_textbook else request


def within_bounds(sizing: Sizing, scaling: Scaling) -> tuple[int, tuple[Reason, ...]]:
    """Return the replicas that the spec allows, and every reason for them."""
    reasons = sizing_reasons(sizing)
    needed = sizing.replicas
    if needed > scaling.max_replicas:
        most = scaling.max_replicas
        sustained = significant(sizing.sustained_requests_per_s(most))
        asked = significant(requests_per_s_asked(sizing) or 0.0)
        message = (
            f"{needed} replicas are needed, maxReplicas allows {most}: they sustain {sustained} "
            f"of the {asked} requests/s asked for"
        )
        return most, (*reasons, Reason(code="MaxReplicas", message=message))
    if needed < scaling.min_replicas:
        message = f"{needed} would do, minReplicas asks for {scaling.min_replicas}"
        return scaling.min_replicas, (*reasons, Reason(code="MinReplicas", message=message))
    return needed, reasons


def offers(request: SizingRequest, gpus: Iterable[Gpu], scaling: Scaling) -> tuple[Offer, ...]:
    """Return the changes with which the request has an answer, the cheapest first."""
    request = replace(request, flags=None)
    found = [*_other_numbers(request), *_smaller(request), *_other_gpus(request, gpus)]
    cheapest = sorted(found, key=_price)[:MAX_OFFERS]
    return tuple(_with_replicas(offer, scaling) for offer in cheapest)


def _with_replicas(offer: Offer, scaling: Scaling) -> Offer:
    needed = offer.sizing.replicas
    if needed <= scaling.max_replicas:
        return offer
    return replace(offer, changes=(*offer.changes, f"scaling.maxReplicas: {needed}"))


def _price(offer: Offer) -> tuple[float, int]:
    """Order by price; a class without one comes after those that have it."""
    sizing = offer.sizing
    usd = usd_per_hour(sizing, sizing.replicas)
    num_gpus = sizing.replicas * sizing.flags.parallelism.num_gpus
    return (math.inf if usd is None else usd), num_gpus


def _offer(request: SizingRequest, change: str) -> Iterator[Offer]:
    """Yield the change if the request has an answer with it."""
    sizing = _try(request)
    if sizing:
        yield Offer(changes=(change,), sizing=sizing)


def _try(request: SizingRequest) -> Sizing | None:
    try:
        return size(request)
    except (SizingError, CatalogError):
        return None


def _other_numbers(request: SizingRequest) -> Iterator[Offer]:
    """Yield the cheapest other number of GPUs of the same class."""
    if request.num_gpus is None:
        return iter(())  # every number was tried before the answer was no
    tried = (
        _offer(replace(request, num_gpus=num_gpus), f"hardware.gpusPerReplica: {num_gpus}")
        for num_gpus in NUM_GPUS_TRIED
    )
    return islice(sorted(chain.from_iterable(tried), key=_price), 1)


def _smaller(request: SizingRequest) -> Iterator[Offer]:
    """Yield what takes fewer bytes on the same GPUs: weights, cache, a shorter context."""
    if request.weights.name in WIDE_FORMATS:
        counted = replace(request.shape, stored=None)
        narrow = with_prior(replace(request, weights=WEIGHT_FORMATS["fp8"], shape=counted))
        yield from _offer(narrow, "model.weights: fp8")
    if request.kv_format != "fp8":
        yield from _offer(replace(request, kv_format="fp8"), "model.kvCache: fp8")
    longest = request.workload.prompt.mean_tokens + request.workload.output_tokens
    tokens = _largest(
        lambda tokens: _try(replace(request, context_tokens=tokens)) is not None,
        lowest=math.ceil(longest / CONTEXT_STEP_TOKENS),
        highest=request.context_tokens // CONTEXT_STEP_TOKENS - 1,
    )
    if tokens:
        yield from _offer(replace(request, context_tokens=tokens), f"contextLength: {tokens}")


def _largest(holds: Callable[[int], bool], *, lowest: int, highest: int) -> int | None:
    """Return the largest number of tokens, in whole steps, for which something holds."""
    if highest < lowest or not holds(lowest * CONTEXT_STEP_TOKENS):
        return None
    while lowest < highest:
        middle = (lowest + highest + 1) // 2
        if holds(middle * CONTEXT_STEP_TOKENS):
            lowest = middle
        else:
            highest = middle - 1
    return lowest * CONTEXT_STEP_TOKENS


def _other_gpus(request: SizingRequest, gpus: Iterable[Gpu]) -> Iterator[Offer]:
    for gpu in gpus:
        if gpu.name == request.gpu.name:
            continue
        try:
            found = alternatives(request, [gpu])
        except CatalogError:  # the class lacks a figure that this question needs
            continue
        for sizing in found:
            yield Offer(changes=_changes_to(gpu, sizing, request), sizing=sizing)


def _changes_to(gpu: Gpu, sizing: Sizing, request: SizingRequest) -> tuple[str, ...]:
    """Return the changes that lead to this sizing: a number of GPUs that stays must be right."""
    num_gpus = sizing.flags.parallelism.num_gpus
    if request.num_gpus in {None, num_gpus}:
        return (f"hardware.gpu: {gpu.name}",)
    return f"hardware.gpu: {gpu.name}", f"hardware.gpusPerReplica: {num_gpus}"
