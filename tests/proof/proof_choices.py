"""Asks a release which kernels it takes for a format on a board, in a process of its own.

Called with the folder of the release's sources, capabilities such as ``8.0,9.0``, and where the
answers go. The release's own quantization classes are given a layer, and choose. It runs as
``proof_engine`` does, whose stand-ins it takes; besides them:

- FlashInfer, DeepGEMM and Triton's kernels are said to be there, as in the image.
- What csrc says of a capability (``cutlass_scaled_mm_supports_*``) is said here.
- A layer of experts is its configuration alone: no weights are made.
"""

import contextlib
import dataclasses
import enum
import importlib
import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import proof_engine
from proof_engine import GPU

FOUND = ("has_deep_gemm", "has_triton_kernels", "has_tilelang", "has_cutedsl", "has_triton")
FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic"}


def _packed(bits, kind, strategy, **further):
    return {"num_bits": bits, "type": kind, "strategy": strategy, "symmetric": True,
            "dynamic": False, **further}  # fmt: skip


def _compressed(form, weights, inputs):
    group = {"targets": ["Linear"], "weights": weights, "input_activations": inputs}
    return {"quant_method": "compressed-tensors", "format": form, "ignore": [],
            "config_groups": {"group_0": group}}  # fmt: skip


FORMATS = {
    "fp8": ("fp8", FP8),
    "fp8-block": ("fp8", FP8 | {"weight_block_size": [128, 128]}),
    "int8": ("compressed-tensors", _compressed(
        "int-quantized", _packed(8, "int", "channel"),
        _packed(8, "int", "token") | {"dynamic": True},
    )),
    "int4": ("compressed-tensors", _compressed(
        "pack-quantized", _packed(4, "int", "group", group_size=128), None
    )),
    "mxfp4": ("mxfp4", {"quant_method": "mxfp4"}),
    "mxfp4-fp8": ("deepseek_v4_fp8", FP8 | {"weight_block_size": [128, 128]}),
    "mxfp4-fp4": ("compressed-tensors", _compressed(
        "mxfp4-pack-quantized", _packed(4, "float", "group", group_size=32), None
    )),
    "nvfp4": ("modelopt_fp4", {"quant_method": "modelopt", "quant_algo": "NVFP4", "quantization": {
        "quant_algo": "NVFP4", "kv_cache_quant_algo": None, "group_size": 16, "exclude_modules": []
    }}),
}  # fmt: skip
"""By name: quant_method, and the quantization of a checkpoint.

mxfp4 of GPT-OSS, whose activations stay in 16 bits; of DeepSeek V4, that asks for 8; and of
compressed-tensors, of which releases make 4 where a board has such products.
"""
MODEL_TYPES = {"mxfp4": "gpt_oss", "mxfp4-fp8": "deepseek_v4"}
DENSE = [name for name in FORMATS if not name.startswith("mxfp4")]
"""Formats that are asked of plain matrices too."""


CAPABILITIES = {
    "cutlass_scaled_mm_supports_fp8": (89, 999), "cutlass_scaled_mm_supports_block_fp8": (90, 999),
    "cutlass_scaled_mm_supports_fp4": (100, 999), "cutlass_group_gemm_supported": (90, 120),
    "cutlass_sparse_scaled_mm_supported": (90, 100), "mxfp4_experts_quant_supported": (100, 120),
}  # fmt: skip
"""From which on and below which csrc says that a kernel supports a board."""


class Operators:
    """Compiled kernels: which capability they support is what csrc says; others do nothing."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        if name in CAPABILITIES:
            low, high = CAPABILITIES[name]
            return lambda capability: low <= capability < high
        return lambda *given, **named: "support" in name


def stand_in() -> None:
    """Make all that is compiled importable, and say that the image's packages are there."""
    import torch

    proof_engine.Compiled.NAMES += ("flashinfer", "deep_gemm", "triton_kernels", "tilelang")
    proof_engine.Operators = Operators
    proof_engine.stand_in_for_kernels()
    proof_engine.stand_in_for_host()
    proof_engine.stand_in_for_platform()
    proof_engine.stand_in_for_triton()
    torch.version.cuda = "13.0"
    torch.library.register_fake = lambda name, function=None, **named: function or (lambda it: it)
    platform = type(sys.modules["vllm.platforms"]._current_platform)

    def is_one(cls, capability, device_id=0):
        wanted = capability if isinstance(capability, tuple) else divmod(capability, 10)
        return tuple(GPU["capability"]) == tuple(wanted)

    def is_of_family(cls, capability, device_id=0):
        return GPU["capability"][0] == capability // 10

    platform.is_device_capability = classmethod(is_one)
    platform.is_device_capability_family = classmethod(is_of_family)
    _say_what_is_there()


