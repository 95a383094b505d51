"""What is asked beside a plan: a demand by the hour, and what runs today. As figures of a month."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

from tonnage.catalog.gpu import Gpu
from tonnage.cli.read.demand_curve import DemandCurve
from tonnage.cli.read.spec_overrides import MOST_REPLICAS
from tonnage.cli.results.planning import Planned, fewest_replicas
from tonnage.explain.report import round_estimate
from tonnage.sizing.bill import year_of
from tonnage.sizing.cost import cents, gpu_hour
from tonnage.sizing.errors import SizingError
from tonnage.sizing.plan import OnSearch, Sizing
from tonnage.sizing.search import size
from tonnage.units import HOUR_S, HOURS_PER_MONTH, MILLION

if TYPE_CHECKING:  # slow to import
    from tonnage.control.input.state import DeploymentView

HOURS, FLEETS, SCALER = "demandByHour", "fleets", "modelDeployment"
ROOM: Final = 2
"""Times the replicas that run or are planned, which a ModelDeployment made here allows."""


def month_figures(gpu: Gpu, num_gpus: int, hours: Mapping[int, float]) -> dict[str, Any]:
    """Return a month of replicas of so many GPUs; ``hours``: of the month, by their number.

    GPU-hours are those that are paid.
    """
    price = gpu_hour(gpu, num_gpus)
    used = num_gpus * sum(replicas * each for replicas, each in hours.items())
    if price is None:
        return {"gpuHours": round(used, 1), "cost": None, "currency": None}
    whole = sum(each * price.gpus_whole(replicas, num_gpus) for replicas, each in hours.items())
    paid = whole if price.is_whole else used
    return {
        "gpuHours": round(paid, 1),
        "cost": cents(price.usd * paid),
        "costShared": cents(price.usd * used),
        "costWhole": cents(price.usd * whole),
        "currency": price.currency,
    }


def with_hours(answer: Planned, curve: DemandCurve, start_s: float) -> Planned:
    """Return a plan of the peak with the replicas of each step, from the floor to those it has.

    ``start_s``: from creating a replica to Ready; so long before a step its replicas are paid.
    """
    sizing, rates, most = answer.sizing, curve.requests_per_s, answer.replicas
    peak = sizing.request.demand.peak_ratio / curve.peak_ratio
    fewest = fewest_replicas(answer.deployment)
    needed = [sizing.replicas_for(peak * rate) for rate in rates]
    by_rate = [min(most, max(fewest, number)) for number in needed]
    no_floors = [0] * len(rates)
    floors = year_of(sizing, no_floors, begins_s=curve.begins_s, step_s=curve.step_s)
    usual = (max(some.items(), key=itemgetter(1))[0] for some in floors)
    replicas = list(map(max, by_rate, usual))
    gpu, each = sizing.request.gpu, sizing.parallelism.num_gpus
    hour = gpu_hour(gpu, each)
    allowed = sizing.request.max_replicas
    figures = {
        "source": curve.source,
        "begins": curve.at(0),
        "stepSeconds": curve.step_s,
        "startUpSeconds": start_s,
        "peak": {"at": curve.at(rates.index(max(rates))), "requestsPerSecond": max(rates)},
        "meanRequestsPerSecond": round(max(rates) / curve.peak_ratio, 4),
        "hoursPerMonth": HOURS_PER_MONTH,
        "perMonth": {
            name: _with_each(month_figures(gpu, each, hours), sizing, sum(rates) / len(rates))
            for name, hours in (
                ("byHour", _hours(by_rate, floors, curve.step_s, start_s)),
                ("constant", _month_of(sizing, most)),
            )
        },
        "schedules": len(sizing.request.schedules),
        "stepsAboveMaxReplicas": sum(allowed is not None and n > allowed for n in needed),
        "steps": [
            {
                "at": curve.at(step),
                "requestsPerSecond": rate,
                "replicas": number,
                "gpus": number * each,
                "perHour": hour and hour.usd * hour.gpus_paid(number, each),
                "perHourWhole": hour and hour.usd * hour.gpus_whole(number, each),
            }
            for step, (rate, number) in enumerate(zip(rates, replicas, strict=True))
        ],
    }
    return replace(answer, beside={**answer.beside, HOURS: figures})


def _with_each(month: dict[str, Any], sizing: Sizing, requests_per_s: float) -> dict[str, Any]:
    """Return a month with what its requests and their tokens cost, at their mean rate."""
    if month["cost"] is None:
        return month
    usd = month["cost"] / (requests_per_s * HOURS_PER_MONTH * HOUR_S)
    workload = sizing.request.workload
    return month | {
        "perRequest": round_estimate(usd),
        "perMillionTokens": round_estimate(usd * MILLION / workload.output_tokens),
        "perMillionInputTokens": round_estimate(usd * MILLION / workload.prompt.mean_tokens),
    }


def _month_of(sizing: Sizing, replicas: int) -> Mapping[int, float]:
    """Return the hours of a month of a constant fleet, and of what schedules add."""
    [year] = year_of(sizing, [replicas])
    return {number: share * HOURS_PER_MONTH for number, share in year.items()}


def _hours(
    replicas: Sequence[int], floors: Sequence[Mapping[int, float]], step_s: float, start_s: float
) -> Mapping[int, float]:
    """Return the hours of a month by the number of replicas that are paid.

    Those of a step, and those of the next ones in time to be Ready when these begin; or what
    schedules ask for. ``floors``: which, for which share of a step.
    """
    (ahead, rest_s), hours = divmod(start_s, step_s), defaultdict[int, float](float)
    for step in range(len(replicas)):
        for steps, time_s in ((int(ahead), step_s - rest_s), (int(ahead) + 1, rest_s)):
            soon = max(replicas[(step + k) % len(replicas)] for k in range(steps + 1))
            for floor, share in floors[step].items():
                part = share * time_s / (step_s * len(replicas))
                hours[max(soon, floor)] += HOURS_PER_MONTH * part
    return hours


def with_today(answer: Planned, view: "DeploymentView", on_search: OnSearch) -> Planned:
    """Return a plan with the flags that run, beside what runs, and what other flags would take."""
    sizing = answer.sizing
    fleets = {
        "running": _fleet(sizing, view.replicas, view.gpus_per_replica),
        "sameFlags": _fleet(sizing, answer.replicas),
    }
    try:
        free = size(replace(sizing.request, flags=None), on_search=on_search)
        fewest = fewest_replicas(answer.deployment)
        fleets["otherFlags"] = _fleet(free, max(fewest, free.replicas))
    except SizingError:
        pass  # those that run are all that will do
    return replace(answer, beside={**answer.beside, FLEETS: fleets})


def with_scaler(answer: Planned, asked: Mapping[str, Any], running: int) -> Planned:
    """Return a plan with the ModelDeployment that would scale what runs: as advice, at first."""
    scaling = {"mode": "", **asked["spec"]["scaling"]} | {"mode": "Recommend"}
    if scaling["maxReplicas"] == MOST_REPLICAS:  # nobody gave it
        scaling["maxReplicas"] = min(MOST_REPLICAS, ROOM * max(answer.replicas, running))
    made = {**asked, "spec": {**asked["spec"], "scaling": scaling}}
    return replace(answer, beside={**answer.beside, SCALER: made})


def _fleet(sizing: Sizing, replicas: int, num_gpus: int = 0) -> dict[str, Any]:
    """Return the figures of replicas; ``num_gpus``: of each, where its split does not say it."""
    each = num_gpus or sizing.parallelism.num_gpus
    return {
        "parallelism": str(sizing.parallelism),
        "replicas": replicas,
        "gpus": replicas * each,
        "maxNumSeqs": sizing.flags.max_num_seqs,
        "sustainedRequestsPerSecond": replicas and sizing.sustained_requests_per_s(replicas),
        "perMonth": month_figures(sizing.request.gpu, each, _month_of(sizing, replicas)),
    }
