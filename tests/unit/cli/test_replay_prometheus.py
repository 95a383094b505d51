"""``tonnage replay --prometheus``: what a fleet was asked, replayed, beside what it ran."""

import csv
import gzip
import json
import re

import pytest

from cli_builders import SMALL, run
from counted_fleet import PER_MINUTE, PODS, fleet, value_of
from http_double import Reply, json_reply, serving


def replay(*arguments, answer=fleet, text=SMALL):
    with serving(answer) as server:
        result = run(
            "replay", "-f", "-", "--prometheus", server.url, "--last", "20m", "--start-up", "60s",
            "--seeds", 1, "--processes", 1, *arguments, text=text,
        )  # fmt: skip
    return result, server.asked


@pytest.fixture(scope="module")
def told():
    result, _ = replay("--policy", "tonnage,static:2", "-o", "json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_credentials_come_from_a_file_as_in_the_charts_values(tmp_path):
    for name in ("user", "password"):
        (tmp_path / name).write_text(name)
    auth = tmp_path / "auth.yaml"
    auth.write_text(
        f"basic: {{usernameFile: {tmp_path}/user, passwordFile: {tmp_path}/password}}\n"
        "headers: {X-Scope-OrgID: team-a}\n"
    )

    result, asked = replay("--policy", "static:1", "--prometheus-auth", auth)
    auth.write_text("basic: {password: hunter2-hunter2}")
    refused, _ = replay("--prometheus-auth", auth)

    assert result.exit_code == 0, result.output
    assert {each.headers["X-Scope-OrgID"] for each in asked} == {"team-a"}
    assert {each.headers["Authorization"] for each in asked} == {"Basic dXNlcjpwYXNzd29yZA=="}
    assert refused.exit_code == 3
    assert "prometheusAuth.basic.password: unknown field" in refused.stderr
    assert "hunter2" not in refused.stderr


def test_as_many_requests_are_replayed_as_were_counted_over_as_long(told):
    (first, *_) = told["cases"][0]["policies"][1]["runs"]

    assert (first["requests"], first["durationSeconds"]) == (20 * PER_MINUTE, 1200)
    assert told["ranReplicas"] == PODS


def test_the_text_says_what_the_fleet_ran_beside_what_tonnage_would():
    result, _ = replay("--policy", "tonnage")
    text = " ".join(result.stdout.split())

    # 3 replicas of one GPU for 20 minutes.
    assert (
        "Your fleet ran 3.00 replicas on average, as counted: 1.00 GPU-hours (6.88 USD) "
        "in 20.0 min" in text
    )
    assert re.search(r"With Tonnage, simulated: 0\.\d+, \d+% less", text)


def test_a_part_of_the_time_is_not_held_against_what_the_whole_ran():
    result, _ = replay("--policy", "tonnage", "--window", "0m-10m", "-o", "json")

    assert json.loads(result.stdout)["ranReplicas"] is None


def test_what_is_asked_for_are_the_pods_of_the_manifest_or_those_that_are_named():
    _, asked = replay("--policy", "static:1")
    assert {'namespace="serving",pod=~"small-.+"' in each.query["query"] for each in asked} == {
        True
    }

    _, asked = replay("--policy", "static:1", "--selector", 'job="vllm"')
    assert {'{job="vllm"}' in each.query["query"] for each in asked} == {True}


def test_the_trace_is_written_and_replays_as_one(tmp_path):
    file = tmp_path / "fleet.csv.gz"
    result, _ = replay("--policy", "static:1", "--save-trace", file)
    assert f"Wrote {file}: 4800 requests" in result.stderr

    with gzip.open(file, "rt", newline="") as lines:
        rows = list(csv.DictReader(lines))
    for column, mean in (("prompt_tokens", 1800), ("output_tokens", 1100)):
        assert sum(int(row[column]) for row in rows) / len(rows) == pytest.approx(mean, rel=0.05)

    again = run(
        "replay", file, "-f", "-", "--policy", "static:1", "--seeds", 1, "-o", "json", text=SMALL
    )
    assert json.loads(again.stdout)["cases"][0]["policies"][0]["runs"][0]["requests"] == 4800


def test_minutes_that_nobody_tells_of_are_told():
    def answer(asked):
        reply = json.loads(fleet(asked).body)
        for each in reply["data"]["result"]:
            del each["values"][5:6]
        return json_reply(reply)

    result, _ = replay("--policy", "static:1", answer=answer)

    assert result.exit_code == 0, result.output
    assert "Note: 60.00 s of 20.0 min have no figures" in result.stderr


def test_another_name_of_the_model_is_told():
    def answer(asked):
        return fleet(
            asked, lambda q: [({**its, "model_name": "chat"}, v) for its, v in value_of(q)]
        )

    result, _ = replay("--policy", "static:1", answer=answer)

    assert "Note: traffic of chat, replayed with the model of the manifest" in result.stderr


def of(**changes):
    """Answer as the fleet does, other metrics with these series."""

    def series(query):
        name = next((each for each in changes if f"vllm:{each}" in query), None)
        return value_of(query) if name is None else changes[name]

    return lambda asked: fleet(asked, series)


@pytest.mark.parametrize(
    ("answer", "message", "code"),
    [
        (of(request_success=[]), "no vllm:request_success_total{namespace=", 3),
        (
            of(request_success=[({"model_name": "a"}, 1), ({"model_name": "b"}, 1)]),
            "the series are of 2 models, a, b",
            3,
        ),
        (of(request_success=[({}, 0.0)]), "no request came in this time", 3),
        (of(request_prompt=[]), "no vllm:request_prompt_tokens_bucket", 3),
        (lambda _: Reply(status=500), "answered 500", 3),
        (lambda _: json_reply({"status": "error", "error": "bad matcher"}, 400), "bad matcher", 3),
    ],
)
def test_what_cannot_be_replayed_ends_with_the_reason_in_one_line(answer, message, code):
    result, _ = replay("--policy", "static:1", answer=answer)

    assert result.exit_code == code
    (line,) = result.stderr.splitlines()
    assert line.startswith("Error: --prometheus: ")
    assert message in line


def test_a_prometheus_that_is_not_there_has_an_exit_code_of_its_own():
    result = run("replay", "-f", "-", "--prometheus", "http://127.0.0.1:9", text=SMALL)

    assert (result.exit_code, "cannot be reached" in result.stderr) == (4, True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--prometheus", "ftp://a"), "--prometheus: settings.prometheusUrl: "),
        (
            ("--prometheus", "http://a", "--shape", "step"),
            "give a TRACE or a --shape, or --prometheus",
        ),
        ((), "give a TRACE or a --shape, or --prometheus"),
        (("--prometheus", "http://a", "--last", "1m"), "'1m' is not from 10m to 90d"),
        (("--prometheus", "http://a", "--last", "400d"), "'400d' is not from 10m to 90d"),
        (("--prometheus", "http://a", "--last", "soon"), "'soon' is not a duration"),
        (("--prometheus", "http://a", "--step", "5s"), "'5s' is not in whole seconds from 15s"),
        (("--shape", "step", "--save-trace", "t.csv"), "--save-trace writes a trace"),
    ],
)
def test_options_that_do_not_go_together_are_refused(arguments, message):
    result = run("replay", "-f", "-", *arguments, text=SMALL)

    assert result.exit_code in {2, 3}
    assert message in " ".join(result.stderr.split())


def test_a_trace_is_written_as_csv_only(tmp_path):
    result, _ = replay("--policy", "static:1", "--save-trace", tmp_path / "trace.parquet")

    assert result.exit_code == 3
    assert "a trace is written as .csv or .csv.gz" in result.stderr
