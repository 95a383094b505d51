"""A trace that was served: its latencies against the SLO, and against what is predicted for it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from tonnage.cli.answers.calibrating import Calibrated
from tonnage.cli.load.replaying import Sent
from tonnage.engine.core import Engine
from tonnage.engine.routing import Routing, serve
from tonnage.engine.table import RequestTable
from tonnage.estimate.calibration_file import Validation
from tonnage.sizing.parallelism.draft import rank_of
from tonnage.sizing.request import Flags, SizingRequest
from tonnage.sizing.serving.flags import replica_under
from tonnage.sizing.serving.trial import Trial, engine_limits
from tonnage.sizing.step_time.costs import step_costs
from tonnage.sizing.workload import Lengths, Workload

QUANTILES: Final = (0.5, 0.95, 0.99)
JUDGED: Final = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class Latencies:
    """TTFT and TPOT by percentile, in seconds; of TPOT None where no answer has a second token."""

    ttft_s: tuple[float, ...]
    tpot_s: tuple[float, ...] | None

    def at_slo_percentile(self) -> tuple[float, float | None]:
        """Return TTFT and TPOT at the percentile that SLO targets are asked at."""
        place = QUANTILES.index(JUDGED)
        return self.ttft_s[place], self.tpot_s[place] if self.tpot_s else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Targets:
    """SLO targets at p95; None: none."""

    ttft_s: float | None
    tpot_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """What was measured, what was predicted, and what is asked."""

    sent: Sent
    measured: Latencies
    predicted: Latencies
    limits: Targets
    requests_per_s: float

    def targets_met(self) -> dict[str, bool]:
        """Tell of each target whether it was kept."""
        ttft_s, tpot_s = self.measured.at_slo_percentile()
        reached = {"TTFT": (ttft_s, self.limits.ttft_s), "TPOT": (tpot_s, self.limits.tpot_s)}
        return {
            name: found_s is None or found_s <= limit_s
            for name, (found_s, limit_s) in reached.items()
            if limit_s is not None
        }

    def validation(self, date: str) -> Validation:
        """Return what the calibration says of it."""
        measured, predicted = self.measured.at_slo_percentile(), self.predicted.at_slo_percentile()
        tpot_s, predicted_tpot_s = measured[1], predicted[1]
        return Validation(
            date=date,
            requests=len(self.sent.ended),
            ttft_p95_error_fraction=predicted[0] / measured[0] - 1,
            tpot_p95_error_fraction=predicted_tpot_s / tpot_s - 1
            if tpot_s and predicted_tpot_s is not None
            else None,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the figures as plain values."""
        return {
            "requests": len(self.sent.ended),
            "requestsPerSecond": self.requests_per_s,
            "requestsFailed": self.sent.num_failed,
            "requestsCut": self.sent.num_cut,
            "requestsTooLong": self.sent.num_too_long,
            "requestsLeft": self.sent.num_left,
            "kept": self.targets_met(),
            "measured": _by_quantile(self.measured),
            "predicted": _by_quantile(self.predicted),
        }


def _by_quantile(latencies: Latencies) -> dict[str, dict[str, float]]:
    names = [f"p{quantile * 100:g}" for quantile in QUANTILES]
    found = {"timeToFirstTokenSeconds": dict(zip(names, latencies.ttft_s, strict=True))}
    if latencies.tpot_s:
        found["timePerOutputTokenSeconds"] = dict(zip(names, latencies.tpot_s, strict=True))
    return found


def compare_with_model(
    sent: Sent,
    found: Calibrated,
    flags: Flags,
    *,
    kv_tokens: float | None,
    limits: Targets,
) -> Replayed:
    """Hold a replay against the engine model at the same arrivals and lengths.

    ``kv_tokens``: of one rank, as the engine reports it; without it the estimate is taken.
    """
    answers = list(sent.ended.values())
    request = replace(found.request, flags=flags, measured_kv_tokens=kv_tokens)
    span_s = sent.requests[-1].at_s - sent.requests[0].at_s
    return Replayed(
        sent=sent,
        measured=_latencies([each.ttft_s for each in answers], [each.tpot_s for each in answers]),
        predicted=_predicted_latencies(request, flags, sent, found.outside_s),
        limits=limits,
        requests_per_s=(len(sent.requests) - 1) / span_s if span_s else 0.0,
    )


def _predicted_latencies(
    request: SizingRequest, flags: Flags, sent: Sent, outside_s: float
) -> Latencies:
    """Run the engine model on what was sent, and look at the requests that ended."""
    trial = _trial(request, flags, sent)
    limits = engine_limits(trial)
    costs = step_costs(
        trial.replica.model,
        max_num_seqs=limits.max_num_seqs,
        max_batched_tokens=limits.max_num_batched_tokens,
    )
    asked = [each.asked for each in sent.requests]
    table = RequestTable(
        [each.prompt_tokens for each in asked],
        [each.output_tokens for each in asked],
        [0] * len(asked),
        [each.at_s for each in sent.requests],
    )
    serve([Engine(limits, costs, table, 0)], table, Routing.RANDOM, [0.0] * len(asked))
    ttft_s, tpot_s = table.latencies_s(sent.ended)
    return _latencies([each_s + outside_s for each_s in ttft_s], list(tpot_s))


def _trial(request: SizingRequest, flags: Flags, sent: Sent) -> Trial:
    asked = [each.asked for each in sent.requests]
    workload = Workload(
        prompt=Lengths(mean_tokens=sum(each.prompt_tokens for each in asked) / len(asked)),
        output_tokens=sum(each.output_tokens for each in asked) / len(asked),
    )
    shard = rank_of(request, flags.parallelism)
    return Trial(
        replica=replica_under(request, shard, flags),
        workload=workload,
        slo=request.slo,
        context_tokens=request.context_tokens,
        newest_first_s=request.newest_first_s,
    )


def _latencies(ttft_s: Sequence[float], tpot_s: Sequence[float]) -> Latencies:
    return Latencies(ttft_s=_quantiles(ttft_s), tpot_s=_quantiles(tpot_s) if any(tpot_s) else None)


def _quantiles(values: Sequence[float]) -> tuple[float, ...]:
    """Return the smallest values that so many shares of all do not exceed."""
    ascending = sorted(values)
    return tuple(ascending[math.ceil(each * len(ascending)) - 1] for each in QUANTILES)
