"""A Deployment that somebody else deploys: only its number of replicas is Tonnage's."""

import json
import time
from datetime import datetime

import pytest

import site_lab
from cli_builders import run
from site_lab import a_model, until
from tonnage.cluster.kube import MODEL_DEPLOYMENTS

pytestmark = site_lab.pytestmark

TARGET = "theirs"
OPT_IN = {"tonnage.dev/managed": "true"}


def a_target(*, labels=OPT_IN, pod_labels=OPT_IN):
    container = {
        "name": "vllm",
        "image": "vllm/vllm-openai:v0.33.0",
        "args": [
            "meta-llama/Llama-3.3-70B-Instruct",
            "--max-model-len=8192",
            "--max-num-seqs=64",
            "--max-num-batched-tokens=8192",
        ],
        "ports": [{"name": "http", "containerPort": 8000}],
        "readinessProbe": {"httpGet": {"path": "/health", "port": "http"}, "periodSeconds": 5},
        "resources": {"limits": {"nvidia.com/gpu": "1"}},
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": TARGET, "labels": dict(labels)},
        "spec": {
            "selector": {"matchLabels": {"app": TARGET}},
            "template": {
                "metadata": {"labels": {"app": TARGET} | pod_labels},
                "spec": {"terminationGracePeriodSeconds": 1, "containers": [container]},
            },
        },
    }


def an_adopter(**spec):
    manifest = a_model(scaleTarget={"name": TARGET}, **spec)
    del manifest["spec"]["engine"]
    return manifest


def test_a_plan_of_what_runs_reads_flags_and_the_gpus_of_its_nodes(tenant):
    target = a_target(labels={}, pod_labels={})
    target["spec"]["replicas"] = 2
    target["spec"]["template"]["spec"]["containers"][0]["args"].append("--quantization=fp8")
    tenant.apply(target)
    until(lambda: tenant.num_ready(TARGET) == 2, "two replicas run")
    kubeconfig = tenant.site.plane.kubeconfig

    result = run(
        "plan", "--from-cluster", TARGET, "-n", tenant.namespace, "--kubeconfig", kubeconfig,
        "--rps", 1, "--prompt", 500, "--output", 200, "--ttft", "2s", "--tpot", "50ms",
        "-o", "json",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    (found,) = json.loads(result.stdout)
    fleets = found["fleets"]

    # 2 x H200 at 63.296 / 8 USD; one of them serves one short request per second
    month = fleets["running"]["perMonth"]
    assert month["gpuHours"] == 2 * 730.5
    assert month["cost"] == pytest.approx(2 * 63.296 / 8 * 730.5, abs=0.01)
    assert fleets["running"]["maxNumSeqs"] == 64
    assert fleets["sameFlags"]["replicas"] == 1
    assert tenant.replicas(TARGET) == 2


def test_a_target_that_opted_in_is_scaled_and_otherwise_left_alone(tenant):
    tenant.apply(a_target())
    before = tenant.deployment(TARGET)
    tenant.apply(an_adopter(scaling={"minReplicas": 2, "maxReplicas": 4}))
    until(lambda: tenant.num_ready(TARGET) == 2, "the target has two replicas")
    until(lambda: tenant.condition("Ready").get("status") == "True", "the status says Ready")
    after = tenant.deployment(TARGET)
    writes = {
        f"{each.verb} {each.resource}"
        for each in tenant.site.writes()
        if each.namespace == tenant.namespace
    }

    assert after["spec"] == before["spec"] | {"replicas": 2}
    assert after["metadata"]["labels"] == before["metadata"]["labels"]
    assert "ownerReferences" not in after["metadata"]
    assert writes <= {
        "patch deployments/scale", "patch modeldeployments/status", "create events",
    }  # fmt: skip
    assert tenant.status()["plan"]["maxNumSeqs"] == 64
    assert tenant.objects() == {"deployments": [TARGET], "services": []}

    tenant.delete("modeldeployment")
    until(lambda: not tenant.status(), "the ModelDeployment is gone")
    tenant.settled("nothing more is written")

    assert tenant.deployment(TARGET)["spec"] == after["spec"]


@pytest.mark.parametrize(
    ("labels", "pod_labels"), [({}, OPT_IN), (OPT_IN, {})], ids=["itself", "its pods"]
)
def test_a_target_without_the_label_is_not_scaled_until_it_has_it(tenant, labels, pod_labels):
    tenant.apply(a_target(labels=labels, pod_labels=pod_labels))
    before = tenant.deployment(TARGET)
    tenant.apply(an_adopter(scaling={"minReplicas": 2, "maxReplicas": 4}))
    until(lambda: tenant.condition("PlanValid").get("reason") == "TargetNotAllowed", "it says so")
    tenant.settled("nothing more is written")

    assert tenant.condition("PlanValid")["status"] == "False"
    assert TARGET in tenant.condition("PlanValid")["message"]
    assert tenant.deployment(TARGET)["spec"] == before["spec"]

    tenant.apply(a_target())
    until(lambda: tenant.replicas(TARGET) == 2, "the target has two replicas")


def test_of_two_objects_on_one_target_the_older_wins_and_the_other_says_so(tenant):
    tenant.apply(a_target())
    tenant.apply(an_adopter(scaling={"minReplicas": 2, "maxReplicas": 4}))
    until(lambda: tenant.replicas(TARGET) == 2, "the target has two replicas")
    born = (tenant.get(MODEL_DEPLOYMENTS) or {})["metadata"]["creationTimestamp"]
    until(
        lambda: time.time() >= datetime.fromisoformat(born).timestamp() + 1,
        "what comes now is younger by what a timestamp shows",
    )
    younger = an_adopter(scaling={"minReplicas": 3, "maxReplicas": 4})
    younger["metadata"]["name"] = "younger"
    tenant.apply(younger)
    until(
        lambda: tenant.condition("PlanValid", "younger").get("reason") == "ConflictingOwner",
        "the younger one says so",
    )
    tenant.settled("nothing more is written")

    assert tenant.replicas(TARGET) == 2
