"""``tonnage calibrate`` against the engine emulator, whose constants it has to find out."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from functools import partial
from pathlib import Path

import pytest
import yaml

from cli_builders import plan, run
from endpoint_double import MODEL
from tonnage_lab.processes import free_ports

OPERATOR = Path(__file__).parents[3] / "operator"
TRUTH = {
    "load_s": 0.0,
    "step": {
        "gpu": "L40S",
        "bandwidth_efficiency": 0.55,
        "prefill_efficiency": 0.25,
        "per_step_s": 0.004,
        "per_kernel_s": 4e-06,
    },
}
SERVE = [
    "serve", MODEL, "--max-model-len", "4096", "--max-num-seqs", "8",
    "--max-num-batched-tokens", "2048",
]  # fmt: skip
TRACE = "arrival_s,prompt_tokens,output_tokens\n" + "".join(
    f"{0.03 * number:.2f},{50 + 40 * (number % 5)},{5 + number % 7}\n" for number in range(50)
)
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


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    """The address of an emulator that is Ready."""
    truth = tmp_path_factory.mktemp("emulator") / "truth.json"
    truth.write_text(json.dumps(TRUTH))
    (port,) = free_ports(1)
    program = subprocess.Popen(  # noqa: S603
        [sys.executable, "-m", "tonnage_lab.emulator", *SERVE, "--host", "127.0.0.1",
         "--port", str(port)],
        env={**os.environ, "PYTHONPATH": str(OPERATOR), "TONNAGE_LAB_TRUTH": str(truth)},
    )  # fmt: skip
    address = f"http://127.0.0.1:{port}"
    try:
        until_s = time.monotonic() + 30
        while not is_ready(address):
            assert time.monotonic() < until_s
            assert program.poll() is None
            time.sleep(0.05)
        yield address
    finally:
        program.kill()
        program.wait()


def is_ready(address):
    try:
        with urllib.request.urlopen(f"{address}/health", timeout=1) as answer:  # noqa: S310
            return answer.status == 200
    except OSError:
        return False


def arguments(url, *more):
    return ["calibrate", "--url", url, "--model", MODEL, "--gpu", "L40S", *map(str, more)]


@pytest.fixture(scope="module")
def measured(url, tmp_path_factory):
    """The result of a calibration with a replay, and its file."""
    folder = tmp_path_factory.mktemp("calibration")
    (folder / "lengths.csv").write_text(TRACE)
    path = folder / "calibration.json"
    options = ("--trace", folder / "lengths.csv", "--ttft", "5s", "--tpot", "1ms")
    limits = ("--max-concurrency", "4", "--max-num-seqs", "8", "--max-num-batched-tokens", "2048")
    return run(*arguments(url, "--save", path, "--max-seconds", "60", *options, *limits)), path


def test_hidden_constants_are_found(measured):
    result, path = measured
    assert result.exit_code == 0, result.output

    file = json.loads(path.read_text())
    decode = [point for point in file["points"] if point["kind"] == "decode"]
    before = [abs(point["priorErrorFraction"]) for point in decode]
    after = [abs(point["errorFraction"]) for point in decode]
    assert min(before) > 0.3
    assert sorted(after)[len(after) // 2] < 0.03
    assert file["constants"]["bandwidthEfficiency"] == pytest.approx(0.55, rel=0.2)
    assert file["constants"]["prefillEfficiency"] == pytest.approx(0.25, rel=0.35)
    assert file["constants"]["overheadFactor"] > 1.5
    assert file["cache"]["tokens"] > 100_000
    assert 0.1 < file["observed"]["mbuFraction"] < 0.55
    assert file["hasMetrics"] is True


def test_the_table_tells_the_replay_against_slo_and_prediction(measured):
    output = measured[0].stdout

    assert "TPOT error" in output.splitlines()[1]
    assert "Replay: 50 requests" in output
    rows = [line.split() for line in output.partition("Replay")[2].splitlines() if line.split()]
    verdicts = {row[0]: row[-1] for row in rows if row[0] in {"TTFT", "TPOT"}}
    assert verdicts == {"TTFT": "met", "TPOT": "missed"}
    assert len([row for row in rows if row[0] == "predicted"]) == 2
    assert output.rstrip().splitlines()[-1].startswith("validated by measurement: ")


def test_progress_is_told_beside_the_result(measured):
    result, path = measured

    assert "prefill of 512 tokens" in result.stderr
    assert f"Wrote {path}" in result.stderr
    assert "prefill of" not in result.stdout


def test_the_plan_takes_it_says_measured_and_ends_with_the_validation(measured):
    _, path = measured
    without, within = plan(MANIFEST), plan(MANIFEST, options=("--calibration", path))

    assert within.exit_code == 0
    (speed,) = [line for line in within.stdout.splitlines() if "bandwidth efficiency" in line]
    assert speed.endswith("measured")
    last = within.stdout.rstrip().splitlines()[-1]
    assert last.startswith("validated by measurement: ")
    assert " 50 requests, TPOT p95 error " in last
    assert "validated" not in without.stdout
    (found,) = json.loads(plan(MANIFEST, options=("--calibration", path, "-o", "json")).stdout)
    assert found["validation"]["requests"] == 50


@pytest.mark.parametrize(
    ("old", "new", "asked"),
    [
        ("gpu: L40S", "gpu: L40", "L40, TP1, vLLM 0.33"),
        ("version: '0.33'", "version: '0.32'", "L40S, TP1, vLLM 0.32"),
        ("gpu: L40S", "gpu: L40S\n    gpusPerReplica: 2", "L40S, PP2, vLLM 0.33"),
        (MODEL, "Qwen/Qwen3-0.6B", "Qwen/Qwen3-0.6B ("),
    ],
)
def test_the_plan_refuses_it_for_another_key(measured, old, new, asked):
    assert old in MANIFEST

    result = plan(MANIFEST.replace(old, new), options=("--calibration", measured[1]))

    said = " ".join(result.stdout.split())
    assert result.exit_code == 3
    assert "No (CalibrationMismatch): the calibration is for meta-llama/Llama-3.2-1B (" in said
    assert "L40S, TP1, vLLM 0.33; asked is" in said
    assert asked in said.partition("asked is")[2]


def test_textbook_arithmetic_takes_no_calibration(measured):
    result = plan(MANIFEST, options=("--textbook", "--calibration", measured[1]))

    assert result.exit_code == 3
    assert "--textbook takes no --calibration" in result.stderr


def test_a_calibration_of_another_key_is_not_written_over(measured, url):
    _, path = measured
    before = path.read_text()

    result = run(*arguments(url, "--save", path, "--engine-version", "0.33", "--kv-cache", "fp8"))

    assert result.exit_code == 3
    assert "is not replaced: the calibration is for" in result.stderr
    assert path.read_text() == before


def test_an_interrupt_ends_it_with_130_and_nothing_written(url, tmp_path):
    path = tmp_path / "calibration.json"
    program = subprocess.Popen(  # noqa: S603
        [sys.executable, "-m", "tonnage", *arguments(url, "--save", path)],
        env={**os.environ, "PYTHONPATH": str(OPERATOR)},
        stderr=subprocess.PIPE,
        text=True,
        # A job in the background of a shell ignores SIGINT, and hands that on.
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
    )
    for line in program.stderr:
        if line.startswith("1/"):
            break
    program.send_signal(signal.SIGINT)
    _, said = program.communicate(timeout=20)

    assert program.returncode == 130
    assert "interrupted; nothing was written" in said
    assert list(tmp_path.iterdir()) == []
