"""What is refused whatever the split: a context or a cache that the engine does not have."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from tonnage.catalog.engine_limits import Use, auto_means_fp8, cache_refusal, refusals
from tonnage.catalog.gpu import UnsupportedEngineError
from tonnage.catalog.shape import CompressedAttention, ModelShape
from tonnage.sizing.adapters import check_adapters
from tonnage.sizing.errors import (
    ContextTooLongError,
    InvalidAdaptersError,
    InvalidKvCacheError,
    InvalidSpeculationError,
)
from tonnage.sizing.provenance import Figure, format_input, with_changed
from tonnage.sizing.request import HALF_TYPES, SizingRequest, with_prior
from tonnage.sizing.speculation import Speculation
from tonnage.units import count_of

PACKED_SINCE: Final = "0.27"


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
    if request.adapters and request.speculation:
        raise InvalidAdaptersError(
            "model.adapters: vLLM does not combine LoRA with engine.speculative"
        )


def check_context(request: SizingRequest) -> None:
    """Refuse a context that the model was not made for, as the engine does.

    Raises:
        ContextTooLongError: with both lengths.
    """
    longest = request.shape.max_position_tokens
    if longest is not None and request.context_tokens > longest:
        raise ContextTooLongError(
            f"contextLength {request.context_tokens} exceeds the {longest} positions of "
            f"{request.shape.name}"
        )


def check_engine(request: SizingRequest) -> None:
    """Refuse what the engine would not start with on this board.

    Raises:
        UnsupportedEngineError, InvalidKvCacheError: with what is needed and what there is.
    """
    use = use_of(request)
    for reason in refusals(use):
        raise UnsupportedEngineError(f"engine.version {request.engine.minor}: {reason}")
    reason_of_cache = cache_refusal(use)
    if reason_of_cache:
        raise InvalidKvCacheError(f"model.kvCache: {reason_of_cache}")


def use_of(request: SizingRequest) -> Use:
    """Return what the engine would run."""
    return Use(
        engine_minor=request.engine.minor,
        gpu=request.gpu,
        model_type=request.shape.model_type,
        weights_name=request.weights.name,
        has_fp8_cache=request.kv_format == "fp8",
        quant_method=request.shape.quant_method,
        orders_activations=request.shape.orders_activations,
        checkpoint_has_fp8_cache=request.shape.kv_cache_format == "fp8",
    )


def with_running_cache(
    request: SizingRequest, asked: str, flags: Mapping[str, str]
) -> SizingRequest:
    """Return the request with the cache that a live engine's flags say, unless one is asked for."""
    found = _running_format(request, flags) if asked == "auto" else request.kv_format
    if found == request.kv_format:
        return request
    text = format_input(Figure.KV_CACHE, found, asked="running")
    return with_prior(replace(request, kv_format=found, inputs=with_changed(request.inputs, text)))


def _running_format(request: SizingRequest, flags: Mapping[str, str]) -> str:
    named = flags.get("--kv-cache-dtype", "auto")
    if named in HALF_TYPES.values():
        return "bf16"
    if named.startswith("fp8") or (named == "auto" and auto_means_fp8(use_of(request))):
        return "fp8"
    is_own = named == "auto" and request.kv_format == request.shape.kv_cache_format
    return "bf16" if is_own else request.kv_format


def check_cache(request: SizingRequest) -> None:
    """Refuse what the engine cannot keep, or keeps in a way that no formula here covers.

    Raises:
        InvalidKvCacheError: compressed attention in another format than fp8.
        UnsupportedEngineError: compressed attention before its blocks are packed.

    Sources:
        [vllm-source] models/deepseek_v4/attention.py _resolve_dsv4_kv_cache_dtype: 16 bits are
        refused, but by a backend that has to be chosen; model_executor/models/registry.py.
    """
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
