"""Whatever is done to a config.json: an error that names the key, or a shape that it describes."""

import copy
import json
import math
import tracemalloc
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from config_mutations import (
    Mutation,
    keys_in,
    may_be_silent,
    models,
    mutations,
    names_key,
    other_names,
    text_of,
)
from tonnage.catalog.config.read import shape_from_config
from tonnage.catalog.gpu import CatalogError
from tonnage.catalog.models import built_in_config, read_model_config
from tonnage.catalog.parameters import num_active_parameters, num_parameters
from tonnage.catalog.shape import ModelShape
from tonnage.units import MIB

NUM_MUTATIONS = 1000
LENGTHS = {"max_position_embeddings", "model_max_length"}
"""Two lengths: that of the model stands above that of the positions."""

MODELS = [
    "meta-llama/Llama-3.1-8B-Instruct",
    "mistralai/Mistral-7B-v0.1",
    "mistralai/Mixtral-8x7B-v0.1",
    "Qwen/Qwen3-30B-A3B",
    "deepseek-ai/DeepSeek-V3",
    "moonshotai/Kimi-K2.5",
    "openai/gpt-oss-20b",
    "google/gemma-3-12b-it",
    "google/gemma-4-26B-A4B",
    "meta-llama/Llama-4-Maverick-17B-128E-Instruct",
    "XiaomiMiMo/MiMo-V2-Flash",
    "Qwen/Qwen3-Next-80B-A3B-Instruct",
    "Qwen/Qwen3.5-35B-A3B",
    "moonshotai/Kimi-K3",
    "nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-FP8",
    "zai-org/GLM-4.5-Air",
    "deepseek-ai/DeepSeek-V3.2",
    "deepseek-ai/DeepSeek-V4-Flash",
    "zai-org/GLM-5.2",
    "MiniMaxAI/MiniMax-M3",
]

DECIDES = {
    "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
    "intermediate_size", "vocab_size", "num_experts", "num_local_experts", "n_routed_experts",
    "num_experts_per_tok", "moe_intermediate_size", "kv_lora_rank", "q_lora_rank", "v_head_dim",
    "qk_rope_head_dim", "qk_nope_head_dim", "n_shared_experts", "first_k_dense_replace",
    "global_head_dim", "num_global_key_value_heads", "top_k_experts", "hybrid_layer_pattern",
    "swa_num_key_value_heads", "swa_num_attention_heads", "swa_head_dim", "swa_v_head_dim",
    "attention_chunk_size", "intermediate_size_mlp", "sliding_window", "index_n_heads",
    "index_head_dim", "indexer_types", "sparse_attention_config", "dense_intermediate_size",
    "compress_ratios", "o_groups", "o_lora_rank", "hc_mult", "num_kv_shared_layers",
    "linear_num_key_heads", "linear_num_value_heads", "linear_key_head_dim",
    "linear_value_head_dim", "linear_conv_kernel_dim", "linear_attn_config", "num_shared_experts",
    "num_experts_per_token", "routed_expert_hidden_size", "hybrid_override_pattern",
    "mamba_num_heads", "mamba_head_dim", "n_groups", "ssm_state_size", "conv_kernel",
    "moe_latent_size", "moe_shared_expert_intermediate_size", "shared_expert_intermediate_size",
}  # fmt: skip

scalars = (
    st.none()
    | st.booleans()
    | st.integers(min_value=-(10**12), max_value=10**12)
    | st.floats(allow_nan=True, allow_infinity=True)
    | st.text(max_size=20)
)
anything = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4)
    ),
    max_leaves=8,
)


def text_block(config: dict[str, Any]) -> dict[str, Any]:
    return config.get("text_config", config)


def decisive_keys(model: str) -> list[str]:
    return sorted(DECIDES & text_block(built_in_config(model)).keys())


ALSO_CALLED = {
    "num_experts": "n_routed_experts",
    "num_local_experts": "num_experts",
    "top_k_experts": "num_experts_per_tok",
    "n_routed_experts": "num_experts",
}

