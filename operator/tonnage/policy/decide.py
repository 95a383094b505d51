"""From a need to a decision: bounds in their documented order, each with its reason."""

import math
from collections.abc import Callable, Iterator, Sequence
from sys import maxsize
from typing import Final, NamedTuple

from tonnage.api.status import MESSAGE_LENGTH, Reason
from tonnage.policy.situation import Decision, Metrics, Situation
from tonnage.units import count_of, format_s

STEP_DOWN: Final = 0.25
"""Of the replicas, that are taken away at a time."""


class Bound(NamedTuple):
    """Between how many replicas a rule keeps the number, and why."""

    code: str
    message: str
    at_least: int = 0
    at_most: int = maxsize


Rule = Callable[[Situation], Iterator[Bound]]
"""Yields the bounds of one rule. Pure: the same in, the same out."""


def decide(situation: Situation) -> Decision:
    """Start from the need and keep it within every bound, in order: a later one has the last word.

    A bound that moves nothing is no reason.
    """
    replicas, limited_by, is_limited = situation.need.replicas, None, False
    reasons = list(situation.need.reasons)
    for rule in RULES:
        for bound in rule(situation):
            within = min(max(replicas, bound.at_least), bound.at_most)
            if within != replicas:
                replicas, limited_by, is_limited = within, bound.code, rule in LIMITS
                reasons.append(Reason(bound.code, bound.message[:MESSAGE_LENGTH]))
    return Decision(
        replicas=replicas,
        reasons=tuple(reversed(reasons)),
        limited_by=limited_by,
        is_limited=is_limited,
    )


def never_lower_on_missing_data(situation: Situation) -> Iterator[Bound]:
    """Missing data holds or raises; so does a fleet of which nothing is Ready yet."""
    if situation.metrics is not Metrics.COMPLETE:
        message = f"metrics are missing: keeping {situation.current}"
        yield Bound("MetricsMissing", message, at_least=situation.current)


def hold_in_a_blackout(situation: Situation) -> Iterator[Bound]:
    """Take nothing away while much of the fleet is blind at once, and trust no blind one's need.

    Who sees is raised by its own series. A first fleet is brought up, and what known events ask for
    is added, since neither needs figures.
    """
    current, blackout = situation.current, situation.blackout
    if blackout is not None and current > 0:
        most = max(current, situation.need.floor) if situation.is_blind else maxsize
        yield Bound("MetricsOutage", blackout, at_least=current, at_most=most)


def walk_down(situation: Situation) -> Iterator[Bound]:
    """Take a quarter away at a time, and only what was not needed for a whole window.

    What stands at the minimum has nothing to give, and no window of it is to be told.
    """
    current = situation.current
    if current <= max(situation.minimum, situation.evictable[0] if situation.evictable else 0):
        return
    for reason in _holds(situation):
        yield Bound(*reason, at_least=current)
    needed = max((need for _, need in situation.recent_needs), default=current)
    kept, step = min(needed, current), math.ceil(STEP_DOWN * current)
    if kept >= current - step:
        is_usual = situation.hold_s <= situation.scale_down_window_s
        returned = "demand returned so often that keeping replicas costs less"
        why = f"{format_s(situation.hold_s)} ({'stabilization window' if is_usual else returned})"
        message = f"keeping {kept}: {needed} were needed in the last {why}"
        yield Bound("Stabilizing", message, at_least=kept)
    else:
        message = f"from {current} by {step} at a time"
        yield Bound("ScaleDownRateLimited", message, at_least=current - step)


def _holds(situation: Situation) -> Iterator[Reason]:
    """Yield why nothing may be taken away now, whatever was needed."""
    window_s = situation.scale_down_window_s
    if situation.now_s - situation.watching_since_s < window_s:
        yield Reason(
            "WarmingUp", f"no scale-down in the first {format_s(window_s)} of measurements"
        )
    stepped = situation.stepped  # its effect has yet to be measured
    if stepped is not None and situation.now_s - stepped[0] < situation.pace_s:
        pace = format_s(situation.pace_s)
        yield Reason("Cooldown", f"cooldown: replicas changed less than {pace} ago")
    if situation.lost_at_s is not None:
        lost_s = situation.now_s - situation.lost_at_s
        if lost_s < window_s or situation.is_replacing:
            loads = ", its replacement still loads" if situation.is_replacing else ""
            which = f" ({situation.lost_pods})" if situation.lost_pods else ""
            ago = f"a replica was lost {format_s(lost_s)} ago{which}"
            yield Reason("ReplicaLost", f"{ago} and its demand with it{loads}: no scale-down")
    if situation.draining is not None:
        waiting, until_s = situation.draining
        message = (
            f"{waiting:.0f} still queued after an overload: no scale-down until they are served, "
            f"for {format_s(until_s - situation.now_s)} at most"
        )
        yield Reason("Draining", message)


