"""The layout of the cache against what engines printed, given the memory that they printed.

Rows are public start-up logs: their available KV memory, and the blocks, tokens and concurrency
that the same log has. Memory is printed to 0.01 GiB, which is what the tolerance allows for.
"""

from dataclasses import dataclass

import pytest

from tonnage.catalog.engine import known_engine
from tonnage.catalog.models import built_in_model
from tonnage.sizing.cache import KvShare, cache_layout
from tonnage.sizing.kv import kv_shares
from tonnage.sizing.parallelism import Parallelism
from tonnage.units import GIB

PRINT_ROUNDING_GIB = 0.005


@dataclass(frozen=True, kw_only=True)
class Log:
    """One start-up log. ``tokens`` and ``concurrency`` as printed."""

    model: str
    version: str
    available_gib: float
    tensor: int = 1
    element_bytes: int = 2
    context_tokens: int = 8192
    batched_tokens: int = 8192
    block_tokens: int = 16
    tokens: int | None = None
    blocks: int | None = None
    concurrency: float | None = None


def layout_of(log):
    rules = known_engine(log.version).constants.cache
    shares = tuple(
        kv_shares(
            built_in_model(log.model),
            kv_element_bytes=log.element_bytes,
            parallelism=Parallelism(tensor=log.tensor),
            rules=rules,
        )
    )
    return cache_layout(shares, block_tokens=log.block_tokens, rules=rules)


