"""Changes to a plan that works, with which the demand would take fewer GPUs."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

from tonnage.catalog.config.formats.quantization import WEIGHT_FORMATS
from tonnage.catalog.gpu import CatalogError
from tonnage.cli.answers.stored import WIDE_FORMATS
from tonnage.explain.at_demand import cost_figures
from tonnage.sizing.bill import Bill, bill
from tonnage.sizing.compare import best_choice
from tonnage.sizing.errors import SizingError
from tonnage.sizing.plan import (
    Between,
    Sizing,
    fewest_gpus,
    keep_searching,
    requests_per_s_asked,
    size,
)
from tonnage.sizing.request import SizingRequest, on_gpu, spread_of, with_prior
from tonnage.sizing.workload import Slo, Target
from tonnage.units import MS_PER_S

RELAXED: Final = 1.5
"""Times the target that decides."""
CACHED_FRACTION: Final = 0.5
"""Of the prompts, that is tried where none is said to be cached."""
CONTEXT_STEP_TOKENS: Final = 512
ROOM: Final = 1.5
"""What a shorter context leaves over the mean request."""
SIZE_FIELD: Final = "hardware.gpusPerReplica"
SLO_FIELDS: Final = {"TimePerOutputToken": "tpot", "TimeToFirstToken": "ttft"}
SPEC_FIELDS: Final = {"tpot": "timePerOutputToken", "ttft": "timeToFirstToken"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Saving:
    """A change with which the demand takes fewer GPUs."""

    change: str
    sizing: Sizing
    replicas: int
    num_fewer_gpus: int
    is_sure: bool
    """It would save as much were the engine slower by what the estimate of its speed leaves."""
    is_split: bool = False
    """The same spec on another number of GPUs per replica, which ``compare`` would choose."""

    @property
    def num_gpus(self) -> int:
        return self.replicas * self.sizing.parallelism.num_gpus

    @property
    def bill(self) -> Bill | None:
        return bill(self.sizing, replicas=self.replicas)

    @property
    def saved_per_hour(self) -> float | None:
        found = self.bill
        return None if found is None else found.hour.usd * self.num_fewer_gpus

    def to_dict(self) -> dict[str, Any]:
        return {
            "change": self.change,
            "replicas": self.replicas,
            "gpusPerReplica": self.sizing.parallelism.num_gpus,
            "fewerGpus": self.num_fewer_gpus,
            "isSure": self.is_sure,
            "cost": cost_figures(self.bill),
        }


def savings(
    sizing: Sizing, replicas: int, *, min_replicas: int = 1, between: Between = keep_searching
) -> tuple[Saving, ...]:
    """Return what takes fewer GPUs than a plan, the most first; of as many, what is sure first.

    Each is searched for as a plan of its own, unless the fluid bound says that it takes as many.
    """
    rate = requests_per_s_asked(sizing)
    num_gpus = replicas * sizing.parallelism.num_gpus
    if not rate or sizing.request.flags or num_gpus == 1:
        return ()
    found = (
        _saving(change, other, num_gpus, min_replicas)
        for change, other in _answers(sizing, num_gpus, min_replicas, between)
    )
    fewer = [each for each in found if each.num_fewer_gpus > 0]
    return tuple(sorted(fewer, key=lambda each: (-each.num_fewer_gpus, not each.is_sure)))


def _saving(change: str, other: Sizing, num_gpus: int, min_replicas: int) -> Saving:
    replicas = max(other.replicas, min_replicas)
    rate = requests_per_s_asked(other) or 0.0
    slower = other.sustained_requests_per_s(replicas) / (1 + spread_of(other.request))
    return Saving(
        change=change,
        is_split=change.startswith(SIZE_FIELD),
        sizing=other,
        replicas=replicas,
        num_fewer_gpus=num_gpus - replicas * other.parallelism.num_gpus,
        is_sure=rate <= slower,
    )


def _answers(
    sizing: Sizing, num_gpus: int, min_replicas: int, between: Between
) -> Iterator[tuple[str, Sizing]]:
    request = sizing.request
    try:
        free = on_gpu(request, request.gpu)
        if fewest_gpus(free) < num_gpus:
            other = best_choice(free, min_replicas=min_replicas, between=between).sizing
            if other.parallelism != sizing.parallelism:
                each = other.parallelism
                yield f"{SIZE_FIELD}: {each.num_gpus} ({each})", other
    except (SizingError, CatalogError):
        pass  # the splits that are left will not do; the plan's own does
    for change, changed in _changes(sizing):
        try:
            if fewest_gpus(changed) < num_gpus:
                yield change, size(changed, between=between)
        except (SizingError, CatalogError):
            continue


def _changes(sizing: Sizing) -> Iterator[tuple[str, SizingRequest]]:
    """Yield changes to the spec that may help, in its own words."""
    request = sizing.request
    if request.weights.name in WIDE_FORMATS:
        counted = replace(request.shape, stored=None)
        narrow = replace(request, weights=WEIGHT_FORMATS["fp8"], shape=counted)
        yield "model.weights: fp8", with_prior(narrow)
    if request.kv_format != "fp8":
        yield "model.kvCache: fp8", replace(request, kv_format="fp8")
    yield from _relaxed(sizing)
    if request.max_num_batched_tokens:
        chosen = replace(request, max_num_batched_tokens=None)
        yield "engine.maxNumBatchedTokens left out", chosen
    if not request.workload.cached_fraction:
        cached = replace(request.workload, cached_fraction=CACHED_FRACTION)
        yield (
            f"demand.cachedPromptPercent: {CACHED_FRACTION * 100:.0f}, if prompts share so much",
            replace(request, workload=cached),
        )
    yield from _shorter(request)


def _relaxed(sizing: Sizing) -> Iterator[tuple[str, SizingRequest]]:
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
    written = ", ".join(
        f"p{each.quantile * 100:g}: {each.limit_s * MS_PER_S:.0f}ms" for each in targets
    )
    yield f"slo.{SPEC_FIELDS[name]}: {{{written}}}", replace(sizing.request, slo=changed)


def _shorter(request: SizingRequest) -> Iterator[tuple[str, SizingRequest]]:
    workload = request.workload
    longest = max(
        ROOM * (workload.prompt.mean_tokens + workload.output_tokens),
        workload.prompt.p99_tokens or 0.0,
    )
    tokens = math.ceil(longest / CONTEXT_STEP_TOKENS) * CONTEXT_STEP_TOKENS
    if tokens < request.context_tokens:
        yield f"contextLength: {tokens}", replace(request, context_tokens=tokens)
