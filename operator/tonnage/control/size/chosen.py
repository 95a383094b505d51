"""What one object asks for now: with the flags that run, or with flags to be chosen."""

import math
from dataclasses import replace
from functools import lru_cache

from tonnage.api.objects import ModelDeployment
from tonnage.api.status import Reason
from tonnage.control.input.memory import FlagSearchResult
from tonnage.control.input.sizing_cache import SizingCache
from tonnage.control.input.state import (
    ACTING,
    NO_CONFIG,
    Assessment,
    Chosen,
    DeploymentView,
    Fleet,
    ModelState,
)
from tonnage.control.input.writers import WriteKind
from tonnage.control.observe.ownership import conflict_written
from tonnage.control.observe.starting import has_started, lowered_flags
from tonnage.control.size.allowed import check_allowed
from tonnage.control.size.question import SizingQuestion, question_of, with_arrivals
from tonnage.estimate.attainment import factor_now
from tonnage.estimate.planning_constants import BAND, SETTLED_S, Belief, step_ratio
from tonnage.manifests.arguments import as_told, read_flags
from tonnage.manifests.children import (
    differs_in_pods,
    flags_from_annotation,
    replaces_pods,
    spec_digest,
)
from tonnage.manifests.names import DEPLOYMENT
from tonnage.manifests.target import RefusedError
from tonnage.sizing.errors import SearchAbandonedError, SizingError, SLOInfeasibleError
from tonnage.sizing.offload import RUNS_ON, decide_offload, without_refused
from tonnage.sizing.parallelism.draft import splits_for
from tonnage.sizing.plan import Sizing
from tonnage.sizing.request import Flags
from tonnage.sizing.resized import GAIN_WORTH_A_RESTART, size_changed_spec, with_planned_split
from tonnage.sizing.split import Parallelism
from tonnage.sizing.workload import Slo
from tonnage.units import significant

FLAGS_UNKNOWN = "FlagsUnknown"
"""Of a refusal: what runs is no engine that tells its flags."""
MIN_WINDOWS = 10
SHARED_MODES = frozenset({"ReadWriteMany", "ReadOnlyMany"})
OF_ONE_POD = "ReadWriteOncePod"
DEPLOYMENTS = 4096
"""Of which flags that were read are remembered."""
ASKED_AGAIN_S = 600.0
"""Between two searches for better flags of a batch."""


def choose(found: Assessment, fleet: Fleet, asker: SizingCache) -> Chosen:
    """Size an object: live flags stay until the user's spec changes.

    Raises:
        RefusedError, CatalogError, SizingError: nothing can be planned; the message says why.
        SearchAbandonedError: the time for searches is spent before there is an answer.
    """
    state, model = found.state, actionable_model(found.state)
    check_allowed(model, fleet.settings)
    is_current = bool(model.spec.scale_target) or (
        state.deployment is not None and state.deployment.digest == spec_digest(model)
    )
    # Engines are sized as they were where a spec changed in what pods need beside them.
    live_from = state.deployment.made_from if state.deployment else None
    may_stay = is_current or (state.deployment is not None and differs_in_pods(model, live_from))

    def ask(has_host_cache: bool) -> SizingQuestion:
        return question_of(model, found, fleet, asker, has_host_cache=has_host_cache)

    question = ask(may_stay and state.has_host_cache)
    live = _live_flags(question)
    if live and may_stay:
        sizing, problem = _as_it_runs(question, live)
        if model.spec.scale_target and not has_started(state):
            sizing.check_start()
        deployed = state.deployment
        if not is_current and deployed and replaces_pods(model, deployed.made_from):
            sizing = without_refused(model.spec, sizing)
        chosen = _chosen_with(question, sizing, needs_apply=not is_current, problem=problem)
        chosen = replace(chosen, why_offload=RUNS_ON)
        if not is_current:
            return replace(chosen, better_asked=found.memory.sizing.better_asked)
        return replace(
            chosen, better_asked=_better_asked(question, chosen), cured=_cured(question, chosen)
        )
    sizing, why_offload = decide_offload(
        model.spec, lambda has_host_cache: _freely(ask(has_host_cache), live)
    )
    question = ask(sizing.request.has_host_cache)
    if live is None:
        sizing = _with_planned_split(question, sizing)
    return replace(_chosen_with(question, sizing, needs_apply=True), why_offload=why_offload)


