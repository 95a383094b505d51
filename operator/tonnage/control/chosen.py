"""What one object asks for now: with the flags that run, or with flags to be chosen."""

from dataclasses import dataclass, replace

from tonnage.api.objects import ModelDeployment
from tonnage.api.status import Reason
from tonnage.catalog.engine import parse_version
from tonnage.catalog.gpu import CatalogError
from tonnage.control.answers import Asker
from tonnage.control.believed import asked_with, belief, kv_tokens
from tonnage.control.resized import GAIN_WORTH_A_RESTART, resized
from tonnage.control.state import BetterAsked, Chosen, Fleet, ModelState, ObjectMemory
from tonnage.estimate.belief import SETTLED_S, Belief
from tonnage.estimate.promise import factor_now
from tonnage.manifests.arguments import FLAGS_NEEDED, read_flags, without_capacity_flags
from tonnage.manifests.children import flags_from_annotation, spec_digest
from tonnage.sizing.errors import (
    SearchAbandonedError,
    SizingError,
    SLOInfeasibleError,
)
from tonnage.sizing.plan import Sizing
from tonnage.sizing.provenance import (
    Figure,
    Origin,
    arrivals_input,
    lengths_input,
    replaced,
    without,
)
from tonnage.sizing.request import Flags, SizingRequest, ask, digest_of, look_up
from tonnage.sizing.switches import switches_in
from tonnage.sizing.workload import Lengths, Slo, Workload
from tonnage.units import significant

MIN_WINDOWS = 10
ASKED_AGAIN_S = 600.0
"""Between two searches for a better max-num-seqs."""


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
    live = _live_flags(state, model, request)
    if model.spec.scale_target and live is None:
        raise RefusedError(
            "FlagsUnknown",
            f"scaleTarget {model.spec.scale_target.name} {FLAGS_NEEDED}",
        )
    is_current = bool(model.spec.scale_target) or (
        state.deployment is not None and state.deployment.digest == spec_digest(model)
    )
    question = Question(request=request, state=state, fleet=fleet, memory=memory, asker=asker)
    if live and is_current:
        sizing, problem = _as_it_runs(question, live)
        found = _chosen(question, model, sizing, must_apply=False, problem=problem)
        return replace(found, better_asked=_better_asked(question, found))
    return _chosen(question, model, _freely(question, live), must_apply=True)


def choose_running(state: ModelState, fleet: Fleet, memory: ObjectMemory, asker: Asker) -> Chosen:
    """Size what runs; the state's model is the one that its pods were made for.

    Raises:
        RefusedError, CatalogError, SizingError, SearchAbandonedError: as ``choose`` does.
    """
    model = checked(state)
    request = _request(model, state, fleet, memory)
    live = _live_flags(state, model, request)
    if live is None:
        raise RefusedError("FlagsUnknown", "the flags that run cannot be read")
    question = Question(request=request, state=state, fleet=fleet, memory=memory, asker=asker)
    sizing, problem = _as_it_runs(question, live)
    return _chosen(question, model, sizing, must_apply=False, problem=problem)


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What one object asks of sizing, and what is believed of it."""

    request: SizingRequest
    """With the prior's constants, and no flags."""
    state: ModelState
    fleet: Fleet
    memory: ObjectMemory
    asker: Asker

    def belief(self, flags: Flags | None) -> Belief:
        return belief(self.request, flags, self.state, self.fleet, self.memory)

    def size(self, flags: Flags | None, *, run: bool) -> Sizing:
        """Return the answer for engines with these flags; ``run``: they stay.

        Where the slow end of what is believed keeps the SLO at no rate, its middle is asked.

        Raises:
            SizingError, SearchAbandonedError: as sizing does.
        """
        held = self.belief(flags)
        request = self.request
        if run and flags:
            known = kv_tokens(request, flags, self.state, self.fleet, self.memory)
            request = replace(request, flags=flags, measured_kv_tokens=known)
        try:
            return self.asker.size(asked_with(request, held, held.asked.slow))
        except SLOInfeasibleError:
            return self.asker.size(asked_with(request, held, held.asked.middle))


