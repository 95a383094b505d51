"""The 16-bit type of a plan and the type of its cache, as they are written for each version."""

import json
from dataclasses import replace

import pytest

from fleet_builders import SITE, a_model
from tonnage.catalog.engine import newest_version
from tonnage.catalog.gpu import CatalogError, UnsupportedEngineError, built_in_gpus
from tonnage.catalog.models import built_in_config
from tonnage.manifests.children import deployment
from tonnage.sizing.errors import InvalidKvCacheError
from tonnage.sizing.request import ask, look_up
from tonnage.sizing.search import size
from tonnage.sizing.workload import Slo

LLAMA = "meta-llama/Llama-3.1-8B-Instruct"
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True}
FP8_CACHE = {"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}
MINORS = [f"0.{minor}" for minor in range(11, int(newest_version().partition(".")[2]) + 1)]


def written(model=LLAMA, *, gpu="H100", version="0.33", asked=None, **config):
    """(``--dtype``, ``--kv-cache-dtype``) for a checkpoint with these keys in its config.json."""
    spec = a_model(
        model={"id": model} | (asked or {}),
        hardware={"gpu": gpu, "gpusPerReplica": 8 if gpu in {"H200", "B200", "B300"} else 1},
        engine={"version": version},
        contextLength=4096,
        demand=None,
    )
    found = json.dumps(built_in_config(model) | config)
    known = look_up(spec.spec, built_in_gpus(), model_config=found)
    sizing = size(replace(ask(spec.spec, known), slo=Slo()))
    made = deployment(spec, sizing, SITE)
    [container] = made["spec"]["template"]["spec"]["containers"]
    args = container["args"]
    return tuple(args[args.index(flag) + 1] for flag in ("--dtype", "--kv-cache-dtype"))


@pytest.mark.parametrize("version", MINORS)
def test_a_16_bit_cache_is_auto_beside_the_checkpoints_own_type(version):
    assert written(version=version) == ("bfloat16", "auto")
    assert written(version=version, torch_dtype="float16") == ("float16", "auto")


@pytest.mark.parametrize("version", MINORS)
def test_a_cache_in_fp8_is_named(version):
    assert written(version=version, asked={"kvCache": "fp8"}) == ("bfloat16", "fp8")


def test_a_board_without_bf16_computes_in_float16():
    assert written("Qwen/Qwen3-0.6B", gpu="T4") == ("float16", "auto")
    assert written("Qwen/Qwen3-0.6B", gpu="T4", asked={"weights": "float16"}) == ("float16", "auto")


@pytest.mark.parametrize(
    ("keys", "dtype"),
    [
        ({"quantization_config": AWQ}, "bfloat16"),  # as declared, by Marlin
        ({"quantization_config": AWQ, "torch_dtype": "float16"}, "float16"),
        ({"quantization_config": AWQ, "torch_dtype": None}, "float16"),
        ({"quantization_config": AWQ | {"group_size": 16}}, "float16"),
        ({"quantization_config": AWQ | {"zero_point": False}}, "float16"),
        (
            {
                "quantization_config": AWQ | {"quant_method": "gptq", "sym": False},
                "version": "0.21",
            },
            "float16",
        ),
        ({"quantization_config": AWQ | {"quant_method": "gptq", "sym": True}}, "bfloat16"),
    ],
)
def test_integer_weights_have_a_type_that_their_kernels_take(keys, dtype):
    assert written(**keys) == (dtype, "auto")


def test_weights_asked_for_in_the_other_16_bit_type_are_cast():
    assert written(asked={"weights": "float16"}) == ("float16", "auto")
    assert written(asked={"weights": "bfloat16"}, torch_dtype="float16") == ("bfloat16", "auto")


def test_a_kind_that_float16_breaks_is_computed_in_bfloat16():
    gemma = "google/gemma-2-9b-it"

    assert written(gemma, torch_dtype="float16") == ("bfloat16", "auto")
    with pytest.raises(UnsupportedEngineError, match=r"^model\.weights: float16 .* is bfloat16"):
        written(gemma, asked={"weights": "float16"})


@pytest.mark.parametrize(("declared", "asked"), [("bfloat16", "float16"), ("float16", "bfloat16")])
def test_a_cache_in_the_other_16_bit_type_is_refused_by_name(declared, asked):
    with pytest.raises(CatalogError) as refused:
        written(asked={"kvCache": asked}, torch_dtype=declared)

    assert str(refused.value) == (
        f"model.kvCache: {asked} is not the type that {LLAMA} is computed in, which is {declared}, "
        "and 16-bit weights and caches have that type; leave it out"
    )
    assert written(asked={"kvCache": declared}, torch_dtype=declared) == (declared, "auto")


class TestACheckpointThatHasACacheInFp8:
    @pytest.mark.parametrize("version", MINORS)
    def test_gets_it_by_name(self, version):
        assert written(version=version, quantization_config=FP8_CACHE) == ("bfloat16", "fp8")

    @pytest.mark.parametrize(
        ("version", "named"), [("0.11", "auto"), ("0.13", "auto"), ("0.22", "bfloat16"),
                               ("0.33", "bfloat16")]
    )  # fmt: skip
    def test_gets_16_bits_where_the_version_can(self, version, named):
        found = written(
            version=version, asked={"kvCache": "bfloat16"}, quantization_config=FP8_CACHE
        )

        assert found == ("bfloat16", named)

    @pytest.mark.parametrize("version", ["0.14", "0.18", "0.21"])
    def test_is_refused_16_bits_where_it_cannot(self, version):
        with pytest.raises(InvalidKvCacheError) as refused:
            written(version=version, asked={"kvCache": "bfloat16"}, quantization_config=FP8_CACHE)

        assert str(refused.value) == (
            "model.kvCache: the checkpoint has a cache in fp8, and vLLM "
            f"{version} takes no 16 bits in its place; 0.22 and later do"
        )


@pytest.mark.parametrize(
    ("model", "gpu", "version", "cache"),
    [
        ("deepseek-ai/DeepSeek-V3.2", "H200", "0.11", "bfloat16"),
        ("deepseek-ai/DeepSeek-V3.2", "H200", "0.12", "auto"),
        ("deepseek-ai/DeepSeek-V3.2", "B200", "0.33", "auto"),
        ("zai-org/GLM-5", "B300", "0.31", "auto"),
        ("zai-org/GLM-5", "B300", "0.32", "bfloat16"),
    ],
)
def test_16_bits_are_named_where_a_kind_of_model_has_fp8_by_default(model, gpu, version, cache):
    assert written(model, gpu=gpu, version=version) == ("bfloat16", cache)


def test_a_flag_that_the_version_does_not_know_is_refused_by_name():
    spec = a_model(engine={"version": "0.14", "args": ["--performance-mode=throughput"]}).spec

    with pytest.raises(UnsupportedEngineError) as refused:
        look_up(spec, built_in_gpus())

    assert str(refused.value) == (
        "engine.args: --performance-mode is known to vLLM from 0.17 on, engine.version is 0.14"
    )


def test_expert_parallel_is_refused_of_a_model_without_experts():
    parallel = {"version": "0.33", "args": ["--enable-expert-parallel"]}
    experts = a_model(model={"id": "Qwen/Qwen3-30B-A3B"}, engine=parallel).spec
    dense = a_model(model={"id": "Qwen/Qwen3-32B"}, engine=parallel).spec

    assert look_up(experts, built_in_gpus()).shape.has_experts
    with pytest.raises(UnsupportedEngineError) as refused:
        look_up(dense, built_in_gpus())
    assert str(refused.value) == (
        "engine.args: --enable-expert-parallel needs a model with experts, Qwen/Qwen3-32B has none"
    )


def test_expert_parallel_of_the_spec_is_written_as_the_engine_is_told_it():
    def args(**parallelism):
        spec = a_model(
            model={"id": "Qwen/Qwen3-30B-A3B"},
            hardware={"gpu": "H100", "parallelism": {"tensor": 2, "pipeline": 1, **parallelism}},
            contextLength=4096,
            demand=None,
        )
        sizing = size(replace(ask(spec.spec, look_up(spec.spec, built_in_gpus())), slo=Slo()))
        made = deployment(spec, sizing, SITE)
        return made["spec"]["template"]["spec"]["containers"][0]["args"]

    assert "--enable-expert-parallel" in args(expert=True)
    assert "--enable-expert-parallel" not in args(expert=False)
    assert "--enable-expert-parallel" not in args()
    assert args()[args().index("--tensor-parallel-size") + 1] == "2"


def test_a_method_that_the_board_has_no_kernels_for_is_refused_by_version():
    keys = {"quantization_config": {"quant_method": "modelopt", "quant_algo": "FP8"}}

    assert written(gpu="A100-80GB", version="0.27", **keys) == ("bfloat16", "auto")
    with pytest.raises(
        UnsupportedEngineError, match=r"engine\.version 0\.26: weights in fp8 needs"
    ):
        written(gpu="A100-80GB", version="0.26", **keys)


GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": True, "sym": True}
ORDERED = (
    "0.33: vLLM takes quantized weights that are ordered by activation (desc_act, actorder) up"
)


def test_weights_ordered_by_activation_are_refused_from_0_30_on():
    assert written(version="0.29", quantization_config=GPTQ) == ("bfloat16", "auto")
    with pytest.raises(UnsupportedEngineError) as refused:
        written(version="0.33", quantization_config=GPTQ)
    assert str(refused.value) == f"engine.version {ORDERED} to 0.29 only"


@pytest.mark.parametrize("others", [{"desc_act": False}, {"group_size": -1}])
def test_weights_in_static_groups_or_in_one_have_no_order(others):
    assert written(version="0.33", quantization_config=GPTQ | others) == ("bfloat16", "auto")
