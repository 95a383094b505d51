"""The layout of the cache against what engines printed, given the memory that they printed.

Rows are public start-up logs: their available KV memory, and the blocks, tokens and concurrency
that the same log has. Memory is printed to 0.01 GiB, which is what the tolerance allows for.
"""

from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path

import pytest
import yaml

from builders import BF16, a_layer_group, a_shape, a_sizing_request
from tonnage.api.objects import parse_model_deployment
from tonnage.catalog.cache_types import CACHE_TYPES, StoredCache
from tonnage.catalog.engine import known_engine
from tonnage.catalog.gpu import UnsupportedEngineError, built_in_gpus
from tonnage.catalog.models import built_in_model
from tonnage.sizing.errors import InvalidKvCacheError
from tonnage.sizing.memory.layout import cache_layout, default_block_tokens
from tonnage.sizing.options import DEFAULT_SWITCHES, EngineSwitches, switches_in
from tonnage.sizing.parallelism.kv import KvShare, kv_shares
from tonnage.sizing.parallelism.shard import shard_of, stage_fraction
from tonnage.sizing.request import ask, kv_cache_format, look_up
from tonnage.sizing.search import size
from tonnage.sizing.split import Parallelism
from tonnage.units import GIB

ROOT = Path(__file__).parents[4]
PRINT_ROUNDING_GIB = 0.005


@dataclass(frozen=True, kw_only=True)
class Log:
    """One start-up log. ``tokens`` and ``concurrency`` as printed."""

    model: str
    version: str
    available_gib: float
    tensor: int = 1
    pipeline: int = 1
    switches: EngineSwitches = DEFAULT_SWITCHES
    element_bytes: int = 2
    context_tokens: int = 8192
    batched_tokens: int = 8192
    block_tokens: int = 16
    tokens: int | None = None
    blocks: int | None = None
    concurrency: float | None = None


def layout_of(log):
    rules = log.switches.rules(known_engine(log.version).constants.cache)
    shape = built_in_model(log.model)
    shares = tuple(
        kv_shares(
            shape,
            cache=StoredCache(type=CACHE_TYPES["fp8" if log.element_bytes == 1 else "bf16"]),
            parallelism=Parallelism(tensor=log.tensor, pipeline=log.pipeline),
            stage_fraction=stage_fraction(shape.num_layers, log.pipeline),
            rules=rules,
        )
    )
    return cache_layout(shares, block_tokens=log.block_tokens, rules=rules)


def printed(log, available_gib):
    layout = layout_of(log)
    return layout.logged_figures(
        int(available_gib * GIB // layout.bytes_per_block),
        context_tokens=log.context_tokens,
        in_flight_tokens=layout.in_flight_tokens(log.batched_tokens),
    )


def layout_under(model, version, **settings):
    return layout_of(Log(model=model, version=version, available_gib=1, **settings))


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
        element_bytes=1, context_tokens=131_072, tokens=302_921, concurrency=2.31,
        switches=EngineSwitches(prefix_caching=True)),
    # The same cluster some days later, as 0.27 does by itself.
    Log(model="Qwen/Qwen3.8-27B-FP8", version="0.27", available_gib=4.99, tensor=2,
        element_bytes=1, context_tokens=131_072, tokens=313_367),
    Log(model="cyankiwi/Kimi-Linear-48B-A3B-Instruct-AWQ-4bit", version="0.11",
        available_gib=2.30, tensor=2, context_tokens=120_000, batched_tokens=64_000,
        tokens=75_840, concurrency=2.48),
    Log(model="google/gemma-4-12b-it", version="0.24", available_gib=8.16, tensor=2,
        context_tokens=131_072, batched_tokens=4096, tokens=384_019, concurrency=2.93),
]  # fmt: skip


