"""``tonnage replay``: the answer, its forms, its refusals and its exit codes."""

import json
import os
import signal
import subprocess
import sys
from functools import partial

import pytest
import yaml

from cli_builders import SMALL, a_deployment, run
from tonnage.cli.commands import output_files
from tonnage.cli.text.replay import COLUMNS
from tonnage.replay.policy import descriptions


def small(*changes):
    text = SMALL
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new)
    return text


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    """Return a file of three minutes: 4 requests/s, in the last minute 20."""
    times = [k / 4 for k in range(480)] + [120 + k / 20 for k in range(1200)]
    rows = "".join(f"{at_s},2000,200\n" for at_s in times)
    path = tmp_path_factory.mktemp("traces") / "trace.csv"
    path.write_text("arrival_s,prompt_tokens,output_tokens\n" + rows)
    return path


def replay(*arguments, text=SMALL, seeds=1, **more):
    return run(
        "replay", "-f", "-", "--start-up", "60s", "--seeds", seeds, "--processes", "1", *arguments,
        text=text, **more,
    )  # fmt: skip


@pytest.fixture(scope="module")
def told(trace):
    """Return the answer as data, of two seeds."""
    result = replay(
        trace, "--policy", "tonnage,best-static", "--policy", "static:2", "-o", "json",
        seeds=2,
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def by_policy(told):
    (case,) = told["cases"]
    return {each["policy"]: each for each in case["policies"]}


def test_known_events_are_by_a_clock_that_is_told(trace):
    event = '{cron: "0 8 * * *", duration: 2h, minReplicas: 2, timeZone: UTC}'
    text = small(("{maxReplicas: 8}", f"{{maxReplicas: 8, schedules: [{event}]}}"))
    result = replay(trace, "--policy", "tonnage", text=text)

    said = " ".join(result.stdout.split())
    assert "schedules: by a clock that is 2026-01-01T00:00:00Z when the traffic begins" in said
    note = "Note: small: spec.scaling.schedules run as if the traffic began at 2026-01-01T00:00:00Z"
    assert note in result.stderr


def test_json_has_every_policy_and_seed_in_the_order_asked(told):
    found = by_policy(told)

    assert list(found) == ["tonnage", "best-static", "static:2"]
    assert [[one["seed"] for one in each["runs"]] for each in found.values()] == [[0, 1]] * 3
    assert (told["targetFraction"], told["seeds"], told["speed"]) == (0.95, 2, 1.0)
    assert told["cases"][0]["startUpSeconds"] == 60


def test_gpu_hours_of_a_constant_fleet_are_its_replicas_over_the_time(told):
    # The last request comes at 179.95 s: three minutes.
    (first, _) = by_policy(told)["static:2"]["runs"]

    assert first["durationSeconds"] == 180
    assert first["requests"] == 1680
    assert first["gpuHours"] == pytest.approx(2 * 180 / 3600, rel=1e-3)
    assert len(first["series"]) == 3


def test_gpu_hours_cost_what_the_catalogue_or_the_buyer_says(told, trace):
    (case,) = told["cases"]
    (first, _) = by_policy(told)["static:2"]["runs"]
    own = replay(
        trace, "--policy", "static:2", "--price", f"{case['gpu']}=2.10", "--currency", "EUR",
        COLUMNS="120",
    )  # fmt: skip
    said = " ".join(own.stdout.split())

    assert case["price"]["provider"] == "AWS"
    assert first["cost"] == pytest.approx(case["perGpuHour"] * 2 * 180 / 3600, abs=0.005)
    assert f"cost: {case['gpu']} at 2.10 EUR per GPU and hour: yours" in said
    assert "static:2 0.100 0.21" in said


def test_gpu_hours_are_told_relative_to_those_of_hindsight(told):
    peak = by_policy(told)["best-static"]

    assert peak["gpuHoursOverBestStatic"] == 1.0
    assert all(one["attainmentFraction"] >= 0.95 for one in peak["runs"])


def test_the_text_begins_with_what_is_kept_and_explains_its_columns(trace):
    asked = SMALL.replace("requestsPerSecond: 8", "requestsPerSecond: 14")  # two replicas
    result = replay(trace, "--policy", "tonnage,best-static", text=asked)

    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[0].startswith("serving/small: meta-llama/Llama-3.1-8B-Instruct, trace.csv")
    said = f"{lines[1]} {lines[2]}"
    assert "as many as the smallest constant fleet in hindsight" in said
    assert "(target 95%)" in said
    for policy in ("tonnage", "best-static"):
        assert any(line.split()[:1] == [policy] for line in lines)
    text = " ".join(result.stdout.split())
    assert "in SLO: requests with TTFT within 2.00 s and mean TPOT within 50.0 ms" in text
    assert "simulated, not measured" in text


@pytest.mark.parametrize("width", [60, 80, 120])
def test_a_narrow_screen_gets_one_table_and_the_names_of_all_figures(trace, width):
    result = replay(trace, "--policy", "static:2", COLUMNS=str(width))

    assert result.stdout.count("static:2") == 1
    words = result.stdout.replace(",", "").split()
    assert all(word in words for title in COLUMNS for word in title.split())
    assert "…" not in result.stdout


def test_several_processes_answer_the_same(trace):
    alone = replay(trace, "--policy", "static:1,static:2", "-o", "json")
    several = run(
        "replay", trace, "-f", "-", "--start-up", "60s", "--seeds", "1", "--processes", "2",
        "--policy", "static:1,static:2", "-o", "json", text=SMALL,
    )  # fmt: skip

    assert several.exit_code == 0
    assert json.loads(several.stdout) == json.loads(alone.stdout)


def test_every_cold_start_is_a_case(trace):
    result = run(
        "replay", trace, "-f", "-", "--policy", "static:2", "--start-up", "60s,120s",
        "--seeds", "1", "--processes", "1", "-o", "yaml", text=SMALL,
    )  # fmt: skip

    found = yaml.safe_load(result.stdout)["cases"]
    assert [(each["gpu"], each["startUpSeconds"]) for each in found] == [
        ("H100", 60),
        ("H100", 120),
    ]


def test_a_class_that_cannot_serve_it_is_told(trace):
    slow = small(("p95: 50ms", "p95: 20ms"), ("gpu: H100", "gpu: GB10"))
    result = replay(trace, "--policy", "static:2", text=slow)

    assert result.exit_code == 2
    assert "GB10: " in result.stderr


def test_a_window_and_a_scale_make_it_less(trace):
    result = replay(
        trace, "--policy", "static:2", "--window", "60s-3m", "--scale", "0.5", "-o", "json"
    )
    (one,) = by_policy(json.loads(result.stdout))["static:2"]["runs"]

    assert one["durationSeconds"] == 120
    # Half of 240 + 1200, a binomial that deviates by 19.
    assert one["requests"] == pytest.approx(720, abs=80)


def test_the_unit_of_times_is_asked_for_and_columns_that_are_not_used_are_named(tmp_path):
    path = tmp_path / "bare.jsonl"
    row = {"input_length": 2000, "output_length": 200, "type": "text"}
    path.write_text("".join(json.dumps(row | {"timestamp": at}) + "\n" for at in range(300)))

    refused = replay(path, "--policy", "static:1")
    told = replay(path, "--policy", "static:1", "--time-unit", "s", "-o", "json")
    text = replay(path, "--policy", "static:1", "--time-unit", "s")

    assert refused.exit_code == 3
    assert "timestamp: numbers without a unit" in refused.stderr
    found = json.loads(told.stdout)
    assert found["requestTimes"] == "timestamp in s, as given"
    assert found["columnsNotUsed"] == ["type"]
    said = " ".join(text.stdout.split())
    assert "300 in 5.0 min; timestamp in s, as given" in said
    assert said.count("columns not used: type") == 1
    assert "--time-unit is that of a TRACE" in replay("--shape", "step", "--time-unit", "s").stderr


def test_a_shape_needs_no_trace():
    slower = small(("requestsPerSecond: 8", "requestsPerSecond: 1"))
    result = replay("--shape", "steady", "--policy", "static:1", text=slower)

    assert result.exit_code == 0
    assert "shape steady" in result.stdout


def test_a_shape_is_of_what_usually_comes_times_the_scale():
    slower = ("requestsPerSecond: 8", "requestsPerSecond: 1")
    peak = (slower[0], "requestsPerSecond: 1\n    peakPercent: 250")
    double = (slower[0], "requestsPerSecond: 2")
    asked = ("--shape", "steady", "--policy", "static:1", "-o", "json", "--scale")

    answers = [
        json.loads(replay(*asked, scale, text=small(each)).stdout)
        for scale, each in (("1", slower), ("1", peak), ("0.5", double))
    ]
    runs = [each["cases"][0]["policies"][0]["runs"][0]["requests"] for each in answers]

    assert runs[0] == runs[1] == runs[2] > 0


def test_fields_are_set_as_in_a_plan(trace):
    of_file = replay(trace, "--policy", "static:1", text=small(("p95: 50ms", "p95: 9ms")))
    of_option = replay(trace, "--policy", "static:1", "--set", "slo.timePerOutputToken.p95=9ms")

    assert of_option.stdout == of_file.stdout != replay(trace, "--policy", "static:1").stdout


def test_the_policies_are_listed_without_a_manifest():
    result = run("replay", "--policy", "list", COLUMNS="80")
    lines = result.stdout.splitlines()

    assert result.exit_code == 0
    assert [line.split()[0] for line in lines if line[0] != " "] == list(descriptions())
    assert max(map(len, lines)) <= 80


def test_what_is_not_auto_is_simulated_as_if_it_were(trace):
    paused = small(("{maxReplicas: 8}", "{maxReplicas: 8, mode: Recommend}"))
    result = replay(trace, "--policy", "static:2", text=paused)

    assert result.exit_code == 0
    assert "in mode Auto instead of Recommend" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--policy", "nothing"], "'nothing' is no policy"),
        (["--policy", "static"], "static:4"),
        (["--start-up", "soon"], "'soon' is not a duration"),
        (["--start-up", "60s,999h"], "'60s,999h' is not from 1s to 2h"),
        (["--start-up", "1ms"], "'1ms' is not from 1s to 2h"),
        (["--window", "1h"], "'1h' is not a time like 0h-48h"),
        (["--window", "2h-1h"], "ends before it begins"),
        (["--window", "5m-6m"], "no request comes in it; the trace is 180 s long"),
        (["--target", "most"], "is not a share"),
        (["--target", "101%"], "is not a share"),
        (["--speed", "slow"], "is neither 'drawn' nor"),
        (["--scale", "0"], "is not above 0"),
        (["--scale", "nan"], "is not above 0"),
        (["--scale", "0.0001"], "1680 requests x 0.0001 leave none to judge by"),
        (["--policy", "static:1000"], "is not a number of replicas up to 512"),
        (["--html", "/nowhere/page.html"], "--html /nowhere/page.html: No such file"),
        (["--html", "/"], "--html /: Is a directory"),
        (["--seeds", "0"], "0 is not in the range"),
        (["--set", "scaling.maxReplicas"], "write PATH=VALUE"),
        (["--set", "scaling.max=1"], "spec.scaling.max: unknown field"),
        (["--shape", "steady"], "not several"),
    ],
)
def test_options_that_cannot_be_are_refused_by_name(trace, arguments, said):
    result = replay(trace, *arguments)

    assert result.exit_code == 3
    assert said in " ".join(result.stderr.split())


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("arrival_s,prompt_tokens\n1,2\n", "trace.csv:1:output_tokens: missing"),
        ("arrival_s,prompt_tokens,output_tokens\n1,x,2\n", "trace.csv:2:prompt_tokens: 'x'"),
        (
            "arrival_s,prompt_tokens,output_tokens\n1,2,2\n1e15,2,2\n",
            "at most 90 are replayed; --window takes a part of it",
        ),
    ],
)
def test_a_trace_that_cannot_be_replayed_is_refused_with_its_reason(tmp_path, content, said):
    path = tmp_path / "trace.csv"
    path.write_text(content)

    result = replay(path)

    assert result.exit_code == 3
    assert said in result.stderr


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            (
                "  slo:\n    timeToFirstToken: {p95: 2s}\n    timePerOutputToken: {p95: 50ms}\n",
                "",
            ),
            "standard input:6: spec.slo: ",
        ),
        (("contextLength: 8192", "contextLength: many"), "standard input:12: spec.contextLength"),
        (("gpu: H100", "gpu: H1000"), "H1000"),
        (
            ("meta-llama/Llama-3.1-8B-Instruct", "acme/own"),
            "--hub), which a replay does not read",
        ),
    ],
)
def test_a_manifest_that_cannot_be_replayed_is_refused_with_its_line(trace, change, said):
    result = replay(trace, text=small(change))

    assert result.exit_code == 3
    assert said in result.stderr


