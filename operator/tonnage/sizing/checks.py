"""What is refused whatever the split: a context or a cache that the engine does not have."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

from tonnage.catalog.cache_types import CACHE_TYPES, name_refusal, type_of
from tonnage.catalog.engine import parse_version, positions_of
from tonnage.catalog.engine_limits import (
    Use,
    automatic_cache,
    cache_kernels,
    cache_refusal,
    refusals,
)
from tonnage.catalog.gpu import UnsupportedEngineError
from tonnage.catalog.shape import Assumption, CompressedAttention, ModelShape
from tonnage.sizing.errors import (
    ContextTooLongError,
    InvalidAdaptersError,
    InvalidKvCacheError,
    InvalidSpeculationError,
)
from tonnage.sizing.options import WIDE_CACHE_FLAG, Speculation, check_adapters
from tonnage.sizing.provenance import Figure, assumed_inputs, format_input, with_changed
from tonnage.sizing.request import SizingRequest, cache_speed, with_prior
from tonnage.units import count_of

PACKED_SINCE: Final = "0.27"
SCALES_OF_E4M3: Final = ("fp8", "modelopt")
"""Methods of checkpoints whose layers may have scales for a cache in fp8_e4m3."""
E5M2_BESIDE_PACKED_SINCE: Final = (0, 24)


def check_request(request: SizingRequest) -> None:
    """Refuse what no split can make up for.

    Raises:
        ContextTooLongError, InvalidKvCacheError, InvalidSpeculationError, InvalidAdaptersError,
        UnsupportedEngineError.

    Sources:
        [vllm-source] docs/features (compatibility matrix): LoRA and speculative decoding.
    """
    check_context(request)
    check_engine(request)
    check_cache(request)
    if request.adapters:
        check_adapters(request.shape)
    if request.speculation:
        check_drafts(request.shape, request.speculation)
    if request.adapters and request.speculation and request.flags is None:
        raise InvalidAdaptersError(
            "model.adapters: vLLM does not combine LoRA with engine.speculative"
        )


def check_context(request: SizingRequest) -> None:
    """Refuse a context that the model was not made for, as the engine does."""
    longest, _ = positions_of(request.shape, request.engine.minor)
    if longest is not None and request.context_tokens > longest:
        raise ContextTooLongError(
            f"contextLength {request.context_tokens} exceeds the {longest} positions of "
            f"{request.shape.name}"
        )


def check_engine(request: SizingRequest) -> None:
    """Refuse what the engine would not start with on this board."""
    use = use_of(request)
    for reason in refusals(use):
        raise UnsupportedEngineError(f"engine.version {request.engine.minor}: {reason}")
    reason_of_cache = _cache_refusal(request, use)
    if reason_of_cache:
        is_asked = request.kv_format in {"bf16", "fp8", request.shape.kv_cache_format}
        field = "model.kvCache" if is_asked else f"--kv-cache-dtype {request.kv_format}"
        raise InvalidKvCacheError(f"{field}: {reason_of_cache}")


def _cache_refusal(request: SizingRequest, use: Use) -> str | None:
    """Say why the engine does not start with the cache; kernels that are assumed are no reason."""
    if not CACHE_TYPES[request.kv_format].measured_as:
        skipped = request.switches.wide_cache
        refused = name_refusal(request.kv_format, request.engine.minor, request.shape, skipped)
        if refused:
            return f"{request.kv_format}: {refused}"
    is_assumed = not set(request.inputs).isdisjoint(assumed_inputs(_lacking_kernels(request)))
    return cache_refusal(use) or (None if is_assumed else cache_kernels(use))


def use_of(request: SizingRequest) -> Use:
    """Return what the engine would run."""
    return Use(
        engine_minor=request.engine.minor,
        gpu=request.gpu,
        shape=request.shape,
        weights_name=request.weights.name,
        cache=request.kv_format,
    )


def with_running_cache(
    request: SizingRequest, asked: str, flags: Mapping[str, str]
) -> SizingRequest:
    """Return the request with the cache that a live engine's flags say, unless one is asked for.

    Raises:
        InvalidKvCacheError: the version does not start this model with such a cache.
    """
    found = _running_format(request, flags) if asked == "auto" else request.kv_format
    skipped = tuple(assumed_inputs(_skipped_layers(request, found)))
    if found == request.kv_format:
        return replace(request, inputs=(*request.inputs, *skipped)) if skipped else request
    text = format_input(Figure.KV_CACHE, found, asked="running")
    old = set(assumed_inputs(cache_speed(request.kv_format)))
    inputs = with_changed((each for each in request.inputs if each not in old), text)
    found_request = with_prior(replace(request, kv_format=found))
    assumed = assumed_inputs((*cache_speed(found), *_lacking_kernels(found_request)))
    return replace(found_request, inputs=(*inputs, *assumed, *skipped))


def _running_format(request: SizingRequest, flags: Mapping[str, str]) -> str:
    named = flags.get("--kv-cache-dtype", "auto")
    shape = request.shape
    if named == "auto":
        is_fixed = shape.has_kind(CompressedAttention)
        return request.kv_format if is_fixed else automatic_cache(use_of(request))
    refused = name_refusal(named, request.engine.minor, shape, request.switches.wide_cache)
    if named == "fp8_e5m2" and _has_scales(shape, request.engine.minor):
        refused = f"vLLM refuses it for a checkpoint in {shape.quant_method}: fp8 is what it takes"
    if refused:
        raise InvalidKvCacheError(f"--kv-cache-dtype {named}: {refused}")
    found = type_of(named)
    return "fp8" if found == "fp8_ds_mla" and shape.has_kind(CompressedAttention) else found


def _has_scales(shape: ModelShape, engine_minor: str) -> bool:
    """Tell whether layers of a checkpoint are made with scales for a cache in fp8_e4m3.

    Sources:
        [vllm-source] layers/attention/attention.py _init_kv_cache_quant.
    """
    if shape.quant_method == "compressed-tensors":
        is_early = parse_version(engine_minor) < E5M2_BESIDE_PACKED_SINCE
        return shape.kv_cache_format == "fp8" or is_early
    return shape.quant_method.startswith(SCALES_OF_E4M3)


def _skipped_layers(request: SizingRequest, found: str) -> Iterator[Assumption]:
    """Yield which layers are taken for those that a flag names, where kinds of them differ."""
    named = [each for each in request.switches.wide_cache if each.isdecimal()]
    kinds = {attention for _, attention in request.shape.attentions()}
    if named and len(kinds) > 1 and found != "bf16":
        yield Assumption(
            about="KV cache",
            taken=f"{WIDE_CACHE_FLAG} {' '.join(named)}: the layers that hold most",
            effect="memory",
            replaced_by="the first Ready pod's own report",
        )


def _lacking_kernels(request: SizingRequest) -> Iterator[Assumption]:
    """Yield that an image is taken to have what its version has not: images of others do."""
    lacking = cache_kernels(use_of(request))
    if lacking:
        yield Assumption(
            about="KV cache",
            taken=f"{request.kv_format}: {lacking}; the image is assumed to add them",
            effect="time",
            replaced_by="an image of such a version, or the first Ready pod's own report",
        )


def check_cache(request: SizingRequest) -> None:
    """Refuse what the engine cannot keep, or keeps in a way that no formula here covers.

    Raises:
        InvalidKvCacheError: compressed attention in another format than fp8, or no layer that
            keeps anything.
        UnsupportedEngineError: compressed attention before its blocks are packed.

    Sources:
        [vllm-source] models/deepseek_v4/attention.py _resolve_dsv4_kv_cache_dtype: 16 bits are
        refused, but by a backend that has to be chosen; model_executor/models/registry.py.
    """
    if not any(attention for _, attention in request.shape.attentions()):
        raise InvalidKvCacheError(
            f"no layer of {request.shape.name} keeps a KV cache or a state: there is no decode to "
            "plan"
        )
    if not request.shape.has_kind(CompressedAttention):
        return
    if request.kv_format != "fp8":
        raise InvalidKvCacheError(
            f"model.kvCache: vLLM keeps the cache of {request.shape.name} in fp8 only, not in "
            f"{request.kv_format}"
        )
    if not request.engine.constants.cache.packs_blocks:
        raise UnsupportedEngineError(
            f"engine.version {request.engine.minor}: vLLM lays out the cache of "
            f"{request.shape.name} in a way that is not known here before {PACKED_SINCE}"
        )


def check_drafts(shape: ModelShape, speculation: Speculation) -> None:
    """Refuse what the engine cannot draft, or drafts in a way that no formula here covers.

    Raises:
        InvalidSpeculationError: with the numbers.

    Sources:
        [vllm-source] config/speculative.py: a multiple of the draft layers, which take turns.
    """
    if speculation.method != "mtp":
        return
    layers, tokens = shape.num_draft_layers, speculation.num_draft_tokens
    if layers == 0:
        raise InvalidSpeculationError(
            f"engine.speculative: {shape.name} has no draft layers (mtp); ngram needs none"
        )
    if tokens > layers and tokens % layers:
        raise InvalidSpeculationError(
            f"engine.speculative: {tokens} tokens of {count_of(layers, 'draft layer')} of "
            f"{shape.name}: vLLM takes up to {layers}, or a multiple"
        )
    if shape.has_kind(CompressedAttention):
        raise InvalidSpeculationError(
            f"engine.speculative: the draft layers of {shape.name} have compressed attention, "
            "which is not planned for"
        )
