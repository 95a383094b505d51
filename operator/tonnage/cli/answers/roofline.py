"""The roofline of a plan, as numbers: what a GPU can do, and what each batch takes of it."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from tonnage.cli.answers.batches import BatchRow, batch_rows
from tonnage.sizing.plan import Sizing
from tonnage.sizing.serving.steady import SteadyState, steady_state
from tonnage.sizing.step_time.roofline import ridge_flop_per_byte


@dataclass(frozen=True, slots=True, kw_only=True)
class RooflinePoint:
    """A batch: how much work its decoding does per byte, and per second on one GPU."""

    row: BatchRow
    intensity_flop_per_byte: float
    flop_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Ceiling:
    """So many requests at most, and the intensity of a batch of that size."""

    name: str
    num_requests: float
    intensity_flop_per_byte: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Roofline:
    """One GPU's roof and the batches under it."""

    peak_flop_per_s: float
    memory_bytes_per_s: float
    points: tuple[RooflinePoint, ...]
    ceilings: tuple[Ceiling, ...]

    @property
    def ridge_flop_per_byte(self) -> float:
        return ridge_flop_per_byte(
            peak_flop_per_s=self.peak_flop_per_s, memory_bytes_per_s=self.memory_bytes_per_s
        )

    def roof_flop_per_s(self, intensity_flop_per_byte: float) -> float:
        return min(self.peak_flop_per_s, self.memory_bytes_per_s * intensity_flop_per_byte)


def roofline(sizing: Sizing) -> Roofline:
    """Return the batches of the batch table under the nominal roof of the plan's GPU.

    The height of a point is what decoding alone does in the time of whole steps, so the distance
    to the roof is prefill, overhead, communication and the bandwidth that is never reached.
    """
    speeds, flop = sizing.replica.model.speeds, flop_per_token(sizing)
    return Roofline(
        peak_flop_per_s=speeds.peak_flop_per_s,
        memory_bytes_per_s=speeds.memory_bytes_per_s,
        points=tuple(
            RooflinePoint(
                row=row,
                intensity_flop_per_byte=_intensity(row.state),
                flop_per_s=flop * row.state.num_decoding / row.state.step_s,
            )
            for row in batch_rows(sizing)
        ),
        ceilings=tuple(_ceilings(sizing)),
    )


def flop_per_token(sizing: Sizing) -> float:
    """Return the work of one GPU for each token that the replica decodes.

    Every data-parallel rank decodes its share of the tokens; every stage works on all of these.
    With one sequence on each rank of each stage, a stage's step does the work of one token.
    """
    split = sizing.flags.parallelism
    one_each = float(split.data * split.pipeline)
    state = steady_state(sizing.replica, sizing.request.workload, one_each)
    return state.step.decode_flop / split.data


def _ceilings(sizing: Sizing) -> Iterator[Ceiling]:
    found = {
        "load line": sizing.at_capacity.num_decoding,
        "SLO ceiling": sizing.slo_ceiling,
        "memory ceiling": sizing.memory_ceiling_typical,
    }
    for name, num_requests in found.items():
        if num_requests is not None and 0 < num_requests < math.inf:
            state = steady_state(sizing.replica, sizing.request.workload, num_requests)
            yield Ceiling(
                name=name, num_requests=num_requests, intensity_flop_per_byte=_intensity(state)
            )


def _intensity(state: SteadyState) -> float:
    return state.step.decode_flop / state.step.decode_bytes
