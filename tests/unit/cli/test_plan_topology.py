"""What ``tonnage plan`` is asked beside the plan: roles apart, and a cache in host memory."""

import json

import pytest

from cli_builders import SCALED, a_deployment, plan, run
from tonnage.catalog.gpu import GPU_FOLDER

ASKED = (
    "plan", "--model", "meta-llama/Llama-3.1-8B-Instruct", "--gpu", "H100", "--rps", "8",
    "--prompt", "8000", "--output", "100", "--ttft", "2s", "--tpot", "20ms",
    "--set", "hardware.gpusPerReplica=1",
)  # fmt: skip
QUESTION = "6. Would prefill and decode apart cost less?"


@pytest.fixture(scope="module")
def apart():
    result = run(*ASKED, "--disaggregated", "--kv-link", "400Gb/s")
    assert result.exit_code == 0
    return result.stdout


@pytest.fixture(scope="module")
def figures():
    result = run(*ASKED, "--disaggregated", "-o", "json")
    (answer,) = json.loads(result.stdout)
    return answer["rolesApart"]


def test_a_plan_that_is_not_asked_weighs_nothing():
    result = run(*ASKED, "-o", "json")
    (answer,) = json.loads(result.stdout)

    assert not {"rolesApart", "kvOffload"} & answer.keys()


def test_the_verdict_says_both_costs_and_what_runs_it(apart):
    assert QUESTION in apart
    verdict = " ".join(apart.partition(QUESTION)[2].split())
    assert verdict.startswith("yes: ")
    assert "USD per hour" in verdict
    assert "spec.topology runs both, behind a proxy of yours" in verdict


@pytest.mark.parametrize(
    "reason",
    [
        "transfer: 1000.0 MiB per prompt and prefill GPU in 21.0 ms",
        "over 50.00 GB/s per GPU (given)",
        "of TTFT decode has 102 ms, of which the cache of a mean prompt takes 21.0 ms; prefill has",
    ],
)
def test_the_reasons_are_in_numbers(apart, reason):
    assert reason in " ".join(apart.split())


def test_data_has_the_same(figures):
    roles = figures["apart"]

    assert figures["verdict"] == "Apart"
    assert roles["gpus"] == roles["prefill"]["replicas"] + roles["decode"]["replicas"]
    assert roles["costPerHour"] < figures["unified"]["costPerHour"]
    assert roles["linkBytesPerSecond"] == 450e9


def test_a_link_that_is_assumed_is_said_to_be():
    result = run(*ASKED, "--disaggregated")

    assert "assumed: as within a node of 8 GPUs" in " ".join(result.stdout.split())


def test_where_one_fleet_may_not_serve_the_bound_is_the_reason(figures):
    apart, one = figures["apart"], figures["unified"]["replicas"]
    most = max(apart[name]["replicas"] for name in ("prefill", "decode"))
    assert most < one

    result = run(*ASKED, "--set", f"scaling.maxReplicas={most}", "--disaggregated", "-o", "json")
    (answer,) = json.loads(result.stdout)

    assert answer["rolesApart"]["verdict"] == "Apart"
    reason = f"one fleet needs {one}, maxReplicas allows {most}"
    assert reason in answer["rolesApart"]["message"]


def test_the_flags_of_a_scale_target_stay():
    result = plan(SCALED, a_deployment(), options=["--disaggregated", "-o", "json"])
    (answer,) = json.loads(result.stdout)

    assert answer["rolesApart"]["verdict"] == "NotWeighed"
    assert answer["rolesApart"]["message"].startswith("not weighed: spec.scaleTarget")


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--kv-link", "50GB/s"], "--kv-link is between roles"),
        (["--disaggregated", "--kv-link", "fast"], "'fast' is not a rate like 50GB/s"),
        (["--disaggregated", "--kv-link", "0GB/s"], "'0GB/s' is not a rate"),
        (["--disaggregated", "-o", "csv"], "-o csv cannot show --disaggregated"),
    ],
)
def test_an_option_that_means_nothing_is_refused(options, why):
    result = run(*ASKED, *options)

    assert result.exit_code == 3
    assert why in result.stderr


