import pytest

from tonnage.catalog.config.read import shape_from_config
from tonnage.catalog.models import built_in_config, built_in_model

ROWS = {
    "meta-llama/Llama-3.1-8B-Instruct": 131_072 * 128,
    "meta-llama/Llama-4-Scout-17B-16E-Instruct": 10_485_760 * 128,
    "Qwen/Qwen3-Next-80B-A3B-Instruct": 262_144 * 64,
    "MiniMaxAI/MiniMax-M2.5": 196_608 * 64,
    "zai-org/GLM-4.5": 131_072 * 64,
    "microsoft/Phi-4-mini-instruct": 131_072 * 96,
    "openai/gpt-oss-20b": 131_072 * 64,
    "deepseek-ai/DeepSeek-V3": 163_840 * 64,
}


@pytest.mark.parametrize(("name", "elements"), ROWS.items())
def test_one_table_has_a_row_per_position_as_wide_as_heads_turn(name, elements):
    assert built_in_model(name).rotary_elements == elements


def test_window_layers_that_turn_at_another_rate_have_a_table_of_their_own():
    # Gemma 3 27B: the full layers stretch 131072 positions by 8, the window layers do not.
    assert built_in_model("google/gemma-3-27b-it").rotary_elements == 131_072 * (8 + 1) * 128
    # Gemma 4 31B: heads of 512 where layers are full, of 256 where they have windows.
    assert built_in_model("google/gemma-4-31B").rotary_elements == 262_144 * (512 + 256)


def test_positions_of_images_take_four_rows_each():
    assert built_in_model("Qwen/Qwen3.5-27B").rotary_elements == 4 * 262_144 * 64


def test_deepseek_v4_keeps_two_tables_in_32_bits():
    assert built_in_model("deepseek-ai/DeepSeek-V4-Flash").rotary_elements == 2 * 2 * 1_048_576 * 64


@pytest.mark.parametrize(
    "name",
    [
        "cyankiwi/Kimi-Linear-48B-A3B-Instruct-AWQ-4bit",
        "moonshotai/Kimi-K3",
        "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",
        "bigscience/bloom",
    ],
)
def test_a_model_whose_heads_do_not_turn_has_no_table(name):
    assert built_in_model(name).rotary_elements == 0


def test_a_file_may_say_that_heads_turn_in_part():
    config = {**built_in_config("Qwen/Qwen3-8B"), "partial_rotary_factor": 0.5}

    assert shape_from_config(config, name="half").rotary_elements == 40_960 * 64
