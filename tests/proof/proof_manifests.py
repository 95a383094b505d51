"""The manifests of the proof, and what is rendered for each of them."""

import copy
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from tonnage.api.objects import InvalidSpecError, ModelDeployment, parse_model_deployment
from tonnage.catalog.gpu import built_in_gpus
from tonnage.catalog.models import built_in_config
from tonnage.cli.read.references import References
from tonnage.cli.results.planning import PlanContext, Planned, Refused, answer
from tonnage.cli.results.rendering import servable, template_manifest
from tonnage.manifests.arguments import LEADER, RANK, read_flags
from tonnage.manifests.children import Site
from tonnage.manifests.names import WORKLOADS, template_in
from tonnage.sizing.split import Parallelism

Config = dict[str, Any]

COUNTED: Final = (
    "--max-num-seqs", "--max-num-batched-tokens", "--gpu-memory-utilization",
    "--kv-cache-memory-bytes", "--num-gpu-blocks-override", "--max-num-queued-reqs",
    "--max-num-queued-tokens",
    "--shutdown-timeout",
)  # fmt: skip
"""Flags whose number is counted: it changes with every constant, and no engine refuses it."""

LLAMA: Final = "meta-llama/Llama-3.1-8B-Instruct"
LLAMA_2: Final = "meta-llama/Llama-2-7b-chat-hf"
DEEPSEEK: Final = "deepseek-ai/DeepSeek-V3"
FP8_CACHE: Final = "nvidia/Llama-3.1-8B-Instruct-FP8"
ADAPTER_FILE: Final = '--lora-modules={"name":"a","path":"b/c"}'
ARGS: Final = (
    "--async-scheduling", "--no-async-scheduling", "--chat-template-content-format=openai",
    "--enable-auto-tool-choice --tool-call-parser=llama3_json", "--enable-expert-parallel",
    "--enable-mfu-metrics", "--enable-prefix-caching", "--no-enable-prefix-caching",
    "--enforce-eager", "--generation-config=vllm", '--limit-mm-per-prompt={"image":1}',
    "--load-format=safetensors",
    ADAPTER_FILE, "--performance-mode=balanced",
    "--reasoning-parser=deepseek_r1", "--safetensors-load-strategy=lazy", "--seed=7",
    "--served-model-name=chat", "--tokenizer-mode=auto",
)  # fmt: skip
"""Each flag that may be added, with a value that every release of it takes."""
AWQ: Final[Config] = {"quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemm",
                     "zero_point": True}  # fmt: skip
NVFP4: Final[Config] = {"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16,
                       "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head"]}  # fmt: skip


def _from(model: str, **others: Any) -> Config:
    """Return the built-in configuration with other keys: a checkpoint that does not ship."""
    return {**built_in_config(model), **others}


@dataclass(frozen=True, kw_only=True)
class Case:
    """A manifest, and what of the plan is not left to the planner."""

    spec: Config
    config: Config | None = None
    """Of a model that the catalogue lacks."""
    split: Parallelism | None = None
    """In place of the planner's."""
    node: int = 0
    """Of a replica over several: 0 is the leader's."""

    @property
    def model(self) -> str:
        return str(self.spec["model"]["id"])

    @property
    def gpu(self) -> str:
        return str(self.spec["hardware"]["gpu"])

    @property
    def model_config(self) -> Config:
        return self.config or built_in_config(self.model)


def _case(  # noqa: PLR0913  (what a manifest may say)
    model: str,
    gpu: str = "H100",
    gpus: int = 1,
    *,
    config: Config | None = None,
    split: Parallelism | None = None,
    node: int = 0,
    of_model: Config | None = None,
    engine: Config | None = None,
    **parts: Any,
) -> Case:
    tokens = {"promptTokens": {"mean": 500}, "outputTokens": {"mean": 100}}
    spec = {
        "model": {"id": model, **(of_model or {})},
        "hardware": {"gpu": gpu, "gpusPerReplica": gpus},
        "contextLength": 4096,
        "demand": {"requestsPerSecond": 1, **tokens},
        "scaling": {"maxReplicas": 4},
        "engine": engine or {},
        **parts,
    }
    return Case(spec=spec, config=config, split=split or Parallelism(tensor=gpus), node=node)


def _drafts(method: str, tokens: int) -> Config:
    return {"speculative": {"method": method, "tokens": tokens, "acceptedPercent": 60}}


def _of_role(gpu: str, **sizes: int) -> Config:
    return {"gpu": gpu, "parallelism": sizes}


