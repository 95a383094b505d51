"""``engine.role``: what is rendered for it, what is sized for it, and who may not have one."""

import json

import kubernetes_validate
import pytest

from fleet_builders import SITE, a_model, a_sizing
from tonnage.api.objects import InvalidSpecError
from tonnage.catalog.gpu import UnsupportedEngineError, built_in_gpus
from tonnage.manifests.children import deployment, running_model, spec_digest
from tonnage.manifests.names import SPEC_ANNOTATION
from tonnage.sizing.errors import SLOInfeasibleError
from tonnage.sizing.request import ask, look_up
from tonnage.sizing.search import size
from tonnage_lab.emulator.arguments import parse

TTFT = {"timeToFirstToken": {"p95": "2s"}}
BOTH = {**TTFT, "timePerOutputToken": {"p95": "50ms"}}
SLO = {"prefill": TTFT, "decode": BOTH, None: BOTH}


HARDWARE = {"gpu": "H200", "gpusPerReplica": 2, "parallelism": {"tensor": 2}}
DEMAND = {
    "requestsPerSecond": 4,
    "promptTokens": {"mean": 4000, "p99": 7000},
    "outputTokens": {"mean": 1000},
    "cacheTransfer": "50ms",
}


def a_model_of(role, *, version="0.33", **spec):
    engine = {"version": version, **({"role": role} if role else {})}
    given = {"engine": engine, "slo": SLO[role], "hardware": HARDWARE, "demand": DEMAND}
    return a_model(**(given | spec))


def made(role):
    return deployment(a_model_of(role), a_sizing(), SITE)


def container(role):
    [only] = made(role)["spec"]["template"]["spec"]["containers"]
    return only


def asked(role, **spec):
    model = a_model_of(role, **spec)
    return ask(model.spec, look_up(model.spec, built_in_gpus()))


@pytest.mark.parametrize(
    ("role", "kv_role"), [("prefill", "kv_producer"), ("decode", "kv_consumer")]
)
def test_the_engine_hands_over_and_is_found_at_its_pods_address(role, kv_role):
    only = container(role)
    config = json.loads(only["args"][only["args"].index("--kv-transfer-config") + 1])
    [address] = [each for each in only["env"] if each["name"] == "VLLM_NIXL_SIDE_CHANNEL_HOST"]

    assert config == {
        "kv_connector": "NixlConnector",
        "kv_role": kv_role,
        "kv_load_failure_policy": "recompute",
    }
    assert address["valueFrom"] == {"fieldRef": {"apiVersion": "v1", "fieldPath": "status.podIP"}}
    assert parse(["serve", *only["args"]]).kv_role == kv_role
    kubernetes_validate.validate(made(role), "1.33", strict=True)


def test_an_engine_without_a_role_is_as_before():
    only = container(None)

    assert "--kv-transfer-config" not in only["args"]
    assert not any("NIXL" in each["name"] for each in only["env"])
    assert "role" not in made(None)["metadata"]["annotations"][SPEC_ANNOTATION]


def test_a_role_replaces_pods():
    digests = {spec_digest(a_model_of(role)) for role in (None, "prefill", "decode")}

    assert len(digests) == 3


def test_prefill_is_sized_for_one_token_of_each_answer():
    workload = asked("prefill").workload

    assert (workload.prompt.mean_tokens, workload.output_tokens) == (4000, 1)
    assert workload.cached_fraction == 0


def test_decode_is_sized_for_answers_whose_prompts_are_there_but_for_a_token():
    workload = asked("decode").workload

    assert workload.output_tokens == 1000
    assert workload.new_prompt_tokens == pytest.approx(1)


def test_the_demand_is_that_of_whole_requests():
    demand = {**DEMAND, "tokensPerSecond": 4000}
    del demand["requestsPerSecond"]

    assert asked("prefill", demand=demand).demand.requests_per_s == 4


def test_each_role_takes_fewer_replicas_than_both_on_one_fleet():
    def replicas(role):
        demand = {**DEMAND, "requestsPerSecond": 20}
        return size(asked(role, demand=demand, scaling={"maxReplicas": 64})).replicas

    assert max(replicas("prefill"), replicas("decode")) < replicas(None)


def test_the_transfer_is_a_part_of_the_time_to_the_first_token_of_decode():
    def latencies(transfer):
        found = size(asked("decode", demand={**DEMAND, "cacheTransfer": transfer}))
        return found.at(1.0, 1).latencies

    near, far = latencies("10ms"), latencies("510ms")

    for one, other in zip(near, far, strict=True):
        assert other.ttft_s - one.ttft_s == pytest.approx(0.5)
        assert other.tpot_s == one.tpot_s
    assert asked("prefill").transfer_s == 0


def test_a_transfer_longer_than_the_target_is_named():
    with pytest.raises(SLOInfeasibleError, match=r"its cache takes 3\.00 s to come"):
        size(asked("decode", demand={**DEMAND, "cacheTransfer": "3s"}))


def test_what_engines_of_a_role_have_learned_is_not_what_others_have():
    assert len({asked(role).engine_digest for role in (None, "prefill", "decode")}) == 3


@pytest.mark.parametrize(
    ("role", "spec", "message"),
    [
        ("prefill", {"slo": BOTH}, r"slo\.timePerOutputToken: .* a target of decode"),
        ("decode", {"pods": {"networkPolicy": {}}}, r"networkPolicy must not be set with"),
        ("decode", {"hardware": {"gpu": "H200"}}, r"needs parallelism\.tensor"),
        (
            "prefill",
            {"hardware": {"gpu": "H200", "parallelism": {"tensor": 2, "pipeline": 2}}},
            "no pipeline",
        ),
        (
            "decode",
            {
                "demand": {key: DEMAND[key] for key in DEMAND if key != "requestsPerSecond"}
                | {"concurrentUsers": 200}
            },
            r"demand\.concurrentUsers: concurrentUsers must not",
        ),
    ],
)
def test_what_a_role_cannot_have_is_refused_by_its_field(role, spec, message):
    with pytest.raises(InvalidSpecError, match=message):
        a_model_of(role, **spec)


def test_releases_that_hold_a_cache_for_minutes_are_refused():
    with pytest.raises(UnsupportedEngineError, match=r"engine\.role needs engine\.version 0\.22"):
        asked("decode", version="0.21")
    assert asked("decode", version="0.22")


@pytest.mark.parametrize("model_id", ["openai/gpt-oss-20b", "Qwen/Qwen3-Next-80B-A3B-Instruct"])
def test_caches_with_windows_or_states_are_refused(model_id):
    with pytest.raises(
        UnsupportedEngineError, match="cache of layers with a window or a state, as"
    ):
        asked("decode", model={"id": model_id})


def test_decode_with_a_target_for_the_first_token_says_how_long_its_cache_takes():
    with pytest.raises(UnsupportedEngineError, match=r"needs demand\.cacheTransfer"):
        asked("decode", demand={key: DEMAND[key] for key in DEMAND if key != "cacheTransfer"})
    assert asked("decode", slo={"timePerOutputToken": {"p95": "50ms"}})


ROLES = (None, "prefill", "decode")


@pytest.mark.parametrize(
    ("before", "today"), [(one, other) for one in ROLES for other in ROLES if one != other]
)
def test_what_runs_is_known_while_its_role_changes(before, today):
    made_from = made(before)["metadata"]["annotations"][SPEC_ANNOTATION]

    found = running_model(a_model_of(today), made_from)

    assert (found.spec.engine.role, found.spec.slo) == (before, a_model_of(before).spec.slo)
