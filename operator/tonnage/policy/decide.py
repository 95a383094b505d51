"""From a need to a decision: every rule in its documented order, each with its say."""

from collections.abc import Sequence

from tonnage.policy.situation import Decision, Limit, Metrics, Situation
from tonnage.units import KIB, format_s

MESSAGE_LENGTH = KIB
"""Of a reason, in characters: what the API server said may be longer."""


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


def walk_down(decision: Decision, situation: Situation) -> Decision:
    """Take replicas away one at a time, and only what was not needed for a whole window."""
    current = situation.current
    if decision.replicas >= current:
        return decision
    if hold := _hold_down(situation):
        return decision.limited_to(current, *hold)
    highest = max((need for _, need in situation.recent_needs), default=current)
    if highest >= current:
        window = format_s(situation.settings.scale_down_window_s)
        message = f"{highest} were needed within the last {window}: {current} stay"
        return decision.limited_to(current, "Stabilizing", message)
    message = f"from {current} one at a time"
    return decision.limited_to(max(decision.replicas, current - 1), "WalkingDown", message)


def _hold_down(situation: Situation) -> tuple[str, str] | None:
    window_s = situation.settings.scale_down_window_s
    if situation.now_s - situation.watching_since_s < window_s:
        return "JustStarted", f"no scale-down in the first {format_s(window_s)} of watching"
    if situation.is_pacing:
        pace = format_s(situation.settings.pace_s)
        return "Pacing", f"replicas changed less than {pace} ago: its effect is awaited"
    if situation.lost_at_s is not None and situation.now_s - situation.lost_at_s < window_s:
        ago = format_s(situation.now_s - situation.lost_at_s)
        return "ReplicaLost", f"a replica was lost {ago} ago and its demand with it: no scale-down"
    return None


def cap_step_up(decision: Decision, situation: Situation) -> Decision:
    """Bound what the decisions of one rate window add; the first one brings up a whole fleet."""
    base = situation.current
    if situation.is_pacing and situation.stepped is not None:
        base = min(base, situation.stepped[1])
    most = base + situation.settings.max_scale_up_replicas
    if situation.current == 0 or decision.replicas <= most:
        return decision
    added = situation.settings.max_scale_up_replicas
    most = max(most, situation.current)
    return decision.limited_to(most, "StepCap", f"at most {added} more in one step: {most}")


def no_growth_without_gpus(decision: Decision, situation: Situation) -> Decision:
    """Wait with growth while pods cannot be scheduled; going down stays possible."""
    if not situation.unschedulable or decision.replicas <= situation.current:
        return decision
    message = f"{situation.unschedulable} pods cannot be scheduled: {situation.current} stay"
    return decision.limited_to(situation.current, "InsufficientGPU", message)


def no_growth_beyond_quota(decision: Decision, situation: Situation) -> Decision:
    """Wait with growth while the API server refuses pods; going down stays possible."""
    if situation.quota_refusal is None or decision.replicas <= situation.current:
        return decision
    message = f"pods are refused: {situation.current} stay: {situation.quota_refusal}"
    return decision.limited_to(situation.current, "QuotaExceeded", message[:MESSAGE_LENGTH])


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
    message = (
        f"{growth} more replicas of {situation.gpus_per_replica} GPUs exceed the "
        f"{situation.free_budget_gpus} left in the fleet's budget"
    )
    return decision.limited_to(situation.current + affordable, "GPUBudget", message)


LIMITS: Sequence[Limit] = (
    never_lower_on_missing_data,
    walk_down,
    cap_step_up,
    no_growth_without_gpus,
    no_growth_beyond_quota,
    keep_within_bounds,
    keep_gpu_budget,
)
"""Data first, then pace, then what the cluster has, then what the user and administrator allow."""
