"""What Prometheus says of the time before this process: demand of the week, and the error budget.

Engines are found by a label of their object, which our PodMonitor puts on each target. Demand is
completions by ten minutes; how high it rose within them is told of the last day, backlog included.
Demand is told in requests/s and becomes replicas at the lengths of now.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from tonnage.estimate.budget import BINS, Judged, Ledger, limit_key
from tonnage.estimate.demand import interpolate
from tonnage.estimate.forecast import DemandPeak, History, without_chance
from tonnage.estimate.metrics import WINDOWS, bound_matcher, bounds_near, prometheus_duration
from tonnage.estimate.pages import COMPLETED, REJECTED, RUNNING, WAITING
from tonnage.estimate.ways import BIN_S
from tonnage.settings import Settings
from tonnage.units import MINUTE_S

LABEL: Final = "tonnage_dev_model_deployment"
"""Of a target: what Prometheus makes of the label of the pod that names its object."""
STEP_S: Final = 5 * MINUTE_S
"""Of the error budget."""
LATENCIES: Final = {
    "TTFT": "vllm:time_to_first_token_seconds_bucket",
    "TPOT": "vllm:request_time_per_output_token_seconds_bucket",
}

ByBin = Mapping[int, float]
"""Figures by number of the bin since 1970."""
ByBound = Mapping[str, ByBin]
"""Requests within each bound of a histogram."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """What is known of one object from before this process."""

    ledger: Ledger
    """In bins of five minutes, until this process began."""
    window_s: float
    """Of its error budget."""
    means: ByBin = field(default_factory=dict)
    """Requests/s by ten minutes, of eight days."""
    peaks: ByBin = field(default_factory=dict)
    """The highest requests/s within these, of one day."""


def demand_queries(settings: Settings, namespace: str, names: Sequence[str]) -> tuple[str, str]:
    """Return the PromQL of means and of peaks by ten minutes, of objects of one namespace."""
    of, window_s = _selector(settings, namespace, names), WINDOWS[0] * settings.scrape_interval_s
    shortest, bin_s = prometheus_duration(window_s), prometheus_duration(BIN_S)

    def came(window: str) -> str:
        return (
            f"sum by ({LABEL}) (rate({COMPLETED}{of}[{window}]) or rate({REJECTED}{of}[{window}]))"
        )

    grown = " + ".join(
        f"sum by ({LABEL}) (delta({gauge}{of}[{shortest}]))" for gauge in (RUNNING, WAITING)
    )
    highest = f"max_over_time(({came(shortest)} + ({grown}) / {window_s:g})[{bin_s}:{shortest}])"
    return came(bin_s), highest


def latency_query(
    settings: Settings,
    namespace: str,
    names: Sequence[str],
    latency: str,
    limits_s: Iterable[float],
) -> str:
    """Return the PromQL of the requests within each bound near the limits, in five minutes."""
    metric, near_s = LATENCIES[latency], list(limits_s)
    of = _selector(settings, namespace, names, bound_matcher(bounds_near(near_s, near_s)))
    return f"sum by ({LABEL}, le) (increase({metric}{of}[{prometheus_duration(STEP_S)}]))"


def _selector(settings: Settings, namespace: str, names: Sequence[str], *more: str) -> str:
    matchers = [
        settings.prometheus_selector,
        f'{settings.namespace_label}="{namespace}"',
        f'{LABEL}=~"{"|".join(names)}"'.replace(".", "[.]"),
        *more,
    ]
    return f"{{{','.join(filter(None, matchers))}}}"


def past_ledger(
    latencies: Mapping[str, ByBound],
    limits_s: Mapping[str, Iterable[float]],
    *,
    from_s: float,
    until_s: float,
) -> Ledger:
    """Return the requests in time and late by limit, as far as histograms tell them.

    It counts since their first sample; without any since ``until_s``.
    """
    limits, first = defaultdict[str, dict[int, Judged]](dict), math.floor(until_s / STEP_S)
    for latency, by_bound in latencies.items():
        known = {float(bound): bins for bound, bins in by_bound.items()}
        for at, number in known.get(math.inf, {}).items():
            if at * STEP_S < from_s:
                continue
            first = min(first, at)
            within = {bound: bins.get(at, 0.0) for bound, bins in known.items()}
            for limit_s in limits_s[latency] if number > 0 else ():
                late = number - min(number, interpolate(within, limit_s))
                limits[limit_key(latency, limit_s)][at] = number, late
    return Ledger(window_s=BINS * STEP_S, limits=dict(limits), since_s=first * STEP_S)


def with_past(history: History, past: Past, most_requests_per_s: float, *, scv: float) -> History:
    """Return a history with what came before it, in replicas that serve so much at most.

    ``scv``: of arrivals, by which chance is taken off what was highest.
    """
    means = {at: rate / most_requests_per_s for at, rate in past.means.items()}
    began = min(history.pattern, default=math.inf)
    peaks = (
        _peak(at, without_chance(rate * MINUTE_S, scv=scv) / MINUTE_S / most_requests_per_s, means)
        for at, rate in sorted(past.peaks.items())
        if at < began
    )
    return replace(
        history,
        pattern={at: (mean, 1) for at, mean in means.items()} | dict(history.pattern),
        peaks=(*filter(None, peaks), *history.peaks),
    )


def _peak(at: int, height: float, means: ByBin) -> DemandPeak | None:
    """Return how far demand rose in a bin above what came before and after it."""
    around = [means[each] for each in (at - 1, at + 1) if each in means]
    base = max(around, default=means.get(at, 0.0))
    return DemandPeak(bin=at, ratio=height / base, demand=base, height=height) if base else None