def _with_planned_split(question: SizingQuestion, best: Sizing) -> Sizing:
    known, request = question.found.memory.posterior.planned_split, question.request
    model = question.model
    if known in {None, planned_split(model, best.parallelism)}:
        return best
    splits = splits_for(request)
    planned = next((each for each in splits if known == planned_split(model, each)), None)
    if planned is None:
        return best
    return with_planned_split(best, lambda: _freely(question.of_split(planned), None))


def planned_split(model: ModelDeployment, split: Parallelism) -> str:
    """Return what is stored of a split that was planned for a spec while nothing ran."""
    return f"{spec_digest(model)} {split}"


def choose_running(
    found: Assessment, fleet: Fleet, asker: SizingCache, *, is_reapplied: bool = True
) -> Chosen:
    """Size what runs; the state's model is the one that its pods were made for.

    ``is_reapplied``: ours may be about to be reapplied over an edit of its template.

    Raises:
        RefusedError, CatalogError, SizingError, SearchAbandonedError: as ``choose`` does.
    """
    question = question_of(actionable_model(found.state), found, fleet, asker)
    live = _live_flags(question, may_reapply=is_reapplied)
    if live is None:
        raise RefusedError(FLAGS_UNKNOWN, "the flags that run cannot be read")
    sizing, problem = _as_it_runs(question, live)
    chosen = _chosen_with(question, sizing, needs_apply=False, problem=problem)
    return replace(chosen, why_offload=RUNS_ON)


def _chosen_with(
    question: SizingQuestion, sizing: Sizing, *, needs_apply: bool, problem: str | None = None
) -> Chosen:
    posterior, now_s = question.found.memory.posterior, question.fleet.now_s
    return Chosen(
        model=question.model,
        sizing=sizing,
        belief=question.belief(sizing.flags),
        goodput_factor=factor_now(posterior, now_s=now_s),
        needs_apply=needs_apply,
        problem=problem,
    )


def _cured(question: SizingQuestion, found: Chosen) -> Sizing | None:
    """Return the plan with flags with which pods start, where none does with those that run."""
    flags = lowered_flags(question.found.state, found.sizing.flags, found.model)
    if flags is None:
        return None
    try:
        return _as_it_runs(question, flags)[0]
    except (SizingError, SearchAbandonedError):
        return None


def _better_asked(question: SizingQuestion, found: Chosen) -> FlagSearchResult | None:
    """Return the plan with other flags of a batch that measured constants favour, if one is known.

    Asked when the constants have not moved for a while, and rarely: a search of flags is a long
    one. What was found stays while they are in the band in which plans ask the same, and while
    lengths are those it was found for.
    """
    flags, held, now_s = found.sizing.flags, found.belief, question.fleet.now_s
    settled_s = now_s - held.asked.since_s
    is_due = held.posterior.num_windows >= MIN_WINDOWS and settled_s >= SETTLED_S
    may_ask = is_due or (found.problem is not None and held.is_measured)
    last = question.found.memory.sizing.better_asked
    is_same = last is not None and last.flags == flags and _still_asks(question, held, last)
    known = last if is_same else None
    if known is not None and not (may_ask and now_s - known.at_s >= ASKED_AGAIN_S):
        is_worth_it = known.sizing is not None and _is_worth_it(found, known.sizing)
        return known if is_worth_it else replace(known, sizing=None)
    if flags.is_cured or not may_ask:
        return None
    try:
        better = _better_slots(question, found)
        return FlagSearchResult(at_s=now_s, flags=flags, asked=held.asked, sizing=better)
    except SearchAbandonedError:
        return known  # what serves the demand was answered: this can wait


def _still_asks(question: SizingQuestion, held: Belief, last: FlagSearchResult) -> bool:
    """Tell whether a plan would be asked with much the same constants and lengths as this one was.

    That nothing better was found is asked again soon enough, whatever the lengths.
    """
    asked, workload = held.asked, question.request.workload
    are_same_lengths = last.sizing is None or last.sizing.request.workload == workload
    moved = math.log(step_ratio(asked.slow, last.asked.slow))
    return asked.key == last.asked.key and abs(moved) <= BAND and are_same_lengths


