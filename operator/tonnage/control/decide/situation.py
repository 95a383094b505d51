"""What a decision on replicas may depend on, gathered from an assessment. Pure."""

from tonnage.api.status import Reason
from tonnage.control.decide.approval import approved_by_cost
from tonnage.control.decide.budget import RemainingBudget, gpus_of_replica, template_gpus
from tonnage.control.decide.needed import needs_in_replicas_of_now
from tonnage.control.decide.outlook import held_s, scale_down_window_s, unseen_room
from tonnage.control.decide.pending import (
    is_replacing,
    num_placed,
    num_unschedulable,
    retry_at_s,
    unplaced_reason,
)
from tonnage.control.input.memory import ObjectMemory
from tonnage.control.input.state import Assessment, Chosen, Fleet, ModelState
from tonnage.control.measure.pods import pace_s, window_base
from tonnage.control.observe.ownership import may_act
from tonnage.control.observe.starting import no_more_start, why_refused
from tonnage.manifests.eviction import evictable
from tonnage.policy.situation import Need, Situation
from tonnage.sizing.plan import requests_per_s_asked


def build_situation(
    found: Assessment, chosen: Chosen, wanted: Need, fleet: Fleet, remaining: RemainingBudget
) -> Situation:
    """Return what the replicas of an object are decided on."""
    state, memory, scaling = found.state, found.memory, chosen.model.spec.scaling
    pods, known, learned = memory.pods, memory.decided, memory.posterior
    back = known.given_back
    return Situation(
        now_s=fleet.now_s,
        current=state.replicas,
        given_up=num_unschedulable(state, fleet),
        placed=num_placed(state, fleet),
        retry_at_s=retry_at_s(back, fleet.settings) if back else None,
        unplaced_reason=unplaced_reason(state, back, fleet),
        refused=_pod_refusal(state) or no_more_start(state, pods),
        minimum=scaling.min_replicas,
        maximum=scaling.max_replicas,
        need=wanted,
        metrics=found.traffics.metrics,
        recent_needs=needs_in_replicas_of_now(known.recent_needs, chosen.replica_goodput),
        watching_since_s=known.since_s,
        lost_at_s=pods.lost_at_s,
        lost_pods=pods.lost,
        is_replacing=is_replacing(state, pods, fleet),
        blackout=found.blackout,
        is_blind=found.traffics.is_blind,
        evictable=evictable(chosen.model),
        draining=_draining(found),
        awaited=_expected_replicas(chosen, memory, fleet),
        stepped=pods.stepped,
        window_base=window_base(pods, fleet),
        gpus_per_replica=gpus_of_replica(found, chosen),
        free_budget_gpus=None
        if remaining.gpus is None
        else remaining.gpus - template_gpus(found, fleet),
        uncounted_gpus=remaining.uncounted,
        approved=approved_by_cost(found, chosen),
        is_rolling=_keeps_pods(found, fleet),
        left=memory.writers.left if found.is_acting else None,
        scale_down_window_s=scale_down_window_s(learned, fleet.settings),
        hold_s=held_s(memory.demand, learned, chosen.sizing, fleet.settings),
        max_scale_up_replicas=fleet.settings.max_scale_up_replicas,
        pace_s=pace_s(fleet.settings),
    )


def _expected_replicas(chosen: Chosen, memory: ObjectMemory, fleet: Fleet) -> int | None:
    """Return what spec.demand needs, while its traffic is awaited or has only just come."""
    expected, served_since_s = requests_per_s_asked(chosen.sizing), memory.traffic.served_since_s
    if chosen.model.spec.demand is None or expected is None:
        return None
    until_s = (
        memory.decided.since_s + fleet.settings.expected_hold_s
        if served_since_s is None
        else served_since_s + scale_down_window_s(memory.posterior, fleet.settings)
    )
    if fleet.now_s >= until_s:
        return None
    return chosen.capacity.replicas((1 + unseen_room(expected, chosen, fleet.settings)) * expected)


def _keeps_pods(found: Assessment, fleet: Fleet) -> bool:
    """Tell whether pods are replaced, or about to be by a template that we may write.

    Where some wait for GPUs, what is taken away may be what the rollout waits for.
    """
    live, problem = found.state.deployment, found.memory.written.problem
    if live is None or any(pod.unschedulable is not None for pod in found.state.pods):
        return False
    is_due = bool(found.changes) and not problem and may_act(found, fleet)
    return live.is_rolling or is_due


def _draining(found: Assessment) -> tuple[float, float] | None:
    demand, until_s = found.traffics.demand, found.memory.goodput.drained_by_s
    return None if demand is None or until_s is None else (demand.waiting, until_s)


def _pod_refusal(state: ModelState) -> Reason | None:
    """Return why the API server last refused a pod of the Deployment, if so."""
    problems = dict(state.deployment.problems) if state.deployment else {}
    message = problems.get("ReplicaFailure")
    return None if message is None else Reason(why_refused(message), f"pods are refused: {message}")
