"""What the operator does with objects in each mode, and with what others do to them."""

import json
import time

import pytest

import site_lab
from site_lab import NAME, a_model, until
from tonnage.cluster.kube import PODS

pytestmark = site_lab.pytestmark

HEALED_IMAGE = "vllm/vllm-openai:v0.33.0"


def template(deployment):
    return deployment["spec"]["template"]


def container(deployment):
    return template(deployment)["spec"]["containers"][0]


def uid(found):
    return found["metadata"]["uid"] if found else None


def plan(tenant):
    return tenant.status().get("plan")


def test_auto_makes_a_deployment_and_a_service_that_it_owns(tenant):
    tenant.apply(a_model())
    deployment = tenant.wait_ready()
    (owner,) = deployment["metadata"]["ownerReferences"]

    assert tenant.objects() == {"deployments": [NAME], "services": [NAME]}
    assert (owner["kind"], owner["name"], owner["controller"]) == ("ModelDeployment", NAME, True)
    assert f"--max-num-seqs {plan(tenant)['maxNumSeqs']}" in " ".join(container(deployment)["args"])


def test_recommend_plans_in_status_and_creates_nothing(tenant):
    tenant.apply(a_model(scaling={"mode": "Recommend", "maxReplicas": 4}))
    until(lambda: plan(tenant), "a plan is in status")
    tenant.settled("nothing more is written")

    assert plan(tenant)["replicas"] == 1
    assert tenant.condition("ScalingActive")["reason"] == "RecommendOnly"
    assert tenant.objects() == {"deployments": [], "services": []}


def test_paused_freezes_and_auto_goes_on(tenant):
    tenant.apply(a_model())
    before = tenant.wait_ready()
    tenant.change(scaling={"mode": "Paused"})
    until(lambda: tenant.condition("ScalingActive").get("reason") == "Paused", "it says Paused")
    frozen = plan(tenant)
    generation = tenant.change(scaling={"minReplicas": 2}, pods={"cpu": "123m"})["metadata"][
        "generation"
    ]
    until(lambda: tenant.status()["observedGeneration"] == generation, "the change is seen")
    tenant.settled("nothing more is written")

    assert plan(tenant) == frozen
    assert tenant.deployment()["metadata"]["generation"] == before["metadata"]["generation"]

    tenant.change(scaling={"mode": "Auto"})
    after = tenant.wait_ready(replicas=2)

    assert container(after)["resources"]["requests"] == {"cpu": "123m"}
    assert uid(after) == uid(before)


def test_recommend_leaves_what_runs_alone(tenant):
    tenant.apply(a_model())
    before = tenant.wait_ready()
    tenant.change(scaling={"mode": "Recommend", "minReplicas": 2})
    until(lambda: plan(tenant)["replicas"] == 2, "the plan has two replicas")
    tenant.settled("nothing more is written")

    assert tenant.deployment()["spec"] == before["spec"]


def test_deleting_the_object_takes_its_children_along(tenant):
    tenant.apply(a_model())
    tenant.wait_ready()
    tenant.delete("modeldeployment")
    until(lambda: not tenant.all_of(PODS), "the pods are gone")

    assert tenant.objects() == {"deployments": [], "services": []}


def test_deleting_the_object_needs_no_operator(tenant):
    tenant.apply(a_model())
    tenant.wait_ready()
    tenant.site.stop_operator()
    try:
        tenant.delete("modeldeployment")
        until(lambda: not tenant.all_of(PODS), "the pods are gone")

        assert tenant.objects() == {"deployments": [], "services": []}
    finally:
        tenant.site.start_operator()


def test_an_edited_template_is_healed(tenant):
    tenant.apply(a_model())
    before = tenant.wait_ready()
    tenant.kubectl("set", "image", f"deployment/{NAME}", "vllm=vllm/vllm-openai:v0.32.0")
    until(lambda: container(tenant.deployment())["image"] == HEALED_IMAGE, "the image is back")
    tenant.kubectl(
        "patch", f"deployment/{NAME}", "--type=json", "-p",
        json.dumps([{"op": "replace", "path": "/spec/template/spec/containers/0/args/4",
                     "value": "7"}]),
    )  # fmt: skip
    until(lambda: template(tenant.deployment()) == template(before), "the arguments are back")
    tenant.wait_ready()
    tenant.settled("nobody fights over it")

    assert template(tenant.deployment()) == template(before)


def test_what_an_edit_adds_is_left_there_and_not_fought_over(tenant):
    tenant.apply(a_model())
    tenant.wait_ready()
    tenant.kubectl("set", "env", f"deployment/{NAME}", "SOMETHING=else")
    tenant.settled("nobody fights over it")
    names = {each["name"] for each in container(tenant.deployment())["env"]}

    assert {"SOMETHING", "HF_HOME"} <= names


