"""From a need to a decision: every rule in its documented order, each with its say."""

import math
from collections.abc import Sequence

from tonnage.api.status import MESSAGE_LENGTH, Reason
from tonnage.policy.situation import Decision, Limit, Metrics, Situation
from tonnage.units import count_of, format_s

STEP_DOWN = 0.25
"""Of the replicas, that are taken away at a time."""


def decide(situation: Situation, limits: Sequence[Limit] | None = None) -> Decision:
    """Start from the need and let every limit have its say, in order."""
    decision = Decision(replicas=situation.need.replicas, reasons=situation.need.reasons)
    for limit in LIMITS if limits is None else limits:
        decision = limit(decision, situation)
    return decision


def never_lower_on_missing_data(decision: Decision, situation: Situation) -> Decision:
    """Missing data holds or raises; so does a fleet of which nothing is Ready yet."""
    if situation.metrics is Metrics.COMPLETE or decision.replicas >= situation.current:
        return decision
    message = f"metrics are missing: {situation.current} stay, {decision.replicas} not trusted"
    return decision.limited_to(situation.current, "MetricsMissing", message)


def hold_in_a_blackout(decision: Decision, situation: Situation) -> Decision:
    """Take nothing away while much of the fleet is blind at once, and trust no blind one's need.

    Who sees is raised by its own series, a first fleet is brought up, and what known events ask
    for stands on no figures.
    """
    current, floor = situation.current, situation.need.floor
    if situation.blackout is None or current == 0:
        return decision
    most = max(current, floor) if situation.is_blind else decision.replicas
    replicas = max(current, min(decision.replicas, most))
    message = f"{replicas} of {decision.replicas}: {situation.blackout}"
    return decision.limited_to(replicas, "FleetBlind", message[:MESSAGE_LENGTH])


def walk_down(decision: Decision, situation: Situation) -> Decision:
    """Take a quarter away at a time, and only what was not needed for a whole window.

    What stands at the minimum has nothing to give, and no window of it is to be told.
    """
    current = situation.current
    if decision.replicas >= current or current <= situation.least:
        return decision
    if hold := _hold_down(situation):
        return decision.limited_to(current, *hold)
    highest = max((need for _, need in situation.recent_needs), default=current)
    if highest >= current:
        message = f"{highest} were needed within the last {_held_for(situation)}: {current} stay"
        return decision.limited_to(current, "Stabilizing", message)
    step = math.ceil(STEP_DOWN * current)
    message = f"from {current} by {step} at a time"
    least = max(decision.replicas, highest, current - step)
    return decision.limited_to(least, "WalkingDown", message)


def _held_for(situation: Situation) -> str:
    settings = situation.settings
    told = format_s(settings.hold_s)
    if settings.hold_s <= settings.scale_down_window_s:
        return told
    return f"{told}, in which demand has come back so often that holding costs less"


def _hold_down(situation: Situation) -> Reason | None:
    window_s = situation.settings.scale_down_window_s
    if situation.now_s - situation.watching_since_s < window_s:
        return Reason("JustStarted", f"no scale-down in the first {format_s(window_s)} of watching")
    if situation.is_pacing:
        pace = format_s(situation.settings.pace_s)
        return Reason("Pacing", f"replicas changed less than {pace} ago: its effect is awaited")
    if situation.lost_at_s is not None:
        lost_s = situation.now_s - situation.lost_at_s
        if lost_s < window_s or situation.is_replacing:
            loads = ", what replaces it still loads" if situation.is_replacing else ""
            which = f" ({situation.lost_pods})" if situation.lost_pods else ""
            ago = f"a replica was lost {format_s(lost_s)} ago{which}"
            message = f"{ago} and its demand with it{loads}"
            return Reason("ReplicaLost", f"{message}: no scale-down")
    if situation.draining is not None:
        waiting, until_s = situation.draining
        left = format_s(until_s - situation.now_s)
        message = f"{waiting:.0f} still wait after an overload"
        return Reason(
            "Draining", f"{message}: no scale-down until they are served, for {left} at most"
        )
    return None


def await_traffic(decision: Decision, situation: Situation) -> Decision:
    """Keep what spec.demand asks for, as far as it is there, until its traffic has come."""
    kept = min(situation.current, situation.awaited or 0)
    if decision.replicas >= kept:
        return decision
    message = f"holding {kept} until traffic arrives; spec.demand needs {situation.awaited}"
    return decision.limited_to(kept, "AwaitingTraffic", message)


