"""A cache in the host's memory: the verdict in words and numbers."""

from typing import Any, Final

from tonnage.api.spec import KvOffload, Spec
from tonnage.api.status import Reason
from tonnage.sizing.offload import (
    Offload,
    asked_offload,
    auto_obstacle,
    held_as_planned,
    host_cache_gib,
)
from tonnage.sizing.plan import Sizing
from tonnage.units import format_bytes

OFFLOAD: Final = "KVOffload"
"""Code of a plan's reason."""


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


def offload_reasons(
    spec: Spec,
    sizing: Sizing,
    *,
    held_fraction: float | None = None,
    why: str = "",
) -> tuple[Reason, ...]:
    """Say of replicas whether their cache in host memory is worth it, and what Auto chose.

    ``held_fraction``: of the GPU cache, by running requests; None: not measured. ``why``: the
    choice is another than the verdict.
    """
    given = spec.model.kv_offload
    if given is None:
        return ()
    parts = [_choice(given, sizing)] if given.is_auto else []
    obstacle = auto_obstacle(spec, sizing.request) if given.is_auto else None
    if obstacle is None and given.is_auto and held_fraction is None:
        held_fraction = held_as_planned(sizing)
    if obstacle is not None:
        parts.append(obstacle)
    elif held_fraction is not None and (offload := asked_offload(given, sizing, held_fraction)):
        parts.append(offload_verdict(offload))
        is_other = given.is_auto and offload.is_worth_it != sizing.request.has_host_cache
        if why and is_other:
            parts.append(why)
    return (Reason(code=OFFLOAD, message="; ".join(parts)),) if parts else ()


def _choice(given: KvOffload, sizing: Sizing) -> str:
    if sizing.request.has_host_cache:
        return f"Auto: on, {host_cache_gib(given, sizing)} GiB a replica"
    return "Auto: off"


def offload_figures(
    spec: Spec, sizing: Sizing, *, held_fraction: float, why: str = ""
) -> dict[str, Any] | None:
    """Return the same of a plan as data; None: there is nothing to say."""
    given = spec.model.kv_offload
    reasons = offload_reasons(spec, sizing, held_fraction=held_fraction, why=why)
    if given is None or not reasons:
        return None
    parts = {"message": reasons[0].message}
    auto = {"isOn": sizing.request.has_host_cache} if given.is_auto else {}
    offload = asked_offload(given, sizing, held_fraction)
    if offload is None or (given.is_auto and auto_obstacle(spec, sizing.request)):
        return parts | auto
    return {
        "isWorthIt": offload.is_worth_it,
        **parts,
        **auto,
        "workingSetTokens": round(offload.working_set_tokens),
        "gpuCacheTokens": round(offload.gpu_tokens),
        "hostBytesNeeded": round(offload.needed_bytes),
    }
