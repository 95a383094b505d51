"""What an object believes of its engines: its own evidence, a load test, others', or the prior."""

from dataclasses import replace
from datetime import UTC, datetime

from tonnage.api.status import Reason
from tonnage.catalog.engine_speed import SpeedConstants
from tonnage.control.input.memory import ObjectMemory
from tonnage.control.input.state import Fleet, ModelState
from tonnage.estimate.calibration import Beliefs, memory_key, speed_key
from tonnage.estimate.calibration_file import LoadTest, key_of, reported_kv_tokens
from tonnage.estimate.learner import age, prior_posterior, slow_end, with_constants
from tonnage.estimate.planning_constants import (
    BAND,
    Belief,
    PlanningConstants,
    planning_constants_now,
    step_ratio,
)
from tonnage.estimate.posterior import SpeedPosterior
from tonnage.memoize import memoize
from tonnage.sizing.nearby import SEARCH_GRID_RATIO
from tonnage.sizing.provenance import Figure, Origin, cache_input, speed_input, with_changed
from tonnage.sizing.request import Flags, SizingRequest, spread_of
from tonnage.units import count_of, nearest


def beliefs(state: ModelState, fleet: Fleet) -> Beliefs:
    """Return what is believed in the namespace of an object."""
    return Beliefs(
        calibrations=fleet.calibrations,
        namespace=state.view.namespace,
        min_namespaces=fleet.settings.calibration_namespaces,
    )


def belief(
    request: SizingRequest,
    flags: Flags | None,
    state: ModelState,
    fleet: Fleet,
    memory: ObjectMemory,
) -> Belief:
    """Return what is believed of engines with these flags. ``request.speed``: the catalogue's.

    A namespace's own evidence stands above a load test of such an engine, and that above what other
    namespaces say.
    """
    key = speed_key(request, flags) if flags else ""
    test = load_test(request, flags, fleet)
    tested = test.speed if test else None
    prior, widest = _priors(request, tested, fleet)
    held = beliefs(state, fleet)
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
            posterior, memory.sizing.asked_speed, key=key, share=share, now_s=fleet.now_s
        ),
        calibrated_at_s=tested.learned_at_s if tested and not known else None,
    )


def load_test(request: SizingRequest, flags: Flags | None, fleet: Fleet) -> LoadTest | None:
    """Return what a load test found of engines with these flags."""
    if flags is None or not fleet.calibration_files:
        return None
    return fleet.calibration_files.get(key_of(request, flags.parallelism).identity)


def _priors(
    request: SizingRequest, tested: SpeedPosterior | None, fleet: Fleet
) -> tuple[SpeedPosterior, SpeedPosterior]:
    """Return what is believed before any window, and the same with all the doubt there can be.

    A load test stands as long as its file is there: it does not age. What it left open is no more
    in doubt than without it.
    """
    bare = prior_posterior(request.speed, spread_fraction=spread_of(request))
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
    return _with_speed(held.asked, request, held.constants_at(posterior), origin, _load_test(held))


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


def _load_test(held: Belief) -> str:
    """Name the load test that all of a belief stands on; empty: there is none, or more."""
    if held.calibrated_at_s is None:
        return ""
    return _by_calibrate(held.calibrated_at_s)


def _by_calibrate(measured_at_s: float) -> str:
    return f"measured by calibrate, {datetime.fromtimestamp(measured_at_s, UTC):%Y-%m-%d}"


def with_known_cache(
    request: SizingRequest, flags: Flags, state: ModelState, fleet: Fleet, memory: ObjectMemory
) -> SizingRequest:
    """Return the request with these flags and the cache that engines were seen to have with them.

    This object's own report stands above those of its namespace, these above a load test of
    such an engine, and that above other namespaces.
    """
    key, held, own = memory_key(request, flags), beliefs(state, fleet), memory.posterior
    if own.kv_tokens is not None and own.memory_key == key:
        return _with_cache(request, flags, own.kv_tokens)
    test = load_test(request, flags, fleet)
    tokens = reported_kv_tokens(test.cache, request, flags) if test else None
    if test is not None and tokens is not None and held.own_memory(key) is None:
        measured = cache_input(tokens, remark=_by_calibrate(test.speed.learned_at_s))
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
    evidence = _load_test(held) or (
        count_of(held.posterior.num_windows, "window of evidence", "windows of evidence")
        if held.is_measured
        else "unmeasured"
    )
    message = f"{evidence}: plan adds {slower:.0%} to step time ({share:.0%} interval)"
    return (Reason(code="CapacityUncertain", message=message),)