# Where a key that is left out has a meaning: one KV head per query head; a nested block's default;
# full layers with as many KV heads as the others; experts on the whole vector.
MAY_BE_MISSING = {
    ("meta-llama/Llama-3.1-8B-Instruct", "num_key_value_heads"),
    ("google/gemma-3-12b-it", "num_attention_heads"),
    ("google/gemma-3-12b-it", "num_key_value_heads"),
    ("google/gemma-4-26B-A4B", "num_global_key_value_heads"),
    ("moonshotai/Kimi-K3", "routed_expert_hidden_size"),
    ("nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-FP8", "moe_latent_size"),
}

WRONG = [-1, 0, 10**15, 1.5, "x", True, [], {}, None, [None]]
MEANINGFUL: list[tuple[str, object]] = [
    ("sliding_window", None),  # Mistral: no window
    ("q_lora_rank", None),  # latent attention without compressed queries
    ("n_shared_experts", 0),
    ("num_shared_experts", 0),
    ("shared_expert_intermediate_size", 0),
    ("moe_latent_size", None),  # experts on the whole vector
    ("routed_expert_hidden_size", None),
    ("first_k_dense_replace", 0),
    ("num_key_value_heads", None),  # Llama: one per query head
    ("num_global_key_value_heads", None),  # Gemma 4: as many as in the window layers
]


def outcome(config: dict[str, Any]) -> ModelShape | str:
    """Return the shape that was read, or the message of the refusal."""
    try:
        return shape_from_config(config, name="m")
    except CatalogError as error:
        return str(error)


def names(message: str, key: str) -> bool:
    return key in message or ALSO_CALLED.get(key, key) in message


@pytest.mark.parametrize("model", MODELS)
def test_a_decisive_key_that_is_missing_is_named_or_meaningless_to_the_family(model: str) -> None:
    original = shape_from_config(built_in_config(model), name="m")

    for key in decisive_keys(model):
        config = built_in_config(model)
        del text_block(config)[key]
        found = outcome(config)

        if isinstance(found, str):
            assert names(found, key), key
        else:
            assert found.groups == original.groups or (model, key) in MAY_BE_MISSING, key


@pytest.mark.parametrize("value", WRONG, ids=repr)
@pytest.mark.parametrize("model", MODELS)
def test_a_wrong_value_of_a_decisive_key_is_named_or_meaningless_to_the_family(
    model: str, value: object
) -> None:
    original = shape_from_config(built_in_config(model), name="m")

    for key in decisive_keys(model):
        config = built_in_config(model)
        text_block(config)[key] = value
        found = outcome(config)

        if isinstance(found, str):
            assert names(found, key), key
        else:
            assert found.groups == original.groups or (key, value) in MEANINGFUL, key


@pytest.mark.parametrize("name", models())
def test_one_wrong_key_is_refused_by_its_name_or_decides_nothing(name: str) -> None:
    original = shape_from_config(models()[name], name="m")

    for mutation in mutations(name, math.ceil(NUM_MUTATIONS / len(models()))):
        found = outcome(mutation.config)

        if isinstance(found, str):
            assert found.startswith("model m: ")
            assert names_key(found, mutation, name), mutation.path
        else:
            assert_sensible(found)
            is_free = may_be_silent(mutation, name) or may_be_so(mutation)
            is_free |= any(mutation.path[-1] in each.taken for each in found.assumptions)
            assert is_free or is_same(found, original, mutation), mutation.path


def may_be_so(mutation: Mutation) -> bool:
    """Tell whether a value that is wrong for most keys is right for this one."""
    right = {"factor": 1.5, "vision_feature_layer": -7}  # the seventh from the last
    return mutation.path[-1] in right and mutation.value == right[mutation.path[-1]]


