"""What is refused whatever the split: a context or a cache that the engine does not have."""

from typing import Final

from tonnage.catalog.gpu import UnsupportedEngineError
from tonnage.catalog.shape import CompressedAttention
from tonnage.sizing.drafting import check_drafts
from tonnage.sizing.errors import ContextTooLongError, InvalidKvCacheError
from tonnage.sizing.question import Question

PACKED_SINCE: Final = "0.27"


def check_question(question: Question) -> None:
    """Refuse what no split can make up for.

    Raises:
        ContextTooLongError, InvalidKvCacheError, InvalidSpeculationError, UnsupportedEngineError.
    """
    check_context(question)
    check_cache(question)
    if question.speculation:
        check_drafts(question.shape, question.speculation)


def check_context(question: Question) -> None:
    """Refuse a context that the model was not made for, as the engine does.

    Raises:
        ContextTooLongError: with both lengths.
    """
    longest = question.shape.max_position_tokens
    if longest is not None and question.context_tokens > longest:
        raise ContextTooLongError(
            f"contextLength {question.context_tokens} exceeds the {longest} positions of "
            f"{question.shape.name}"
        )


def check_cache(question: Question) -> None:
    """Refuse what the engine cannot keep, or keeps in a way that no formula here covers.

    Raises:
        InvalidKvCacheError: compressed attention in another format than fp8.
        UnsupportedEngineError: compressed attention before its blocks are packed.

    Sources:
        [vllm-source] models/deepseek_v4/attention.py _resolve_dsv4_kv_cache_dtype: 16 bits are
        refused, but by a backend that has to be chosen; model_executor/models/registry.py.
    """
    kinds = (attention for _, attention in question.shape.attentions())
    if not any(isinstance(kind, CompressedAttention) for kind in kinds):
        return
    if question.kv_format != "fp8":
        raise InvalidKvCacheError(
            f"model.kvCache: vLLM keeps the cache of {question.shape.name} in fp8 only, not in "
            f"{question.kv_format}"
        )
    if not question.engine.constants.cache.packs_blocks:
        raise UnsupportedEngineError(
            f"engine.version {question.engine.minor}: vLLM does not serve "
            f"{question.shape.name} before 0.20, and lays out its cache in a way that is not "
            f"known here before {PACKED_SINCE}"
        )
