"""A cache in the host's memory: the verdict in words and numbers."""

from typing import Any

from tonnage.api.spec import KvOffload
from tonnage.explain.words import Answer
from tonnage.sizing.offload import Offload, break_even_bytes_per_s, host_cache_gib
from tonnage.sizing.plan import Sizing
from tonnage.units import format_bytes, format_si


def offload_answer(offload: Offload, given: KvOffload, sizing: Sizing) -> Answer:
    """Return whether a cache in the host's memory is worth it, and why."""
    rate = format_si(break_even_bytes_per_s(sizing), "B/s")
    beats = f"reading beats computing where a GPU reads more than {rate} from the host"
    gib = host_cache_gib(given, sizing)
    return Answer(
        question="Is a KV cache in host memory worth it?",
        answer=offload_verdict(offload),
        lines=(
            f"model.kvOffload gives each replica {gib} GiB",
            *((beats,) if offload.is_worth_it else ()),
        ),
    )


def offload_verdict(offload: Offload) -> str:
    """Say in a line whether a cache in host memory is worth it, and why."""
    gpu = f"the {offload.gpu_tokens:,.0f} that a replica's GPU cache holds beside running requests"
    host = f"{format_bytes(offload.needed_bytes)} of host memory"
    working = f"the working set of {offload.working_set_tokens:,.0f} tokens"
    if offload.fits_gpu:
        return f"not worth it: {working} is within {gpu}"
    if not offload.is_worth_it:
        return f"not worth it: {working} takes {host}, there are {format_bytes(offload.host_bytes)}"
    return f"worth it: {working} is beyond {gpu}, and takes {host}"


def offload_figures(offload: Offload) -> dict[str, Any]:
    """Return the same as data."""
    return {
        "isWorthIt": offload.is_worth_it,
        "message": offload_verdict(offload),
        "workingSetTokens": round(offload.working_set_tokens),
        "gpuCacheTokens": round(offload.gpu_tokens),
        "hostBytesNeeded": round(offload.needed_bytes),
    }
