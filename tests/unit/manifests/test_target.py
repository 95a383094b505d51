"""What a workload of somebody else says of its engine: version, flags, and what vLLM takes itself.

Tags are those that the publishers of the images give them; batches are those of
``get_batch_defaults`` in vLLM's ``engine/arg_utils.py``.
"""

from dataclasses import replace

import pytest

from builders import a_sizing_request
from tonnage.api.pods import ScaleTarget
from tonnage.api.spec import Spec
from tonnage.catalog.engine import known_engine
from tonnage.catalog.gpu import UnknownGpuError, built_in_gpus
from tonnage.catalog.models import built_in_model
from tonnage.manifests.target import (
    RefusedError,
    TargetEngine,
    target_engine,
    target_request,
    target_version,
    workers_answer,
)
from tonnage.sizing.parallelism.draft import rank_of
from tonnage.sizing.provenance import Figure, Origin, given_input
from tonnage.sizing.split import Parallelism

SPEC = Spec.model_validate(
    {
        "model": {"id": "m/m"},
        "hardware": {"gpu": "H100"},
        "contextLength": 8192,
        "scaling": {"maxReplicas": 2},
        "scaleTarget": {"name": "x"},
    }
)
EAGLE = '{"method":"eagle3","model":"AngelSlim/Qwen3-8B_eagle3","num_speculative_tokens":3}'


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
        ("vastai/vllm:v0.31.0-2026-08-28", "0.31"),
        ("my.registry/team/vllm:v0.33.0", "0.33"),
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


@pytest.mark.parametrize(
    ("image", "is_assumed"),
    [
        ("my.registry/team/vllm:v0.31.0", True),
        ("vllm/vllm-openai-rocm:v0.31.0", True),
        ("vllm/vllm-openai:v0.31.0", False),
    ],
)
def test_a_version_by_the_tag_of_somebodys_own_image_is_an_assumption(image, is_assumed):
    engine = replace(target_engine({"containers": [{"name": "vllm", "args": []}]}), image=image)
    engine = replace(engine, arguments=("m",), problem="")

    request = target_request(a_sizing_request(), SPEC, engine, has_started=False)

    found = [each for each in request.inputs if each.origin is Origin.ASSUMED]
    assert [each.replaced_by for each in found] == ["scaleTarget.engineVersion"] * is_assumed


def test_engines_that_run_are_scaled_without_a_draft_that_nobody_knows():
    config = '{"method": "medusa", "model": "x/m", "num_speculative_tokens": 3}'
    engine = target_engine({"containers": [{"name": "vllm", "command": [
        "vllm", "serve", "m", "--speculative-config", config]}]})  # fmt: skip
    with pytest.raises(RefusedError, match="it is not known what drafts by medusa"):
        target_request(a_sizing_request(), SPEC, engine, has_started=False)

    request = target_request(a_sizing_request(), SPEC, engine, has_started=True)

    assert request.speculation is None
    assert any("not counted: --speculative-config" in each.value for each in request.inputs)


def test_engines_that_run_took_a_length_beyond_the_models_own():
    shape = replace(a_sizing_request().shape, max_position_tokens=8192)
    asked = a_sizing_request(shape=shape)
    engine = target_engine({"containers": [{"name": "vllm", "command": [
        "vllm", "serve", "m", "--max-model-len=16k"]}]})  # fmt: skip
    with pytest.raises(RefusedError, match="exceeds the 8192 positions"):
        target_request(asked, SPEC, engine, has_started=False)

    request = target_request(asked, SPEC, engine, has_started=True)

    assert (request.context_tokens, request.shape.max_position_tokens) == (16_000, 16_000)


def read(arguments, *, gpu="H100", minor="0.31", spec=None, limits=(), **changes):
    """The request of a spec with contextLength 8192, of an engine with these arguments."""
    request = a_sizing_request(
        gpu=built_in_gpus()[gpu],
        engine=known_engine(minor),
        inputs=(given_input(Figure.CONTEXT, "8192 tokens"),),
        **changes,
    )
    given = arguments.split() if isinstance(arguments, str) else arguments
    container = {
        "name": "vllm",
        "command": ["vllm", "serve", "m"],
        "args": given,
        "resources": {"limits": dict.fromkeys(limits, 1)},
    }
    engine = target_engine({"containers": [container]})
    return target_request(request, spec or SPEC, engine, has_started=False)


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
            ("-dp 2 --enable-expert-parallel", (1024, 8192)),
            ("--enable-expert-parallel --all2all-backend nixl_ep", (1024, 8192)),
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

    @pytest.mark.parametrize(
        ("arguments", "tokens"),
        [("", 4096), ("--max-model-len auto", 4096), ("--max-model-len 32k", 32_000)],
    )
    def test_of_the_context_are_that_of_the_training_with_longrope(self, arguments, tokens):
        shape = replace(a_sizing_request().shape, usual_position_tokens=4096)

        assert read(arguments, shape=shape).context_tokens == tokens


