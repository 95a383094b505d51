"""``tonnage calibrate``: what it refuses, and what stops it, with nothing written."""

import json
from pathlib import Path

import pytest

from cli_builders import CONFIG_JSON, run
from endpoint_double import MODEL, EndpointDouble
from http_double import Reply, serving
from tonnage.cli.load import watch

OPERATOR = str(Path(__file__).parents[3] / "operator")


@pytest.fixture(autouse=True)
def _haste(monkeypatch):
    monkeypatch.setattr(watch, "BETWEEN_S", 0.01)


def calibrate(url, *options, model=MODEL, name="m", **environment):
    return run(
        "calibrate", "--url", url, "--model", model, "--served-model-name", name, "--gpu", "L40S",
        "--max-concurrency", "2", *options, **environment,
    )  # fmt: skip


def refusal(folder, double, *options, exit_code=2, **more):
    """Return what is said; nothing may be written."""
    path = folder / "calibration.json"
    with serving(double) as server:
        result = calibrate(f"{server.url}/v1", "--save", path, *options, **more)

    assert result.exit_code == exit_code, result.output
    assert not path.exists()
    assert list(folder.glob(".calibration*")) == []
    return result.stderr


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"running": 3}, "others are being served: 3 requests in the engine"),
        ({"others": 1}, "others are being served: 0 requests in the engine, 4 ended"),
        ({"started": (1.5, 2.5)}, "several replicas (started 1.50; started 2.50)"),
        ({"engines": 2}, "/metrics shows 2 engines, --data-parallel says 1"),
        ({"drafts": 7}, "the engine drafts tokens"),
        ({"counted": 0.5}, "of our 4 requests: a router is in front of several replicas"),
        ({"cached": 0.06}, "of 64 prompt tokens came from the prefix cache, more than 5%"),
        ({"failing": (2,)}, "1 of 2 requests failed, more than 2%; the last: 500"),
    ],
)
def test_what_would_mean_nothing_is_refused(tmp_path, changes, message):
    assert message in refusal(tmp_path, EndpointDouble(**changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"models": ("other", "more")}, "serves other, more, not m"),
        ({"key": "secret"}, "answers 401: the key is missing or wrong"),
        ({"version": None}, "give --engine-version"),
        ({"version": "0.2.0"}, "before 0.11 is not supported"),
        ({"max_model_len": 32}, "max_model_len is 32"),
    ],
)
def test_what_does_not_go_with_the_options_is_invalid_input(tmp_path, changes, message):
    assert message in refusal(tmp_path, EndpointDouble(**changes), exit_code=3)


def test_a_page_that_tells_pods_apart_is_a_routers(tmp_path):
    class Two(EndpointDouble):
        def _page(self):
            self.labels = f',pod="vllm-{self.readings % 2}"'
            return super()._page()

    assert "several replicas (pod vllm-0; pod vllm-1" in refusal(tmp_path, Two())


def test_counters_that_go_back_are_a_routers(tmp_path):
    class Two(EndpointDouble):
        def _page(self):
            self.answered = 50 if self.readings % 2 else 20
            return super()._page()

    assert "counters of /metrics fall" in refusal(tmp_path, Two())


def test_others_who_come_while_it_measures_stop_it(tmp_path):
    class Busy(EndpointDouble):
        def _complete(self, body):
            self.answered += 3
            return super()._complete(body)

    assert "others are being served: 12 requests beside our 4" in refusal(tmp_path, Busy())


def test_an_answer_that_ends_early_is_a_failure(tmp_path):
    class Short(EndpointDouble):
        def _complete(self, body):
            return super()._complete(body | {"max_tokens": body["max_tokens"] // 2})

    assert "4 of 8 tokens came" in refusal(tmp_path, Short())


def test_a_slow_first_token_stops_it(tmp_path):
    class Slow(EndpointDouble):
        def _complete(self, body):
            server.stopping.wait(0.5)
            return super()._complete(body)

    path = tmp_path / "calibration.json"
    with serving(Slow()) as server:
        result = calibrate(server.url, "--save", path, "--max-ttft", "100ms")

    assert result.exit_code == 2
    assert "no token within --max-ttft 100 ms. Nothing was written" in result.stderr
    assert not path.exists()


def test_it_ends_at_max_seconds(tmp_path):
    class Hanging(EndpointDouble):
        def _complete(self, body):
            server.stopping.wait(20)
            return super()._complete(body)

    path = tmp_path / "calibration.json"
    with serving(Hanging()) as server:
        result = calibrate(server.url, "--save", path, "--max-seconds", "1")

    assert result.exit_code == 2
    assert "not done within --max-seconds 1: raise it, or lower" in result.stderr
    assert "Nothing was written" in result.stderr
    assert not path.exists()


def test_nobody_there_is_said(tmp_path):
    with serving(EndpointDouble()) as server:
        url = server.url
    result = calibrate(url)

    assert result.exit_code == 3
    assert "/v1/models does not answer: ClientConnectorError" in result.stderr


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("ftp://vllm:8000", "is not an address like http://vllm:8000"),
        ("http://user:word@vllm:8000", "without user or password"),
    ],
)
def test_an_address_that_is_none_is_refused_and_not_repeated(given, message):
    result = calibrate(given)

    assert result.exit_code == 3
    assert message in result.stderr
    assert "word@" not in result.stderr


