"""The models that ship with Tonnage: all are found, each is sized or refused by name."""

from pathlib import Path

import pytest
import yaml

from tonnage.catalog.gpu import CatalogError
from tonnage.catalog.models import (
    MODELS_FOLDER,
    built_in_model,
    full_model_name,
    model_names,
    model_origin,
)

# Every model whose measured speed or capacity Tonnage is checked against, under the name that the
# measurements use.
MEASURED = """
meta-llama/Llama-2-7b
meta-llama/Llama-2-7b-hf
meta-llama/Llama-2-70b
meta-llama/Llama-2-70b-hf
meta-llama/Meta-Llama-3-8B
meta-llama/Meta-Llama-3-8B-Instruct
meta-llama/Meta-Llama-3.1-8B
Meta-Llama-3.1-8B
meta-llama/Llama-3.1-8B-Instruct
nvidia/Llama-3.1-8B-Instruct-FP8
meta-llama/Meta-Llama-3.1-70B
meta-llama/Llama-3.1-70B
meta-llama/Llama-3.1-70B-Instruct
Meta-Llama-3.1-70B-Instruct
hugging-quants/Meta-Llama-3.1-70B-Instruct-AWQ-INT4
neuralmagic/Meta-Llama-3.1-70B-Instruct-quantized.w8a8
RedHatAI/Llama-3.3-70B-Instruct-FP8-dynamic
meta-llama/Meta-Llama-3.1-405B
Hermes-3-Llama-3.1-405B
meta-llama/Llama-3.2-1B
meta-llama/Llama-3.2-3B
unsloth/Llama-3.2-3B-Instruct
meta-llama/Llama-4-Maverick-17B-128E-Instruct
codellama/CodeLlama-34b-Instruct-hf
mistralai/Mistral-7B-v0.1
TheBloke/Mistral-7B-Instruct-v0.2-GPTQ
mistralai/Mistral-7B-Instruct-v0.3
Mistral-7B-Instruct-v0.3
mistralai/Mistral-Nemo-Instruct-2407
Mistral-Nemo-Instruct-2407
mistralai/Mistral-Small-24B-2501
RedHatAI/Mistral-Small-3.1-24B-Instruct-2503-quantized.w8a8
mistralai/Mistral-Large-2407
Mistral-Large-Instruct-2407
mistralai/Mixtral-8x7B-v0.1
Mixtral-8x7B-Instruct-v0.1
mistralai/Mixtral-8x22B-v0.1
Mixtral-8x22B-Instruct-v0.1
Qwen/Qwen2-7B
Qwen/Qwen2-7B-Instruct
Qwen/Qwen2-72B
Qwen/Qwen2.5-1.5B
Qwen/Qwen2.5-7B
Qwen/Qwen2.5-14B
Qwen/Qwen2.5-32B
Qwen/Qwen2.5-72B
Qwen/Qwen2.5-7B-Instruct
Qwen/Qwen2.5-32B-Instruct
deepseek-ai/DeepSeek-R1-Distill-Qwen-14B
Qwen/Qwen2.5-Math-1.5B
Qwen/Qwen2.5-Omni-7B
Qwen/Qwen3-0.6B
Qwen/Qwen3-1.7B
Qwen/Qwen3-4B
Qwen/Qwen3-8B
Qwen/Qwen3-14B
Qwen/Qwen3-32B
Qwen/Qwen3-30B-A3B
Qwen/Qwen3-235B-A22B
Qwen/Qwen3-8B-FP8
Qwen/Qwen3-235B-A22B-FP8
Qwen/Qwen3-235B-A22B-Instruct-2507-FP8
Qwen/Qwen3-Coder-480B-A35B-Instruct
Qwen/Qwen3-Coder-480B-A35B-Instruct-FP8
QuantTrio/Qwen3-VL-235B-A22B-Instruct-FP8
QuantTrio/Qwen3-VL-235B-A22B-Instruct-AWQ
Qwen/Qwen3-Next-80B-A3B-Instruct
Qwen/Qwen3.5-9B
Qwen/Qwen3.5-27B
Qwen/Qwen3.5-35B-A3B
Qwen/Qwen3.5-122B-A10B
Qwen/Qwen3.5-397B-A17B
Qwen/Qwen3.6-27B
Qwen/Qwen3.6-35B-A3B
Qwen3.6-35B-A3B NVFP4 (modelopt)
RedHatAI/Qwen3.6-35B-A3B-NVFP4
Qwen/Qwen3.8-27B-FP8
Inferact/Qwen3.8-27B-NVFP4
wtdcode/Qwen3.8-Flash-Next-AWQ-W4A16
deepseek-ai/DeepSeek-V3
deepseek-ai/DeepSeek-R1
deepseek-ai/DeepSeek-V3.2
deepseek-ai/DeepSeek-V4-Flash
deepseek-ai/DeepSeek-V4-Pro
moonshotai/Kimi-K2-Instruct
moonshotai/Kimi-K2-Thinking
moonshotai/Kimi-K2.5
moonshotai/Kimi-K2.6
moonshotai/Kimi-K3
cyankiwi/Kimi-Linear-48B-A3B-Instruct-AWQ-4bit
zai-org/GLM-4.5
zai-org/GLM-4.5-Air
zai-org/GLM-5
zai-org/GLM-5.2
zai-org/GLM-5.1-FP8
openai/gpt-oss-20b
openai/gpt-oss-120b
google/gemma-7b
google/gemma-2-9b
google/gemma-2-27b
google/gemma-3-4b-it
google/gemma-3-12b-it
google/gemma-3-27b-it
google/gemma-4-12b-it
google/gemma-4-26B-A4B
google/gemma-4-31B
microsoft/phi-4
microsoft/Phi-3.5-mini-instruct
microsoft/Phi-4-mini-instruct
nvidia/Nemotron-H-56B-Base-8K
nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16
nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-FP8
nvidia/NVIDIA-Nemotron-3-Ultra-550B-A55B-BF16
MiniMaxAI/MiniMax-M2.5
MiniMax-M2.5 NVFP4
MiniMaxAI/MiniMax-M3
XiaomiMiMo/MiMo-V2-Flash
ByteDance-Seed/Seed-OSS-36B-Instruct
bigscience/bloom
llava-hf/llava-v1.6-mistral-7b-hf
""".strip().splitlines()

