"""Ways out of a no: changes to the spec with which the answer would be yes."""

import math
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Final

from tonnage.catalog.config.formats.quantization import WEIGHT_FORMATS
from tonnage.catalog.engine import find_engine, newest_version, parse_version
from tonnage.catalog.gpu import CatalogError, Gpu
from tonnage.catalog.safetensors import Checkpoint
from tonnage.catalog.stored import apply_checkpoint, weights_by_part
from tonnage.explain.demand_outcome import cost_figures
from tonnage.sizing.bill import Bill, bill
from tonnage.sizing.compare import Choice
from tonnage.sizing.cost import cents, gpu_hour, least_usd_per_gpu_hour
from tonnage.sizing.edge import is_hardly_used, nearest_served, slo_changes
from tonnage.sizing.errors import SizingError, SLOInfeasibleError
from tonnage.sizing.memory.prefix import with_whole_blocks
from tonnage.sizing.plan import OnSearch, Sizing, as_answer, keep_searching, requests_per_s_asked
from tonnage.sizing.provenance import Figure, Input, Origin
from tonnage.sizing.request import ANY_SIZES, SizingRequest, on_gpu, spread_of, with_prior
from tonnage.sizing.search import (
    NO_LIMIT,
    Cost,
    cheaper_splits,
    cost_of,
    fewest_gpus,
    limit_below,
    next_best,
    search,
    size,
)
from tonnage.sizing.serving.goodput import LARGE_ERROR
from tonnage.sizing.workload import Target
from tonnage.units import MS_PER_S, format_bytes

CONTEXT_STEP_TOKENS: Final = 512
ROOM: Final = 1.5
"""What a shorter context leaves over the mean request."""
WIDE_FORMATS: Final = frozenset({"bf16", "fp16"})


def as_stored(request: SizingRequest, checkpoint: Checkpoint) -> SizingRequest:
    """Return the request with the bytes that the files of its model have.

    Where the spec asks for another format, weights are converted as they are loaded, and counted.
    """
    shape, asked = request.shape, request.weights.name
    if asked != shape.weight_format.name and {asked, shape.weight_format.name} != WIDE_FORMATS:
        value = f"counted as {asked}: the files have {shape.weight_format.name}"
        return _with_inputs(request, value)
    weights = weights_by_part(checkpoint, num_layers=shape.num_layers)
    held = apply_checkpoint(shape, weights)
    held_bytes = (held.stored or weights).loaded_bytes
    value = f"{format_bytes(held_bytes)} in {len(checkpoint.tensors)} tensors"
    notes = held.notes[len(shape.notes) :]
    return _with_inputs(replace(request, shape=held), f"{value}: safetensors headers", *notes)


def narrowed(request: SizingRequest) -> Iterator[tuple[str, SizingRequest]]:
    """Yield changes to a spec with which less memory is taken, in its own words."""
    if request.weights.name in WIDE_FORMATS:
        counted = replace(request.shape, stored=None)
        narrow = replace(request, weights=WEIGHT_FORMATS["fp8"], shape=counted)
        yield "model.weights: fp8", with_prior(narrow)
    if request.kv_format == "bf16":
        yield "model.kvCache: fp8", replace(request, kv_format="fp8")
    workload = request.workload
    longest = max(
        ROOM * (workload.prompt.mean_tokens + workload.output_tokens),
        workload.prompt.quantile(0.99) + workload.output_p99_tokens,
    )
    tokens = math.ceil(longest / CONTEXT_STEP_TOKENS) * CONTEXT_STEP_TOKENS
    if tokens < request.context_tokens:
        yield f"contextLength: {tokens}", replace(request, context_tokens=tokens)


def _with_inputs(request: SizingRequest, *values: str) -> SizingRequest:
    added = (
        Input(figure=Figure.CHECKPOINT, value=each, origin=Origin.LOOKED_UP) for each in values
    )
    return replace(request, inputs=(*request.inputs, *added))


Price = tuple[float, float]
"""Per hour, infinite of a class without one; GPUs."""
MAX_OFFERS: Final = 4