@pytest.mark.parametrize("variable", ["TONNAGE_API_KEY", "OPENAI_API_KEY"])
def test_the_key_comes_from_the_environment_and_is_never_printed(tmp_path, variable):
    said = refusal(tmp_path, EndpointDouble(key="hush-hush", running=1), **{variable: "hush-hush"})

    assert "others are being served" in said
    assert "hush" not in said


def test_the_key_comes_from_a_file_first(tmp_path):
    (tmp_path / "key").write_text("hush-hush\n")
    options = ("--api-key-file", tmp_path / "key")

    double = EndpointDouble(key="hush-hush", running=1)
    assert "others are being served" in refusal(
        tmp_path, double, *options, TONNAGE_API_KEY="another"
    )
    assert "cannot be read" in refusal(
        tmp_path, double, "--api-key-file", tmp_path / "none", exit_code=3
    )


def test_a_redirect_is_not_followed(tmp_path):
    said = refusal(
        tmp_path, lambda _: Reply(status=302, headers={"Location": "http://x/"}), exit_code=3
    )

    assert "/v1/models answers 302, not 200" in said


def test_a_version_that_contradicts_the_server_is_refused(tmp_path):
    said = refusal(tmp_path, EndpointDouble(), "--engine-version", "0.32", exit_code=3)

    assert "--engine-version is 0.32" in said


def test_a_model_without_a_configuration_asks_for_one(tmp_path):
    double = EndpointDouble()

    assert "give it with --model-config" in refusal(tmp_path, double, model="my/model", exit_code=3)
    (tmp_path / "config.json").write_text(CONFIG_JSON)
    options = ("--model-config", tmp_path / "config.json", "--tensor-parallel", "3")
    assert "TP 3 does not divide" in refusal(
        tmp_path, double, *options, model="my/model", exit_code=3
    )


def test_prompts_are_random_and_an_answer_that_was_held_back_is_not_timed(tmp_path):
    double = EndpointDouble()

    said = refusal(tmp_path, double)

    assert "tokens came at 1 moment: something between holds the stream back" in said
    begins = [prompt[:16] for prompt in double.prompts]
    assert len(begins) > 10
    assert len(set(begins)) == len(begins)
    tokens = {token for prompt in double.prompts for token in prompt}
    assert min(tokens) > 1000
    assert max(tokens) < 127_000


def test_without_metrics_it_goes_on_and_says_what_it_cannot_see(tmp_path):
    said = refusal(tmp_path, EndpointDouble(has_metrics=False))

    assert "Note: /metrics is missing: neither other traffic, nor the prefix cache" in said
    assert "1/7 prefill of 16 tokens" in said


@pytest.mark.parametrize("changes", [{"running": 3}, {"others": 1}])
def test_beside_others_it_measures_only_when_told_to(tmp_path, changes):
    said = refusal(tmp_path, EndpointDouble(**changes), "--yes")

    assert "others are being served" not in said
    assert "4/7 prefill of 2048 tokens" in said


def test_a_wrong_trace_is_refused_before_anything_is_asked(tmp_path):
    (tmp_path / "t.csv").write_text("arrival_s,prompt_tokens,output_tokens\n1,2,-1\n")
    double = EndpointDouble()

    said = refusal(tmp_path, double, "--trace", tmp_path / "t.csv", exit_code=3)

    assert "t.csv:2:output_tokens: '-1' is negative" in said
    assert double.readings == 0


def test_a_trace_beyond_the_limits_is_refused_before_anything_is_asked(tmp_path):
    (tmp_path / "t.csv").write_text("arrival_s,prompt_tokens,output_tokens\n1,2,1\n2,2,1\n")
    double, limit = EndpointDouble(), ("--max-trace-rows", "1")

    said = refusal(tmp_path, double, "--trace", tmp_path / "t.csv", *limit, exit_code=3)

    assert "--trace " in said
    assert "t.csv: more than 1 line: --max-trace-rows raises the limit" in said
    assert double.readings == 0


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (json.dumps({"version": 99}), "no calibration of version 1: version is 99"),
        ("my notes", "no JSON"),
        ('{"version": 1, "date": "a", "version": 1}', "no JSON: version is given twice"),
    ],
)
def test_a_file_that_is_no_calibration_is_not_replaced(tmp_path, content, message):
    path = tmp_path / "calibration.json"
    path.write_text(content)
    with serving(EndpointDouble()) as server:
        result = calibrate(server.url, "--save", path)

    assert result.exit_code == 3
    assert message in result.stderr
    assert path.read_text() == content


def test_help_has_examples():
    result = run("calibrate", "--help")

    assert result.exit_code == 0
    assert "tonnage plan -f model.yaml --calibration calibration.json" in result.output
