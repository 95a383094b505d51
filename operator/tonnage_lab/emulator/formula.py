"""Hidden constants in the product's own formula: the same physics, other figures.

The truth file's ``step`` then reads ``{"gpu": "H200", "bandwidth_efficiency": 0.6, ...}``: every
constant of the step-time formula may be given, and those that are not stay at the prior.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tonnage.api.base import KIND
from tonnage.api.objects import parse_model_deployment
from tonnage.catalog.gpu import built_in_gpus, find_gpu
from tonnage.engine.step_costs import StepCosts
from tonnage.manifests.names import API_VERSION
from tonnage.sizing.checks import with_running_cache
from tonnage.sizing.options import Adapters, Speculation, are_counted
from tonnage.sizing.parallelism.draft import rank_of
from tonnage.sizing.request import Flags, SizingRequest, ask, look_up
from tonnage.sizing.serving.flags import replica_under
from tonnage.sizing.serving.replica import Replica
from tonnage.sizing.split import Parallelism
from tonnage.sizing.step_time.model import step_costs
from tonnage_lab.emulator.arguments import ENGINE_VERSION, Arguments


def _request(gpu: str, arguments: Arguments, acceptance_rate: float) -> SizingRequest:
    """Return the request that these arguments answer."""
    manifest = {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": "emulator"},
        "spec": {
            "model": {
                "id": arguments.model,
                "weights": arguments.quantization or "auto",
            },
            "hardware": {"gpu": gpu},
            "contextLength": arguments.max_model_len,
            "scaling": {"maxReplicas": 1},
            "engine": {"version": ENGINE_VERSION},
        },
    }
    spec = parse_model_deployment(manifest).spec
    request = ask(spec, look_up(spec, {gpu: find_gpu(gpu, built_in_gpus())}))
    given = {"--kv-cache-dtype": arguments.kv_cache_dtype}
    request = with_running_cache(request, "auto", given)
    has_adapters = arguments.max_loras and are_counted(request.shape)
    adapters = Adapters(number=arguments.max_loras, rank=arguments.max_lora_rank)
    return replace(
        request,
        flags=flags(arguments),
        speculation=speculation(arguments, acceptance_rate),
        adapters=adapters if has_adapters else None,
    )


def flags(arguments: Arguments) -> Flags:
    """Return the capacity flags among the arguments."""
    return Flags(
        max_num_seqs=arguments.max_num_seqs,
        max_num_batched_tokens=arguments.max_num_batched_tokens,
        gpu_memory_utilization=arguments.gpu_memory_utilization,
        parallelism=Parallelism(
            tensor=arguments.tensor_parallel_size,
            pipeline=arguments.pipeline_parallel_size,
            data=arguments.data_parallel_size,
            context=arguments.decode_context_parallel_size,
        ),
    )


def speculation(arguments: Arguments, acceptance_rate: float) -> Speculation | None:
    """Return how tokens are drafted; any method but draft layers of the checkpoint as n-grams."""
    given = arguments.speculation
    if given is None:
        return None
    return Speculation(
        method="mtp" if given.method == "mtp" else "ngram",
        num_draft_tokens=given.num_tokens,
        acceptance_rate=acceptance_rate,
    )


def _replica(request: SizingRequest, arguments: Arguments) -> Replica:
    chosen = flags(arguments)
    return replica_under(request, rank_of(request, chosen.parallelism), chosen)


def formula_costs(
    step: Mapping[str, Any], arguments: Arguments, *, acceptance_rate: float = 0.0
) -> StepCosts:
    """Return the cost of a step of all data-parallel ranks, by ``sizing.step_time``."""
    constants = {name: value for name, value in step.items() if name != "gpu"}
    request = _request(step["gpu"], arguments, acceptance_rate)
    model = replace(
        _replica(request, arguments).model, constants=replace(request.speed, **constants)
    )
    return step_costs(
        model,
        max_num_seqs=arguments.max_num_seqs,
        max_batched_tokens=arguments.max_num_batched_tokens,
    )


def formula_kv_tokens(
    step: Mapping[str, Any], arguments: Arguments, *, acceptance_rate: float = 0.0
) -> int:
    """Return the KV tokens of one data-parallel rank that the memory arithmetic gives."""
    request = _request(step["gpu"], arguments, acceptance_rate)
    replica = _replica(request, arguments)
    held = replica.requests_reserved(request.context_tokens) / arguments.data_parallel_size
    return int(held * request.context_tokens)
