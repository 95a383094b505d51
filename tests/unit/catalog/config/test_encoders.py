"""Encoders of images and sound beside the text part: how many parameters the engine loads."""

from typing import Any

import pytest

from builders import a_shape
from tonnage.catalog.config.encoders import with_encoders
from tonnage.catalog.config.read import shape_from_config
from tonnage.catalog.models import built_in_config, built_in_model, model_names
from tonnage.catalog.parameters import num_parameters
from tonnage.catalog.shape import ModelShape, StoredWeights
from tonnage.catalog.stored import apply_checkpoint
from tonnage.units import GB, GIB

# Parameters of the whole classes in transformers 5.23, built without weights; for those that it
# does not count as parameters, the biases of the routers: layers with experts times experts.
EXACT = {
    "google/gemma-3-4b-it": 4_300_079_472,
    "google/gemma-3-12b-it": 12_187_325_040,
    "google/gemma-3-27b-it": 27_432_406_640,
    "google/gemma-4-12b-it": 11_959_730_176,
    "google/gemma-4-31B": 31_273_086_512,
    "meta-llama/Llama-4-Scout-17B-16E-Instruct": 108_641_793_536,
    "meta-llama/Llama-4-Maverick-17B-128E-Instruct": 401_583_781_376,
    "QuantTrio/Qwen3-VL-235B-A22B-Instruct-FP8": 235_670_022_896,
    "Qwen/Qwen3.5-9B": 9_409_813_744,
    "Qwen/Qwen3.5-27B": 27_356_728_560,
    "Qwen/Qwen3.5-35B-A3B": 35_107_181_936,
    "Qwen/Qwen2.5-Omni-7B": 8_931_813_888,  # the thinker: what vLLM loads
    "moonshotai/Kimi-K2.5": 1_026_879_353_328 + 60 * 384,
    "MiniMaxAI/MiniMax-M3": 427_040_132_864 + 57 * 128,
}

SIGLIP = {
    "model_type": "siglip_vision_model",
    "hidden_size": 1152,
    "intermediate_size": 4304,
    "num_hidden_layers": 27,
    "image_size": 364,
    "patch_size": 14,
}
GLM_VISION = {
    "hidden_size": 1536,
    "out_hidden_size": 4096,
    "intermediate_size": 13_696,
    "depth": 24,
    "image_size": 336,
    "patch_size": 14,
}
INTERN_VIT_AS_TRANSFORMERS_WRITES_IT = {
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 24,
    "image_size": [448, 448],
    "patch_size": [14, 14],
    "attention_bias": True,
    "use_qk_norm": False,
    "norm_type": "layer_norm",
}
# Of published totals: (model type, width of its text part, that part's billions, total billions).
PUBLISHED: dict[str, tuple[int, dict[str, Any], float, float]] = {
    "aya_vision": (  # Aya Vision 8B
        4096,
        {"vision_config": SIGLIP, "alignment_intermediate_size": 28_672},
        8.03,
        8.63,
    ),
    "glm4v": (4096, {"vision_config": GLM_VISION}, 9.40, 10.29),  # GLM 4.1V 9B
    "idefics3": (4096, {"vision_config": SIGLIP}, 8.03, 8.46),  # Idefics3 8B
    "internvl": (3584, {"vision_config": INTERN_VIT_AS_TRANSFORMERS_WRITES_IT}, 7.616, 7.94),
    "llava_onevision": (  # LLaVA-OneVision 7B
        3584,
        {"vision_config": SIGLIP | {"num_hidden_layers": 26, "image_size": 384}},
        7.616,
        8.03,
    ),
}


def all_parameters(shape: ModelShape) -> int:
    return num_parameters(shape) + shape.encoder_parameters


def encoders(model_type: str, *, text_width: int, **outer: Any) -> tuple[int, tuple[str, ...]]:
    config = {"model_type": model_type, "text_config": {}, **outer}
    found = with_encoders(a_shape(hidden_size=text_width), config, ("text_config",), None)
    return found.encoder_parameters, found.notes


@pytest.mark.parametrize("model", EXACT)
def test_with_its_encoders_a_model_has_all_parameters_of_the_reference_class(model: str) -> None:
    assert all_parameters(built_in_model(model)) == EXACT[model]


@pytest.mark.parametrize(
    ("model", "billions"),
    [
        ("google/gemma-4-26B-A4B", 25.81),
        ("RedHatAI/Mistral-Small-3.1-24B-Instruct-2503-quantized.w8a8", 24.01),
    ],
)
def test_with_its_encoder_a_model_has_the_published_size(model: str, billions: float) -> None:
    assert all_parameters(built_in_model(model)) == pytest.approx(billions * GB, rel=0.001)


