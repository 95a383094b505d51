"""Hidden constants in the product's own formula: the same physics, other figures.

The truth file's ``step`` then reads ``{"gpu": "H200", "bandwidth_efficiency": 0.6, ...}``: every
constant of the step-time formula may be given, and those that are not stay at the prior.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tonnage.api.objects import parse_model_deployment
from tonnage.api.spec import KIND
from tonnage.catalog.gpu import built_in_gpus, find_gpu
from tonnage.engine import StepTime
from tonnage.lab.standin.arguments import Arguments
from tonnage.manifests.names import API_VERSION
from tonnage.sizing.plan import size_with
from tonnage.sizing.request import Flags, SizingRequest, ask, look_up
from tonnage.sizing.split import Parallelism
from tonnage.sizing.step_time.speeds import Speeds
from tonnage.sizing.step_time.step import Step, step_time

ENGINE_VERSION = "0.33"


def _request(gpu: str, arguments: Arguments) -> SizingRequest:
    """Return the request that these arguments answer."""
    kv_cache = "fp8" if arguments.kv_cache_dtype.startswith("fp8") else "bfloat16"
    manifest = {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": "standin"},
        "spec": {
            "model": {
                "id": arguments.model,
                "kvCache": kv_cache,
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
    return replace(request, flags=flags(arguments))


def flags(arguments: Arguments) -> Flags:
    """Return the capacity flags among the arguments."""
    return Flags(
        max_num_seqs=arguments.max_num_seqs,
        max_num_batched_tokens=arguments.max_num_batched_tokens or arguments.max_num_seqs,
        gpu_memory_utilization=arguments.gpu_memory_utilization,
        parallelism=Parallelism(
            tensor=arguments.tensor_parallel_size,
            pipeline=arguments.pipeline_parallel_size,
            data=arguments.data_parallel_size,
            context=arguments.decode_context_parallel_size,
        ),
    )


def formula_step(step: Mapping[str, Any], arguments: Arguments) -> StepTime:
    """Return the step time of one data-parallel rank, by ``sizing.step_time.step``."""
    constants = {name: value for name, value in step.items() if name != "gpu"}
    request = _request(step["gpu"], arguments)
    replica = size_with(request, flags(arguments).parallelism).replica
    speed = replace(request.speed, **constants)
    speeds: Speeds = replica.speeds
    ranks = arguments.data_parallel_size

    def seconds(num_decoding: int, context_tokens: int, prefill_tokens: int) -> float:
        mean_context = context_tokens / num_decoding if num_decoding else 0.0
        work = Step(
            num_sequences=num_decoding * ranks,
            context_tokens=context_tokens * ranks,
            prefill_tokens=prefill_tokens * ranks,
            prefill_context_tokens=mean_context / 2,
        )
        return step_time(replica.shard, speeds, speed, work).total_s

    return seconds


def formula_kv_tokens(step: Mapping[str, Any], arguments: Arguments) -> int:
    """Return the KV tokens of one data-parallel rank that the memory arithmetic gives."""
    sizing = size_with(_request(step["gpu"], arguments), flags(arguments).parallelism)
    return int(sizing.kv_tokens / arguments.data_parallel_size)