EVERY_POD_FIELD: Final[Config] = {
    "nodeSelector": {"pool": "gpu"},
    "tolerations": [{"key": "gpu", "operator": "Exists"}],
    "modelCacheClaim": "weights",
    "huggingFaceTokenSecret": {"name": "hub"},
    "apiKeySecret": {"name": "clients", "key": "key"},
    "cpu": "8", "memory": "64Gi", "cpuLimit": "9", "memoryLimit": "96Gi",
    "ephemeralStorage": "10Gi", "ephemeralStorageLimit": "20Gi", "sharedMemory": "4Gi",
    "serviceAccountName": "serving", "imagePullSecrets": [{"name": "mirror"}],
    "env": [{"name": "AWS_ACCESS_KEY_ID", "secretKeyRef": {"name": "store", "key": "id"}}],
    "fsGroupChangePolicy": "OnRootMismatch", "priorityClassName": "high",
}  # fmt: skip
CASES: Final[dict[str, Case]] = {
    "bf16": _case(LLAMA),
    "bf16, cache in fp8": _case(LLAMA, of_model={"kvCache": "fp8"}),
    "bf16, cache in bfloat16": _case(LLAMA, of_model={"kvCache": "bfloat16"}),
    "bf16, cache in float16": _case(LLAMA, of_model={"kvCache": "float16"}),
    "bf16, fp8 on load": _case(LLAMA, of_model={"weights": "fp8"}),
    "bf16 on a T4": _case("meta-llama/Llama-3.2-3B-Instruct", "T4"),
    "bf16 on an L4": _case(LLAMA, "L4", of_model={"kvCache": "fp8"}),
    "fp16": _case(LLAMA_2),
    "fp16, cache in float16": _case(LLAMA_2, of_model={"kvCache": "float16"}),
    "fp16, cache in bfloat16": _case(LLAMA_2, of_model={"kvCache": "bfloat16"}),
    "fp16 on a T4": _case(LLAMA_2, "T4", 2, split=Parallelism(pipeline=2)),
    "AWQ, fp16": _case("hugging-quants/Meta-Llama-3.1-70B-Instruct-AWQ-INT4"),
    "AWQ on a T4": _case(
        "Qwen/Qwen2.5-7B-Instruct-AWQ", "T4",
        config=_from("Qwen/Qwen2.5-7B-Instruct", torch_dtype="float16", quantization_config=AWQ),
    ),
    "GPTQ in the order of activations": _case("TheBloke/Mistral-7B-Instruct-v0.2-GPTQ"),
    "GPTQ": _case(
        "TheBloke/Llama-2-7B-Chat-GPTQ", config=_from(
            LLAMA_2,
            quantization_config={
                **built_in_config("TheBloke/Mistral-7B-Instruct-v0.2-GPTQ")["quantization_config"],
                "desc_act": False,
            },
        ),
    ),
    "fp8 per channel": _case(
        "RedHatAI/Llama-3.3-70B-Instruct-FP8-dynamic", gpus=2, split=Parallelism(pipeline=2)
    ),
    "fp8 with a cache in fp8": _case(FP8_CACHE),
    "fp8 with a cache in fp8, bfloat16 asked": _case(FP8_CACHE, of_model={"kvCache": "bfloat16"}),
    "int8": _case(
        "neuralmagic/Meta-Llama-3.1-70B-Instruct-quantized.w8a8", gpus=2,
        split=Parallelism(pipeline=2),
    ),
    "mxfp4": _case("openai/gpt-oss-20b"),
    "nvfp4": _case(
        "nvidia/Llama-3.1-8B-Instruct-FP4", "B200", config=_from(LLAMA, quantization_config=NVFP4)
    ),
    "MLA": _case("deepseek-ai/DeepSeek-V2-Lite-Chat"),
    "MLA, fp8 blocks": _case(DEEPSEEK, "H200", 8),
    "MLA, data parallel": _case(DEEPSEEK, "H200", 8, split=Parallelism(data=8)),
    "MLA, decode context parallel": _case(
        DEEPSEEK, "H200", 8, split=Parallelism(tensor=8, context=8)
    ),
    "MLA, nvfp4": _case("nvidia/DeepSeek-V3.1-NVFP4", "B200", 8),
    "MLA, sparse": _case("deepseek-ai/DeepSeek-V3.2", "H200", 8),
    "MLA, sparse, bfloat16 asked": _case(
        "deepseek-ai/DeepSeek-V3.2", "H200", 8, of_model={"kvCache": "bfloat16"},
    ),
    "compressed attention": _case("deepseek-ai/DeepSeek-V4-Flash", "B200", 4),
    "hybrid, Qwen3-Next": _case("Qwen/Qwen3-Next-80B-A3B-Instruct", gpus=4),
    "hybrid, Qwen3.5": _case("Qwen/Qwen3.5-9B"),
    "hybrid, Mamba-2": _case("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", gpus=2),
    "windows, vision": _case("google/gemma-3-12b-it"),
    "experts": _case("Qwen/Qwen3-30B-A3B", gpus=2),
    "experts, in parallel": _case(
        "Qwen/Qwen3-30B-A3B", gpus=2, engine={"args": ["--enable-expert-parallel"]}
    ),
    "LoRA": _case(LLAMA, of_model={"adapters": {"number": 4, "rank": 16}}),
    "LoRA, largest rank": _case(LLAMA, of_model={"adapters": {"number": 1, "rank": 512}}),
    "LoRA, loaded at the start": _case(
        LLAMA, of_model={"adapters": {"number": 1, "rank": 16}}, engine={"args": [ADAPTER_FILE]}
    ),
    "mtp": _case(DEEPSEEK, "H200", 8, engine=_drafts("mtp", 1)),
    "mtp, hybrid": _case("Qwen/Qwen3.5-9B", engine=_drafts("mtp", 2)),
    "n-gram": _case(LLAMA, engine=_drafts("ngram", 3)),
    "tensor parallel": _case(
        "meta-llama/Llama-3.3-70B-Instruct", gpus=4, split=Parallelism(tensor=2, pipeline=2)
    ),
    "pipeline parallel": _case(
        "meta-llama/Llama-3.3-70B-Instruct", gpus=4, split=Parallelism(tensor=2, pipeline=2)
    ),
    **{
        f"over two nodes, {what}": _case(
            model, gpu, 16, split=Parallelism(tensor=8, pipeline=2), node=node
        )
        for what, model, gpu, node in (
            ("MLA, leader", "deepseek-ai/DeepSeek-R1", "H100", 0),
            ("MLA, worker", "deepseek-ai/DeepSeek-R1", "H100", 1),
            ("bf16, leader", "meta-llama/Llama-3.1-405B-Instruct", "H100", 0),
            ("bf16, worker", "meta-llama/Llama-3.1-405B-Instruct", "H100", 1),
        )
    },
    **{
        f"over two nodes, MLA, data parallel, {what}": _case(
            "deepseek-ai/DeepSeek-R1", "H100", 16, split=Parallelism(data=16), node=node,
            hardware={"gpu": "H100", "gpusPerReplica": 16, "nodeLink": "400Gb/s"},
        )
        for node, what in enumerate(("leader", "worker"))
    },
    "every field": _case(
        LLAMA, of_model={"revision": "main"}, pods=EVERY_POD_FIELD,
        engine={"maxNumBatchedTokens": 4096},
    ),
    "refusals": _case(
        LLAMA, slo={"timeToFirstToken": {"p95": "2s"}}, engine={"admission": "inTime"}
    ),
    "cache in host memory": _case(LLAMA, of_model={"kvOffload": {"gib": 64}}),
    "cache in host memory, MLA, data parallel": _case(
        DEEPSEEK, "H200", 8, split=Parallelism(data=8), of_model={"kvOffload": {"gib": 100}},
    ),
    "prefill": _case(LLAMA, engine={"role": "prefill"}, hardware=_of_role("H100", tensor=1)),
    "decode": _case(LLAMA, engine={"role": "decode"}, hardware=_of_role("H100", tensor=1)),
    "decode, MLA, data parallel": _case(
        DEEPSEEK, "H200", 8, split=Parallelism(data=8), engine={"role": "decode"},
        hardware=_of_role("H200", tensor=1, data=8),
    ),
    "another user": _case(LLAMA, pods={"user": {"id": 1000, "group": 1000}}),
    "the platform's user": _case(LLAMA, pods={"user": {}}),
    **{f"engine.args: {each}": _case(LLAMA, engine={"args": each.split()}) for each in ARGS},
}  # fmt: skip