@pytest.mark.parametrize(
    ("model", "measured_gib"),
    [
        ("Qwen/Qwen2.5-Omni-7B", 16.7371),  # vLLM 0.10.2, bf16
        ("llava-hf/llava-v1.6-mistral-7b-hf", 14.08),  # vLLM 0.10.2, fp16
    ],
)
def test_two_bytes_each_are_the_weights_that_vllm_printed(model: str, measured_gib: float) -> None:
    loaded_gib = 2 * all_parameters(built_in_model(model)) / GIB

    assert loaded_gib == pytest.approx(measured_gib, rel=0.01)


@pytest.mark.parametrize("model_type", PUBLISHED)
def test_a_bound_is_no_less_than_a_published_total_has_beside_its_text_part(
    model_type: str,
) -> None:
    text_width, outer, text_billions, billions = PUBLISHED[model_type]

    found, _ = encoders(model_type, text_width=text_width, **outer)

    assert billions - text_billions - 0.01 <= found / GB <= 2.1 * (billions - text_billions)


def test_no_model_of_the_catalogue_has_more_than_its_bound() -> None:
    for name in model_names():
        known, bound = built_in_model(name), shape_from_config(built_in_config(name), name="m")

        if not bound.num_uncounted_encoders:
            assert known.encoder_parameters <= bound.encoder_parameters, name
            assert bound.encoder_parameters <= 1.75 * known.encoder_parameters, name


def test_a_bound_counts_gated_blocks_and_a_square_projector() -> None:
    found, notes = encoders("gemma3", text_width=2560, vision_config=SIGLIP)

    assert found == 27 * (4 * 1152**2 + 3 * 1152 * 4304) + (4 * 1152 + 2560) ** 2
    assert notes == (
        "vision_config counts with 596 million parameters in 16 bits, no fewer than it has: "
        "its safetensors files say how many",
    )


def test_sound_counts_beside_images() -> None:
    sound = {"d_model": 1280, "encoder_layers": 32, "encoder_ffn_dim": 5120}
    seen, _ = encoders("qwen2_5_omni", text_width=3584, vision_config=SIGLIP)
    both, notes = encoders(
        "qwen2_5_omni", text_width=3584, vision_config=SIGLIP, audio_config=sound
    )

    assert both - seen == 32 * (4 * 1280**2 + 3 * 1280 * 5120) + (4 * 1280 + 3584) ** 2
    assert len(notes) == 2


def test_the_files_of_a_checkpoint_say_what_its_encoders_have() -> None:
    shape = shape_from_config(built_in_config("google/gemma-3-12b-it"), name="m")
    files = StoredWeights(encoders=2 * 421_290_864)

    assert shape.encoder_parameters > 421_290_864
    assert apply_checkpoint(shape, files).encoder_parameters == 421_290_864


@pytest.mark.parametrize("key", ["vision_config", "num_hidden_layers", "intermediate_size"])
def test_an_encoder_that_cannot_be_counted_is_a_note_that_names_the_gap(key: str) -> None:
    config = built_in_config("google/gemma-3-12b-it")
    del (config if key == "vision_config" else config["vision_config"])[key]

    shape = shape_from_config(config, name="m")

    reason = "it is missing" if key == "vision_config" else f"{key} is missing"
    assert (shape.encoder_parameters, shape.num_uncounted_encoders) == (0, 1)
    assert shape.notes == (
        f"vision_config is not counted and needs memory beside the rest: {reason}",
    )


@pytest.mark.parametrize(
    ("vision", "reason"),
    [
        (5, "5 is no object"),
        ({"hidden_size": "wide"}, "hidden_size = 'wide'"),
        ({"vt_hidden_size": 1152, "depth": 27}, "intermediate_size is missing"),
    ],
)
def test_an_encoder_that_is_not_understood_is_a_note(vision: object, reason: str) -> None:
    found, notes = encoders("llama4", text_width=4096, vision_config=vision)

    assert found == 0
    assert reason in notes[0]


def test_a_block_that_is_null_means_no_encoder() -> None:
    config = built_in_config("google/gemma-4-31B")

    assert config["audio_config"] is None
    assert shape_from_config(config, name="m").num_uncounted_encoders == 0
    assert built_in_model("google/gemma-4-31B").notes == (
        "encoders count with 576 million parameters in 16 bits",
    )


def test_a_text_model_has_no_towers() -> None:
    shape = built_in_model("meta-llama/Llama-3.1-8B-Instruct")

    assert (shape.encoder_parameters, shape.notes) == (0, ())
