"""A replay: every policy in every case by every seed, what that came to, and the answer as data."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from statistics import median
from typing import Any, Final

from tonnage.cli.results.planning import identity
from tonnage.explain.demand_outcome import price_figures
from tonnage.explain.report import DIGITS, round_estimate
from tonnage.replay.cluster import StartupTime
from tonnage.replay.evaluation import QUANTILES, RunFigures, SeriesPoint
from tonnage.replay.policies import PolicyResult, Scenario
from tonnage.replay.policy import BEST_STATIC, Policy
from tonnage.replay.simulation import TraceWorkload
from tonnage.replay.traces import Trace
from tonnage.sizing.cost import GpuHour, cents

PERCENT: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayQuestion:
    """What is compared."""

    source: str
    """The file or the shape that the requests come from."""
    scenario: Scenario
    """Each case has another cold start, each run another seed."""
    hour: GpuHour | None
    """Of one GPU; None: no price is known."""
    starts_s: tuple[float, ...]
    """Cold starts, on average."""
    policies: tuple[Policy, ...]
    num_seeds: int
    ran_pods: float | None = None
    """That the fleet itself ran in the mean, where the requests are its own and all of them."""

    @property
    def trace(self) -> Trace | None:
        """Return the trace of a file, whose clock and columns are worth a word."""
        requests = self.scenario.requests
        found = requests.trace if isinstance(requests, TraceWorkload) else None
        return found if found and found.clock else None

    @property
    def jobs(self) -> list[tuple[Scenario, Policy]]:
        """Everything that is to be run, in the order of the answer."""
        return [
            (replace(self.scenario, start=StartupTime(mean_s=start_s), seed=seed), policy)
            for start_s in self.starts_s
            for policy in self.policies
            for seed in range(self.num_seeds)
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseResult:
    """One policy with one cold start, by seed."""

    policy: Policy
    outcomes: tuple[PolicyResult, ...]
    peak: "tuple[PolicyResult, ...]"
    """The static peak by seed; empty: it is not among the policies."""
    hour: GpuHour | None = None

    @property
    def figures(self) -> list[RunFigures]:
        return [each.judged for each in self.outcomes if each.judged]

    def middle(self, name: str) -> float | None:
        """Return the median over seeds of a figure of ``RunFigures``; None: there was no fleet."""
        values = [getattr(each, name) for each in self.figures]
        return median(values) if values else None

    def least(self, name: str) -> float | None:
        return min((getattr(each, name) for each in self.figures), default=None)

    @property
    def of_peak(self) -> float | None:
        """Return the GPU-hours over those of the static peak, each seed by itself; the median."""
        ratios = [
            a.judged.gpu_hours / b.judged.gpu_hours
            for a, b in zip(self.outcomes, self.peak, strict=False)
            if a.judged and b.judged and b.judged.gpu_hours
        ]
        return median(ratios) if ratios else None

    def keeps(self, target: float) -> bool:
        """Whether the target is kept, by the median of the seeds."""
        share = self.middle("attainment")
        return share is not None and share >= target

    @property
    def notes(self) -> list[str]:
        return list(dict.fromkeys(note for each in self.outcomes for note in each.notes))


@dataclass(frozen=True, slots=True, kw_only=True)
class Replays:
    """The whole answer."""

    question: ReplayQuestion
    outcomes: tuple[PolicyResult, ...]
    """Of the jobs, in their order."""

    def by_start(self) -> Iterator[tuple[float, list[CaseResult]]]:
        question, outcomes = self.question, iter(self.outcomes)
        for start_s in question.starts_s:
            groups = {
                policy: tuple(islice(outcomes, question.num_seeds)) for policy in question.policies
            }
            peak = groups.get(Policy(name=BEST_STATIC), ())
            yield (
                start_s,
                [
                    CaseResult(policy=policy, outcomes=group, peak=peak, hour=question.hour)
                    for policy, group in groups.items()
                ],
            )

    @property
    def faults(self) -> list[str]:
        return list(dict.fromkeys(fault for each in self.outcomes for fault in each.faults))

    def to_dict(self) -> dict[str, Any]:
        question, scenario = self.question, self.question.scenario
        return {
            "metadata": identity(scenario.model),
            "model": scenario.model.spec.model.id,
            "requests": question.source,
            "requestTimes": question.trace.clock if question.trace else None,
            "columnsNotUsed": list(question.trace.unused) if question.trace else [],
            "targetFraction": scenario.target,
            "seeds": question.num_seeds,
            "speed": "drawn" if scenario.speed is None else scenario.speed,
            "ranReplicas": _finite(question.ran_pods),
            "cases": [_case(question, *each) for each in self.by_start()],
        }


def _case(question: ReplayQuestion, start_s: float, found: Sequence[CaseResult]) -> dict[str, Any]:
    planned, hour = question.scenario.planned, question.hour
    return {
        "gpu": question.scenario.model.spec.hardware.gpu,
        "startUpSeconds": start_s,
        "gpusPerReplica": planned.flags.parallelism.num_gpus,
        "maxNumSeqs": planned.flags.max_num_seqs,
        "firstReplicas": planned.replicas,
        "perGpuHour": None if hour is None else round(hour.usd, DIGITS),
        "currency": None if hour is None else hour.currency,
        "price": None if hour is None else price_figures(hour),
        "policies": [
            {
                "policy": str(each.policy),
                "gpuHoursOverBestStatic": _finite(each.of_peak),
                "notes": each.notes,
                "runs": [_run(outcome, hour) for outcome in each.outcomes],
            }
            for each in found
        ],
    }


def _run(outcome: PolicyResult, hour: GpuHour | None) -> dict[str, Any]:
    judged = outcome.judged
    return {
        "seed": outcome.seed,
        "fluidGpuHours": _finite(outcome.fluid_gpu_hours),
        **({} if judged is None else _figures(judged, hour)),
        "series": [_point(point) for point in outcome.points],
    }


def _figures(judged: RunFigures, hour: GpuHour | None) -> dict[str, Any]:
    return {
        "durationSeconds": judged.duration_s,
        "requests": judged.num_requests,
        "requestsTooLong": judged.num_too_long,
        "requestsUnserved": judged.num_unserved,
        "gpuHours": _finite(judged.gpu_hours),
        "gpuHoursPerDay": _finite(judged.gpu_hours_per_day),
        "cost": None if hour is None else cents(hour.usd * judged.gpu_hours),
        "costPerDay": None if hour is None else cents(hour.usd * judged.gpu_hours_per_day),
        "attainmentFraction": judged.attainment,
        "worstHourFraction": judged.worst_hour,
        "worstHourFromSeconds": judged.worst_hour_at_s,
        "scaledUp": judged.scaled_up,
        "scaledDown": judged.scaled_down,
        "startingReplicaMinutes": _finite(judged.starting_s / 60),
        "drainingReplicaMinutes": _finite(judged.draining_s / 60),
        "meanReplicas": _finite(judged.mean_replicas),
        "maxReplicas": judged.max_replicas,
        "timeToFirstTokenSeconds": _by_quantile(judged.ttft_s),
        "timePerOutputTokenSeconds": _by_quantile(judged.tpot_s),
    }


def _by_quantile(values: Sequence[float]) -> dict[str, float | None]:
    return {
        f"p{quantile * PERCENT:g}": _finite(value)
        for quantile, value in zip(QUANTILES, values, strict=True)
    }


def _point(point: SeriesPoint) -> dict[str, Any]:
    return {
        "fromSeconds": point.at_s,
        "untilSeconds": point.until_s,
        "replicas": _finite(point.replicas),
        "ready": _finite(point.ready),
        "billed": _finite(point.live),
        "load": _finite(point.load),
        "requestsPerSecond": _finite(point.requests_per_s),
        "plannedRequestsPerSecond": _finite(point.planned_requests_per_s),
        "waiting": point.waiting,
        "attainmentFraction": point.attainment,
    }


def _finite(value: float | None) -> float | None:
    """Return a figure as it is shown; None where it is none, or infinite."""
    return round_estimate(value) if value is not None and math.isfinite(value) else None
