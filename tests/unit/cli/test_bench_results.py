"""``tonnage calibrate --result``: files of ``vllm bench serve`` and of GuideLLM."""

import json
from dataclasses import replace

import pytest

from cli_builders import a_request_of, run
from tonnage.cli.commands.calibrate import calibrated, subject_of
from tonnage.cli.read.bench_results import MOST_VALUES, read_runs
from tonnage.estimate.calibration_file import load, speed_posterior_of
from tonnage.estimate.learner import constants_of
from tonnage.estimate.speed import with_speed
from tonnage.sizing.serving.replica import mixed_step
from tonnage.sizing.step_time.model import StepTimeModel
from tonnage.sizing.step_time.step import Step
from tonnage.sizing.workload import Lengths, Workload

MODEL = "meta-llama/Llama-3.1-8B-Instruct"
PROMPT, OUTPUT, COMPLETED = 1024, 128, 400
OVERHEAD, BANDWIDTH, PREFILL = 1.3, 0.71, 0.52
MADE_S = 1_760_000_000.0


def the_subject():
    return subject_of(a_request_of(MODEL, "H100"))


def engine():
    """Return an engine with constants that are not the prior's."""
    model = the_subject().model
    speed = with_speed(model.constants, (OVERHEAD, BANDWIDTH, PREFILL))
    return StepTimeModel(shard=model.shard, speeds=model.speeds, constants=speed)


def run_at(concurrency, model):
    """Return TTFT, TPOT and rate of a run at a concurrency, as the engine would have them."""
    workload = Workload(
        prompt=Lengths(mean_tokens=PROMPT), output_tokens=OUTPUT, output_second_moment=OUTPUT**2
    )
    prefill = 0.0 if concurrency == 1 else concurrency * PROMPT / (OUTPUT - 1)
    work = mixed_step(workload, concurrency, prefill, chunk_tokens=PROMPT if prefill else None)
    tpot_s = model.step(work).total_s
    alone = Step(
        num_sequences=1, context_tokens=0, prefill_tokens=PROMPT, prefill_context_tokens=PROMPT / 2,
        prefill_ranks=1,
    )  # fmt: skip
    return model.step(alone).total_s, tpot_s, concurrency / ((OUTPUT - 1) * tpot_s)


def of_vllm(concurrency, model=None, **changes):
    """Return what ``benchmarks/serve.py`` of vLLM 0.33 writes without ``--save-detailed``."""
    ttft_s, tpot_s, rate = run_at(concurrency, model or engine())
    return {
        "date": "20251009-085320", "endpoint_type": "openai", "backend": "openai", "label": None,
        "model_id": MODEL, "tokenizer_id": MODEL, "num_prompts": COMPLETED, "request_rate": "inf",
        "burstiness": 1.0, "max_concurrency": concurrency, "duration": COMPLETED / rate,
        "completed": COMPLETED, "failed": 0, "total_input_tokens": COMPLETED * PROMPT,
        "total_output_tokens": COMPLETED * OUTPUT, "request_throughput": rate,
        "request_goodput": None, "output_throughput": rate * OUTPUT,
        "total_token_throughput": rate * (PROMPT + OUTPUT), "max_output_tokens_per_s": 1.0,
        "max_concurrent_requests": concurrency, "mean_ttft_ms": ttft_s * 1000,
        "median_ttft_ms": ttft_s * 1000, "std_ttft_ms": 0.0, "p99_ttft_ms": ttft_s * 1000,
        "mean_tpot_ms": tpot_s * 1000, "median_tpot_ms": tpot_s * 1000, "std_tpot_ms": 0.0,
        "p99_tpot_ms": tpot_s * 1000, "mean_itl_ms": tpot_s * 1000,
    } | changes  # fmt: skip


