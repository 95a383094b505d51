"""The arguments of ``vllm serve``: from a plan to flags, and from live flags back to figures.

What makes an engine hand over the KV cache of prompts, or take it: vLLM's NixlConnector.

Which engine reads a prompt and which makes the answer a proxy in front says with each request, as
vLLM has one. llm-d's router asks for a sidecar in the pods, which have one container.
"""

import itertools
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from tonnage.api.spec import Spec
from tonnage.catalog.engine import EngineVersion
from tonnage.estimate.metrics import LATENCY_BOUNDS_S
from tonnage.manifests.names import Manifest
from tonnage.sizing.request import Flags
from tonnage.sizing.split import Parallelism
from tonnage.units import GIB, MIB, engine_integer, quantity

CONNECTOR: Final = "NixlConnector"
KV_ROLES: Final = {"prefill": "kv_producer", "decode": "kv_consumer"}


def role_environment(spec: Spec) -> list[Manifest]:
    """Return the variables: where the other role's engines find this one.

    Sources:
        [vllm-nixl-usage] VLLM_NIXL_SIDE_CHANNEL_HOST; its port is 5600 and more, by data-parallel
        rank, on each pod's own address.
    """
    if spec.role is None:
        return []
    # One value: without its ``apiVersion`` the live one would be another writer's.
    address = {"fieldRef": {"apiVersion": "v1", "fieldPath": "status.podIP"}}
    return [{"name": "VLLM_NIXL_SIDE_CHANNEL_HOST", "valueFrom": address}]


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


LARGEST_COUNT = 2_147_483_647
"""The engine counts in 32 bits."""
LARGEST_BYTES = 9_223_372_036_854_775_807
"""And memory in 64."""
MOST_READ_SEQS = 16_384
"""Of a data-parallel rank: four times what is ever planned. Sizing has a table of their costs."""
MOST_READ_SEQS_OF_REPLICA = 131_072
"""Of all ranks, of which the table is: 4 MiB."""
MASTER_PORT = 29501
"""Where the first process of a replica waits for those on further nodes: vLLM's own default."""
LEADER, RANK = "$(LWS_LEADER_ADDRESS)", "$(LWS_WORKER_INDEX)"
"""Variables that the controller of LeaderWorkerSets puts before all others of a container."""
MOST_READ_GPUS = 512
"""Of a replica: eight times what a spec may ask for. Each rank is an engine that is simulated."""
LIMITS: Final = (
    "a flag that decides capacity is no number that the engine starts with, or beyond what is "
    f"sized: at most {MOST_READ_SEQS:,} sequences on a data-parallel rank, "
    f"{MOST_READ_SEQS_OF_REPLICA:,} on all of them, and {MOST_READ_GPUS} GPUs a replica"
)
MAX_NUM_SEQS: Final = "--max-num-seqs"
MAX_NUM_BATCHED_TOKENS: Final = "--max-num-batched-tokens"
BATCH_FLAGS: Final = (MAX_NUM_SEQS, MAX_NUM_BATCHED_TOKENS)
Number = TypeVar("Number", int, float, int | None)
BUCKETS = {"time_to_first_token": LATENCY_BOUNDS_S, "inter_token_latency": LATENCY_BOUNDS_S}
"""By vLLM's bucket families; TPOT uses the inter-token family."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodFigures:
    """What a template needs beside the spec: all of it decided or looked up."""

    flags: Flags
    dtype: str
    """For ``--dtype``: bfloat16 or float16. A 16-bit cache has it too."""
    kv_cache_dtype: str
    """For ``--kv-cache-dtype``: auto, which means 16 bits, or a type by name."""
    constants: EngineVersion
    has_whole_experts: bool
    drain_s: int
    """That the engine gets to finish what it answers when it is told to stop."""
    quantization: str | None = None
    """For ``--quantization``: weights that the engine quantizes while it loads them."""
    num_nodes: int = 1
    """Over which a replica runs, a process with its GPUs on each."""
    host_cache_gib: int = 0
    """Of the host's memory for the cache of a replica, with all its ranks."""
    weights_bytes: float = 0.0
    """Of the whole model: the start-up budget grows with it."""
    product_labels: tuple[str, ...] = ()
    annotate_scrape: bool = False
    """No PodMonitor there: tell Prometheus by annotation."""


