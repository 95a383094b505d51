"""What Prometheus says of the time before this process: demand of the week, and the error budget.

Engines are found by a label of their object, which our PodMonitor puts on each target. What two
Prometheus replicas say of one engine, or two jobs that scrape it, counts once. Demand is
completions by ten minutes; how high it rose within them is asked of the last day, backlog included.
It is in requests/s and becomes replicas at the lengths of now.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from tonnage.estimate.budget import BINS, Judged, Ledger, limit_key
from tonnage.estimate.demand import interpolate
from tonnage.estimate.forecast import DemandPeak, History, without_chance
from tonnage.estimate.forecasters import BIN_S
from tonnage.estimate.metrics import (
    BUCKETS,
    COLUMNS,
    PLACES,
    WINDOWS,
    bound_matcher,
    bounds_near,
    prometheus_duration,
)
from tonnage.settings import Settings
from tonnage.units import MINUTE_S

LABEL: Final = "tonnage_dev_model_deployment"
"""Of a target: what Prometheus makes of the label of the pod that names its object."""
LEAST_STEP_S: Final = 5 * MINUTE_S
STEPS_OF_BIN: Final = 4
"""Steps that a bin of the error budget is asked in."""
PAUSE_S: Final = 15 * MINUTE_S
"""So long no engine may report without a gap in the history: a start takes as long."""
LATENCIES: Final = {
    name.upper(): metric for metric, name in BUCKETS.items() if name in {"ttft", "tpot"}
}
"""The histogram of each latency."""

ByBin = Mapping[int, float]
"""Figures by number of the bin since 1970."""
ByBound = Mapping[str, Mapping[float, float]]
"""Requests within each bound of a histogram, by the end of the step in unix seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """What is known of one object from before this process."""

    ledger: Ledger
    means: ByBin = field(default_factory=dict)
    """Requests/s by ten minutes, of eight days."""
    peaks: ByBin = field(default_factory=dict)
    """The highest requests/s within these, of one day."""


class Engines(NamedTuple):
    """Those of objects of one namespace."""

    settings: Settings
    namespace: str
    names: Sequence[str]
    """Of the objects."""

    @property
    def labels(self) -> str:
        """Of one engine: what else a series has tells who scraped it."""
        return f"{LABEL},{self.settings.pod_label},engine"

    def selector(self, *more: str) -> str:
        matchers = [
            self.settings.prometheus_selector,
            f'{self.settings.namespace_label}="{self.namespace}"',
            f'{LABEL}=~"{"|".join(self.names)}"'.replace(".", "[.]"),
            *more,
        ]
        return f"{{{','.join(filter(None, matchers))}}}"

    def each(self, column: str, function: str, for_s: float) -> str:
        """Return a function of the series of a column, whichever name of it their pages have."""
        over = f"{self.selector()}[{prometheus_duration(for_s)}]"
        metrics = COLUMNS[PLACES[column]].metrics
        return " or ".join(f"{function}({metric}{over})" for metric in metrics)


def demand_queries(engines: Engines) -> tuple[str, str]:
    """Return the PromQL of means and of peaks by ten minutes.

    Growth of the backlog is added where there is a gauge of it. The first moment of ten minutes is
    the last of those before, and not asked for.
    """
    window_s = WINDOWS[0] * engines.settings.scrape_interval_s

    def ended(for_s: float) -> str:
        rates = (engines.each(column, "rate", for_s) for column in ("completed", "rejected"))
        return f"max by ({engines.labels},finished_reason,reason) ({' or '.join(rates)})"

    def grown(gauge: str) -> str:
        growth = engines.each(gauge, "delta", window_s)
        mean = f"avg by ({engines.labels}) ({growth}) / {window_s:g}"
        return f'label_replace({mean}, "gauge", "{gauge}", "", "")'

    within, every = (prometheus_duration(each) for each in (BIN_S - 1, min(window_s, MINUTE_S)))
    came = " or ".join([ended(window_s), grown("running"), grown("queued")])
    highest = f"max_over_time(sum by ({LABEL}) ({came})[{within}:{every}])"
    return f"sum by ({LABEL}) ({ended(BIN_S)})", highest


