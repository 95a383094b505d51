"""Pods with a template of a user, as the operator runs them on a real API server and scheduler."""

import json

import pytest

import site_lab
from pod_templates import engine
from site_lab import NAME, a_model, until
from tonnage.cluster.kube import MODEL_DEPLOYMENTS, PODS
from tonnage_lab.processes import LabError

pytestmark = site_lab.pytestmark

SIDE = {
    "name": "shipper",
    "image": "vllm/vllm-openai:v0.33.0",
    "command": ["sleep", "3600"],
    "resources": {"requests": {"cpu": 0.01}},
    "volumeMounts": [{"name": "logs", "mountPath": "/logs", "readOnly": False}],
}
"""What the lab can run, of an image that the site's settings.sidecarImages has."""


def a_template(**side):
    return {
        "metadata": {"labels": {"team": "chat"}},
        "spec": {
            "volumes": [{"name": "logs", "emptyDir": {}}],
            "containers": [
                {
                    "name": "vllm",
                    "env": [{"name": "EMPTY", "value": ""}],
                    "volumeMounts": [{"name": "logs", "mountPath": "/var/log/vllm"}],
                },
                SIDE | side,
            ],
        },
    }


@pytest.fixture
def running(tenant):
    """A namespace with one Ready replica that has a sidecar."""
    tenant.apply(a_model(pods={"template": a_template()}))
    tenant.wait_ready()
    return tenant


def reason(tenant, kind):
    found = tenant.condition(kind)
    return found.get("status"), found.get("reason")


def pods(tenant):
    return {each["metadata"]["uid"] for each in tenant.all_of(PODS)}


def containers(tenant):
    found = tenant.deployment()["spec"]["template"]["spec"]["containers"]
    return {each["name"]: each for each in found}


def test_a_sidecar_runs_beside_the_engine_and_is_no_edit_of_somebody(running):
    until(lambda: reason(running, "Drifted") == ("False", "AsWritten"), "it is as we wrote it")
    running.settled("nothing more is written", num_ticks=5)
    [pod] = running.all_of(PODS)
    statuses = {each["name"]: each["ready"] for each in pod["status"]["containerStatuses"]}
    asked = {name: each.get("resources", {}) for name, each in containers(running).items()}

    assert statuses == {"vllm": True, "shipper": True}
    assert pod["metadata"]["labels"]["team"] == "chat"
    assert asked["vllm"]["limits"]["nvidia.com/gpu"] == "1"
    assert "limits" not in asked["shipper"]
    assert reason(running, "Drifted") == ("False", "AsWritten")
    assert reason(running, "PlanValid")[0] == "True"


def test_another_template_rolls_the_pods_and_names_the_field(running):
    before = pods(running)
    running.change(pods={"template": a_template(command=["sleep", "7200"])})
    until(lambda: containers(running)["shipper"]["command"][1] == "7200", "it is written")
    until(lambda: not pods(running) & before, "the pods of before are gone", told=running.told)
    running.wait_ready()
    told = running.kubectl("get", "events", "-o", "jsonpath={.items[*].message}")

    assert "spec.containers[shipper].command" in told

    running.change(pods=None)
    until(lambda: list(containers(running)) == ["vllm"], "the sidecar is gone")
    running.wait_ready()
    assert reason(running, "Drifted") == ("False", "AsWritten")


def test_a_mistaken_template_is_named_by_its_path_and_what_runs_is_scaled_on(running):
    before = running.deployment()["spec"]["template"]
    mistaken = engine(resources={"limits": {"cpu": "many"}})
    running.change(pods={"template": mistaken}, scaling={"minReplicas": 2, "maxReplicas": 4})
    until(
        lambda: reason(running, "PlanValid") == ("False", "InvalidSpec"),
        "the template is refused",
        told=running.told,
    )
    until(lambda: running.num_ready() == 2, "what runs is scaled", told=running.told)
    running.settled("nothing more is written")

    assert running.condition("PlanValid")["message"] == (
        "spec.pods.template.spec.containers[0].resources.limits[cpu]: must be a quantity, such as "
        "500m or 64Gi"
    )
    assert reason(running, "ScalingActive") == ("True", "ScalingWhatRuns")
    assert running.deployment()["spec"]["template"] == before

    running.change(pods={"template": a_template()})
    running.wait_ready(replicas=2)
    assert running.deployment()["spec"]["template"] == before


def test_what_the_policies_refuse_reaches_no_object(running):
    before = running.get(MODEL_DEPLOYMENTS)["spec"]
    patch = {"spec": {"pods": {"template": {"spec": {"hostNetwork": True}}}}}

    with pytest.raises(LabError, match=r"spec[.]pods[.]template[.]spec has a field that is none"):
        running.kubectl("patch", "mdep", NAME, "--type=merge", "-p", json.dumps(patch))

    assert running.get(MODEL_DEPLOYMENTS)["spec"] == before


@pytest.mark.parametrize("levels", [300, 990, 9_000])
def test_a_template_that_nests_too_deep_holds_up_nobody_else(tenant, levels):
    deep = a_model("deep", pods={"template": {"spec": {"affinity": {"podAffinity": "@"}}}})
    text = json.dumps(deep).replace('"@"', '{"a":' * levels + "1" + "}" * levels)
    tenant.kubectl("create", "-f", "-", text=text)
    tenant.apply(a_model())

    tenant.wait_ready()
    until(lambda: tenant.status("deep").get("conditions"), "it is told", told=lambda: "nothing")
    assert tenant.deployment("deep") is None
