"""What a plan gives at the demand asked, beside what it gives at capacity, in words and numbers."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from tonnage.api.status import Reason
from tonnage.catalog.gpu import Gpu
from tonnage.explain.report import (
    DIGITS,
    estimate_status,
    plan_status,
    rate_written,
    round_estimate,
)
from tonnage.sizing.bill import Bill, Commitment, bill
from tonnage.sizing.cost import GpuHour, amount, cents, rented_hour
from tonnage.sizing.plan import Sizing, requests_per_s_asked
from tonnage.sizing.request import spread_of
from tonnage.sizing.serving.staffing import ServiceLevel, is_within
from tonnage.sizing.workload import Slo
from tonnage.units import DAY_S, MILLION, count_of, format_s, significant


def tokens_per_day(tokens_per_s: float) -> str:
    """Write a rate of output tokens as people plan offline work.

    >>> tokens_per_day(11_574.08)
    '1000 million output tokens per day'
    """
    return f"{significant(tokens_per_s * DAY_S / MILLION)} million output tokens per day"


def per_hour_written(found: Bill) -> str:
    """Write what an hour costs: of full instances the share, and of the instances as billed."""
    shared, whole = (f"{usd:.2f}" for usd in (found.usd_per_hour_shared, found.usd_per_hour_whole))
    return both_written(shared, whole, f"{found.currency} per hour")


def both_written(shared: str, whole: str, unit: str) -> str:
    """Write an amount as it is paid by the GPU, and by the instance where that is another."""
    others = f" as a share of full instances, {whole} in whole ones"
    return f"{shared} {unit}{others if shared != whole else ''}"


def nodes_written(found: Bill) -> Iterator[str]:
    """Yield the instances that replicas leave GPUs of idle, and how many of these are used."""
    used, in_all = (
        found.replicas * found.gpus_per_replica,
        found.hour.gpus_whole(found.replicas, found.gpus_per_replica),
    )
    if found.nodes is not None and (found.hour.is_whole or in_all > used):
        name = found.hour.rent.instance if found.hour.rent else ""
        machines = f"{found.nodes} x {name}" if name else count_of(found.nodes, "node")
        yield (
            f"{machines} of {count_of(found.hour.gpus_per_node or 1, 'GPU')}, "
            f"{used} of {count_of(in_all, 'GPU')} used, {in_all - used} idle"
        )


def commitment_written(found: Commitment) -> str:
    """Say what a commitment saves a year, and from which use on."""
    unit, saved = found.hour.currency, found.saved_per_year
    replicas = count_of(found.replicas, "replica that always runs", "replicas that always run")
    change = f"{abs(saved):,.0f} {unit} per year {'less' if saved >= 0 else 'more'}"
    worth = f"; lower for a replica that runs more than {found.worth_from:.0%} of the time"
    return (
        f"{amount(found.hour.usd)} {unit} per GPU and hour, {change} for the {replicas} "
        f"(minReplicas){worth if found.worth_from < 1 else ''}"
    )


def _of_users(sizing: Sizing, found: Bill) -> str:
    demand = sizing.request.demand.usual
    carried = sizing.at_capacity.num_running / demand.duty_fraction
    return (
        f"{found.usd_per_hour_and_user:.4f} {found.currency} per hour and user, "
        f"{found.usd_per_month_and_user:.2f} per month: "
        f"{count_of(f'{demand.num_users:.0f}', 'user')}, each in flight {demand.duty_fraction:.0%} "
        f"of the time; a replica carries {significant(carried)}"
    )


def price_notes(hours: Iterable[tuple[str, GpuHour]]) -> Iterator[str]:
    """Yield provider, region, term and date, with the GPU classes and instances of these prices."""
    machines: dict[str, dict[str, None]] = {}
    for name, hour in hours:
        if hour.rent:
            common = replace(hour.rent, instance="", num_gpus=None).basis
            machines.setdefault(common, {})[f"{name} {hour.rent.machine}".rstrip()] = None
    yield from (f"prices: {common}; {', '.join(names)}" for common, names in machines.items())


def missing_price(gpu: Gpu, num_gpus: int) -> str:
    """Say why a replica of so many GPUs has no price."""
    price = gpu.price
    if price.missing:
        return price.missing
    if rents := price.paid():
        listed = ", ".join(rent.machine for rent in rents)
        return f"no price is known of an instance with {num_gpus} {gpu.name}, only of {listed}"
    if price.offered:
        return f"{gpu.name} has no {price.term} price"
    if price.purchase_usd is None:
        return f"{gpu.name} has no rental price"
    return f"{gpu.name} has no rental price; price.amortization_hours would spread its purchase"


PERCENT = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class DemandOutcome:
    """What the replicas of a plan do with the demand, and how far it may grow."""

    served: ServiceLevel
    sustained_requests_per_s: float
    """That these replicas serve within every target."""
    is_served: bool
    """Whether that is enough."""
    bill: Bill | None
    next_bill: Bill | None
    """Of one replica more."""
    spread: float
    """By which fraction a step may be longer than its prior, eight times in ten."""
    may_grow: bool = True
    """Whether maxReplicas allows one replica more."""

    @property
    def is_sure(self) -> bool:
        """Tell whether the replicas serve the demand also if steps are longer by the spread."""
        return is_within(
            (1 + self.spread) * self.served.requests_per_s, self.sustained_requests_per_s
        )

    @property
    def load(self) -> float:
        """The demand over what the replicas sustain."""
        return self.served.requests_per_s / self.sustained_requests_per_s

    @property
    def growth(self) -> float:
        """By what share the demand may grow before a replica is missing; negative: one is."""
        return self.sustained_requests_per_s / self.served.requests_per_s - 1

    def at_strictest(self, slo: Slo) -> tuple[float | None, float | None]:
        """Return TTFT and TPOT at the highest percentile that each has a target at, in seconds.

        None: it has none, or there is no second token.
        """
        ttft, tpot = (
            self.served.at(max(each.quantile for each in targets)) if targets else None
            for targets in (slo.ttft, slo.tpot)
        )
        return (ttft.ttft_s if ttft else None), (tpot.tpot_s if tpot else None)


def at_demand(sizing: Sizing, replicas: int) -> DemandOutcome | None:
    """Return what so many replicas do with the demand; None without a rate asked for or an SLO."""
    rate = requests_per_s_asked(sizing)
    if not rate or sizing.request.slo.is_offline:
        return None
    found, more = (bill(sizing, replicas=number) for number in (replicas, replicas + 1))
    sustained = sizing.sustained_requests_per_s(replicas)
    return DemandOutcome(
        served=sizing.at(rate, replicas),
        sustained_requests_per_s=sustained,
        is_served=sizing.staffing.sustains(rate, replicas)
        and sizing.keeps_targets(rate / replicas, replicas),
        bill=found,
        next_bill=more,
        spread=spread_of(sizing.request, sizing.parallelism),
        may_grow=replicas < (sizing.request.max_replicas or math.inf),
    )


def reached_targets(sizing: Sizing, served: ServiceLevel) -> Iterator[tuple[str, str, str]]:
    """Yield (name with percentile, latency reached, latency allowed) of each SLO target."""
    slo = sizing.request.slo
    endless = "met by who is admitted" if sizing.request.refuses_late else "grows without end"
    for name, targets in (("TTFT", slo.ttft), ("TPOT", slo.tpot)):
        for target in targets:
            reached = served.at(target.quantile)
            reached_s = reached.ttft_s if name == "TTFT" else reached.tpot_s
            written = "no second token" if reached_s is None else format_s(reached_s)
            written = endless if reached_s == math.inf else written
            percentile = f"p{target.quantile * PERCENT:g}"
            yield f"{name} {percentile}", written, format_s(target.limit_s)


def _is_missed(slo: Slo, served: ServiceLevel) -> bool:
    """Tell whether targets are passed at the rate of capacity.

    What one replica serves is a rate whose own run keeps every target; what each of many serves
    behind a router is read between fleets that were simulated.
    """
    return any(served.at(each.quantile).ttft_s > each.limit_s for each in slo.ttft) or any(
        (served.at(each.quantile).tpot_s or 0.0) > each.limit_s for each in slo.tpot
    )


def sizing_figures(
    sizing: Sizing, replicas: int, reasons: tuple[Reason, ...] = ()
) -> dict[str, Any]:
    """Return a plan as data: at the demand, at capacity, and what status would hold."""
    return {
        "atDemand": demand_figures(sizing, replicas),
        "atCapacity": capacity_figures(sizing, replicas),
        "plan": plan_status(sizing, replicas=replicas, reasons=reasons).to_dict(),
        "estimate": estimate_status(sizing, replicas).to_dict(),
    }


def demand_figures(sizing: Sizing, replicas: int) -> dict[str, Any] | None:
    """Return the same as plain figures; None without a rate asked for or an SLO."""
    found = at_demand(sizing, replicas)
    if found is None:
        return None
    served = found.served
    return {
        "requestsPerSecond": round_estimate(served.requests_per_s),
        "replicas": served.num_replicas,
        "isServed": found.is_served,
        "isSure": found.is_sure,
        "loadFraction": round_estimate(found.load),
        "latencies": _latency_figures(served),
        "busyFraction": round_estimate(served.busy),
        "kvCacheUsageFraction": round_estimate(served.kv_usage),
        "requestsPerSecondSustained": round_estimate(found.sustained_requests_per_s),
        "goodputStandardErrorFraction": round_estimate(sizing.goodput.standard_error),
        "cost": cost_figures(found.bill),
        "costWithOneMore": cost_figures(found.next_bill),
    }


def capacity_figures(sizing: Sizing, replicas: int) -> dict[str, Any]:
    """Return what so many replicas give when each is at its load line, as plain figures."""
    sustained, found = sizing.sustained_requests_per_s(replicas), bill(sizing, replicas=replicas)
    latencies = None
    if not sizing.request.slo.is_offline:
        latencies = _latency_figures(sizing.at(sustained, replicas))
    return {
        "requestsPerSecond": round_estimate(sustained),
        "outputTokensPerSecond": round_estimate(sustained * sizing.request.workload.output_tokens),
        "latencies": latencies,
        "costPerMillionTokens": round_estimate(found.usd_per_million_tokens) if found else None,
    }


def _latency_figures(served: ServiceLevel) -> list[dict[str, Any]]:
    return [
        {
            "percentile": f"p{each.quantile * PERCENT:g}",
            "timeToFirstTokenSeconds": None
            if math.isinf(each.ttft_s)
            else round_estimate(each.ttft_s),
            "timePerOutputTokenSeconds": None
            if each.tpot_s is None
            else round_estimate(each.tpot_s),
        }
        for each in served.latencies
    ]


def cost_figures(found: Bill | None) -> dict[str, Any] | None:
    """Return what a fleet costs, with its currency; None without a price."""
    if found is None:
        return None
    asked = found.usd_per_million_tokens_asked
    return {
        "currency": found.currency,
        "perGpuHour": round(found.hour.usd, DIGITS),
        "perHour": cents(found.usd_per_hour),
        "perMonth": cents(found.usd_per_month),
        "perYear": cents(found.usd_per_year),
        "perMillionTokens": None if asked is None else round_estimate(asked),
        "perMillionInputTokens": round_estimate(found.usd_per_million_prompt_tokens),
        "perRequest": round_estimate(found.usd_per_request),
        "meanReplicas": round_estimate(found.mean_replicas),
        "perHourShared": cents(found.usd_per_hour_shared),
        "perHourWhole": cents(found.usd_per_hour_whole),
        "gpusPaid": found.gpus_paid,
        "wholeNodes": found.nodes,
        "price": price_figures(found.hour),
        "commitments": [
            {
                "perGpuHour": round(each.hour.usd, DIGITS),
                "replicas": each.replicas,
                "savedPerYear": cents(each.saved_per_year),
                "worthFromFraction": round_estimate(each.worth_from),
                "price": price_figures(each.hour),
            }
            for each in found.commitments
        ],
    }


def price_figures(hour: GpuHour) -> dict[str, Any]:
    """Return what the price of a GPU holds for; what is not known is left out."""
    rent = hour.rent
    if rent is None:
        return {"basis": hour.basis, "parts": hour.parts}
    known = {
        "provider": rent.provider,
        "region": rent.region,
        "term": rent.term,
        "date": rent.date,
        "instance": rent.instance,
        "instanceGpus": rent.num_gpus,
        "source": rent.source.key if rent.source else None,
    }
    return {"basis": hour.basis, **{name: value for name, value in known.items() if value}}


def load_written(served: ServiceLevel) -> str:
    return (
        f"{significant(served.running)} running requests each on average; KV cache "
        f"{served.kv_usage:.0%} full"
    )


def room_written(found: DemandOutcome) -> str:
    """Write how far the demand may grow, and what one replica more costs."""
    replicas, more = found.served.num_replicas, found.next_bill
    cost = f"{more.usd_per_hour:.2f} {more.currency}/h" if more else "an unknown amount"
    above = "" if found.may_grow else ", more than maxReplicas allows"
    if not found.is_served:
        return (
            f"{replicas} serve {significant(found.sustained_requests_per_s)} of the "
            f"{significant(found.served.requests_per_s)} requests/s asked for; {replicas + 1} cost "
            f"{cost}{above}"
        )
    price = f" for {cost}" if more else ""
    doubt = (
        ""
        if found.is_sure
        else f"; not certain: if steps are {found.spread:.0%} slower, {replicas + 1} are needed"
    )
    return (
        f"headroom: up to {significant(found.sustained_requests_per_s)} requests/s "
        f"({max(0.0, found.growth):+.0%}) before {replicas + 1} are needed{price}{above}{doubt}"
    )


def demand_rows(sizing: Sizing, replicas: int) -> Iterator[tuple[str, str]]:
    """Yield (name, what it comes to) of what a buyer signs: at the demand, at capacity, beyond."""
    rate, found = requests_per_s_asked(sizing), bill(sizing, replicas=replicas)
    sustained = sizing.sustained_requests_per_s(replicas)
    asked = at_demand(sizing, replicas)
    if rate:
        yield (
            "demand",
            f"{rate_written(sizing, rate)}, {rate / sustained:.1%} of what "
            f"{count_of(replicas, 'replica sustains', 'replicas sustain')}",
        )
    if asked:
        yield from _target_rows(sizing, asked)
        yield "replicas", load_written(asked.served)
    if found:
        yield "cost", _cost_written(found)
        yield "cost of each", each_written(found)
        if found.usd_per_hour_and_user is not None:
            yield "cost of users", _of_users(sizing, found)
        hour = rented_hour(sizing.request.gpu, sizing.parallelism.num_gpus)
        rented = bill(sizing, replicas=found.replicas, hour=hour)
        if found.hour.basis == "owned" and hour and rented:
            yield (
                "if rented",
                f"{hour}, {rented.usd_per_hour:.2f} {rented.currency} per hour in all, "
                f"{rented.usd_per_million_tokens:.2f} {rented.currency} per million output tokens",
            )
        yield from (("instances", line) for line in nodes_written(found))
        yield "price", str(found.hour)
        yield from ((each.term, commitment_written(each)) for each in found.commitments)
    else:
        missing = missing_price(sizing.request.gpu, sizing.parallelism.num_gpus)
        yield "cost", f"unknown: {missing}"
    yield "at capacity", _capacity_written(sizing, sustained, replicas, found)
    if asked:
        yield "growth", room_written(asked)


def _target_rows(sizing: Sizing, asked: DemandOutcome) -> Iterator[tuple[str, str]]:
    """Yield what each target comes to, and where too much comes, what is in time of it.

    Of a rate that goes on: on average, without the requests that wait when it begins.
    """
    for name, reached, target in reached_targets(sizing, asked.served):
        yield name, f"{reached} (target {target})"
    if not any(math.isinf(each.ttft_s) for each in asked.served.latencies):
        return
    share = f"{1 / asked.load:.0%} get a first token in time, the others are refused (503)"
    if sizing.request.refuses_late:
        yield "admission", f"inTime: {share}"
    if sizing.request.may_refuse:
        yield "admission", f"all, so the queue grows; with engine.admission: inTime {share}"


def _cost_written(found: Bill) -> str:
    unit, of = found.currency, "in whole instances: " if found.hour.is_whole else ""
    if found.mean_replicas > found.replicas:
        of += f"with scaling.schedules {significant(found.mean_replicas)} replicas on average, "
    month = f"{of}{found.usd_per_month:,.0f} {unit} per month"
    year = f"{found.usd_per_year:,.0f} {unit} per year"
    return f"{per_hour_written(found)}; {month}, {year}"


def each_written(found: Bill) -> str:
    """Write the whole cost over requests, over tokens of outputs and over tokens of prompts."""
    unit = found.currency
    output = found.usd_per_million_tokens_asked or found.usd_per_million_tokens
    return (
        f"{significant(found.usd_per_request)} {unit} per request, {output:.2f} {unit} per million "
        f"output tokens, or {significant(found.usd_per_million_prompt_tokens)} {unit} per million "
        "input tokens"
    )


def _capacity_written(sizing: Sizing, sustained: float, replicas: int, found: Bill | None) -> str:
    parts = [f"{significant(sustained)} requests/s"]
    if not sizing.request.slo.is_offline:
        served = sizing.at(sustained, replicas)
        parts += [f"{name} {reached}" for name, reached, _ in reached_targets(sizing, served)]
        if _is_missed(sizing.request.slo, served):
            parts.append(
                "which misses a target, by no more than the step of the search for the rate"
            )
    if found:
        each = found.usd_per_million_tokens
        parts += [f"{each:.2f} {found.currency} per million output tokens"]
    return ", ".join(parts)
