"""Parameter counts and cache widths of built-in models against published and computed tables."""

import pytest

from tonnage.catalog.models import built_in_model
from tonnage.catalog.parameters import num_active_parameters, num_parameters
from tonnage.catalog.shape import Attention, GroupedAttention, ModelShape
from tonnage.units import GB

# Totals of the tensors in the checkpoints' own indexes.
EXACT = {
    "meta-llama/Llama-3.1-8B-Instruct": 8_030_261_248,
    "meta-llama/Llama-2-7b-hf": 6_738_415_616,
    "Qwen/Qwen2.5-7B": 7_615_616_512,
    "Qwen/Qwen3-8B": 8_190_735_360,
    "Qwen/Qwen3-30B-A3B": 30_532_122_624,
    "mistralai/Mixtral-8x7B-v0.1": 46_702_792_704,
    "microsoft/phi-4": 14_659_507_200,
    "google/gemma-2-9b": 9_241_705_984,
    "google/gemma-2-27b": 27_227_128_320,
    "openai/gpt-oss-20b": 20_914_757_184,
    "ByteDance-Seed/Seed-OSS-36B-Instruct": 36_151_104_512,
    "bigscience/bloom": 176_247_271_424,
}

# model, billion parameters in all, billion that a token meets, cache bytes per token in 16 bits of
# the full layers, and of the window layers. Multimodal models: the text part. From a table that an
# independent counter made and compared with what the publishers state.
TABLE = [
    ("meta-llama/Meta-Llama-3.1-8B", 8.03, 8.03, 131_072, 0),
    ("meta-llama/Llama-3.2-1B", 1.24, 1.24, 32_768, 0),
    ("meta-llama/Llama-3.2-3B", 3.21, 3.21, 114_688, 0),
    ("meta-llama/Meta-Llama-3.1-70B", 70.55, 70.55, 327_680, 0),
    ("meta-llama/Meta-Llama-3.1-405B", 405.85, 405.85, 516_096, 0),
    ("meta-llama/Llama-4-Scout-17B-16E-Instruct", 107.77, 17.17, 49_152, 147_456),
    ("meta-llama/Llama-4-Maverick-17B-128E-Instruct", 400.71, 17.18, 49_152, 147_456),
    ("Qwen/Qwen2.5-1.5B", 1.54, 1.54, 28_672, 0),
    ("Qwen/Qwen2.5-7B", 7.62, 7.62, 57_344, 0),
    ("Qwen/Qwen2.5-32B", 32.76, 32.76, 262_144, 0),
    ("Qwen/Qwen2.5-72B", 72.7, 72.7, 327_680, 0),
    ("Qwen/Qwen2.5-14B", 14.77, 14.77, 196_608, 0),
    ("Qwen/Qwen3-0.6B", 0.6, 0.6, 114_688, 0),
    ("Qwen/Qwen3-1.7B", 1.72, 1.72, 114_688, 0),
    ("Qwen/Qwen3-4B", 4.02, 4.02, 147_456, 0),
    ("Qwen/Qwen3-8B", 8.19, 8.19, 147_456, 0),
    ("Qwen/Qwen3-14B", 14.77, 14.77, 163_840, 0),
    ("Qwen/Qwen3-32B", 32.76, 32.76, 262_144, 0),
    ("Qwen/Qwen3-30B-A3B", 30.53, 3.35, 98_304, 0),
    ("Qwen/Qwen3-235B-A22B", 235.09, 22.19, 192_512, 0),
    ("Qwen/Qwen3-Coder-480B-A35B-Instruct", 480.15, 35.47, 253_952, 0),
    ("deepseek-ai/DeepSeek-V3", 671.03, 37.55, 70_272, 0),
    ("deepseek-ai/DeepSeek-R1", 671.03, 37.55, 70_272, 0),
    ("moonshotai/Kimi-K2-Instruct", 1026.41, 32.86, 70_272, 0),
    ("moonshotai/Kimi-K2.5", 1026.41, 32.86, 70_272, 0),
    ("moonshotai/Kimi-K2.6", 1026.41, 32.86, 70_272, 0),
    ("zai-org/GLM-4.5", 352.8, 33.63, 376_832, 0),
    ("zai-org/GLM-4.5-Air", 106.85, 13.42, 188_416, 0),
    ("openai/gpt-oss-20b", 20.91, 4.19, 24_576, 24_576),
    ("openai/gpt-oss-120b", 116.79, 5.71, 36_864, 36_864),
    ("google/gemma-2-9b", 9.24, 9.24, 172_032, 172_032),
    ("google/gemma-2-27b", 27.23, 27.23, 188_416, 188_416),
    ("google/gemma-3-4b-it", 3.88, 3.88, 20_480, 118_784),
    ("google/gemma-3-12b-it", 11.77, 11.77, 65_536, 327_680),
    ("google/gemma-3-27b-it", 27.01, 27.01, 81_920, 425_984),
    ("google/gemma-4-26B-A4B", 25.23, 3.82, 20_480, 204_800),
    ("google/gemma-4-31B", 30.7, 30.7, 81_920, 819_200),
    ("mistralai/Mistral-7B-Instruct-v0.3", 7.25, 7.25, 131_072, 0),
    ("mistralai/Mistral-Small-24B-2501", 23.57, 23.57, 163_840, 0),
    ("mistralai/Mistral-Large-2407", 122.61, 122.61, 360_448, 0),
    ("mistralai/Mixtral-8x7B-v0.1", 46.7, 12.88, 131_072, 0),
    ("mistralai/Mixtral-8x22B-v0.1", 140.62, 39.15, 229_376, 0),
    ("MiniMaxAI/MiniMax-M2.5", 228.69, 11.03, 253_952, 0),
    ("microsoft/phi-4", 14.66, 14.66, 204_800, 0),
    ("microsoft/Phi-3.5-mini-instruct", 3.82, 3.82, 393_216, 0),
    ("microsoft/Phi-4-mini-instruct", 3.84, 3.84, 131_072, 0),
    ("XiaomiMiMo/MiMo-V2-Flash", 308.78, 15.45, 23_040, 199_680),
]