def of_guidellm(concurrency, version, **changes):
    """Return a benchmark as ``GenerativeBenchmark`` of GuideLLM is dumped, less its requests."""
    ttft_s, tpot_s, rate = run_at(concurrency, engine())

    def summary(value):
        found = {"mean": value, "median": value, "std_dev": 0.0, "count": COMPLETED}
        return {"successful": found, "errored": {**found, "mean": 0.0}}

    strategy = {"type_": "concurrent", "streams": concurrency}
    totals = {"successful": COMPLETED, "incomplete": 2, "errored": 0, "total": COMPLETED + 2}
    metrics = {
        "requests_per_second": summary(rate), "prompt_token_count": summary(PROMPT),
        "output_token_count": summary(OUTPUT), "inter_token_latency_ms": summary(tpot_s * 1000),
        "time_to_first_token_ms": summary(ttft_s * 1000),
    }  # fmt: skip
    if version == "0.3":
        return {
            "type_": "generative_benchmark", "end_time": MADE_S, "args": {"strategy": strategy},
            "worker": {"backend_model": MODEL}, "request_totals": totals, "metrics": metrics,
        } | changes  # fmt: skip
    return {
        "type_": "generative_benchmark", "end_time": MADE_S,
        "config": {"strategy": strategy, "backend": {"model": MODEL}},
        "metrics": {**metrics, "request_totals": totals},
    } | changes  # fmt: skip


def calibrate(path, *options, model=MODEL):
    return run(
        "calibrate", "--result", path, "--model", model, "--gpu", "H100",
        "--set", "engine.version=0.33", *options,
    )  # fmt: skip


def assert_measured(result):
    """The constants of the engine are found, of which two are far from the prior."""
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)["constants"]
    # Of 6.7 ms of a step of one 1.4 are overheads: the prior pulls at their factor.
    assert found["overheadFactor"] == pytest.approx(OVERHEAD, rel=0.05)
    assert found["bandwidthEfficiency"] == pytest.approx(BANDWIDTH, rel=0.02)
    assert found["prefillEfficiency"] == pytest.approx(PREFILL, rel=0.02)


RUNS = (1, 8, 32, 64)


def test_lines_of_vllm_bench_serve_give_the_constants_of_the_engine(tmp_path):
    path = tmp_path / "bench.json"
    path.write_text("\n".join(json.dumps(of_vllm(each)) for each in RUNS))

    result = calibrate(path)

    assert_measured(result)
    found = json.loads(result.stdout)
    assert found["date"] == "2025-10-09"
    assert found["requests"] == len(RUNS) * COMPLETED
    assert [(each["kind"], each["sequences"]) for each in found["points"]] == [
        ("decode", 1), ("prefill", 1), ("decode", 8), ("decode", 32), ("decode", 64),
    ]  # fmt: skip
    assert "neither other traffic nor prompts from the prefix cache" in found["remarks"][0]


@pytest.mark.parametrize("version", ["0.3", "0.8"])
def test_a_report_of_guidellm_gives_them_too(tmp_path, version):
    path = tmp_path / "benchmarks.json"
    path.write_text(json.dumps({"benchmarks": [of_guidellm(each, version) for each in RUNS]}))

    result = calibrate(path)

    assert_measured(result)
    assert json.loads(result.stdout)["measuredAtS"] == MADE_S


def test_what_is_printed_as_json_is_a_calibration(tmp_path):
    path = tmp_path / "bench.json"
    path.write_text(json.dumps(of_vllm(16)))

    result = calibrate(path)

    assert result.exit_code == 0, result.output
    assert load(result.stdout).key.gpu == "H100"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (of_vllm(8, max_concurrency=None), "request_rate is inf without max_concurrency"),
        (of_vllm(8, mean_tpot_ms=None), "mean_tpot_ms is missing, or no positive number"),
        (of_vllm(8, failed=40), "40 of 440 requests failed, more than 2%"),
        (of_vllm(8, spec_decode_num_drafts=5), "the engine drafted tokens"),
        (of_vllm(8, model_id="other/model"), "of model other/model, not meta-llama"),
        (of_vllm(8, total_output_tokens=COMPLETED), "outputs of 1.0 tokens on average"),
        ({"benchmarks": []}, "there are no runs in these files"),
        ({"benchmarks": [{}]}, "benchmark 1: successful is missing"),
        (
            {
                "benchmarks": [
                    of_guidellm(8, "0.8", config={"strategy": {"type_": "throughput"}})
                ]
            },
            "strategy throughput sends all requests at once",
        ),
        ({"results": 1}, "neither a result of 'vllm bench serve'"),
        ([1], "no JSON object"),
    ],
)  # fmt: skip
def test_a_file_that_tells_nothing_of_steps_is_refused_by_name(tmp_path, content, message):
    path = tmp_path / "bench.json"
    path.write_text(json.dumps(content))

    result = calibrate(path)

    assert result.exit_code == 3, result.output
    assert message in result.stderr


