"""What makes a plan that works cost less: changes to the spec, and what the traffic may have."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

from tonnage.catalog.gpu import CatalogError
from tonnage.cli.results.alternatives import targets_written
from tonnage.cli.results.checkpoint_weights import narrowed
from tonnage.explain.demand_outcome import cost_figures
from tonnage.sizing.bill import Bill, bill
from tonnage.sizing.cost import cents
from tonnage.sizing.errors import SizingError
from tonnage.sizing.memory.prefix import with_whole_blocks
from tonnage.sizing.plan import OnSearch, Sizing, keep_searching, requests_per_s_asked
from tonnage.sizing.request import ANY_SIZES, SizingRequest, on_gpu, spread_of
from tonnage.sizing.search import Cost, cheaper_splits, cost_of, next_best, size
from tonnage.sizing.serving.goodput import LARGE_ERROR
from tonnage.sizing.workload import Slo, Target

RELAXED: Final = 1.5
"""Times the target that decides."""
CACHED_FRACTION: Final = 0.5
"""Of the prompts, that is tried where none is said to be cached."""
NUM_ERRORS: Final = 2
"""Standard errors of goodput that a saving is more than."""
TRAFFIC_FIELD: Final = "demand.cachedPromptPercent"
SIZE_FIELD: Final = "hardware.gpusPerReplica"
SLO_FIELDS: Final = {"TimePerOutputToken": "tpot", "TimeToFirstToken": "ttft"}
SPEC_FIELDS: Final = {"tpot": "timePerOutputToken", "ttft": "timeToFirstToken"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Saving:
    """A change with which the demand costs less; without prices, takes fewer GPUs."""

    change: str
    sizing: Sizing
    replicas: int
    num_fewer_gpus: int
    """Below zero: more of them cost less, as in smaller instances."""
    saved_per_hour: float | None
    """None: one of both has no price."""
    is_traffic: bool
    """No field of the spec brings it about: it is a fact of the prompts."""
    is_sure: bool
    """It would save as much were the engine slower by what the estimate of its speed leaves."""

    @property
    def num_gpus(self) -> int:
        return self.replicas * self.sizing.parallelism.num_gpus

    @property
    def saved(self) -> float:
        """Per hour, over a year; without a price the GPUs."""
        return self.num_fewer_gpus if self.saved_per_hour is None else self.saved_per_hour

    @property
    def bill(self) -> Bill | None:
        return bill(self.sizing, replicas=self.replicas)

    def to_dict(self) -> dict[str, Any]:
        return {
            "change": self.change,
            "replicas": self.replicas,
            "gpusPerReplica": self.sizing.parallelism.num_gpus,
            "fewerGpus": self.num_fewer_gpus,
            "savedPerHour": self.saved_per_hour,
            "isTraffic": self.is_traffic,
            "isSure": self.is_sure,
            "cost": cost_figures(self.bill),
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
        _saving(change, other, max(other.replicas, fewest), num_gpus, before)
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
    whole = replace(request.gpu, price=replace(request.gpu.price, whole_nodes=True))
    other = size(replace(request, gpu=whole), on_search=on_search)
    least = bill(other, replicas=max(other.replicas, fewest))
    return least if least and cents(least.usd_per_hour) < cents(found.usd_per_hour_whole) else None


def _saving(
    change: str, other: Sizing, replicas: int, num_gpus: int, before: Bill | None
) -> Saving:
    after = bill(other, replicas=replicas)
    rate = requests_per_s_asked(other) or 0.0
    return Saving(
        change=change,
        sizing=other,
        replicas=replicas,
        is_traffic=change.startswith(TRAFFIC_FIELD),
        num_fewer_gpus=num_gpus - replicas * other.parallelism.num_gpus,
        saved_per_hour=cents(before.usd_per_mean_hour - after.usd_per_mean_hour)
        if before and after
        else None,
        is_sure=other.staffing.sustains((1 + spread_of(other.request)) * rate, replicas),
    )


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
    name = SLO_FIELDS.get(sizing.limited_by)
    if name is None:
        return
    slo = sizing.request.slo
    targets = tuple(
        Target(quantile=each.quantile, limit_s=RELAXED * each.limit_s)
        for each in getattr(slo, name)
    )
    changed = Slo(**{"ttft": slo.ttft, "tpot": slo.tpot, name: targets})
    written = targets_written(targets)
    yield f"slo.{SPEC_FIELDS[name]}: {{{written}}}", replace(sizing.request, slo=changed)