BESIDE: Final = ("--max-num-seqs", "64", "--max-num-batched-tokens", "2048")
"""What a scale target's container must say for any of it to be read."""
SAID: Final = {
    "max_num_seqs": ("--max-num-seqs 96", "--max-num-seqs=96", "--max_num_seqs 96"),
    "max_num_batched_tokens": ("--max-num-batched-tokens 4096", "--max-num-batched-tokens=4096",
                               "--max-num-batched-tokens 4k", "--max-num-batched-tokens 4K"),
    "gpu_memory_utilization": ("--gpu-memory-utilization 0.85", "--gpu_memory_utilization=0.85"),
    "tensor_parallel_size": ("--tensor-parallel-size 2", "--tensor_parallel_size=2", "-tp 2",
                             "-tp=2"),
    "pipeline_parallel_size": ("--pipeline-parallel-size 2", "-pp 2"),
    "data_parallel_size": ("--data-parallel-size 2", "-dp 2"),
    "decode_context_parallel_size": ("--decode-context-parallel-size 2", "-dcp 2"),
    "kv_cache_memory_bytes": ("--kv-cache-memory-bytes 8589934592", "--kv-cache-memory-bytes 8G",
                              "--kv-cache-memory-bytes 8g", "--kv-cache-memory 8589934592"),
    "num_gpu_blocks_override": ("--num-gpu-blocks-override 512",),
}  # fmt: skip
"""What is read of a scale target's container, in the spellings that it is read in."""


