"""What a spec asks of engines that their version, model or board does not have."""

from collections.abc import Iterator
from typing import Final

from tonnage.api.pod_template import given_template, variables_in
from tonnage.api.spec import Spec
from tonnage.catalog.engine import parse_version
from tonnage.catalog.gpu import Gpu
from tonnage.catalog.shape import Attention, GroupedAttention, LatentAttention, ModelShape
from tonnage.sizing.adapters import ADAPTER_FILES, WITHOUT_SLOTS
from tonnage.sizing.expected import (
    SINCE_SAFE_PRIORITIES,
    newest_first_s,
    refuses_late,
    slo_of,
    transfer_s_of,
)
from tonnage.sizing.switches import switches_in

SINCE_SHORT_LEASES: Final = (0, 22)
SINCE_COUNTED_REFUSALS: Final = (0, 32)
SINCE_WHOLE_HOST_CACHES: Final = (0, 31)
BESIDE_HOST_CACHE: Final = {"PYTORCH_CUDA_ALLOC_CONF", "VLLM_USE_SIMPLE_KV_OFFLOAD"}
"""Variables with which an engine does not start, or keeps another cache."""


def refusals(spec: Spec, minor: str, shape: ModelShape, gpu: Gpu) -> Iterator[str]:
    """Yield why an engine cannot be as asked; ``minor``: of its version."""
    version = parse_version(minor)
    if newest_first_s(spec) and version < SINCE_SAFE_PRIORITIES:
        yield _unsafe_priorities(minor)
    if refuses_late(spec) and version < SINCE_COUNTED_REFUSALS:
        yield _uncounted_refusals(minor)
    arguments = spec.engine.args if spec.engine else ()
    if not spec.model.adapters and any(each.startswith(ADAPTER_FILES) for each in arguments):
        yield f"engine.args: {ADAPTER_FILES} needs model.adapters: {WITHOUT_SLOTS}"
    if spec.role or spec.topology:
        yield from role_refusals(spec, minor, shape)
    if spec.model.kv_offload and not spec.model.kv_offload.is_auto:
        yield from offload_refusals(spec, minor, shape, gpu)


def _unsafe_priorities(minor: str) -> str:
    """Refuse priorities where a preempted request would go on with a cache that is gone.

    Sources:
        [vllm-source] v1/core/sched/scheduler.py schedule: 0.11 leaves the tokens of a victim that
        was scheduled in this step scheduled, and counts them as computed.
    """
    return (
        f"engine.queue: newestFirst needs engine.version 0.12; {minor} answers wrongly after it "
        "has preempted a request by its priority"
    )


def _uncounted_refusals(minor: str) -> str:
    """Refuse refusals that nobody counts: the more there are, the less demand would be seen.

    Sources:
        [vllm-source] config/scheduler.py max_num_queued_tokens since 0.29; v1/metrics/loggers.py
        record_admission_rejection since 0.32.
    """
    return (
        f"engine.admission: inTime needs engine.version 0.32; {minor} does not count the requests "
        "that it refuses, so the more it refused the less demand would be seen"
    )


def role_refusals(spec: Spec, minor: str, shape: ModelShape) -> Iterator[str]:
    """Refuse roles where nobody can tell what waits for what, or caches are not handed over.

    Sources:
        [vllm-source] v1/metrics/loggers.py: num_requests_waiting_by_reason since 0.20.
        [vllm-nixl-usage] since 0.22 a cache that nobody takes is given up after 30 s, before that
        after 480 s.
    """
    if parse_version(minor) < SINCE_SHORT_LEASES:
        yield (
            f"engine.role needs engine.version 0.22: {minor} holds a cache for 480 s that nobody "
            "takes"
        )
    if not hands_over(shape):
        yield (
            "engine.role: not every version hands over the cache of layers with a window or a state"
            f", as in {spec.model.id}"
        )
    if spec.role == "decode" and slo_of(spec).ttft and not transfer_s_of(spec):
        yield (
            "engine.role: decode with slo.timeToFirstToken needs demand.cacheTransfer, a part of it"
        )


def offload_refusals(spec: Spec, minor: str, shape: ModelShape, gpu: Gpu) -> Iterator[str]:
    """Refuse a KV cache in host memory where engines end on it, or nobody can tell what it holds.

    Sources:
        [vllm-source] v1/kv_offload/cpu/spec.py, shared_offload_region.py, config.py: until 0.20 the
        flags end the start, until 0.26 the memory is up to twice what is asked for, until 0.28 a
        restart leaves it behind, until 0.30 from 512 GiB on a worker ends.
    """
    if parse_version(minor) < SINCE_WHOLE_HOST_CACHES:
        yield (
            f"model.kvOffload needs engine.version 0.31: {minor} does not start with it, takes "
            "more memory than it is given, or loses it at a restart"
        )
    if not hands_over(shape):
        yield (
            "model.kvOffload: what host memory holds of layers with a window or a state is not "
            f"known, and {spec.model.id} has some"
        )
    if gpu.is_unified:
        yield f"model.kvOffload: the memory of {gpu.name} is that of its host"
    if others := BESIDE_HOST_CACHE & variables_in(given_template(spec.pods)):
        yield f"model.kvOffload does not go with the variable {min(others)}"
    if switches_in(spec.engine.args if spec.engine else ()).prefix_caching is False:
        yield (
            "model.kvOffload holds prompts that come again: --no-enable-prefix-caching computes "
            "them anew"
        )


def hands_over(shape: ModelShape) -> bool:
    """Tell whether engines move all that attention of this model keeps, to others or to the host.

    Sources:
        [vllm-nixl] of layers with windows or a state it depends on the version.
    """
    return all(_keeps_every_token(each) for _, each in shape.attentions())


def _keeps_every_token(attention: Attention) -> bool:
    match attention:
        case GroupedAttention():
            return attention.window_tokens is None
        case LatentAttention():
            return attention.chosen_tokens is None
    return False
