"""GPU classes compared for one ModelDeployment: what was asked of which, and the answer as data."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from tonnage.api.objects import ModelDeployment
from tonnage.catalog.gpu import CatalogError, Gpu
from tonnage.cli.answers.batches import BatchRow, batch_rows
from tonnage.cli.answers.planning import as_measured, code_of, identity
from tonnage.cli.answers.reported_cache import with_reported_cache
from tonnage.estimate.calibration_file import CalibrationFile, CalibrationFileError
from tonnage.explain.at_demand import capacity_figures, demand_figures
from tonnage.explain.choosing import aspects
from tonnage.explain.report import estimate_status, plan_status, rounded
from tonnage.explain.validation import unconfirmed_figures
from tonnage.sizing.checks import check_request
from tonnage.sizing.compare import Choice, Measured, RefusedClass, Selection, select
from tonnage.sizing.errors import SizingError
from tonnage.sizing.plan import size, size_with
from tonnage.sizing.request import SizingRequest, on_gpu
from tonnage.sizing.split import Parallelism

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
    measured: tuple[str, ...] = ()
    """Classes that are answered with constants of a load test."""

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


def measured_classes(
    request: SizingRequest, gpus: Iterable[Gpu], calibrations: Iterable[CalibrationFile]
) -> dict[str, Measured]:
    """Return what the classes are asked whose engines were measured, by name.

    Raises:
        CalibrationFileError: one is of another model, engine or format, of a class that is not
            compared, or of one that another is of too.
        SizingError, CatalogError: what was measured will not do for the request.
    """
    classes, found = {gpu.name: gpu for gpu in gpus}, dict[str, Measured]()
    for file in calibrations:
        name = file.key.gpu
        if name not in classes or name in found:
            why = "another calibration is of it too" if name in found else "it is not compared"
            raise CalibrationFileError(f"the calibration is of GPU class {name}: {why}")
        asked = as_measured(on_gpu(request, classes[name]), file)
        split = Parallelism(**file.key.parallelism.model_dump(by_alias=False))
        check_request(asked)
        reported = with_reported_cache(asked, size_with(asked, split), file)
        found[name] = Measured(request=reported or asked, parallelism=split)
    return found


def compare_classes(  # noqa: PLR0913  (what is compared, and how it was asked)
    deployment: ModelDeployment,
    request: SizingRequest,
    gpus: Iterable[Gpu],
    *,
    are_named: bool,
    is_written: bool = True,
    measured: Mapping[str, Measured] | None = None,
) -> Compared:
    """Put the request to every class, and answer the manifest as it stands, if there is one."""
    fewest = deployment.spec.scaling.min_replicas
    selection = select(request, gpus, min_replicas=fewest, measured=measured)
    left_out = () if are_named else unsaleable(selection.choices)
    kept = tuple(each for each in selection.choices if each not in left_out)
    return Compared(
        deployment=deployment,
        request=request,
        selection=replace(selection, choices=kept),
        left_out=left_out,
        as_written=_written(request, fewest, measured or {}) if is_written else None,
        are_named=are_named,
        measured=tuple(sorted(measured or {})),
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


def _written(
    request: SizingRequest, min_replicas: int, measured: Mapping[str, Measured]
) -> Choice | RefusedClass:
    """Answer the manifest as it stands: with what was measured, where that is of its split."""
    known = measured.get(request.gpu.name)
    is_known = known is not None and request.num_gpus in {None, known.parallelism.num_gpus}
    try:
        sizing = (
            size_with(known.request, known.parallelism) if known and is_known else size(request)
        )
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
            for each in unconfirmed_figures(choice.sizing)
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