def is_same(found: ModelShape, original: ModelShape, mutation: Mutation) -> bool:
    """Tell whether nothing that sizing reads has changed.

    Two bytes are two bytes, whatever the type. An encoder that cannot be counted is a note.
    """
    free: dict[str, Any] = {"digest": "", "notes": ()}
    if mutation.path[-1] in {"torch_dtype", "dtype"}:
        free["weight_format"] = original.weight_format
    if mutation.is_of_encoder:
        free |= {"encoder_parameters": 0, "num_uncounted_encoders": 0}
        free |= {"encoder_token_bytes": 0, "encoder_split_token_bytes": 0}
        free |= {"encoder_item_tokens": 0}
        is_noted = any("not counted" in note for note in found.notes)
        if found.encoder_parameters != original.encoder_parameters and mutation.is_wrong:
            assert is_noted, mutation.path
    return replace(found, **free) == replace(original, **free)


@pytest.mark.parametrize("name", models())
def test_two_names_of_a_key_with_different_numbers_are_refused(name: str) -> None:
    for path in keys_in(models()[name]):
        key = path[-1]
        value = text_of(models()[name]).get(key)
        others = other_names(name, key) - {key, *LENGTHS}
        if isinstance(value, bool) or not isinstance(value, int) or len(path) > 2:
            continue
        for other in (other for other in others if "." not in other):
            config = copy.deepcopy(models()[name])
            text_of(config)[other] = value + 1
            found = outcome(config)

            if isinstance(found, str):
                assert other in found, (key, other)
            else:
                assert found.groups == shape_from_config(models()[name], name="m").groups, other


def test_the_memory_for_reading_is_bounded_by_the_size_of_the_file() -> None:
    wide = {f"key{number}": [[number]] * 4 for number in range(20_000)}
    text = json.dumps(built_in_config(MODELS[0]) | {"layers": wide})
    tracemalloc.start()
    read_model_config(text, name="m")
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert len(text) < MIB
    assert peak_bytes < 64 * MIB


@given(data=st.data())
def test_no_mutation_crashes_or_yields_a_senseless_shape(data: st.DataObject) -> None:
    config = copy.deepcopy(models()[data.draw(st.sampled_from(sorted(models())))])
    for _ in range(data.draw(st.integers(min_value=1, max_value=3))):
        mutate(config, data)
    found = outcome(config)

    if isinstance(found, str):
        assert found.startswith("model m: ")
    else:
        assert_sensible(found)


def assert_sensible(shape: ModelShape) -> None:
    assert 0 < num_active_parameters(shape) <= num_parameters(shape)
    assert shape.weight_format.bytes_per_parameter > 0
    assert shape.max_position_tokens is None or shape.max_position_tokens > 0
    assert all(group.num_layers > 0 for group in shape.groups)


def mutate(config: dict[str, Any], data: st.DataObject) -> None:
    block: Any = config
    inner = [key for key, value in config.items() if isinstance(value, dict) and value]
    if inner and data.draw(st.booleans()):
        block = config[data.draw(st.sampled_from(sorted(inner)))]
    key = data.draw(st.sampled_from(sorted(block)) | st.sampled_from(sorted(DECIDES)))
    if data.draw(st.booleans()):
        block.pop(key, None)
    else:
        block[key] = data.draw(anything)


@given(value=anything)
def test_any_json_value_is_refused_by_an_error_of_ours(value: object) -> None:
    with pytest.raises(CatalogError):
        read_model_config(json.dumps(value), name="m")


@given(text=st.text(max_size=200))
def test_any_text_is_refused_by_an_error_of_ours(text: str) -> None:
    with pytest.raises(CatalogError):
        read_model_config(text, name="m")


@given(block=anything)
def test_any_quantization_block_is_understood_or_refused_by_an_error_of_ours(
    block: object,
) -> None:
    config = built_in_config("meta-llama/Llama-3.1-8B-Instruct") | {"quantization_config": block}
    found = outcome(config)

    assert isinstance(found, str) != (block is None or block == {})  # vLLM reads {} as none