def await_traffic(situation: Situation) -> Iterator[Bound]:
    """Keep what spec.demand asks for, as far as it is there, until its traffic has come."""
    kept = min(situation.current, situation.awaited or 0)
    message = f"holding {kept} until traffic arrives; spec.demand needs {situation.awaited}"
    yield Bound("WaitingForTraffic", message, at_least=kept)


def cap_step_up(situation: Situation) -> Iterator[Bound]:
    """Bound what the decisions of one rate window add: a fleet may double, a small one more.

    The first decision too: what it stands on may be as wrong as any other.
    """
    began, current = situation.window_base, situation.current
    base = current if began is None else min(current, began)
    added = max(base, situation.max_scale_up_replicas)
    most = max(base + added, current)
    yield Bound("StepCap", f"at most {added} more in one step: {most}", at_most=most)


def give_back_what_finds_no_node(situation: Situation) -> Iterator[Bound]:
    """Take back pods that no node takes, and ask for more only after a while, each time longer."""
    current, given_up = situation.current, situation.given_up
    code, retry_at_s = situation.unplaced_reason, situation.retry_at_s
    if given_up:
        most = max(current - given_up, min(current, situation.placed))
        pods = count_of(current, "pod")
        message = f"{given_up} of {pods} unschedulable: scaled back to {most}"
        yield Bound(code, message, at_most=most)
    elif retry_at_s is not None and situation.now_s < retry_at_s:
        retry_text, pods = format_s(retry_at_s - situation.now_s), count_of(current, "pod")
        message = f"no node fits more than {pods}: keeping {current}, next try in {retry_text}"
        yield Bound(code, message, at_most=current)


def no_growth_where_no_pod_would_run(situation: Situation) -> Iterator[Bound]:
    """Wait with growth while pods are refused or do not start; going down stays possible."""
    if situation.refused is not None:
        code, detail = situation.refused
        yield Bound(code, f"keeping {situation.current}: {detail}", at_most=situation.current)


def let_a_replica_go(situation: Situation) -> Iterator[Bound]:
    """Keep as many as the object's own disruption budget takes to let a node be drained."""
    if situation.evictable is not None:
        least, hold_text = situation.evictable
        message = f"with fewer than {least} no node could be drained: {hold_text}"
        yield Bound("DisruptionBudget", message, at_least=least)


def keep_within_bounds(situation: Situation) -> Iterator[Bound]:
    """Keep minReplicas and maxReplicas."""
    least, most = situation.minimum, situation.maximum
    yield Bound("MaxReplicas", f"maxReplicas allows {most}", at_most=most)
    yield Bound("MinReplicas", f"minReplicas asks for {least}", at_least=least)


def keep_gpu_budget(situation: Situation) -> Iterator[Bound]:
    """Grow only as far as the fleet's GPU budget allows; never shrink for it."""
    free, current = situation.free_budget_gpus, situation.current
    if free is None:
        return
    if situation.uncounted_gpus:
        message = f"the GPU budget cannot count {situation.uncounted_gpus}, so no fleet grows"
        yield Bound("GPUsUncounted", message, at_most=current)
    more = max(0, free) // situation.gpus_per_replica
    each = count_of(situation.gpus_per_replica, "GPU")
    message = (
        f"the GPU budget has {count_of(max(0, free), 'GPU')} free, which is room for "
        f"{count_of(more, 'more replica')} of {each}"
    )
    yield Bound("GPUBudget", message, at_most=current + more)


def wait_for_approval(situation: Situation) -> Iterator[Bound]:
    """Grow beyond the stated cost only as far as somebody agreed to."""
    if situation.approved is not None:
        most, message = situation.approved
        yield Bound("ApprovalNeeded", message, at_most=max(most, situation.current))


def keep_in_a_rollout(situation: Situation) -> Iterator[Bound]:
    """Take nothing away while pods are being replaced."""
    if situation.is_rolling:
        message = f"pods are being replaced: keeping {situation.current} until they are"
        yield Bound("RolloutInProgress", message, at_least=situation.current)


def leave_to_another_writer(situation: Situation) -> Iterator[Bound]:
    """Leave the number to whoever parked the object at 0, or undoes our corrections."""
    if situation.left is not None:
        current = situation.current
        yield Bound(*situation.left, at_least=current, at_most=current)


LIMITS: Sequence[Rule] = (
    cap_step_up,
    give_back_what_finds_no_node,
    no_growth_where_no_pod_would_run,
    let_a_replica_go,
    keep_within_bounds,
    keep_gpu_budget,
    wait_for_approval,
)
"""Those that the condition ScalingLimited speaks of."""
RULES: Sequence[Rule] = (
    never_lower_on_missing_data,
    hold_in_a_blackout,
    walk_down,
    await_traffic,
    *LIMITS,
    keep_in_a_rollout,
    leave_to_another_writer,
)
"""Data first, then pace, what the cluster has, what user and administrator allow, who is at it."""