def engine_arguments(spec: Spec, figures: PodFigures, *, is_worker: bool = False) -> list[str]:
    """Return the arguments after ``vllm serve``. Every flag that decides capacity is explicit.

    ``is_worker``: of a process on a further node, which answers no requests.
    """
    words = [spec.model.id]
    for flag, value in _written_flags(spec, figures, is_worker=is_worker).items():
        if value is not None and value is not False:
            words += [flag] if value is True else [flag, str(value)]
    return [*words, *(spec.engine.args if spec.engine else ())]


def _written_flags(spec: Spec, figures: PodFigures, *, is_worker: bool) -> dict[str, object]:
    """Return the value of each flag; True: it takes none; False or None: it is left out.

    With a role, a cache that cannot be taken is computed anew: ``fail``, which is the default since
    0.17, would end each request whose prefill replica is gone, and all of them while one role has
    rolled and the other has not.
    A host cache is of all tensor-parallel ranks, and each data-parallel rank takes as much.
    Over several nodes, tensor ranks are within one, others across: the kubelet fills in what
    LeaderWorkerSet puts before all other variables, and of data-parallel ranks the engine makes
    their number on this node, the first of them and the leader's address from the same flags.

    Sources:
        [vllm-source] of ``--kv-transfer-config``: config/kv_transfer.py.
        ``--kv-offloading-*``: config/cache.py, v1/kv_offload/cpu/shared_offload_region.py (in
        /dev/shm, all of it from the start on).
        ``--max-num-queued-*``: v1/engine/async_llm.py check_admission.
        Nodes: config/parallel.py, engine/arg_utils.py inferred_data_parallel_rank,
        entrypoints/cli/serve.py run_headless.
        [lws-source] pkg/utils/pod/pod_utils.go AddLWSVariables.
        [vllm-nixl-usage]
    """
    flags, split, engine = figures.flags, figures.flags.parallelism, spec.engine
    adapters, drafts = spec.model.adapters, engine.speculative if engine else None
    is_named = any("served-model" in each for each in (engine.args if engine else ()))
    has_nodes = figures.num_nodes > 1
    rank_gib = figures.host_cache_gib / split.data
    transfer = spec.role and {
        "kv_connector": CONNECTOR,
        "kv_role": KV_ROLES[spec.role],
        "kv_load_failure_policy": "recompute",
    }
    speculative = drafts and {"method": drafts.method, "num_speculative_tokens": drafts.tokens}
    return {
        "--served-model-name": None if is_named else spec.model.id,
        "--revision": spec.model.revision,
        "--dtype": figures.dtype,
        "--quantization": figures.quantization,
        "--max-model-len": flags.context_tokens or spec.context_length,
        MAX_NUM_SEQS: flags.max_num_seqs,
        MAX_NUM_BATCHED_TOKENS: flags.max_num_batched_tokens,
        "--gpu-memory-utilization": f"{flags.gpu_memory_utilization:g}",
        "--kv-cache-memory-bytes": flags.kv_cache_bytes,
        "--num-gpu-blocks-override": flags.num_gpu_blocks,
        "--kv-cache-dtype": figures.kv_cache_dtype,
        "--tensor-parallel-size": split.tensor,
        "--pipeline-parallel-size": split.pipeline if split.pipeline > 1 else None,
        "--decode-context-parallel-size": split.context if split.context > 1 else None,
        "--data-parallel-size": split.data if split.data > 1 else None,
        "--enable-expert-parallel": figures.has_whole_experts,
        "--max-num-queued-reqs": flags.max_num_queued_reqs,
        "--max-num-queued-tokens": flags.max_num_queued_tokens,
        "--kv-transfer-config": transfer and _json(transfer),
        "--kv-offloading-size": f"{rank_gib:.9g}" if rank_gib else None,
        "--kv-offloading-backend": "native" if rank_gib else None,
        "--speculative-config": speculative and _json(speculative),
        "--nnodes": figures.num_nodes if has_nodes else None,
        "--node-rank": (RANK if is_worker else "0") if has_nodes else None,
        "--master-addr": LEADER if has_nodes else None,
        "--master-port": MASTER_PORT if has_nodes else None,
        "--headless": has_nodes and is_worker,
        "--enable-lora": adapters is not None,
        "--max-loras": adapters and adapters.number,
        "--max-lora-rank": adapters and adapters.rank,
        "--shutdown-timeout": figures.drain_s if figures.constants.shutdown_timeout else None,
        "--custom-histogram-buckets": (
            _json(BUCKETS) if figures.constants.custom_histogram_buckets else None
        ),
    }


