"""GPU classes compared for one ModelDeployment: what was asked of which, and the answer as data."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Final

from tonnage.api.objects import ModelDeployment
from tonnage.catalog.gpu import CatalogError, Gpu
from tonnage.cli.answers.batches import BatchRow, batch_rows
from tonnage.cli.answers.planning import code_of, identity
from tonnage.explain.at_demand import capacity_figures, demand_figures
from tonnage.explain.choosing import aspects
from tonnage.explain.report import estimate_status, plan_status, rounded
from tonnage.explain.validation import unconfirmed
from tonnage.sizing.compare import Choice, RefusedClass, Selection, select
from tonnage.sizing.errors import SizingError
from tonnage.sizing.plan import size
from tonnage.sizing.request import SizingRequest

TOO_MANY: Final = 50
"""Times the GPUs of the class that takes the fewest."""
IN_FULL: Final = 3
"""Of the cheapest classes, where none was named: the others are a row of the ranking."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """The classes that were asked, and what the manifest's own class and split would do."""

    deployment: ModelDeployment
    request: SizingRequest
    selection: Selection
    as_written: Choice | RefusedClass | None
    """None: there is no manifest, so no class and split were written."""
    left_out: tuple[Choice, ...]
    """Those that nobody would buy, unless they were named: far more GPUs than others, or replicas
    over several nodes, which nothing here can run yet."""
    are_named: bool
    """Somebody asked for these classes; without that all are compared."""

    @property
    def in_full(self) -> tuple[Choice, ...]:
        """The classes to be shown with all their aspects: those named, else the cheapest."""
        choices = self.selection.choices
        if self.are_named:
            return choices
        own = self.request.gpu.name if self.as_written else None
        return tuple(
            choice
            for number, choice in enumerate(choices)
            if number < IN_FULL or choice.gpu.name == own
        )

    @property
    def is_offline(self) -> bool:
        return self.request.slo.is_offline

    def to_dict(self) -> dict[str, Any]:
        """Return everything as data: names as in status where status has them."""
        model = self.deployment.spec.model.id
        return {
            "metadata": identity(self.deployment),
            "model": model,
            "mode": "offline" if self.is_offline else "online",
            "asWritten": _as_written(self.as_written) if self.as_written else None,
            "classes": [
                _ranked(number + 1, choice) for number, choice in enumerate(self.selection.choices)
            ],
            "leftOut": [{"gpu": each.gpu.name, "gpus": each.num_gpus} for each in self.left_out],
            "refused": [_refused(each) for each in self.selection.refused],
        }


def compare_classes(
    deployment: ModelDeployment,
    request: SizingRequest,
    gpus: Iterable[Gpu],
    *,
    are_named: bool,
    is_written: bool = True,
) -> Compared:
    """Put the request to every class, and answer the manifest as it stands, if there is one."""
    fewest = deployment.spec.scaling.min_replicas
    selection = select(request, gpus, min_replicas=fewest)
    left_out = () if are_named else unsaleable(selection.choices)
    kept = tuple(each for each in selection.choices if each not in left_out)
    return Compared(
        deployment=deployment,
        request=request,
        selection=replace(selection, choices=kept),
        left_out=left_out,
        as_written=_written(request, fewest) if is_written else None,
        are_named=are_named,
    )


def unsaleable(choices: tuple[Choice, ...]) -> tuple[Choice, ...]:
    """Return the classes that nobody would buy beside the others; never all."""
    fewest = min((each.num_gpus for each in choices), default=0)
    found = tuple(
        each
        for each in choices
        if each.num_gpus > TOO_MANY * fewest
        or each.sizing.parallelism.num_gpus > each.gpu.gpus_per_node
    )
    return found if len(found) < len(choices) else ()


def _written(request: SizingRequest, min_replicas: int) -> Choice | RefusedClass:
    try:
        sizing = size(request)
    except (SizingError, CatalogError) as error:
        return RefusedClass(gpu=request.gpu, reason=code_of(error), message=str(error))
    return Choice(sizing=sizing, replicas=max(sizing.replicas, min_replicas))


def _as_written(found: Choice | RefusedClass) -> dict[str, Any]:
    return _refused(found) if isinstance(found, RefusedClass) else _statuses(found)


def _refused(found: RefusedClass) -> dict[str, Any]:
    return {"gpu": found.gpu.name, "reason": found.reason, "message": found.message}


def _statuses(choice: Choice) -> dict[str, Any]:
    sizing, replicas = choice.sizing, choice.replicas
    return {
        "gpu": choice.gpu.name,
        "gpus": choice.num_gpus,
        "atDemand": demand_figures(sizing, replicas),
        "atCapacity": capacity_figures(sizing, replicas),
        "plan": plan_status(sizing, replicas=replicas).to_dict(),
        "estimate": estimate_status(sizing, replicas=replicas).to_dict(),
    }


def _ranked(number: int, choice: Choice) -> dict[str, Any]:
    return {
        "rank": number,
        **_statuses(choice),
        "tokensPerSecondPerGpu": rounded(choice.tokens_per_s_per_gpu),
        "withinMaxReplicas": choice.is_within_bounds,
        "stages": {aspect.name: aspect.to_dict() for aspect in aspects(choice)},
        "batches": [_batch(choice, row) for row in batch_rows(choice.sizing)],
        "toValidate": [
            {
                "name": each.name,
                "value": each.value,
                "origin": each.origin,
                "confirmedBy": each.confirmed_by,
            }
            for each in unconfirmed(choice.sizing)
        ],
    }


def tokens_per_s(choice: Choice, row: BatchRow) -> float:
    """Return the output tokens per second of a replica with this batch."""
    return row.state.requests_per_s * choice.sizing.request.workload.output_tokens


def _batch(choice: Choice, row: BatchRow) -> dict[str, Any]:
    per_s, num_gpus = tokens_per_s(choice, row), choice.sizing.flags.parallelism.num_gpus
    held = choice.sizing.memory_ceiling_typical
    return {
        "decoding": rounded(row.state.num_decoding),
        "timePerOutputTokenSeconds": rounded(row.state.tpot_s),
        "tokensPerSecond": rounded(per_s),
        "tokensPerSecondPerGpu": rounded(per_s / num_gpus),
        "kvCacheFraction": rounded(row.state.num_running / held) if held < math.inf else 0.0,
        "boundBy": row.cells[-1],
        "over": list(row.over),
        "isLoadLine": row.is_load_line,
    }
