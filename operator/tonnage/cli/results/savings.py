"""What makes a plan that works cost less: changes to the spec, and what the traffic may have."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

from tonnage.catalog.gpu import CatalogError
from tonnage.cli.results.alternatives import Alternative, targets_written
from tonnage.cli.results.checkpoint_weights import narrowed
from tonnage.sizing.bill import Bill, bill
from tonnage.sizing.cost import cents, gpu_hour
from tonnage.sizing.errors import SizingError
from tonnage.sizing.memory.prefix import with_whole_blocks
from tonnage.sizing.plan import OnSearch, Sizing, as_answer, keep_searching, requests_per_s_asked
from tonnage.sizing.request import ANY_SIZES, SizingRequest, on_gpu, spread_of
from tonnage.sizing.search import Cost, cheaper_splits, cost_of, next_best, size
from tonnage.sizing.serving.goodput import LARGE_ERROR

RELAXED: Final = 1.5
"""Times the target that decides."""
CACHED_FRACTION: Final = 0.5
"""Of the prompts, that is tried where none is said to be cached."""
NUM_ERRORS: Final = 2
"""Standard errors of goodput that a saving is more than."""
TRAFFIC_FIELD: Final = "demand.cachedPromptPercent"
SIZE_FIELD: Final = "hardware.gpusPerReplica"
SLO_FIELDS: Final = {"TimePerOutputToken": "tpot", "TimeToFirstToken": "ttft"}
"""By what limits a replica, which is the field of a spec too."""


@dataclass(frozen=True, kw_only=True)
class Saving(Alternative):
    """A change with which the demand costs less; without prices, takes fewer GPUs."""

    num_fewer_gpus: int
    """Below zero: more of them cost less, as in smaller instances."""
    saved_per_hour: float | None
    """None: one of both has no price."""
    saved_per_hour_whole: float | None
    """In whole instances; below zero: there it costs more."""
    is_traffic: bool
    """No field of the spec brings it about: it is a fact of the prompts."""
    is_sure: bool
    """It would save as much were the engine slower by what the estimate of its speed leaves."""

    @property
    def saved(self) -> float:
        """Per hour, over a year; without a price the GPUs."""
        return self.num_fewer_gpus if self.saved_per_hour is None else self.saved_per_hour

    def to_dict(self) -> dict[str, Any]:
        return {
            "change": "; ".join(self.changes),
            "fewerGpus": self.num_fewer_gpus,
            "savedPerHour": self.saved_per_hour,
            "savedPerHourWhole": self.saved_per_hour_whole,
            "isTraffic": self.is_traffic,
            "isSure": self.is_sure,
            **super().to_dict(),
        }


def savings(
    sizing: Sizing, replicas: int, *, fewest: int = 1, on_search: OnSearch = keep_searching
) -> tuple[Saving, ...]:
    """Return what costs less than a plan, without prices what takes fewer GPUs: most saved first.

    Of as much what is sure comes first. Each is searched for as a plan of its own, until a bound
    says that it costs as much, but for two standard errors of what a replica serves: one replica
    of hundreds is no saving.
    ``fewest``: replicas that run whatever the demand.
    """
    rate = requests_per_s_asked(sizing)
    num_gpus = replicas * sizing.parallelism.num_gpus
    if not rate or sizing.request.flags or num_gpus == 1:
        return ()
    before = bill(sizing, replicas=replicas)
    error = NUM_ERRORS * min(LARGE_ERROR, sizing.goodput.standard_error)
    has_no_price, amount = cost_of(sizing, replicas)
    found = (
        _saving(change, as_answer(other, on_search), fewest, sizing, replicas)
        for change, other in _answers(sizing, (has_no_price, (1 - error) * amount), on_search)
    )
    most = sizing.request.max_replicas or math.inf
    known = (each for each in found if before is None or each.saved_per_hour is not None)
    less = [
        # Of the same request a simpler split was taken: the other saves less than the error.
        replace(each, is_sure=False) if each.sizing.request == sizing.request else each
        for each in known
        if each.saved > 0 and each.replicas <= most
    ]
    return tuple(sorted(less, key=lambda each: (-each.saved, not each.is_sure)))


def cheaper_whole(sizing: Sizing, fewest: int, on_search: OnSearch) -> Bill | None:
    """Return what another split costs in whole instances, where that is less than the plan's."""
    request, replicas = sizing.request, max(sizing.replicas, fewest)
    found = bill(sizing, replicas=replicas)
    is_given = request.flags or request.num_gpus or request.sizes != ANY_SIZES
    if is_given or not found or found.usd_per_hour == found.usd_per_hour_whole:
        return None
    other = paid_otherwise(sizing, on_search)
    least = bill(other, replicas=max(other.replicas, fewest))
    return least if least and cents(least.usd_per_hour) < cents(found.usd_per_hour_whole) else None