def _is_worth_it(found: Chosen, best: Sizing) -> bool:
    return found.problem is not None or found.gain_of(best) > GAIN_WORTH_A_RESTART


def _better_slots(question: SizingQuestion, found: Chosen) -> Sizing | None:
    """Return the plan with other slots or another token budget, if it gains.

    Not where the cache stops the batch: what another flag leaves of it is an estimate.
    """
    flags = found.sizing.flags
    try:
        best = question.best(flags)
    except SizingError:
        return None
    is_other = bool(moved_flags(flags, best.flags))
    is_same_split = best.flags.parallelism == flags.parallelism
    known = "KVCache" not in {best.limited_by, found.sizing.limited_by}
    is_adopted = is_other and is_same_split and known and _is_worth_it(found, best)
    return without_refused(found.model.spec, best) if is_adopted else None


def moved_flags(running: Flags, best: Flags) -> str:
    """Return the flags of a batch that differ from those that run, as vLLM is told them."""
    named = {
        "max-num-seqs": (running.max_num_seqs, best.max_num_seqs),
        "max-num-batched-tokens": (running.max_num_batched_tokens, best.max_num_batched_tokens),
    }
    return " and ".join(f"{name} {new}" for name, (old, new) in named.items() if new != old)


def slots_reasons(found: Chosen) -> tuple[Reason, ...]:
    """Say what other flags of a batch would gain: a restart, which is not begun for it."""
    best, sizing = found.better_max_num_seqs, found.sizing
    if best is None:
        return ()
    each = significant(best.goodput_requests_per_s)
    runs = f"the {moved_flags(best.flags, sizing.flags)} that run"
    against = (
        f"no rate meets the SLO with {runs}"
        if found.problem
        else f"{found.gain_of(best):.0%} more than {runs}"
    )
    message = (
        f"by what is measured, {moved_flags(sizing.flags, best.flags)} would serve {each} "
        f"requests/s per replica, {against}; engines restart for it"
    )
    return (Reason(code="MaxNumSeqs", message=message),)


def _as_it_runs(question: SizingQuestion, live: Flags) -> tuple[Sizing, str | None]:
    """Size what runs. A learned constant or longer prompts must not freeze it in overload.

    Where bursts are why a replica keeps the SLO at no rate, it is asked about the most that it
    bears: to the next lower power of two, so the same is asked of all with more bursts. Where no
    rate keeps it without any, the fleet is sized for throughput, with the reason.
    """
    try:
        return question.size(live, run=True), None
    except SLOInfeasibleError as infeasible:
        if (scv := question.expected.arrival_scv) > 1:
            lower = 2.0 ** (math.ceil(math.log2(scv)) - 1)
            calmer = with_arrivals(question.expected, lower, True)
            return _as_it_runs(replace(question, expected=calmer), live)
        offline = replace(question, expected=replace(question.expected, slo=Slo()))
        return offline.size(live, run=True), str(infeasible)


def actionable_model(state: ModelState) -> ModelDeployment:
    """Return the model of an object that may be acted on.

    Raises:
        RefusedError: the spec is invalid, or somebody else has a claim.
    """
    if not isinstance(state.model, ModelDeployment):
        raise RefusedError("InvalidSpec", str(state.model))
    if isinstance(state.model_config, Reason) and state.model_config.code == NO_CONFIG:
        raise RefusedError(*state.model_config)
    if state.earlier_owner:
        raise RefusedError(
            "ConflictingOwner",
            f"scaleTarget is already scaled by the older ModelDeployment {state.earlier_owner}",
        )
    _check_claim(state, state.model)
    _check_deployment(state, state.model)
    return state.model


