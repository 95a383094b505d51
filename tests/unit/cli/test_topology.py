"""What the command line makes of an object with a topology."""

import json

import pytest
import yaml

from cli_builders import run

ROLES = ["llama-decode", "llama-prefill"]


def an_object(**spec):
    return yaml.safe_dump(
        {
            "apiVersion": "tonnage.dev/v1alpha1",
            "kind": "ModelDeployment",
            "metadata": {"name": "llama"},
            "spec": {
                "model": {"id": "meta-llama/Llama-3.1-8B-Instruct"},
                "hardware": {"gpu": "H100", "gpusPerReplica": 1},
                "contextLength": 16384,
                "slo": {"timeToFirstToken": {"p95": "2s"}, "timePerOutputToken": {"p95": "20ms"}},
                "demand": {
                    "requestsPerSecond": 8,
                    "promptTokens": {"mean": 8000},
                    "outputTokens": {"mean": 100},
                },
                "scaling": {"maxReplicas": 16},
                "engine": {"version": "0.33"},
                "topology": {"kvLink": "400Gb/s"},
            }
            | spec,
        }
    )


@pytest.fixture(scope="module")
def rendered():
    result = run("render", "-f", "-", text=an_object())
    assert result.exit_code == 0
    return list(yaml.safe_load_all(result.stdout))


def test_render_prints_what_is_applied_for_each_role(rendered):
    made = [(each["kind"], each["metadata"]["name"]) for each in rendered]

    assert made == [
        (kind, name) for name in reversed(ROLES) for kind in ("Deployment", "Service", "PodMonitor")
    ]


def test_whose_engines_have_their_role(rendered):
    commands = [
        " ".join(each["spec"]["template"]["spec"]["containers"][0]["args"])
        for each in rendered
        if each["kind"] == "Deployment"
    ]

    assert ["kv_producer" in each for each in commands] == [True, False]
    assert ["kv_consumer" in each for each in commands] == [False, True]


def test_plan_answers_for_each_role_and_says_how_ttft_is_divided():
    result = run("plan", "-f", "-", "-o", "json", text=an_object())
    answers = json.loads(result.stdout)

    assert [each["metadata"]["name"] for each in answers] == ["llama-prefill", "llama-decode"]
    assert "Note: default/llama: two roles: of TTFT decode has " in result.stderr
    assert "the cache of a mean prompt takes 21.0 ms" in result.stderr


def test_a_diff_keeps_the_splits_of_roles(tmp_path):
    old = tmp_path / "old.yaml"
    old.write_text(an_object(hardware={"gpu": "H100", "gpusPerReplica": 2}))
    result = run("diff", old, "-", "-o", "json", text=an_object(hardware={"gpu": "H100"}))

    assert {each["podsRolled"] for each in json.loads(result.stdout)["objects"]} == {0}


def test_diff_compares_role_by_role(tmp_path):
    new = tmp_path / "new.yaml"
    new.write_text(an_object(engine={"version": "0.32"}))
    result = run("diff", "-", new, "-o", "json", text=an_object())
    changed = json.loads(result.stdout)["objects"]

    assert [each["name"] for each in changed] == [f"default/{name}" for name in ROLES]
    assert all(each["podsRolled"] > 0 for each in changed)


@pytest.mark.parametrize("command", [("render",), ("plan",)])
def test_roles_that_cannot_be_are_refused_by_name(command):
    old = an_object(engine={"version": "0.20"})
    result = run(*command, "-f", "-", text=old)

    assert result.exit_code == 3
    assert "needs engine.version 0.22" in " ".join((result.stdout + result.stderr).split())


def test_a_diff_of_roles_that_keep_no_slo_says_why(tmp_path):
    new = tmp_path / "new.yaml"
    strict = {"timeToFirstToken": {"p95": "60ms"}, "timePerOutputToken": {"p95": "20ms"}}
    new.write_text(an_object(slo=strict))
    result = run("diff", "-", new, text=an_object())

    assert result.exit_code == 2
    assert "moving the cache of a prompt and the first step of decode take" in result.stdout


def test_a_replay_takes_one_role_at_a_time(tmp_path):
    trace = tmp_path / "trace.csv"
    trace.write_text("arrival_s,prompt_tokens,output_tokens\n0,100,10\n1,100,10\n")
    result = run("replay", trace, "-f", "-", text=an_object())

    assert result.exit_code == 3
    assert "spec.topology: a replay runs one fleet" in result.stderr
