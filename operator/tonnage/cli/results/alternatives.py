"""Ways out of a no: changes to the spec with which the answer would be yes."""

import math
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Final

from tonnage.catalog.engine import find_engine, newest_version, parse_version
from tonnage.catalog.gpu import CatalogError, Gpu
from tonnage.cli.results.checkpoint_weights import narrowed
from tonnage.explain.demand_outcome import cost_figures
from tonnage.sizing.bill import Bill, bill
from tonnage.sizing.cost import least_usd_per_gpu_hour
from tonnage.sizing.edge import is_hardly_used, nearest_served, slo_changes
from tonnage.sizing.errors import SizingError, SLOInfeasibleError
from tonnage.sizing.plan import OnSearch, Sizing, as_answer, keep_searching
from tonnage.sizing.request import SizingRequest, on_gpu, with_prior
from tonnage.sizing.search import NO_LIMIT, fewest_gpus, limit_below, search
from tonnage.sizing.workload import Target
from tonnage.units import MS_PER_S

Price = tuple[float, float]
"""Per hour, infinite of a class without one; GPUs."""
MAX_OFFERS: Final = 4


@dataclass(frozen=True, kw_only=True)
class Alternative:
    """Changes to the spec with which the answer would be yes, or costs less."""

    changes: tuple[str, ...]
    sizing: Sizing
    fewest: int = 1
    """Replicas that run whatever the demand."""

    @property
    def replicas(self) -> int:
        return max(self.sizing.replicas, self.fewest)

    @property
    def num_gpus(self) -> int:
        return self.replicas * self.sizing.parallelism.num_gpus

    @property
    def bill(self) -> Bill | None:
        return bill(self.sizing, replicas=self.replicas)

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
    found = [*later, *_cheapest(request, changed, MAX_OFFERS - len(later), on_search)]
    answers = (
        replace(each, fewest=fewest, sizing=as_answer(each.sizing, on_search)) for each in found
    )
    return tuple(_with_replicas(offer, most) for offer in sorted(answers, key=_price))


def _with_replicas(offer: Alternative, most: int | None) -> Alternative:
    needed = offer.replicas
    if most is None or needed <= most:
        return offer
    return replace(offer, changes=(*offer.changes, f"scaling.maxReplicas: {needed}"))


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
            offer = Alternative(changes=tuple(filter(None, changes)), sizing=sizing)
            if offer.changes:  # other flags of what runs are no change to a spec
                found = sorted([*found, offer], key=_price)[:number]
    return found
