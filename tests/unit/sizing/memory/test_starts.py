"""Whether an engine starts: more slots than blocks for states, and graphs outside the cache."""

from dataclasses import replace

import pytest

from builders import a_sizing_request, an_slo, decoding_only
from tonnage.catalog.engine import find_engine
from tonnage.catalog.gpu import built_in_gpus
from tonnage.catalog.models import built_in_model
from tonnage.sizing.errors import WillNotStartError
from tonnage.sizing.memory.starts import start_doubts
from tonnage.sizing.options import switches_in
from tonnage.sizing.parallelism.draft import rank_of
from tonnage.sizing.request import Flags
from tonnage.sizing.search import size
from tonnage.sizing.serving.flags import largest_fitting, replica_under, start_figures
from tonnage.sizing.split import Parallelism
from tonnage.units import GIB


def asked(model, gpu, version, *, context_tokens=32_768, arguments=(), **changes):
    shape = built_in_model(model)
    return a_sizing_request(
        shape=shape,
        weights=shape.weight_format,
        gpu=built_in_gpus()[gpu],
        engine=find_engine(version),
        context_tokens=context_tokens,
        switches=switches_in(arguments),
        slo=an_slo(tpot_s=0.5),
        **changes,
    )


def flags_with(seqs, *, utilization=0.92, tokens=8192, split=None):
    return Flags(
        max_num_seqs=seqs,
        max_num_batched_tokens=tokens,
        gpu_memory_utilization=utilization,
        parallelism=split or Parallelism(),
    )


def figures_of(request, flags):
    request = replace(request, flags=flags)
    replica = replica_under(request, rank_of(request, flags.parallelism), flags)
    return start_figures(request, replica, flags)


def with_slots(figures, seqs):
    return replace(figures, flags=replace(figures.flags, max_num_seqs=seqs))


def codes(figures):
    return [each.code for each in start_doubts(figures)]


TP2, DP2 = Parallelism(tensor=2), Parallelism(data=2)
REFUSED = [
    # kaito-project/kaito issue 2319
    ("Qwen/Qwen3.6-27B", "H100-NVL", "0.25", 0.92, 32_768, None, 614),
    # vllm-project/recipes pull 551; Qwen3.6-27B-FP8 has this shape
    ("Qwen/Qwen3.8-27B-FP8", "H100", "0.22", 0.95, 262_144, None, 856),
    # NVIDIA-AI-Blueprints/retail-shopping-assistant pull 95
    ("nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-FP8", "H100", "0.20", 0.92, 32_768, TP2, 524),
    # vllm-project/vllm pull 38632: two data-parallel ranks with whole experts
    ("nvidia/Qwen3.5-397B-A17B-NVFP4", "B200", "0.20", 0.92, 32_768, DP2, 600),
]


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: f"{case[0]}-{case[-1]}")
def test_the_default_slots_of_a_server_exceed_the_blocks_that_vllm_counted(case):
    model, gpu, version, utilization, context_tokens, split, recorded = case
    request = asked(model, gpu, version, context_tokens=context_tokens)
    figures = figures_of(request, flags_with(1024, utilization=utilization, split=split))

    [doubt] = start_doubts(figures)
    least, most = figures.blocks_range

    assert least <= recorded <= most < 1024
    assert doubt.code == "WillNotStart"
    assert f"set --max-num-seqs to at most {least}" in doubt.message


def test_slots_within_the_range_of_the_blocks_may_be_too_many():
    figures = figures_of(asked("Qwen/Qwen3.6-27B", "H100-NVL", "0.25"), flags_with(650))
    least, most = figures.blocks_range

    def code_of(seqs):
        return codes(with_slots(figures, seqs))

    assert code_of(least) == []
    assert code_of(least + 1) == code_of(most) == ["MayNotStart"]
    assert code_of(most + 1) == ["WillNotStart"]


def test_more_memory_is_a_cure_where_all_of_the_board_would_do():
    figures = figures_of(asked("Qwen/Qwen3.6-27B", "H100-NVL", "0.25"), flags_with(700))
    [enough], [too_many] = (start_doubts(with_slots(figures, seqs)) for seqs in (700, 1024))

    assert enough.message.endswith(", or raise --gpu-memory-utilization")
    assert "utilization" not in too_many.message


@pytest.mark.parametrize(
    ("version", "arguments"),
    [
        ("0.19", ()),  # captures fewer graphs in place of a refusal
        ("0.25", ("--enforce-eager",)),
        ("0.25", ("-O1",)),
        ("0.25", ("-O", "0")),
        ("0.33", ("--optimization-level=1",)),
        ("0.25", ("--compilation-config", '{"cudagraph_mode": "PIECEWISE"}')),
        ("0.25", ("-cc.cudagraph_mode=none",)),
    ],
)
def test_blocks_are_no_limit_where_no_graph_of_a_decode_step_is_captured(version, arguments):
    request = asked("Qwen/Qwen3.6-27B", "H100-NVL", version, arguments=arguments)

    assert codes(figures_of(request, flags_with(1024))) == []


@pytest.mark.parametrize("mode", ["FULL", "FULL_DECODE_ONLY", "full_and_piecewise"])
def test_every_mode_with_full_graphs_is_checked(mode):
    arguments = ("-O1", f'--compilation-config={{"cudagraph_mode":"{mode}"}}')
    request = asked("Qwen/Qwen3.6-27B", "H100-NVL", "0.25", arguments=arguments)

    assert codes(figures_of(request, flags_with(1024))) == ["WillNotStart"]


