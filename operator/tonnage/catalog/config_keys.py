"""The keys of a Hugging Face ``config.json`` that sizing reads: their types, bounds and names.

Only what is written, or what the model's class in transformers says when the key is left out,
becomes a number. Everything else is an error that names the key.
"""

import reprlib
from collections.abc import Mapping
from typing import Annotated

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, ValidationError

from tonnage.catalog.gpu import CatalogError

Size = Annotated[int, Field(gt=0, le=10_000_000)]
SizeOrNone = Annotated[int, Field(ge=0, le=10_000_000)]
Tokens = Annotated[int, Field(gt=0, le=100_000_000)]
Heads = Annotated[int, Field(gt=0, le=10_000)]
Experts = Annotated[int, Field(ge=0, le=100_000)]
Layers = Annotated[int, Field(gt=0, le=2000)]
LayerIndex = Annotated[int, Field(ge=0, le=2000)]
Flags = Annotated[list[Annotated[int, Field(ge=0, le=1)]], Field(max_length=2000)]


class ModelConfigError(CatalogError):
    """A key is missing, of the wrong type, out of bounds or at odds with another."""


class UnknownArchitectureError(CatalogError):
    """The model has parts whose cost is not understood: it is refused, never estimated."""


class _Block(BaseModel):
    model_config = ConfigDict(
        extra="ignore", strict=True, frozen=True, allow_inf_nan=False, populate_by_name=True
    )


class RopeScaling(_Block):
    """How positions are stretched beyond those of the training."""

    rope_type: Annotated[str, Field(max_length=100)] | None = Field(
        default=None, validation_alias=AliasChoices("rope_type", "type")
    )
    factor: Annotated[float, Field(gt=0, le=100_000)] | None = None
    original_max_position_embeddings: Tokens | None = None


class DecoderKeys(_Block):
    """The text part of a configuration, under the names that most families use."""

    hidden_size: Size = Field(validation_alias=AliasChoices("hidden_size", "n_embed"))
    num_hidden_layers: Layers = Field(validation_alias=AliasChoices("num_hidden_layers", "n_layer"))
    num_attention_heads: Heads = Field(
        validation_alias=AliasChoices("num_attention_heads", "n_head")
    )
    vocab_size: Size
    num_key_value_heads: Heads | None = None
    head_dim: Size | None = None
    intermediate_size: Size | None = None
    max_position_embeddings: Tokens | None = None
    tie_word_embeddings: bool | None = None
    rope_scaling: RopeScaling | None = Field(
        default=None, validation_alias=AliasChoices("rope_scaling", "rope_parameters")
    )

    attention_bias: bool = False
    attention_out_bias: bool = False
    mlp_bias: bool = False
    use_qk_norm: bool = False
    qk_norm_type: Annotated[str, Field(max_length=100)] | None = None

    layer_types: (
        Annotated[list[Annotated[str, Field(max_length=100)]], Field(max_length=2000)] | None
    ) = None
    sliding_window: Tokens | None = None
    use_sliding_window: bool = False
    max_window_layers: LayerIndex | None = None
    sliding_window_pattern: Layers | None = None
    attention_chunk_size: Tokens | None = None
    no_rope_layers: Flags | None = None
    no_rope_layer_interval: Layers = 4

    num_experts: Experts | None = Field(
        default=None,
        validation_alias=AliasChoices("n_routed_experts", "num_local_experts", "num_experts"),
    )
    num_experts_per_tok: Experts | None = Field(
        default=None, validation_alias=AliasChoices("num_experts_per_tok", "top_k_experts")
    )
    moe_intermediate_size: Size | None = None
    shared_expert_intermediate_size: SizeOrNone | None = None
    shared_intermediate_size: SizeOrNone | None = None
    n_shared_experts: Experts | None = None
    first_k_dense_replace: LayerIndex | None = None
    moe_layer_freq: Layers | Flags | None = None
    decoder_sparse_step: Layers = 1
    mlp_only_layers: Annotated[list[LayerIndex], Field(max_length=2000)] | None = None
    moe_layers: Annotated[list[LayerIndex], Field(max_length=2000)] | None = None
    interleave_moe_layer_step: Layers | None = None
    intermediate_size_mlp: Size | None = None
    enable_moe_block: bool = False

    kv_lora_rank: Size | None = None
    q_lora_rank: Size | None = None
    qk_rope_head_dim: Size | None = None
    qk_nope_head_dim: Size | None = None
    v_head_dim: Size | None = None

    global_head_dim: Size | None = None
    num_global_key_value_heads: Heads | None = None
    attention_k_eq_v: bool = False

    hybrid_layer_pattern: Flags | None = None
    swa_num_attention_heads: Heads | None = None
    swa_num_key_value_heads: Heads | None = None
    swa_head_dim: Size | None = None
    swa_v_head_dim: Size | None = None

    def was_given(self, key: str) -> bool:
        """Tell whether the key was written, be it as null."""
        return key in self.model_fields_set


def read_keys(block: Mapping[str, object]) -> DecoderKeys:
    """Read the keys of one block.

    Raises:
        ModelConfigError: names the first key that cannot be right, and what was read.
    """
    try:
        return DecoderKeys.model_validate(dict(block))
    except ValidationError as error:
        raise ModelConfigError(first_problem(error)) from error


def first_problem(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_context=False)[0]
    # A union reports each of its types behind the key: 'moe_layer_freq.constrained-int'.
    key, *rest = first["loc"]
    index = "".join(f"[{part}]" for part in rest if isinstance(part, int))
    nested = "".join(f".{part}" for part in rest if part in RopeScaling.model_fields)
    if first["type"] == "missing":
        return f"{key}{nested} is missing"
    return f"{key}{nested}{index} = {reprlib.repr(first['input'])}: {first['msg']}"


def needed(keys: DecoderKeys, key: str) -> int:
    """Return a key that this kind of model cannot do without.

    Raises:
        ModelConfigError: it is missing or null.
    """
    value = getattr(keys, key)
    if value is None:
        raise ModelConfigError(f"{key} is missing")
    number: int = value
    return number


def check_length(key: str, values: list[str] | list[int], num_layers: int) -> None:
    """Refuse a list that does not have one entry per layer.

    Raises:
        ModelConfigError: names the list and both numbers.
    """
    if len(values) != num_layers:
        raise ModelConfigError(
            f"{key} has {len(values)} entries, but num_hidden_layers is {num_layers}"
        )