def cap_step_up(decision: Decision, situation: Situation) -> Decision:
    """Bound what the decisions of one rate window add: a fleet may double, a small one more.

    The first decision too: what it stands on may be as wrong as any other.
    """
    began, current = situation.window_base, situation.current
    base = current if began is None else min(current, began)
    added = max(base, situation.settings.max_scale_up_replicas)
    most = base + added
    if decision.replicas <= most:
        return decision
    most = max(most, situation.current)
    return decision.limited_to(most, "StepCap", f"at most {added} more in one step: {most}")


def give_back_what_finds_no_node(decision: Decision, situation: Situation) -> Decision:
    """Take back pods that no node takes, and ask for more only after a while, each time longer."""
    current, given_up = situation.current, situation.given_up
    if given_up:
        message = f"no node takes {given_up} of {count_of(current, 'pod')}: given back"
        most = max(current - given_up, min(current, situation.placed))
        code = situation.unplaced_reason
        return decision.limited_to(min(decision.replicas, most), code, message)
    retry_at_s = situation.retry_at_s
    if retry_at_s is None or situation.now_s >= retry_at_s or decision.replicas <= current:
        return decision
    left = format_s(retry_at_s - situation.now_s)
    message = (
        f"no node took more than {count_of(current, 'pod')}: {current} stay, asked again in {left}"
    )
    return decision.limited_to(current, situation.unplaced_reason, message)


def no_growth_where_no_pod_would_run(decision: Decision, situation: Situation) -> Decision:
    """Wait with growth while pods are refused or do not start; going down stays possible."""
    if situation.refused is None or decision.replicas <= situation.current:
        return decision
    code, said = situation.refused
    message = f"{situation.current} stay: {said}"
    return decision.limited_to(situation.current, code, message[:MESSAGE_LENGTH])


def let_a_replica_go(decision: Decision, situation: Situation) -> Decision:
    """Keep as many as the object's own disruption budget takes to let a node be drained."""
    if situation.evictable is None or decision.replicas >= situation.evictable[0]:
        return decision
    least, told = situation.evictable
    message = f"with {decision.replicas} no node could be drained: {told}"
    return decision.limited_to(least, "DisruptionBudget", message)


def keep_within_bounds(decision: Decision, situation: Situation) -> Decision:
    """Keep minReplicas and maxReplicas."""
    if decision.replicas > situation.maximum:
        message = f"{decision.replicas} exceed maxReplicas {situation.maximum}"
        return decision.limited_to(situation.maximum, "MaxReplicas", message)
    if decision.replicas < situation.minimum:
        message = f"{decision.replicas} are below minReplicas {situation.minimum}"
        return decision.limited_to(situation.minimum, "MinReplicas", message)
    return decision


def keep_gpu_budget(decision: Decision, situation: Situation) -> Decision:
    """Grow only as far as the fleet's GPU budget allows; never shrink for it."""
    growth = decision.replicas - situation.current
    if situation.free_budget_gpus is None or growth <= 0:
        return decision
    if situation.uncounted_gpus:
        message = f"the fleet's budget cannot count {situation.uncounted_gpus}: nothing grows"
        return decision.limited_to(situation.current, "GPUsUncounted", message[:MESSAGE_LENGTH])
    affordable = max(0, situation.free_budget_gpus) // situation.gpus_per_replica
    if growth <= affordable:
        return decision
    each = count_of(situation.gpus_per_replica, "GPU")
    message = (
        f"{count_of(growth, 'more replica')} of {each} exceed the "
        f"{situation.free_budget_gpus} left in the fleet's budget"
    )
    return decision.limited_to(situation.current + affordable, "GPUBudget", message)


LIMITS: Sequence[Limit] = (
    never_lower_on_missing_data,
    hold_in_a_blackout,
    walk_down,
    await_traffic,
    cap_step_up,
    give_back_what_finds_no_node,
    no_growth_where_no_pod_would_run,
    let_a_replica_go,
    keep_within_bounds,
    keep_gpu_budget,
)
"""Data first, then pace, then what the cluster has, then what the user and administrator allow."""
