"""What engines really cost, and the least that traffic takes of them: work as if it were a fluid.

A replica at its fluid bound (the mean TPOT at its limit, or slots or cache full) serves so many
mean requests a second, so that each takes one over that of a replica. Prompt tokens and answers
share it as they share the step. There is no queue, no cold start and no part of a replica to spare:
with fewer GPU-hours the traffic is not served. The formula knows no whole sequences, and may be
some percent off.
"""

import math
from array import array
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Final

from tonnage.catalog.engine_speed import SpeedConstants
from tonnage.engine.limits import EngineLimits
from tonnage.engine.step_costs import StepCosts
from tonnage.replay.traffic import Traffic
from tonnage.sizing.parallelism.draft import rank_of
from tonnage.sizing.request import Flags, SizingRequest
from tonnage.sizing.serving.flags import replica_under, trial_of
from tonnage.sizing.serving.load_line import bound_requests_per_s, state_at
from tonnage.sizing.serving.replica import Replica
from tonnage.sizing.serving.trial import engine_limits
from tonnage.sizing.step_time.model import step_costs
from tonnage.sizing.workload import Slo, Workload
from tonnage.units import HOUR_S

OVERHEADS: Final = (
    "per_step_s", "per_kernel_s", "per_scaled_product_s", "per_sequence_s", "per_all_reduce_s",
    "per_experts_block_s", "cutlass_block_s", "cutlass_expert_s", "per_cached_head_s",
)  # fmt: skip


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
    kv_factor: float = 1.0
    """Of the KV blocks."""
    server_s: float = 0.0
    """That each first token comes later, whatever the load."""
    first_pod_speed: float = 1.0
    """Of the first pod, as a factor of the others'."""
    sticky_share: float = 0.0
    """Of the requests, that go to the first pod whatever it has, beside its part of the rest."""

    def constants(self, prior: SpeedConstants) -> SpeedConstants:
        """Return the constants of the formula, the speed left out."""
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
        return replace(self, costs=scale_costs(self.costs, 1 / speed))


def machine(request: SizingRequest, flags: Flags, truth: GroundTruth) -> Machine:
    """Return the engine that runs with these flags; ``request`` has the priors of what it asks."""
    replica = true_replica(request, flags, truth)
    asked = replace(request, flags=flags, measured_kv_tokens=None)
    limits = replace(
        engine_limits(trial_of(asked, replica)),
        max_queued_reqs=flags.max_num_queued_reqs or 0,
        max_queued_tokens=flags.max_num_queued_tokens or 0,
    )
    costs = step_costs(
        replica.model,
        max_num_seqs=limits.max_num_seqs,
        max_batched_tokens=limits.max_num_batched_tokens,
    )
    reserved = replica.requests_reserved(asked.context_tokens) / replica.model.dp_size
    return Machine(
        limits=limits,
        costs=scale_costs(costs, 1 / truth.speed),
        kv_tokens=int(reserved * asked.context_tokens),
        num_gpus=flags.parallelism.num_gpus,
    )


def true_replica(request: SizingRequest, flags: Flags, truth: GroundTruth) -> Replica:
    """Return the same for the formula, the speed of a truth left out."""
    asked = replace(request, flags=flags, measured_kv_tokens=None)
    believed = replica_under(asked, rank_of(asked, flags.parallelism), flags)
    model = replace(believed.model, constants=truth.constants(request.speed))
    return replace(believed, model=model, kv_pool_bytes=truth.kv_factor * believed.kv_pool_bytes)


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


BIN_S = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenCosts:
    """What tokens take of a replica at its fluid bound, in seconds of it."""

    prompt_token_s: float
    output_token_s: float
    step_s: float
    """Between two tokens of an answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What all requests take, spread over the time that each is served in."""

    bins: "array[float]"
    """Replicas at their bound, of each bin of so many seconds from 0 on."""
    gpus_per_replica: int

    @property
    def gpu_hours(self) -> float:
        return sum(self.bins) * BIN_S * self.gpus_per_replica / HOUR_S

    def mean(self, from_s: float, until_s: float) -> float:
        first = int(from_s / BIN_S)
        part = self.bins[first : max(first + 1, int(until_s / BIN_S))]
        return sum(part) / len(part) if part else 0.0


def work_of(drawn: Traffic, request: SizingRequest, flags: Flags, truth: GroundTruth) -> Work:
    replica = true_replica(request, flags, truth)
    shapes = drawn.shapes
    prices = [_prices(replica, shape, request.slo, truth.speed) for _, shape in shapes]
    return Work(
        bins=_spread(drawn, [start_s for start_s, _ in shapes], prices),
        gpus_per_replica=flags.parallelism.num_gpus,
    )


def _prices(replica: Replica, workload: Workload, slo: Slo, speed: float) -> TokenCosts:
    """Return the prices of requests of this shape; steps take one over ``speed`` of the formula."""
    limits = (replace(target, limit_s=target.limit_s * speed) for target in slo.tpot)
    most = bound_requests_per_s(replica, workload, Slo(tpot=tuple(limits)))
    state = state_at(replica, workload, most)
    each_s = 1 / (most * speed)
    prefill = state.step.prefill_s / state.step_s
    return TokenCosts(
        prompt_token_s=each_s * prefill / workload.prompt.mean_tokens,
        output_token_s=each_s * (1 - prefill) / workload.output_tokens,
        step_s=state.tpot_s / speed,
    )


def _spread(
    traffic: Traffic, starts_s: Sequence[float], prices: Sequence[TokenCosts]
) -> "array[float]":
    """Return the work by bin: each request's own evenly from its arrival to its last token."""
    size = math.ceil(traffic.duration_s / BIN_S)
    partial, steps = array("d", bytes(8 * size)), array("d", bytes(8 * (size + 1)))

    def change(at_s: float, rate: float) -> None:
        """Add to the rate from a time on: to a part of its bin, and to all later ones."""
        place = at_s / BIN_S
        number = int(place)
        if number < size:
            partial[number] += rate * (number + 1 - place)
            steps[number + 1] += rate

    for number, at_s in enumerate(traffic.arrival_s):
        price = prices[max(0, bisect_right(starts_s, at_s) - 1)]
        prompt, output = traffic.prompt_tokens[number], traffic.output_tokens[number]
        work_s = prompt * price.prompt_token_s + output * price.output_token_s
        served_s = max(work_s, output * price.step_s)
        change(at_s, work_s / served_s)
        change(at_s + served_s, -work_s / served_s)
    whole = accumulate(steps[:size])
    return array("d", (max(0.0, a + b) for a, b in zip(partial, whole, strict=True)))
