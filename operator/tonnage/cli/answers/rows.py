"""An answer as one row of plain cells: what Markdown and CSV hold of it."""

from collections.abc import Iterator
from typing import Final

from tonnage.cli.answers.plan_words import obstacles
from tonnage.cli.answers.planning import Planned, Refused
from tonnage.explain.at_demand import at_demand
from tonnage.explain.report import DIGITS, round_estimate
from tonnage.sizing.bill import Bill, bill
from tonnage.sizing.compare import Choice
from tonnage.sizing.cost import cents
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
    is_short = answer.replicas < answer.sizing.replicas
    short = [f"MaxReplicas: {answer.sizing.replicas} are needed"] if is_short else []
    reason = "; ".join([*short, *obstacles(answer)])
    return names | _figures(answer.sizing, answer.replicas) | {"reason": reason}


def choice_row(number: int, choice: Choice) -> Row:
    """Return one class of a comparison as a row."""
    return {"rank": str(number), **_figures(choice.sizing, choice.replicas)}


FIGURES: Final = (
    "gpu", "split", "replicas", "gpus", "maxNumSeqs", "requestsPerSecond", "loadPercent",
    "sustainedRequestsPerSecond", "ttftSeconds", "tpotSeconds", "currency", "perGpuHour",
    "perHour", "perMonth", "perYear", "perMillionTokens", "perMillionTokensAtCapacity", "price",
)  # fmt: skip


def _figures(sizing: Sizing, replicas: int) -> Row:
    rate = requests_per_s_asked(sizing)
    sustained = sizing.sustained_requests_per_s(replicas)
    cells = (
        sizing.request.gpu.name,
        str(sizing.parallelism),
        str(replicas),
        str(replicas * sizing.parallelism.num_gpus),
        str(sizing.flags.max_num_seqs),
        _cell(rate),
        _cell(rate and PERCENT * rate / sustained),
        _cell(sustained),
        *_latencies(sizing, replicas),
        *_costs(bill(sizing, replicas=replicas)),
    )
    return dict(zip(FIGURES, cells, strict=True))


def _latencies(sizing: Sizing, replicas: int) -> Iterator[str]:
    """Yield TTFT and TPOT at the demand, at the highest percentile that each is promised at."""
    asked, slo = at_demand(sizing, replicas), sizing.request.slo
    for name, targets in (("ttft_s", slo.ttft), ("tpot_s", slo.tpot)):
        if asked is None or not targets:
            yield ""
            continue
        strictest = max(target.quantile for target in targets)
        yield _cell(getattr(asked.served.at(strictest), name))


def _costs(found: Bill | None) -> Iterator[str]:
    if found is None:
        yield from [""] * 8
        return
    yield found.currency
    yield f"{round(found.hour.usd, DIGITS):g}"
    for usd in (found.usd_per_hour, found.usd_per_month, found.usd_per_year):
        yield f"{cents(usd):.15g}"
    yield _cell(found.usd_per_million_tokens_asked)
    yield _cell(found.usd_per_million_tokens)
    yield found.hour.rent.basis if found.hour.rent else str(found.hour)


def _cell(value: float | None) -> str:
    return "" if value is None else f"{round_estimate(value):.10g}"
