"""One object in one tick: measure, size, decide, and say what is to be written. Pure."""

from dataclasses import replace

from tonnage.api.status import Reason
from tonnage.catalog.gpu import CatalogError
from tonnage.control.decide.approval import cost_proposal, unapproved_roll, until_approved
from tonnage.control.decide.budget import RemainingBudget, over_budget, short_since_s
from tonnage.control.decide.outlook import (
    given_back,
    held_s,
    lead_s,
    need_for_demand,
    remember_need,
    remembered_demand,
)
from tonnage.control.decide.rollout import Moved, other_flags
from tonnage.control.decide.situation import build_situation
from tonnage.control.decide.template import drain_reasons, roll_changes, template_of
from tonnage.control.decide.writers import with_writers
from tonnage.control.input.finding import UNREADABLE
from tonnage.control.input.memory import ObjectMemory, SizingMemory
from tonnage.control.input.sizing_cache import SizingCache
from tonnage.control.input.state import Assessment, Chosen, Fleet, ModelState, Observed, Pending
from tonnage.control.learn.attainment import factor_reasons, judge
from tonnage.control.learn.believed import cache_reasons, doubt_reasons
from tonnage.control.measure.attained import budgets_of
from tonnage.control.measure.remembered import with_observed
from tonnage.control.measure.traffic import (
    measure_traffic,
    observe_engines,
    untaken_reasons,
    without_waiting_for_decode,
)
from tonnage.control.observe.ownership import may_act
from tonnage.control.size.allowed import apart
from tonnage.control.size.chosen import choose, choose_running, planned_split, slots_reasons
from tonnage.control.size.question import as_it_runs, is_spec_ahead
from tonnage.manifests.children import NotServableError
from tonnage.manifests.names import MANAGED_LABEL
from tonnage.manifests.pod import deprecation
from tonnage.manifests.protection import pdb_blocks_eviction
from tonnage.manifests.target import RefusedError
from tonnage.policy.decide import decide
from tonnage.policy.need import raise_to_floor
from tonnage.policy.situation import Decision
from tonnage.sizing.errors import SearchAbandonedError, SizingError
from tonnage.sizing.schedules import Event, events_within
from tonnage.units import count_of

REFUSALS = (RefusedError, CatalogError, SizingError, NotServableError)
"""The ways in which an object is understood and the answer is no."""
MAKES_NOTHING = (
    "this operator only scales existing Deployments (settings.mode scaleOnly): name one in "
    f'spec.scaleTarget and label it and its pods {MANAGED_LABEL}="true", set scaling.mode '
    "Recommend, or install the operator with settings.mode full"
)
MAKES_NO_ROLES = "spec.topology creates ModelDeployments, and this operator only scales (scaleOnly)"


def size_object(
    state: ModelState, fleet: Fleet, memory: ObjectMemory, asker: SizingCache
) -> Assessment:
    """Measure an object and size it, as far as the time for searches goes."""
    state = without_waiting_for_decode(state)
    traffics = measure_traffic(state, fleet, memory)
    found = Assessment(state=state, memory=memory, traffics=traffics)
    found = replace(found, memory=with_writers(found, fleet))
    found = replace(found, memory=with_observed(found, fleet))
    if why := fleet.unlisted.get(state.view.namespace):
        message = f"the workloads of this namespace cannot be read, so none is changed: {why}"
        return replace(found, refusal=Reason(UNREADABLE, message))
    try:
        return _planned(found, fleet, asker)
    except SearchAbandonedError as abandoned:
        return _waiting(found, fleet, str(abandoned))
    except REFUSALS as refused:
        return _with_refusal(found, refused, fleet, asker)


def _planned(found: Assessment, fleet: Fleet, asker: SizingCache) -> Assessment:
    """Return the assessment with a plan, or with the two roles that serve the object.

    Raises:
        RefusedError, CatalogError, SizingError: the spec cannot be carried out.
        SearchAbandonedError: the time for searches is spent before there is an answer.
    """
    mode = fleet.settings.mode
    if roles := apart(found, fleet, asker):
        if mode == "scaleOnly":
            raise RefusedError("ScaleOnly", MAKES_NO_ROLES)
        return _without_wait(replace(found, apart=roles))
    chosen, proposal = until_approved(choose(found, fleet, asker), found, fleet, asker)
    may_make = mode != "scaleOnly" or chosen.model.spec.scale_target or not found.is_acting
    return replace(
        found,
        chosen=chosen,
        proposals=(proposal,) if proposal else (),
        refusal=None if may_make else Reason("ScaleOnly", MAKES_NOTHING),
    )


