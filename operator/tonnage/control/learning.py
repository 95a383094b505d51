"""What one tick teaches about the shared constants: pooled by key, bounded, once per window."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tonnage.control.measure import busy_steps, reported_kv_tokens
from tonnage.control.state import Assessment, Fleet, ModelState
from tonnage.estimate.calibration import (
    Calibrations,
    MemoryCalibration,
    is_material,
    memory_key,
    speed_key,
)
from tonnage.estimate.demand import is_fresh
from tonnage.estimate.metrics import RATE_SCRAPES
from tonnage.estimate.speed import SpeedCalibration, learn, observed_efficiency
from tonnage.sizing.plan import Sizing

KV_BAND = 4
"""A reported cache is believed within this factor of the estimate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What the engines of one object say about the constants of their keys."""

    speed_key: str
    prior: float
    efficiencies: tuple[float, ...]
    """Of each busy engine."""
    num_steps: float
    memory_key: str
    kv_tokens: float | None
    """The smallest that a fresh engine reports, of one rank."""


def observation(found: Assessment, fleet: Fleet) -> Observation | None:
    """Return what an object's engines say in this tick.

    None while its pods do not run what the sizing is about: their figures belong to another key.
    """
    state, chosen = found.state, found.chosen
    is_settled = state.deployment is not None and not state.deployment.is_rolling
    if chosen is None or chosen.must_apply or not is_settled:
        return None
    sizing = chosen.sizing
    said = [
        (efficiency, step.num_steps)
        for step in busy_steps(state, fleet, sizing)
        if (efficiency := observed_efficiency(sizing.replica.model, step)) is not None
    ]
    return Observation(
        speed_key=speed_key(sizing.request, sizing.flags),
        prior=chosen.prior_efficiency,
        efficiencies=tuple(efficiency for efficiency, _ in said),
        num_steps=sum(num_steps for _, num_steps in said),
        memory_key=memory_key(sizing.request, sizing.flags),
        kv_tokens=_believable_kv_tokens(state, fleet, sizing),
    )


def _believable_kv_tokens(state: ModelState, fleet: Fleet, sizing: Sizing) -> float | None:
    """Return the smallest report of a fresh engine, if it is within a factor of the estimate.

    A pod may say anything about itself, and the figure is shared by key: nothing beyond the band
    may reach another object. What runs holds at least one request, whatever the estimate.
    """
    interval_s = fleet.settings.scrape_interval_s
    fresh = (each for each in state.engines if is_fresh(each, scrape_interval_s=interval_s))
    reported = (reported_kv_tokens(each, sizing) for each in fresh)
    found = min((tokens for tokens in reported if tokens), default=None)
    if found is None:
        return None
    low, high = _believable_range(sizing)
    return found if low / KV_BAND <= found <= high * KV_BAND else None


def _believable_range(sizing: Sizing) -> tuple[float, float]:
    """Return the least and the most tokens of one rank that the estimate stands for."""
    least = float(sizing.request.context_tokens)
    pool, spread = sizing.budget.kv_pool_bytes, sizing.budget.kv_pool_spread_bytes
    each_bytes = sizing.replica.bytes_per_reported_token(sizing.request.context_tokens)
    return max(least, (pool - spread) / each_bytes), max(least, (pool + spread) / each_bytes)


def learn_from(
    observations: Sequence[Observation],
    known: Calibrations,
    last: Mapping[str, float],
    fleet: Fleet,
) -> tuple[Calibrations, Mapping[str, float]]:
    """Return what is known after this tick, and when each speed key was last learned.

    All engines of a key are pooled, and a key moves at most once per rate window: windows that
    overlap would count the same steps twice.
    """
    window_s = RATE_SCRAPES * fleet.settings.scrape_interval_s
    learned_at = dict(last)
    for key in sorted({each.speed_key for each in observations}):
        pooled = [each for each in observations if each.speed_key == key]
        efficiencies = [value for each in pooled for value in each.efficiencies]
        if not efficiencies or fleet.now_s - last.get(key, 0.0) < window_s:
            continue
        prior = pooled[0].prior
        before = known.speed.get(key) or SpeedCalibration(bandwidth_efficiency=prior)
        after = learn(
            before,
            sum(efficiencies) / len(efficiencies),
            prior=prior,
            num_steps=sum(each.num_steps for each in pooled),
        )
        known, learned_at[key] = known.with_speed(key, after), fleet.now_s
    return _with_memory(observations, known, fleet), learned_at


def _with_memory(
    observations: Sequence[Observation], known: Calibrations, fleet: Fleet
) -> Calibrations:
    """Keep the smallest cache of each key; a figure that differs little stays as it is."""
    for key in sorted({each.memory_key for each in observations}):
        reported = [e.kv_tokens for e in observations if e.memory_key == key and e.kv_tokens]
        before = known.memory.get(key)
        if reported and is_material(before.kv_tokens if before else None, min(reported)):
            entry = MemoryCalibration(kv_tokens=min(reported), changed_at_s=fleet.now_s)
            known = known.with_memory(key, entry)
    return known