def _json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


def read_flags(arguments: Sequence[str], *, default_utilization: float) -> Flags | None:
    """Read the capacity flags of a live container; None when one that must be known is absent.

    A flag that is there and cannot be read, such as one that stands for a variable, is as unknown
    as an absent one.
    """
    try:
        return flags_in(engine_flags(arguments), default_utilization=default_utilization)
    except (KeyError, ValueError):
        return None


def flags_in(found: Mapping[str, str], *, default_utilization: float) -> Flags:
    """Return the flags that decide capacity, of those that ``engine_flags`` found.

    Raises:
        KeyError: one that sizes a step is absent.
        ValueError: the engine does not read one, or it is beyond what is sized; it is named.

    Sources:
        [vllm-source] engine/arg_utils.py get_kwargs: which flags take k, m, g, t, K, M, G, T.
    """
    for name in BATCH_FLAGS:
        found[name]  # a KeyError names it
    flags = Flags(
        max_num_seqs=_number(found, MAX_NUM_SEQS, int, 0),
        max_num_batched_tokens=_number(found, MAX_NUM_BATCHED_TOKENS, engine_integer, 0),
        gpu_memory_utilization=_number(
            found, "--gpu-memory-utilization", float, default_utilization
        ),
        parallelism=Parallelism(
            tensor=_number(found, "--tensor-parallel-size", int, 1),
            pipeline=_number(found, "--pipeline-parallel-size", int, 1),
            data=_number(found, "--data-parallel-size", int, 1),
            context=_number(found, "--decode-context-parallel-size", int, 1),
        ),
        # The engine takes 0 bytes as not given: v1/worker/gpu_worker.py.
        kv_cache_bytes=_number(found, "--kv-cache-memory-bytes", engine_integer, 0) or None,
        num_gpu_blocks=_number(found, "--num-gpu-blocks-override", int, None),
        max_num_queued_reqs=_number(found, "--max-num-queued-reqs", int, None),
        max_num_queued_tokens=_number(found, "--max-num-queued-tokens", engine_integer, None),
    )
    if not is_runnable(flags):
        raise ValueError(LIMITS)
    return flags


def _number(
    found: Mapping[str, str], name: str, read: Callable[[str], Number], absent: Number
) -> Number:
    given = found.get(name)
    try:
        return absent if given is None else read(given)
    except ValueError as error:
        raise ValueError(f"{name} {given!r:.90} is no number that vLLM reads") from error


def as_told(flags: Flags) -> Flags:
    """Return flags as arguments tell them, which round one of them and do not say why."""
    share = float(f"{flags.gpu_memory_utilization:g}")
    return replace(flags, gpu_memory_utilization=share, context_tokens=None, is_cured=False)


