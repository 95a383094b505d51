"""What an engine would not start with is refused with the rule and the numbers."""

import tomllib
from dataclasses import replace

import pytest

from builders import a_shape
from tonnage.catalog.config.architectures.kinds import UNDERSTOOD
from tonnage.catalog.engine_limits import (
    LIMITS_FILE,
    Use,
    cache_refusal,
    flag_refusals,
    method_assumptions,
    refusals,
)
from tonnage.catalog.gpu import built_in_gpus

GPUS = built_in_gpus()
USE = Use(
    engine_minor="0.33", gpu=GPUS["H100"], shape=a_shape(model_type="llama"), weights_name="bf16",
    cache="bf16",
)  # fmt: skip


def use_of(**shape: str) -> Use:
    return replace(USE, shape=replace(USE.shape, **shape))


@pytest.mark.parametrize("name", [name for name, gpu in GPUS.items() if gpu.has_bf16])
def test_16_bits_run_on_every_board_since_ampere(name: str) -> None:
    assert list(refusals(replace(USE, gpu=GPUS[name]))) == []


def test_a_version_needs_a_capability() -> None:
    volta = replace(USE, gpu=GPUS["V100-16GB"])

    assert list(refusals(replace(volta, engine_minor="0.14"))) == []
    assert list(refusals(volta)) == [
        "vLLM from 0.21 on needs compute capability 7.5, V100-16GB (volta) has 7.0; earlier "
        "versions run on it"
    ]


@pytest.mark.parametrize(
    ("name", "weights", "is_refused"),
    [
        ("T4", "mxfp4", True),
        ("T4", "int4", False),
        ("A100-40GB", "mxfp4", False),
        ("A100-40GB", "fp8", False),  # unpacked to 16 bits
    ],
)
def test_a_format_of_weights_needs_a_capability(name: str, weights: str, is_refused: bool) -> None:
    found = list(refusals(replace(USE, gpu=GPUS[name], weights_name=weights)))

    assert bool(found) == is_refused


def test_a_cache_in_fp8_needs_kernels_for_it() -> None:
    turing = replace(USE, gpu=GPUS["T4"], cache="fp8")

    assert cache_refusal(turing) == (
        "a cache in fp8 needs compute capability 8.0, T4 (turing) has 7.5"
    )
    assert cache_refusal(replace(turing, gpu=GPUS["RTX-3090"])) is None
    assert cache_refusal(replace(turing, cache="bf16")) is None


def test_a_kind_that_was_given_up_is_refused_from_then_on() -> None:
    minimax = use_of(model_type="minimax_text_01")

    assert list(refusals(replace(minimax, engine_minor="0.23"))) == []
    assert list(refusals(minimax)) == [
        "vLLM serves models of the kind minimax_text_01 up to 0.23 only"
    ]


def test_a_kind_is_refused_before_the_version_that_it_came_with() -> None:
    gemma = use_of(model_type="gemma4")

    assert list(refusals(replace(gemma, engine_minor="0.19"))) == []
    assert list(refusals(replace(gemma, engine_minor="0.18"))) == [
        "vLLM serves models of the kind gemma4 from 0.19 on"
    ]


@pytest.mark.parametrize(
    ("kind", "last_without", "first"),
    [
        ("gemma4_unified", "0.22", "0.23"),
        ("glm_moe_dsa", "0.15", "0.16"),
        ("kimi_k25", "0.14", "0.15"),
        ("kimi_linear", "0.11", "0.12"),
        ("mimo_v2_flash", "0.13", "0.14"),
        ("minimax_m2", "0.11", "0.12"),
        ("nemotron_h", "0.19", "0.20"),
        ("qwen4_exp", "0.28", "0.29"),
    ],
)
def test_a_kind_that_a_version_does_not_know_is_refused(
    kind: str, last_without: str, first: str
) -> None:
    use = use_of(model_type=kind)

    assert list(refusals(replace(use, engine_minor=first))) == []
    assert list(refusals(replace(use, engine_minor=last_without))) == [
        f"vLLM serves models of the kind {kind} from {first} on"
    ]


