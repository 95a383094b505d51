"""A plan, or a reasoned no, in words: what text and pages say alike."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Final

from tonnage.catalog.engine import batch_defaults
from tonnage.cli.console import BAD_INPUT, EXIT_INFEASIBLE, OK
from tonnage.cli.results.alternatives import Alternative, Saving
from tonnage.cli.results.planning import CANNOT_RUN, Planned, Refused, identity
from tonnage.explain.demand_outcome import PERCENT, at_demand, cost_figures, per_hour_written
from tonnage.explain.report import bottleneck_of, rate_written, round_estimate
from tonnage.explain.words import Answer, explain
from tonnage.manifests.children import num_nodes_of
from tonnage.sizing.bill import Bill, bill
from tonnage.sizing.compare import Choice
from tonnage.sizing.plan import Sizing, requests_per_s_asked
from tonnage.sizing.serving.flags import trial_of
from tonnage.sizing.serving.goodput import requests_needed, requests_to_fill
from tonnage.sizing.serving.load_line import limits
from tonnage.sizing.serving.replica import SteadyState, steady_state
from tonnage.sizing.serving.trial import refused_share
from tonnage.units import count_of, format_s, significant

BOUNDS: Final = frozenset({"MaxReplicas", "MinReplicas"})
SAVING_NUMBERS: Final = ("GPUs", "saves", "saves\nwhole")
OFFER_NUMBERS: Final = ("GPUs", "max-num-seqs", "TPOT", "per hour")


def object_label(answer: Planned | Refused) -> str:
    return f"{answer.deployment.namespace}/{answer.deployment.name}"


def is_short(answer: Planned) -> bool:
    """Tell whether more replicas are needed than the spec allows."""
    return answer.replicas < answer.sizing.replicas


def exit_code(answers: Iterable[Planned | Refused], *, is_broken: bool) -> int:
    """Return how a command ends that was asked for these: invalid input says more than a no.

    ``is_broken``: something could not be read, so there is no answer for it.
    """
    found = list(answers)
    if is_broken or any(isinstance(each, Refused) and each.is_input for each in found):
        return BAD_INPUT
    return (
        OK
        if all(isinstance(each, Planned) and not is_short(each) for each in found)
        else EXIT_INFEASIBLE
    )


def _refusals(sizing: Sizing) -> dict[str, str]:
    """Say where an engine refuses, and what share of the requests at its planned load."""
    flags = sizing.flags
    requests, tokens = flags.max_num_queued_reqs, flags.max_num_queued_tokens
    found = {}
    if requests:
        found["max-num-queued-reqs"] = (
            f"{count_of(requests, 'request')}, running or waiting: then 503"
        )
    if tokens:
        prompts = significant(tokens / sizing.request.workload.prompt.mean_tokens)
        found["max-num-queued-tokens"] = f"{tokens}, {prompts} mean prompts: then 503"
    if found:
        rate, trial = sizing.goodput.requests_per_s, trial_of(sizing.request, sizing.replica)
        count = 2 * (requests_needed(sizing.request.slo) + requests_to_fill(trial))
        share = refused_share(
            trial, rate, count, most_requests=requests or 0, most_tokens=tokens or 0
        )
        found["refused"] = f"{share:.2%} at {significant(rate)} requests/s, its goodput"
    return found


def headline(answer: Planned) -> str:
    """Return the answer in a line: replicas, GPUs, slots, price."""
    sizing, num_gpus = answer.sizing, answer.sizing.flags.parallelism.num_gpus
    each = f" of {count_of(num_gpus, 'GPU')} ({sizing.flags.parallelism})" if num_gpus > 1 else ""
    each += _of_nodes(sizing)
    cost = bill(sizing, replicas=answer.replicas)
    price = f", {per_hour_written(cost)}" if cost else ""
    if other := answer.cheaper_whole:
        price += (
            f"; {count_of(other.replicas, 'replica')} of "
            f"{count_of(other.gpus_per_replica, 'GPU')} cost {other.usd_per_hour:.2f} in whole ones"
        )
    tokens = sizing.flags.max_num_batched_tokens
    is_default = tokens == batch_defaults(sizing.request.gpu).max_num_batched_tokens
    budget = "" if is_default else f", max-num-batched-tokens {tokens}"
    line = (
        f"{count_of(answer.replicas, 'replica')}{each} on {sizing.request.gpu.name}, "
        f"max-num-seqs {sizing.flags.max_num_seqs}{budget}{price}"
    )
    after = "".join(f"; {each}" for each in obstacles(answer))
    if is_short(answer):
        rate = rate_written(sizing, requests_per_s_asked(sizing) or 0.0)
        return (
            f"{rate} need {count_of(sizing.replicas, 'replica')}, maxReplicas allows "
            f"{answer.replicas}: {line}{after}"
        )
    return f"{line}{after}"


def begin_written(answer: Planned) -> str | None:
    """Say what the operator begins with, what that costs, why and until when; None: the plan."""
    begin, plan, replicas = answer.begin, answer.sizing, answer.first_replicas
    if begin is None or replicas == answer.replicas:
        return None
    cost = bill(begin, replicas=replicas)
    price = f", {per_hour_written(cost)}" if cost else ""
    return (
        f"{count_of(replicas, 'replica')}{price}, until speed and demand are measured: "
        f"{' and '.join(_doubts(begin, plan))}"
    )


def _doubts(begin: Sizing, plan: Sizing) -> Iterator[str]:
    """Yield why more replicas begin than are planned."""
    slower = plan.request.speed.bandwidth_efficiency / begin.request.speed.bandwidth_efficiency - 1
    if slower > 0:
        each, believed = (significant(found.goodput_requests_per_s) for found in (begin, plan))
        yield (
            f"steps may be {slower:.0%} slower, with which a replica serves {each} in place of "
            f"{believed} requests/s"
        )
    if begin.replicas > begin.replicas_for(requests_per_s_asked(begin) or 0.0):
        yield "demand may be higher than expected"


def _of_nodes(sizing: Sizing) -> str:
    """Name the nodes of a replica, and what lets the operator take several."""
    request, num_gpus = sizing.request, sizing.flags.parallelism.num_gpus
    if num_gpus <= request.gpu.gpus_per_node:
        return ""
    nodes = count_of(num_nodes_of(sizing), "node")
    is_open = request.num_gpus is None and not request.sizes.are_all_given
    return f", {nodes} each{f', with hardware.gpusPerReplica: {num_gpus}' if is_open else ''},"


def obstacles(answer: Planned) -> tuple[str, ...]:
    """Return what keeps the operator from running the plan."""
    return tuple(each.message for each in answer.reasons if each.code == CANNOT_RUN)


def questions(answer: Planned) -> tuple[Answer, ...]:
    """Return the questions, answered; replicas within the bounds of the spec."""
    *earlier, replicas = explain(replace(answer.sizing, replicas=answer.replicas))
    bounds = [each.message for each in answer.reasons if each.code in BOUNDS]
    if bounds:
        replicas = replace(replicas, answer="; ".join([replicas.answer, *bounds]))
    return (*earlier, replicas, *(words for words, _ in answer.verdicts.values()))


def summary(answer: Planned) -> dict[str, str]:
    """Return what is to be run, and what limits it."""
    flags, split = answer.sizing.flags, answer.sizing.flags.parallelism
    num_nodes = num_nodes_of(answer.sizing)
    ranks = f" per data-parallel rank, {flags.max_num_seqs * split.data} in all"
    pods = count_of(num_nodes, "pod")
    group = f", a group of {pods} of a LeaderWorkerSet" if num_nodes > 1 else ""
    each = f"{split}, {count_of(split.num_gpus, 'GPU')} per replica{group}"
    return {
        "replicas": str(answer.replicas),
        "GPUs": f"{answer.replicas * split.num_gpus} ({each})",
        "max-num-seqs": f"{flags.max_num_seqs}{ranks if split.data > 1 else ''}",
        "max-num-batched-tokens": str(flags.max_num_batched_tokens),
        **_refusals(answer.sizing),
        "gpu-memory-utilization": f"{flags.gpu_memory_utilization:g}",
        "limited by": answer.sizing.limited_by,
    }


def saving_cells(saving: Saving) -> tuple[str, ...]:
    """Return a change, the GPUs that it takes, and what it saves; in doubt it says so."""
    found = saving.bill
    doubt = "" if saving.is_sure else " (within model error: measure first)"
    return (
        f"{saving.changes[0]}{doubt}",
        f"{saving.replicas} x {saving.sizing.parallelism.num_gpus}",
        *(
            f"{usd:.2f} {found.currency}/h" if found and usd is not None else "no price"
            for usd in (saving.saved_per_hour, saving.saved_per_hour_whole)
        ),
    )


def offer_numbers(offer: Alternative) -> tuple[str, ...]:
    """Return what a way out takes: GPUs, slots, time per token, price."""
    sizing, cost = offer.sizing, offer.bill
    return (
        f"{offer.replicas} x {sizing.flags.parallelism.num_gpus}",
        str(sizing.flags.max_num_seqs),
        format_s(sizing.at_capacity.tpot_s),
        f"{cost.usd_per_hour:.2f} {cost.currency}" if cost else "no price",
    )


Row = dict[str, str]


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
    ttft_at, tpot_at = (
        f"p{PERCENT * max(each.quantile for each in targets):g}" if asked and targets else ""
        for targets in (slo.ttft, slo.tpot)
    )
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


def _estimate(value: float | None) -> str:
    """Write a figure; empty where there is none, or it grows without end."""
    return "" if value in {None, math.inf} else f"{round_estimate(value):.10g}"


MAX_BATCHES: Final = 12
BATCH_NUMBERS: Final = ("decoding", "TPOT", "tokens/s", "KV cache")
BATCH_NOTE: Final = (
    "over: by means at a steady batch; the load line is where percentiles meet their targets"
)
BOUND_BY: Final = {
    "MemoryBandwidth": "memory",
    "Compute": "compute",
    "Prefill": "prefill",
    "Overhead": "overhead",
    "Communication": "links",
}
LIMIT_WORDS: Final = {
    "TimePerOutputToken": "TPOT",
    "TimeToFirstToken": "TTFT",
    "KVCache": "KV cache",
    "BatchedTokens": "token budget",
    "MaxNumSeqs": "max-num-seqs",
}


def batches(sizing: Sizing) -> list[float]:
    """Return numbers of decoding requests worth showing: powers of two, and the load line."""
    capacity = sizing.at_capacity.num_decoding
    top = 2 * max(capacity, min(sizing.memory_ceiling_typical, 2 * capacity))
    powers = list(takewhile(lambda batch: batch <= top, (2.0**k for k in range(32))))
    return sorted({*powers[-MAX_BATCHES:], capacity})


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRow:
    """What one replica does with so many decoding requests, as numbers and as written."""

    state: SteadyState
    tokens_per_s: float
    """Of output, of a replica."""
    cells: tuple[str, ...]
    is_load_line: bool
    over: tuple[str, ...]
    """Limits that this batch breaks, at the percentile of the SLO target."""
    remark: str


def batch_rows(sizing: Sizing) -> list[BatchRow]:
    return [_batch_row(sizing, num_decoding) for num_decoding in batches(sizing)]


def _batch_row(sizing: Sizing, num_decoding: float) -> BatchRow:
    state = steady_state(sizing.replica, sizing.request.workload, num_decoding)
    number = state.num_decoding
    is_load_line = num_decoding == sizing.at_capacity.num_decoding
    request = sizing.request
    broken = (
        LIMIT_WORDS.get(name, name)
        for name, holds in limits(sizing.replica, request.workload, request.slo)
        if name != "MaxNumSeqs" and not holds(num_decoding)
    )
    over = () if is_load_line else tuple(dict.fromkeys(broken))
    limit = LIMIT_WORDS.get(sizing.limited_by, sizing.limited_by)
    tokens_per_s = state.requests_per_s * sizing.request.workload.output_tokens
    remark = f"load line ({limit})" if is_load_line else f"over {', '.join(over)}" if over else ""
    return BatchRow(
        state=state,
        tokens_per_s=tokens_per_s,
        cells=(
            significant(number) if number % 1 else f"{number:.0f}",
            format_s(state.tpot_s),
            significant(tokens_per_s),
            f"{state.num_running / sizing.memory_ceiling_typical:.0%}",
            BOUND_BY[bottleneck_of(state.step)],
        ),
        is_load_line=is_load_line,
        over=over,
        remark=remark,
    )
