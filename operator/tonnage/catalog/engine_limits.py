"""What an engine version cannot run: on a board, in a format, of a kind. Each rule has a source."""

import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tonnage.catalog.cache_types import CACHE_TYPES
from tonnage.catalog.engine import at_version, parse_version
from tonnage.catalog.gpu import Gpu
from tonnage.catalog.shape import Assumption

DEPRECATED_FLAG = "--allow-deprecated-quantization"
LIMITS_FILE = Path(__file__).parent / "engines" / "limits.toml"


@cache
def _limits() -> Mapping[str, Any]:
    return tomllib.loads(LIMITS_FILE.read_text())


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """What a request would have an engine run."""

    engine_minor: str
    gpu: Gpu
    model_type: str
    weights_name: str
    """Of the format: a key of ``[weights]``, or one that has no limit."""
    cache: str = "bf16"
    """A key of ``CACHE_TYPES``."""
    quant_method: str = ""
    """Of the checkpoint."""
    orders_activations: bool = False
    """Of the checkpoint: groups of weights in the order of their activations."""
    checkpoint_cache: str = "bf16"
    """Which ``auto`` means, and is not asked for."""


def refusals(use: Use) -> Iterator[str]:
    """Yield why the engine would not start; a board of an unknown generation is not judged.

    Sources:
        [vllm-source] docs/getting_started/installation/gpu, layers/quantization,
        v1/attention/backends, config/model.py, models/registry.py.
    """
    yield from _of_kind(use)
    capability = _limits()["generations"].get(use.gpu.generation)
    if capability is not None:
        yield from _of_board(use, capability)


def _of_kind(use: Use) -> Iterator[str]:
    asked, quantization = parse_version(use.engine_minor), _limits()["quantization"]
    kind = f"vLLM serves models of the kind {use.model_type}"
    yield from _of_versions(_limits(), use.model_type, kind, asked)
    if use.quant_method not in quantization["plugins"]:
        deed = f"vLLM takes checkpoints of {use.quant_method}"
        yield from _of_versions(quantization, use.quant_method, deed, asked)
    last_ordered = quantization["activation_order_until"]
    if use.orders_activations and asked > parse_version(last_ordered):
        yield (
            "vLLM takes quantized weights that are ordered by activation (desc_act, actorder) up "
            f"to {last_ordered} only"
        )
    if not use.gpu.has_bf16 and needs_bf16(use.model_type):
        yield (
            f"models of the kind {use.model_type} do not run in float16, and {use.gpu.name} has "
            "no bf16"
        )


def _of_versions(
    rules: Mapping[str, Any], name: str, deed: str, asked: tuple[int, ...]
) -> Iterator[str]:
    first, last = rules["first_version"].get(name), rules["last_version"].get(name)
    if first and asked < parse_version(first):
        yield f"{deed} from {first} on"
    if last and asked > parse_version(last):
        yield f"{deed} up to {last} only"


def method_assumptions(method: str, engine_minor: str) -> Iterator[Assumption]:
    """Yield what a version needs to start with checkpoints of a method, and is taken to have.

    Sources:
        [vllm-source] layers/quantization/__init__.py, config/model.py _verify_quantization.
    """
    rules, asked = _limits()["quantization"], parse_version(engine_minor)
    last = rules["last_version"].get(method)
    if last and asked > parse_version(last) and method in rules["plugins"]:
        yield Assumption(
            about="weights",
            taken=f"{method}: vLLM after {last} starts with it only if the image has "
            f"{rules['plugins'][method]}; that is assumed",
            effect="start",
            replaced_by=f"engine.version {last}, or a checkpoint of another method",
        )
    since = rules["deprecated_since"].get(method)
    if since and asked >= parse_version(since):
        yield Assumption(
            about="flags",
            taken=f"{method}: vLLM from {since} on starts with it only with {DEPRECATED_FLAG}, "
            "which is assumed",
            effect="start",
            replaced_by=f"engine.args: [{DEPRECATED_FLAG}]",
        )


def _of_board(use: Use, capability: int) -> Iterator[str]:
    yield from board_refusals(use.engine_minor, use.gpu)
    asked = parse_version(use.engine_minor)
    of_then: Iterator[int] = (
        rule["formats"].get(use.weights_name, 0)
        for rule in _limits()["weights_before"]
        if asked < parse_version(rule["version"])
        and rule.get("method", use.quant_method) == use.quant_method
    )
    least = max(_limits()["weights"].get(use.weights_name, 0), *of_then, 0)
    if capability < least:
        yield _lack(f"weights in {use.weights_name}", least, use.gpu, capability)


def adapter_kinds(group: str) -> frozenset[str]:
    """Return the kinds of model of a group of those whose LoRA adapters are counted."""
    return frozenset(_limits()["adapters"][group])


