"""What one object asks for now: with the flags that run, or with flags to be chosen."""

from dataclasses import replace

from tonnage.api.objects import ModelDeployment
from tonnage.catalog.engine import parse_version
from tonnage.catalog.gpu import CatalogError
from tonnage.control.answers import Asker
from tonnage.control.state import Chosen, Fleet, ModelState, ObjectMemory
from tonnage.estimate.calibration import Calibrations, memory_key, speed_key
from tonnage.manifests.arguments import read_flags, without_capacity_flags
from tonnage.manifests.children import flags_from_annotation, spec_digest
from tonnage.sizing.errors import DoesNotFitError, SizingError, SLOInfeasibleError
from tonnage.sizing.plan import Sizing
from tonnage.sizing.provenance import Figure, Origin, lengths_input, replaced, speed_input, without
from tonnage.sizing.request import Flags, SizingRequest, ask, digest_of, look_up
from tonnage.sizing.switches import switches_in
from tonnage.sizing.workload import Lengths, Slo, Workload

GAIN_WORTH_A_RESTART = 0.05
"""A spec change keeps the running flags unless others raise a replica's capacity by more."""


class RefusedError(Exception):
    """An object that is understood and not acted on; the reason is a condition's reason."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


def choose(state: ModelState, fleet: Fleet, memory: ObjectMemory, asker: Asker) -> Chosen:
    """Size an object: live flags stay until the user's spec changes.

    Raises:
        RefusedError, CatalogError, SizingError: nothing can be planned; the message says why.
        SearchAbandonedError: the time for searches is spent before there is an answer.
    """
    model = checked(state)
    request = _request(model, state, fleet, memory)
    prior = request.speed.bandwidth_efficiency
    live = _live_flags(state, model, request)
    if model.spec.scale_target and live is None:
        raise RefusedError(
            "FlagsUnknown",
            f"scaleTarget {model.spec.scale_target.name} must set --max-num-seqs and "
            "--max-num-batched-tokens explicitly",
        )
    is_current = bool(model.spec.scale_target) or (
        state.deployment is not None and state.deployment.digest == spec_digest(model)
    )
    if live and is_current:
        sizing, problem = _as_it_runs(calibrated(request, live, fleet.calibrations), asker)
        return Chosen(
            model=model, sizing=sizing, prior_efficiency=prior, must_apply=False, problem=problem
        )
    sizing = _freely(request, live, fleet.calibrations, asker)
    return Chosen(model=model, sizing=sizing, prior_efficiency=prior, must_apply=True)


def _as_it_runs(request: SizingRequest, asker: Asker) -> tuple[Sizing, str | None]:
    """Size what runs. A learned constant or longer prompts must not freeze it in overload.

    Where no rate keeps the SLO any more, the fleet is sized for throughput and the reason given.
    """
    try:
        return asker.size(request), None
    except SLOInfeasibleError as infeasible:
        return asker.size(replace(request, slo=Slo())), str(infeasible)


def checked(state: ModelState) -> ModelDeployment:
    """Return the model of an object that may be acted on.

    Raises:
        RefusedError: the spec is invalid, or somebody else has a claim.
    """
    if not isinstance(state.model, ModelDeployment):
        raise RefusedError("InvalidSpec", str(state.model))
    if state.config_problem:
        raise RefusedError("ModelConfigMissing", state.config_problem)
    if state.older_claim:
        raise RefusedError(
            "ConflictingOwner",
            f"scaleTarget is already scaled by the older ModelDeployment {state.older_claim}",
        )
    _check_deployment(state, state.model)
    return state.model


def _check_deployment(state: ModelState, model: ModelDeployment) -> None:
    deployment, target = state.deployment, model.spec.scale_target
    if target:
        if deployment is None or not deployment.is_opted_in:
            raise RefusedError(
                "TargetNotAllowed",
                f"Deployment {target.name} must exist and carry the label "
                'tonnage.dev/managed: "true" on itself and on its pod template',
            )
        if deployment.owner_uid is not None:
            raise RefusedError(
                "TargetNotAllowed", f"Deployment {target.name} is controlled by another object"
            )
    elif deployment is not None and deployment.owner_uid != model.uid:
        raise RefusedError(
            "NameConflict",
            f"Deployment {deployment.name} exists and is not owned by this ModelDeployment",
        )


def _request(
    model: ModelDeployment, state: ModelState, fleet: Fleet, memory: ObjectMemory
) -> SizingRequest:
    version = _image_version(state) if model.spec.scale_target else None
    known = look_up(model.spec, fleet.gpus, model_config=state.model_config, engine_version=version)
    request = ask(model.spec, known)
    if model.spec.scale_target and state.deployment:
        own = (state.deployment.image, *without_capacity_flags(state.deployment.arguments))
        switches = switches_in(state.deployment.arguments)
        request = replace(request, engine_digest=digest_of(own), switches=switches)
    lengths = memory.asked_lengths
    if lengths is None:
        return request
    expected = request.workload
    workload = Workload(
        prompt=Lengths(
            mean_tokens=lengths.prompt_tokens,
            p99_tokens=_scaled_p99(request, lengths.prompt_tokens),
            longest_tokens=request.context_tokens,
        ),
        output_tokens=lengths.output_tokens,
        cached_fraction=lengths.cached_fraction,
        output_second_moment=None
        if expected.output_second_moment is None
        else expected.output_second_moment * (lengths.output_tokens / expected.output_tokens) ** 2,
    )
    inputs = without(request.inputs, Figure.LENGTHS)
    measured = lengths_input(workload, Origin.MEASURED)
    return replace(request, workload=workload, inputs=(measured, *inputs))


def _scaled_p99(request: SizingRequest, mean_tokens: float) -> float | None:
    """Keep the spread that the spec gives, around the measured mean, within the maximum length."""
    prompt = request.workload.prompt
    if prompt.p99_tokens is None:
        return None
    scaled = prompt.p99_tokens / prompt.mean_tokens * mean_tokens
    return min(scaled, float(request.context_tokens))


def _image_version(state: ModelState) -> str | None:
    """Return the version in the tag of a scale target's image.

    Raises:
        RefusedError: the tag is no version, so flags and metric names are unknown.
    """
    tag = (state.deployment.image if state.deployment else "").rpartition(":")[2]
    try:
        major, minor = parse_version(tag)
    except CatalogError as error:
        raise RefusedError("EngineVersionUnknown", f"image tag {tag!r} is no version") from error
    return f"{major}.{minor}"


def _live_flags(state: ModelState, model: ModelDeployment, request: SizingRequest) -> Flags | None:
    """Return what runs: as we recorded it on our own Deployment, else as its arguments say."""
    deployment = state.deployment
    if deployment is None:
        return None
    is_ours = model.spec.scale_target is None
    recorded = flags_from_annotation(deployment.flags or "") if is_ours else None
    default = request.engine.constants.gpu_memory_utilization
    return recorded or read_flags(deployment.arguments, default_utilization=default)


def calibrated(request: SizingRequest, flags: Flags, known: Calibrations) -> SizingRequest:
    """Return the request for these flags, with what was learned about them."""
    return replace(
        with_learned_speed(request, flags, known),
        flags=flags,
        measured_kv_tokens=_kv_tokens(request, flags, known),
    )


def _kv_tokens(request: SizingRequest, flags: Flags, known: Calibrations) -> float | None:
    entry = known.memory.get(memory_key(request, flags))
    return entry.kv_tokens if entry else None


def with_learned_speed(request: SizingRequest, flags: Flags, known: Calibrations) -> SizingRequest:
    """Return the request with the learned bandwidth efficiency, where there is one."""
    entry = known.speed.get(speed_key(request, flags))
    if entry is None:
        return request
    speed = replace(request.speed, bandwidth_efficiency=entry.bandwidth_efficiency)
    inputs = replaced(request.inputs, speed_input(speed, Origin.MEASURED))
    return replace(request, speed=speed, inputs=inputs)


def _freely(
    request: SizingRequest, live: Flags | None, known: Calibrations, asker: Asker
) -> Sizing:
    """Choose flags; those that run stay where others gain too little to restart an engine."""
    kept = _kept(request, live, known, asker)
    try:
        first = asker.size(request)
    except DoesNotFitError:
        if kept is None:
            raise
        return kept
    best = asker.size(with_learned_speed(request, first.flags, known))
    if kept is None:
        return best
    worth_it = best.goodput_requests_per_s * kept.flags.parallelism.num_gpus > (
        1 + GAIN_WORTH_A_RESTART
    ) * (kept.goodput_requests_per_s * best.flags.parallelism.num_gpus)
    return best if worth_it else kept


def _kept(
    request: SizingRequest, live: Flags | None, known: Calibrations, asker: Asker
) -> Sizing | None:
    """Return what the flags that run give a changed spec; None where they will not do.

    They have shown that what ran before fits, not what is asked now.
    """
    if live is None or request.num_gpus not in {None, live.parallelism.num_gpus}:
        return None
    try:
        kept = asker.size(calibrated(request, live, known))
    except SizingError:
        return None
    return None if kept.memory_doubt else kept
