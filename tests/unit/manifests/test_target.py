"""What a workload of somebody else says of its engine: version, flags, and what vLLM takes itself.

Tags are those that the publishers of the images give them; batches are those of
``get_batch_defaults`` in vLLM's ``engine/arg_utils.py``.
"""

import pytest

from builders import a_sizing_request
from tonnage.api.pods import ScaleTarget
from tonnage.catalog.engine import known_engine
from tonnage.catalog.gpu import built_in_gpus
from tonnage.manifests.target import (
    RefusedError,
    TargetEngine,
    target_engine,
    target_request,
    target_version,
)
from tonnage.sizing.provenance import Figure, Origin, given_input

TARGET = ScaleTarget(name="x")


def version(image, **target):
    return target_version(ScaleTarget(name="x", **target), TargetEngine(image=image))


@pytest.mark.parametrize(
    ("image", "minor"),
    [
        ("vllm/vllm-openai:v0.31.0", "0.31"),
        ("docker.io/vllm/vllm-openai:v0.11.0-x86_64", "0.11"),
        ("vllm/vllm-openai:v0.12.0-cu130", "0.12"),
        ("vllm/vllm-openai:v0.20.0rc1", "0.20"),
        ("vllm/vllm-openai:v0.31.0@sha256:10c7a6ba", "0.31"),
        ("registry.corp:5000/mirror/vllm/vllm-openai:0.31.0", "0.31"),
        ("harbor.corp/ml/vllm-openai:v0.31.0.post1", "0.31"),
        ("public.ecr.aws/q9t5s3a7/vllm-release-repo:v0.31.0", "0.31"),
        ("public.ecr.aws/q9t5s3a7/vllm-ci-postmerge-repo:33f460b17a54acb3b6cc", None),
        ("vllm/vllm-openai@sha256:10c7a6ba51c69b8860546568b79faf48f9c7becc985", None),
        ("vllm/vllm-openai:latest", None),
        ("vllm/vllm-openai:nightly-01d4d1ad375dc5854779c593eee093bcebb0cada", None),
        ("vllm/vllm-openai:nightly-20260828", None),
        ("vllm/vllm-openai", None),
        ("harbor.corp/ml/vllm-openai:2.3.1", None),
        ("registry:5000/vllm-openai", None),
        ("lmcache/vllm-openai:v0.4.1", None),
        ("mirror.corp/lmcache/vllm-openai:v0.3.9", None),
        ("ghcr.io/llm-d/llm-d-cuda:v0.11.0", None),
        ("ghcr.io/llm-d/llm-d-inference-sim:v0.6.1", None),
        ("nvcr.io/nvidia/vllm:26.03-py3", None),
        ("registry.redhat.io/rhaiis/vllm-cuda-rhel9:3.5.1", None),
        ("rocm/vllm:rocm7.0_mi300_vllm_0.14", None),
        ("vastai/vllm:v0.31.0-2026-08-28", None),
        ("", None),
    ],
)  # fmt: skip
def test_only_the_tag_of_a_known_image_is_vllms_version(image, minor):
    if minor is not None:
        assert version(image) == minor
        return
    with pytest.raises(RefusedError, match=r"set scaleTarget\.engineVersion") as caught:
        version(image)

    assert caught.value.reason == "EngineVersionUnknown"
    assert version(image, engine_version="0.31.0") == "0.31.0"


def read(arguments, *, gpu="H100", minor="0.31", **changes):
    """The request of a spec with contextLength 8192, of an engine with these arguments."""
    request = a_sizing_request(
        gpu=built_in_gpus()[gpu],
        engine=known_engine(minor),
        inputs=(given_input(Figure.CONTEXT, "8192 tokens"),),
        **changes,
    )
    engine = target_engine({"containers": [{"name": "vllm", "command": ["vllm", "serve", "m"],
                                            "args": arguments.split()}]})  # fmt: skip
    return target_request(request, TARGET, engine, asked_cache="auto")


def batch(arguments, **terms):
    flags = read(arguments, **terms).flags
    return flags.max_num_seqs, flags.max_num_batched_tokens