def test_speculative_decoding_is_refused_with_its_line(trace):
    drafts = "{method: ngram, tokens: 3, acceptedPercent: 50}"
    engine = f'  engine:\n    version: "0.33"\n    speculative: {drafts}\n'
    text = small(('  engine: {version: "0.33"}\n', engine))
    line = 1 + text[: text.index("speculative")].count("\n")

    result = replay(trace, text=text)

    assert result.exit_code == 3
    assert f"standard input:{line}: spec.engine.speculative: a replay runs engines that draft " in (
        result.stderr
    )


def test_a_trace_that_takes_long_to_read_is_told_on_standard_error(trace, monkeypatch):
    monkeypatch.setattr(output_files, "PATIENCE_S", 0)

    result = replay(trace, "--policy", "static:2")

    assert "Reading trace.csv: 1,681 lines so far" in result.stderr
    assert "Reading" not in result.stdout


def test_more_requests_than_memory_holds_are_refused_before_they_are_drawn(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text("arrival_s,prompt_tokens,output_tokens\n" + "1,100,20\n" * 2100)

    result = replay(path, "--scale", "10000")

    assert result.exit_code == 3
    assert "2100 requests x 10000 are 21 million: at most 20 million" in result.stderr


def test_targets_that_one_share_cannot_judge_are_named(trace):
    mixed = "    timeToFirstToken: {p50: 80ms}\n    timePerOutputToken: {p90: 20ms, p95: 50ms}\n"
    own = "    timeToFirstToken: {p95: 2s}\n    timePerOutputToken: {p95: 50ms}\n"

    result = replay(trace, "--policy", "static:2", text=small((own, mixed)))

    assert "TTFT p50 80.0 ms is asked of 95% here, as the other latency is" in result.stderr
    assert "TPOT p90 20.0 ms is not judged, only its highest percentile is" in result.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_and_all_its_processes(trace, tmp_path, number):
    manifest = tmp_path / "model.yaml"
    manifest.write_text(SMALL)
    command = [
        *(sys.executable, "-m", "tonnage", "replay", trace, "-f", manifest),
        *("--scale", "600", "--policy", "tonnage,static:3", "--seeds", "1"),
    ]
    with subprocess.Popen(  # noqa: S603  (our own program)
        command,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # A job in the background of a shell ignores SIGINT, and hands that on.
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
    ) as process:
        assert "0 of 2 runs done" in process.stderr.readline()
        process.send_signal(number)

        assert process.wait(20) == (130 if number == signal.SIGINT else 143)
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)


def test_a_deployment_that_is_scaled_only_has_no_flags_to_replay(trace):
    scaled = small(
        ('  engine: {version: "0.33"}\n', "  scaleTarget: {name: my-vllm}\n"),
        ("    gpusPerReplica: 1\n", ""),
    )
    result = replay(trace, text=f"{scaled}---\n{a_deployment()}")

    assert result.exit_code == 3
    assert (
        "spec.scaleTarget: remove it: a replay chooses the flags of engines itself" in result.stderr
    )


def test_a_shape_without_a_rate_in_the_spec_says_what_is_missing():
    users = small(("    requestsPerSecond: 8\n", "    concurrentUsers: 8\n"))
    result = replay("--shape", "step", text=users)

    assert result.exit_code == 3
    assert "--shape needs a rate in spec.demand" in result.stderr


def test_neither_trace_nor_shape_is_no_question():
    assert "give a TRACE or a --shape" in replay().stderr
