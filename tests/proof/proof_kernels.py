"""What a release's kernels and attention backends take: read from its sources.

Every reader fails on a form that it does not know, so that a new release is read again by a person
before anything is said about it.
"""

import ast
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

HALVES: Final = ("float16", "bfloat16")
SCALAR_TYPES: Final = {"Float": "float32", "Half": "float16", "BFloat16": "bfloat16"}
MLA_KERNEL: Final = "concat_and_cache_mla"
DENSE_KERNEL: Final = "reshape_and_cache_flash"


class UnknownFormError(Exception):
    """A source does not look like any that was read before."""


@dataclass(frozen=True, kw_only=True)
class Kernels:
    """What writes the cache."""

    names: dict[str, str]
    """Name of a cache's type -> how it is written: ``as the model`` or ``fp8``."""
    source: str


def read_kernels(folder: Path) -> Kernels:
    """Read which names of ``--kv-cache-dtype`` the kernels that write the cache know.

    Up to 0.19 the names are compared in the macro; from 0.20 on a function maps them first.
    """
    [file] = folder.glob("csrc/**/nvidia/quant_utils.cuh")
    macro = _between(
        file.read_text(), "#define DISPATCH_BY_KV_CACHE_DTYPE", "Unsupported data type"
    )
    _check_users(folder)
    where = str(file.relative_to(folder))
    if "get_fp8_kv_cache_data_type" in macro:
        mapping = _mapped_names(folder)
        kinds = set(re.findall(r"KV_CACHE_DTYPE == vllm::Fp8KVCacheDataType::(\w+)", macro))
    else:
        mapping = _compared_names(macro)
        kinds = set(mapping.values())
    if kinds != {"kAuto", "kFp8E4M3", "kFp8E5M2"}:
        raise UnknownFormError(f"{where}: kinds of cache {sorted(kinds)}")
    _check_auto(macro, where)
    return Kernels(
        names={
            name: "as the model" if kind == "kAuto" else "fp8" for name, kind in mapping.items()
        },
        source=where,
    )


def _between(text: str, first: str, last: str) -> str:
    begin = text.find(first)
    end = text.find(last, begin)
    if begin < 0 or end < 0:
        raise UnknownFormError(f"{first} ... {last} is not there")
    return text[begin:end]


def _compared_names(macro: str) -> dict[str, str]:
    """Return name -> kind of ``KV_DTYPE == "name"`` and what stands below it."""
    branches = re.split(r"if \((?=KV_DTYPE == )", macro)[1:]
    found = {}
    for branch in branches:
        condition = branch[: branch.index(")")]
        kinds = set(re.findall(r"Fp8KVCacheDataType::(\w+)", branch))
        if len(kinds) != 1:
            raise UnknownFormError(f"branch {condition} has kinds {sorted(kinds)}")
        found.update(dict.fromkeys(re.findall(r'KV_DTYPE == "(\w+)"', condition), kinds.pop()))
    return found


def _mapped_names(folder: Path) -> dict[str, str]:
    """Return name -> kind of ``get_fp8_kv_cache_data_type``."""
    for file in sorted(folder.glob("csrc/**/*.cuh")):
        text = file.read_text()
        if re.search(r"inline Fp8KVCacheDataType get_fp8_kv_cache_data_type", text):
            body = _between(text, "inline Fp8KVCacheDataType get_fp8", "Unsupported")
            return {
                name: kind
                for names, kind in re.findall(r"if \((.*?)\) \{.*?return Fp8KVCacheDataType::(\w+)",
                                              body, re.DOTALL)
                for name in re.findall(r'dtype_str == "(\w+)"', names)
            }  # fmt: skip
    raise UnknownFormError("get_fp8_kv_cache_data_type is not there")


def _check_auto(macro: str, where: str) -> None:
    """Check that nothing is converted in a cache of 16 bits: it is written as the model has it."""
    pairs = set(re.findall(r"FN\((\w+), (\w+), vllm::Fp8KVCacheDataType::kAuto\)", macro))
    expected = {("float", "float"), ("uint16_t", "uint16_t"), ("__nv_bfloat16", "__nv_bfloat16")}
    if pairs != expected:
        raise UnknownFormError(f"{where}: kAuto writes {sorted(pairs)}")


def _check_users(folder: Path) -> None:
    """Check that the two kernels that write the cache go through the macro."""
    [file] = [each for each in folder.glob("csrc/**/cache_kernels.cu") if "rocm" not in each.parts]
    text = file.read_text()
    for kernel in (DENSE_KERNEL, MLA_KERNEL):
        body = re.search(rf"^void {kernel}\(.*?^}}", text, re.DOTALL | re.MULTILINE)
        if not body or "DISPATCH_BY_KV_CACHE_DTYPE" not in body[0]:
            raise UnknownFormError(f"{file.relative_to(folder)}: {kernel} does not dispatch")


def read_cache_types(folder: Path) -> list[str]:
    """Return the names that ``--kv-cache-dtype`` takes."""
    tree = ast.parse((folder / "vllm/config/cache.py").read_text())
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "CacheDType":
            return [str(ast.literal_eval(each)) for each in _literals(node.value)]
    raise UnknownFormError("vllm/config/cache.py: CacheDType is not there")


def _literals(node: ast.expr) -> list[ast.expr]:
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Tuple):
        return node.slice.elts
    raise UnknownFormError(f"{ast.unparse(node)} is no Literal")


def read_renamed(folder: Path) -> list[str]:
    """Return the architectures for which ``bfloat16`` is another word for ``auto``."""
    tree = ast.parse((folder / "vllm/model_executor/models/config.py").read_text())
    rule = "if cache_config.cache_dtype == 'bfloat16':\n    cache_config.cache_dtype = 'auto'"
    return [
        each.name
        for each in tree.body
        if isinstance(each, ast.ClassDef)
        and any(
            ast.unparse(part).startswith(rule)
            for part in ast.walk(each)
            if isinstance(part, ast.If)
        )
    ]


BACKENDS: Final = {
    "dense": ("flash_attn.py", "flashinfer.py", "triton_attn.py"),
    "mla": ("mla/flashattn_mla.py", "mla/flashmla.py", "mla/cutlass_mla.py",
            "mla/flashinfer_mla.py", "mla/triton_mla.py"),
    "sparse mla": ("mla/flashmla_sparse.py",),
}  # fmt: skip
"""Files below v1/attention/backends, of NVIDIA."""


def read_backends(folder: Path) -> dict[str, dict[str, list[str]]]:
    """Return kind of attention -> file -> types of cache that its backends say they take.

    Before 0.12 the platform says it, in code: there is no list, and no entry.
    """
    top = folder / "vllm/v1/attention/backends"
    return {
        kind: {name: types for name in names if (types := _supported(top / name))}
        for kind, names in BACKENDS.items()
    }


def _supported(file: Path) -> list[str]:
    if not file.is_file():
        return []
    found: list[str] = []
    for node in ast.walk(ast.parse(file.read_text())):
        is_list = isinstance(node, ast.AnnAssign) and (
            ast.unparse(node.target) == "supported_kv_cache_dtypes"
        )
        if is_list and isinstance(node.value, ast.List):
            found += [str(ast.literal_eval(each)) for each in node.value.elts]
        elif is_list:
            raise UnknownFormError(f"{file.name}: supported_kv_cache_dtypes is no list")
    return sorted(set(found))