def _check_claim(state: ModelState, model: ModelDeployment) -> None:
    """Refuse several pods on a volume that those of one node, or one pod, alone can mount.

    The first of another node would wait for it for ever. So would the pod of an update that comes
    before the only one that has the volume goes.
    """
    modes, most, pods = state.claim_modes, model.spec.scaling.max_replicas, model.spec.pods
    if modes is None or pods is None or SHARED_MODES & set(modes):
        return
    claim = f"pods.modelCacheClaim {pods.model_cache_claim} is {', '.join(modes)}"
    if most > 1:
        raise RefusedError(
            "ClaimNotShared",
            f"{claim}, which pods of one node alone can mount, and maxReplicas is {most}: take a "
            "claim that is ReadWriteMany or ReadOnlyMany, maxReplicas 1, or no claim",
        )
    if OF_ONE_POD in modes and pods.max_surge > 0:
        raise RefusedError(
            "ClaimNotShared",
            f"{claim}, which one pod alone can mount, and pods.maxSurge 1 starts its successor "
            "before it goes: take pods.maxSurge 0, or another claim",
        )


def _check_deployment(state: ModelState, model: ModelDeployment) -> None:
    target = model.spec.scale_target
    if state.oversized_bytes is not None:
        kind, name = (target.kind, target.name) if target else (DEPLOYMENT.kind, state.view.name)
        raise RefusedError(
            "DeploymentTooLarge",
            f"{kind} {name} has "
            f"{state.oversized_bytes} bytes, and Tonnage reads no more than the name of one above "
            "256 KiB: remove labels, annotations or variables",
        )
    deployment = state.deployment or state.name_conflict
    if target:
        if deployment is None or not deployment.is_opted_in:
            raise RefusedError(
                "TargetNotAllowed",
                f"{target.kind} {target.name} must exist and carry the label "
                'tonnage.dev/managed: "true" on itself and on its pod template, each of those of a '
                "LeaderWorkerSet",
            )
        if deployment.is_of_a_model:
            raise RefusedError(
                "TargetNotAllowed", f"{target.kind} {target.name} is of {deployment.owner}"
            )
    elif state.name_conflict is not None:
        raise RefusedError("NameConflict", conflict_written(state.name_conflict, model.uid))


def _live_flags(question: SizingQuestion, *, may_reapply: bool = True) -> Flags | None:
    """Return what runs: as we recorded it on our own Deployment, else as its arguments say.

    Where these differ, the record is what a template is brought back to that somebody else wrote
    to, if it is. Else engines run with their arguments, whether these were changed or the record.
    """
    deployment = question.found.state.deployment
    if deployment is None or question.model.spec.scale_target:
        return question.target_flags
    default = question.expected.engine.constants.gpu_memory_utilization
    recorded, live = _read_flags(deployment.flags, deployment.engine.arguments, default)
    if recorded is None or live is None or recorded == live:
        return recorded or live
    is_reapplied = may_reapply and _is_reapplied(question, deployment)
    return recorded if is_reapplied else live


@lru_cache(maxsize=DEPLOYMENTS)
def _read_flags(
    record: str | None, arguments: tuple[str, ...], default_utilization: float
) -> tuple[Flags | None, Flags | None]:
    """Return flags as recorded, and as arguments say: the same where these tell the record."""
    recorded = flags_from_annotation(record or "")
    live = read_flags(arguments, default_utilization=default_utilization)
    is_same = recorded and live and as_told(recorded) == as_told(live)
    return recorded, recorded if is_same else live


def _is_reapplied(question: SizingQuestion, deployment: DeploymentView) -> bool:
    """Tell whether what somebody edited is about to be applied over, or was and that is not seen.

    An edit that stays is what engines run with: in a mode that writes nothing, where another writer
    wins, and while the API server refuses our template.
    """
    memory, writers = question.found.memory, question.found.memory.writers
    is_acting = question.model.spec.scaling.mode in ACTING
    is_refused = WriteKind.TEMPLATE in memory.written.failures
    if not is_acting or is_refused or writers.template.in_backoff:
        return False
    if writers.drift is None or not writers.drift.is_known:
        return bool(deployment.template_managers)
    return writers.template.edit is not None or writers.is_template_awaited(question.fleet.now_s)


def _freely(question: SizingQuestion, live: Flags | None) -> Sizing:
    return size_changed_spec(
        lambda flags, run: question.size(flags, run=run), live, question.request
    )