def _say_what_is_there() -> None:
    flashinfer = importlib.import_module("vllm.utils.flashinfer")
    for name in dir(flashinfer):
        if name.startswith("has_"):
            setattr(flashinfer, name, lambda *given, **named: True)
    for module in ("vllm.utils", "vllm.utils.import_utils"):
        with contextlib.suppress(ModuleNotFoundError):
            for name in set(FOUND) & set(dir(importlib.import_module(module))):
                setattr(sys.modules[module], name, lambda *given, **named: True)
    states = importlib.import_module("vllm.distributed.parallel_state")
    alone = SimpleNamespace(rank_in_group=0, world_size=1, rank=0, local_rank=0, ranks=[0],
                            device_group=None, cpu_group=None, device="cpu")  # fmt: skip
    for name in ("_TP", "_DP", "_EP", "_PP", "_PCP", "_DCP", "_WORLD", "_EPLB"):
        if hasattr(states, name):
            setattr(states, name, alone)


def quantization(name):
    from vllm.model_executor.layers.quantization import get_quantization_config

    method, said = FORMATS[name]
    if method == "mxfp4":
        with contextlib.suppress(ValueError):
            get_quantization_config("gpt_oss_mxfp4")
            method = "gpt_oss_mxfp4"
    found = get_quantization_config(method).from_config(said)
    found.packed_modules_mapping = {}
    return found


def words_of(value, seen, depth=0):
    """Yield what an object and its parts say of kernels: names of classes, flags, enumerations."""
    if id(value) in seen or depth > 3:
        return
    seen.add(id(value))
    for name, each in (getattr(value, "__dict__", None) or {}).items():
        if name in {"quant_config", "moe", "moe_config", "config", "vllm_config", "layer"}:
            continue
        if isinstance(each, enum.Enum | type):
            yield f"{name}={each.name if isinstance(each, enum.Enum) else each.__name__}"
        elif isinstance(each, bool | str) and ("marlin" in name or "backend" in name):
            yield f"{name}={each}"
        elif type(each).__module__.startswith("vllm"):
            yield type(each).__name__
            if name not in {"fallback", "base"}:
                yield from words_of(each, seen, depth + 1)


def dense(name):
    import torch
    from vllm.model_executor.layers.linear import ReplicatedLinear

    layer = ReplicatedLinear(
        4096, 4096, bias=False, params_dtype=torch.get_default_dtype(),
        quant_config=quantization(name), prefix="model.layers.0.mlp.down_proj", disable_tp=True,
    )  # fmt: skip
    scheme = getattr(layer, "scheme", None)
    return [type(layer.quant_method).__name__, *words_of(layer.quant_method, set()),
            *words_of(scheme, set())]  # fmt: skip


def _filled(kind, given):
    """Return a dataclass with what is given, and the least of every other field."""
    values = {}
    for each in dataclasses.fields(kind):
        is_needed = each.default is each.default_factory is dataclasses.MISSING
        if each.init and each.name in given:
            values[each.name] = given[each.name]
        elif each.init and is_needed:
            kind_of = str(each.type)
            values[each.name] = False if "bool" in kind_of else (
                1 if each.name.endswith("_size") else 0 if "int" in kind_of else None
            )  # fmt: skip
    return kind(**values)