def printed(log, available_gib):
    layout = layout_of(log)
    return layout.printed(
        int(available_gib * GIB // layout.bytes_per_block),
        context_tokens=log.context_tokens,
        in_flight_tokens=layout.in_flight_tokens(log.batched_tokens),
    )


LOGS = [
    Log(model="meta-llama/Llama-3.1-8B-Instruct", version="0.19", available_gib=58.11,
        element_bytes=1, tokens=952_032),
    Log(model="Qwen/Qwen2.5-7B", version="0.19", available_gib=58.53, tokens=1_096_000),
    Log(model="Qwen/Qwen3-14B", version="0.17", available_gib=45.34, concurrency=36.27),
    Log(model="QuantTrio/Qwen3-VL-235B-A22B-Instruct-FP8", version="0.11", available_gib=9.71,
        tensor=8, context_tokens=32_768, tokens=216_656, concurrency=6.61),
    Log(model="deepseek-ai/DeepSeek-R1", version="0.7", available_gib=21.43, tensor=8,
        context_tokens=128_000, blocks=18_418, concurrency=2.30),
    Log(model="zai-org/GLM-5.1-FP8", version="0.20", available_gib=34.86, tensor=8,
        block_tokens=64, context_tokens=202_752, tokens=373_696, concurrency=1.84),
    Log(model="zai-org/GLM-5.1-FP8", version="0.19", available_gib=32.11, tensor=8,
        block_tokens=64, context_tokens=202_752, tokens=344_192, concurrency=1.70),
    Log(model="MiniMaxAI/MiniMax-M2.5", version="0.16", available_gib=23.62, tensor=4,
        context_tokens=196_608, tokens=399_424, concurrency=2.03),
    Log(model="Qwen/Qwen3.8-27B-FP8", version="0.27", available_gib=4.99, tensor=2,
        element_bytes=1, context_tokens=131_072, tokens=302_921, concurrency=2.31),
    Log(model="cyankiwi/Kimi-Linear-48B-A3B-Instruct-AWQ-4bit", version="0.11",
        available_gib=2.30, tensor=2, context_tokens=120_000, batched_tokens=64_000,
        tokens=75_840, concurrency=2.48),
    Log(model="google/gemma-4-12b-it", version="0.24", available_gib=8.16, tensor=2,
        context_tokens=131_072, batched_tokens=4096, tokens=384_019, concurrency=2.93),
]  # fmt: skip


@pytest.mark.parametrize(
    "log", LOGS, ids=lambda log: f"{log.model.rpartition('/')[2]}-{log.version}"
)
def test_blocks_tokens_and_concurrency_are_those_of_the_log(log):
    least, most = (
        printed(log, log.available_gib + gap) for gap in (-PRINT_ROUNDING_GIB, PRINT_ROUNDING_GIB)
    )

    if log.blocks is not None:
        assert least.num_blocks <= log.blocks <= most.num_blocks
    if log.tokens is not None:
        assert least.kv_tokens <= log.tokens <= most.kv_tokens
    if log.concurrency is not None:
        assert least.max_concurrency - 0.005 <= log.concurrency <= most.max_concurrency + 0.005


def test_states_inflate_the_blocks_of_attention_to_their_own_size():
    # Qwen3.8-27B on two GPUs: 1,603,584 bytes of state against 1024 per token, in steps of 16.
    layout = layout_of(LOGS[8])

    assert layout.block_tokens == 1568
    assert len(layout.groups) == 4
    assert layout.bytes_per_block == 16 * 1568 * 1024


def test_blocks_of_latent_attention_beside_states_grow_in_steps_of_64():
    # Kimi-Linear on two GPUs: 942.2 tokens of 1152 bytes hold a state; 7 layers in each group.
    layout = layout_of(LOGS[9])

    assert layout.block_tokens == 960
    assert len(layout.groups) == 4
    assert layout.blocks_reserved(120_000, in_flight_tokens=64_000) == 125 + 3


def test_window_layers_are_cut_into_groups_as_large_as_the_full_ones():
    # Gemma 3 12B: 8 full layers, 40 with a window of 1024.
    layout = layout_of(Log(model="google/gemma-3-12b-it", version="0.19", available_gib=1))

    assert len(layout.groups) == 6
    assert layout.bytes_per_block == 8 * 16 * 8192
    # 512 blocks of the full group; 1023 + 2048 tokens in 192 blocks and one more, five times.
    assert layout.blocks_reserved(8192, in_flight_tokens=2048) == 512 + 5 * 193


def test_kinds_of_almost_equal_number_share_groups_of_the_larger():
    # gpt-oss-20b with a draft layer: 13 full and 12 window layers make two groups, not three.
    full = KvShare(bytes_per_token=13 * 1024.0, num_layers=13)
    window = KvShare(bytes_per_token=12 * 1024.0, num_layers=12, window_tokens=128)

    layout = cache_layout((full, window))

    assert len(layout.groups) == 2
    assert layout.bytes_per_block == 13 * 1024 * 16


def test_a_narrower_page_gets_a_longer_block_where_the_sizes_divide():
    full = KvShare(bytes_per_token=8 * 2048.0, num_layers=8)
    window = KvShare(bytes_per_token=8 * 4096.0, num_layers=8, window_tokens=1024)

    layout = cache_layout((full, window))

    assert [group.block_tokens for group in layout.groups] == [32, 16]


def test_an_engine_that_does_not_manage_windows_keeps_every_token():
    old, new = (known_engine(version).constants.cache for version in ("0.8", "0.19"))
    window = (KvShare(bytes_per_token=1024.0, window_tokens=1024),)

    assert cache_layout(window, rules=old).blocks_held(8192) == 512
    assert cache_layout(window, rules=new).blocks_held(8192) == 65


def test_a_sequence_with_states_only_takes_the_same_blocks_at_any_length():
    states = (KvShare(state_bytes=4096.0, num_layers=2),)

    layout = cache_layout(states)

    assert layout.blocks_held(100) == layout.blocks_held(100_000) == 2


@pytest.mark.parametrize(
    ("model", "tensor", "num_bytes"),
    [
        # tail of the convolution: 3 * (2 * 16 * 128 + 48 * 128) * 2; matrices: 48 * 128 * 128 * 4
        ("Qwen/Qwen3.5-27B", 1, 3 * 10_240 * 2 + 48 * 128 * 128 * 4),
        ("Qwen/Qwen3.5-27B", 2, (3 * 10_240 * 2 + 48 * 128 * 128 * 4) // 2),
    ],
)
def test_the_state_of_a_layer_is_split_over_tensor_parallel_ranks(model, tensor, num_bytes):
    shares = kv_shares(
        built_in_model(model), kv_element_bytes=2, parallelism=Parallelism(tensor=tensor)
    )

    (states,) = (share for share in shares if share.state_bytes)
    assert states.state_bytes / states.num_layers == num_bytes
