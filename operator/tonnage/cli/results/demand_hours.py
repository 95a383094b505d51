"""What a demand by the hour takes: the replicas of each step, GPU-hours and cost of a month."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from tonnage.catalog.gpu import Gpu
from tonnage.cli.read.demand_curve import DemandCurve
from tonnage.cli.results.planning import Planned, Refused, fewest_replicas
from tonnage.sizing.cost import cents, fleet_usd_per_hour, gpu_hour
from tonnage.units import HOURS_PER_MONTH


class Month(NamedTuple):
    """GPU-hours and cost of a month; without a price there is no cost."""

    gpu_hours: float
    usd: float | None
    currency: str

    def to_dict(self) -> dict[str, Any]:
        usd = None if self.usd is None else cents(self.usd)
        return {"gpuHours": round(self.gpu_hours, 1), "cost": usd}

    def __str__(self) -> str:
        cost = "no price" if self.usd is None else f"{self.usd:,.0f} {self.currency}"
        return f"{self.gpu_hours:,.0f} GPU-hours, {cost} a month"


def month_of(gpu: Gpu, num_gpus: int, hours: Mapping[int, float]) -> Month:
    """Return a month of replicas of so many GPUs; ``hours``: of the month, by their number."""
    price = gpu_hour(gpu, num_gpus)
    usd = (
        each * (fleet_usd_per_hour(gpu, gpus_per_replica=num_gpus, replicas=replicas) or 0.0)
        for replicas, each in hours.items()
    )
    gpu_hours = num_gpus * sum(replicas * each for replicas, each in hours.items())
    return Month(gpu_hours, sum(usd) if price else None, price.currency if price else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class HourlyFleet:
    """A plan of the peak, and how many replicas of its kind each step takes."""

    planned: Planned
    curve: DemandCurve
    start_s: float
    """From creating a replica to Ready: so long before a step its replicas are paid."""
    replicas: tuple[int, ...]
    num_short: int
    """Steps that need more than the spec allows."""

    @property
    def peak_at(self) -> str:
        return self.curve.at(self.curve.requests_per_s.index(self.curve.peak_requests_per_s))

    def months(self) -> dict[str, Month]:
        """Return a month with the replicas of each step, with those of the peak, and what is saved.

        Replicas of a step are there in time to be Ready when it begins.
        """
        step_s, number = self.curve.step_s, len(self.replicas)
        ahead, rest_s = divmod(self.start_s, step_s)
        hours = defaultdict[int, float](float)
        for step in range(number):
            for steps, time_s in ((int(ahead), step_s - rest_s), (int(ahead) + 1, rest_s)):
                soon = max(self.replicas[(step + k) % number] for k in range(steps + 1))
                hours[soon] += HOURS_PER_MONTH * time_s / self.curve.duration_s
        sizing = self.planned.sizing
        varied, constant = (
            month_of(sizing.request.gpu, sizing.parallelism.num_gpus, each)
            for each in (hours, {self.planned.replicas: HOURS_PER_MONTH})
        )
        usd = None if varied.usd is None else (constant.usd or 0.0) - varied.usd
        saved = Month(constant.gpu_hours - varied.gpu_hours, usd, varied.currency)
        return {"byHour": varied, "constant": constant, "saved": saved}

    def steps(self) -> list[dict[str, Any]]:
        """Return each step as a row."""
        gpu, each = self.planned.sizing.request.gpu, self.planned.sizing.parallelism.num_gpus
        price = gpu_hour(gpu, each)
        return [
            {
                "at": self.curve.at(step),
                "requestsPerSecond": rate,
                "replicas": number,
                "gpus": number * each,
                "perHour": fleet_usd_per_hour(gpu, gpus_per_replica=each, replicas=number),
                "currency": price and price.currency,
            }
            for step, (rate, number) in enumerate(
                zip(self.curve.requests_per_s, self.replicas, strict=True)
            )
        ]

    def to_dict(self) -> dict[str, Any]:
        curve = self.curve
        return {
            "source": curve.source,
            "stepSeconds": curve.step_s,
            "startUpSeconds": self.start_s,
            "peak": {"at": self.peak_at, "requestsPerSecond": curve.peak_requests_per_s},
            "meanRequestsPerSecond": round(curve.mean_requests_per_s, 4),
            "hoursPerMonth": HOURS_PER_MONTH,
            "perMonth": {name: month.to_dict() for name, month in self.months().items()},
            "stepsAboveMaxReplicas": self.num_short,
            "steps": self.steps(),
        }


def by_the_hour(answer: Planned | Refused, curve: DemandCurve, start_s: float) -> Planned | Refused:
    """Return the answer with the replicas of each step, from the floor to those of the peak."""
    if isinstance(answer, Refused):
        return answer
    sizing = answer.sizing
    peak, fewest = sizing.request.demand.peak_ratio, fewest_replicas(answer.deployment)
    needed = [sizing.replicas_for(peak * rate) for rate in curve.requests_per_s]
    most = sizing.request.max_replicas
    hours = HourlyFleet(
        planned=answer,
        curve=curve,
        start_s=start_s,
        replicas=tuple(min(answer.replicas, max(fewest, number)) for number in needed),
        num_short=sum(most is not None and number > most for number in needed),
    )
    return replace(answer, hours=hours)