@pytest.mark.parametrize("model", EXACT)
def test_every_parameter_of_a_checkpoint_is_counted(model: str) -> None:
    assert num_parameters(built_in_model(model)) == EXACT[model]


@pytest.mark.parametrize(("model", "total", "active", "full", "window"), TABLE)
def test_totals_agree_with_the_table_within_one_percent(
    model: str, total: float, active: float, full: int, window: int
) -> None:
    shape = built_in_model(model)

    assert num_parameters(shape) == pytest.approx(total * GB, rel=0.01)
    assert num_active_parameters(shape) == pytest.approx(active * GB, rel=0.01)


@pytest.mark.parametrize(("model", "total", "active", "full", "window"), TABLE)
def test_cache_bytes_per_token_agree_with_the_table(
    model: str, total: float, active: float, full: int, window: int
) -> None:
    shape = built_in_model(model)

    assert cache_bytes(shape, windowed=False) == full
    assert cache_bytes(shape, windowed=True) == window


def test_a_dense_model_is_active_as_a_whole() -> None:
    shape = built_in_model("meta-llama/Meta-Llama-3.1-70B")

    assert num_active_parameters(shape) == num_parameters(shape)


def cache_bytes(shape: ModelShape, *, windowed: bool) -> int:
    """Two bytes for every element of keys and values, written out by hand."""
    return 2 * sum(
        num_layers * cache_elements(attention)
        for num_layers, attention in shape.attentions()
        if (window_of(attention) is not None) == windowed
    )


def window_of(attention: Attention) -> int | None:
    return attention.window_tokens if isinstance(attention, GroupedAttention) else None


def cache_elements(attention: Attention) -> int:
    if isinstance(attention, GroupedAttention):
        return attention.num_kv_heads * (attention.head_dim + attention.num_value_dims)
    return attention.kv_lora_rank + attention.qk_rope_head_dim
