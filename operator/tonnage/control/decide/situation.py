"""What a decision on replicas may depend on, gathered from an assessment, and which go. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tonnage.api.status import Reason
from tonnage.control.decide.approval import approved_by_cost
from tonnage.control.decide.budget import RemainingBudget, gpus_of_replica, template_gpus
from tonnage.control.decide.outlook import (
    is_given_up,
    is_replacing,
    needs_in_replicas_of_now,
    num_unschedulable,
    retry_at_s,
    scale_down_window_s,
    unplaced_reason,
    unseen_room,
)
from tonnage.control.input.memory import ObjectMemory
from tonnage.control.input.state import Assessment, Chosen, Fleet, ModelState
from tonnage.control.measure.remembered import pace_s, window_base
from tonnage.control.observe.ownership import may_act
from tonnage.control.observe.starting import no_more_start, why_refused
from tonnage.estimate.samples import EngineSamples
from tonnage.manifests.protection import evictable
from tonnage.policy.situation import Need, Situation
from tonnage.sizing.plan import requests_per_s_asked


def build_situation(
    found: Assessment, chosen: Chosen, wanted: Need, fleet: Fleet, remaining: RemainingBudget
) -> Situation:
    """Return what the replicas of an object are decided on."""
    state, memory, scaling = found.state, found.memory, chosen.model.spec.scaling
    pods, known, learned = memory.pods, memory.decided, memory.posterior
    back, demand = known.given_back, found.traffics.demand
    drained_by_s = memory.goodput.drained_by_s
    problems = dict(state.deployment.problems) if state.deployment else {}
    refused = no_more_start(state, pods)
    if (message := problems.get("ReplicaFailure")) is not None:
        refused = Reason(why_refused(message), f"pods are refused: {message}")
    return Situation(
        now_s=fleet.now_s,
        current=state.replicas,
        given_up=num_unschedulable(state, fleet),
        placed=sum(not (pod.is_deleting or is_given_up(pod, fleet)) for pod in state.pods),
        retry_at_s=retry_at_s(back, fleet.settings) if back else None,
        unplaced_reason=unplaced_reason(state, back, fleet),
        refused=refused,
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
        draining=(demand.waiting, drained_by_s) if demand and drained_by_s is not None else None,
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
        hold_s=found.hold_s,
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


@dataclass(frozen=True, slots=True, kw_only=True)
class PodCost:
    """What a pod is to be marked with, so that it goes before others that are as Ready."""

    pod: str
    uid: str
    cost: int


def costs_to_go(state: ModelState, num_kept: int) -> tuple[PodCost, ...]:
    """Return the marks that let the pods with the least to do go, down to so many that are kept.

    Pods that are not Ready go first, marked or not. Of the others those that are measured, with the
    fewest requests. Nothing is written where they already cost less than all who stay.
    """
    staying = [pod for pod in state.pods if not pod.is_deleting]
    ready = [pod for pod in staying if pod.is_ready]
    loads = pod_loads(state.engines)
    ranked = sorted(
        (pod for pod in ready if pod.name in loads), key=lambda pod: (loads[pod.name], pod.name)
    )
    going = ranked[: max(0, len(ready) - num_kept)]
    # What the others bear may be left of a step that was not made.
    lowest = min((pod.deletion_cost for pod in ready if pod not in going), default=None)
    if lowest is None:
        return ()
    below = min(0, lowest) - 1
    return tuple(
        PodCost(pod=pod.name, uid=pod.uid, cost=below)
        for pod in going
        if pod.deletion_cost >= lowest
    )


def pod_loads(engines: Sequence[EngineSamples]) -> Mapping[str, float]:
    """Return the requests that run and wait in each pod, of those whose engines all say it."""
    loads, unknown = dict[str, float](), set[str]()
    for each in engines:
        if not each.is_fresh or each.running is None or each.waiting is None:
            unknown.add(each.pod)
            continue
        loads[each.pod] = loads.get(each.pod, 0.0) + each.running + each.waiting
    return {pod: load for pod, load in loads.items() if pod not in unknown}
