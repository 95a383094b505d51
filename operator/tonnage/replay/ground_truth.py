"""What engines really cost: the product's formula with other constants, or what it cannot say."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from tonnage.catalog.engine_speed import SpeedConstants
from tonnage.engine.limits import EngineLimits
from tonnage.engine.step_costs import StepCosts
from tonnage.sizing.parallelism.draft import rank_of
from tonnage.sizing.request import Flags, SizingRequest
from tonnage.sizing.serving.flags import replica_under, trial_of
from tonnage.sizing.serving.replica import Replica
from tonnage.sizing.serving.trial import engine_limits
from tonnage.sizing.step_time.costs import step_costs

OVERHEADS: Final = (
    "per_step_s", "per_kernel_s", "per_scaled_product_s", "per_sequence_s", "per_all_reduce_s",
    "per_experts_block_s", "cutlass_block_s", "cutlass_expert_s", "per_cached_head_s",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Kink:
    """What each sequence beyond a number adds to a step: no constant of the formula does that."""

    num_sequences: int
    per_sequence_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GroundTruth:
    """The hidden figures of an engine, as factors of the priors."""

    speed: float = 1.0
    """Steps take one over this, whatever they do."""
    bandwidth_factor: float = 1.0
    """Of the bandwidth efficiency."""
    compute_factor: float = 1.0
    """Of the compute efficiency of decode."""
    prefill_factor: float = 1.0
    """Of the prefill efficiency."""
    overhead_factor: float = 1.0
    """Of all that a step takes whatever it reads and computes."""
    kink: Kink | None = None
    kv_factor: float = 1.0
    """Of the KV blocks."""
    server_s: float = 0.0
    """That each first token comes later, whatever the load."""
    first_pod_speed: float = 1.0
    """Of the first pod, as a factor of the others'."""
    sticky_share: float = 0.0
    """Of the requests, that go to the first pod whatever it has, beside its part of the rest."""

    def constants(self, prior: SpeedConstants) -> SpeedConstants:
        """Return the constants of the formula, the speed and the kink left out."""
        overheads = {name: self.overhead_factor * getattr(prior, name) for name in OVERHEADS}
        return replace(
            prior,
            bandwidth_efficiency=self.bandwidth_factor * prior.bandwidth_efficiency,
            compute_efficiency=self.compute_factor * prior.compute_efficiency,
            prefill_efficiency=self.prefill_factor * prior.prefill_efficiency,
            **overheads,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """One kind of engine: what bounds it, what its steps cost and what it says of its cache."""

    limits: EngineLimits
    costs: StepCosts
    kv_tokens: int
    """That it reports, in requests of the longest length."""
    num_gpus: int

    def times(self, speed: float) -> "Machine":
        """Return the same engine, so many times as fast."""
        return replace(self, costs=scale_costs(self.costs, 1 / speed))


def machine(request: SizingRequest, flags: Flags, truth: GroundTruth) -> Machine:
    """Return the engine that runs with these flags; ``request`` has the priors of what it asks."""
    replica = true_replica(request, flags, truth)
    asked = replace(request, flags=flags, measured_kv_tokens=None)
    limits = replace(
        engine_limits(trial_of(asked, replica)), max_queued_tokens=flags.max_num_queued_tokens or 0
    )
    costs = step_costs(
        replica.model,
        max_num_seqs=limits.max_num_seqs,
        max_batched_tokens=limits.max_num_batched_tokens,
    )
    if truth.kink:
        costs = _add_kink(costs, truth.kink)
    return Machine(
        limits=limits,
        costs=scale_costs(costs, 1 / truth.speed),
        kv_tokens=_reported_tokens(asked, replica),
        num_gpus=flags.parallelism.num_gpus,
    )


def true_replica(request: SizingRequest, flags: Flags, truth: GroundTruth) -> Replica:
    """Return the same for the formula, the speed and the kink of a truth left out."""
    asked = replace(request, flags=flags, measured_kv_tokens=None)
    believed = replica_under(asked, rank_of(asked, flags.parallelism), flags)
    model = replace(believed.model, constants=truth.constants(request.speed))
    return replace(believed, model=model, kv_pool_bytes=truth.kv_factor * believed.kv_pool_bytes)


def _reported_tokens(request: SizingRequest, replica: Replica) -> int:
    reserved = replica.requests_reserved(request.context_tokens) / replica.model.dp_size
    return int(reserved * request.context_tokens)


def scale_costs(costs: StepCosts, factor: float) -> StepCosts:
    """Return costs that are so many times as high, all of them."""
    grid = costs.prefill
    return replace(
        costs,
        base_s=_times(costs.base_s, factor),
        memory_s=_times(costs.memory_s, factor),
        compute_s=_times(costs.compute_s, factor),
        memory_price_s=tuple(_times(costs.memory_price_s, factor)),
        memory_slope_s=tuple(_times(costs.memory_slope_s, factor)),
        compute_price_s=tuple(_times(costs.compute_price_s, factor)),
        compute_slope_s=tuple(_times(costs.compute_slope_s, factor)),
        pairs_slope_s=tuple(_times(costs.pairs_slope_s, factor)),
        prefill=replace(grid, seconds=tuple(tuple(_times(row, factor)) for row in grid.seconds)),
        own_prefill_s_per_token=factor * costs.own_prefill_s_per_token,
    )


def _times(values: Sequence[float], factor: float) -> "array[float]":
    return array("d", (factor * value for value in values))


def _add_kink(costs: StepCosts, kink: Kink) -> StepCosts:
    base_s = (
        value + kink.per_sequence_s * max(0, number - kink.num_sequences)
        for number, value in enumerate(costs.base_s)
    )
    return replace(costs, base_s=array("d", base_s))
