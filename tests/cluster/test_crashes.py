"""Engines that end while they start, in vLLM's own words, and what makes them start."""

import json

import pytest

import site_lab
from site_lab import NAME, QUICK_TRUTH, a_model, until
from tonnage.cluster.kube import PODS

pytestmark = site_lab.pytestmark

FOLDER = "/config"


def an_engine(tenant, mode, **truth):
    """Apply an object whose engines have other limits than its plan believes."""
    data = {"truth.json": json.dumps({**QUICK_TRUTH, **truth})}
    truths = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "truth"}, "data": data}
    container = {
        "name": "vllm",
        "env": [{"name": "TONNAGE_LAB_TRUTH", "value": f"{FOLDER}/truth.json"}],
        "volumeMounts": [{"name": "truth", "mountPath": FOLDER}],
    }
    volumes = [{"name": "truth", "configMap": {"name": "truth"}}]
    pods = {"template": {"spec": {"volumes": volumes, "containers": [container]}}}
    scaling = {"mode": mode, "maxReplicas": 4}
    tenant.apply(truths, a_model(pods=pods, scaling=scaling))


def argument(tenant, flag):
    args = tenant.deployment()["spec"]["template"]["spec"]["containers"][0]["args"]
    return args[args.index(flag) + 1]


def crash(tenant):
    """Return what the condition says of pods that end, once it says it."""

    def said():
        found = tenant.condition("CapacityAvailable")
        return found["message"] if found.get("reason") == "CrashLoopBackOff" else None

    return until(said, "the condition names the crash", told=tenant.told)


def proposal(tenant):
    found = until(lambda: tenant.status().get("proposals"), "it is proposed", told=tenant.told)
    return found[0]


def is_ready(tenant):
    return tenant.condition("Ready").get("status") == "True"


@pytest.mark.parametrize(
    ("truth", "cure", "flag", "value"),
    [
        (
            {"state_blocks": 11},
            "has 11 blocks for states: wait for Tonnage to lower it",
            "--max-num-seqs",
            "11",
        ),
        ({"kv_tokens": 6016}, "set contextLength to at most 6000", "--max-model-len", "6000"),
    ],
    ids=["states", "context"],
)
def test_approve_proposes_what_vllm_asks_for_and_then_the_pods_start(
    tenant, truth, cure, flag, value
):
    an_engine(tenant, "Approve", **truth)
    assert cure in crash(tenant)
    before, waits = argument(tenant, flag), proposal(tenant)

    assert waits["reason"] == "RolloutNeedsApproval"
    assert f"args {flag} {before} -> {value}" in waits["message"]
    tenant.settled("nothing is written before somebody agrees", num_ticks=3)
    assert argument(tenant, flag) == before

    tenant.kubectl("annotate", "mdep", NAME, f"tonnage.dev/approve={waits['digest']}")
    until(lambda: argument(tenant, flag) == value, "the plan is carried out", told=tenant.told)
    until(lambda: is_ready(tenant), "the pods start", told=tenant.told)
    tenant.settled("it stays", num_ticks=3)

    assert argument(tenant, flag) == value
    assert tenant.condition("Approved")["reason"] == "NothingToApprove"
    assert len(tenant.all_of(PODS)) == tenant.replicas()


def test_auto_lowers_slots_by_itself_and_no_context_that_a_spec_asks_for(tenant):
    an_engine(tenant, "Auto", state_blocks=11, kv_tokens=262_144)
    until(lambda: is_ready(tenant), "the pods start", told=tenant.told)

    assert argument(tenant, "--max-num-seqs") == "11"
    assert tenant.condition("CapacityAvailable")["status"] == "True"

    an_engine(tenant, "Auto", kv_tokens=6016)
    tenant.delete("deployment")
    assert "set contextLength to at most 6000" in crash(tenant)
    tenant.settled("nothing is written", num_ticks=3)

    assert argument(tenant, "--max-model-len") == "8192"
