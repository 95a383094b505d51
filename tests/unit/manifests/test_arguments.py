"""The arguments of ``vllm serve``: accepted by the engine, and read back as they were written."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet_builders import SITE, a_model, an_offline_sizing, example
from strategies import numbers
from tonnage.catalog.engine import find_engine
from tonnage.manifests.arguments import (
    BUCKETS,
    PodFigures,
    engine_arguments,
    read_flags,
    without_capacity_flags,
)
from tonnage.manifests.children import deployment, flags_from_annotation, write_flags
from tonnage.sizing.request import Flags
from tonnage.sizing.split import Parallelism
from tonnage_lab.emulator.arguments import parse

UTILIZATION = 0.92
flags = st.builds(
    Flags,
    max_num_seqs=st.integers(1, 4096),
    max_num_batched_tokens=st.integers(1, 65_536),
    gpu_memory_utilization=numbers(0.1, 1).map(lambda share: round(share, 3)),
    parallelism=st.builds(
        Parallelism,
        tensor=st.sampled_from([1, 2, 4, 8]),
        pipeline=st.sampled_from([1, 2]),
        data=st.sampled_from([1, 8]),
    ),
    kv_cache_bytes=st.none() | st.integers(1, 2**63 - 1),
    num_gpu_blocks=st.none() | st.integers(1, 2**31 - 1),
)
SOME = Flags(
    max_num_seqs=48,
    max_num_batched_tokens=8192,
    gpu_memory_utilization=0.9,
    parallelism=Parallelism(tensor=2),
)


def a_serving(**changes):
    constants = find_engine("0.33").constants
    serving = PodFigures(
        flags=SOME,
        dtype="bfloat16",
        kv_cache_dtype="fp8",
        constants=constants,
        has_whole_experts=False,
        drain_s=120,
    )
    return replace(serving, **changes)


def arguments(model=None, chosen=SOME, **serving):
    return engine_arguments((model or a_model()).spec, a_serving(flags=chosen, **serving))


def as_read(arguments):
    """What an engine understands, refusing what it does not know."""
    return parse(["serve", *arguments])


class TestWriting:
    @given(flags)
    def test_every_flag_that_decides_capacity_is_explicit(self, chosen):
        read = as_read(arguments(chosen=chosen))

        assert read.max_model_len == 8192
        assert read.max_num_seqs == chosen.max_num_seqs
        assert read.max_num_batched_tokens == chosen.max_num_batched_tokens
        assert read.gpu_memory_utilization == chosen.gpu_memory_utilization
        assert read.kv_cache_dtype == "fp8"
        assert read.tensor_parallel_size == chosen.parallelism.tensor
        assert read.pipeline_parallel_size == chosen.parallelism.pipeline
        assert read.data_parallel_size == chosen.parallelism.data

    @pytest.mark.parametrize("file", ["llama-3.3-70b-h200", "deepseek-v3-h200", "qwen3-8b-l4"])
    def test_the_engine_accepts_the_arguments_of_our_examples(self, file):
        model = example(file)
        made = deployment(model, an_offline_sizing(model), SITE)
        [container] = made["spec"]["template"]["spec"]["containers"]

        assert as_read(container["args"]).model == model.spec.model.id

    @pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
    @pytest.mark.parametrize("cache", ["auto", "fp8", "bfloat16"])
    def test_the_types_of_figures_and_cache_are_always_said(self, dtype, cache):
        written = arguments(dtype=dtype, kv_cache_dtype=cache)

        assert written[written.index("--dtype") + 1] == dtype
        assert as_read(written).kv_cache_dtype == cache

    def test_what_is_to_be_drafted_is_said_in_the_engines_own_words(self):
        drafts = {"method": "mtp", "tokens": 2, "acceptedPercent": 80}
        written = arguments(a_model(engine={"version": "0.33", "speculative": drafts}))

        config = written[written.index("--speculative-config") + 1]
        assert json.loads(config) == {"method": "mtp", "num_speculative_tokens": 2}
        assert as_read(written)
        assert "--speculative-config" not in arguments()

    def test_slots_for_adapters_are_said_in_the_engines_own_words(self):
        model = {"id": "meta-llama/Llama-3.3-70B-Instruct", "adapters": {"number": 4, "rank": 32}}
        written = arguments(a_model(model=model))

        read = as_read(written)
        assert (read.max_loras, read.max_lora_rank) == (4, 32)
        assert "--enable-lora" not in arguments()

    def test_experts_are_spread_over_data_parallel_ranks(self):
        ranks = replace(SOME, parallelism=Parallelism(data=8))

        written = arguments(chosen=ranks, has_whole_experts=True)

        assert as_read(written)
        assert "--enable-expert-parallel" in written
        assert "--enable-expert-parallel" not in arguments(chosen=ranks)

    def test_both_latencies_have_the_ladder_of_bounds(self):
        read = as_read(arguments()).custom_buckets

        assert {name: tuple(bounds) for name, bounds in read.items()} == BUCKETS

    def test_an_engine_that_lacks_a_flag_is_not_given_it(self):
        old = find_engine("0.17").constants

        text = " ".join(arguments(constants=old))
        assert "--shutdown-timeout" not in text
        assert "--custom-histogram-buckets" not in text

    def test_the_engine_is_told_how_long_it_may_finish_what_it_answers(self):
        assert as_read(arguments(drain_s=90)).shutdown_timeout_s == 90

    def test_a_name_that_the_user_gives_replaces_the_models(self):
        named = a_model(engine={"version": "0.33", "args": ["--served-model-name=chat"]})

        assert as_read(arguments(named)).served_model_names == ("chat",)
        assert as_read(arguments()).served_model_names == ("meta-llama/Llama-3.3-70B-Instruct",)

    def test_the_users_flags_come_last_one_element_each(self):
        extra = ["--seed=7", '--limit-mm-per-prompt={"image": 2}']

        assert arguments(a_model(engine={"version": "0.33", "args": extra}))[-2:] == extra

    def test_the_revision_is_pinned(self):
        pinned = a_model(model={"id": "meta-llama/Llama-3.3-70B-Instruct", "revision": "6f6073b"})

        assert arguments(pinned)[3:5] == ["--revision", "6f6073b"]


def with_equals(arguments):
    """The same arguments as ``--flag=value``."""
    joined = []
    for each in arguments:
        if joined and joined[-1].startswith("--") and not each.startswith("--"):
            joined[-1] += f"={each}"
        else:
            joined.append(each)
    return joined


class TestReading:
    @given(flags, st.booleans())
    def test_gives_back_what_was_written_in_either_form(self, chosen, is_joined):
        written = arguments(chosen=chosen)
        live = with_equals(written) if is_joined else written

        assert read_flags(live, default_utilization=UTILIZATION) == chosen

    def test_takes_the_engines_default_for_utilization_and_one_gpu(self):
        live = ["vllm", "serve", "m", "--max-num-seqs", "8", "--max-num-batched-tokens=2048"]

        assert read_flags(live, default_utilization=UTILIZATION) == Flags(
            max_num_seqs=8,
            max_num_batched_tokens=2048,
            gpu_memory_utilization=UTILIZATION,
            parallelism=Parallelism(),
        )

    def test_knows_the_short_names(self):
        live = [
            "--max-num-seqs=8",
            "--max-num-batched-tokens=2048",
            "-tp",
            "2",
            "-pp=2",
            "-dp",
            "8",
        ]

        read = read_flags(live, default_utilization=UTILIZATION)
        assert read.parallelism == Parallelism(tensor=2, pipeline=2, data=8)

    def test_takes_the_last_of_a_repeated_flag_as_the_engine_does(self):
        live = [*arguments(), "--max-num-seqs=9"]

        assert as_read(live).max_num_seqs == 9
        assert read_flags(live, default_utilization=UTILIZATION).max_num_seqs == 9

    @pytest.mark.parametrize(
        ("given", "num_bytes"),
        [
            (["--kv-cache-memory-bytes=10737418240"], 10_737_418_240),
            (["--kv-cache-memory-bytes", "10G"], 10_737_418_240),
            (["--kv-cache-memory=10G"], 10_737_418_240),
            (["--kv_cache_memory_bytes=10G"], 10_737_418_240),
            (["--kv-cache-memory-bytes=512M"], 536_870_912),
            (["--kv-cache-memory-bytes=10g"], 10_000_000_000),
            (["--kv-cache-memory-bytes=1.5g"], 1_500_000_000),
            (["--kv-cache-memory-bytes=1G", "--kv-cache-memory-bytes=2G"], 2_147_483_648),
            (["--kv-cache-memory-bytes=0"], None),
            ([], None),
        ],
    )
    def test_takes_the_bytes_of_the_cache_in_the_units_of_the_engine(self, given, num_bytes):
        read = read_flags([*arguments(), *given], default_utilization=UTILIZATION)

        assert read == replace(SOME, kv_cache_bytes=num_bytes)

    @pytest.mark.parametrize(
        "given", [["--num-gpu-blocks-override=5120"], ["--num-gpu-blocks-override", "5120"]]
    )
    def test_takes_the_blocks_of_the_cache(self, given):
        read = read_flags([*arguments(), *given], default_utilization=UTILIZATION)

        assert read == replace(SOME, num_gpu_blocks=5120)

    @pytest.mark.parametrize(
        "given",
        [
            "--kv-cache-memory-bytes=10GiB",
            "--kv-cache-memory-bytes=1.5G",
            "--kv-cache-memory-bytes=-1",
            "--kv-cache-memory-bytes=9223372036854775808",
            f"--kv-cache-memory-bytes={'9' * 400}g",
            "--kv-cache-memory-bytes=$(KV_BYTES)",
            "--kv-cache-memory-bytes",
            "--num-gpu-blocks-override=0",
            "--num-gpu-blocks-override=5K",
            "--num-gpu-blocks-override=2147483648",
        ],
    )
    def test_is_unknown_where_the_engine_would_not_take_the_cache_that_is_given(self, given):
        assert read_flags([*arguments(), given], default_utilization=UTILIZATION) is None

    @pytest.mark.parametrize(
        "broken",
        [
            [],
            ["--max-num-seqs=8"],
            ["--max-num-batched-tokens=8"],
            ["--max-num-seqs", "--max-num-batched-tokens=8"],
            ["--max-num-seqs=8K", "--max-num-batched-tokens=8"],
            ["--max-num-seqs=$(SEQS)", "--max-num-batched-tokens=8"],
            ["--max-num-seqs=0", "--max-num-batched-tokens=8"],
            ["--max-num-seqs=-8", "--max-num-batched-tokens=8"],
            ["--max-num-seqs=8", "--max-num-batched-tokens=0"],
            ["--max-num-seqs=8", "--max-num-batched-tokens=8", "-tp=0"],
            ["--max-num-seqs=8", "--max-num-batched-tokens=8", "--gpu-memory-utilization=nan"],
            ["--max-num-seqs=8", "--max-num-batched-tokens=8", "--gpu-memory-utilization=0"],
            ["--max-num-seqs=8", "--max-num-batched-tokens=8", "--gpu-memory-utilization=1.5"],
            ["sh", "-c", "vllm serve m --max-num-seqs 8 --max-num-batched-tokens 8"],
        ],
    )
    def test_is_unknown_where_a_flag_is_missing_or_no_number_that_runs(self, broken):
        assert read_flags(broken, default_utilization=UTILIZATION) is None

    @pytest.mark.parametrize(
        ("most", "beyond"),
        [
            (["--max-num-seqs=16384"], ["--max-num-seqs=16385"]),
            (
                ["--max-num-seqs=2048", "--data-parallel-size=64"],
                ["--max-num-seqs=2049", "--data-parallel-size=64"],
            ),
            (
                ["--max-num-seqs=8", "--tensor-parallel-size=8", "--data-parallel-size=64"],
                ["--max-num-seqs=8", "--tensor-parallel-size=8", "--data-parallel-size=65"],
            ),
        ],
    )
    def test_is_unknown_beyond_what_sizing_answers_for_in_bounded_time(self, most, beyond):
        rest = "--max-num-batched-tokens=8"
        assert read_flags([*most, rest], default_utilization=UTILIZATION)
        assert read_flags([*beyond, rest], default_utilization=UTILIZATION) is None

    @given(st.lists(st.text(max_size=30), max_size=8))
    def test_never_fails_on_any_arguments(self, live):
        assert read_flags(live, default_utilization=UTILIZATION) is None or live


@pytest.mark.parametrize(
    ("more", "same"),
    [
        (["--max-num-seqs=99", "-tp", "4"], True),
        (["--kv-cache-memory-bytes=10G"], True),
        (["--kv-cache-memory", "10G"], True),
        (["--kv_cache_memory_bytes=10G"], True),
        (["--num-gpu-blocks-override=5120"], True),
        (["--enforce-eager"], False),
        (["--seed=7"], False),
        (["--kv-cache-dtype", "auto"], False),
    ],
)
def test_what_is_not_capacity_tells_engines_apart(more, same):
    plain = without_capacity_flags(arguments())

    assert (without_capacity_flags([*arguments(), *more]) == plain) is same


class TestAnnotation:
    @given(flags)
    def test_gives_back_what_was_written(self, chosen):
        assert flags_from_annotation(write_flags(chosen)) == chosen

    @pytest.mark.parametrize(
        "change",
        [
            {"maxNumSeqs": 0},
            {"maxNumSeqs": "many"},
            {"maxNumBatchedTokens": -1},
            {"gpuMemoryUtilization": 0},
            {"tensor": 0},
            {"data": None},
            {"maxNumSeqs": 1e999},
            {"kvCacheBytes": 0},
            {"kvCacheBytes": -1},
            {"kvCacheBytes": 1e300},
            {"kvCacheBytes": "10G"},
            {"numGpuBlocks": 0},
            {"numGpuBlocks": []},
            {"gpuMemoryUtilization": 10**400},
        ],
    )
    def test_edited_into_nonsense_is_none(self, change):
        edited = json.dumps(json.loads(write_flags(SOME)) | change)

        assert flags_from_annotation(edited) is None

    def test_of_a_version_that_knew_no_given_cache_is_read(self):
        written = (
            '{"maxNumSeqs": 48, "maxNumBatchedTokens": 8192, "gpuMemoryUtilization": 0.9, '
            '"tensor": 2, "pipeline": 1, "data": 1}'
        )

        assert flags_from_annotation(written) == SOME
        assert write_flags(SOME) == written

    @pytest.mark.parametrize("text", ["", "{", "null", "[]", "7", '"text"', "{}", "[" * 100_000])
    def test_of_somebody_else_is_none(self, text):
        assert flags_from_annotation(text) is None
