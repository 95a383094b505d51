"""What a tick teaches, and what an object believes: its own, a load test, others', or the prior."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from statistics import median_low
from typing import NamedTuple

from tonnage.api.status import Reason
from tonnage.catalog.engine_speed import SpeedConstants
from tonnage.control.input.state import Assessment, Fleet, ModelState, Observed
from tonnage.estimate.calibration import (
    Beliefs,
    Calibrations,
    Scope,
    is_material,
    memory_key,
    speed_key,
)
from tonnage.estimate.calibration_file import LoadTest, key_of, reported_kv_tokens
from tonnage.estimate.learner import age, learn, prior_posterior, slow_end, with_constants
from tonnage.estimate.metrics import BUSY_SCRAPES
from tonnage.estimate.planning_constants import (
    BAND,
    Belief,
    PlanningConstants,
    planning_constants_now,
    step_ratio,
)
from tonnage.estimate.posterior import MemoryReport, SpeedPosterior
from tonnage.memoize import memoize
from tonnage.sizing.nearby import SEARCH_GRID_RATIO
from tonnage.sizing.plan import Sizing
from tonnage.sizing.provenance import Figure, Origin, cache_input, speed_input, with_changed
from tonnage.sizing.request import Flags, SizingRequest, spread_of
from tonnage.units import HOUR_S, count_of, nearest


def beliefs(state: ModelState, fleet: Fleet) -> Beliefs:
    """Return what is believed in the namespace of an object."""
    return Beliefs(
        calibrations=fleet.calibrations,
        namespace=state.view.namespace,
        min_namespaces=fleet.settings.calibration_namespaces,
    )


def belief(request: SizingRequest, flags: Flags | None, of: Assessment, fleet: Fleet) -> Belief:
    """Return what is believed of engines with these flags. ``request.speed``: the catalogue's.

    A namespace's own evidence stands above a load test of such an engine, and that above what other
    namespaces say.
    """
    key = speed_key(request, flags) if flags else ""
    test = load_test(request, flags, fleet)
    tested = test.speed if test else None
    spread = spread_of(request, flags.parallelism if flags else None)
    bare = prior_posterior(request.speed, spread_fraction=spread)
    prior, widest = _priors(bare, tested, fleet)
    held = beliefs(of.state, fleet)
    known = held.own_speed(key) if tested else held.speed(key)
    posterior = prior
    if known:
        posterior = age(known, _most_doubt(known, prior, widest), now_s=fleet.now_s)
    share = fleet.settings.speed_range
    return Belief(
        constants=request.speed,
        prior=prior,
        widest=widest,
        posterior=posterior,
        asked=planning_constants_now(
            posterior, of.memory.sizing.asked_speed, key=key, share=share, now_s=fleet.now_s
        ),
        calibrated_at_s=tested.learned_at_s if tested and not known else None,
    )


def load_test(request: SizingRequest, flags: Flags | None, fleet: Fleet) -> LoadTest | None:
    """Return what a load test found of engines with these flags."""
    if flags is None or not fleet.calibration_files:
        return None
    return fleet.calibration_files.get(key_of(request, flags.parallelism).identity)


def _priors(
    bare: SpeedPosterior, tested: SpeedPosterior | None, fleet: Fleet
) -> tuple[SpeedPosterior, SpeedPosterior]:
    """Return what is believed before any window, and the same with all the doubt there can be.

    ``bare``: the catalogue's. A load test does not age while its file is there. A constant that it
    left open is no more in doubt than without it.
    """
    if tested is None:
        return bare, bare
    unaged = replace(tested, num_windows=0, num_steps=0.0, learned_at_s=0.0)
    widest = replace(unaged, covariance=bare.covariance)
    return age(unaged, widest, now_s=fleet.now_s), widest


def _most_doubt(
    known: SpeedPosterior, prior: SpeedPosterior, widest: SpeedPosterior
) -> SpeedPosterior:
    """Return the prior with the doubt to which evidence ages: the prior's, or its own if more."""
    o, b, f = (
        min(most, max(own, first))
        for own, first, most in zip(known.variances, prior.variances, widest.variances, strict=True)
    )
    return replace(prior, covariance=(o, 0.0, 0.0, b, 0.0, f))


