"""What the KV cache in host memory gives, counted while it runs."""

import json
from statistics import fmean
from typing import Final

from tonnage.api.objects import ModelDeployment
from tonnage.api.spec import Spec
from tonnage.control.input.memory import ObjectMemory
from tonnage.control.input.state import Fleet, ModelState
from tonnage.estimate.host_cache import HostCacheDay, HostCacheShare, share_after
from tonnage.estimate.metrics import BUSY_SCRAPES
from tonnage.estimate.posterior import ObjectPosterior
from tonnage.memoize import memoize
from tonnage.sizing.offload import tokens_cached
from tonnage.sizing.plan import Sizing
from tonnage.sizing.request import digest_of

NO_DAY: Final = HostCacheDay()
LATE: Final = 2.0
"""Windows, for which the rates of the last one are counted where a tick is late."""


@memoize
def asked_of(spec: Spec) -> str:
    """Return a digest of what decides how much comes back from host memory.

    A new revision or release says nothing new of that, nor does a field that a release adds.
    """
    asked = spec.model_dump(
        mode="json",
        include={"model": {"id", "weights", "kv_cache", "kv_offload"}, "hardware": True},
        exclude={"model": {"kv_offload": {"mode"}}, "hardware": {"node_link"}},
        exclude_defaults=True,
        exclude_none=True,
    )
    return digest_of([json.dumps(asked, sort_keys=True)])


def measured_share(learned: ObjectPosterior, spec: Spec) -> float | None:
    """Return the share of prompt tokens that the cache gave; None: no day of this one ran."""
    known = learned.host_cache
    return known.fraction if known and known.asked == asked_of(spec) else None


def counted(
    memory: ObjectMemory, state: ModelState, fleet: Fleet, sizing: Sizing
) -> tuple[HostCacheDay, HostCacheShare | None]:
    """Return the day with the last window, and what the cache gives by all whole days."""
    model, day, known = state.model, memory.traffic.host_cache, memory.posterior.host_cache
    if not (isinstance(model, ModelDeployment) and state.running_cache_gib):
        return NO_DAY, known
    asked, at_s = asked_of(model.spec), fleet.windows_end_s
    new_day = HostCacheDay(asked=asked, counted_at_s=at_s)
    if day.asked != asked:
        return new_day, known
    rates, window_s = _rates(state), BUSY_SCRAPES * fleet.settings.scrape_interval_s
    if at_s - day.counted_at_s < window_s or not rates:
        return day, known
    day = day.with_window(
        moved_per_s=fmean(moved for moved, _ in rates),
        started_per_s=fmean(started for _, started in rates),
        at_s=at_s,
        longest_s=LATE * window_s,
    )
    given = model.spec.model.kv_offload
    is_whole = given is not None and day.is_whole(tokens_cached(given, sizing))
    return (new_day, share_after(known, day)) if is_whole else (day, known)


def _rates(state: ModelState) -> list[tuple[float, float]]:
    """Return prompt tokens per second of each engine that says both: from the cache, and all."""
    return [
        (each.moved_prompt_tokens_per_s, each.started_prompt_tokens_per_s)
        for each in state.engines
        if each.moved_prompt_tokens_per_s is not None
        and each.started_prompt_tokens_per_s is not None
    ]
