"""What one GPU can do at most, and the links between them."""

import math
from dataclasses import dataclass

from tonnage.catalog.gpu import Gpu


@dataclass(frozen=True, slots=True, kw_only=True)
class Speeds:
    """What one GPU can do at most, and the links between them."""

    memory_bytes_per_s: float
    peak_flop_per_s: float
    interconnect_bytes_per_s: float = math.inf


def speeds(gpu: Gpu, precision: str) -> Speeds:
    """Return what a GPU class can do for weights of this precision."""
    return Speeds(
        memory_bytes_per_s=gpu.memory_bytes_per_s,
        peak_flop_per_s=gpu.flop_per_s(precision),
        interconnect_bytes_per_s=gpu.interconnect_bytes_per_s,
    )
