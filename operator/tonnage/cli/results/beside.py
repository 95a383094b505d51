"""What is asked beside a plan: a demand by the hour, and what runs today. As figures of a month."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tonnage.catalog.gpu import Gpu
from tonnage.cli.read.demand_curve import DemandCurve
from tonnage.cli.results.planning import Planned, Refused, fewest_replicas
from tonnage.sizing.cost import cents, fleet_usd_per_hour, gpu_hour
from tonnage.sizing.errors import SizingError
from tonnage.sizing.plan import OnSearch, Sizing
from tonnage.sizing.search import size
from tonnage.units import HOURS_PER_MONTH

if TYPE_CHECKING:  # slow to import
    from tonnage.control.input.state import DeploymentView

HOURS, FLEETS = "demandByHour", "fleets"


def month_figures(gpu: Gpu, num_gpus: int, hours: Mapping[int, float]) -> dict[str, Any]:
    """Return a month of replicas of so many GPUs; ``hours``: of the month, by their number."""
    price = gpu_hour(gpu, num_gpus)
    usd = (
        each * (fleet_usd_per_hour(gpu, gpus_per_replica=num_gpus, replicas=replicas) or 0.0)
        for replicas, each in hours.items()
    )
    gpu_hours = num_gpus * sum(replicas * each for replicas, each in hours.items())
    cost = cents(sum(usd)) if price else None
    return {"gpuHours": round(gpu_hours, 1), "cost": cost, "currency": price and price.currency}


def with_hours(answer: Planned | Refused, curve: DemandCurve, start_s: float) -> Planned | Refused:
    """Return a plan of the peak with the replicas of each step, from the floor to those it has.

    ``start_s``: from creating a replica to Ready; so long before a step its replicas are paid.
    """
    if isinstance(answer, Refused):
        return answer
    sizing, rates, most = answer.sizing, curve.requests_per_s, answer.replicas
    peak, fewest = sizing.request.demand.peak_ratio, fewest_replicas(answer.deployment)
    needed = [sizing.replicas_for(peak * rate) for rate in rates]
    replicas = [min(most, max(fewest, number)) for number in needed]
    gpu, each = sizing.request.gpu, sizing.parallelism.num_gpus
    allowed = sizing.request.max_replicas
    figures = {
        "source": curve.source,
        "begins": curve.at(0),
        "stepSeconds": curve.step_s,
        "startUpSeconds": start_s,
        "peak": {"at": curve.at(rates.index(max(rates))), "requestsPerSecond": max(rates)},
        "meanRequestsPerSecond": round(sum(rates) / len(rates), 4),
        "hoursPerMonth": HOURS_PER_MONTH,
        "perMonth": {
            "byHour": month_figures(gpu, each, _hours(replicas, curve.step_s, start_s)),
            "constant": month_figures(gpu, each, {most: HOURS_PER_MONTH}),
        },
        "schedulesLeftOut": len(sizing.request.schedules),
        "stepsAboveMaxReplicas": sum(allowed is not None and n > allowed for n in needed),
        "steps": [
            {
                "at": curve.at(step),
                "requestsPerSecond": rate,
                "replicas": number,
                "gpus": number * each,
                "perHour": fleet_usd_per_hour(gpu, gpus_per_replica=each, replicas=number),
            }
            for step, (rate, number) in enumerate(zip(rates, replicas, strict=True))
        ],
    }
    return replace(answer, beside={**answer.beside, HOURS: figures})


def _hours(replicas: Sequence[int], step_s: float, start_s: float) -> Mapping[int, float]:
    """Return the hours of a month by the number of replicas that are paid.

    Those of a step, and those of the next ones in time to be Ready when these begin.
    """
    (ahead, rest_s), hours = divmod(start_s, step_s), defaultdict[int, float](float)
    for step in range(len(replicas)):
        for steps, time_s in ((int(ahead), step_s - rest_s), (int(ahead) + 1, rest_s)):
            soon = max(replicas[(step + k) % len(replicas)] for k in range(steps + 1))
            hours[soon] += HOURS_PER_MONTH * time_s / (step_s * len(replicas))
    return hours


def with_today(
    answer: Planned | Refused, view: "DeploymentView", on_search: OnSearch
) -> Planned | Refused:
    """Return a plan with the flags that run, beside what runs, and what other flags would take."""
    if isinstance(answer, Refused):
        return answer
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


def _fleet(sizing: Sizing, replicas: int, num_gpus: int = 0) -> dict[str, Any]:
    """Return the figures of replicas; ``num_gpus``: of each, where its split does not say it."""
    each = num_gpus or sizing.parallelism.num_gpus
    return {
        "parallelism": str(sizing.parallelism),
        "replicas": replicas,
        "gpus": replicas * each,
        "maxNumSeqs": sizing.flags.max_num_seqs,
        "sustainedRequestsPerSecond": replicas and sizing.sustained_requests_per_s(replicas),
        "perMonth": month_figures(sizing.request.gpu, each, {replicas: HOURS_PER_MONTH}),
    }