def test_a_deleted_deployment_is_made_again(tenant):
    tenant.apply(a_model())
    before = tenant.wait_ready()
    tenant.delete("deployment")
    until(lambda: uid(tenant.deployment()) not in {None, uid(before)}, "another Deployment exists")
    after = tenant.wait_ready()

    assert template(after) == template(before)


def test_a_deleted_service_is_made_again_with_the_next_template(tenant):
    tenant.apply(a_model())
    tenant.wait_ready()
    tenant.delete("service")
    tenant.change(pods={"cpu": "50m"})
    until(lambda: tenant.objects()["services"] == [NAME], "the Service exists")


@pytest.mark.parametrize("labels", [{}, {"tonnage.dev/managed": "true"}], ids=["plain", "labelled"])
def test_a_foreign_deployment_of_the_same_name_is_not_adopted(tenant, labels):
    foreign = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": NAME, "labels": labels},
        "spec": {
            "replicas": 0,
            "selector": {"matchLabels": {"app": "other"}},
            "template": {
                "metadata": {"labels": {"app": "other"}},
                "spec": {"containers": [{"name": "other", "image": "example.test/other:1"}]},
            },
        },
    }
    tenant.apply(foreign)
    before = tenant.deployment()
    tenant.apply(a_model())
    until(lambda: tenant.condition("PlanValid").get("reason") == "NameConflict", "it says so")
    tenant.settled("nothing more is written")

    assert tenant.condition("Ready")["status"] == "False"
    assert tenant.deployment()["spec"] == before["spec"]
    assert "ownerReferences" not in tenant.deployment()["metadata"]
    assert tenant.objects()["services"] == []

    tenant.delete("deployment")
    until(lambda: tenant.condition("PlanValid").get("status") == "True", "the name is free")
    tenant.wait_ready()


def test_a_plan_that_does_not_fit_says_by_how_much_and_makes_nothing(tenant):
    tenant.apply(a_model(model={"id": "meta-llama/Llama-3.3-70B-Instruct", "weights": "bfloat16"}))
    until(lambda: tenant.condition("PlanValid").get("status") == "False", "the plan is refused")
    tenant.settled("nothing more is written")
    refused = tenant.condition("PlanValid")

    assert refused["reason"] == "DoesNotFit"
    assert "128.6 GiB usable (92% of 139.8 GiB) - 131.4 GiB weights" in refused["message"]
    assert "6.2 GiB short" in refused["message"]  # 128.6 - 131.4 - 2.1 - 0.25 - 1.0
    assert tenant.condition("Stalled")["status"] == "True"
    assert tenant.objects() == {"deployments": [], "services": []}


def test_an_object_that_stops_to_fit_leaves_what_runs_alone(tenant):
    tenant.apply(a_model())
    before = tenant.wait_ready()
    tenant.change(model={"weights": "bfloat16"})
    until(lambda: tenant.condition("PlanValid").get("status") == "False", "the plan is refused")
    tenant.settled("nothing more is written")

    assert tenant.deployment()["spec"] == before["spec"]
    assert tenant.num_ready() == 1


@pytest.mark.parametrize(("replicas", "num_writes"), [(0, 1), (3, 2)])
def test_replicas_that_somebody_else_set_are_corrected(tenant, replicas, num_writes):
    tenant.apply(a_model())
    before, since_s = tenant.wait_ready(), time.time()
    tenant.kubectl("scale", f"deployment/{NAME}", f"--replicas={replicas}")
    until(lambda: tenant.replicas() == replicas, "somebody else set them")
    after = tenant.wait_ready()
    writes = [
        each
        for each in tenant.site.writes(since_s=since_s)
        if (each.namespace, each.resource) == (tenant.namespace, "deployments/scale")
    ]

    assert template(after) == template(before)
    assert len(writes) == num_writes  # up in one step, down one at a time


def test_replicas_are_written_through_scale_only(tenant):
    tenant.apply(a_model(scaling={"minReplicas": 2, "maxReplicas": 4}))
    deployment = tenant.wait_ready(replicas=2)
    (ours,) = [
        each["fieldsV1"]
        for each in deployment["metadata"]["managedFields"]
        if each["manager"] == "tonnage"
    ]
    writes = [each for each in tenant.site.writes() if each.namespace == tenant.namespace]

    assert "f:replicas" not in ours["f:spec"]
    assert "patch deployments/scale" in {f"{each.verb} {each.resource}" for each in writes}
    assert all(each.code < 400 for each in writes)