class TestOverrides:
    MODEL = SPEC.model.model_copy(update={"id": "meta-llama/Llama-3.1-8B-Instruct"})
    SPEC = SPEC.model_copy(update={"model": MODEL})
    YARN = (
        '{"max_position_embeddings": 200000, "rope_scaling": {"rope_type": "yarn", "factor": 2.0}}'
    )

    def test_change_the_model_of_the_catalogue(self):
        request = read(["--hf-overrides", self.YARN], spec=self.SPEC)

        assert (request.context_tokens, request.shape.max_position_tokens) == (200_000, 200_000)

    @pytest.mark.parametrize("arguments", [["--hf-overrides.max_position_embeddings", "200000"]])
    def test_key_by_key_are_named_as_an_assumption(self, arguments):
        [assumed] = [each for each in read(arguments).inputs if each.origin is Origin.ASSUMED]

        assert "--hf-overrides.max-position-embeddings" in assumed.value

    def test_that_are_no_object_are_refused(self):
        with pytest.raises(RefusedError, match="--hf-overrides"):
            read("--hf-overrides [1]", spec=self.SPEC)


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
            ("--enable-lora --max-loras 0", "--max-loras 0 and --max-lora-rank 16"),
            ("--lora-modules a=b/c d=e/f", "--lora-modules needs --enable-lora"),
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

    @pytest.mark.parametrize("resource", ["nvidia.com/mig-3g.40gb", "nvidia.com/gpu.shared"])
    def test_of_a_part_of_a_gpu_are_refused(self, resource):
        with pytest.raises(UnknownGpuError, match=f"asks for {resource}"):
            read([], limits=["cpu", resource])


def drafts(config, **changes):
    return read(["--speculative-config", config], **changes)


@pytest.mark.parametrize(
    ("flag", "of_worker", "answer"),
    [
        ("--data-parallel-hybrid-lb", (), True),
        ("--data_parallel_start_rank=0", (), True),
        ("-dpn=1", (), True),
        ("-dpe", (), True),
        ("-dpe", ("--headless",), False),
        ("--data-parallel-size-local=8", (), False),
    ],
)
def test_workers_of_a_group_answer_by_the_leaders_flags_unless_they_are_headless(
    flag, of_worker, answer
):
    leader = TargetEngine(arguments=("m", "-dp", "16", flag))

    assert workers_answer(leader, TargetEngine(arguments=("m", *of_worker))) is answer


class TestDrafts:
    """Head of EAGLE-3 for Qwen3 8B: by vLLM's llama_eagle3.py, hidden 4096, 32,000 words.

    A matrix of 3 x 4096 to 4096 (50.3 M), attention over 2 x 4096 (33.6 + 2 x 8.4 + 16.8 M), a feed
    forward of 12,288 (151.0 M), an output matrix (131.1 M): 399.6 M parameters in 16 bits.
    """

    def test_of_a_head_are_bounded(self):
        shape = built_in_model("Qwen/Qwen3-8B")
        bare, drafted = read([], shape=shape), drafts(EAGLE, shape=shape)
        one, two = (rank_of(each, Parallelism()) for each in (bare, drafted))
        added = two.weights_bytes - one.weights_bytes

        assert 399.6e6 * 2 <= added <= 0.15 * one.weights_bytes
        assert sum(each.bytes_per_token for each in two.kv) == 37 * 4096
        assert drafted.speculation.tokens_per_step == 1

    @pytest.mark.parametrize(
        ("arguments", "method", "tokens", "effect"),
        [
            (["--speculative-config", EAGLE], "mtp", 3, "memory and time"),
            (["-sc", '{"method": "ngram", "num_speculative_tokens": 4}'], "ngram", 4, "time"),
            (["--spec-method=ngram", "--spec-tokens=2"], "ngram", 2, "time"),
            (["--speculative-config.method", "ngram",
              "--speculative_config.num_speculative_tokens=5"], "ngram", 5, "time"),
            (["--spec-model=Qwen/Qwen3-0.6B", "--spec-tokens=2"], "mtp", 2, "memory and time"),
            (["--spec-model=org/Qwen3-8B-eagle3", "--spec-tokens=2"], "mtp", 2, "memory and time"),
        ],
    )  # fmt: skip
    def test_are_named_as_an_assumption(self, arguments, method, tokens, effect):
        request = read(arguments)
        [assumed] = [each for each in request.inputs if each.origin is Origin.ASSUMED]

        assert request.speculation.method == method
        assert request.speculation.num_draft_tokens == tokens
        assert assumed.effect == effect
        assert "none is counted as accepted" in assumed.value

    @pytest.mark.parametrize(
        ("config", "named"),
        [
            ("{", "is no JSON object"),
            ("[1]", "is no JSON object"),
            ("[" * 5000, "is no JSON object"),
            ('{"method": "ngram"}', "num_speculative_tokens must be from 1"),
            ('{"method": "ngram", "num_speculative_tokens": 1e999}', "must be from 1"),
            ('{"method": "ngram", "num_speculative_tokens": []}', "must be from 1"),
            ('{"method": "medusa", "model": "x", "num_speculative_tokens": 2}', "by medusa with x"),
            ('{"model": "x/y-1B", "num_speculative_tokens": 2}', "by draft_model with x/y-1B"),
            ('{"method": [], "model": {}, "num_speculative_tokens": 2}', "it is not known"),
        ],
    )
    def test_that_nobody_can_count_are_refused_by_name(self, config, named):
        with pytest.raises(RefusedError) as caught:
            drafts(config)

        assert named in str(caught.value)
