"""Demand from what the engines report, on the arrival side."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tonnage.estimate.samples import EngineSamples, LongSamples

FRESH_SCRAPES = 3
"""Samples older than so many scrape intervals are stale."""
MIN_REQUESTS = 20
"""Finished requests over the long window before lengths are believed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredLengths:
    """Mean lengths of the requests that finished over the long window."""

    prompt_tokens: float
    output_tokens: float
    cached_fraction: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredDemand:
    """What arrives at the replicas of one object, now."""

    requests_per_s: float
    waiting: float
    running: float
    reporting: frozenset[str]
    """Pods of which every engine gave every figure that demand is made of."""
    is_complete: bool
    """Every replica that is Ready reported, freshly."""


def is_fresh(samples: EngineSamples, *, scrape_interval_s: float) -> bool:
    """Tell whether these samples may be acted on."""
    return samples.age_s is not None and samples.age_s <= FRESH_SCRAPES * scrape_interval_s


def measure_demand(
    samples: Sequence[EngineSamples],
    *,
    ready_pods: frozenset[str],
    stale_pods: frozenset[str] = frozenset(),
) -> MeasuredDemand | None:
    """Return arrivals per second and the queue; None when no engine says either.

    ``arrivals = completions + growth of (running + waiting) + rejections``: completions alone
    cannot see saturation. A replica that does not report makes the figure incomplete: it may
    raise the fleet, never lower it. ``stale_pods``: those with an engine that is silent by now.
    """
    known = [each for each in samples if each.completions_per_s is not None]
    if not known:
        return None
    arrivals = sum(
        (each.completions_per_s or 0.0)
        + (each.backlog_growth_per_s or 0.0)
        + (each.rejections_per_s or 0.0)
        for each in known
    )
    silent = {each.pod for each in samples if not _says_all(each)}
    reporting = frozenset(each.pod for each in known) - silent - stale_pods
    return MeasuredDemand(
        requests_per_s=max(0.0, arrivals),
        waiting=sum(each.waiting or 0.0 for each in known),
        running=sum(each.running or 0.0 for each in known),
        reporting=reporting,
        is_complete=ready_pods <= reporting,
    )


def _says_all(each: EngineSamples) -> bool:
    """Tell whether nothing is missing; the counter of rejections came with vLLM 0.32."""
    figures = (each.completions_per_s, each.backlog_growth_per_s, each.waiting)
    return all(figure is not None for figure in figures)


def measure_lengths(samples: Iterable[LongSamples], *, window_s: float) -> MeasuredLengths | None:
    """Return the mean lengths over the long window; None when too few requests finished."""
    known = list(samples)
    finished = sum(each.requests_per_s for each in known)
    prompt = sum(each.prompt_tokens_per_s for each in known)
    output = sum(each.output_tokens_per_s for each in known)
    if finished * window_s < MIN_REQUESTS or prompt <= 0 or output <= 0:
        return None
    started = sum(each.started_prompt_tokens_per_s for each in known)
    computed = sum(each.computed_prompt_tokens_per_s for each in known)
    return MeasuredLengths(
        prompt_tokens=prompt / finished,
        output_tokens=output / finished,
        cached_fraction=min(0.99, max(0.0, 1 - computed / started)) if started else 0.0,
    )


def attainment(within: Sequence[Mapping[float, float]], *, limit_s: float) -> float | None:
    """Return the share of requests within a limit, from cumulative histogram rates.

    Interpolates linearly inside the bucket that the limit falls into, in each engine's own
    ladder: a bound that one lacks is not zero requests there. None without requests.
    """
    told = [each for each in within if math.inf in each]
    total = sum(each[math.inf] for each in told)
    if total <= 0:
        return None
    return sum(_interpolate(each, limit_s) for each in told) / total


def _interpolate(within: Mapping[float, float], limit_s: float) -> float:
    low_bound, low_count = 0.0, 0.0
    for bound, count in sorted(within.items()):
        if limit_s <= bound:
            if bound == math.inf:
                return low_count
            share = (limit_s - low_bound) / (bound - low_bound)
            return low_count + share * (count - low_count)
        low_bound, low_count = bound, count
    return low_count
