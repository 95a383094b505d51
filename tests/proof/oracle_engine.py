"""Builds models with a release's own classes, on tensors without content, and says what they are.

Called with the folder of the release's sources, a JSON file of cases, and where the answers go, in
the environment of ``proof_engine.py`` and with its stand-ins. Of each case comes: the parameters by
their shapes, the rows that the cache of each layer has, as ``get_kv_cache_spec`` says them, or why
the model was not built. Nothing of Tonnage is imported, nothing is loaded, and no kernel runs.
"""

import contextlib
import importlib
import importlib.abc
import importlib.machinery
import json
import os
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

from proof_engine import (
    GPU,
    Operators,
    stand_in_for_host,
    stand_in_for_kernels,
    stand_in_for_platform,
    stand_in_for_triton,
)

H100 = {"name": "NVIDIA H100 80GB HBM3", "capability": [9, 0], "memory_bytes": 85_017_493_504,
        "count": 8}  # fmt: skip
OF_OTHERS = ("vision", "visual", "audio", "image", "vit", "tower", "multi_modal", "mm_",
             "aligner", "resampler", "qformer", "query_tokens", "language_projection", "vpm",
             "merger",
             "whisper", "vq_adaptor", "mlp_ar", "connector", "sound", "speech")  # fmt: skip
"""In the names of parameters that the text part of a multimodal model does not have."""


class Operator:
    """A kernel that is there, and is not called."""

    def __call__(self, *given, **named):
        return True

    def __getattr__(self, name):
        return self


