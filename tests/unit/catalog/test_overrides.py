"""What --hf-overrides changes of a model, as vLLM takes it over."""

import json

import pytest

from tonnage.catalog.config.keys.decoder import ModelConfigError
from tonnage.catalog.engine import positions_of
from tonnage.catalog.models import (
    built_in_config,
    built_in_model,
    overrides_in,
    read_model_config,
    with_overrides,
)

QWEN = "Qwen/Qwen3-8B"
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32_768}


@pytest.mark.parametrize(
    ("overrides", "minor", "longest"),
    [
        ({}, "0.33", 40_960),
        ({"rope_scaling": YARN}, "0.29", 131_072),
        ({"rope_scaling": YARN}, "0.33", 40_960),  # vLLM stretches no YaRN by itself any more
        ({"rope_scaling": YARN, "max_position_embeddings": 131_072}, "0.33", 131_072),
        ({"rope_parameters": YARN, "max_position_embeddings": 131_072}, "0.33", 131_072),
    ],
)
def test_positions_are_stretched_as_the_version_does(overrides, minor, longest):
    shape = built_in_model(QWEN, json.dumps(overrides) if overrides else "")

    assert positions_of(shape, minor)[0] == longest


def test_blocks_of_their_own_are_merged_and_others_replaced():
    config = {
        "text_config": {"a": 1, "b": 2, "rope_parameters": {"x": 1}},
        "rope_scaling": {"y": 1},
    }
    overrides = {"text_config": {"b": 3, "rope_scaling": {"z": 1}}, "rope_scaling": None}

    assert with_overrides(config, json.dumps(overrides)) == {
        "text_config": {"a": 1, "b": 3, "rope_scaling": {"z": 1}},
        "rope_scaling": None,
    }


def test_a_class_may_be_overridden_in_a_file_too():
    text = json.dumps(built_in_config("Qwen/Qwen3-30B-A3B"))
    dense = read_model_config(text, name="m", overrides='{"architectures": ["Qwen3ForCausalLM"]}')

    assert built_in_model("Qwen/Qwen3-30B-A3B").has_experts
    assert not dense.has_experts


@pytest.mark.parametrize("value", ["[1]", "{", "x"])
def test_what_vllm_does_not_read_is_refused_by_name(value):
    with pytest.raises(ModelConfigError, match=r"^--hf-overrides"):
        with_overrides({}, value)


def test_the_last_of_several_counts():
    assert overrides_in(["--seed=1", "--hf-overrides={}", "--hf-overrides=[]"]) == "[]"
    assert overrides_in(["--seed=1"]) == ""