def test_blocks_that_a_flag_gives_are_exact():
    flags = replace(flags_with(301), num_gpu_blocks=300)
    figures = figures_of(asked("Qwen/Qwen3.6-27B", "H100-NVL", "0.25"), flags)

    assert figures.blocks_range == (300, 300)
    assert codes(figures) == ["WillNotStart"]
    assert codes(with_slots(figures, 300)) == []


def test_a_model_without_states_has_no_such_limit():
    request = asked("meta-llama/Llama-3.1-8B-Instruct", "H100", "0.25")

    assert codes(figures_of(request, flags_with(2048))) == []


def test_flags_that_no_engine_starts_with_are_refused_and_measured_ones_are_not():
    request = replace(
        asked("Qwen/Qwen3.6-27B", "H100-NVL", "0.25"), flags=flags_with(1024), num_gpus=1
    )

    with pytest.raises(WillNotStartError, match="exceeds the 616 state blocks"):
        size(request, confirms=False).check_start()

    assert size(replace(request, measured_kv_tokens=448_000), confirms=False).start_doubts == ()


@pytest.mark.parametrize(
    ("model", "gpu", "split"),
    [
        ("Qwen/Qwen3.6-27B", "H100", None),
        ("Qwen/Qwen3.8-27B-FP8", "RTX-5090", TP2),
        ("cyankiwi/Kimi-Linear-48B-A3B-Instruct-AWQ-4bit", "RTX-3090", TP2),
        ("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", "H100", None),
        ("nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-FP8", "H100", TP2),
    ],
)
def test_chosen_slots_start_though_the_cache_is_as_small_as_it_may_be(model, gpu, split):
    request = replace(
        asked(model, gpu, "0.33", workload=decoding_only(200)), slo=an_slo(), context_tokens=2048
    )

    chosen = largest_fitting(request, rank_of(request, split or Parallelism()))
    figures = start_figures(request, chosen.replica, chosen.flags)

    assert figures.checks_states
    assert 1 <= chosen.flags.max_num_seqs <= figures.blocks_range[0]


def laptop():
    """The board of vllm-project/vllm issue 57475: 22.36 GiB, a hybrid in nvfp4, one slot."""
    request = asked("Inferact/Qwen3.8-27B-NVFP4", "RTX-5090", "0.30", context_tokens=8192)
    return replace(request, gpu=replace(request.gpu, memory_bytes=int(22.36 * GIB)))


def of_graphs(figures):
    return [each for each in start_doubts(figures) if "CUDA graphs" in each.message]


@pytest.mark.parametrize(("utilization", "is_doubted"), [(0.98, True), (0.97, False)])
def test_graphs_ran_out_of_memory_at_98_percent_of_a_laptop_and_not_at_97(utilization, is_doubted):
    figures = figures_of(laptop(), flags_with(1, utilization=utilization, tokens=2048))

    assert bool(of_graphs(figures)) is is_doubted


def test_what_leaves_room_for_graphs_is_named():
    figures = figures_of(laptop(), flags_with(1, utilization=0.98, tokens=2048))
    [given], [chosen] = (of_graphs(replace(figures, are_chosen=each)) for each in (False, True))

    assert given.message.endswith(
        "set --gpu-memory-utilization to at most 0.97, or --enforce-eager"
    )
    assert chosen.message.endswith('; add "--enforce-eager" to engine.args')


@pytest.mark.parametrize(
    ("are_chosen", "field"), [(False, "--max-model-len"), (True, "contextLength")]
)
def test_a_cache_that_may_be_short_of_one_request_names_the_longest_that_starts(are_chosen, field):
    # 128 KiB a token: 1 GiB holds 8,192.
    request = asked("meta-llama/Llama-3.1-8B-Instruct", "H100", "0.25", context_tokens=16_384)
    figures = figures_of(request, flags_with(64))
    figures = replace(figures, pool_range_bytes=(GIB, 4 * GIB), are_chosen=are_chosen)

    [doubt] = start_doubts(figures)
    enough = replace(figures, pool_range_bytes=(2 * GIB, 4 * GIB))

    assert doubt.code == "MayNotStart"
    assert "may be 1.0 GiB short of one request of 16384 tokens" in doubt.message
    assert doubt.message.endswith(f"; set {field} to at most 8192")
    assert codes(enough) == []
    assert codes(replace(figures, pool_range_bytes=(GIB, 1.9 * GIB))) == ["WillNotStart"]


def test_graphs_are_captured_twice_with_adapters():
    # 1.88 GiB outside: 1.0 GiB of doubt is within it, twice that is not.
    figures = figures_of(
        asked("Qwen/Qwen3.6-35B-A3B", "H100", "0.25"), flags_with(256, utilization=0.98)
    )

    assert codes(figures) == []
    assert codes(replace(figures, has_adapters=True)) == ["MayNotStart"]


@pytest.mark.parametrize(
    ("model", "gib", "utilization"),
    # What 1,024 slots on an H200 captured, and a share that leaves less.
    [("meta-llama/Llama-3.1-8B-Instruct", 0.98, 0.989), ("Qwen/Qwen3-32B", 1.87, 0.983)],
)
def test_graphs_that_the_version_does_not_estimate_grow_with_the_layers(model, gib, utilization):
    request = asked(model, "H200", "0.26")
    default, full = (figures_of(request, flags_with(1024, utilization=share))
                     for share in (0.92, utilization))  # fmt: skip

    assert codes(default) == []
    [doubt] = of_graphs(full)
    taken = float(doubt.message.partition("may take ")[2].partition(" GiB")[0])
    assert taken == pytest.approx(gib, rel=0.15)
