"""What one tick teaches: constants of speed and memory, by key and namespace, once a window."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median_low
from typing import NamedTuple

from tonnage.control.input.state import Assessment, Fleet, Observed
from tonnage.estimate.calibration import (
    Calibrations,
    Scope,
    is_material,
    memory_key,
    speed_key,
)
from tonnage.estimate.learner import learn
from tonnage.estimate.metrics import BUSY_SCRAPES
from tonnage.estimate.posterior import MemoryReport, SpeedPosterior
from tonnage.memoize import memoize
from tonnage.sizing.plan import Sizing
from tonnage.units import HOUR_S

KV_BAND = 4
"""A cache that is shared by key is believed within this factor of the estimate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What the engines of one object say about the constants of their keys."""

    speed: Scope
    prior: SpeedPosterior
    widest: SpeedPosterior
    """The prior with the upper bound of its variance."""
    observed: Observed
    memory: Scope
    kv_tokens: float | None
    """Of one rank, if that is believable for others too."""


def observation(found: Assessment) -> Observation | None:
    """Return what an object's engines say now.

    None while its pods do not run what the sizing is about: their figures belong to another key;
    and where that is known by a record alone, which others can write.
    """
    chosen, namespace = found.chosen, found.state.view.namespace
    observed = found.observed
    if chosen is None or observed is None or found.uses_previous_spec or not is_settled(found):
        return None
    request, flags = chosen.sizing.request, chosen.sizing.flags
    return Observation(
        speed=Scope(namespace, speed_key(request, flags)),
        prior=chosen.belief.prior,
        widest=chosen.belief.widest,
        observed=observed,
        memory=Scope(namespace, memory_key(request, flags)),
        kv_tokens=_shared_kv_tokens(observed, chosen.sizing),
    )


def is_settled(found: Assessment) -> bool:
    """Tell whether all pods run what the sizing is about."""
    chosen, deployment = found.chosen, found.state.deployment
    is_same = chosen is not None and not chosen.needs_apply
    return is_same and deployment is not None and not deployment.is_rolling


def own_kv_tokens(observed: Observed, sizing: Sizing) -> float | None:
    """Return the tokens of one rank that an object's pods report: the truth for this object.

    Of several pods the one in the middle, of two the smaller. More than the memory of a rank could
    hold is no report.
    """
    if not observed.kv_reports:
        return None
    tokens = median_low(observed.kv_reports)
    return tokens if fits_memory(tokens, sizing) else None


def fits_memory(tokens: float, sizing: Sizing) -> bool:
    """Tell whether the memory of a rank could hold so many tokens at all."""
    context_tokens = sizing.request.context_tokens
    each_bytes = sizing.replica.bytes_per_reported_token(context_tokens)
    return tokens * each_bytes <= sizing.request.gpu.memory_bytes


def _shared_kv_tokens(observed: Observed, sizing: Sizing) -> float | None:
    """Return the report if it is within a factor of the estimate: others are to believe it."""
    tokens = own_kv_tokens(observed, sizing)
    if tokens is None:
        return None
    low, high = believable_range(sizing)
    return tokens if low <= tokens <= high else None


@memoize
def estimated_kv_tokens(sizing: Sizing) -> float:
    """Return the tokens of one rank by the estimate, whatever was reported."""
    each_bytes = sizing.replica.bytes_per_reported_token(sizing.request.context_tokens)
    return max(float(sizing.request.context_tokens), sizing.budget.kv_pool_bytes / each_bytes)


def believable_range(sizing: Sizing) -> tuple[float, float]:
    """Return the least and the most tokens of one rank that the estimate stands for, and a factor.

    What runs holds at least one request, whatever the estimate.
    """
    least = float(sizing.request.context_tokens)
    budget = sizing.budget
    each_bytes = sizing.replica.bytes_per_reported_token(sizing.request.context_tokens)
    low, high = budget.kv_pool_low_bytes / each_bytes, budget.kv_pool_high_bytes / each_bytes
    return max(least, low) / KV_BAND, max(least, high) * KV_BAND


class Lesson(NamedTuple):
    """What is known after a tick."""

    known: Calibrations
    asked_at_s: Mapping[Scope, float]
    """When each speed was last asked for evidence."""
    errors: Mapping[Scope, Exception]
    """Bugs of ours, by what could not be learned for them."""


def learn_from(
    observations: Sequence[Observation],
    known: Calibrations,
    last: Mapping[Scope, float],
    fleet: Fleet,
) -> Lesson:
    """Learn from all that engines say, each speed and each cache for itself.

    ``last``: when each speed was last learned; one that no engine has shown for an hour is left
    out.
    """
    at_s, errors = fleet.windows_end_s, dict[Scope, Exception]()
    by_scope = defaultdict[Scope, list[Observation]](list)
    for each in observations:
        by_scope[each.speed].append(each)
    asked_at = {
        scope: asked_s
        for scope, asked_s in last.items()
        if scope in by_scope or at_s - asked_s < HOUR_S
    }
    moved = dict[Scope, SpeedPosterior]()
    for scope, of_scope in sorted(by_scope.items()):
        try:
            after = _speed_after(known.speed.get(scope), of_scope, last.get(scope, 0.0), fleet)
        except Exception as error:
            errors[scope] = error
            continue
        if after is None:
            continue
        asked_at[scope] = at_s
        if after is not known.speed.get(scope, of_scope[0].prior):
            moved[scope] = after
    caches, unread = _caches_after(observations, known, fleet)
    return Lesson(
        known=known.with_speed(moved).with_memory(caches),
        asked_at_s=asked_at,
        errors={**unread, **errors},
    )


def _speed_after(
    known: SpeedPosterior | None, of_scope: Sequence[Observation], asked_s: float, fleet: Fleet
) -> SpeedPosterior | None:
    """Return what is known of a speed by now; None: nothing new was said, or too soon."""
    window_s, at_s = BUSY_SCRAPES * fleet.settings.scrape_interval_s, fleet.windows_end_s
    if 0 <= at_s - asked_s < window_s:
        return None
    pods = [pod for each in of_scope for pod in each.observed.pods]
    if not pods:
        return None
    return learn(known or of_scope[0].prior, of_scope[0].widest, pods, now_s=fleet.now_s)


def _caches_after(
    observations: Sequence[Observation], known: Calibrations, fleet: Fleet
) -> tuple[Mapping[Scope, MemoryReport], Mapping[Scope, Exception]]:
    """Keep the smallest cache of each key; a figure that differs little stays as it is."""
    by_scope, moved = defaultdict[Scope, list[float]](list), dict[Scope, MemoryReport]()
    errors = dict[Scope, Exception]()
    for each in observations:
        if each.kv_tokens:
            by_scope[each.memory].append(each.kv_tokens)
    for scope, reported in sorted(by_scope.items()):
        before = known.memory.get(scope)
        try:
            if is_material(before.kv_tokens if before else None, min(reported)):
                moved[scope] = MemoryReport(kv_tokens=min(reported), reported_at_s=fleet.now_s)
        except Exception as error:
            errors[scope] = error
    return moved, errors
