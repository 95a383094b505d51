"""What one GPU can do at most, the links between them, and how busy a speed keeps it."""

import math
from dataclasses import dataclass

from tonnage.api.hardware import MOST_GPUS
from tonnage.catalog.gpu import Gpu


@dataclass(frozen=True, slots=True, kw_only=True)
class Speeds:
    """What one GPU can do at most, and the links between them."""

    memory_bytes_per_s: float
    peak_flop_per_s: float
    interconnect_bytes_per_s: float = math.inf
    """Of one GPU to others of its node."""
    node_link_bytes_per_s: float | None = None
    """Of one GPU to other nodes. None: unknown, and taken to move as much as within a node."""
    gpus_per_node: int = MOST_GPUS


def speeds(gpu: Gpu, precision: str, node_link_bytes_per_s: float | None = None) -> Speeds:
    """Return what a GPU class can do for weights of this precision."""
    return Speeds(
        memory_bytes_per_s=gpu.memory_bytes_per_s,
        peak_flop_per_s=gpu.flop_per_s(precision),
        interconnect_bytes_per_s=gpu.interconnect_bytes_per_s,
        node_link_bytes_per_s=node_link_bytes_per_s,
        gpus_per_node=gpu.gpus_per_node,
    )


def ridge_flop_per_byte(*, peak_flop_per_s: float, memory_bytes_per_s: float) -> float:
    """Return the arithmetic intensity at which compute and memory take equally long.

    Sources:
        [williams2009] the roofline model.

    Example:
        >>> round(ridge_flop_per_byte(peak_flop_per_s=989e12, memory_bytes_per_s=3.35e12))
        295
    """
    return peak_flop_per_s / memory_bytes_per_s


def batch_at_ridge(*, ridge: float, weight_element_bytes: float) -> float:
    """Return the number of sequences at which decode would leave the memory bound.

    >>> batch_at_ridge(ridge=562.5, weight_element_bytes=1)
    281.25
    """
    return ridge * weight_element_bytes / 2


def observed_mbu_fraction(*, step_bytes: float, step_s: float, memory_bytes_per_s: float) -> float:
    """Return memory bandwidth utilization as shown to people, per rank and over busy time.

    ``step_bytes / step_s / memory_bytes_per_s``. Counts the weights touched and the KV of the
    running sequences once per step, against the nominal bandwidth: no engine exceeds 1.

    >>> observed_mbu_fraction(step_bytes=24e9, step_s=0.010, memory_bytes_per_s=4.8e12)
    0.5
    """
    return step_bytes / step_s / memory_bytes_per_s
