"""The least that traffic takes of engines as they really are: work as if it were a fluid.

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

from tonnage.replay.ground_truth import GroundTruth, true_replica
from tonnage.replay.traffic import Traffic
from tonnage.sizing.request import Flags, SizingRequest
from tonnage.sizing.serving.load_line import bound_requests_per_s, state_at
from tonnage.sizing.serving.replica import Replica
from tonnage.sizing.workload import Slo, Workload
from tonnage.units import HOUR_S

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
    bin_s: float = BIN_S

    @property
    def gpu_hours(self) -> float:
        return sum(self.bins) * self.bin_s * self.gpus_per_replica / HOUR_S

    def mean(self, from_s: float, until_s: float) -> float:
        first = int(from_s / self.bin_s)
        part = self.bins[first : max(first + 1, int(until_s / self.bin_s))]
        return sum(part) / len(part) if part else 0.0


def work_of(drawn: Traffic, request: SizingRequest, flags: Flags, truth: GroundTruth) -> Work:
    """Return the work of traffic for engines with these flags."""
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
