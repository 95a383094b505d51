"""An answer as one row of plain cells: what Markdown and CSV hold of it."""

from typing import Final

from tonnage.cli.results.plan_summary import is_short, obstacles
from tonnage.cli.results.planning import Planned, Refused, identity
from tonnage.explain.demand_outcome import at_demand, cost_figures
from tonnage.explain.report import round_estimate
from tonnage.sizing.bill import Bill, bill
from tonnage.sizing.compare import Choice
from tonnage.sizing.plan import Sizing, requests_per_s_asked

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
    "gpu", "split", "replicas", "gpus", "maxNumSeqs", "requestsPerSecond", "loadPercent",
    "sustainedRequestsPerSecond", "ttftSeconds", "tpotSeconds", "currency", "perGpuHour",
    "perHour", "perMonth", "perYear", "perMillionTokens", "perMillionTokensAtCapacity", "price",
)  # fmt: skip


COSTS: Final = ("perGpuHour", "perHour", "perMonth", "perYear")


def _figures(sizing: Sizing, replicas: int) -> Row:
    rate, found = requests_per_s_asked(sizing), bill(sizing, replicas=replicas)
    sustained, cost = sizing.sustained_requests_per_s(replicas), cost_figures(found) or {}
    asked, slo = at_demand(sizing, replicas), sizing.request.slo
    latencies = asked.at_strictest(slo) if asked else (None, None)
    cells = (
        sizing.request.gpu.name,
        str(sizing.parallelism),
        str(replicas),
        str(replicas * sizing.parallelism.num_gpus),
        str(sizing.flags.max_num_seqs),
        *map(_estimate, (rate, rate and PERCENT * rate / sustained, sustained, *latencies)),
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


def _estimate(value: float | None) -> str:
    return "" if value is None else f"{round_estimate(value):.10g}"