def is_read(name: str, arguments: Sequence[str]) -> float | None:
    """Return what is read here for a name of the engine's; None: the flags are unknown then."""
    flags = read_flags(arguments, default_utilization=0.9)
    if flags is None:
        return None
    split = flags.parallelism
    found: dict[str, float | None] = {
        "max_num_seqs": flags.max_num_seqs,
        "max_num_batched_tokens": flags.max_num_batched_tokens,
        "gpu_memory_utilization": flags.gpu_memory_utilization,
        "tensor_parallel_size": split.tensor,
        "pipeline_parallel_size": split.pipeline,
        "data_parallel_size": split.data,
        "decode_context_parallel_size": split.context,
        "kv_cache_memory_bytes": flags.kv_cache_bytes,
        "num_gpu_blocks_override": flags.num_gpu_blocks,
    }
    return found[name]


def rendered(name: str, minor: str) -> Config:
    """Return what is rendered for a version: the container, or ``refused`` with our words."""
    return rendered_case(CASES[name], minor)


def rendered_case(case: Case, minor: str) -> Config:
    """Return the same of a case."""
    try:
        model = _deployment(case, minor)
    except InvalidSpecError as error:
        return {"refused": str(error)}
    config = json.dumps(case.config) if case.config else None
    found = answer(model, PlanContext(gpus=built_in_gpus()), References(config=config))
    if isinstance(found, Planned) and case.split:
        flags = replace(found.sizing.flags, parallelism=case.split)
        found = replace(found, sizing=replace(found.sizing, flags=flags))
    site = Site(has_pod_monitors=True, scrape_interval_s=15)
    found = servable(found, site)
    if isinstance(found, Refused):
        return {"refused": found.message}
    made = template_manifest(found, site)
    templates = list(WORKLOADS[made["kind"]].templates(template_in(made)))
    return _container(templates[min(case.node, len(templates) - 1)]["spec"], case.node)


def _deployment(case: Case, minor: str) -> ModelDeployment:
    spec = copy.deepcopy(case.spec)
    spec["engine"]["version"] = minor
    manifest = {
        "apiVersion": "tonnage.dev/v1alpha1",
        "kind": "ModelDeployment",
        "metadata": {"name": "proof", "namespace": "serving"},
        "spec": spec,
    }
    return parse_model_deployment(manifest)


def _container(pod: Config, node: int) -> Config:
    """Return a container, with the variables of LeaderWorkerSet expanded, as by the kubelet."""
    [container] = pod["containers"]
    variables = {LEADER: "proof-0.proof-0.serving", RANK: str(node)}
    security = pod["securityContext"]
    plain = {each["name"]: _value(each) for each in container["env"]}
    return {
        "image": container["image"].rpartition(":")[0],
        "command": container.get("command", []),
        "args": [variables.get(each, each) for each in container["args"]],
        "env": plain,
        "user": security.get("runAsUser"),
        "group": security.get("runAsGroup"),
    }


def _value(variable: Config) -> str:
    """Return a variable's value, or what it is read from when the pod starts."""
    of_pod = variable.get("valueFrom", {}).get("fieldRef")
    if of_pod:
        return f"({of_pod['fieldPath']})"
    return str(variable.get("value", "(a Secret)"))


def masked(arguments: Sequence[str]) -> list[str]:
    """Return the arguments without the numbers that are counted.

    >>> masked(["--max-num-seqs", "256", "--seed=7"])
    ['--max-num-seqs', '#', '--seed=7']
    """
    before = ["", *arguments]
    return [
        "#" if flag in COUNTED else value for flag, value in zip(before, arguments, strict=False)
    ]