def _chosen(
    question: Question,
    model: ModelDeployment,
    sizing: Sizing,
    *,
    must_apply: bool,
    problem: str | None = None,
) -> Chosen:
    return Chosen(
        model=model,
        sizing=sizing,
        belief=question.belief(sizing.flags),
        goodput_factor=factor_now(question.memory.posterior, now_s=question.fleet.now_s),
        must_apply=must_apply,
        problem=problem,
    )


def _better_asked(question: Question, found: Chosen) -> BetterAsked | None:
    """Return the plan with another max-num-seqs that measured constants favour, if one is known.

    Asked when the constants have stood for a while, and rarely: a search of flags is a long one.
    """
    flags, held, now_s = found.sizing.flags, found.belief, question.fleet.now_s
    settled_s = now_s - held.asked.since_s
    is_due = held.posterior.num_windows >= MIN_WINDOWS and settled_s >= SETTLED_S
    if not (is_due or (found.problem and held.is_measured)):
        return None
    last = question.memory.better_asked
    known = last if last is not None and last.flags == flags else None
    if known is not None and now_s - known.at_s < ASKED_AGAIN_S:
        is_worth_it = known.sizing is not None and _is_worth_it(found, known.sizing)
        return known if is_worth_it else replace(known, sizing=None)
    try:
        return BetterAsked(at_s=now_s, flags=flags, sizing=_better_slots(question, found))
    except SearchAbandonedError:
        return known  # what serves the demand was answered: this can wait


def _is_worth_it(found: Chosen, best: Sizing) -> bool:
    return found.problem is not None or found.gain_of(best) > GAIN_WORTH_A_RESTART


def _better_slots(question: Question, found: Chosen) -> Sizing | None:
    """Return the plan with another max-num-seqs, if it gains.

    Where the cache stops the batch, what another flag leaves of it is an estimate, and nothing is
    said.
    """
    flags, held = found.sizing.flags, found.belief
    request = replace(question.request, num_gpus=flags.parallelism.num_gpus)
    try:
        best = question.asker.size(asked_with(request, held, held.asked.slow))
    except SizingError:
        return None
    is_other = best.flags.max_num_seqs != flags.max_num_seqs
    is_same_split = best.flags.parallelism == flags.parallelism
    known = "KVCache" not in {best.limited_by, found.sizing.limited_by}
    is_worth_it = _is_worth_it(found, best)
    return best if is_other and is_same_split and is_worth_it and known else None


def slots_reasons(found: Chosen) -> tuple[Reason, ...]:
    """Say what another max-num-seqs would gain; it takes a restart, which is not begun for it."""
    best, sizing = found.better_slots, found.sizing
    if best is None:
        return ()
    each = significant(best.goodput_requests_per_s)
    against = (
        f"no rate keeps the SLO with the {sizing.flags.max_num_seqs} that run"
        if found.problem
        else f"{found.gain_of(best):.0%} more than the {sizing.flags.max_num_seqs} that run"
    )
    message = (
        f"by what is measured, max-num-seqs {best.flags.max_num_seqs} would serve {each} "
        f"requests/s per replica, {against}; engines restart for it"
    )
    return (Reason(code="MaxNumSeqs", message=message),)


def _as_it_runs(question: Question, live: Flags) -> tuple[Sizing, str | None]:
    """Size what runs. A learned constant or longer prompts must not freeze it in overload.

    Where no rate keeps the SLO any more, the fleet is sized for throughput and the reason given.
    """
    try:
        return question.size(live, run=True), None
    except SLOInfeasibleError as infeasible:
        offline = replace(question, request=replace(question.request, slo=Slo()))
        return offline.size(live, run=True), str(infeasible)


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
    if memory.arrival_scv is not None:
        request = _with_arrivals(request, memory.arrival_scv)
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


def _with_arrivals(request: SizingRequest, arrival_scv: float) -> SizingRequest:
    measured = arrivals_input(arrival_scv, request.routing, Origin.MEASURED)
    inputs = replaced(request.inputs, measured)
    return replace(request, arrival_scv=arrival_scv, inputs=inputs)


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


def _freely(question: Question, live: Flags | None) -> Sizing:
    def size(flags: Flags | None, run: bool) -> Sizing:
        return question.size(flags, run=run)

    return resized(size, live, num_gpus=question.request.num_gpus)