def test_a_file_is_refused_for_its_many_values_before_they_are_built(tmp_path):
    path = tmp_path / "bench.json"
    path.write_text('{"benchmarks": [' + "{}," * (MOST_VALUES // 2) + "{}]}")

    result = calibrate(path)

    assert result.exit_code == 3
    assert "5,000,003 values, more than 5,000,000: leave out single requests" in result.stderr


def test_lines_are_refused_at_the_first_that_is_no_result(tmp_path):
    path = tmp_path / "bench.json"
    path.write_text(json.dumps(of_vllm(1)) + "\n" + "{}\n" + "no JSON\n")

    result = calibrate(path)

    assert "bench.json:2: neither a result of 'vllm bench serve'" in result.stderr


def test_a_line_separator_within_a_text_ends_no_line(tmp_path):
    path = tmp_path / "bench.json"
    lines = (of_vllm(each, label="one\u2028line") for each in (1, 8, 16))
    path.write_text("".join(json.dumps(each, ensure_ascii=False) + "\n" for each in lines))

    assert calibrate(path).exit_code == 0


def test_the_version_of_the_engine_is_asked_for():
    result = run("calibrate", "--result", "bench.json", "--model", MODEL, "--gpu", "H100")

    assert result.exit_code == 3
    assert "the version of vLLM is not given: --set engine.version=0.33" in result.stderr


def test_the_headline_has_the_errors_before_and_after_and_the_constants(tmp_path):
    path = tmp_path / "bench.json"
    path.write_text("\n".join(json.dumps(of_vllm(each)) for each in RUNS))

    said = calibrate(path).stderr

    assert f"{MODEL} (" in said
    assert "TPOT error" in said
    assert "bandwidth efficiency 0.7" in said
    assert "Note: from " in said


def test_one_run_moves_one_constant_and_says_which_stay(tmp_path):
    path = tmp_path / "bench.json"
    path.write_text(json.dumps(of_vllm(16)))

    said = " ".join(calibrate(path).stderr.split())

    assert (
        "1 point, so overhead factor and prefill efficiency stay as believed, with their doubt, "
        "and the error after is of no other load: measure more concurrencies"
    ) in said


@pytest.fixture
def fitted(tmp_path):
    """Return the file of what is fitted to runs of an engine."""

    def fit(model):
        path = tmp_path / "bench.json"
        path.write_text("\n".join(json.dumps(of_vllm(each, model)) for each in RUNS))
        runs = read_runs(str(path))
        return calibrated(the_subject(), runs, max_batched_tokens=8192, source="alone")

    return fit


def test_the_learner_means_the_same_by_the_constants_of_a_file(fitted):
    file, prior = fitted(engine()), the_subject().request.speed
    written = file.constants
    three = written.overhead_factor, written.bandwidth_efficiency, written.prefill_efficiency

    known = speed_posterior_of(file)

    assert constants_of(known, prior) == with_speed(prior, three)
    [remark] = file.remarks  # the fit leaves nothing to say
    assert remark.startswith("from alone; ")


def test_an_engine_faster_than_its_class_is_doubted(fitted):
    model = engine()
    fast = replace(
        model, speeds=replace(model.speeds, memory_bytes_per_s=3e13, peak_flop_per_s=1e16)
    )

    remarks = " ".join(fitted(fast).remarks)

    assert "another GPU class or split than H100 TP1?" in remarks
    assert "observed MBU is" in remarks


def test_an_engine_of_another_form_is_told(fitted):
    model = engine()
    slow = replace(model, constants=replace(model.constants, per_sequence_s=0.005))

    remarks = " ".join(fitted(slow).remarks)

    assert "do not express this engine" in remarks