def paid_otherwise(sizing: Sizing, on_search: OnSearch = keep_searching) -> Sizing:
    """Return the plan of its request by the other way to pay: in whole instances, or by the GPU."""
    gpu = sizing.request.gpu
    price = replace(gpu.price, whole_nodes=not gpu.price.whole_nodes)
    asked = replace(sizing.request, gpu=replace(gpu, price=price))
    return size(asked, on_search=on_search)


def _saving(change: str, other: Sizing, fewest: int, plan: Sizing, replicas: int) -> Saving:
    number = max(other.replicas, fewest)
    saved, whole = (
        cents(before - after) if before is not None and after is not None else None
        for before, after in zip(_costs(plan, replicas), _costs(other, number), strict=True)
    )
    slower = (1 + spread_of(other.request)) * (requests_per_s_asked(other) or 0.0)
    num_fewer = replicas * plan.parallelism.num_gpus - number * other.parallelism.num_gpus
    return Saving(
        changes=(change,),
        sizing=other,
        fewest=fewest,
        is_traffic=change.startswith(TRAFFIC_FIELD),
        num_fewer_gpus=num_fewer,
        saved_per_hour=saved,
        saved_per_hour_whole=whole,
        is_sure=other.staffing.sustains(slower, number),
    )


def _costs(sizing: Sizing, replicas: int) -> list[float | None]:
    """Return what a mean hour costs: as it is paid, and in whole instances."""
    hour = gpu_hour(sizing.request.gpu, sizing.parallelism.num_gpus)
    ways = (hour, replace(hour, is_whole=True)) if hour else (None, None)
    bills = [bill(sizing, replicas=replicas, hour=each) for each in ways]
    return [each.usd_per_mean_hour if each else None for each in bills]


def _answers(sizing: Sizing, cost: Cost, on_search: OnSearch) -> Iterator[tuple[str, Sizing]]:
    try:
        if other := _other_split(sizing, cost, on_search):
            each = other.parallelism
            if sizing.request.sizes != ANY_SIZES:
                yield f"without hardware.parallelism, {SIZE_FIELD}: {each.num_gpus}", other
            elif each != sizing.parallelism:
                yield f"{SIZE_FIELD}: {each.num_gpus} ({each})", other
    except (SizingError, CatalogError):
        pass  # the splits that are left will not do; the plan's own does
    for change, changed in _changes(sizing):
        try:
            if other := cheaper_splits(changed, cost, on_search=on_search):
                yield change, other
        except (SizingError, CatalogError):
            continue


def _other_split(sizing: Sizing, cost: Cost, on_search: OnSearch) -> Sizing | None:
    """Return the split in place of one that was given, else one that a simpler one goes before."""
    request = sizing.request
    if request.num_gpus is None and request.sizes == ANY_SIZES:
        return next_best(request, cost, on_search=on_search)
    free = replace(on_gpu(request, request.gpu), sizes=ANY_SIZES)
    return cheaper_splits(free, cost, on_search=on_search)


def _changes(sizing: Sizing) -> Iterator[tuple[str, SizingRequest]]:
    """Yield changes to the spec that may help, in its own words."""
    request = sizing.request
    yield from narrowed(request)
    yield from _relaxed_slos(sizing)
    if request.max_num_batched_tokens:
        chosen = replace(request, max_num_batched_tokens=None)
        yield "without engine.maxNumBatchedTokens", chosen
    if not request.workload.cached_fraction:
        cached = replace(request.workload, cached_fraction=CACHED_FRACTION)
        changed = with_whole_blocks(replace(request, workload=cached))
        if changed.workload.cached_fraction:
            percent = f"{CACHED_FRACTION * 100:.0f}"
            yield f"{TRAFFIC_FIELD}: {percent}", changed


def _relaxed_slos(sizing: Sizing) -> Iterator[tuple[str, SizingRequest]]:
    """Yield the SLO with more time for what decides."""
    limit, slo = sizing.limited_by, sizing.request.slo
    if limit not in SLO_FIELDS:
        return
    name = SLO_FIELDS[limit]
    targets = tuple(replace(each, limit_s=RELAXED * each.limit_s) for each in getattr(slo, name))
    field = f"{limit[0].lower()}{limit[1:]}"
    changed = replace(slo, **{name: targets})
    yield f"slo.{field}: {{{targets_written(targets)}}}", replace(sizing.request, slo=changed)