@pytest.mark.parametrize(
    ("host", "working_set", "verdict"),
    [
        ("200", "0", "not worth it: the working set of 0 tokens is within "),
        (None, "700000", "worth it: the working set of 700,000 tokens is beyond "),
        ("200", "100000", "not worth it: the working set of 100,000 tokens is within "),
        ("200", "700000", "worth it: the working set of 700,000 tokens is beyond "),
        (
            "20",
            "700000",
            "not worth it: the working set of 700,000 tokens takes 85.4 GiB of host memory, there "
            "are 20.0 GiB",
        ),
    ],
)
def test_a_cache_in_host_memory_is_worth_it_between_both_caches(host, working_set, verdict):
    given = {"gib": host, "workingSetTokens": working_set}
    options = [
        word
        for name, value in given.items()
        if value
        for word in ("--set", f"model.kvOffload.{name}={value}")
    ]
    result = run(*ASKED, *options)

    _, _, answer = result.stdout.partition("6. Is a KV cache in host memory worth it?")
    assert " ".join(answer.split()).startswith(verdict)


def test_an_option_takes_the_place_of_what_a_file_gives(tmp_path):
    fields = ("model.kvOffload.gib=200", "model.kvOffload.workingSetTokens=700000")
    settings = [word for each in fields for word in ("--set", each)]
    file = tmp_path / "model.yaml"
    file.write_text(run("init", *ASKED[1:], *settings).stdout)

    given, auto, larger = (
        run("plan", "-f", str(file), *options).stdout
        for options in (
            [],
            ["--set", "model.kvOffload.gib="],
            ["--set", "model.kvOffload.gib=300"],
        )
    )

    assert "model.kvOffload gives each replica 200 GiB" in given
    assert "model.kvOffload gives each replica 86 GiB" in auto
    assert "model.kvOffload gives each replica 300 GiB" in larger


AUTO = ("--set", "model.kvOffload.mode=Auto", "--set", "model.kvOffload.workingSetTokens=700000")
ROOM = ("--set", "model.kvOffload.gib=200")
MORE = ("--set", "model.kvOffload.workingSetTokens=1500000")


def test_auto_says_what_it_chose_and_why():
    (answer,) = json.loads(run(*ASKED, *AUTO, *ROOM, "-o", "json").stdout)
    text = " ".join(run(*ASKED, *AUTO, *ROOM).stdout.split())

    assert answer["kvOffload"]["isOn"]
    assert answer["kvOffload"]["isWorthIt"]
    assert answer["kvOffload"]["message"].startswith("Auto: on, 86 GiB a replica; worth it: ")
    assert answer["kvOffload"]["message"] in text
    assert answer["kvOffload"]["message"] in [
        each["message"] for each in answer["plan"]["reasons"] if each["code"] == "KVOffload"
    ]
    assert "Auto up to 200 GiB for 700000 tokens that come again given" in text


def test_auto_without_what_it_needs_says_what_is_missing():
    (answer,) = json.loads(run(*ASKED, *AUTO, "-o", "json").stdout)

    assert answer["kvOffload"] == {
        "isOn": False,
        "message": "Auto: off; model.kvOffload.gib is not given, nor is host_cache_bytes of GPU "
        "class H100",
    }


def test_auto_asks_a_class_of_yours_how_much_host_memory_there_is(tmp_path):
    own = (GPU_FOLDER / "h100.toml").read_text()
    (tmp_path / "h100.toml").write_text(f"host_cache_bytes = 200_000_000_000\n{own}")

    result = run(*ASKED, *AUTO, "--gpus", str(tmp_path), "-o", "json")
    (answer,) = json.loads(result.stdout)

    assert answer["kvOffload"]["message"].startswith("Auto: on, 86 GiB a replica; worth it: ")
