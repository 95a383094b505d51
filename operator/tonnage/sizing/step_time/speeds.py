"""What one GPU can do at most, and the links between them."""

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
