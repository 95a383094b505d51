"""Every type of ``--kv-cache-dtype`` has the bytes of vLLM's own pages, or is refused by name."""

from dataclasses import replace

import pytest

from builders import a_sizing_request
from tonnage.catalog.cache_types import CACHE_TYPES, StoredCache, names_of, wide_layers
from tonnage.catalog.engine import find_engine, parse_version
from tonnage.catalog.gpu import built_in_gpus
from tonnage.catalog.models import built_in_model
from tonnage.sizing.checks import check_request, with_running_cache
from tonnage.sizing.errors import InvalidKvCacheError
from tonnage.sizing.memory.layout import cache_layout
from tonnage.sizing.options import switches_in
from tonnage.sizing.parallelism.draft import rank_of
from tonnage.sizing.parallelism.kv import kv_shares
from tonnage.sizing.provenance import Origin
from tonnage.sizing.request import kv_cache_format
from tonnage.sizing.split import Parallelism

GPUS = built_in_gpus()
DENSE, HYBRID = "meta-llama/Llama-3.3-70B-Instruct", "Qwen/Qwen3.6-27B"
MLA, SPARSE = "deepseek-ai/DeepSeek-V3", "deepseek-ai/DeepSeek-V3.2"
INDEX_BYTES = 132
"""Of an indexer in each layer: 128 elements and one scale."""
COMPRESSED = ["fp8_ds_mla", "fp8_e4m3"]
WINDOWS = "google/gemma-3-27b-it"

# CacheDType of vllm/config/cache.py: what each minor version added, from release to release. That
# of 0.10 has auto and the first three too.
ADDED = {
    "0.10": ["auto", "fp8", "fp8_e4m3", "fp8_e5m2", "fp8_inc"],
    "0.11": ["bfloat16"],
    "0.12": ["fp8_ds_mla"],
    "0.18": ["float16"],
    "0.20": [
        "turboquant_k8v4", "turboquant_4bit_nc", "turboquant_k3v4_nc", "turboquant_3bit_nc",
        "int8_per_token_head", "fp8_per_token_head", "nvfp4",
    ],
    "0.25": ["int4_per_token_head"],
    "0.28": ["nvfp4_4over6"],
    "0.30": ["nvfp4_ds_mla"],
    "0.32": ["ultraquant_4bit"],
    "0.33": ["octave_k3v4", "octave_k3v3", "octave_k3v3_compact"],
}  # fmt: skip
NAMES = [name for names in ADDED.values() for name in names]
ELSEWHERE = ["fp8_inc", "ultraquant_4bit", "octave_k3v4", "octave_k3v3", "octave_k3v3_compact"]


def running(model, name, *, version="0.33", gpu="B200", skipped=()):
    """The request of a target that runs with a cache of this type."""
    request = a_sizing_request(
        shape=built_in_model(model), gpu=GPUS[gpu], engine=find_engine(version), inputs=()
    )
    asked = ["--kv-cache-dtype-skip-layers", *skipped] if skipped else []
    request = replace(request, switches=switches_in(asked))
    return with_running_cache(request, "auto", {"--kv-cache-dtype": name})


def bytes_of(model, name, *, tensor=1, **changes):
    shard = rank_of(running(model, name, **changes), Parallelism(tensor=tensor))
    return sum(share.bytes_per_token for share in shard.kv)