def flag_refusals(engine_minor: str, arguments: Iterable[str]) -> Iterator[str]:
    """Yield which of these arguments a version does not know.

    Sources:
        [vllm-source] engine/arg_utils.py.
    """
    for argument in arguments:
        first = _limits()["flags"].get(argument.partition("=")[0].removeprefix("--"))
        if first and parse_version(engine_minor) < parse_version(first):
            yield f"{argument.partition('=')[0]} is known to vLLM from {first} on"


def nodes_refusal(engine_minor: str) -> str | None:
    """Return why a version runs no replica over several nodes; None: it does.

    >>> nodes_refusal("0.11")
    'vLLM runs a replica over several nodes without Ray (--nnodes) from 0.12 on, not 0.11'
    """
    since = _limits()["nodes"]["since"]
    if parse_version(engine_minor) >= parse_version(since):
        return None
    return (
        f"vLLM runs a replica over several nodes without Ray (--nnodes) from {since} on, "
        f"not {engine_minor}"
    )


def needs_bf16(model_type: str) -> bool:
    """Tell whether vLLM refuses to compute a kind of model in float16."""
    return model_type in _limits()["float16"]["refused"]


def automatic_cache(use: Use) -> str:
    """Return the type that ``--kv-cache-dtype auto`` is, a key of ``CACHE_TYPES``.

    Sources:
        [vllm-source] utils/torch_utils.py resolve_kv_cache_dtype_string: what the checkpoint says;
        models/config.py: what a kind of model has.
    """
    asked, rules = parse_version(use.engine_minor), _limits()["cache"]
    since = rules["of_checkpoint_since"].get(use.checkpoint_cache)
    if since and asked >= parse_version(since):
        return use.checkpoint_cache
    is_fp8 = any(
        rule["kind"] == use.model_type
        and parse_version(rule["since"]) <= asked <= parse_version(rule["until"])
        and use.gpu.generation in rule.get("generations", (use.gpu.generation,))
        for rule in rules["defaults"]
    )
    return "fp8" if is_fp8 else "bf16"


def board_refusals(engine_minor: str, gpu: Gpu) -> Iterator[str]:
    """Yield why a version does not run on a board at all, and up to which version one does.

    Sources:
        [vllm-source] docs/getting_started/installation/gpu.
    """
    capability = _limits()["generations"].get(gpu.generation)
    asked = parse_version(engine_minor)
    for rule in _limits()["boards"] if capability is not None else ():
        if parse_version(rule["since"]) <= asked and capability < rule["least_capability"]:
            lack = _lack(f"vLLM from {rule['since']} on", rule["least_capability"], gpu, capability)
            yield f"{lack}; earlier versions run on it"


def cache_refusal(use: Use) -> str | None:
    """Say why there are no kernels for such a cache; None: there are."""
    if use.cache == "bf16":
        return _refusal_of_16_bits(use)
    capability = _limits()["generations"].get(use.gpu.generation)
    least = CACHE_TYPES[use.cache].least_capability
    if capability is None or capability >= least:
        return None
    return _lack(f"a cache in {use.cache}", least, use.gpu, capability)


def cache_kernels(use: Use) -> str | None:
    """Say which version has kernels for such a cache on this board; None: this one has."""
    capability = _limits()["generations"].get(use.gpu.generation)
    families = CACHE_TYPES[use.cache].families
    family = (capability or 0) // 10
    if not family or not families or family in at_version(families, use.engine_minor):
        return None
    later = next(
        (since for since, those in families.items() if family in those), "no later version"
    )
    return f"vLLM {use.engine_minor} has no kernels for it on {use.gpu.name}, {later} has"


def _refusal_of_16_bits(use: Use) -> str | None:
    """Say why the cache of a checkpoint that has one in fp8 would be that, whatever is asked.

    Sources:
        [vllm-source] layers/attention/attention.py Attention: kv_cache_scheme went before what was
        asked for; csrc quant_utils.cuh: until 0.19 no 16-bit type was known by its name.
    """
    rules = _limits()["cache"]
    first, named = rules["of_checkpoint_since"]["fp8"], rules["of_checkpoint_yields_since"]
    if use.checkpoint_cache != "fp8":
        return None
    if not parse_version(first) <= parse_version(use.engine_minor) < parse_version(named):
        return None
    return (
        f"the checkpoint has a cache in fp8, and vLLM {use.engine_minor} takes no 16 bits in its "
        f"place; {named} and later do"
    )


def _lack(what: str, least: int, gpu: Gpu, capability: int) -> str:
    return (
        f"{what} needs compute capability {least / 10:.1f}, {gpu.name} ({gpu.generation}) has "
        f"{capability / 10:.1f}"
    )