def is_runnable(flags: Flags) -> bool:
    """Tell whether an engine would start with these figures, which somebody may have edited.

    And whether sizing can answer for them in bounded time and memory.
    """
    split, seqs = flags.parallelism, flags.max_num_seqs
    sizes = (split.tensor, split.pipeline, split.data, split.context)
    bounded = (
        *((count, LARGEST_COUNT) for count in (flags.max_num_batched_tokens, *sizes)),
        (seqs, MOST_READ_SEQS),
        (seqs * split.data, MOST_READ_SEQS_OF_REPLICA),
        (max(split.num_gpus, split.context), MOST_READ_GPUS),
        (flags.kv_cache_bytes, LARGEST_BYTES),
        (flags.num_gpu_blocks, LARGEST_COUNT),
        (flags.max_num_queued_reqs, math.inf),
        (flags.max_num_queued_tokens, math.inf),
        (flags.context_tokens, math.inf),
    )
    are_bounded = all(number is None or 1 <= number <= most for number, most in bounded)
    return are_bounded and 0 < flags.gpu_memory_utilization <= 1


def argument_pairs(arguments: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield each flag with its value; one that takes none with the word that follows it."""
    for here, following in itertools.zip_longest(arguments, arguments[1:], fillvalue=""):
        flag, equals, value = here.partition("=")
        if flag.startswith("-"):
            # The engine takes both spellings.
            yield flag.replace("_", "-"), value if equals else following


SHORT: Final = {
    "-tp": "--tensor-parallel-size",
    "-pp": "--pipeline-parallel-size",
    "-dp": "--data-parallel-size",
    "-dcp": "--decode-context-parallel-size",
    "-sc": "--speculative-config",
    "-ep": "--enable-expert-parallel",
}
ABBREVIATED: Final = {
    "--max-model-len": "--max-mo",
    MAX_NUM_SEQS: "--max-num-se",
    MAX_NUM_BATCHED_TOKENS: "--max-num-b",
    "--gpu-memory-utilization": "--gp",
    "--tensor-parallel-size": "--te",
    "--pipeline-parallel-size": "--pi",
    "--data-parallel-size": "--data-parallel-size",
    "--decode-context-parallel-size": "--dec",
    "--kv-cache-memory-bytes": "--kv-cache-mem",
    "--num-gpu-blocks-override": "--num-g",
    "--max-num-queued-reqs": "--max-num-queued-r",
    "--max-num-queued-tokens": "--max-num-queued-t",
    "--speculative-config": "--specu",
}
"""Flags that are read, and how short vLLM 0.11 to 0.33 take each for it: no other begins so."""


def engine_flags(arguments: Sequence[str]) -> dict[str, str]:
    """Return the value of each flag, the last of several, under its long name, as vLLM's parser.

    Sources:
        [vllm-source] utils/argparse_utils.py FlexibleArgumentParser, which takes abbreviations as
        argparse does; engine/arg_utils.py add_cli_args.

    >>> engine_flags(["--max_num_seqs=8", "-tp", "2", "--tensor-parallel", "4"])
    {'--max-num-seqs': '8', '--tensor-parallel-size': '4'}
    """
    return {_long(flag): value for flag, value in argument_pairs(arguments)}


def _long(flag: str) -> str:
    begins = (
        name for name, least in ABBREVIATED.items() if len(flag) >= len(least)
        and name.startswith(flag)
    )  # fmt: skip
    return SHORT.get(flag) or next(begins, flag)


def without_capacity_flags(arguments: Sequence[str]) -> tuple[str, ...]:
    """Return what else the arguments say, as ``flag=value`` texts."""
    pairs = (pair for pair in argument_pairs(arguments) if _long(pair[0]) not in CAPACITY_FLAGS)
    return tuple(f"{flag}={value}" for flag, value in pairs)


CAPACITY_FLAGS = frozenset({*SHORT, *ABBREVIATED, "--kv-cache-memory"}) - {
    "-sc", "-ep", "--speculative-config"
}  # fmt: skip