def latency_query(engines: Engines, latency: str, limits_s: Iterable[float], step_s: float) -> str:
    """Return the PromQL of the requests within each bound near the limits, by step."""
    near_s = list(limits_s)
    of = engines.selector(bound_matcher(bounds_near(near_s, near_s)))
    increase = f"increase({LATENCIES[latency]}{of}[{prometheus_duration(step_s)}])"
    return f"sum by ({LABEL},le) (max by ({engines.labels},le) ({increase}))"


def step_s_of(window_s: float) -> float:
    """Return the step in which the error budget of a window is asked for.

    >>> step_s_of(86400.0), step_s_of(3600.0)
    (900.0, 300)
    """
    return max(LEAST_STEP_S, window_s / (STEPS_OF_BIN * BINS))


def longest_gap_s(window_s: float) -> float:
    """Return how long no engine may report before history is missing."""
    return max(PAUSE_S, window_s / BINS)


def past_ledger(
    latencies: Mapping[str, ByBound],
    limits_s: Mapping[str, Iterable[float]],
    *,
    window_s: float,
    created_s: float,
    until_s: float,
) -> Ledger:
    """Return the requests in time and late by limit, and since when histograms have them all.

    What came before the object was made, another of its name served.
    """
    limits = defaultdict[str, dict[int, Judged]](dict)
    step_s, known, reported_s = step_s_of(window_s), Ledger(window_s=window_s), set[float]()
    for latency, by_bound in latencies.items():
        for end_s, within in _by_step(by_bound, from_s=created_s + step_s):
            reported_s.add(end_s)
            number, at = within[math.inf], math.floor((end_s - step_s / 2) / known.bin_s)
            for limit_s in limits_s[latency] if number > 0 else ():
                bins = limits[limit_key(latency, limit_s)]
                before, late = bins.get(at, (0.0, 0.0))
                in_time = min(number, interpolate(within, limit_s))
                bins[at] = before + number, late + number - in_time
    begin_s = max(created_s, until_s - window_s - longest_gap_s(window_s))
    since_s = _since_s(sorted(reported_s), window_s, begin_s, until_s)
    return replace(known, limits=dict(limits), since_s=since_s)


def _by_step(by_bound: ByBound, *, from_s: float) -> Iterator[tuple[float, Mapping[float, float]]]:
    """Yield ends of steps and what came within each bound, of the steps with a total.

    A page may have a histogram without bounds.
    """
    bounds = {float(bound): steps for bound, steps in by_bound.items() if bound}
    for end_s in bounds.get(math.inf, {}):
        if end_s >= from_s:
            yield end_s, {bound: steps.get(end_s, 0.0) for bound, steps in bounds.items()}


def _since_s(reported_s: Sequence[float], window_s: float, begin_s: float, until_s: float) -> float:
    """Return the end of the first step after the last gap; 0: there was none since ``begin_s``."""
    since_s, before_s, step_s = 0.0, begin_s, step_s_of(window_s)
    for end_s in (*reported_s, until_s + step_s):
        if end_s - step_s - before_s > longest_gap_s(window_s):
            since_s = min(end_s, until_s)
        before_s = end_s
    return since_s


def with_past(history: History, past: Past, most_requests_per_s: float, *, scv: float) -> History:
    """Return a history with what came before it, in replicas that serve so much at most.

    ``scv``: of arrivals, by which chance is taken off what was highest.
    """
    means = {at: rate / most_requests_per_s for at, rate in past.means.items()}
    began = min(history.pattern, default=math.inf)
    peaks = []
    for at, rate in sorted(past.peaks.items()):
        # How far demand rose in a bin above what came before and after it.
        around = [means[each] for each in (at - 1, at + 1) if each in means]
        base = max(around, default=means.get(at, 0.0))
        if at < began and base:
            height = without_chance(rate * MINUTE_S, scv=scv) / MINUTE_S / most_requests_per_s
            peaks.append(DemandPeak(bin=at, ratio=height / base, demand=base, height=height))
    return replace(
        history,
        pattern={at: (mean, 1) for at, mean in means.items()} | dict(history.pattern),
        peaks=(*peaks, *history.peaks),
    )
