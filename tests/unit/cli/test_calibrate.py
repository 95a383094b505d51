"""``tonnage calibrate``: the commands that it prints, what it refuses, and plans with its files."""

import shlex
from itertools import pairwise

import pytest
import yaml

from calibration_builders import a_file
from cli_builders import CONFIG_JSON, a_request_of, plan, run
from tonnage.cli.commands.calibrate import subject_of
from tonnage.estimate.calibration_file import dump, key_of

MODEL = "meta-llama/Llama-3.2-1B"
MANIFEST = yaml.safe_dump(
    {
        "apiVersion": "tonnage.dev/v1alpha1",
        "kind": "ModelDeployment",
        "metadata": {"name": "l", "namespace": "serving"},
        "spec": {
            "model": {"id": MODEL},
            "hardware": {"gpu": "L40S"},
            "contextLength": 4096,
            "scaling": {"maxReplicas": 2},
            "engine": {"version": "0.33"},
        },
    }
)


def calibrate(*options, model=MODEL):
    return run(
        "calibrate", "--model", model, "--gpu", "L40S", "--set", "engine.version=0.33", *options
    )


def test_without_a_result_it_prints_what_to_run():
    result = calibrate("--prompt", "4000", "--output", "500")

    assert result.exit_code == 0
    options = [dict(pairwise(shlex.split(line))) for line in result.stdout.splitlines()]
    assert options[0]["--max-concurrency"] == "1", "times a prompt alone"
    assert len({each["--max-concurrency"] for each in options}) > 2
    assert len({each["--seed"] for each in options}) == len(options), "no prompt comes again"
    for line in result.stdout.splitlines():
        assert line.startswith(f"vllm bench serve --model {MODEL} --dataset-name random ")
        assert "--random-input-len 4000 --random-output-len 500 --ignore-eos" in line
        assert "--append-result --result-filename bench.json" in line
    assert "Nothing was measured." in result.stderr


def test_a_model_without_a_configuration_asks_for_one(tmp_path):
    (tmp_path / "config.json").write_text(CONFIG_JSON)
    options = ("--model-config", tmp_path / "config.json", "--set", "hardware.parallelism.tensor=3")

    unknown, odd = calibrate(model="my/model"), calibrate(*options, model="my/model")

    assert (unknown.exit_code, odd.exit_code) == (3, 3)
    assert "my/model" in unknown.stderr
    assert "TP 3 does not divide" in odd.stderr


def test_ranks_over_nodes_are_not_fitted():
    result = calibrate("--set", "hardware.parallelism.data=16", model="deepseek-ai/DeepSeek-R1")

    assert result.exit_code == 3
    assert "DP16 is over several nodes, each of 8 GPUs" in result.stderr


@pytest.fixture
def path(tmp_path):
    """A calibration of the engine that the manifest asks for."""
    subject = subject_of(a_request_of(MODEL, "L40S"))
    found = tmp_path / "calibration.json"
    found.write_text(dump(a_file(key=key_of(subject.request, subject.parallelism))))
    return found


def test_the_plan_takes_it_and_says_measured(path):
    result = plan(MANIFEST, options=("--calibration", path))

    assert result.exit_code == 0
    (speed,) = [line for line in result.stdout.splitlines() if "bandwidth efficiency" in line]
    assert speed.endswith("measured")


@pytest.mark.parametrize(
    ("old", "new", "asked"),
    [
        ("gpu: L40S", "gpu: L40", "L40, TP1, vLLM 0.33"),
        ("version: '0.33'", "version: '0.32'", "L40S, TP1, vLLM 0.32"),
        ("gpu: L40S", "gpu: L40S\n    gpusPerReplica: 2", "L40S, PP2, vLLM 0.33"),
        (MODEL, "Qwen/Qwen3-0.6B", "Qwen/Qwen3-0.6B ("),
    ],
)
def test_the_plan_refuses_it_for_another_key(path, old, new, asked):
    assert old in MANIFEST

    result = plan(MANIFEST.replace(old, new), options=("--calibration", path))

    said = " ".join(result.stdout.split())
    assert result.exit_code == 3
    assert "No (CalibrationMismatch): the calibration is for meta-llama/Llama-3.2-1B (" in said
    assert "L40S, TP1, vLLM 0.33, not for" in said
    assert asked in said.partition("not for")[2]


def test_help_has_examples():
    result = run("calibrate", "--help")

    assert result.exit_code == 0
    assert "tonnage plan -f model.yaml --calibration calibration.json" in result.output
