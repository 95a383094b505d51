"""Names of checkpoints: which base they have, which format they say, and what stays unknown."""

import json

import pytest

from tonnage.catalog.config.keys.decoder import ModelConfigError, UnknownArchitectureError
from tonnage.catalog.gpu import UnknownModelError
from tonnage.catalog.model_names import NameParts, name_parts
from tonnage.catalog.models import (
    built_in_config,
    built_in_model,
    model_names,
    model_origin,
    read_model_config,
)


@pytest.mark.parametrize(
    ("asked", "base", "weights"),
    [
        ("Qwen/Qwen3-32B-FP8", "Qwen/Qwen3-32B", "fp8"),
        ("Qwen/Qwen2.5-72B-Instruct-AWQ", "Qwen/Qwen2.5-72B-Instruct", "int4"),
        ("TheBloke/Mixtral-8x7B-Instruct-v0.1-GPTQ", "mistralai/Mixtral-8x7B-v0.1", "int4"),
        ("casperhansen/llama-3.3-70b-instruct-awq", "meta-llama/Llama-3.3-70B-Instruct", "int4"),
        ("nvidia/Llama-3.3-70B-Instruct-FP4", "meta-llama/Llama-3.3-70B-Instruct", "nvfp4"),
        ("neuralmagic/Meta-Llama-3.1-8B-Instruct-quantized.w8a8", "llama-3.1-8b", "int8"),
        ("RedHatAI/Meta-Llama-3.1-8B-Instruct-FP8-dynamic", "llama-3.1-8b", "fp8"),
        ("unsloth/Qwen3-8B", "Qwen/Qwen3-8B", "bf16"),
        ("Qwen/Qwen3-Next-80B-A3B-Thinking", "Qwen/Qwen3-Next-80B-A3B-Instruct", "bf16"),
        ("zai-org/GLM-5.1", "zai-org/GLM-5.1-FP8", "bf16"),
        ("nvidia/DeepSeek-R1-0528-NVFP4", "deepseek-ai/DeepSeek-R1-0528", "nvfp4"),
    ],
)
def test_a_name_leads_to_the_shape_of_its_base_and_to_its_format(
    asked: str, base: str, weights: str
) -> None:
    shape, expected = built_in_model(asked), built_in_model(base)

    assert shape.name == asked
    assert shape.groups == expected.groups
    assert shape.vocab_size == expected.vocab_size
    assert shape.weight_format.name == weights
    assert "counted with the shape of " in shape.notes[-1]


@pytest.mark.parametrize(
    ("name", "deed"),
    [
        ("google-bert/bert-base-uncased", "is an encoder"),
        ("answerdotai/ModernBERT-base", "is an encoder"),
        ("FacebookAI/xlm-roberta-large", "is an encoder"),
        ("openai/whisper-large-v3", "turns speech into text"),
    ],
)
def test_a_model_that_answers_no_texts_is_refused_by_what_it_is(name: str, deed: str) -> None:
    with pytest.raises(UnknownArchitectureError, match=f"by its name it {deed}"):
        built_in_model(name)


@pytest.mark.parametrize(
    "name",
    [
        "Qwen/Qwen3-Embedding-8B",
        "BAAI/bge-m3",
        "intfloat/e5-mistral-7b-instruct",
        "Alibaba-NLP/gte-Qwen2-7B-instruct",
        "sentence-transformers/all-MiniLM-L6-v2",
        "nomic-ai/nomic-embed-text-v1.5",
    ],
)
def test_a_model_that_embeds_texts_is_refused_by_what_it_is(name: str) -> None:
    llama = json.dumps({"architectures": ["LlamaForCausalLM"], "model_type": "llama"})

    with pytest.raises(UnknownArchitectureError, match="by its name it embeds or ranks texts"):
        built_in_model(name)
    with pytest.raises(UnknownArchitectureError, match="by its name it embeds or ranks texts"):
        read_model_config(llama, name=name)


def test_a_later_date_may_allow_longer_contexts() -> None:
    assert built_in_model("mistralai/Mistral-Large-Instruct-2411").max_position_tokens is None
    assert built_in_model("Qwen/Qwen3-32B-FP8").max_position_tokens == 40_960


@pytest.mark.parametrize(
    "asked",
    [
        "Qwen/Qwen3-9B",  # no such size
        "someone/Qwen3-8B-FP8",  # a publisher who may have changed anything
        "unsloth/Qwen3-8B-bnb-4bit",  # a format that is not priced
        "unsloth/Qwen3-8B-GGUF",
        "RedHatAI/Qwen3-8B-FP8-int4",  # two formats
        "mistralai/Mistral-7B-Instruct-v0.4",  # versions are no dates
    ],
)
def test_what_no_rule_covers_stays_unknown_with_near_names(asked: str) -> None:
    with pytest.raises(UnknownModelError, match=r"did you mean .*config\.json"):
        built_in_model(asked)


def test_versions_belong_to_the_base_and_dates_do_not() -> None:
    assert name_parts("a/Llama-3.1-8B-Instruct-2507") == NameParts(
        base=("llama", "3.1", "8b"), is_tuned=True, weight_format=None
    )
    assert name_parts("a/Mistral-7B-v0.3-AWQ") == NameParts(
        base=("mistral", "7b", "v0.3"), is_tuned=False, weight_format="int4"
    )


def test_the_origin_of_another_name_is_that_of_its_base() -> None:
    assert model_origin("Qwen/Qwen3-32B-FP8") == model_origin("Qwen/Qwen3-32B")


def test_a_name_of_the_catalogue_is_never_renamed() -> None:
    for name in model_names():
        assert not any("counted with the shape" in note for note in built_in_model(name).notes)


def test_a_flat_file_is_read_like_one_with_a_text_block() -> None:
    flat = built_in_config("Qwen/Qwen2.5-VL-7B-Instruct")

    shape = built_in_model("Qwen/Qwen2.5-VL-7B-Instruct")

    assert "text_config" not in flat
    assert shape.groups == built_in_model("Qwen/Qwen2.5-Omni-7B").groups
    assert shape.encoder_parameters == 676_550_144  # 8.29 billion with the text part


@pytest.mark.parametrize("name", ["acme/llama-3-8b-sft-e5", "acme/support-embed-llama-8b"])
def test_a_word_of_a_name_alone_makes_no_model_embed(name: str) -> None:
    llama = json.dumps({"architectures": ["LlamaForCausalLM"], "model_type": "llama"})

    with pytest.raises(ModelConfigError, match="hidden_size"):
        read_model_config(llama, name=name)