def test_a_format_of_weights_needed_more_of_a_board_in_early_versions() -> None:
    turing = replace(USE, gpu=GPUS["T4"], weights_name="fp8")

    assert list(refusals(replace(turing, engine_minor="0.14"))) == []
    assert list(refusals(replace(turing, engine_minor="0.13"))) == [
        "weights in fp8 needs compute capability 8.0, T4 (turing) has 7.5"
    ]


@pytest.mark.parametrize(
    ("board", "method", "weights", "last_without", "first"),
    [
        ("A100-40GB", "modelopt", "fp8", "0.26", "0.27"),
        ("T4", "compressed-tensors", "int4", "0.13", "0.14"),
    ],
)
def test_a_method_of_quantization_needed_more_than_others(
    board: str, method: str, weights: str, last_without: str, first: str
) -> None:
    use = replace(use_of(quant_method=method), gpu=GPUS[board], weights_name=weights)
    awq = replace(use.shape, quant_method="awq")
    other = replace(use, shape=awq, engine_minor=last_without)

    assert list(refusals(replace(use, engine_minor=first))) == []
    assert len(list(refusals(replace(use, engine_minor=last_without)))) == 1
    assert list(refusals(other)) == []


def test_a_flag_is_refused_before_the_version_that_knows_it() -> None:
    given = ("--seed=7", "--performance-mode=throughput", "--enable-mfu-metrics")

    assert list(flag_refusals("0.17", given)) == []
    assert list(flag_refusals("0.13", given)) == [
        "--performance-mode is known to vLLM from 0.17 on",
        "--enable-mfu-metrics is known to vLLM from 0.14 on",
    ]


@pytest.mark.parametrize(
    ("method", "last_without", "first_with", "word"),
    [
        ("bitsandbytes", "0.27", "0.28", "vllm-bnb-plugin"),  # vllm-project/vllm#43529
        ("hqq", "0.14", "0.15", "plugin"),
        ("fbgemm_fp8", "0.12", "0.14", "--allow-deprecated-quantization"),
    ],
)
def test_what_a_version_needs_for_a_method_is_assumed_and_named(
    method: str, last_without: str, first_with: str, word: str
) -> None:
    [assumed] = method_assumptions(method, first_with)

    assert not list(method_assumptions(method, last_without))
    assert assumed.effect == "start"
    assert word in assumed.taken


# QUANTIZATION_METHODS of layers/quantization/__init__.py in 0.15, 0.16 and 0.17.
def test_a_method_of_modelopt_is_refused_before_the_version_that_has_it() -> None:
    mixed = use_of(quant_method="modelopt_mixed")

    assert list(refusals(mixed)) == []
    assert list(refusals(replace(mixed, engine_minor="0.16"))) == [
        "vLLM takes checkpoints of modelopt_mixed from 0.17 on"
    ]


def test_gptq_without_symmetry_is_refused_after_the_version_that_has_it() -> None:
    asymmetric = use_of(quant_method="asymmetric gptq")

    assert list(refusals(replace(asymmetric, engine_minor="0.21"))) == []
    assert list(refusals(asymmetric)) == [
        "vLLM takes checkpoints of asymmetric gptq up to 0.21 only"
    ]


def test_a_kind_of_which_no_release_tells_has_no_first_version() -> None:
    assert list(refusals(replace(USE, engine_minor="0.11"))) == []


def test_what_float16_breaks_is_refused_where_there_is_nothing_else() -> None:
    gemma = replace(use_of(model_type="gemma3"), gpu=GPUS["T4"])

    assert list(refusals(gemma)) == [
        "models of the kind gemma3 do not run in float16, and T4 has no bf16"
    ]
    assert list(refusals(replace(gemma, gpu=GPUS["L4"]))) == []


def test_a_board_of_an_unknown_generation_is_not_judged() -> None:
    mine = replace(GPUS["T4"], generation="")

    assert list(refusals(replace(USE, gpu=mine, weights_name="mxfp4"))) == []


def test_the_file_names_known_generations_and_kinds() -> None:
    limits = tomllib.loads(LIMITS_FILE.read_text())

    assert {gpu.generation for gpu in GPUS.values()} <= set(limits["generations"])
    first = set(limits["first_version"]) - {"source"}
    assert {*first, *limits["last_version"], *limits["float16"]["refused"]} <= set(UNDERSTOOD)