def _with_refusal(
    found: Assessment, why: Exception, fleet: Fleet, asker: SizingCache
) -> Assessment:
    """Say why the spec is not carried out. What runs is sized on by the one that it was made from.

    Else a spec that is refused would leave the replicas of before it to any load. Where what runs
    waits for a search it keeps its turn, and scales nothing until then.
    """
    known = replace(found.memory.decided, better_since_s=None)  # a gain of other engines
    memory = replace(found.memory, decided=known)
    code = why.reason if isinstance(why, RefusedError) else type(why).__name__
    refusal = Reason(code.removesuffix("Error"), str(why))
    found = replace(found, memory=memory, chosen=None, refusal=refusal)
    may_scale = found.is_acting and fleet.settings.mode == "full"
    running = as_it_runs(found.state) if may_scale else None
    if running is None:
        return _without_wait(found)
    try:
        as_run = replace(found, state=running)
        chosen = choose_running(as_run, fleet, asker, is_reapplied=False)
    except SearchAbandonedError:
        return replace(found, memory=_in_turn(found, fleet.now_s))
    except REFUSALS:
        return _without_wait(found)
    return replace(found, chosen=chosen, uses_previous_spec=True)


def _without_wait(found: Assessment) -> Assessment:
    generation = found.state.view.generation
    sizing = replace(found.memory.sizing, waiting_since_s=None, generation=generation)
    return replace(found, memory=replace(found.memory, sizing=sizing))


def _waiting(found: Assessment, fleet: Fleet, why: str) -> Assessment:
    """Leave everything as it is, in words too until the wait lasts as long as gauges may."""
    memory, deployment = _in_turn(found, fleet.now_s), found.state.deployment
    since_s = memory.sizing.waiting_since_s
    waited_s = 0.0 if since_s is None else fleet.now_s - since_s
    stay = ("replica stays as it is", "replicas stay as they are")
    runs = count_of(deployment.replicas, *stay) if deployment else "nothing runs yet"
    if found.state.own_roles:
        runs = "both roles stay as they are"
    return replace(
        found,
        memory=memory,
        pending=Pending(
            message=f"the capacity search has waited for {waited_s:.0f} s: {why}; {runs}",
            is_told="PlanValid" not in found.memory.reported.conditions
            or is_spec_ahead(found.state)
            or waited_s >= fleet.settings.status_interval_s,
        ),
    )


def _in_turn(found: Assessment, now_s: float) -> ObjectMemory:
    """Remember since when a search is awaited, and carry the last recommendation forward.

    An edit waits anew: who edits in each tick is never who has waited longest.
    """
    memory, generation = found.memory, found.state.view.generation
    decided, sizing = memory.decided, memory.sizing
    is_edited = sizing.waiting_generation != generation
    since_s = now_s if is_edited else sizing.waiting_since_s
    if recent := decided.recent_needs:  # skipped ticks end no stabilization window
        decided = replace(decided, recent_needs=(*recent[:-1], replace(recent[-1], at_s=now_s)))
    return replace(
        memory,
        decided=decided,
        sizing=replace(
            sizing,
            waiting_since_s=now_s if since_s is None else since_s,
            waiting_generation=generation,
        ),
    )


def decide_object(
    found: Assessment, fleet: Fleet, asker: SizingCache, remaining: RemainingBudget
) -> Assessment:
    """Say what is to be done with an object that was sized; any other is left as it is."""
    try:
        found = _with_template(found, fleet, remaining)
    except REFUSALS as refused:
        found = _with_refusal(found, refused, fleet, asker)
    chosen = found.chosen
    if chosen is None:
        return found
    reported = found.memory.reported
    observed = observe_engines(found.state, fleet, chosen.sizing, chosen.belief, reported)
    memory, events = _with_load(found, chosen, observed, fleet)
    wanted = raise_to_floor(need_for_demand(found, memory, chosen, fleet), chosen.capacity, events)
    hold_s = held_s(memory.demand, memory.posterior, chosen.sizing, fleet.settings)
    known = remember_need(found, chosen, wanted, fleet, hold_s)
    found = replace(
        found,
        memory=replace(memory, decided=known),
        observed=observed,
        budgets=()
        if memory.uid in fleet.past_awaited  # Prometheus is asked what was before
        else budgets_of(memory, chosen, now_s=fleet.windows_end_s),
        need=wanted,
        hold_s=hold_s,
    )
    decision = decide(build_situation(found, chosen, wanted, fleet, remaining))
    return concluded(found, chosen, decision, fleet, remaining)


