"""Runs a release's own parser and configuration checks on arguments, in a process of its own.

Called with the folder of the release's sources, a JSON file of cases, and where the answers go.
It runs in the environment of vLLM for CPU, which has PyTorch: the sources of the release stand in
front of the ones that are installed there. Nothing of Tonnage is imported.

What is not as in a pod is listed in STANDINS.
"""

import argparse
import contextlib
import importlib.abc
import importlib.machinery
import io
import json
import os
import sys
import tempfile
import time
import traceback
from pathlib import Path

STANDINS = {
    "vllm._C, vllm.vllm_flash_attn and their like": "compiled at installation: empty modules",
    "vllm.platforms.current_platform": "the release's own CUDA platform, with the GPU's name, "
    "memory, count and compute capability as constants",
    "psutil.virtual_memory": "2 TiB",
    "triton": "vLLM's own placeholder, as where there is no GPU, with a Config that has its fields",
    "vllm.model_executor.models.registry._run_in_subprocess": "classes of models are looked into "
    "in the same process",
    "the model": "a folder with its config.json in place of its name on the hub",
    "tokenizers, weights": "there are none: nothing is loaded",
}
REFUSALS = ("ValueError", "ValidationError", "NotImplementedError", "ArgumentError", "TypeError",
            "AssertionError", "KeyError")  # fmt: skip
OF_STANDINS = ("failed to be inspected", "tokenizer class to instantiate")
"""What a release says where kernels or a tokenizer are missed."""


