"""``tonnage plan``: the answer, its forms, its refusals and its exit codes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from cli_builders import (
    CONFIG_JSON,
    CONFIGURED,
    LLAMA,
    SCALED,
    a_config_map,
    a_deployment,
    groups_that_exist,
    llama,
    plan,
    run,
)
from thorough import one_in
from tonnage.api.status import EstimateStatus, PlanStatus

ROOT = Path(__file__).parents[3]
EXAMPLES = sorted((ROOT / "deploy" / "examples").glob("*.yaml"))
TOO_LARGE = llama(
    ("weights: fp8", "weights: bfloat16"),
    ("H200\n    gpusPerReplica: 2", "H100\n    gpusPerReplica: 1"),
)
TOO_SLOW = llama(("p95: 50ms", "p95: 5ms"))
QUESTIONS = [
    "1. Does it fit?",
    "2. What is the bottleneck?",
    "3. What limits the batch?",
    "4. How long do requests take?",
    "5. How many replicas?",
    "Assumptions",
    "Plan",
]


@pytest.fixture
def golden_text(request):
    """Compare what is printed with tests/golden/NAME.txt."""

    def check(name, text):
        path = ROOT / "tests" / "golden" / f"{name}.txt"
        if request.config.getoption("--update-golden"):
            path.write_text(text)

        assert path.read_text() == text

    return check


def as_json(*texts, options=()):
    result = plan(*texts, options=["-o", "json", *options])
    (answer,) = json.loads(result.stdout)
    return answer


@pytest.mark.parametrize(
    ("name", "text", "exit_code"), [("llama-70b", LLAMA, 0), ("does-not-fit", TOO_LARGE, 2)]
)
def test_what_an_engineer_reads(golden_text, name, text, exit_code):
    result = plan(text)

    assert result.exit_code == exit_code
    golden_text(f"cli-plan-{name}", result.stdout)


def test_the_questions_stand_in_order():
    lines = plan(LLAMA).stdout.splitlines()

    assert [line for line in lines if line in QUESTIONS] == QUESTIONS


@pytest.mark.parametrize("columns", [80, 100, 120])
def test_no_line_is_wider_than_the_screen(columns):
    for text in (LLAMA, TOO_LARGE, TOO_SLOW):
        lines = run("plan", "-f", "-", text=text, COLUMNS=str(columns)).stdout.splitlines()

        assert max(map(len, lines)) <= columns
        assert "…" not in "".join(lines)
        assert [line for line in lines if line != line.rstrip()] == []


def test_colour_is_for_terminals():
    assert "\x1b" not in plan(LLAMA).stdout
    assert "\x1b[" in run("plan", "-f", "-", text=LLAMA, FORCE_COLOR="1").stdout


def test_json_and_yaml_hold_what_status_would_hold():
    (as_yaml,) = yaml.safe_load(plan(LLAMA, options=["-o", "yaml"]).stdout)
    answer = as_json(LLAMA)

    assert as_yaml == answer
    assert answer["metadata"] == {"name": "llama-70b", "namespace": "serving"}
    PlanStatus.model_validate_json(json.dumps(answer["plan"]))
    EstimateStatus.model_validate_json(json.dumps(answer["estimate"]))


def test_several_objects_are_a_list_and_the_worst_decides():
    other = llama(("name: llama-70b", "name: other"), ("p95: 50ms", "p95: 5ms"))
    result = plan(LLAMA, other, options=["-o", "json"])
    first, second = json.loads(result.stdout)

    assert result.exit_code == 2
    assert first["plan"]["replicas"] >= 1
    assert second["conditions"][0]["reason"] == "SLOInfeasible"
    assert second["conditions"][0]["message"] in result.stderr


def test_an_invalid_object_does_not_hide_a_valid_one():
    result = plan(LLAMA, llama(("name: llama-70b", "name: other"), ("H200", "{}")))

    assert result.exit_code == 3
    assert "spec.hardware.gpu" in result.stderr
    assert "serving/llama-70b" in result.stdout


def test_a_plan_beyond_max_replicas_says_what_the_allowed_ones_sustain():
    text = llama(("maxReplicas: 8", "maxReplicas: 2"), ("PerSecond: 4", "PerSecond: 40"))
    answer, shown = as_json(text), plan(text).stdout
    reason = answer["plan"]["reasons"][-1]

    assert answer["plan"]["replicas"] == 2
    assert reason["code"] == "MaxReplicas"
    assert "maxReplicas allows 2: they sustain" in reason["message"]
    assert "of the 40.0 requests/s asked for" in reason["message"]
    assert shown.splitlines()[1].startswith("40.0 requests/s need ")
    assert "maxReplicas allows 2" in shown.splitlines()[1]
    assert answer["estimate"]["usdPerHour"] == pytest.approx(2 * 2 * 63.296 / 8, abs=0.01)


def test_a_plan_below_min_replicas_says_so():
    answer = as_json(llama(("{maxReplicas: 8}", "{maxReplicas: 8, minReplicas: 7}")))

    assert answer["plan"]["replicas"] == 7
    assert answer["plan"]["reasons"][-1]["code"] == "MinReplicas"


def test_a_refusal_gives_the_numbers_and_the_ways_out():
    result = plan(TOO_LARGE)

    assert result.exit_code == 2
    assert "No (DoesNotFit): 72.8 GiB usable (92% of 79.2 GiB)" in result.stdout
    assert "hardware.gpusPerReplica: 4" in result.stdout
    assert "hardware.gpu: H200" in result.stdout


def test_a_second_node_is_a_way_out_where_no_split_of_one_fits():
    larger = TOO_LARGE.replace("3.3-70B", "3.1-405B").replace("Replica: 1", "Replica: 8")
    slower = larger.replace("PerSecond: 4", "PerSecond: 1").replace("p95: 50ms", "p95: 80ms")
    offers = as_json(slower)["offers"]

    assert ["hardware.gpusPerReplica: 16"] in [each["changes"] for each in offers]


def test_a_way_out_changes_the_spec_where_only_the_flags_that_run_do_not_fit():
    given = SCALED.replace("gpu: H200", "gpu: H200\n    gpusPerReplica: 2")
    small = a_deployment(args=["--tensor-parallel-size=2", "--gpu-memory-utilization=0.2"])
    offers = as_json(given, small)["offers"]

    assert offers
    assert all(each["changes"] for each in offers)


def test_the_ways_out_lead_out():
    more = TOO_LARGE.replace("gpusPerReplica: 1", "gpusPerReplica: 4")
    other = TOO_LARGE.replace("H100\n    gpusPerReplica: 1", "H200")

    assert "plan" in as_json(more)
    assert "plan" in as_json(other)


def test_an_infeasible_target_says_what_can_be_reached():
    result = plan(TOO_SLOW)

    assert result.exit_code == 2
    assert "No (SLOInfeasible): timePerOutputToken: one request alone on H200" in result.stdout
    assert "the SLO is 5.00 ms" in " ".join(result.stdout.split())


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (
            ("gpu: H200", "gpu: H20O"),
            "'H20O' is not in the catalogue (did you mean H200?); known: A10",
        ),
        (("70B-Instruct", "70B-Instrukt"), "(did you mean meta-llama/Llama-3.3-70B-Instruct"),
        (
            ("gpu: H200", "gpu: V100"),
            "engine.version 0.33: vLLM from 0.21 on needs compute capability 7.5, V100-16GB",
        ),
        (
            ("gpu: H200", "gpu: P100"),
            "NVIDIA GPUs of compute capability 7.0 or more",
        ),
        (('"0.33"', '"0.5"'), "engine.version 0.5: vLLM before 0.11 is not supported"),
    ],
)
def test_what_is_unknown_is_said_with_what_is_known(change, expected):
    result = plan(llama(change))

    assert result.exit_code == 3
    assert expected in " ".join(result.stdout.split())


def test_a_model_newer_than_its_engine_is_a_no_and_the_newest_engine_a_way_out():
    old = llama(
        ("meta-llama/Llama-3.3-70B-Instruct", "Qwen/Qwen3.5-9B"),
        ("    gpusPerReplica: 2\n", ""),
        ('"0.33"', '"0.16"'),
    )
    result = plan(old)

    assert result.exit_code == 2
    text = " ".join(result.stdout.split())
    assert "engine.version 0.16: vLLM serves models of the kind qwen3_5 from 0.17 on" in text
    assert 'engine.version: "0.33"' in text


def test_a_number_of_gpus_that_is_no_split_is_a_no():
    result = plan(llama(("gpusPerReplica: 2", "gpusPerReplica: 12")))

    assert result.exit_code == 2
    assert "hardware.gpusPerReplica 12: " in " ".join(result.stdout.split())


def test_a_config_map_in_the_same_files_gives_the_model():
    answer = as_json(CONFIGURED, a_config_map())

    assert answer["plan"]["replicas"] >= 1
    assert answer["estimate"]["kvBytesPerToken"] == 2 * 32 * 4 * 128 * 2  # half of 8 heads per GPU


@pytest.mark.parametrize(
    ("config_map", "expected"),
    [
        (a_config_map(name="other"), "ConfigMap serving/my-model is not in these files"),
        (a_config_map(namespace="other"), "ConfigMap serving/my-model is not in these files"),
        (a_config_map(data={"x": "{}"}), "ConfigMap has no key config.json"),
        (
            a_config_map(data={"config.json": '{"a": 1,\n"a": 2}'}),
            "key 'a' is given twice",
        ),
        (a_config_map(data={"config.json": "{"}), "config.json:1: Expecting"),
    ],
)
def test_a_config_map_that_does_not_help_is_named(config_map, expected):
    result = plan(CONFIGURED, config_map)

    assert result.exit_code == 3
    assert expected in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_hostile_config_names_the_key():
    config = json.dumps(json.loads(CONFIG_JSON) | {"num_hidden_layers": -1})
    result = plan(CONFIGURED, a_config_map(data={"config.json": config}))

    assert result.exit_code == 3
    assert "num_hidden_layers = -1" in " ".join(result.stdout.split())


def test_model_config_replaces_the_catalogue(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(CONFIG_JSON)
    answer = as_json(LLAMA, options=["--model-config", path])

    assert answer["estimate"]["kvBytesPerToken"] == 2 * 32 * 4 * 128 * 2


def test_model_config_may_be_a_folder_with_a_second_file(tmp_path):
    (tmp_path / "config.json").write_text(CONFIG_JSON)
    second = {"quantization": {"quant_algo": "FP8", "exclude_modules": ["lm_head"]}}
    (tmp_path / "hf_quant_config.json").write_text(json.dumps(second))

    for path in (tmp_path, tmp_path / "config.json"):
        answer = as_json(LLAMA, options=["--model-config", path])
        [weights] = [each for each in answer["estimate"]["inputs"] if each["name"] == "weights"]
        assert weights["value"] == "fp8"

    (tmp_path / "hf_quant_config.json").write_text("[]")
    result = plan(LLAMA, options=["--model-config", tmp_path])
    assert result.exit_code == 3
    assert "config.json: hf_quant_config.json is no object" in result.stderr


def test_model_weights_are_believed_where_the_name_says_the_same(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(CONFIG_JSON)
    named = LLAMA.replace("Llama-3.3-70B-Instruct", "Llama-8B-NVFP4")
    answer = as_json(named, options=["--model-config", path, "--set", "model.weights=nvfp4"])

    inputs = answer["estimate"]["inputs"]
    assert next(each["value"] for each in inputs if each["name"] == "weights") == "nvfp4"
    [assumed] = [each for each in inputs if each["origin"] == "assumed"]
    assert assumed["value"].startswith("nvfp4, as model.weights and the name of the model say")


def test_a_refusal_names_what_it_assumes(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(CONFIG_JSON) | {"intermediate_size": 900_000}))
    named = LLAMA.replace("Llama-3.3-70B-Instruct", "Llama-9B-NVFP4")
    result = plan(named, options=["--model-config", path])

    assert result.exit_code == 2
    said = " ".join(result.stdout.split())
    assert "No (DoesNotFit)" in said
    assert "assumed: weights: the name says NVFP4, but config.json has no" in said


def test_an_encoder_that_cannot_be_counted_is_said_without_being_asked(tmp_path):
    path = tmp_path / "config.json"
    config = {"model_type": "gemma3n", "text_config": json.loads(CONFIG_JSON)}
    path.write_text(json.dumps(config))
    result = plan(LLAMA, options=["--model-config", path])

    assert "vision_config is not counted and needs memory beside the rest" in " ".join(
        result.stdout.split()
    )


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("{", ":1: Expecting"),
        ('{"a":\n1,}', ":2: "),
        ('{"a": 1, "a": 1}', ": key 'a' is given twice"),
    ],
)
def test_a_broken_model_config_is_said_with_its_line(tmp_path, content, expected):
    path = tmp_path / "config.json"
    path.write_text(content)
    result = plan(LLAMA, options=["--model-config", path])

    assert result.exit_code == 3
    assert f"config.json{expected}" in result.stderr


def test_a_scale_target_keeps_the_flags_that_run():
    answer = as_json(SCALED, a_deployment())

    assert answer["plan"]["maxNumSeqs"] == 48
    assert answer["plan"]["parallelism"] == {"tensor": 2, "pipeline": 1, "data": 1}


@pytest.mark.parametrize("leader", [True, False], ids=["with a leader's", "without"])
def test_groups_that_exist_are_a_scale_target(leader):
    groups = SCALED.replace("{name: my-vllm}", "{kind: LeaderWorkerSet, name: my-vllm}")
    answer = as_json(groups, groups_that_exist(leader=leader))

    assert answer["plan"]["maxNumSeqs"] == 48
    assert answer["plan"]["parallelism"] == {"tensor": 8, "pipeline": 2, "data": 1}


def test_a_scale_target_of_the_other_kind_is_not_found():
    result = plan(SCALED, groups_that_exist())

    assert result.exit_code == 3
    assert "Deployment serving/my-vllm is not in these files" in result.stderr


@pytest.mark.parametrize(
    ("given", "kv_tokens"),
    [
        # 80 layers, 4 of 8 KV heads on each of 2 GPUs, 128 wide, K and V: 163,840 B a token.
        ("--kv-cache-memory-bytes=10G", 65_536),
        ("--num-gpu-blocks-override=4000", 64_000),
    ],
)
def test_a_scale_target_keeps_the_cache_that_is_given(given, kv_tokens):
    flags = ["--max-num-seqs=48", "--max-num-batched-tokens=8192", "--tensor-parallel-size=2"]
    deployment = a_deployment(args=[*flags, "--max-model-len=8192", given])

    estimate = as_json(SCALED, deployment)["estimate"]
    shown = " ".join(plan(SCALED, deployment).stdout.split())

    assert estimate["kvTokens"] == kv_tokens
    assert estimate["kvTokensLow"] == estimate["kvTokensHigh"] == kv_tokens
    assert f"for the KV cache, given: {given.partition('=')[0]} " in shown
    assert f"will print {kv_tokens:,} tokens" in shown


def test_a_scale_target_that_vllm_refuses_after_loading_is_refused_with_the_flag_to_change():
    # kaito-project/kaito issue 2319: 614 blocks on an H100 NVL.
    hybrid = SCALED.replace("meta-llama/Llama-3.3-70B-Instruct", "Qwen/Qwen3.6-27B")
    hybrid = hybrid.replace("    weights: fp8\n", "").replace("gpu: H200", "gpu: H100-NVL")
    flags = ["--max-num-seqs=1024", "--max-num-batched-tokens=8192"]
    refused = a_deployment(args=flags).replace("v0.33.0", "v0.25.1")
    result = plan(hybrid, refused)

    assert result.exit_code == 2
    said = " ".join(result.stdout.split())
    assert "No (WillNotStart): --max-num-seqs 1024 exceeds the " in said
    assert "vLLM 0.25 will not start; set --max-num-seqs to at most " in said


def test_a_scale_target_of_a_file_that_holds_no_request_does_not_fit():
    flags = ["--max-num-seqs=48", "--max-num-batched-tokens=8192", "--tensor-parallel-size=2"]
    result = plan(SCALED, a_deployment(args=[*flags, "--gpu-memory-utilization=0.34"]))

    assert result.exit_code == 2
    assert "No (DoesNotFit)" in result.stdout
    shown = " ".join(result.stdout.split())
    assert "one request of 131072 tokens needs 20.0 GiB of KV cache" in shown
    assert "set --max-model-len 8192 there" in shown


def test_a_scale_target_that_sets_nothing_is_answered():
    answer = as_json(SCALED, a_deployment(args=["--tensor-parallel-size=2"]))
    inputs = [each["value"] for each in answer["estimate"]["inputs"] if each["name"] == "flags"]

    assert answer["plan"]["maxNumSeqs"] == 1024
    assert inputs == [
        "--max-num-seqs 1024 and --max-num-batched-tokens 8192: what vLLM 0.33 takes by itself on "
        "H200"
    ]


def test_a_scale_target_whose_given_cache_holds_no_request_is_refused():
    flags = ["--max-num-seqs=48", "--max-num-batched-tokens=8192", "--tensor-parallel-size=2"]
    result = plan(SCALED, a_deployment(args=[*flags, "--kv-cache-memory-bytes=512M"]))

    assert result.exit_code == 2
    assert "given by --kv-cache-memory-bytes 536870912" in " ".join(result.stdout.split())


@pytest.mark.parametrize(
    ("deployment", "expected"),
    [
        ("", "spec.scaleTarget: Deployment serving/my-vllm is not in these files"),
        (a_deployment(image="vllm:latest"), "set scaleTarget.engineVersion"),
        (a_deployment(args=["--max-num-seqs=many"]), "--max-num-seqs 'many' is no number"),
        (
            a_deployment(
                args=[
                    "--max-num-seqs=64",
                    "--max-num-batched-tokens=8192",
                    "--kv-cache-memory-bytes=10GiB",
                ]
            ),
            "--kv-cache-memory-bytes '10GiB' is no number that vLLM reads",
        ),
        (
            "apiVersion: apps/v1\nkind: Deployment\n"
            "metadata: {name: my-vllm, namespace: serving}\n",
            "tag of image '' is a version of vLLM",
        ),
    ],
)
def test_a_scale_target_that_says_too_little_is_refused(deployment, expected):
    result = plan(SCALED, deployment)

    assert result.exit_code == 3
    assert expected in " ".join(result.output.split())


def test_another_demand_can_be_asked_for():
    answer = as_json(LLAMA, options=["--requests-per-second", "0.5"])
    demand = {"name": "demand", "value": "0.500 requests/s", "origin": "given"}

    assert answer["plan"]["replicas"] == 1
    assert demand in answer["estimate"]["inputs"]


@pytest.mark.parametrize("rate", ["0", "-1", "nan", "inf", "1e99", "x"])
def test_a_demand_that_is_none_is_refused(rate):
    result = plan(LLAMA, options=["--requests-per-second", rate])

    assert result.exit_code == 3
    assert "--requests-per-second" in result.stderr


def test_a_folder_of_classes_overrides_the_catalogue(tmp_path):
    source = (ROOT / "operator/tonnage/catalog/gpus/h200.toml").read_text()
    (tmp_path / "h200.toml").write_text(source.replace("= 63.296", "= 8.00"))
    answer = as_json(LLAMA, options=["--gpus", tmp_path])

    assert answer["estimate"]["usdPerHour"] == answer["plan"]["replicas"] * 2 * 1.00


def test_a_broken_class_is_named_in_one_line(tmp_path):
    (tmp_path / "mine.toml").write_text("name = 'Mine'\nmemory_bytes = -1\n")
    result = plan(LLAMA, options=["--gpus", tmp_path])

    assert result.exit_code == 3
    assert "GPU class file mine.toml" in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("path", one_in(3, EXAMPLES, name=lambda path: path.stem))
def test_every_example_has_a_plan(path):
    result = run("plan", "-f", path)

    assert result.exit_code == 0, result.output


def test_a_plan_imports_no_cluster_and_no_picture():
    script = (
        "import sys, click.testing\n"
        "from tonnage.cli.commands.app import program\n"
        "command = ['plan', '-f', '-']\n"
        "result = click.testing.CliRunner().invoke(program, command, sys.stdin.read())\n"
        "assert result.exit_code == 0, result.output\n"
        "heavy = {'kopf', 'kubernetes', 'requests', 'aiohttp', 'cryptography'}\n"
        "heavy |= {'matplotlib', 'http.client'}\n"
        "heavy |= {f'tonnage.{each}' for each in ('cluster', 'fleet', 'policy', 'replay')}\n"
        "heavy |= {f'tonnage.estimate.{each}' for each in ('calibration_file', 'learner')}\n"
        "print(sorted(heavy & set(sys.modules)))\n"
    )
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, input=LLAMA, capture_output=True, text=True, check=False)  # noqa: S603

    assert (done.stdout, done.stderr) == ("[]\n", "")
