"""A cache in the host's memory: the verdict in words and numbers."""

from typing import Any

from tonnage.api.status import Reason
from tonnage.sizing.offload import Offload
from tonnage.units import format_bytes


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


def offload_reason(offload: Offload) -> Reason:
    """Say the same as a reason of a plan."""
    return Reason(code="KVOffload", message=offload_verdict(offload))


def offload_figures(offload: Offload) -> dict[str, Any]:
    """Return the same as data."""
    return {
        "isWorthIt": offload.is_worth_it,
        "message": offload_verdict(offload),
        "workingSetTokens": round(offload.working_set_tokens),
        "gpuCacheTokens": round(offload.gpu_tokens),
        "hostBytesNeeded": round(offload.needed_bytes),
    }
