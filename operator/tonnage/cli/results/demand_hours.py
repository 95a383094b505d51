"""What a demand by the hour takes: the replicas of each step, GPU-hours and cost of a month."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tonnage.cli.read.demand_curve import DemandCurve
from tonnage.cli.results.planning import Planned, fewest_replicas
from tonnage.sizing.cost import cents, fleet_usd_per_hour, gpu_hour
from tonnage.units import HOURS_PER_MONTH


@dataclass(frozen=True, slots=True, kw_only=True)
class Month:
    """What replicas take in a month."""

    gpu_hours: float
    usd: float | None
    """In the currency of the price; None: there is none."""

    def __sub__(self, other: "Month") -> "Month":
        is_known = self.usd is not None and other.usd is not None
        return Month(
            gpu_hours=self.gpu_hours - other.gpu_hours,
            usd=(self.usd or 0.0) - (other.usd or 0.0) if is_known else None,
        )

    def to_dict(self) -> dict[str, Any]:
        usd = None if self.usd is None else cents(self.usd)
        return {"gpuHours": round(self.gpu_hours, 1), "cost": usd}


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
    def gpus_per_replica(self) -> int:
        return self.planned.sizing.parallelism.num_gpus

    @property
    def currency(self) -> str:
        hour = gpu_hour(self.planned.sizing.request.gpu, self.gpus_per_replica)
        return hour.currency if hour else ""

    @property
    def peak_at(self) -> str:
        return self.curve.at(self.curve.requests_per_s.index(self.curve.peak_requests_per_s))

    @property
    def by_hour(self) -> Month:
        """With the replicas of each step, those of the next ones in time to be Ready."""
        step_s, number = self.curve.step_s, len(self.replicas)
        ahead, rest_s = divmod(self.start_s, step_s)
        hours = defaultdict[int, float](float)
        for step in range(number):
            for steps, time_s in ((int(ahead), step_s - rest_s), (int(ahead) + 1, rest_s)):
                soon = max(self.replicas[(step + k) % number] for k in range(steps + 1))
                hours[soon] += HOURS_PER_MONTH * time_s / self.curve.duration_s
        return self._month(hours)

    @property
    def constant(self) -> Month:
        """With the replicas of the peak all the time."""
        return self._month({self.planned.replicas: HOURS_PER_MONTH})

    def _month(self, hours: Mapping[int, float]) -> Month:
        usd = [(self.usd_per_hour(number), each) for number, each in hours.items()]
        has_price = all(cost is not None for cost, _ in usd)
        return Month(
            gpu_hours=self.gpus_per_replica * sum(n * each for n, each in hours.items()),
            usd=sum((cost or 0.0) * each for cost, each in usd) if has_price else None,
        )

    def usd_per_hour(self, replicas: int) -> float | None:
        gpu = self.planned.sizing.request.gpu
        each = self.gpus_per_replica
        return fleet_usd_per_hour(gpu, gpus_per_replica=each, replicas=replicas)

    def steps(self) -> list[dict[str, Any]]:
        """Return each step as a row."""
        return [
            {
                "at": self.curve.at(step),
                "requestsPerSecond": rate,
                "replicas": replicas,
                "gpus": replicas * self.gpus_per_replica,
                "currency": self.currency,
                "perHour": self.usd_per_hour(replicas),
            }
            for step, (rate, replicas) in enumerate(
                zip(self.curve.requests_per_s, self.replicas, strict=True)
            )
        ]

    def to_dict(self) -> dict[str, Any]:
        curve, varied, constant = self.curve, self.by_hour, self.constant
        return {
            "source": curve.source,
            "stepSeconds": curve.step_s,
            "startUpSeconds": self.start_s,
            "peak": {"at": self.peak_at, "requestsPerSecond": curve.peak_requests_per_s},
            "meanRequestsPerSecond": round(curve.mean_requests_per_s, 4),
            "hoursPerMonth": HOURS_PER_MONTH,
            "perMonth": {
                "byHour": varied.to_dict(),
                "constant": constant.to_dict(),
                "saved": (constant - varied).to_dict(),
            },
            "stepsAboveMaxReplicas": self.num_short,
            "steps": self.steps(),
        }


def by_the_hour(planned: Planned, curve: DemandCurve, start_s: float) -> HourlyFleet:
    """Return the replicas of each step: from those that always run to those of the peak."""
    sizing = planned.sizing
    peak, fewest = sizing.request.demand.peak_ratio, fewest_replicas(planned.deployment)
    needed = [sizing.replicas_for(peak * rate) for rate in curve.requests_per_s]
    most = sizing.request.max_replicas
    return HourlyFleet(
        planned=planned,
        curve=curve,
        start_s=start_s,
        replicas=tuple(min(planned.replicas, max(fewest, number)) for number in needed),
        num_short=sum(most is not None and number > most for number in needed),
    )