CERTAINTIES = {"verbatim", "assembled", "recalled, count agrees", "recalled"}
FAMILIES = sorted(path for path in MODELS_FOLDER.glob("*.yaml") if path.stem != "index")


@pytest.mark.parametrize("model", MEASURED)
def test_a_measured_model_is_sized(model: str) -> None:
    shape = built_in_model(model)

    assert shape.num_layers > 0
    assert len(shape.digest) == 12


def test_every_model_of_the_catalogue_is_sized() -> None:
    assert len(MEASURED) == 120
    assert all(built_in_model(name).num_layers for name in model_names())


@pytest.mark.parametrize(
    ("asked", "name"),
    [
        ("meta-llama/Llama-3.3-70B-Instruct", "meta-llama/Llama-3.3-70B-Instruct"),
        ("META-LLAMA/llama-3.3-70b-instruct", "meta-llama/Llama-3.3-70B-Instruct"),
        ("Llama-3.3-70B-Instruct", "meta-llama/Llama-3.3-70B-Instruct"),
        ("qwen3-8b", "Qwen/Qwen3-8B"),
        ("gpt-oss-120b", "openai/gpt-oss-120b"),
        ("kimi-k2.6", "moonshotai/Kimi-K2.6"),
        ("llama-3-8b", "meta-llama/Meta-Llama-3-8B"),
        ("llama-3-70b", "meta-llama/Meta-Llama-3-70B"),
        ("llama-3-405b", "meta-llama/Meta-Llama-3.1-405B"),
        ("meta-llama/Llama-3.1-8B", "meta-llama/Meta-Llama-3.1-8B"),
    ],
)
def test_a_model_is_found_by_hub_id_in_any_case_by_short_name_and_by_alias(
    asked: str, name: str
) -> None:
    assert built_in_model(asked).name == name


def test_another_publisher_is_another_model() -> None:
    with pytest.raises(CatalogError, match="'someone/Qwen3-8B' is not in the catalogue"):
        built_in_model("someone/Qwen3-8B")


def test_an_unknown_model_lists_near_names_and_the_way_out() -> None:
    with pytest.raises(CatalogError) as refusal:
        built_in_model("meta-llama/Llama-3.3-70B-Instrct")

    assert "did you mean meta-llama/Llama-3.3-70B-Instruct" in str(refusal.value)
    assert "config.json (spec.model.config; for plan and compare" in str(refusal.value)


def test_a_short_name_of_several_models_is_refused_with_their_names() -> None:
    models = {"a/M": "a/M", "b/M": "b/M"}

    with pytest.raises(CatalogError, match="short for several: a/M, b/M"):
        full_model_name("m", models)


def test_the_index_lists_what_the_files_hold() -> None:
    index = yaml.safe_load((MODELS_FOLDER / "index.yaml").read_text())

    held = {path.stem: list(yaml.safe_load(path.read_text())["models"]) for path in FAMILIES}

    assert {family: list(models) for family, models in index.items()} == held


def test_no_name_or_alias_stands_for_two_models() -> None:
    index = yaml.safe_load((MODELS_FOLDER / "index.yaml").read_text())
    known = [
        known
        for models in index.values()
        for name, aliases in models.items()
        for known in (name, *(aliases or ()))
    ]

    assert len({name.casefold() for name in known}) == len(known)


@pytest.mark.parametrize("path", FAMILIES, ids=lambda path: path.stem)
def test_each_configuration_says_where_it_comes_from(path: Path) -> None:
    family = yaml.safe_load(path.read_text())
    changed = [
        model
        for model in family["models"].values()
        if {"overrides", "quantization_config"} & model.keys()
    ]

    for block in [*family["shapes"].values(), *changed]:
        assert block["source"]
        assert block["certainty"] in CERTAINTIES


def test_the_origin_of_a_checkpoint_names_its_shape_and_its_weights() -> None:
    origin = model_origin("moonshotai/Kimi-K2.6")

    assert "moonshotai--Kimi-K2.5_config.json" in origin.source
    assert origin.certainty == "verbatim, assembled"
