"""GPU classes compared for one ModelDeployment: what was asked of which, and the answer as data."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from tonnage.api.objects import ModelDeployment
from tonnage.catalog.gpu import Gpu
from tonnage.cli.results.alternatives import paid_otherwise
from tonnage.cli.results.plan_summary import BatchRow, batch_rows
from tonnage.cli.results.planning import fewest_replicas, identity
from tonnage.explain.demand_outcome import sizing_figures
from tonnage.explain.report import round_estimate
from tonnage.sizing.compare import Choice, Selection, select
from tonnage.sizing.cost import cents, gpu_hour
from tonnage.sizing.plan import OnSearch, keep_searching, requests_per_s_asked
from tonnage.sizing.request import SizingRequest

IN_FULL: Final = 3
"""Of the cheapest classes, where none was named: the others are a row of the ranking."""

SEVERAL_NODES: Final = "SeveralNodes"
"""Of a replica, which nothing here can run yet."""
NO_PRICE: Final = "NoPrice"
"""Where another class has one."""
OTHER_CLOUD: Final = "OtherCloud"
"""Its price is of another cloud than those of the others."""
USUAL_CLOUD: Final = "AWS"


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """The classes that were asked, and what they answered."""

    deployment: ModelDeployment
    request: SizingRequest
    selection: Selection
    own: str | None
    """The class of the manifest, if there is one."""
    left_out: Mapping[str, Mapping[str, Any]]
    """Those that nobody would buy, unless they were named: why, and the GPUs if it was searched."""
    are_named: bool
    """Somebody asked for these classes; without that all are compared."""
    otherwise: Choice | None = None
    """What costs least by the other way to pay, where that is not the first of the ranking."""

    @property
    def in_full(self) -> tuple[Choice, ...]:
        """The classes to be shown with all their aspects: those named, else the cheapest."""
        choices = self.selection.choices
        if self.are_named:
            return choices
        return tuple(
            choice
            for number, choice in enumerate(choices)
            if number < IN_FULL or choice.gpu.name == self.own
        )

    def to_dict(self) -> dict[str, Any]:
        """Return everything as data: names as in status where status has them."""
        return {
            "metadata": identity(self.deployment),
            "model": self.deployment.spec.model.id,
            "mode": "offline" if self.request.slo.is_offline else "online",
            "classes": [
                {
                    "rank": number,
                    **_statuses(choice),
                    "tokensPerSecondPerGpu": round_estimate(choice.tokens_per_s_per_gpu),
                    "withinMaxReplicas": choice.is_within_bounds,
                    "batches": [_batch(choice, row) for row in batch_rows(choice.sizing)],
                }
                for number, choice in enumerate(self.selection.choices, 1)
            ],
            "leftOut": [{"gpu": name, **each} for name, each in self.left_out.items()],
            "paidOtherwise": _statuses(self.otherwise) if self.otherwise else None,
            "refused": [
                {"gpu": each.gpu.name, "reason": each.reason, "message": each.message}
                for each in self.selection.refused
            ],
        }


def compare_classes(  # noqa: PLR0913  (what is compared, and how it was asked)
    deployment: ModelDeployment,
    request: SizingRequest,
    gpus: Iterable[Gpu],
    *,
    are_named: bool,
    is_written: bool = True,
    on_search: OnSearch = keep_searching,
) -> Compared:
    """Put the request to every class; ``is_written``: a manifest names one of them."""
    fewest, classes = fewest_replicas(deployment), tuple(gpus)
    own = request.gpu.name if is_written else None
    others = {} if are_named else {gpu.name: why for gpu in classes if (why := _why_not(gpu))}
    asked = tuple(gpu for gpu in classes if gpu.name == own or gpu.name not in others)

    choose = partial(
        select, request, fewest=fewest, is_within_node=not are_named, on_search=on_search
    )
    selection = choose(asked)
    if not any(
        each.bill and each.is_within_bounds and not _is_over_nodes(each)
        for each in selection.choices
    ):
        asked, selection = classes, choose(classes)
    unsold = () if are_named else tuple(filter(_is_over_nodes, selection.choices))
    unsold = unsold if len(unsold) < len(selection.choices) else ()
    kept = tuple(each for each in selection.choices if each not in unsold)
    return Compared(
        deployment=deployment,
        request=request,
        selection=replace(selection, choices=kept),
        left_out={
            each.gpu.name: {"reason": SEVERAL_NODES, "gpus": each.num_gpus} for each in unsold
        }
        | {gpu.name: {"reason": SEVERAL_NODES} for gpu in selection.over_nodes}
        | {gpu.name: {"reason": others[gpu.name]} for gpu in classes if gpu not in asked},
        own=own,
        are_named=are_named,
        otherwise=_least_otherwise(kept, on_search),
    )


def _least_otherwise(choices: tuple[Choice, ...], on_search: OnSearch) -> Choice | None:
    """Return the choice that costs least by the other way to pay; None: the first does.

    Each class is searched anew at that price, until it costs more by the GPU than another does in
    whole instances.
    """
    least, least_usd = None, math.inf
    for choice in choices:
        cost = choice.bill
        if cost is None or requests_per_s_asked(choice.sizing) is None:
            continue  # without a demand the order is by the token, and hours compare nothing
        is_whole = cost.hour.is_whole
        usd = cost.usd_per_hour_shared if is_whole else cost.usd_per_hour_whole
        if cents(usd) < least_usd:
            least, least_usd = choice, cents(usd)
        if usd == cost.usd_per_hour or not (is_whole or cents(cost.usd_per_hour) < least_usd):
            continue
        other = replace(choice, sizing=paid_otherwise(choice.sizing, on_search))
        found = other.bill
        if found and cents(found.usd_per_hour) < least_usd:
            least, least_usd = other, cents(found.usd_per_hour)
    return None if least in choices[:1] else least


def _why_not(gpu: Gpu) -> str | None:
    """Return why a class is not compared with all others; None: it is."""
    hour = gpu_hour(gpu, 1)
    if hour is None:
        return OTHER_CLOUD if gpu.price.provider and gpu.price.offered else NO_PRICE
    provider = hour.rent.provider if hour.rent else ""
    return None if provider in {"", USUAL_CLOUD, gpu.price.provider} else OTHER_CLOUD


def _is_over_nodes(choice: Choice) -> bool:
    return choice.sizing.parallelism.num_gpus > choice.gpu.gpus_per_node


def _statuses(choice: Choice) -> dict[str, Any]:
    figures = sizing_figures(choice.sizing, choice.replicas)
    return {"gpu": choice.gpu.name, "gpus": choice.num_gpus, **figures}


def _batch(choice: Choice, row: BatchRow) -> dict[str, Any]:
    per_s, num_gpus = row.tokens_per_s, choice.sizing.flags.parallelism.num_gpus
    ceiling = choice.sizing.memory_ceiling_typical
    return {
        "decoding": round_estimate(row.state.num_decoding),
        "timePerOutputTokenSeconds": round_estimate(row.state.tpot_s),
        "tokensPerSecond": round_estimate(per_s),
        "tokensPerSecondPerGpu": round_estimate(per_s / num_gpus),
        "kvCacheFraction": round_estimate(row.state.num_running / ceiling)
        if ceiling < math.inf
        else 0.0,
        "boundBy": row.cells[-1],
        "over": list(row.over),
        "isLoadLine": row.is_load_line,
    }