def concluded(
    found: Assessment, chosen: Chosen, decision: Decision, fleet: Fleet, remaining: RemainingBudget
) -> Assessment:
    """Put together what was decided: replicas, template, what waits for somebody, and notes."""
    cost, memory, known = cost_proposal(found, chosen, decision), found.memory, found.memory.decided
    proposals = (*found.proposals, *((cost,) if cost else ()))
    found = replace(found, decision=decision, proposals=proposals)
    moved = other_flags(found, chosen, fleet, remaining)
    known = replace(
        known,
        given_back=given_back(known.given_back, found.state, decision, fleet),
        short_since_s=short_since_s(found, decision, fleet),
        better_since_s=moved.since_s,
    )
    posterior = memory.posterior
    if moved.adopted and not moved.adopted.sizing.flags.is_cured:
        posterior = replace(posterior, slots_moved_at_s=fleet.now_s)
    return replace(
        found,
        memory=replace(memory, decided=known, posterior=posterior),
        decision=replace(decision, notes=_notes(found, chosen, moved, fleet)),
        chosen=moved.adopted or chosen,
        template=moved.template or found.template,
        changes=moved.changes or found.changes,
        proposals=(moved.proposal,) if moved.proposal else proposals,
    )


def _notes(found: Assessment, chosen: Chosen, moved: Moved, fleet: Fleet) -> tuple[Reason, ...]:
    """Return what there is to say of the replicas beside what made their number."""
    memory = found.memory
    return (
        *doubt_reasons(chosen.belief, share=fleet.settings.speed_range),
        *cache_reasons(chosen.sizing.request),
        *factor_reasons(memory.goodput, memory.posterior, chosen.goodput_factor),
        *((moved.note,) if moved.note else slots_reasons(chosen)),
        *drain_reasons(found, chosen),
        *pdb_blocks_eviction(chosen.model),
        *deprecation(chosen.model),
        *untaken_reasons(found.state.engines),
    )


def _with_template(found: Assessment, fleet: Fleet, remaining: RemainingBudget) -> Assessment:
    """Return the assessment with the Deployment to apply, if one is; of a refused spec none is.

    Raises:
        RefusedError, NotServableError: it cannot be.
    """
    state, chosen = found.state, found.chosen
    if chosen is None or found.refusal:
        return found
    template = template_of(found, fleet, chosen)
    over = over_budget(state, chosen, remaining) if template else None
    if over and chosen.needs_apply:
        raise over
    if template is None or over:  # an edit that the budget keeps is told all the same
        return found
    changes = roll_changes(state.deployment, template)
    if proposal := unapproved_roll(state, chosen, changes):
        return replace(found, proposals=(*found.proposals, proposal))
    return replace(found, template=template, changes=changes)


def _with_load(
    found: Assessment, chosen: Chosen, observed: Observed, fleet: Fleet
) -> tuple[ObjectMemory, tuple[Event, ...]]:
    """Take in load, promises and demand as they are now; return the events that are known, too."""
    goodput, learned = judge(found, chosen, observed, fleet)
    is_made = may_act(found, fleet) and not found.memory.written.failures
    if found.state.deployment is None and not is_made:
        planned = planned_split(chosen.model, chosen.sizing.parallelism)
        learned = replace(learned, planned_split=planned)
    sizing = SizingMemory(
        asked_speed=chosen.belief.asked,
        better_asked=chosen.better_asked,
        generation=found.state.view.generation,
    )
    schedules, lead = chosen.model.spec.scaling.schedules, lead_s(learned, fleet.settings)
    events = events_within(schedules, now_s=fleet.now_s, lead_s=lead)
    memory = replace(found.memory, sizing=sizing, goodput=goodput, posterior=learned)
    return remembered_demand(memory, found.traffics, chosen.sizing, events, fleet), events
