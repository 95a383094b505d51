"""Choosing a GPU class: one request put to several, ranked by what its answer costs.

Every class is given its best split: the one that serves the demand with the fewest GPUs. A plan for
one class takes the smallest split instead (decisions/0008), which is steadier while it runs.
"""

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from tonnage.catalog.gpu import CatalogError, Gpu
from tonnage.sizing.bill import Bill, bill
from tonnage.sizing.checks import check_request
from tonnage.sizing.errors import SizingError
from tonnage.sizing.parallelism.draft import splits_for
from tonnage.sizing.plan import (
    FINALISTS,
    Between,
    Finalist,
    Outline,
    Sizing,
    finalist_of,
    keep_searching,
    outlines_of,
    requests_per_s_asked,
    simulate,
    size,
    size_with,
    with_replicas,
)
from tonnage.sizing.request import SizingRequest, on_gpu
from tonnage.sizing.split import Parallelism


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One GPU class that can serve the request: with which split and how many replicas."""

    sizing: Sizing
    replicas: int
    """For the demand, at least the fewest allowed; 1 where no demand is known."""

    @property
    def gpu(self) -> Gpu:
        return self.sizing.request.gpu

    @property
    def num_gpus(self) -> int:
        return self.replicas * self.sizing.flags.parallelism.num_gpus

    @property
    def tokens_per_s_per_gpu(self) -> float:
        """Output tokens with every SLO target met."""
        return self.sizing.output_tokens_per_s / self.sizing.flags.parallelism.num_gpus

    @property
    def bill(self) -> Bill | None:
        return bill(self.sizing, replicas=self.replicas)

    @property
    def is_within_bounds(self) -> bool:
        """Does maxReplicas allow what the demand needs?"""
        most = self.sizing.request.max_replicas
        return most is None or self.replicas <= most


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedClass:
    """One GPU class that cannot serve the request, with the reason as a condition has it."""

    gpu: Gpu
    reason: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Every class that was asked: those that serve, cheapest first, and those that do not."""

    choices: tuple[Choice, ...]
    refused: tuple[RefusedClass, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What is asked of a class whose engine was measured: of the split that was, no other."""

    request: SizingRequest
    parallelism: Parallelism


def select(
    request: SizingRequest,
    gpus: Iterable[Gpu],
    *,
    min_replicas: int = 1,
    measured: Mapping[str, Measured] | None = None,
    between: Between = keep_searching,
) -> Selection:
    """Put the request to every class; split, flags and what was measured are left open.

    ``measured``: classes of which more is known, by name.

    The order is total: by USD per hour for the demand (``rank``), the refused last, by name.
    """
    choices: list[Choice] = []
    refused: list[RefusedClass] = []
    for gpu in gpus:
        try:
            known = (measured or {}).get(gpu.name)
            choices.append(
                _choice(size_with(known.request, known.parallelism, between=between), min_replicas)
                if known
                else best_choice(on_gpu(request, gpu), min_replicas=min_replicas, between=between)
            )
        except (SizingError, CatalogError) as error:
            reason = type(error).__name__.removesuffix("Error")
            refused.append(RefusedClass(gpu=gpu, reason=reason, message=str(error)))
    return Selection(
        choices=tuple(sorted(choices, key=rank)),
        refused=tuple(sorted(refused, key=lambda each: each.gpu.name)),
    )


def best_choice(
    request: SizingRequest, *, min_replicas: int = 1, between: Between = keep_searching
) -> Choice:
    """Return the split of the request's class that takes the fewest GPUs.

    Splits whose replicas exceed maxReplicas only where all do; then the fewest GPUs in all, then
    the smallest replica, then the one that serves most. Where no demand is known, the fewest
    GPUs per token. More than a node is tried only when nothing smaller will do. Simulated are those
    that may take fewest by their fluid bounds, until none can take fewer than what is found.

    Raises:
        SizingError: no split will do; as ``size`` says it.
        CatalogError: a figure is missing.
    """
    check_request(request)
    outlines = list(outlines_of(request, _within_a_node(request), []))
    tried = list(_tried(outlines, min_replicas, between))
    found: list[Choice] = []
    for least, finalist in sorted(tried, key=lambda each: each[0]):
        enough = [_gpus_taken(choice) for choice in found if choice.is_within_bounds]
        if least > min(enough, default=math.inf):
            break
        try:
            found.append(_choice(with_replicas(simulate(finalist, between=between)), min_replicas))
        except SizingError:
            continue
    if not found:
        return _choice(size(request, between=between), min_replicas)
    return min(found, key=_frugality)


def _tried(
    outlines: list[Outline], min_replicas: int, between: Between
) -> Iterator[tuple[float, Finalist]]:
    """Yield (GPUs taken by short runs, split) of those that may take fewest by their bounds."""
    ranked = sorted(outlines, key=lambda each: _least_gpus(each, each.bound_requests_per_s))
    fewest = math.inf
    for outline in ranked[:FINALISTS]:
        bound = _least_gpus(outline, outline.bound_requests_per_s)
        if max(min_replicas * outline.num_gpus, bound) >= fewest:
            return
        finalist = finalist_of(outline, between=between)
        each = finalist.requests_per_s or outline.bound_requests_per_s
        gpus = max(min_replicas * outline.num_gpus, _least_gpus(outline, each))
        most = outline.request.max_replicas
        if most is None or gpus <= most * outline.num_gpus:
            fewest = min(fewest, gpus)
        yield gpus, finalist


def _choice(sizing: Sizing, min_replicas: int) -> Choice:
    return Choice(sizing=sizing, replicas=max(sizing.replicas, min_replicas))


def _within_a_node(request: SizingRequest) -> Iterator[Parallelism]:
    node = request.gpu.gpus_per_node
    splits = splits_for(request, num_gpus=None)
    return itertools.takewhile(lambda split: split.num_gpus <= node, splits)


def _least_gpus(outline: Outline, requests_per_s: float) -> float:
    """Return the GPUs that a split takes whose replicas serve so much each."""
    rate = outline.request.demand.requests_per_s
    if rate is None:
        return outline.num_gpus / (requests_per_s * outline.request.workload.output_tokens)
    return math.ceil(rate / requests_per_s) * outline.num_gpus


def _frugality(choice: Choice) -> tuple[bool, float, int, float]:
    return (
        not choice.is_within_bounds,
        _gpus_taken(choice),
        choice.sizing.flags.parallelism.num_gpus,
        -choice.sizing.goodput_requests_per_s,
    )


def _gpus_taken(choice: Choice) -> float:
    """Return the GPUs for the demand or, where none is known, for a token per second."""
    if requests_per_s_asked(choice.sizing) is None:
        return 1 / choice.tokens_per_s_per_gpu
    return float(choice.num_gpus)


def rank(choice: Choice) -> tuple[bool, float, float, float, int, str]:
    """Return what a choice is ranked by, the lowest first.

    1. classes with a price before those without one
    2. USD per hour for the demand; where none is known, USD per million output tokens
    3. the number of GPUs (where no demand is known: per token)
    4. USD per million output tokens at full use
    5. the number of GPUs of one replica
    6. the name, so that no order is left to chance
    """
    found = choice.bill
    has_demand = requests_per_s_asked(choice.sizing) is not None
    per_million = found.usd_per_million_tokens if found else math.inf
    return (
        found is None,
        found.usd_per_hour if found and has_demand else per_million,
        _gpus_taken(choice),
        per_million,
        choice.sizing.flags.parallelism.num_gpus,
        choice.gpu.name,
    )