@dataclass(frozen=True, kw_only=True)
class Alternative(Choice):
    """Changes to the spec with which the answer would be yes, or costs less."""

    changes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain figures, for the demand."""
        sizing = self.sizing
        return {
            "changes": list(self.changes),
            "gpu": sizing.request.gpu.name,
            "replicas": self.replicas,
            "gpusPerReplica": sizing.parallelism.num_gpus,
            "maxNumSeqs": sizing.flags.max_num_seqs,
            "cost": cost_figures(self.bill),
        }


def offers(
    request: SizingRequest,
    gpus: Iterable[Gpu],
    *,
    why: Exception | Sizing | None = None,
    fewest: int = 1,
    on_search: OnSearch = keep_searching,
) -> tuple[Alternative, ...]:
    """Return the changes with which the request has an answer, the cheapest first.

    Each as ``compare`` has it: with what it costs least, a higher maxReplicas among the changes.
    ``why``: the refusal, or the plan for the nearest targets that are worth their price.
    ``fewest``: replicas that run whatever the demand.
    """
    most, request = request.max_replicas, replace(request, flags=None, max_replicas=None)
    later = list(_later(request, why, on_search))
    changed = chain(_changed(request), _on_others(request, gpus))
    found = [*later, *_cheapest(request, changed, MAX_OFFERS - len(later), on_search, fewest)]
    answers = (
        replace(each, fewest=fewest, most=most, sizing=as_answer(each.sizing, on_search))
        for each in found
    )
    return tuple(
        each
        if each.is_within_bounds
        else replace(each, changes=(*each.changes, f"scaling.maxReplicas: {each.replicas}"))
        for each in sorted(answers, key=_price)
    )


def _price(offer: Alternative) -> Price:
    """Order by price; a class without one comes after those that have it."""
    return (offer.bill.usd_per_hour if offer.bill else math.inf), offer.num_gpus


def _try(request: SizingRequest, on_search: OnSearch, most: Price | None = None) -> Sizing | None:
    """Return the answer if there is one, as far as is searched below a price."""
    limit, demand = NO_LIMIT, request.demand
    if most and (demand.requests_per_s or demand.concurrency):  # else ranks are of a request/s
        usd, num_gpus = most
        has_no_price = usd == math.inf
        limit = limit_below(request, (has_no_price, num_gpus if has_no_price else usd))
    try:
        found = search(request, limit=limit, on_search=on_search)
    except (SizingError, CatalogError):
        return None
    return None if is_hardly_used(found) else found


def _later(
    request: SizingRequest, why: Exception | Sizing | None, on_search: OnSearch
) -> Iterator[Alternative]:
    """Yield the nearest targets that are served at a price that they are worth."""
    if isinstance(why, SLOInfeasibleError):
        why = nearest_served(request, why, on_search=on_search)
    if isinstance(why, Sizing):
        slo = why.request.slo
        targets = {"timeToFirstToken": slo.ttft, "timePerOutputToken": slo.tpot}
        yield Alternative(
            changes=tuple(
                f"slo.{field}: {{{targets_written(targets[field])}}}"
                for field, *_ in slo_changes(request.slo, slo)
            ),
            sizing=why,
        )


def targets_written(targets: Iterable[Target]) -> str:
    """Write targets as a spec has them."""
    return ", ".join(
        f"p{each.quantile * 100:g}: {each.limit_s * MS_PER_S:.0f}ms" for each in targets
    )


def _changed(request: SizingRequest) -> Iterator[tuple[str, SizingRequest]]:
    """Yield (change, request) of the same class: a newer engine, any split, fewer bytes."""
    newest = newest_version()
    if parse_version(request.engine.minor) < parse_version(newest):
        changed = with_prior(replace(request, engine=find_engine(newest)))
        yield f'engine.version: "{newest}"', changed
    if request.num_gpus is not None:
        yield "", replace(request, num_gpus=None)
    yield from narrowed(request)


def _on_others(request: SizingRequest, gpus: Iterable[Gpu]) -> Iterator[tuple[str, SizingRequest]]:
    """Yield (change, request) of other classes."""
    for gpu in gpus:
        if gpu.name != request.gpu.name:
            with suppress(SizingError, CatalogError):  # it will not do, or lacks a figure
                yield f"hardware.gpu: {gpu.name}", on_gpu(request, gpu)


def _cheapest(
    request: SizingRequest,
    changed: Iterable[tuple[str, SizingRequest]],
    number: int,
    on_search: OnSearch,
    fewest: int = 1,
) -> list[Alternative]:
    """Return what costs least of changes: none is searched that costs more by its fluid bound."""
    bounded = list[tuple[Price, str, SizingRequest]]()
    for change, other in changed:
        with suppress(SizingError):
            num_gpus = fewest_gpus(other, is_within_node=other.gpu.name != request.gpu.name)
            usd = least_usd_per_gpu_hour(other.gpu)
            price = math.inf if usd is None else num_gpus * usd
            bounded.append(((price, num_gpus), change, other))
    found: list[Alternative] = []
    for least, change, other in sorted(bounded, key=lambda each: each[:2]):
        most = _price(found[-1]) if len(found) == number else None
        if most and (least >= most or least[0] == math.inf):
            break
        if sizing := _try(other, on_search, most):
            num_gpus = sizing.parallelism.num_gpus
            size = f"hardware.gpusPerReplica: {num_gpus}"
            changes = (change, "" if request.num_gpus in {None, num_gpus} else size)
            offer = Alternative(changes=tuple(filter(None, changes)), sizing=sizing, fewest=fewest)
            if offer.changes:  # other flags of what runs are no change to a spec
                found = sorted([*found, offer], key=_price)[:number]
    return found


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
    spread = spread_of(other.request, other.parallelism)
    slower = (1 + spread) * (requests_per_s_asked(other) or 0.0)
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