def head_bytes(name, dims):
    """What vLLM 0.33 keeps of one token in one head: ``AttentionSpec.state_content_size_bytes``.

    v1/kv_cache_interface.py: ``(head_size + head_size_v) * get_dtype_size(dtype)``, unless the
    backend's ``customize_spec`` says another number: triton_attn.py (per token and head, with
    ``2 * get_dtype_size(float32)``), flashinfer.py (``2 * nvfp4_kv_cache_full_dim``: dims // 2
    and dims // 16), turboquant_attn.py (``TurboQuantConfig.slot_size_aligned``).
    """
    match name.split("_"):
        case ["turboquant", packed, *_]:
            key_bits, value_bits = {
                "k8v4": (8, 4), "4bit": (4, 4), "k3v4": (3, 4), "3bit": (3, 3),
            }[packed]  # fmt: skip
            key = dims if key_bits == 8 else -(-dims * key_bits // 8) + 2
            slot = key + -(-dims * value_bits // 8) + 4
            return slot + slot % 2
        case [kind, "per", "token", "head"]:
            return 2 * (dims // 2 if kind == "int4" else dims) + 2 * 4
        case ["nvfp4", *_]:
            return 2 * (dims // 2 + dims // 16)
        case ["fp8", *_]:
            return 2 * dims
        case _:
            return 2 * dims * 2


GROUPED = [name for name in NAMES if name not in ELSEWHERE and not name.endswith("_ds_mla")]


@pytest.mark.parametrize("name", GROUPED)
def test_a_dense_model_holds_what_vllms_pages_hold(name):
    # TurboQuant: the first two and the last two layers stay in 16 bits
    # (TurboQuantConfig.get_boundary_skip_layers).
    wide = 4 if name.startswith("turboquant") else 0
    expected = 8 * ((80 - wide) * head_bytes(name, 128) + wide * head_bytes("auto", 128))

    assert bytes_of(DENSE, name) == expected
    assert bytes_of(DENSE, name, tensor=8) == expected / 8


@pytest.mark.parametrize("name", GROUPED)
def test_a_hybrid_holds_them_in_its_layers_with_attention_alone(name):
    assert bytes_of(HYBRID, name) == 16 * 4 * head_bytes(name, 256)


@pytest.mark.parametrize(
    ("name", "num_bytes"),
    [
        ("auto", 576 * 2),  # MLAAttentionSpec: one latent vector and the rotary key
        ("bfloat16", 576 * 2),
        ("float16", 576 * 2),
        ("fp8", 576),
        ("fp8_e4m3", 576),
    ],
)
def test_latent_attention_holds_one_vector(name, num_bytes):
    assert bytes_of(MLA, name) == 61 * num_bytes


@pytest.mark.parametrize(
    ("name", "num_bytes"),
    [
        ("bfloat16", 576 * 2),
        ("fp8_ds_mla", 656),  # backends/mla/flashmla_sparse.py, with the layout of each byte
        ("nvfp4_ds_mla", 352),
        ("fp8", 576),  # platforms/cuda.py: FlashInfer, whose entries are elements alone
    ],
)
def test_sparse_latent_attention_has_entries_of_its_own(name, num_bytes):
    assert bytes_of(SPARSE, name) == 61 * (num_bytes + INDEX_BYTES)


@pytest.mark.parametrize(("version", "gpu"), [("0.18", "B200"), ("0.33", "H200")])
def test_fp8_is_what_flashmla_keeps_where_flashinfer_does_not_go_first(version, gpu):
    assert bytes_of(SPARSE, "fp8", version=version, gpu=gpu) == 61 * (656 + INDEX_BYTES)


def test_compressed_attention_has_one_layout_by_both_names():
    found = {running("deepseek-ai/DeepSeek-V4-Flash", name).kv_format for name in COMPRESSED}

    assert found == {"fp8"}


@pytest.mark.parametrize("name", [name for name in NAMES if name not in GROUPED])
def test_what_no_kernels_read_is_refused_by_name(name):
    with pytest.raises(InvalidKvCacheError, match=f"^--kv-cache-dtype {name}: "):
        running(DENSE, name)


@pytest.mark.parametrize(
    "name",
    [name for name in NAMES if name not in {"auto", "bfloat16", "float16", "fp8", "fp8_e4m3"}],
)
def test_latent_attention_has_kernels_for_few(name):
    # config/vllm.py validate_nvfp4_kv_cache_with_mla; the lists of backends/mla.
    with pytest.raises(InvalidKvCacheError, match=f"^--kv-cache-dtype {name}: "):
        running(MLA, name)


@pytest.mark.parametrize("minor", [f"0.{minor}" for minor in range(11, 34)])
def test_a_version_takes_what_its_own_list_has(minor):
    listed = {
        name
        for since, names in ADDED.items()
        for name in names
        if parse_version(since) <= parse_version(minor)
    }
    unready = {"nvfp4"} if minor == "0.20" else set()  # flashinfer.py: NotImplementedError

    assert set(names_of(minor)) == listed - unready - set(ELSEWHERE)


def test_a_type_of_a_later_version_is_refused_with_those_that_there_are():
    with pytest.raises(InvalidKvCacheError) as refusal:
        running(DENSE, "nvfp4", version="0.18")

    assert str(refusal.value) == (
        f"--kv-cache-dtype nvfp4: vLLM takes it from 0.21 on; with {DENSE} vLLM 0.18 takes auto, "
        "fp8, fp8_e4m3, fp8_e5m2, bfloat16, float16"
    )


def test_a_word_that_is_no_type_is_never_counted_as_16_bits():
    with pytest.raises(InvalidKvCacheError) as refusal:
        running(MLA, "int3")

    assert str(refusal.value) == (
        f"--kv-cache-dtype int3: vLLM does not know it; with {MLA} vLLM 0.33 takes auto, fp8, "
        "fp8_e4m3, bfloat16, float16"
    )


@pytest.mark.parametrize(
    ("model", "name", "changes", "words"),
    [
        # engine/arg_utils.py of 0.20: NotImplementedError for hybrids
        (HYBRID, "turboquant_k8v4", {"version": "0.20"}, "from 0.21 on for a model that has lay"),
        # backend.py supports_sliding_window, which TurboQuant's has not
        (WINDOWS, "turboquant_k8v4", {}, "no kernels for it in window attention"),
        # models/minimax_m3/nvidia/sparse_attention_msa.py
        ("MiniMaxAI/MiniMax-M3", "int8_per_token_head", {}, "for it in sparse attention"),
        # layers/attention/attention.py: fp8_e5m2 is not supported with fp8 checkpoints
        ("Qwen/Qwen3-8B-FP8", "fp8_e5m2", {}, "refuses it for a checkpoint in fp8"),
    ],
)
def test_what_vllm_refuses_is_refused(model, name, changes, words):
    with pytest.raises(InvalidKvCacheError, match=words):
        running(model, name, **changes)


def test_a_type_that_triton_reads_in_fp8_needs_ada():
    with pytest.raises(InvalidKvCacheError, match=r"needs compute capability 8\.9, A100-80GB"):
        check_request(running(DENSE, "fp8_per_token_head", gpu="A100-80GB"))
    check_request(running(DENSE, "int8_per_token_head", gpu="A100-80GB"))


@pytest.mark.parametrize(
    ("name", "version", "gpu", "has_kernels"),
    [
        ("nvfp4", "0.31", "B200", True),
        ("nvfp4", "0.31", "H100", False),
        ("nvfp4", "0.32", "H100", True),  # flashinfer.py _nvfp4_kv_on_fa2
        ("nvfp4", "0.32", "RTX-5090", True),
        ("nvfp4_4over6", "0.33", "H100", False),
        ("int8_per_token_head", "0.20", "A10G", True),
        ("fp8", "0.33", "H100", True),
    ],
)
def test_an_image_that_runs_is_taken_to_have_kernels_that_its_version_lacks(
    name, version, gpu, has_kernels
):
    request = running(HYBRID, name, version=version, gpu=gpu)
    assumed = [each.value for each in request.inputs if each.origin is Origin.ASSUMED]

    check_request(request)
    assert any("has no kernels for it on" in each for each in assumed) is not has_kernels


@pytest.mark.parametrize(("version", "is_refused"), [("0.31", True), ("0.32", False)])
def test_what_is_rendered_for_an_nvfp4_cache_of_the_checkpoint_needs_kernels(version, is_refused):
    shape = replace(built_in_model(DENSE), kv_cache_format="nvfp4")
    request = a_sizing_request(
        shape=shape, gpu=GPUS["H100"], engine=find_engine(version), kv_format="nvfp4"
    )

    if not is_refused:
        check_request(request)
        return
    with pytest.raises(InvalidKvCacheError) as refusal:
        check_request(request)
    assert str(refusal.value) == (
        "model.kvCache: vLLM 0.31 has no kernels for it on H100, 0.32 has"
    )


@pytest.mark.parametrize(("version", "cache"), [("0.20", "bf16"), ("0.21", "nvfp4")])
def test_a_version_that_does_not_start_with_the_cache_of_a_checkpoint_keeps_16_bits(version, cache):
    shape = replace(built_in_model(DENSE), kv_cache_format="nvfp4")

    assert kv_cache_format("auto", shape, version) == cache
    assert kv_cache_format("bfloat16", shape, version) == "bf16"


@pytest.mark.parametrize(
    ("version", "cache", "is_refused"),
    [("0.23", "bf16", True), ("0.24", "bf16", False), ("0.24", "fp8", True)],
)
def test_e5m2_beside_compressed_tensors_is_taken_where_no_scales_are(version, cache, is_refused):
    model = built_in_model(DENSE)
    shape = replace(model, quant_method="compressed-tensors", kv_cache_format=cache)
    request = a_sizing_request(shape=shape, engine=find_engine(version), kv_format="bf16")
    flags = {"--kv-cache-dtype": "fp8_e5m2"}

    if is_refused:
        with pytest.raises(InvalidKvCacheError, match="for a checkpoint in compressed-tensors"):
            with_running_cache(request, "auto", flags)
    else:
        assert with_running_cache(request, "auto", flags).kv_format == "fp8"


def test_what_was_not_measured_is_said_and_counts_as_slow_as_16_bits():
    wide, packed = running(DENSE, "bfloat16"), running(DENSE, "nvfp4")
    (assumed,) = [each for each in packed.inputs if each.origin is Origin.ASSUMED]

    assert assumed.effect == "time"
    assert packed.speed.cache_bandwidth_efficiency == pytest.approx(
        wide.speed.cache_bandwidth_efficiency / 4
    )


class TestSkippedLayers:
    def test_stay_in_16_bits(self):
        wide, packed = head_bytes("auto", 128), head_bytes("fp8", 128)

        found = bytes_of(DENSE, "fp8", skipped=("0", "79", "80"))

        assert found == 8 * (2 * wide + 78 * packed)  # there is no layer 80

    def test_may_be_those_with_a_window(self):
        found = running(WINDOWS, "turboquant_k8v4", skipped=("sliding_window",))
        shares = rank_of(found, Parallelism()).kv

        per_layer = {
            (share.window_tokens is None, share.page_bytes(1)): share.num_layers for share in shares
        }
        # Ten of 62 layers attend to all tokens, four of them stay in 16 bits too.
        assert per_layer == {
            (False, 16 * head_bytes("auto", 128)): 52,
            (True, 16 * head_bytes("turboquant_k8v4", 128)): 6,
            (True, 16 * head_bytes("auto", 128)): 4,
        }

    def test_with_a_window_make_the_blocks_of_the_others_longer(self):
        # platforms/interface.py _align_heterogeneous_kv_block_size: a page of 16 tokens in 16 bits,
        # 131,072 bytes, needs 64 tokens of 2,304 bytes; the rest of 147,456 is lost.
        found = running(WINDOWS, "nvfp4", skipped=("sliding_window",))
        layout = cache_layout(rank_of(found, Parallelism()).kv, rules=found.cache_rules)

        by_window = {group.share.window_tokens: group.block_tokens for group in layout.groups}
        assert by_window == {None: 64, 1024: 16}
        assert layout.bytes_per_block == 10 * 64 * 16 * head_bytes("nvfp4", 128)

    def test_are_a_list_of_words(self):
        assert switches_in(
            ["--kv-cache-dtype-skip-layers", "0", "sliding_window", "--seed", "1"]
        ).wide_cache == ("0", "sliding_window")
        assert switches_in(["--kv_cache_dtype_skip_layers=3"]).wide_cache == ("3",)


def test_layers_of_several_kinds_that_are_skipped_are_those_that_hold_most():
    shape = built_in_model(WINDOWS)
    cache = StoredCache(type=CACHE_TYPES["fp8"], skipped=("1", "2"))

    by_window = {
        attention.window_tokens: stays_wide
        for (_, attention), stays_wide in zip(
            shape.attentions(), wide_layers(shape, cache), strict=True
        )
    }

    assert by_window[None] == 2


def test_an_assumption_says_which_layers_are_taken_for_those_that_are_skipped():
    request = running(WINDOWS, "fp8", skipped=("1", "2"))
    (assumed,) = [each for each in request.inputs if each.origin is Origin.ASSUMED]

    assert assumed.effect == "memory"
    assert assumed.value == "--kv-cache-dtype-skip-layers 1 2: the layers that hold most"
    assert not running(DENSE, "fp8", skipped=("1", "2")).inputs


@pytest.mark.parametrize(
    ("name", "tokens"),
    [("bf16", 45_408), ("int8_per_token_head", 88_752), ("int4_per_token_head", 175_440)],
)
def test_blocks_beside_states_are_those_of_three_logs(name, tokens):
    # github.com/vllm-project/vllm, pull request 39074, comment of 20 April 2026: the KV capacity of
    # Qwen3.5-35B-A3B on an RTX 5090, 43 blocks of each of four groups.
    known, rules = CACHE_TYPES[name], find_engine("0.20").constants.cache
    shares = kv_shares(
        built_in_model("Qwen/Qwen3.5-35B-A3B"),
        parallelism=Parallelism(),
        rules=rules,
        cache=StoredCache(type=known),
    )

    assert 43 * cache_layout(tuple(shares), rules=rules).block_tokens == tokens


def test_a_log_of_an_rtx_5090_with_nvfp4_is_met_to_the_token():
    # github.com/vllm-project/vllm, issue 57475: --kv-cache-memory-bytes 3189013000, 2.97 GiB,
    # --max-model-len 124000, --max-num-batched-tokens 2048: "150,745 tokens".
    request = running("Qwen/Qwen3.8-27B-FP8", "nvfp4", version="0.29", gpu="RTX-5090")
    layout = cache_layout(rank_of(request, Parallelism()).kv, rules=request.cache_rules)

    figures = layout.logged_figures(
        int(3_189_013_000 // layout.bytes_per_block),
        context_tokens=124_000,
        in_flight_tokens=layout.in_flight_tokens(2048),
    )

    assert figures.kv_tokens == 150_745
