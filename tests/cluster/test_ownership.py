"""What others do to an object's children: nothing of theirs is shown as the object's."""

import json

import site_lab
from site_lab import NAME, a_model, until
from tonnage.cluster.kube import MODEL_DEPLOYMENTS, PODS

pytestmark = site_lab.pytestmark


def reason(tenant, kind="Ready"):
    found = tenant.condition(kind)
    return found.get("status"), found.get("reason")


def patch(tenant, *operations):
    text = json.dumps(operations)
    tenant.kubectl("patch", f"deployment/{NAME}", "--type=json", "-p", text)


def pods(tenant):
    return {each["metadata"]["uid"] for each in tenant.all_of(PODS)}


def test_a_deployment_without_its_owner_is_not_ours_until_it_is_handed_over(tenant):
    tenant.apply(a_model())
    before = tenant.wait_ready()
    until(lambda: reason(tenant) == ("True", "MinimumReady"), "it is Ready")
    running = pods(tenant)

    patch(tenant, {"op": "remove", "path": "/metadata/ownerReferences"})
    until(lambda: reason(tenant) == ("False", "NameConflict"), "it says so")
    tenant.settled("nothing more is written")
    status = tenant.status()
    uid = tenant.get(MODEL_DEPLOYMENTS)["metadata"]["uid"]

    assert (status["replicas"]["current"], status["replicas"]["ready"]) == (0, 0)
    assert f"tonnage.dev/adopt={uid}" in tenant.condition("Ready")["message"]
    assert "ownerReferences" not in tenant.deployment()["metadata"]

    tenant.kubectl("label", f"deployment/{NAME}", f"tonnage.dev/adopt={uid}")
    until(lambda: reason(tenant) == ("True", "MinimumReady"), "it is ours again")
    [owner] = tenant.deployment()["metadata"]["ownerReferences"]

    assert owner["uid"] == uid
    assert tenant.deployment()["spec"]["template"] == before["spec"]["template"]
    assert pods(tenant) == running


def test_what_somebody_took_out_of_the_template_is_told(tenant):
    tenant.apply(a_model())
    tenant.wait_ready()
    until(lambda: reason(tenant, "Drifted") == ("False", "AsWritten"), "it is as we wrote it")

    path = "/spec/template/spec/containers/0/livenessProbe"
    patch(tenant, {"op": "remove", "path": path})
    until(lambda: reason(tenant, "Drifted") == ("True", "TemplateEdited"), "it is told")
    message = tenant.condition("Drifted")["message"]

    assert "spec.containers[vllm].livenessProbe away, ours: {" in message


def test_a_service_of_somebody_else_means_that_nothing_is_reached(tenant):
    theirs = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": NAME},
        "spec": {"ports": [{"port": 80}], "selector": {"app": "other"}},
    }
    tenant.apply(theirs)
    tenant.apply(a_model())
    until(lambda: tenant.num_ready() == 1, "a replica is Ready")
    until(lambda: reason(tenant) == ("False", "NoTrafficPath"), "it says so")
    tenant.settled("nothing more is written")
    assert reason(tenant) == ("False", "NoTrafficPath")

    tenant.delete("service")
    until(lambda: reason(tenant) == ("True", "MinimumReady"), "the name is free")
