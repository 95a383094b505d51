"""The keys of a Hugging Face ``config.json`` that sizing reads: their types, bounds and names.

Only what is written, or what the model's class in transformers says when the key is left out,
becomes a number. Everything else is an error that names the key.
"""

import reprlib
import tomllib
from collections.abc import Mapping, Sized
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, ValidationError, create_model

from tonnage.catalog.gpu import CatalogError
from tonnage.units import count_of

Size = Annotated[int, Field(gt=0, le=10_000_000)]
SizeOrNone = Annotated[int, Field(ge=0, le=10_000_000)]
Tokens = Annotated[int, Field(gt=0, le=100_000_000)]
Heads = Annotated[int, Field(gt=0, le=10_000)]
Experts = Annotated[int, Field(ge=0, le=100_000)]
Layers = Annotated[int, Field(gt=0, le=2000)]
LayerIndex = Annotated[int, Field(ge=0, le=2000)]
ZerosAndOnes = Annotated[list[Annotated[int, Field(ge=0, le=1)]], Field(max_length=2000)]
Sizes = Annotated[list[Size], Field(max_length=2000)]
LayerIndices = Annotated[list[Layers], Field(max_length=2000)]
LayerList = Annotated[list[LayerIndex], Field(max_length=2000)]
Fraction = Annotated[float, Field(ge=0, le=1)]
Names = Annotated[list[Annotated[str, Field(max_length=100)]], Field(max_length=2000)]
Word = Annotated[str, Field(max_length=100)]
Text = Annotated[str, Field(max_length=10_000)]
SizeByLayer = Size | Sizes
SizeOrAuto = Size | Literal["auto"]
ExpertsByLayer = Experts | Annotated[list[Experts], Field(max_length=2000)]
YesOrNo = bool
StateType = Literal["float32", "bfloat16", "float16"]


class Block(BaseModel):
    """A part of the file: what is read has the right type and bounds, the rest is ignored."""

    model_config = ConfigDict(
        extra="ignore",
        strict=True,
        frozen=True,
        allow_inf_nan=False,
        populate_by_name=True,
        defer_build=True,
    )


class ModelConfigError(CatalogError):
    """A key is missing, of the wrong type, out of bounds or at odds with another."""


class UnknownArchitectureError(CatalogError):
    """The model has parts whose cost is not understood: it is refused, never estimated."""


class RopeScaling(Block):
    """How positions are stretched beyond those of the training."""

    rope_type: Annotated[str, Field(max_length=100)] | None = Field(
        default=None, validation_alias=AliasChoices("rope_type", "type")
    )
    factor: Annotated[float, Field(gt=0, le=100_000)] | None = None
    original_max_position_embeddings: Tokens | None = None
    partial_rotary_factor: Fraction | None = None
    mrope_section: Sizes | None = None


class SparseAttention(Block):
    """The layers of MiniMax M3 that choose the blocks of tokens to attend to."""

    sparse_attention_freq: ZerosAndOnes
    sparse_num_index_heads: Heads
    sparse_index_dim: Size
    sparse_topk_blocks: Size
    sparse_block_size: Size


class LayerKeys(Block):
    """Of one layer, where it differs from the others."""

    head_dim: Size | None = None


class AttentionKeys(LayerKeys):
    """Of the layers of one type, where they differ from the others."""

    attention_type: Annotated[str, Field(max_length=100)]
    num_attention_heads: Heads
    num_attention_groups: Heads


class BlockAttention(Block):
    """Of one layer of Nemotron NAS."""

    n_heads_in_group: Heads | None = None
    no_op: bool = False
    replace_with_linear: Literal[False] | None = None

    def kv_heads(self, keys: "DecoderKeys") -> int:
        if not self.n_heads_in_group:
            raise ModelConfigError("block_configs: attention.n_heads_in_group is missing")
        return keys.num_attention_heads // self.n_heads_in_group


