"""An answer as one row of plain cells: what Markdown and CSV hold of it."""

import math
from collections.abc import Sequence
from typing import Final

from tonnage.cli.results.plan_summary import is_short, obstacles
from tonnage.cli.results.planning import Planned, Refused, identity
from tonnage.explain.demand_outcome import at_demand, cost_figures
from tonnage.explain.report import round_estimate
from tonnage.sizing.bill import Bill, bill
from tonnage.sizing.compare import Choice
from tonnage.sizing.plan import Sizing, requests_per_s_asked
from tonnage.sizing.workload import Target

Row = dict[str, str]
PERCENT: Final = 100


def plan_row(answer: Planned | Refused) -> Row:
    """Return one ModelDeployment as a row; a refusal has its reason and no figures."""
    spec = answer.deployment.spec
    names = {
        "namespace": answer.deployment.namespace,
        "name": answer.deployment.name,
        "model": spec.model.id,
    }
    if isinstance(answer, Refused):
        figures = dict.fromkeys(FIGURES, "") | {"gpu": spec.hardware.gpu}
        return names | figures | {"reason": f"{answer.code}: {answer.message}"}
    needed = answer.sizing.replicas
    short = [f"MaxReplicas: {needed} are needed"] if is_short(answer) else []
    reason = "; ".join([*short, *obstacles(answer)])
    return names | _figures(answer.sizing, answer.replicas) | {"reason": reason}


def step_rows(answer: Planned | Refused) -> list[Row]:
    """Return a row for each step of a demand by the hour, else one for the plan."""
    hours = answer.beside.get("demandByHour") if isinstance(answer, Planned) else None
    if hours is None:
        return [plan_row(answer)]
    own = {**identity(answer.deployment), "currency": hours["perMonth"]["constant"]["currency"]}
    steps = (own | each for each in hours["steps"])
    return [{key: str(value) for key, value in each.items()} for each in steps]


def choice_row(number: int, choice: Choice) -> Row:
    """Return one class of a comparison as a row."""
    return {"rank": str(number), **_figures(choice.sizing, choice.replicas)}


FIGURES: Final = (
    "gpu", "split", "replicas", "gpus", "gpusPerReplica", "maxNumSeqs", "maxNumBatchedTokens",
    "requestsPerSecond", "loadPercent", "sustainedRequestsPerSecond", "isServed", "ttftPercentile",
    "ttftSeconds", "tpotPercentile", "tpotSeconds", "currency", "perGpuHour", "perHour",
    "perHourWhole", "perMonth", "perYear", "perRequest", "perMillionInputTokens",
    "perMillionTokens", "perMillionTokensAtCapacity", "price",
)  # fmt: skip

COSTS: Final = ("perGpuHour", "perHour", "perHourWhole", "perMonth", "perYear", "perRequest",
                "perMillionInputTokens")  # fmt: skip


def _figures(sizing: Sizing, replicas: int) -> Row:
    rate, found = requests_per_s_asked(sizing), bill(sizing, replicas=replicas)
    sustained, cost = sizing.sustained_requests_per_s(replicas), cost_figures(found) or {}
    asked, slo = at_demand(sizing, replicas), sizing.request.slo
    ttft_s, tpot_s = asked.at_strictest(slo) if asked else (None, None)
    ttft_at, tpot_at = (_strictest(targets) if asked else "" for targets in (slo.ttft, slo.tpot))
    cells = (
        sizing.request.gpu.name,
        str(sizing.parallelism),
        str(replicas),
        str(replicas * sizing.parallelism.num_gpus),
        str(sizing.parallelism.num_gpus),
        str(sizing.flags.max_num_seqs),
        str(sizing.flags.max_num_batched_tokens),
        *map(_estimate, (rate, rate and PERCENT * rate / sustained, sustained)),
        str(asked.is_served).lower() if asked else "",
        *(ttft_at, _estimate(ttft_s), tpot_at, _estimate(tpot_s)),
        cost.get("currency", ""),
        *(f"{cost[name]:.15g}" if cost else "" for name in COSTS),
        _estimate(found.usd_per_million_tokens_asked if found else None),
        _estimate(found.usd_per_million_tokens if found else None),
        _price(found),
    )
    return dict(zip(FIGURES, cells, strict=True))


def _price(found: Bill | None) -> str:
    if found is None:
        return ""
    return found.hour.rent.basis if found.hour.rent else str(found.hour)


def _strictest(targets: Sequence[Target]) -> str:
    return f"p{PERCENT * max(each.quantile for each in targets):g}" if targets else ""


def _estimate(value: float | None) -> str:
    """Write a figure; empty where there is none, or it grows without end."""
    return "" if value in {None, math.inf} else f"{round_estimate(value):.10g}"
