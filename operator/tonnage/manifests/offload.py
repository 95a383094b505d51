"""What gives an engine a KV cache in the memory of the host: flags, and room in the pod."""

import math
from collections.abc import Iterator

from tonnage.units import GIB, MIB, quantity


def offload_arguments(rank_gib: float) -> Iterator[str]:
    """Yield the flags; ``rank_gib``: of a data-parallel rank, in GiB; 0: no such cache.

    Sources:
        [vllm-source] config/cache.py kv_offloading_size: of all tensor-parallel ranks, and each
        data-parallel rank takes as much; v1/kv_offload/cpu/shared_offload_region.py: in /dev/shm,
        all of it from the start on.
    """
    if rank_gib:
        yield from ("--kv-offloading-size", f"{rank_gib:.9g}")
        yield from ("--kv-offloading-backend", "native")


def host_cache_room_gib(gib: int, ranks: int) -> int:
    """Return what a cache takes of the memory of a pod, in GiB, with the page tables of its ranks.

    Each tensor-parallel rank maps all of its engine's: 8 bytes for every 4 KiB.

    >>> host_cache_room_gib(200, 4)
    202
    """
    return gib + math.ceil(gib * ranks / 512)


def with_host_cache(amount: str, gib: int) -> str:
    """Return a quantity of memory with room for the cache; empty is none.

    >>> with_host_cache("8Gi", 200), with_host_cache("", 200), with_host_cache("500M", 1)
    ('208Gi', '200Gi', '1501Mi')
    """
    if not gib:
        return amount
    total = quantity(amount or "0") + gib * GIB
    unit, name = (GIB, "Gi") if total % GIB == 0 else (MIB, "Mi")
    return f"{math.ceil(total / unit)}{name}"