class TestAbsentFlags:
    @pytest.mark.parametrize(
        ("gpu", "minor", "expected"),
        [
            ("H100", "0.11", (1024, 8192)),
            ("H100", "0.33", (1024, 8192)),
            ("H200", "0.20", (1024, 8192)),
            ("A100-80GB", "0.20", (256, 2048)),
            ("L4", "0.31", (256, 2048)),
            ("L40S", "0.31", (256, 2048)),
            ("B200", "0.25", (1024, 8192)),
            ("B200", "0.28", (1024, 16384)),
            ("GB10", "0.31", (1024, 8192)),
            ("GB10", "0.33", (256, 2048)),
        ],
    )
    def test_are_what_the_version_takes_on_the_board(self, gpu, minor, expected):
        assert batch("", gpu=gpu, minor=minor) == expected

    @pytest.mark.parametrize(
        ("arguments", "expected"),
        [
            ("--max-num-seqs 64", (64, 8192)),
            ("--max-num-batched-tokens 2048", (1024, 2048)),
            ("--max-num-batched-tokens 512", (512, 512)),
            ("--max-num-seqs 2 --max-model-len 1000", (2, 2000)),
            ("--performance-mode throughput", (2048, 16384)),
            ("--no-enable-chunked-prefill --max-model-len 32k", (1024, 32000)),
            ("-dp 2 --enable-expert-parallel --all2all-backend nixl_ep", (256, 256)),
        ],
    )
    def test_depend_on_the_others_as_in_vllm(self, arguments, expected):
        assert batch(arguments) == expected

    def test_are_inputs_that_are_looked_up(self):
        [said] = [each for each in read("--max-num-seqs 64").inputs if each.figure is Figure.FLAGS]

        assert said.origin is Origin.LOOKED_UP
        assert said.value == (
            "--max-num-batched-tokens 8192: what vLLM 0.31 takes by itself on H100"
        )

    @pytest.mark.parametrize(
        ("arguments", "tokens", "said"),
        [
            ("", 131_072, "131072 tokens, of the model, as no --max-model-len is set"),
            ("--max-model-len 32K", 32_768, "32768 tokens, --max-model-len 32K"),
            ("--max-model-len 4k", 4000, "contextLength 8192, and vLLM refuses longer requests"),
            ("--max-model-len auto", 8192, "8192 tokens"),
            ("--max-model-len -1", 8192, "8192 tokens"),
            ("--max-model-len 8192", 8192, "8192 tokens"),
        ],
    )
    def test_of_the_context_are_the_models(self, arguments, tokens, said):
        request = read(arguments)
        [context] = [each for each in request.inputs if each.figure is Figure.CONTEXT]

        assert request.context_tokens == tokens
        assert said in context.value


class TestFlags:
    @pytest.mark.parametrize(
        ("arguments", "expected"),
        [
            ("--max_num_seqs=128 --max-num-batched-tokens=64K", (128, 65536)),
            ("--max-num-seqs 9 --max-num-seqs 128 --max-num-batched-tokens 25.6k", (128, 25600)),
            ("--max-num-se 128 --max-num-b 4096", (128, 4096)),
        ],
    )
    def test_are_read_as_vllms_parser_reads_them(self, arguments, expected):
        assert batch(arguments) == expected

    @pytest.mark.parametrize(
        ("arguments", "named"),
        [
            ("--max-num-seqs 64K", "--max-num-seqs '64K' is no number that vLLM reads"),
            ("--max-num-batched-tokens $(N)", "--max-num-batched-tokens '$(N)'"),
            ("--tensor-parallel-size=${TP}", "--tensor-parallel-size '${TP}'"),
            ("-tp x", "--tensor-parallel-size 'x'"),
            ("--gpu-memory-utilization 90%", "--gpu-memory-utilization '90%'"),
            ("--max-model-len 0", "--max-model-len '0'"),
            ("--max-model-len 200000", "exceeds the 131072 positions"),
            ("--max-num-seqs 5000000", "at most 16,384 sequences"),
            ("--kv-cache-memory-bytes 10GiB", "--kv-cache-memory-bytes '10GiB'"),
        ],
    )
    def test_that_vllm_would_not_read_are_named(self, arguments, named):
        with pytest.raises(RefusedError) as caught:
            read(arguments)

        assert caught.value.reason == "FlagsUnknown"
        assert named in str(caught.value)

    def test_are_those_of_the_container_with_gpus(self):
        side = {"name": "proxy", "args": ["--max-num-seqs=1"]}
        engine = {"name": "main", "command": ["vllm", "serve", "m", "--max-num-seqs=2"],
                  "resources": {"limits": {"nvidia.com/gpu": 1}}}  # fmt: skip

        assert target_engine({"containers": [side, engine]}).arguments == ("m", "--max-num-seqs=2")