class Missing(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds packages of kernels for GPUs: modules that have any name."""

    NAMES = ("flashinfer", "cutlass", "deep_gemm", "flash_mla", "quack", "fla", "cuda.tile")

    def find_spec(self, name, path, target=None):
        if name.split(".")[0] in self.NAMES or name in self.NAMES:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        module.__file__ = "(a kernel)"
        module.__version__ = "99.0"
        module.__getattr__ = self.anything

    @staticmethod
    def anything(name):
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (Anything,), {})


class AnyName(type):
    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (Anything,), {})

    def __getitem__(cls, item):
        return cls

    def __or__(cls, other):
        return cls

    __ror__ = __or__


class Anything(metaclass=AnyName):
    """A class or a decorator: given a function it is that function."""

    def __new__(cls, *given, **named):
        if len(given) == 1 and not named and callable(given[0]):
            return given[0]
        return super().__new__(cls)

    def __init__(self, *given, **named):
        pass

    def __call__(self, *given, **named):
        return given[0] if len(given) == 1 and callable(given[0]) else self


def content(name, args):
    """Return ones where somebody wants to know what is in a tensor."""
    import numpy

    if name == "tolist":
        return numpy.ones(args[0].shape).tolist()
    if name in ("item", "__float__", "__int__", "__index__"):
        return 1
    if name == "__bool__":
        return True
    if name == "cpu":
        return args[0]
    raise NotImplementedError(f"{name} of a tensor without content")


def on_meta():
    """Return a mode in which every tensor has a shape and no content, whatever device it asks."""
    import torch
    from torch.overrides import TorchFunctionMode

    class OnMeta(TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            kwargs = dict(kwargs or {})
            if kwargs.get("device") is not None:
                kwargs["device"] = "meta"
            kwargs.pop("pin_memory", None)
            if function is torch.Tensor.to or function is torch.Tensor.cuda:
                args = args[:1] + tuple(each for each in args[1:] if isinstance(each, torch.dtype))
            try:
                return function(*args, **kwargs)
            except (NotImplementedError, RuntimeError) as error:
                if "meta" not in str(error).lower():
                    raise
                return content(function.__name__, args)

    return OnMeta()


def stand_in_for_gpu() -> None:
    import torch

    properties = SimpleNamespace(
        name=H100["name"], total_memory=H100["memory_bytes"], major=9, minor=0,
        multi_processor_count=132, warp_size=32, shared_memory_per_block_optin=232_448,
        L2_cache_size=50 << 20, gcnArchName="", regs_per_multiprocessor=65_536,
        max_threads_per_multi_processor=2048, uuid="0",
    )  # fmt: skip

    class Nothing:
        """A stream or an event that nothing waits for."""

        cuda_stream = 0

        def __init__(self, *given, **named):
            pass

        def __getattr__(self, name):
            return lambda *given, **named: None

    torch.cuda.get_device_properties = lambda device=None: properties
    torch.cuda.get_device_capability = lambda device=None: tuple(H100["capability"])
    torch.cuda.get_device_name = lambda device=None: H100["name"]
    torch.cuda.mem_get_info = lambda device=None: (H100["memory_bytes"],) * 2
    torch.cuda.current_device = lambda: 0
    for name in ("Stream", "Event"):
        setattr(torch.cuda, name, type(name, (Nothing,), {}))
    for name in ("current_stream", "synchronize", "set_device", "empty_cache"):
        setattr(torch.cuda, name, lambda *given, **named: Nothing())
    torch.library.register_fake = lambda *given, **named: lambda function: function
    torch.compile = lambda function=None, **named: function or (lambda each: each)


def stand_in_for_remote_code() -> None:
    """Read a file whose class only its own repository has as keys and values."""
    from transformers import AutoConfig, PretrainedConfig

    of_class = AutoConfig.from_pretrained.__func__

    def from_pretrained(cls, folder, *given, **named):
        try:
            return of_class(cls, folder, *given, **named)
        except (ValueError, KeyError):
            values = json.loads((Path(folder) / "config.json").read_text())
            read = PretrainedConfig.from_dict(values)
            read.__class__ = type(
                "Plain", (PretrainedConfig,), {"model_type": values["model_type"]}
            )
            return (read, {}) if named.get("return_unused_kwargs") else read

    AutoConfig.from_pretrained = classmethod(from_pretrained)


def start_alone() -> None:
    from vllm.distributed import parallel_state

    parallel_state.init_distributed_environment(
        world_size=1, rank=0, local_rank=0, backend="gloo",
        distributed_init_method=f"file://{tempfile.mkdtemp()}/one",
    )  # fmt: skip
    parallel_state.ensure_model_parallel_initialized(1, 1)


def build(folder: Path, backend: str | None) -> dict:
    import torch
    from vllm.config import set_current_vllm_config
    from vllm.engine.arg_utils import EngineArgs
    from vllm.model_executor.model_loader.utils import initialize_model
    from vllm.v1.worker.gpu.attn_utils import get_kv_cache_spec

    config = EngineArgs(
        model=str(folder), tokenizer=str(folder), skip_tokenizer_init=True, load_format="dummy",
        enforce_eager=True, dtype="bfloat16", enable_prefix_caching=False,
        attention_backend=backend,
    ).create_engine_config()  # fmt: skip
    torch.set_default_dtype(torch.bfloat16)
    with set_current_vllm_config(config):
        start_alone()
    with on_meta(), torch.device("meta"):
        model = initialize_model(config)
        specs = get_kv_cache_spec(config)
    layers = config.compilation_config.static_forward_context
    shared = {name for name, layer in layers.items()
              if getattr(layer, "kv_sharing_target_layer_name", None)}  # fmt: skip
    own = {name: spec for name, spec in specs.items() if name not in shared}
    return {**counted(model), "caches": caches(own)}


def counted(model) -> dict:
    """Return the elements of all parameters, each once, and those of the text part by place."""
    total, by_place = 0, Counter()
    for name, parameter in model.named_parameters():
        if any(each in part for part in name.lower().split(".") for each in OF_OTHERS):
            continue
        total += parameter.numel()
        by_place[".".join("*" if each.isdecimal() else each for each in name.split("."))] += (
            parameter.numel()
        )
    return {"parameters": total, "by place": dict(by_place)}


def caches(specs: dict) -> list:
    """Return kinds of cache, each with its layers and what one of them takes."""
    kinds = Counter()
    for spec in specs.values():
        kind = {"kind": type(spec).__name__, "block": spec.block_size,
                "bytes": spec.page_size_bytes}  # fmt: skip
        for key in ("sliding_window", "attention_chunk_size"):
            if getattr(spec, key, None) is not None:
                kind["tokens"] = getattr(spec, key)
        kinds[json.dumps(kind)] += 1
    return [{**json.loads(kind), "layers": number} for kind, number in kinds.items()]


def import_what_was_imported(folder: Path) -> None:
    """Import in this process what a fork imported, so that the next has it already."""
    for name in json.loads((folder / "modules.json").read_text()):
        if name not in sys.modules:
            with contextlib.suppress(BaseException):
                importlib.import_module(name)


def in_fork(config: dict, backend: str | None, folder: Path, trace: bool) -> dict:
    answer = folder / "answer.json"
    answer.unlink(missing_ok=True)
    child = os.fork()
    if not child:
        words = os.open("/dev/stderr" if trace else os.devnull, os.O_WRONLY)
        os.dup2(words, 1)
        os.dup2(words, 2)
        try:
            model = folder / "model"
            model.mkdir(exist_ok=True)
            (model / "config.json").write_text(json.dumps(config))
            found = build(model, backend)
        except BaseException as error:
            if trace:
                traceback.print_exc()
            last = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{Path(last.filename).name}:{last.lineno}"
            words = str(error).replace(str(folder), "")
            found = {"not built": f"{type(error).__name__} at {where}: {words}"[:400]}
        answer.write_text(json.dumps(found))
        (folder / "modules.json").write_text(json.dumps(list(sys.modules)))
        os._exit(0)
    os.waitpid(child, 0)
    return json.loads(answer.read_text()) if answer.exists() else {"not built": "the process ended"}


def asked(by_hand: dict, changes: dict) -> dict:
    """Return a config.json for each architecture of the release that writes text.

    It is one that was written for it, or what transformers' class says without arguments, changed
    where the release's own class needs it.
    """
    from transformers.models.auto import modeling_auto
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING
    from vllm.model_executor.models import registry
    from vllm.transformers_utils.config import _CONFIG_REGISTRY

    kinds = {}
    for mapping in (modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
                    modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES):  # fmt: skip
        for kind, names in mapping.items():
            for name in [names] if isinstance(names, str) else names:
                if name.lower().startswith(kind.replace("_", "")) or name not in kinds:
                    kinds[name] = kind
    names = [*registry._TEXT_GENERATION_MODELS, *registry._TRANSFORMERS_SUPPORTED_MODELS,
             *registry._MULTIMODAL_MODELS]  # fmt: skip
    found = {}
    for name in names:
        if name in by_hand:
            found[name] = by_hand[name]
            continue
        kind = changes.get(name, {}).get("model_type") or kinds.get(name)
        try:
            known = CONFIG_MAPPING[kind] if kind in CONFIG_MAPPING else _CONFIG_REGISTRY[kind]
            text = known(architectures=[name]).to_json_string(use_diff=True)
            found[name] = {**json.loads(text), **changes.get(name, {})}
        except Exception as error:
            words = f"{type(error).__name__}: {error}" if kind else "no class and no config.json"
            is_other = not kind and name in registry._MULTIMODAL_MODELS
            found[name] = {
                "not made": "of images or sound, and no class here" if is_other else words
            }
    return found


def main() -> None:
    source, given, answers = (Path(each) for each in sys.argv[1:4])
    os.environ.update(HF_HUB_OFFLINE="1", VLLM_NO_USAGE_STATS="1", USER="vllm", LOGNAME="vllm",
                      VLLM_LOGGING_LEVEL="ERROR", VLLM_TARGET_DEVICE="cuda")  # fmt: skip
    sys.path.insert(0, str(source))
    prepare()
    asks = json.loads(given.read_text())
    cases = asked(asks["by hand"], asks["changes"])
    if asks.get("only"):
        cases = {name: cases[name] for name in asks["only"] if name in cases}
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, config in cases.items():
            begun = time.monotonic()
            if "architectures" not in config:
                found[name] = {"not built": config["not made"]}
                continue
            backend = asks["backends"].get(name)
            said = in_fork(config, backend, Path(folder), "--trace" in sys.argv)
            found[name] = {"config": config, **said}
            import_what_was_imported(Path(folder))
            words = said.get("not built") or said["parameters"]
            print(round(time.monotonic() - begun, 1), name, words, flush=True)
            answers.write_text(json.dumps(found))


def prepare() -> None:
    """Put the stand-ins where they belong, before the release looks."""
    stand_in_for_kernels()
    Operators.__getattr__ = lambda self, name: Operator()
    sys.meta_path.append(Missing())
    GPU.update(H100)
    stand_in_for_host()
    stand_in_for_gpu()
    stand_in_for_platform()
    stand_in_for_triton()
    for name in ("set_allocator", "next_power_of_2"):
        setattr(sys.modules["vllm.triton_utils"].triton, name, lambda *given, **named: 1)
    stand_in_for_remote_code()
    from vllm.model_executor.models import registry
    from vllm.utils import deep_gemm, import_utils

    registry._run_in_subprocess = lambda call: call()
    import_utils.has_deep_gemm = deep_gemm.has_deep_gemm = lambda: True
    importlib.import_module("vllm.model_executor.models.llama")
    importlib.import_module("vllm.model_executor.models.deepseek_v2")
    with contextlib.suppress(ImportError):
        from vllm.v1.worker import workspace

        workspace.init_workspace_manager("meta")
    import torch

    torch.set_num_threads(1)


if __name__ == "__main__":
    main()
