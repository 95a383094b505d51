"""What marks a model whose cost is not understood: linear attention, state, indexers and so on.

The standard formula would price such a model without complaint and be wrong by a factor, so the
marks are looked for before anything else is read.
"""

import re
import reprlib
from collections.abc import Iterator, Mapping

from tonnage.catalog.config.keys.decoder import UnknownArchitectureError
from tonnage.catalog.config.layers.attention import LAYER_TYPES

_LINEAR = "linear attention layers"
MARKS: Mapping[str, tuple[str, ...]] = {
    _LINEAR: (
        "linear_attn_config", "linear_num_key_heads", "linear_num_value_heads",
        "linear_conv_kernel_dim", "full_attention_interval",
    ),
    "layers with a state per sequence": (
        "mamba_num_heads", "mamba_d_state", "mamba_ssm_dtype",
        "short_conv_kernel_size", "ssm_state_size", "ssm_cfg",
        "state_size", "conv_L_cache", "hybrid_override_pattern", "layers_block_type",
        "layer_block_types",
    ),
    "layers of different kinds": ("block_configs", "layer_group_size", "per_layer_config"),
    "layers that run several times": (
        "L_cycles", "loop_num", "n_recurrent_loops", "total_ut_steps",
    ),
    "compressed caches": ("compress_rates", "compress_ratios", "compress_ratio"),
    "sparse-attention indexers": (
        "index_head_dim", "index_n_heads", "index_topk", "indexer_types", "indexer_head_dim",
    ),
    "sparse-attention layers with an index cache": ("sparse_attention_config",),
    "experts in a format of their own": ("expert_dtype",),
    "experts on a narrower vector": ("moe_latent_size", "routed_expert_hidden_size"),
    "parallel residual streams": (
        "hc_mult", "hc_count", "altup_num_inputs", "block_attn_res_block_size",
    ),
    "embedding tables inside the layers": (
        "ple_layer_ids", "hidden_size_per_layer_input", "ngram_size",
    ),
    "layers that share a cache": ("num_kv_shared_layers",),
    "cross-attention layers": ("cross_attention_layers",),
    "layers with factorized queries": ("num_attention_groups",),
    "layers with a doubled feed-forward block": ("use_double_wide_mlp",),
    "vision layers inside the text part": ("vision_n_layers",),
    "encoder layers": ("is_encoder_decoder",),
}  # fmt: skip
"""Parts that are not priced, and the keys that mean one whenever their value is not null, false,
zero or empty; but for the kinds of model that read them."""

TEXT_BLOCKS = ("text_config", "thinker_config", "llm_config", "language_config")
"""Where multimodal models keep the configuration of the text model."""


_NO_DECODE = re.compile(
    r"(For(SequenceClassification|TokenClassification|MaskedLM|QuestionAnswering)|RewardModel)$"
    r"|^(Gemma2|Gemma3Text|Llama|Mistral|Qwen2|Qwen3)Model$"
)
"""Heads of classes, and decoders without a head, as the engine pools them.

Sources:
    [vllm-source] model_executor/models/registry.py: _EMBEDDING_MODELS.
"""
_ENCODERS = frozenset(
    {"albert", "bert", "clip", "deberta", "deberta-v2", "distilbert", "electra", "modernbert",
     "mpnet", "nomic_bert", "roberta", "siglip", "xlm-roberta"}
)  # fmt: skip


def refuse_unknown_parts(
    block: Mapping[str, object], understands: frozenset[str], kind: str
) -> None:
    """Refuse a configuration that names a part which no formula here covers, nested or not.

    ``understands`` are the keys and layer types that this kind of model reads; ``kind`` is what
    the message calls it.

    Raises:
        UnknownArchitectureError: names the part, the key and its value.
    """
    for what, where in _unknown_parts(block, understands):
        raise UnknownArchitectureError(f"{what} ({where}) are not understood yet in {kind}")
    for key in TEXT_BLOCKS:
        inner = block.get(key)
        if isinstance(inner, Mapping):
            refuse_unknown_parts(inner, understands, kind)


def refuse_without_decode(config: Mapping[str, object], model_type: str) -> None:
    """Refuse encoders, and models whose head names a class: they generate no tokens.

    Raises:
        UnknownArchitectureError: with the key that says it.
    """
    listed = config.get("architectures")
    heads = [str(each) for each in listed] if isinstance(listed, list) else []
    head = next((each for each in heads if _NO_DECODE.search(each)), None)
    named = f"architectures = {head!r}" if head else f"model_type = {model_type!r}"
    if head or model_type in _ENCODERS:
        raise UnknownArchitectureError(
            f"{named} embeds or classifies text: it generates no tokens, and there is no decode to "
            "plan"
        )


def _unknown_parts(
    block: Mapping[str, object], understands: frozenset[str]
) -> Iterator[tuple[str, str]]:
    yield from _odd_entries(block, "layer_types", understood=LAYER_TYPES | understands)
    kinds = frozenset({0, 1}) if "attn_type_list" in understands else frozenset({1})
    yield from _odd_entries(block, "attn_type_list", understood=kinds)
    for what, keys in MARKS.items():
        for key in keys:
            value = block.get(key)
            if value and key not in understands:
                yield what, f"{key} = {reprlib.repr(value)}"


def _odd_entries(
    block: Mapping[str, object], key: str, *, understood: frozenset[object]
) -> Iterator[tuple[str, str]]:
    entries = block.get(key)
    if not isinstance(entries, list):
        return
    for index, entry in enumerate(entries):
        if isinstance(entry, str | int) and entry not in understood:
            what = _LINEAR if entry in {"linear_attention", 0} else "layers of this kind"
            yield what, f"{key}[{index}] = {reprlib.repr(entry)}"