def experts(name):
    import torch
    from vllm.model_executor.layers import fused_moe
    from vllm.model_executor.layers.fused_moe import config

    is_gpt_oss = name == "mxfp4"
    activation = "swigluoai" if is_gpt_oss else "silu"
    with contextlib.suppress(ModuleNotFoundError):
        kinds = importlib.import_module("vllm.model_executor.layers.fused_moe.activation")
        activation = kinds.MoEActivation(activation)
    routing = getattr(config, "RoutingMethodType", None)
    split = _filled(config.FusedMoEParallelConfig,
                    {"all2all_backend": "allgather_reducescatter"})  # fmt: skip
    known = _filled(config.FusedMoEConfig, {
        "num_experts": 64, "experts_per_token": 8, "hidden_dim": 4096, "intermediate_size": 2048,
        "intermediate_size_per_partition": 2048, "num_local_experts": 64, "num_logical_experts": 64,
        "activation": activation, "device": "cuda", "moe_parallel_config": split,
        "routing_method": routing and routing.Renormalize, "in_dtype": torch.get_default_dtype(),
        "has_bias": is_gpt_oss, "is_act_and_mul": True, "max_num_tokens": 256,
    })  # fmt: skip
    with contextlib.suppress(ModuleNotFoundError):
        fused_moe = importlib.import_module("vllm.model_executor.layers.fused_moe.routed_experts")
    kind = getattr(fused_moe, "RoutedExperts", None) or fused_moe.FusedMoE
    layer = object.__new__(kind)
    torch.nn.Module.__init__(layer)
    for key, value in {
        "moe_config": known, "activation": activation, "moe_parallel_config": split,
        "ckpt_gate_proj_name": "gate_proj", "ckpt_down_proj_name": "down_proj",
        "ckpt_up_proj_name": "up_proj", "layer_name": "model.layers.0.mlp.experts",
    }.items():  # fmt: skip
        with contextlib.suppress(AttributeError):
            setattr(layer, key, value)
    method = quantization(name).get_quant_method(layer, "model.layers.0.mlp.experts")
    return [type(method).__name__, *words_of(method, set())]


def _is_narrow(name, said):
    """Tell whether products of mxfp4 are made of activations in 8 or 4 bits."""
    if "cutlassexpertsmxfp4" in said:
        return True  # whatever the backend of its base says
    if "humming" in said and name == "mxfp4-fp8":
        oracle = importlib.import_module("vllm.model_executor.layers.fused_moe.oracle.mxfp4")
        return hasattr(oracle, "_humming_input_schema")
    return "mxfp4_mxfp8" in said or "deepgemm" in said


def unpacking(name, words):
    """Name the kernels among these words that unpack weights; empty: products of the format."""
    said = " ".join(words).lower()
    if name.startswith("mxfp4") and _is_narrow(name, said):
        return ""
    if "use_marlin=true" in said and "humming" not in said:
        return "marlin"
    for kernels in ("machete", "humming", "exllama"):
        if kernels in said:
            return kernels
    if "marlin" in said.replace("use_marlin=false", ""):
        return "marlin"
    if name.startswith("mxfp4"):
        return "trtllm" if "mxfp4_bf16" in said else "triton"
    is_unpacked = name == "nvfp4" and "flashinfer" not in said and "cutlass" not in said
    return "marlin" if is_unpacked else ""


def answers(capability) -> dict:
    import torch

    GPU.update(name="NVIDIA", capability=capability, memory_bytes=85e9, count=1)
    stand_in()
    from vllm.config import VllmConfig, set_current_vllm_config

    torch.set_default_dtype(torch.bfloat16 if capability >= (8, 0) else torch.float16)
    found, config = {}, VllmConfig()
    with set_current_vllm_config(config):
        for name in FORMATS:
            kind = SimpleNamespace(model_type=MODEL_TYPES.get(name, "llama"), expert_dtype="fp4")
            config.model_config = SimpleNamespace(
                dtype=torch.get_default_dtype(), hf_config=kind, hf_text_config=kind, is_moe=True,
                quantization=None, quantization_config=None, enforce_eager=False,
            )  # fmt: skip
            for part, ask in (("dense", dense), ("experts", experts)):
                if part == "experts" or name in DENSE:
                    with contextlib.suppress(Exception):
                        found[f"{name} {part}"] = unpacking(name, ask(name))
    return found


def main() -> None:
    source, capabilities, answer = sys.argv[1:4]
    os.environ.update(HF_HUB_OFFLINE="1", VLLM_NO_USAGE_STATS="1", USER="vllm", LOGNAME="vllm",
                      VLLM_LOGGING_LEVEL="ERROR", VLLM_TARGET_DEVICE="cuda")  # fmt: skip
    sys.path.insert(0, source)
    for name in ("torch", "transformers", "torch._dynamo", "torch._inductor"):
        importlib.import_module(name)  # once, for all forks
    for text in capabilities.split(","):
        if not os.fork():
            major, minor = text.split(".")
            found = answers((int(major), int(minor)))
            Path(f"{answer}.{text}").write_text(json.dumps(found))
            os._exit(0)
        os.wait()
    parts = {text: json.loads(Path(f"{answer}.{text}").read_text()) for text in
             capabilities.split(",") if Path(f"{answer}.{text}").exists()}  # fmt: skip
    Path(answer).write_text(json.dumps(parts))


if __name__ == "__main__":
    main()