class BlockFfn(Block):
    """The same of its block."""

    ffn_mult: Annotated[float, Field(gt=0, le=1000)] | None = None
    intermediate_size: Size | None = None
    no_op: bool = False
    replace_with_linear: Literal[False] | None = None

    def width(self, keys: "DecoderKeys") -> int:
        """Return two thirds of a multiple of the model's width, in steps of 256.

        Sources:
            [vllm-source] model_executor/models/nemotron_nas.py.
        """
        if self.ffn_mult is None:
            return Needed(self).intermediate_size
        exact = int(2 * self.ffn_mult * keys.hidden_size / 3)
        return -(-exact // FFN_STEP) * FFN_STEP


class LayerBlock(Block):
    attention: BlockAttention
    ffn: BlockFfn


FFN_STEP: Final = 256


class Needed:
    """The numbers of a block that a kind of model cannot do without, by their keys.

    Raises:
        ModelConfigError: one that is asked for is missing, null or one number per layer.
    """

    def __init__(self, keys: Block) -> None:
        self._keys = keys

    def __getattr__(self, key: str) -> int:
        value = getattr(self._keys, key)
        if value is None:
            raise ModelConfigError(f"{key} is missing")
        if isinstance(value, list):
            raise ModelConfigError(f"{key} is a list of {len(value)}, not a number")
        number: int = value
        return number


class KimiDelta(Block):
    """The layers of Kimi's linear attention; indices count from one."""

    num_heads: Heads
    head_dim: Size
    short_conv_kernel_size: Layers
    kda_layers: LayerIndices
    full_attn_layers: LayerIndices
    use_full_rank_gate: bool = False


KEYS: Final[Mapping[str, Any]] = tomllib.loads(Path(__file__).with_name("keys.toml").read_text())


def _plain_keys() -> type[Block]:
    """Return a block of the keys of ``keys.toml``."""
    fields: dict[str, Any] = {}
    for kind, keys in KEYS["optional"].items():
        for key in keys:
            names = KEYS["aliases"].get(key)
            alias = AliasChoices(*names) if names else None
            fields[key] = (globals()[kind] | None, Field(default=None, validation_alias=alias))
    for kind, numbers in KEYS["defaults"].items():
        fields |= {key: (globals()[kind], value) for key, value in numbers.items()}
    return create_model("PlainKeys", __base__=Block, **fields)


if TYPE_CHECKING:
    _PlainKeys = Block
else:
    _PlainKeys = _plain_keys()


class DecoderKeys(_PlainKeys):
    """The text part of a configuration: the keys of ``keys.toml``, and those of other forms."""

    hidden_size: Size = Field(validation_alias=AliasChoices("hidden_size", "n_embed"))
    num_hidden_layers: Layers = Field(validation_alias=AliasChoices("num_hidden_layers", "n_layer"))
    num_attention_heads: Heads = Field(
        validation_alias=AliasChoices("num_attention_heads", "n_head")
    )
    vocab_size: Size
    rope_scaling: RopeScaling | None = Field(
        default=None, validation_alias=AliasChoices("rope_scaling", "rope_parameters")
    )
    qk_norm_type: Literal["per_layer", "per_head"] | None = None
    moe_layer_freq: Layers | ZerosAndOnes | None = None
    block_configs: Annotated[list[LayerBlock], Field(max_length=2000)] | None = None
    attention_other_setting: AttentionKeys | None = None
    num_attention_heads_per_layer: Annotated[list[Heads], Field(max_length=2000)] | None = None
    per_layer_config: dict[str, LayerKeys] | None = None
    index_topk_pattern: Annotated[str, Field(max_length=2000)] | Names | None = None
    sparse_attention_config: SparseAttention | None = None
    compress_ratios: Annotated[list[SizeOrNone], Field(max_length=2000)] | None = None
    compress_rates: dict[str, SizeOrNone] | None = None
    linear_attn_config: KimiDelta | None = None
    block_ffn_dim_multiplier: Annotated[float, Field(gt=0, le=100)] = 1.0
    ngram_size: Annotated[int, Field(ge=2, le=100)] | None = None
    ngram_vocab_size_base: Annotated[int, Field(gt=0, le=10_000_000_000)] | None = None
    num_ln_in_parallel_attn: Annotated[int, Field(ge=1, le=2)] | None = None
    window_pattern: Layers | Annotated[str, Field(max_length=2000)] | None = None
    moe_layer_end_index: Annotated[int, Field(ge=-1, le=2000)] | None = None
    use_mixed_mlp_moe: bool | Annotated[int, Field(ge=0, le=1)] | None = None

    if TYPE_CHECKING:

        def __getattr__(self, key: str) -> Any: ...

    @property
    def needed(self) -> Needed:
        return Needed(self)

    def was_given(self, key: str) -> bool:
        """Tell whether the key was written, be it as null."""
        return key in self.model_fields_set

    def by_layer(self, key: str) -> list[Any]:
        """Return a list that has one entry per layer.

        Raises:
            ModelConfigError: it is missing, or has more or fewer.
        """
        values: list[Any] | None = getattr(self, key)
        if values is None:
            raise ModelConfigError(f"{key} is missing")
        check_length(key, values, self.num_hidden_layers)
        return values


def read_keys(block: Mapping[str, object]) -> DecoderKeys:
    """Read the keys of one block.

    Raises:
        ModelConfigError: names the first key that cannot be right, and what was read.
    """
    try:
        return DecoderKeys.model_validate(_without_synonyms(block))
    except ValidationError as error:
        raise ModelConfigError(first_problem(error)) from error


_SYNONYMS = tuple(
    tuple(choice for choice in field.validation_alias.choices if isinstance(choice, str))
    for name, field in DecoderKeys.model_fields.items()
    if isinstance(field.validation_alias, AliasChoices) and name != "max_position_embeddings"
)
"""Names of the same number. Lengths may differ: the model's stands above that of the positions."""
_DRAFTS = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules")
"""Of these the largest counts: such layers are loaded only when asked for."""


def _without_synonyms(block: Mapping[str, object]) -> dict[str, object]:
    """Leave one name of each key: null is no value, and two different values are no answer."""
    remaining = dict(block)
    for names in _SYNONYMS:
        written = [name for name in names if block.get(name) is not None]
        numbers = [value for name in written if isinstance(value := block[name], int)]
        if names == _DRAFTS and len(numbers) == len(written) > 1:
            remaining[written[0]] = max(numbers)
            written = written[:1]
        for other in written[1:]:
            value, first = block[other], block[written[0]]
            if value != first and not isinstance(value, Mapping):
                raise ModelConfigError(
                    f"{other} = {reprlib.repr(value)} contradicts {written[0]} = "
                    f"{reprlib.repr(first)}"
                )
        for name in names if written else ():
            if name != written[0]:
                remaining.pop(name, None)
    return remaining


_NESTED = {
    *RopeScaling.model_fields,
    *KimiDelta.model_fields,
    *SparseAttention.model_fields,
}


def first_problem(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_context=False)[0]
    # A union reports each of its types behind the key: 'moe_layer_freq.constrained-int'.
    key, *rest = first["loc"]
    index = "".join(f"[{part}]" for part in rest if isinstance(part, int))
    nested = "".join(f".{part}" for part in rest if part in _NESTED)
    if first["type"] == "missing":
        return f"{key}{nested} is missing"
    return f"{key}{nested}{index} = {reprlib.repr(first['input'])}: {first['msg']}"


def check_length(key: str, values: Sized, num_layers: int) -> None:
    """Refuse a list that does not have one entry per layer.

    Raises:
        ModelConfigError: names the list and both numbers.
    """
    if len(values) != num_layers:
        raise ModelConfigError(
            f"{key} has {count_of(len(values), 'entry', 'entries')}, but num_hidden_layers is "
            f"{num_layers}"
        )
