"""The command line of ``vllm serve`` 0.33, as far as the emulator acts on it.

Flags of ``vllm serve`` that a spec may hold or the operator writes, without effect here.

An unknown flag is an error, as in vLLM. Flags with an effect are in ``arguments.py``.
"""

import argparse
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Final

from tonnage.catalog.cache_types import names_of
from tonnage.engine.limits import EngineLimits
from tonnage.units import GB, GIB, KB, KIB, MB, MIB
from tonnage_lab.emulator.buckets import parse_custom

BOOLEANS: Final = (
    "async-scheduling", "disable-uvicorn-access-log", "enable-auto-tool-choice",
    "enforce-eager", "trust-remote-code",
)  # fmt: skip
"""Each with a ``--no-`` form."""

VALUED: Final = (
    "chat-template-content-format",
    "generation-config",
    "hf-overrides",
    "kv-cache-memory-bytes",
    "limit-mm-per-prompt",
    "load-format",
    "lora-modules",
    "performance-mode",
    "reasoning-parser",
    "revision",
    "safetensors-load-strategy",
    "seed",
    "tokenizer-mode",
    "tool-call-parser",
)
"""Each with one value or several."""


DTYPES: Final = ("auto", "bfloat16", "float", "float16", "float32", "half")
ENGINE_VERSION: Final = "0.33"
KV_ROLES: Final = ("kv_producer", "kv_consumer", "kv_both")
_SUFFIX: Final = {"": 1, "k": KB, "m": MB, "g": GB, "K": KIB, "M": MIB, "G": GIB}
_HUMAN_INTEGER: Final = re.compile(r"(?P<amount>[0-9]+(\.[0-9]+)?)(?P<suffix>[kmgKMG]?)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafting:
    """What ``--speculative-config`` says."""

    method: str
    num_tokens: int
    """Drafted for each sequence in each step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arguments:
    """What was asked for. None means that the flag was not given."""

    model: str
    served_model_names: tuple[str, ...]
    host: str | None = None
    port: int = 8000
    max_model_len: int | None = None
    max_num_seqs: int = 1 << 10
    """That run at once on each data-parallel rank."""
    max_num_batched_tokens: int = 8 << 10
    """vLLM's default on GPUs with 70 GiB or more."""
    max_num_queued_reqs: int | None = None
    max_num_queued_tokens: int | None = None
    gpu_memory_utilization: float = 0.92
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    data_parallel_size: int = 1
    decode_context_parallel_size: int = 1
    quantization: str | None = None
    kv_cache_dtype: str = "auto"
    block_size: int | None = None
    num_gpu_blocks_override: int | None = None
    enable_prefix_caching: bool = True
    enable_mfu_metrics: bool = False
    shutdown_timeout_s: float = 0.0
    max_loras: int = 0
    """0: without ``--enable-lora``."""
    max_lora_rank: int = 16
    speculation: Drafting | None = None
    kv_role: str = ""
    """Of ``--kv-transfer-config``: whether KV caches of prompts are kept for others, or taken."""
    host_cache_gib: float = 0.0
    """Of the host's memory, for the cache of a data-parallel rank."""
    custom_buckets: Mapping[str, Sequence[float]] = field(default_factory=dict)
    num_nodes: int = 1
    node_rank: int = 0
    master_address: str = "127.0.0.1"
    master_port: int = 29501
    is_headless: bool = False
    """A process on a further node, which answers no requests."""

    @property
    def keeps_caches(self) -> bool:
        """KV caches of prompts, for engines that make the answers."""
        return self.kv_role in {"kv_producer", "kv_both"}

    @property
    def takes_caches(self) -> bool:
        return self.kv_role in {"kv_consumer", "kv_both"}

    @property
    def num_draft_tokens(self) -> int:
        return self.speculation.num_tokens if self.speculation else 0


def human_integer(text: str) -> int:
    """Read an integer with an optional suffix: ``k`` is 1,000 and ``K`` 1,024.

    >>> human_integer("32768"), human_integer("32K"), human_integer("25.6k")
    (32768, 32768, 25600)
    """
    match = _HUMAN_INTEGER.fullmatch(text)
    if not match or ("." in match["amount"] and not match["suffix"].islower()):
        raise argparse.ArgumentTypeError(f"{text!r} is not an integer like 8192, 8K or 25.6k")
    return round(float(match["amount"]) * _SUFFIX[match["suffix"]])


def positive(text: str) -> int:
    """Read an integer of at least 1."""
    value = human_integer(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} must be at least 1")
    return value


def share(text: str) -> float:
    """Read a fraction above 0 and up to 1."""
    value = float(text)
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(f"{text} must be above 0 and at most 1")
    return value


def _custom_buckets(text: str) -> dict[str, tuple[float, ...]]:
    try:
        return parse_custom(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _json(text: str) -> Any:
    """Read JSON; what is none is None, as nothing that is asked for is."""
    try:
        return json.loads(text)
    except ValueError:
        return None


def _drafting(text: str) -> Drafting:
    match _json(text):
        case {"method": str(method), "num_speculative_tokens": int(tokens)} if tokens > 0:
            return Drafting(method=method, num_tokens=tokens)
    raise argparse.ArgumentTypeError(
        f"expected an object with method and num_speculative_tokens, not {text}"
    )


def _kv_role(text: str) -> str:
    match _json(text):
        case {"kv_connector": str(), "kv_role": str(role)} if role in KV_ROLES:
            return role
    raise argparse.ArgumentTypeError(
        f"expected an object with kv_connector and kv_role, not {text}"
    )


def parser() -> argparse.ArgumentParser:
    """Return the parser; like vLLM's it exits with 2 on an unknown flag.

    What it reads has the names of ``Arguments``, and nothing for a flag that was not given.
    """
    root = argparse.ArgumentParser(prog="vllm", allow_abbrev=False)
    commands = root.add_subparsers(dest="command", required=True)
    absent = argparse.SUPPRESS
    serve = commands.add_parser("serve", allow_abbrev=False, argument_default=absent)
    serve.add_argument("model_tag", nargs="?")
    serve.add_argument("--model")
    serve.add_argument("--served-model-name", nargs="+")
    _add_server_flags(serve)
    _add_capacity_flags(serve)
    _add_node_flags(serve)
    _add_model_flags(serve)
    for name in BOOLEANS:
        _add_boolean(serve, name)
    for name in VALUED:
        serve.add_argument(f"--{name}", nargs="*")
    return root


def _add_server_flags(serve: argparse.ArgumentParser) -> None:
    serve.add_argument("--host")
    serve.add_argument("--port", type=int)
    serve.add_argument("--shutdown-timeout", type=float, dest="shutdown_timeout_s")
    serve.add_argument("--custom-histogram-buckets", type=_custom_buckets, dest="custom_buckets")
    _add_boolean(serve, "enable-mfu-metrics")
    serve.add_argument("--max-num-queued-reqs", type=int)
    serve.add_argument("--max-num-queued-tokens", type=human_integer)


def _add_capacity_flags(serve: argparse.ArgumentParser) -> None:
    serve.add_argument("--max-model-len", type=positive)
    serve.add_argument("--max-num-seqs", type=positive)
    serve.add_argument("--max-num-batched-tokens", type=positive)
    serve.add_argument("--gpu-memory-utilization", type=share)
    serve.add_argument("--tensor-parallel-size", "-tp", type=positive)
    serve.add_argument("--pipeline-parallel-size", "-pp", type=positive)
    serve.add_argument("--data-parallel-size", "-dp", type=positive)
    serve.add_argument("--decode-context-parallel-size", "-dcp", type=positive)
    serve.add_argument("--block-size", type=positive)
    serve.add_argument("--num-gpu-blocks-override", type=positive)
    serve.add_argument("--scheduling-policy", choices=("fcfs", "priority"))


def _add_node_flags(serve: argparse.ArgumentParser) -> None:
    serve.add_argument("--nnodes", "-n", type=positive, dest="num_nodes")
    serve.add_argument("--node-rank", "-r", type=int)
    serve.add_argument("--master-addr", dest="master_address")
    serve.add_argument("--master-port", type=int)
    serve.add_argument("--headless", action="store_true", dest="is_headless")


def _add_model_flags(serve: argparse.ArgumentParser) -> None:
    serve.add_argument("--dtype", choices=DTYPES)
    serve.add_argument("--kv-cache-dtype", choices=names_of(ENGINE_VERSION))
    serve.add_argument("--quantization", "-q")
    serve.add_argument("--speculative-config", "-sc", type=_drafting, dest="speculation")
    serve.add_argument("--kv-transfer-config", type=_kv_role, dest="kv_role")
    serve.add_argument("--kv-offloading-size", type=float, dest="host_cache_gib")
    serve.add_argument("--kv-offloading-backend", choices=("native",))
    _add_boolean(serve, "enable-lora")
    serve.add_argument("--max-loras", type=positive)
    serve.add_argument("--max-lora-rank", type=positive)
    _add_boolean(serve, "enable-expert-parallel", "-ep")
    _add_boolean(serve, "enable-prefix-caching")
    _add_boolean(serve, "allow-deprecated-quantization")


def _add_boolean(serve: argparse.ArgumentParser, name: str, *short: str) -> None:
    serve.add_argument(f"--{name}", *short, action=argparse.BooleanOptionalAction)


def parse(argv: Sequence[str]) -> Arguments:
    """Read ``serve MODEL ...``; prints the error and exits with 2, as vLLM does."""
    root = parser()
    read = vars(root.parse_args([_with_dashes(each) for each in argv]))
    model = read.get("model_tag") or read.get("model")
    if not model:
        root.error("a model is needed: vllm serve MODEL")
    known = {each.name for each in fields(Arguments)}
    made = {
        "model": model,
        "served_model_names": tuple(read.get("served_model_name", (model,))),
        "max_loras": read.get("max_loras", 1) if read.get("enable_lora") else 0,
    }
    return Arguments(**{name: value for name, value in read.items() if name in known} | made)


def _with_dashes(argument: str) -> str:
    """Write the name of a long flag as vLLM does: ``--max_num_seqs`` is ``--max-num-seqs``."""
    if not argument.startswith("--"):
        return argument
    name, equals, value = argument.partition("=")
    return name.replace("_", "-") + equals + value


def cache_config(
    arguments: Arguments, limits: EngineLimits, *, num_gpu_blocks: int, engine: int
) -> dict[str, str]:
    """Return all labels of one engine.

    ``num_gpu_blocks`` counts the block that vLLM keeps for itself, as the real label does.
    """
    size_tokens = num_gpu_blocks * limits.block_size
    known: dict[str, object] = {
        "block_size": limits.block_size,
        "effective_attention_block_size": limits.block_size,
        "user_specified_block_size": arguments.block_size is not None,
        "cache_dtype": arguments.kv_cache_dtype,
        "enable_prefix_caching": arguments.enable_prefix_caching,
        "engine": engine,
        "gpu_memory_utilization": arguments.gpu_memory_utilization,
        "kv_cache_max_concurrency": size_tokens / limits.max_model_len,
        "kv_cache_size_tokens": size_tokens,
        "num_gpu_blocks": num_gpu_blocks,
        "kv_offloading_size": arguments.host_cache_gib or None,
        "num_gpu_blocks_override": arguments.num_gpu_blocks_override,
    }
    return {name: str(value) for name, value in (FIXED | known).items()}


FIXED: dict[str, object] = {
    "_block_size_resolved": True,
    "cache_hit_alignment_tokens": None,
    "enable_mamba_shared_prefix_checkpoint": False,
    "hash_block_size": None,
    "is_attention_free": False,
    "kv_cache_dtype_skip_layers": [],
    "kv_cache_layout": None,
    "kv_cache_memory_bytes": None,
    "kv_offloading_backend": "native",
    "kv_sharing_fast_prefill": False,
    "mamba_block_size": None,
    "mamba_cache_dtype": "auto",
    "mamba_cache_mode": "none",
    "mamba_page_size_padded": None,
    "mamba_ssm_cache_dtype": "float32",
    "num_cpu_blocks": None,
    "prefix_cache_retention_interval": 0,
    "prefix_caching_hash_algo": "sha256",
    "prefix_match_unit": None,
    "replayssm_buffer_len": 16,
    "skip_page_size_padded": None,
    "sliding_window": None,
    "swa_bounded_replay": True,
    "use_kda_recoverssm": False,
    "use_replayssm": False,
}
"""Fields that nothing here changes, at the values a dense model shows."""