@pytest.mark.parametrize(
    "log", LOGS, ids=lambda log: f"{log.model.rpartition('/')[2]}-{log.version}-{log.tokens}"
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
    layout = layout_of(LOGS[10])

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
    shares = kv_shares(built_in_model(model), parallelism=Parallelism(tensor=tensor))

    (states,) = (share for share in shares if share.state_bytes)
    assert states.state_bytes / states.num_layers == num_bytes


FLASH, PRO = "deepseek-ai/DeepSeek-V4-Flash", "deepseek-ai/DeepSeek-V4-Pro"
# Pages in multiples of 576: 64 entries of 584 bytes are 37,440; 64 keys of 132 are 8640; 2 entries
# are 1728; states of 4 tokens, 2 * 2 * 512 floats each, are 32,832, and of 128 wide ones 8640.


@pytest.mark.parametrize(
    ("model", "block_bytes"),
    [
        (FLASH, 21 * (37_440 + 8640) + 20 * 1728),
        (PRO, 30 * (37_440 + 8640) + 31 * 1728),
    ],
)
def test_compressed_caches_share_blocks_as_large_as_all_entries_and_keys(model, block_bytes):
    layout = layout_under(model, "0.33")

    # Entries and keys; the windows of all layers in two tables; states over 8 and over 128 tokens.
    assert sorted(group.block_tokens for group in layout.groups) == [4, 8, 64, 64, 256]
    assert layout.bytes_per_block == block_bytes


def test_a_compressed_cache_holds_far_less_in_decoding_than_is_reserved_for_prefill():
    layout = layout_under(FLASH, "0.33")

    # 128 blocks of entries, 2 * 3 of windows, 3 of states over 8 tokens, 17 over 128.
    assert layout.blocks_held(32_768) == 128 + 6 + 3 + 17
    # (127 + 16,384) / 64, (7 + 16,384) / 4 and (127 + 16,384) / 8, each begun blocks and one.
    reserved = 128 + 2 * (258 + 1) + (4098 + 1) + (2064 + 1)
    assert layout.blocks_reserved(32_768, in_flight_tokens=16_384) == reserved


def test_a_stage_of_a_pipeline_has_its_share_of_each_table():
    # 22 of 43 layers: 11 of 21 that overlap, 11 of 20 that do not.
    layout = layout_under(FLASH, "0.33", pipeline=2)

    assert layout.bytes_per_block == 11 * (37_440 + 8640) + 11 * 1728


def test_the_cache_of_compressed_attention_is_fp8_and_nothing_else():
    shape = built_in_model(FLASH)

    assert kv_cache_format("auto", shape, "0.33") == "fp8"
    with pytest.raises(InvalidKvCacheError, match="fp8 only"):
        size(a_sizing_request(shape=shape, kv_format="bf16"))


def test_versions_that_lay_out_compressed_caches_in_another_way_are_refused():
    request = a_sizing_request(
        shape=built_in_model(FLASH), kv_format="fp8", engine=known_engine("0.26")
    )

    with pytest.raises(UnsupportedEngineError, match=r"0\.26.*before 0\.27"):
        size(request)


NANO = "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16"
KIMI_LINEAR = "cyankiwi/Kimi-Linear-48B-A3B-Instruct-AWQ-4bit"


@pytest.mark.parametrize(
    ("model", "blocks"),
    [
        # Prefix caching of states is the default since 0.28; checkpoints came kind by kind.
        (NANO, {"0.27": 1, "0.28": 2, "0.31": 2, "0.32": 3}),
        ("Qwen/Qwen3.8-27B-FP8", {"0.27": 1, "0.28": 2, "0.32": 2, "0.33": 3}),
        ("moonshotai/Kimi-K3", {"0.27": 1, "0.28": 2, "0.29": 3, "0.33": 3}),
        (KIMI_LINEAR, {"0.27": 1, "0.28": 2, "0.33": 2}),
    ],
)
def test_a_state_has_a_block_for_prefixes_and_some_kinds_one_for_a_checkpoint(model, blocks):
    for version, expected in blocks.items():
        groups = layout_under(model, version).groups
        assert {group.state_blocks for group in groups if group.share.state_bytes} == {expected}


@pytest.mark.parametrize("version", ["0.20", "0.21", "0.22", "0.24"])
def test_the_line_of_tokens_is_a_product_since_0_21(version):
    # Gemma 3 12B: 512 blocks of the full group and 193 of each of five with a window.
    layout = layout_under("google/gemma-3-12b-it", version)
    figures = layout.logged_figures(6000, context_tokens=8192, in_flight_tokens=2048)

    product = int(6000 / (512 + 5 * 193) * 8192)
    assert figures.kv_tokens == (6000 // 6 * 16 if version == "0.20" else product)


@pytest.mark.parametrize(("version", "tokens"), [("0.24", 960), ("0.26", 960), ("0.27", 1024)])
def test_blocks_of_latent_attention_grow_in_steps_of_128_since_0_27(version, tokens):
    assert layout_under(KIMI_LINEAR, version, tensor=2).block_tokens == tokens


@pytest.mark.parametrize(("version", "tokens"), [("0.32", 1568), ("0.33", 1600)])
def test_blocks_beside_gated_delta_nets_grow_in_steps_of_64_since_0_33(version, tokens):
    layout = layout_under("Qwen/Qwen3.8-27B-FP8", version, tensor=2, element_bytes=1)

    assert layout.block_tokens == tokens


def test_chunks_are_kept_whole_before_0_14():
    # Llama 4 Scout: 12 full layers, 36 with chunks, each 2 * 8 * 128 elements of two bytes.
    model = "meta-llama/Llama-4-Scout-17B-16E-Instruct"
    old, new = layout_under(model, "0.13"), layout_under(model, "0.14")

    assert (len(old.groups), old.bytes_per_block) == (1, 48 * 4096 * 16)
    assert (len(new.groups), new.bytes_per_block) == (4, 12 * 4096 * 16)


def test_layers_are_grouped_over_all_stages_and_then_shared_out():
    # Gemma 3 12B on two stages: groups of 8 layers, of which each stage has 4.
    layout = layout_under("google/gemma-3-12b-it", "0.33", pipeline=2)

    assert len(layout.groups) == 6
    assert layout.bytes_per_block == 4 * 16 * 8192


def test_how_near_two_kinds_are_is_asked_of_whole_layers():
    # 24 layers are 1.5 times 16, not less: groups of 16, of which 17 of 40 layers are 7.
    kinds = tuple(
        KvShare(
            bytes_per_token=layers * 1024 * 17 / 40,
            num_layers=layers,
            stage_fraction=Fraction(17, 40),
            window_tokens=window,
        )
        for layers, window in ((16, None), (24, 128))
    )

    layout = cache_layout(kinds)

    assert len(layout.groups) == 3
    assert layout.bytes_per_block == 7 * 1024 * 16


class TestSwitches:
    def test_are_read_from_the_arguments_and_the_last_one_wins(self):
        read = switches_in(
            ["--seed=1", "--enforce-eager", "--async-scheduling", "--no-async-scheduling"]
        )

        assert read == EngineSwitches(is_eager=True, async_scheduling=False)
        assert switches_in(["--no-enable-prefix-caching"]).prefix_caching is False

    def test_a_block_size_that_is_asked_for_goes_before_the_default(self):
        # platforms/interface.py update_block_size_for_backend: user_specified_block_size.
        asked = switches_in(["--block-size", "32", "--seed", "1"]).block_tokens

        assert asked == 32
        assert switches_in(["--block_size=64"]).block_tokens == 64
        assert default_block_tokens(built_in_model("Qwen/Qwen3-8B"), asked) == 32
        assert default_block_tokens(built_in_model("deepseek-ai/DeepSeek-V4-Flash"), asked) == 256

    @pytest.mark.parametrize(
        ("version", "cache", "tensor", "drafts", "tokens"),
        [
            # github.com/noonghunna/club-3090, issue 1107: vLLM 0.27.1 on two RTX 5090
            ("0.27", "fp8", 2, 7, 1648),
            # github.com/vllm-project/vllm, pull request 46329, comment of 19 September 2026
            ("0.28", "fp8", 1, 3, 1600),
            ("0.28", "nvfp4", 1, 3, 2848),
        ],
    )
    def test_a_state_of_qwen3_8_27b_keeps_the_drafts_of_a_step(
        self, version, cache, tensor, drafts, tokens
    ):
        rules = replace(known_engine(version).constants.cache, state_draft_tokens=drafts)
        shares = kv_shares(
            built_in_model("Qwen/Qwen3.8-27B-FP8"),
            parallelism=Parallelism(tensor=tensor),
            rules=rules,
            cache=StoredCache(type=CACHE_TYPES[cache]),
        )

        assert cache_layout(tuple(shares), rules=rules).block_tokens == tokens

    def test_without_prefix_caching_a_state_has_one_block_and_no_alignment(self):
        layout = layout_under(
            "Qwen/Qwen3.8-27B-FP8", "0.33", tensor=2, element_bytes=1,
            switches=EngineSwitches(prefix_caching=False),
        )  # fmt: skip

        assert layout.block_tokens == 1568
        assert layout.blocks_reserved(131_072, in_flight_tokens=8192) == 84 + 3

    @pytest.mark.parametrize(
        ("version", "switch", "pipeline", "batches"),
        [
            ("0.33", None, 1, 2), ("0.33", False, 1, 1), ("0.33", None, 4, 5),
            ("0.33", False, 4, 4), ("0.25", None, 4, 1),
        ],
    )  # fmt: skip
    def test_windows_keep_the_batches_in_flight(self, version, switch, pipeline, batches):
        switches = EngineSwitches(async_scheduling=switch)
        layout = layout_under("google/gemma-3-12b-it", version, switches=switches)

        assert layout.in_flight_tokens(2048, pipeline) == batches * 2048

    def test_an_eager_engine_has_the_memory_of_cuda_graphs_for_its_cache(self):
        usual, eager = (
            size(a_sizing_request(switches=EngineSwitches(is_eager=is_eager)))
            for is_eager in (False, True)
        )

        graphs_bytes = usual.budget.bytes_of("CUDA graphs")
        assert graphs_bytes > 0
        assert eager.budget.bytes_of("CUDA graphs") == 0

    def test_of_a_spec_are_those_of_its_engine_arguments(self):
        text = (ROOT / "deploy" / "examples" / "qwen3-8b-l4.yaml").read_text()
        document = yaml.safe_load(text)
        document["spec"]["engine"]["args"] = ["--no-async-scheduling", "--enforce-eager"]
        spec = parse_model_deployment(document).spec

        request = ask(spec, look_up(spec, built_in_gpus()))

        assert request.switches == EngineSwitches(async_scheduling=False, is_eager=True)
        assert not request.cache_rules.schedules_async


def test_a_stage_has_whole_layers():
    # In floating point 15 / 29 * 29 is more than 15, and was rounded up to 16.
    group = a_layer_group(num_layers=29)

    shard = shard_of(
        a_shape(groups=(group,)),
        weights=BF16,
        parallelism=Parallelism(pipeline=2),
    )

    assert shard.num_layers == 15
    assert cache_layout(shard.kv).bytes_per_block == 15 * 16 * 4096