class Compiled(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds what is compiled at installation and is not in the sources: modules without content."""

    NAMES = ("vllm._", "vllm.vllm_flash_attn", "vllm.cumem_allocator", "vllm.third_party.")

    def find_spec(self, name, path, target=None):
        if name.startswith(self.NAMES):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        module.__file__ = "(compiled)"
        module.__getattr__ = _nothing


def _nothing(name):
    """Return a class in place of a class and a function in place of a function, by its name."""
    if name.startswith("__"):
        raise AttributeError(name)
    return type(name, (), {}) if name[0].isupper() else lambda *given, **named: None


class TritonConfig:
    """What ``triton.Config`` is where there is no Triton: the arguments that it was made with."""

    def __init__(self, kwargs=None, num_warps=4, num_stages=3, num_ctas=1, **others):
        self.kwargs = kwargs or {}
        self.num_warps, self.num_stages, self.num_ctas = num_warps, num_stages, num_ctas


def stand_in_for_triton() -> None:
    from vllm.triton_utils import importing, triton

    if not importing.HAS_TRITON:
        triton.Config = TritonConfig


class Operators:
    """What asks whether a kernel is there is answered yes; there are no others."""

    def __getattr__(self, name):
        if "supports" in name:
            return lambda *given: True
        raise AttributeError(name)


def stand_in_for_kernels() -> None:
    import torch

    sys.meta_path.append(Compiled())
    for name in ("_C", "_moe_C", "_C_cache_ops"):
        setattr(torch.ops, name, Operators())


GPU: dict = {}
"""Of the case. The platform is one object, for all that have taken it by its name."""


def stand_in_for_host() -> None:
    """Give the host 2 TiB: releases up to 0.11 hold their swap space against its memory."""
    import psutil

    there = psutil.virtual_memory()
    psutil.virtual_memory = lambda: there._replace(total=2 << 40, available=2 << 40)


def stand_in_for_platform() -> None:  # noqa: C901  (a method for each constant)
    import torch
    from vllm import platforms
    from vllm.platforms import cuda
    from vllm.platforms.interface import DeviceCapability

    class Gpu(cuda.CudaPlatformBase):
        @classmethod
        def get_device_capability(cls, device_id=0):
            return DeviceCapability(*GPU["capability"])

        @classmethod
        def get_device_name(cls, device_id=0):
            return GPU["name"]

        @classmethod
        def get_device_uuid(cls, device_id=0):
            return f"GPU-{device_id}"

        @classmethod
        def get_device_total_memory(cls, device_id=0):
            return int(GPU["memory_bytes"])

        @classmethod
        def device_count(cls):
            return GPU["count"]

        @classmethod
        def is_fully_connected(cls, physical_device_ids):
            return True

        @classmethod
        def log_warnings(cls):
            return None

        @classmethod
        def has_device_capability(cls, capability, device_id=0):
            wanted = capability if isinstance(capability, tuple) else divmod(capability, 10)
            return tuple(GPU["capability"]) >= tuple(wanted)

    platforms._current_platform = Gpu()
    torch.cuda.device_count = lambda: GPU["count"]

    for module in ("vllm.utils", "vllm.utils.torch_utils"):
        if hasattr(sys.modules.get(module), "cuda_device_count_stateless"):
            sys.modules[module].cuda_device_count_stateless = lambda: GPU["count"]


COMMAND_LINES = ("vllm.entrypoints.openai.cli_args", "vllm.entrypoints.launchers.cli_args",
                 "vllm.entrypoints.common.cli_args")  # fmt: skip
"""Where releases have the parser of ``vllm serve``."""


def imported(name: str):
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if not name.startswith(error.name):
            raise
        return None


def parse(arguments: list) -> argparse.Namespace:
    """Parse as ``vllm serve`` does: its command line first takes the model that is no flag."""
    lines = next(module for name in COMMAND_LINES if (module := imported(name)))
    try:
        from vllm.utils.argparse_utils import FlexibleArgumentParser
    except ImportError:
        from vllm.utils import FlexibleArgumentParser
    found = lines.make_arg_parser(FlexibleArgumentParser(prog="vllm serve")).parse_args(arguments)
    if getattr(found, "model_tag", None) is not None:
        found.model = found.model_tag
    lines.validate_parsed_serve_args(found)
    return found


def checked(arguments: list, wanted: str | None, parser_only: bool) -> dict:
    """Return how far the release takes these arguments: parsed, engine arguments, configuration.

    ``wanted``: what the parser found for this name is the answer, and nothing else is asked.
    """
    stage = "parser"
    words = io.StringIO()
    try:
        with contextlib.redirect_stderr(words):
            found = parse(arguments)
        if wanted:
            return {"stage": stage, "verdict": "taken", "value": getattr(found, wanted)}
        stage = "engine arguments"
        from vllm.engine.arg_utils import AsyncEngineArgs

        engine = AsyncEngineArgs.from_cli_args(found)
        stage = "configuration"
        if parser_only:
            return {"stage": stage, "verdict": "not run", "words": "the parser alone was asked"}
        from vllm.usage.usage_lib import UsageContext

        further = {"headless": True} if getattr(found, "headless", False) else {}
        config = engine.create_engine_config(UsageContext.OPENAI_API_SERVER, **further)
    except SystemExit:
        said = words.getvalue().rpartition("error: ")[2].strip()
        return {"stage": stage, "verdict": "refused", "words": said[:400]}
    except BaseException as error:
        kind = type(error).__name__
        is_own = kind in REFUSALS and not any(each in str(error) for each in OF_STANDINS)
        verdict = "refused" if is_own else "not run"
        last = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(last.filename).name}:{last.lineno}"
        if os.environ.get("PROOF_TRACE"):
            traceback.print_exc()
        return {"stage": stage, "verdict": verdict, "words": f"{kind} at {where}: {error}"[:600]}
    return {
        "stage": "all",
        "verdict": "taken",
        "model dtype": str(config.model_config.dtype).removeprefix("torch."),
        "cache dtype": str(config.cache_config.cache_dtype),
        "quantization": str(config.model_config.quantization),
    }


def run_in_fork(case: dict, folder: Path, parser_only: bool) -> dict:
    """Check one case in a child: what a release remembers of one board is not told to the next."""
    answer = folder / "answer.json"
    answer.unlink(missing_ok=True)
    child = os.fork()
    if not child:
        quiet = os.open(
            os.devnull if not os.environ.get("PROOF_TRACE") else "/dev/stderr", os.O_WRONLY
        )
        os.dup2(quiet, 1)
        os.dup2(quiet, 2)
        try:
            GPU.update(case["gpu"])
            model = folder / "model"
            model.mkdir(exist_ok=True)
            (model / "config.json").write_text(json.dumps(case["config"]))
            arguments = [str(model) if each == case["model"] and not number else each
                         for number, each in enumerate(case["args"])]  # fmt: skip
            answer.write_text(json.dumps(checked(arguments, case.get("wanted"), parser_only)))
            (folder / "modules.json").write_text(json.dumps(list(sys.modules)))
        except BaseException:
            answer.write_text(
                json.dumps(
                    {
                        "stage": "stand-ins",
                        "verdict": "not run",
                        "words": traceback.format_exc()[-600:],
                    }
                )
            )
        os._exit(0)
    os.waitpid(child, 0)
    return json.loads(answer.read_text()) if answer.exists() else {
        "stage": "process", "verdict": "not run", "words": "the process ended"}  # fmt: skip


def import_what_was_imported(folder: Path) -> None:
    """Import what a case imported of other packages, so that each further fork has it already."""
    for name in json.loads((folder / "modules.json").read_text()):
        if not name.startswith("vllm") and name not in sys.modules:
            with contextlib.suppress(BaseException):
                importlib.import_module(name)


def import_models(cases, known: dict) -> None:
    """Import the classes of the models once, for all forks."""
    for name in sorted({name for case in cases for name in case["config"]["architectures"]}):
        if name in known:
            with contextlib.suppress(Exception):
                importlib.import_module(known[name].module_name)


def import_quantization() -> None:
    from vllm.model_executor.layers.quantization import get_quantization_config

    for method in ("awq", "awq_marlin", "gptq", "gptq_marlin", "fp8", "modelopt",
                   "compressed-tensors", "mxfp4"):  # fmt: skip
        with contextlib.suppress(Exception):
            get_quantization_config(method)


def main() -> None:
    source, cases, answers = (Path(each) for each in sys.argv[1:4])
    parser_only = "--parser-only" in sys.argv
    os.environ.update(HF_HUB_OFFLINE="1", VLLM_NO_USAGE_STATS="1", USER="vllm", LOGNAME="vllm",
                      VLLM_LOGGING_LEVEL="ERROR", VLLM_TARGET_DEVICE="cuda")  # fmt: skip
    sys.path.insert(0, str(source))
    stand_in_for_kernels()
    asked = json.loads(cases.read_text())
    GPU.update(next(iter(asked.values()))["gpu"])
    stand_in_for_host()
    stand_in_for_platform()
    stand_in_for_triton()
    from vllm.model_executor.models import registry

    registry._run_in_subprocess = lambda call: call()
    parse([next(iter(asked.values()))["model"]])
    if not parser_only:
        import_models(asked.values(), registry.ModelRegistry.models)
        import_quantization()
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, case in asked.items():
            begun = time.monotonic()
            found[name] = run_in_fork(case, Path(folder), parser_only)
            import_what_was_imported(Path(folder))
            print(name, round(time.monotonic() - begun, 1), found[name]["verdict"], flush=True)
    answers.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
