"""What a plan gives at the demand asked, beside what it gives at capacity, in words and numbers."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tonnage.explain.report import rounded
from tonnage.sizing.cost import bill
from tonnage.sizing.plan import Sizing, requests_per_s_asked
from tonnage.sizing.serving.demand import Served
from tonnage.units import format_s, significant

PERCENT = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class AtDemand:
    """What the replicas of a plan do with the demand, and how far it may grow."""

    served: Served
    sustained_requests_per_s: float
    """That these replicas serve within every target."""
    is_served: bool
    """Whether that is enough."""
    usd_per_hour: float | None
    usd_per_million_tokens: float | None
    """Of the output tokens asked for."""
    next_replicas: int
    next_usd_per_hour: float | None
    """Of one replica more."""

    @property
    def growth(self) -> float:
        """By what share the demand may grow before a replica is missing; negative: one is."""
        return self.sustained_requests_per_s / self.served.requests_per_s - 1


def at_demand(sizing: Sizing, replicas: int) -> AtDemand | None:
    """Return what so many replicas do with the demand; None without a rate asked for or an SLO."""
    rate = requests_per_s_asked(sizing)
    if not rate or sizing.request.slo.is_offline:
        return None
    found, more = (bill(sizing, replicas=number) for number in (replicas, replicas + 1))
    sustained = sizing.sustained_requests_per_s(replicas)
    return AtDemand(
        served=sizing.at(rate, replicas),
        sustained_requests_per_s=sustained,
        is_served=sizing.staffing.sustains(rate, replicas),
        usd_per_hour=found.usd_per_hour if found else None,
        usd_per_million_tokens=found.usd_per_million_tokens_asked if found else None,
        next_replicas=replicas + 1,
        next_usd_per_hour=more.usd_per_hour if more else None,
    )


def reached_targets(sizing: Sizing, served: Served) -> Iterator[tuple[str, str, str]]:
    """Yield (name with percentile, latency reached, latency allowed) of each SLO target."""
    slo = sizing.request.slo
    for name, targets in (("TTFT", slo.ttft), ("TPOT", slo.tpot)):
        for target in targets:
            reached = served.at(target.quantile)
            reached_s = reached.ttft_s if name == "TTFT" else reached.tpot_s
            written = "no second token" if reached_s is None else format_s(reached_s)
            percentile = f"p{target.quantile * PERCENT:g}"
            yield f"{name} {percentile}", written, format_s(target.limit_s)


def latencies_written(sizing: Sizing, served: Served) -> Iterator[str]:
    """Yield each SLO target with the latency that is reached at its percentile."""
    for name, reached, target in reached_targets(sizing, served):
        yield f"{name} {reached} (target {target})"


def demand_figures(sizing: Sizing, replicas: int) -> dict[str, Any] | None:
    """Return the same as plain figures; None without a rate asked for or an SLO."""
    found = at_demand(sizing, replicas)
    if found is None:
        return None
    served = found.served
    return {
        "requestsPerSecond": rounded(served.requests_per_s),
        "replicas": served.num_replicas,
        "isServed": found.is_served,
        "latencies": [
            {
                "percentile": f"p{each.quantile * PERCENT:g}",
                "timeToFirstTokenSeconds": rounded(each.ttft_s),
                "timePerOutputTokenSeconds": None if each.tpot_s is None else rounded(each.tpot_s),
            }
            for each in served.latencies
        ],
        "busyFraction": rounded(served.busy),
        "kvCacheUsageFraction": rounded(served.kv_usage),
        "requestsPerSecondSustained": rounded(found.sustained_requests_per_s),
        "goodputStandardErrorFraction": rounded(sizing.goodput.standard_error),
        "usdPerHour": found.usd_per_hour,
        "usdPerMillionTokens": found.usd_per_million_tokens,
        "usdPerHourWithOneMore": found.next_usd_per_hour,
    }


def load_written(served: Served) -> str:
    """Write how full the replicas are."""
    return (
        f"busy {served.busy:.0%} of the time, then with {significant(served.running)} decoding "
        f"each; KV cache {served.kv_usage:.0%} full"
    )


def room_written(found: AtDemand) -> str:
    """Write how far the demand may grow, and what one replica more costs."""
    replicas = found.served.num_replicas
    price = "" if found.next_usd_per_hour is None else f" for {found.next_usd_per_hour:.2f} USD/h"
    if not found.is_served:
        return (
            f"{replicas} serve {significant(found.sustained_requests_per_s)} of the "
            f"{significant(found.served.requests_per_s)} requests/s asked for; {replicas + 1} cost"
            f"{price or ' an unknown amount'}"
        )
    return (
        f"the demand may grow by {max(0.0, found.growth):.0%}, to "
        f"{significant(found.sustained_requests_per_s)} requests/s, before {replicas + 1} are "
        f"needed{price}"
    )
