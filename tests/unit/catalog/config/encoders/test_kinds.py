"""Encoders of images and sound beside the text part: how many parameters the engine loads."""

from typing import Any

import pytest

from tonnage.catalog.config.encoders.kinds import read_encoders
from tonnage.catalog.config.read import shape_from_config
from tonnage.catalog.models import built_in_config, built_in_model
from tonnage.catalog.parameters import num_parameters
from tonnage.catalog.shape import ModelShape
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

QWEN2_TEXT: dict[str, Any] = {
    "hidden_size": 3584,
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "intermediate_size": 18_944,
    "vocab_size": 152_064,
    "use_sliding_window": False,
    "tie_word_embeddings": False,
}
QWEN2_VL_7B: dict[str, Any] = {
    "model_type": "qwen2_vl",
    "text_config": QWEN2_TEXT | {"model_type": "qwen2_vl_text"},
    "vision_config": {
        "depth": 32,
        "embed_dim": 1280,
        "hidden_size": 3584,
        "mlp_ratio": 4,
        "num_heads": 16,
        "in_chans": 3,
        "patch_size": 14,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
    },
}
QWEN2_5_VL_7B: dict[str, Any] = {
    "model_type": "qwen2_5_vl",
    "text_config": QWEN2_TEXT | {"model_type": "qwen2_5_vl_text"},
    "vision_config": {
        "depth": 32,
        "hidden_size": 1280,
        "intermediate_size": 3420,
        "num_heads": 16,
        "in_chans": 3,
        "out_hidden_size": 3584,
        "patch_size": 14,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
    },
}
QWEN3_VL_8B: dict[str, Any] = {
    "model_type": "qwen3_vl",
    "text_config": {
        "model_type": "qwen3_vl_text",
        "hidden_size": 4096,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "intermediate_size": 12_288,
        "vocab_size": 151_936,
        "tie_word_embeddings": False,
    },
    "vision_config": {
        "depth": 27,
        "hidden_size": 1152,
        "intermediate_size": 4304,
        "num_heads": 16,
        "patch_size": 16,
        "num_position_embeddings": 2304,
        "deepstack_visual_indexes": [8, 16, 24],
    },
}
GEMMA_4_E4B_VISION = {
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 16,
    "num_attention_heads": 12,
    "num_key_value_heads": 12,
    "head_dim": 64,
    "patch_size": 16,
    "position_embedding_size": 10_240,
}
INTERN_VIT_300M = {
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 24,
    "image_size": 448,
    "patch_size": 14,
    "qkv_bias": True,
    "qk_normalization": False,
    "norm_type": "layer_norm",
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
KIMI_K3_VISION = built_in_config("moonshotai/Kimi-K3")["vision_config"]


def all_parameters(shape: ModelShape) -> int:
    return num_parameters(shape) + shape.encoder_parameters


def encoders(model_type: str, *, text_width: int, **outer: Any) -> tuple[int, tuple[str, ...]]:
    found = read_encoders(
        {"model_type": model_type, "text_config": {}, **outer},
        text_path=("text_config",),
        text_width=text_width,
    )
    return found.num_parameters, found.notes


@pytest.mark.parametrize("model", EXACT)
def test_with_its_encoders_a_model_has_all_parameters_of_the_reference_class(model: str) -> None:
    assert all_parameters(built_in_model(model)) == EXACT[model]


@pytest.mark.parametrize(
    ("config", "total"),
    [
        (QWEN2_VL_7B, 8_291_375_616),
        (QWEN2_5_VL_7B, 8_292_166_656),
        (QWEN3_VL_8B, 8_767_123_696),
    ],
    ids=["Qwen2-VL", "Qwen2.5-VL", "Qwen3-VL"],
)
def test_the_encoders_of_qwen_are_counted_whole(config: dict[str, Any], total: int) -> None:
    assert all_parameters(shape_from_config(config, name="m")) == total


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
def test_an_encoder_is_what_a_published_total_has_beside_its_text_part(model_type: str) -> None:
    text_width, outer, text_billions, billions = PUBLISHED[model_type]

    found, _ = encoders(model_type, text_width=text_width, **outer)

    assert found / GB == pytest.approx(billions - text_billions, abs=0.01)


def test_smaller_relatives_are_counted_alike() -> None:
    siglip = 412_926_192  # 27 layers of 1152 and 4304, 26 x 26 positions, the last norm
    merged = 4 * 1152
    gated = (merged + 1) * 36_864 + (36_864 // 2 + 1) * 12_288
    outer = {"vision_config": SIGLIP}

    assert encoders("cohere2_vision", text_width=12_288, **outer)[0] == siglip + gated
    assert encoders("smolvlm", text_width=2048, **outer)[0] == siglip + merged * 2048
    assert encoders("smolvlm", text_width=2048, scale_factor=3, **outer)[0] == (
        siglip + 9 * 1152 * 2048
    )


def test_layers_behind_the_one_that_is_read_are_not_loaded() -> None:
    config = built_in_config("llava-hf/llava-v1.6-mistral-7b-hf")
    one_layer = 4 * (1024 * 1024 + 1024) + 2 * 1024 * 4096 + 4096 + 1024 + 4 * 1024

    by_layer = {
        layer: shape_from_config(config | {"vision_feature_layer": layer}, name="m")
        for layer in (-1, -2)
    }

    assert by_layer[-1].encoder_parameters - by_layer[-2].encoder_parameters == one_layer
    # All of CLIP-L at 336 pixels but the norm behind its last layer, two matrices, one vector.
    assert by_layer[-1].encoder_parameters == 303_507_456 - 2 * 1024 + 20_979_712 + 4096


def test_gemma_4_hears_and_sees() -> None:
    seen, _ = encoders("gemma4", text_width=2560, vision_config=GEMMA_4_E4B_VISION)
    both, notes = encoders(
        "gemma4",
        text_width=2560,
        vision_config=GEMMA_4_E4B_VISION,
        audio_config={"hidden_size": 1024},
    )

    # Encoder and projector in transformers 5.23, for images and for sound.
    assert seen == 167_364_608 + 1_966_080
    assert both - seen == 304_824_608 + 3_932_160
    assert notes == (
        "vision_config counts with 169 million parameters in 16 bits",
        "audio_config counts with 309 million parameters in 16 bits",
    )


def test_kimi_k3_has_an_encoder_without_biases_and_wider_inside() -> None:
    layer = 4 * 1024 * 1536 + 2 * 1024 * 4096 + 2 * 1024
    projector = 4096 * 4096 + 4096 * 7168 + 7168
    embedding = 3 * 14 * 14 * 1024 + 64 * 64 * 1024

    found, _ = encoders("kimi_k3", text_width=7168, vision_config=KIMI_K3_VISION)

    assert found == embedding + 27 * layer + 1024 + projector


def test_intern_vit_has_the_published_size() -> None:
    projector = 2 * 4096 + 4096 * 3584 + 3584 + 3584 * 3584 + 3584

    found, _ = encoders(
        "internvl_chat", text_width=3584, downsample_ratio=0.5, vision_config=INTERN_VIT_300M
    )

    assert found - projector == pytest.approx(304_000_000, rel=0.001)


@pytest.mark.parametrize("key", ["vision_config", "patch_size", "intermediate_size"])
def test_an_encoder_that_cannot_be_counted_is_a_note_that_names_the_gap(key: str) -> None:
    config = built_in_config("google/gemma-3-12b-it")
    del (config if key == "vision_config" else config["vision_config"])[key]

    shape = shape_from_config(config, name="m")

    reason = "it is missing" if key == "vision_config" else f"{key} is missing"
    assert shape.encoder_parameters == 0
    assert shape.notes == (
        f"vision_config is not counted and needs memory beside the rest: {reason}",
    )


@pytest.mark.parametrize(
    ("model_type", "vision", "reason"),
    [
        ("gemma3", 5, "5 is no object"),
        ("llava", {"model_type": "eva", "hidden_size": 1024}, "model_type = 'eva' is no encoder"),
        ("llama4", {"hidden_size": "wide"}, "hidden_size = 'wide'"),
        ("qwen3_vl", {"hidden_size": 1152}, "deepstack_visual_indexes is missing"),
        ("kimi_k25", {"vt_hidden_size": 1152}, "intermediate_size is missing"),
        ("internvl_chat", INTERN_VIT_300M, "downsample_ratio is missing"),
        (
            "mistral3",
            {
                "model_type": "pixtral",
                "num_hidden_layers": 24,
                "hidden_size": 1024,
                "intermediate_size": 4096,
                "patch_size": 14,
                "vision_feature_layer": -30,
            },
            "vision_feature_layer = -30 is none of the 24 layers",
        ),
    ],
)
def test_an_encoder_that_is_not_understood_is_a_note(
    model_type: str, vision: object, reason: str
) -> None:
    found, notes = encoders(model_type, text_width=4096, vision_config=vision)

    assert found == 0
    assert reason in notes[0]


def test_a_wrapper_of_unknown_encoders_says_that_they_need_memory() -> None:
    assert encoders("gemma3n", text_width=2048) == (
        0,
        ("only text_config counts: other encoders need memory beside it",),
    )


def test_a_block_that_is_null_means_no_encoder() -> None:
    shape = built_in_model("google/gemma-4-31B")  # audio_config: null

    assert shape.notes == ("vision_config counts with 576 million parameters in 16 bits",)


def test_what_cannot_be_counted_is_counted_as_that() -> None:
    config = {"model_type": "gemma3n", "text_config": {}}
    gap = read_encoders(config, text_path=("text_config",), text_width=2048)

    assert (gap.num_parameters, gap.num_uncounted) == (0, 1)
    assert all(built_in_model(model).num_uncounted_encoders == 0 for model in EXACT)


def test_a_text_model_has_no_towers() -> None:
    shape = built_in_model("meta-llama/Llama-3.1-8B-Instruct")

    assert (shape.encoder_parameters, shape.notes) == (0, ())
