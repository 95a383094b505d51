"""What can be wrong with a config.json: one key of it changed, and how its messages may name that.

``mutations`` draws from fixed seeds, so that every run sees the same ones.
"""

import copy
import random
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import family_configs
from tonnage.catalog.config.architectures.kinds import (
    ARCHITECTURES,
    WRAPPED_TYPES,
    WRAPPERS,
    Architecture,
)
from tonnage.catalog.config.keys.decoder import DecoderKeys
from tonnage.catalog.config.read import shape_from_config
from tonnage.catalog.gpu import CatalogError
from tonnage.catalog.models import built_in_config, model_names

Config = dict[str, Any]
Path = tuple[str, ...]

DEEP: list[Any] = []
for _ in range(3000):
    DEEP = [DEEP]

NOTHING = ("missing", None, {}, [])
"""Where a key is left out, or says nothing."""
WRONG = (
    -7, -(10**9), 10**15, 10**400, 10**5000, 1.5, -0.5, float("nan"), float("inf"), "x", "12",
    DEEP, [{}, []], [None], [1] * 20_000, {"a": {"b": [1]}}, b"x", {5: 5}, {1, 2},
)  # fmt: skip
"""What no key of any of these models may be, unless the model's family does not read it."""
ABSENCE_MEANS = {
    # as the wrapper or the class says; two bytes; 16 bits throughout; unknown
    "tie_word_embeddings", "torch_dtype", "quantization_config", "max_position_embeddings",
    "model_max_length", "n_positions", "seq_length", "max_seq_len",
    "original_max_position_embeddings",
    # one KV head per query head, or as the family's other keys say; width over heads
    "num_key_value_heads", "num_kv_heads", "num_global_key_value_heads", "head_dim",
    "new_decoder_architecture",
    # the part is not there
    "sliding_window", "q_lora_rank", "attention_bias", "add_qkv_bias", "use_qkv_bias",
    "lm_head_bias", "use_qk_norm", "qk_norm_type", "attention_k_eq_v", "enable_moe_block",
    "moe_layers", "moe_latent_size", "routed_expert_hidden_size", "latent_moe_use_norm",
    "mla_use_output_gate", "use_full_rank_gate", "attn_res_block_size", "ple_layer_ids",
    "indexer_n_heads", "mtp_num_hidden_layers", "num_nextn_predict_layers", "num_mtp_modules",
    "mamba_ssm_dtype", "num_experts",
    # heads turn as the class says, text has the only positions
    "rope_scaling", "rope_parameters", "mrope_section", "partial_rotary_factor", "rotary_pct",
    "rotary_dim", "position_embedding_type",
    # of the quantization: no groups, nothing left out, a cache of 16 bits
    "weight_block_size", "group_size", "ignore", "input_activations", "kv_cache_scheme",
    "kv_cache_quant_algo",
}  # fmt: skip
"""Keys that may be silent and say something by it, to at least one family."""
ENCODERS = {
    "vision_config", "audio_config", "downsample_ratio", "select_layer", "vision_feature_layer",
    "multimodal_projector_bias", "projector_hidden_size", "spatial_merge_size",
    "alignment_intermediate_size", "downsample_factor", "scale_factor",
}  # fmt: skip
"""Encoders that cannot be counted are a note, not an error."""


@dataclass(frozen=True, kw_only=True)
class Mutation:
    """A configuration of which one key differs from that of a model."""

    path: Path
    value: Any
    config: Config
    is_wrong: bool
    """Not only silent about the key."""

    @property
    def is_of_encoder(self) -> bool:
        return any(key in ENCODERS for key in self.path)


@cache
def models() -> dict[str, Config]:
    """Return one model for each kind that is understood, quantized and not, by name."""
    found: dict[object, tuple[str, Config]] = {}
    for name in model_names():
        config = built_in_config(name)
        if is_understood(config):
            kind = (config["model_type"], kind_of(config), "quantization_config" in config)
            found.setdefault(kind, (name, config))
    plain = {
        name: config
        for name, config in vars(family_configs).items()
        if name.isupper() and isinstance(config, dict)
    }
    return {**dict(found.values()), **plain}


def is_understood(config: Config) -> bool:
    try:
        shape_from_config(config, name="m")
    except CatalogError:
        return False
    return True


def text_of(config: Config) -> Config:
    """Return the block of the text part; some files have its keys beside those of the encoder."""
    path = WRAPPERS.get(config["model_type"], ())
    if path and path[0] not in config:
        return {**config, "model_type": f"{config['model_type']}_text"}
    for key in path:
        config = config[key]
    return config


def kind_of(config: Config) -> str:
    kind: str = text_of(config).get("model_type") or WRAPPED_TYPES[config["model_type"]]
    return kind


def mutations(name: str, number: int) -> Iterator[Mutation]:
    """Yield as many single changes of a model, the same in every run."""
    draw = random.Random(zlib.crc32(name.encode()))  # noqa: S311 (no secret)
    config = models()[name]
    paths = list(keys_in(config))
    for _ in range(number):
        path = draw.choice(paths)
        is_wrong = draw.random() < 0.7
        value = draw.choice(WRONG if is_wrong else NOTHING)
        yield Mutation(
            path=path, value=value, config=changed(config, path, value), is_wrong=is_wrong
        )


def keys_in(block: Config, above: Path = ()) -> Iterator[Path]:
    for key, value in block.items():
        yield (*above, key)
        if isinstance(value, dict):
            yield from keys_in(value, (*above, key))


def changed(config: Config, path: Path, value: Any) -> Config:
    config = copy.deepcopy(config)
    block = config
    for key in path[:-1]:
        block = block[key]
    if value == "missing":
        del block[path[-1]]
    else:
        block[path[-1]] = value
    return config


def architecture_of(name: str) -> Architecture:
    return ARCHITECTURES[kind_of(models()[name])]


def other_names(name: str, key: str) -> set[str]:
    """Return the key with the names that the same number has elsewhere."""
    found = {key}
    for usual, own in architecture_of(name).names.items():
        if key in {usual, *own.split(".")}:
            found |= {usual, own}
    for field, info in DecoderKeys.model_fields.items():
        names = {field, *getattr(info.validation_alias, "choices", ())}
        if found & names:
            found |= names
    return found


def may_be_silent(mutation: Mutation, name: str) -> bool:
    """Tell whether leaving the key out, or empty, means something to the model's class."""
    key, architecture = mutation.path[-1], architecture_of(name)
    is_default = key in {*architecture.sparse_defaults, *architecture.defaults}
    return not mutation.is_wrong and (is_default or key in ABSENCE_MEANS)


def names_key(message: str, mutation: Mutation, name: str) -> bool:
    """Tell whether the message names the key, or a block around it other than the text part."""
    around = set(mutation.path[:-1]) - {"text_config", "thinker_config", "llm_config"}
    return any(word in message for word in around | other_names(name, mutation.path[-1]))
