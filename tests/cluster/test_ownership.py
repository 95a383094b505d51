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


def template(tenant):
    return tenant.deployment()["spec"]["template"]["spec"]


def test_what_somebody_took_out_of_the_template_is_told_and_put_back(tenant):
    tenant.apply(a_model())
    tenant.wait_ready()
    until(lambda: reason(tenant, "Drifted") == ("False", "AsWritten"), "it is as we wrote it")
    before = template(tenant)

    path = "/spec/template/spec/containers/0/livenessProbe"
    patch(tenant, {"op": "remove", "path": path})
    until(lambda: template(tenant) == before, "it is back")
    until(lambda: reason(tenant, "Drifted") == ("False", "AsWritten"), "it says so")

    told = tenant.kubectl("get", "events", "-o", "jsonpath={.items[*].message}")
    assert "somebody removed spec.containers[vllm].livenessProbe, ours: {" in told


def test_what_somebody_adds_to_the_template_is_told_and_stays(tenant):
    tenant.apply(a_model())
    tenant.wait_ready()
    until(lambda: reason(tenant, "Drifted") == ("False", "AsWritten"), "it is as we wrote it")

    miner = {"name": "miner", "image": "example.test/miner:1"}
    added = {"spec": {"template": {"spec": {"hostPID": True, "containers": [miner]}}}}
    tenant.kubectl(
        "patch", f"deployment/{NAME}", "--field-manager=mallory", "-p", json.dumps(added)
    )
    until(lambda: reason(tenant, "Drifted") == ("True", "TemplateEdited"), "it is told")
    tenant.settled("nobody fights over it")

    assert tenant.condition("Drifted")["message"] == (
        "mallory added spec.containers[miner], spec.hostPID true"
    )
    assert template(tenant)["hostPID"] is True


def test_what_was_edited_while_the_operator_was_away_is_put_back(tenant):
    tenant.apply(a_model())
    tenant.wait_ready()
    until(lambda: reason(tenant, "Drifted") == ("False", "AsWritten"), "it is as we wrote it")
    before, site = template(tenant), tenant.site

    site.stop_operator()
    try:
        image = {"op": "replace", "path": "/spec/template/spec/containers/0/image", "value": "x:1"}
        tenant.kubectl(
            "patch", f"deployment/{NAME}", "--type=json", "--field-manager=tonnage",
            "-p", json.dumps([image]),
        )  # fmt: skip
    finally:
        site.start_operator()
    until(lambda: template(tenant) == before, "it is back")
    tenant.settled("nothing more is written")

    assert template(tenant) == before


def test_a_rollout_that_somebody_holds_is_told_until_it_goes_on(tenant):
    tenant.apply(a_model())
    tenant.wait_ready()
    tenant.kubectl("rollout", "pause", f"deployment/{NAME}")
    tenant.change(contextLength=7000)
    until(lambda: reason(tenant, "Stalled") == ("True", "RolloutPaused"), "it says so")

    tenant.kubectl("rollout", "resume", f"deployment/{NAME}")
    until(lambda: tenant.condition("Stalled") == {}, "it goes on")
    tenant.wait_ready()


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


def test_ours_without_its_label_is_seen_where_nothing_is_written(tenant):
    tenant.apply(a_model())
    tenant.wait_ready()
    tenant.apply(a_model(scaling={"mode": "Paused", "maxReplicas": 4}))
    until(lambda: reason(tenant, "ScalingActive") == ("False", "Paused"), "it is paused")
    path = "/metadata/labels/tonnage.dev~1managed"
    patch(tenant, {"op": "remove", "path": path})
    tenant.settled("nothing more is written")

    assert reason(tenant) == ("True", "MinimumReady")
    assert tenant.status()["replicas"]["summary"] == "1/1"


def test_anothers_without_a_label_is_in_the_way_of_a_plan_alone(tenant):
    labels = {"app": "other"}
    container = {"name": "server", "image": "example.test/server:1"}
    theirs = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": NAME},
        "spec": {
            "replicas": 0,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [container]}},
        },
    }
    tenant.apply(theirs)
    tenant.apply(a_model(scaling={"mode": "Recommend", "maxReplicas": 4}))

    until(lambda: reason(tenant) == ("False", "NameConflict"), "it says so")


def test_a_condition_of_somebody_else_costs_no_writes(tenant):
    tenant.apply(a_model())
    tenant.wait_ready()
    until(lambda: reason(tenant) == ("True", "MinimumReady"), "it is Ready")
    blessed = {
        "type": "Blessed",
        "status": "True",
        "reason": "Forged",
        "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    body = {"status": {"conditions": [*tenant.status()["conditions"], blessed]}}
    path = MODEL_DEPLOYMENTS.path(tenant.namespace, NAME, "status")
    tenant.site.api.merge_patch(path, body, manager="somebody")
    tenant.settled("nothing more is written")

    assert reason(tenant, "Blessed") == ("True", "Forged")
    assert reason(tenant) == ("True", "MinimumReady")
