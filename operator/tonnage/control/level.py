"""Which decisions left nothing to do, and which have only to wait for room to be written. Pure."""

from typing import Final

from tonnage.api.objects import ModelDeployment
from tonnage.control.input.contest import Contest
from tonnage.control.input.state import Assessment, Fleet, ModelState, ObjectMemory
from tonnage.control.measure.traffic import WARM_UP_SCRAPES, settled
from tonnage.control.report.status import is_level
from tonnage.control.write.writes import Writes
from tonnage.policy.situation import Metrics

OWN_BOUNDS: Final = frozenset({None, "MinReplicas", "MaxReplicas"})
"""Limits that no time lifts."""
UNDER_WAY: Final = frozenset({"Reconciling", "Stalled"})


def is_at_rest(found: Assessment, writes: Writes, memory: ObjectMemory, fleet: Fleet) -> bool:
    """Tell whether a decision left nothing to do, and nothing that time alone brings about."""
    return (
        writes.is_routine  # no child need differ
        and _is_decided(found)
        and _is_steady(found.state, fleet)
        and _is_quiet(memory)
        and is_level(found, memory)
    )


def may_wait(found: Assessment, writes: Writes, memory: ObjectMemory, fleet: Fleet) -> bool:
    """Tell whether what is to be written of a decision may be written a while later as it is.

    It would come to the same until something changes, and nobody else waits for it: no replicas
    change, no pods are replaced, and no GPUs of a budget are taken.
    """
    if found.decision is None or found.refusal or found.pending or found.blackout or found.fault:
        return False
    takes_budget = writes.creates and fleet.settings.max_gpus is not None
    is_retried = memory.retry is not None or memory.status_retry is not None
    is_open = takes_budget or writes.rolls or writes.scale is not None or is_retried
    return writes.num_limited > 0 and not is_open and not has_events(found)


def has_events(found: Assessment) -> bool:
    """Tell whether known events begin and end at times of their own."""
    return bool(found.chosen and found.chosen.model.spec.scaling.schedules)


def _is_decided(found: Assessment) -> bool:
    """Tell whether what runs is what is wanted, by figures that are all there."""
    chosen, decision, live = found.chosen, found.decision, found.state.deployment
    if chosen is None or decision is None or found.refusal or found.pending or found.blackout:
        return False
    if found.changes or found.proposals or chosen.problem:
        return False
    if not found.is_acting and live is None:
        return decision.limited_by in OWN_BOUNDS
    is_all_told = found.traffics.metrics is Metrics.COMPLETE
    is_there = live is not None and decision.replicas == live.replicas
    return is_all_told and is_there and found.template is None and _is_by_need(found)


def _is_by_need(found: Assessment) -> bool:
    """Tell whether the number stands on what is needed now, not on what was needed before."""
    decision, need = found.decision, found.need
    if decision is None or need is None:
        return False
    is_held = decision.limited_by == "Stabilizing"
    is_margin = is_held and need.replicas_with_margin >= decision.replicas
    return is_margin or decision.limited_by in OWN_BOUNDS


def _is_steady(state: ModelState, fleet: Fleet) -> bool:
    """Tell whether everything that is asked for runs, and has for a while."""
    live = state.deployment
    if live is None:
        return isinstance(state.model, ModelDeployment) and not state.pods
    after_s = WARM_UP_SCRAPES * fleet.settings.scrape_interval_s
    warm = settled(state.pods, now_s=fleet.windows_end_s, after_s=after_s)
    is_whole = live.replicas == live.ready == live.total == len(state.pods) == len(warm)
    is_well = not live.problems and all(p.is_ready and not p.trouble for p in state.pods)
    return is_whole and is_well and not live.is_rolling and not state.view.is_deleting


def _is_quiet(memory: ObjectMemory) -> bool:
    """Tell whether nothing is remembered that ends, or is tried again, at a time of its own."""
    waits = (
        memory.blind_since_s,
        memory.waiting_since_s,
        memory.short_since_s,
        memory.queued_since_s,
        memory.drained_by_s,
        memory.given_back,
        memory.rolling,
        memory.retry,
        memory.status_retry,
        memory.write_problem,
        memory.write_fault,
        memory.no_path,
        memory.rivals.parked_at,
    )
    contests = (memory.rivals.replicas, memory.rivals.template)
    is_settled = all(map(_is_over, contests)) and not UNDER_WAY & memory.conditions.keys()
    return is_settled and all(each is None for each in waits)


def _is_over(contest: Contest) -> bool:
    change, is_waiting = contest.change, {contest.held_at, contest.tried} != {None}
    return not is_waiting and (change is None or change.is_over or change.is_overwritten)