def asked_with(request: SizingRequest, held: Belief, posterior: SpeedPosterior) -> SizingRequest:
    """Return the request with constants that are believed, or planned with."""
    is_looked_up = not held.is_measured and held.calibrated_at_s is None
    origin = Origin.LOOKED_UP if is_looked_up else Origin.MEASURED
    return _with_speed(
        held.asked, request, held.constants_at(posterior), origin, _load_test(held.calibrated_at_s)
    )


@memoize  # of what one object asks: others with its spec have other constants
def _with_speed(
    _: PlanningConstants, request: SizingRequest, speed: SpeedConstants, origin: Origin, remark: str
) -> SizingRequest:
    inputs = with_changed(request.inputs, speed_input(speed, origin, remark=remark))
    return replace(request, speed=speed, inputs=inputs)


def near_posterior(
    posterior: SpeedPosterior, prior: SpeedPosterior, *, share: float
) -> SpeedPosterior:
    """Return the constants on a coarse grid around what is planned with before any window."""
    origin = slow_end(prior, share=share)
    overhead, bandwidth, prefill = (
        nearest(value, ratio=SEARCH_GRID_RATIO, origin=first)
        for value, first in zip(posterior.constants, origin.constants, strict=True)
    )
    return with_constants(posterior, (overhead, bandwidth, prefill))


def _load_test(measured_at_s: float | None) -> str:
    """Name the load test that all of a belief stands on; empty: there is none, or more."""
    if measured_at_s is None:
        return ""
    return f"measured by calibrate, {datetime.fromtimestamp(measured_at_s, UTC):%Y-%m-%d}"


def with_known_cache(
    request: SizingRequest, flags: Flags, of: Assessment, fleet: Fleet
) -> SizingRequest:
    """Return the request with these flags and the cache that engines were seen to have with them.

    This object's own report stands above those of its namespace, these above a load test of
    such an engine, and that above other namespaces.
    """
    key, held, own = memory_key(request, flags), beliefs(of.state, fleet), of.memory.posterior
    if own.kv_tokens is not None and own.memory_key == key:
        return _with_cache(request, flags, own.kv_tokens)
    test = load_test(request, flags, fleet)
    tokens = reported_kv_tokens(test.cache, request, flags) if test else None
    if test is not None and tokens is not None and held.own_memory(key) is None:
        measured = cache_input(tokens, remark=_load_test(test.speed.learned_at_s))
        request = replace(request, inputs=(*request.inputs, measured))
        return _with_cache(request, flags, tokens)
    entry = held.memory(key)
    return _with_cache(request, flags, entry.kv_tokens if entry else None)


@memoize
def _with_cache(request: SizingRequest, flags: Flags, kv_tokens: float | None) -> SizingRequest:
    return replace(request, flags=flags, measured_kv_tokens=kv_tokens)


def cache_reasons(request: SizingRequest) -> tuple[Reason, ...]:
    """Say that the plan stands on the cache of a load test, until its own engines report theirs."""
    kv_figures = (each for each in request.inputs if each.figure is Figure.KV_CACHE)
    return tuple(
        Reason(code="KVCacheCalibrated", message=f"KV cache: {each.value}")
        for each in kv_figures
        if each.origin is Origin.MEASURED
    )


def doubt_reasons(held: Belief, *, share: float) -> tuple[Reason, ...]:
    """Say how much slower than believed the plan takes the engines to be, and why."""
    slower = step_ratio(held.asked.slow, held.posterior) - 1
    if slower < BAND:
        return ()
    evidence = _load_test(held.calibrated_at_s) or (
        count_of(held.posterior.num_windows, "window of evidence", "windows of evidence")
        if held.is_measured
        else "unmeasured"
    )
    message = f"{evidence}: plan adds {slower:.0%} to step time ({share:.0%} interval)"
    return (Reason(code="CapacityUncertain", message=message),)


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
    """Of one rank, if others are to believe it: it is within a factor of the estimate."""


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
    tokens = own_kv_tokens(observed, chosen.sizing)
    if tokens is not None:
        low, high = believable_range(chosen.sizing)
        tokens = tokens if low <= tokens <= high else None
    return Observation(
        speed=Scope(namespace, speed_key(request, flags)),
        prior=chosen.belief.prior,
        widest=chosen.belief.widest,
        observed=observed,
        memory=Scope(namespace, memory_key(request, flags)),
        kv_tokens=tokens,
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
