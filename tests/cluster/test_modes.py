"""What the operator does with objects in each mode, and with what others do to them."""

import json
import time
from contextlib import ExitStack

import pytest
import yaml

import site_lab
from cli_builders import run
from site_lab import NAME, NAMESPACE, a_model, a_tenant, until
from tonnage.cluster.kube import CONFIG_MAPS, MODEL_DEPLOYMENTS, PODS

pytestmark = site_lab.pytestmark

SPECIFIED_IMAGE = "vllm/vllm-openai:v0.33.0"


@pytest.fixture(scope="module")
def started(quick_site, request):
    """Namespaces in which a replica starts, one for each test that takes one: all at once."""
    here = [item for item in request.session.items if item.path == request.path]
    takers = [item for item in here if "running" in item.fixturenames]
    with ExitStack() as stack:
        tenants = [stack.enter_context(a_tenant(quick_site)) for _ in takers]
        for each in tenants:
            each.apply(a_model())
        yield iter(tenants)


@pytest.fixture
def running(started):
    """A namespace with one Ready replica."""
    found = next(started)
    found.wait_ready()
    yield found
    found.kubectl("delete", "modeldeployments", "--all", "--wait=false")


def template(deployment):
    return deployment["spec"]["template"]


def container(deployment):
    return template(deployment)["spec"]["containers"][0]


def uid(found):
    return found["metadata"]["uid"] if found else None


def plan(tenant):
    return tenant.status().get("plan")


def test_auto_makes_a_deployment_and_a_service_that_go_with_their_owner(running):
    deployment = running.wait_ready()
    (owner,) = deployment["metadata"]["ownerReferences"]

    assert running.objects() == {"deployments": [NAME], "services": [NAME]}
    assert (owner["kind"], owner["name"], owner["controller"]) == ("ModelDeployment", NAME, True)
    assert f"--max-num-seqs {plan(running)['maxNumSeqs']}" in " ".join(
        container(deployment)["args"]
    )

    running.delete("modeldeployment")
    until(lambda: not running.all_of(PODS), "the pods are gone")

    assert running.objects() == {"deployments": [], "services": []}


def test_recommend_plans_in_status_and_creates_nothing(tenant):
    tenant.apply(a_model(scaling={"mode": "Recommend", "maxReplicas": 4}))
    until(lambda: plan(tenant), "a plan is in status")
    tenant.settled("nothing more is written")

    assert plan(tenant)["replicas"] == 1
    assert tenant.condition("ScalingActive")["reason"] == "RecommendOnly"
    assert tenant.objects() == {"deployments": [], "services": []}


def test_a_recommended_split_stays_when_demand_and_the_operator_change(tenant):
    """It is stored. Unit tests have rates at which another one would save a little."""

    def asked(requests_per_s):
        lengths = {"promptTokens": {"mean": 4000, "p99": 7000}, "outputTokens": {"mean": 1000}}
        return {
            "hardware": {"gpu": "H200"},
            "engine": {"version": "0.33"},
            "demand": {"requestsPerSecond": requests_per_s, **lengths},
            "scaling": {"mode": "Recommend", "maxReplicas": 100},
        }

    def split():
        return tenant.status().get("plan", {}).get("parallelism")

    def is_stored():
        uid = tenant.get(MODEL_DEPLOYMENTS)["metadata"]["uid"]
        stored = tenant.site.api.list(CONFIG_MAPS.path(NAMESPACE))
        texts = [text for each in stored for text in each.get("data", {}).values()]
        return any(uid in text and "planned_split" in text for text in texts)

    low, high = 18, 19
    tenant.apply(a_model(**asked(low)))
    until(split, "a plan is in status")
    first = split()
    until(is_stored, "the split is stored", timeout_s=150)
    tenant.site.stop_operator()
    try:
        generation = tenant.change(demand=asked(high)["demand"])["metadata"]["generation"]
    finally:
        tenant.site.start_operator()
    until(lambda: tenant.status()["observedGeneration"] == generation, "the change is seen")

    def is_planned_anew():
        return any(f"{high}.0 requests/s" in each["message"] for each in plan(tenant)["reasons"])

    until(is_planned_anew, f"the plan is for {high} requests/s")
    assert split() == first


def test_paused_freezes_and_auto_goes_on(running):
    before = running.wait_ready()
    running.change(scaling={"mode": "Paused"})
    until(lambda: running.condition("ScalingActive").get("reason") == "Paused", "it says Paused")
    frozen = plan(running)
    generation = running.change(scaling={"minReplicas": 2}, pods={"cpu": "123m"})["metadata"][
        "generation"
    ]
    until(lambda: running.status()["observedGeneration"] == generation, "the change is seen")
    running.settled("nothing more is written")

    assert plan(running) == frozen
    assert running.deployment()["metadata"]["generation"] == before["metadata"]["generation"]

    running.change(scaling={"mode": "Auto"})
    after = running.wait_ready(replicas=2)

    assert container(after)["resources"]["requests"] == {"cpu": "123m"}
    assert uid(after) == uid(before)


def test_recommend_leaves_what_runs_alone(running):
    before = running.wait_ready()
    running.change(scaling={"mode": "Recommend", "minReplicas": 2})
    until(lambda: plan(running)["replicas"] == 2, "the plan has two replicas")
    running.settled("nothing more is written")

    assert running.deployment()["spec"] == before["spec"]


def test_an_operator_that_recommends_writes_status_alone(running, quick_site):
    """With the rights of its chart: what it was refused fails the tests of this site."""
    values = yaml.safe_load((quick_site.plane.folder / "values.yaml").read_text())
    quick_site.upgrade_operator(settings=values["settings"] | {"mode": "recommend"})
    try:
        since_s = time.time()
        running.kubectl("scale", f"deployment/{NAME}", "--replicas=2")
        running.apply(a_model("advised"))
        until(lambda: running.status("advised").get("plan"), "a plan is in status")
        running.settled("nothing more is written")

        assert running.deployment("advised") is None
        assert running.replicas() == 2
        found = running.condition("ScalingActive")
        assert found["reason"] == "RecommendOnly"
        assert "this operator acts on no object (settings.mode recommend)" in found["message"]
        writes = [
            each
            for each in quick_site.writes(since_s=since_s)
            if each.namespace == running.namespace
        ]
        assert {f"{each.verb} {each.resource}" for each in writes} == {
            "patch modeldeployments/status"
        }
    finally:
        quick_site.upgrade_operator()
    until(lambda: running.replicas() == 1, "replicas are corrected again")


def test_approve_rolls_pods_for_the_digest_of_the_plan_and_no_other(running):
    before = running.wait_ready()
    changed = running.change(scaling={"mode": "Approve"}, pods={"cpu": "1000m"})
    until(lambda: running.condition("Approved").get("status") == "False", "the plan waits")
    running.settled("nothing more is written")
    (proposal,) = running.status()["proposals"]

    assert running.deployment()["metadata"]["generation"] == before["metadata"]["generation"]
    assert running.condition("Approved")["reason"] == "RolloutNeedsApproval"
    assert "resources.requests" in running.condition("Approved")["message"]
    assert running.condition("Ready")["status"] == "True"

    running.change(scaling={"minReplicas": 2})
    running.wait_ready(replicas=2)  # what runs is scaled meanwhile
    running.kubectl("annotate", "mdep", NAME, f"tonnage.dev/approve={proposal['digest']}")
    until(lambda: running.condition("Approved")["reason"] == "ApprovalStale", "it is of before")
    running.settled("nothing more is written")

    assert template(running.deployment()) == template(before)

    (newer,) = running.status()["proposals"]
    running.kubectl(
        "annotate", "mdep", NAME, "--overwrite", f"tonnage.dev/approve={newer['digest']}"
    )
    until(lambda: template(running.deployment()) != template(before), "the plan is carried out")
    after = running.wait_ready(replicas=2)

    assert container(after)["resources"]["requests"] == {"cpu": "1"}
    assert running.condition("Approved")["reason"] == "PlanApproved"
    assert (
        running.get(MODEL_DEPLOYMENTS)["metadata"]["generation"] > changed["metadata"]["generation"]
    )

    running.change(slo={"timePerOutputToken": {"p95": "51ms"}}, pods={"cpu": "1"})
    generation = running.get(MODEL_DEPLOYMENTS)["metadata"]["generation"]
    until(lambda: running.status()["observedGeneration"] == generation, "the change is seen")
    running.settled("nothing more is written")

    assert template(running.deployment()) == template(after)  # the same pods: nothing waits
    assert running.condition("Approved")["reason"] == "NothingToApprove"
    assert running.condition("Ready")["status"] == "True"


def test_diff_tells_beforehand_what_the_operator_would_do(running, tmp_path):
    running.wait_ready()
    wanted = a_model(contextLength=7000)
    wanted["metadata"]["namespace"] = running.namespace
    (tmp_path / "new.yaml").write_text(json.dumps(wanted))
    kubeconfig = running.site.plane.kubeconfig

    told = run(
        "diff", "--from-cluster", tmp_path / "new.yaml", "--kubeconfig", kubeconfig, "-o", "json"
    )
    (found,) = json.loads(told.stdout)["objects"]
    before = container(running.deployment())["args"]
    running.change(contextLength=7000)
    until(lambda: container(running.deployment())["args"] != before, "the template is applied")
    after = container(running.deployment())["args"]

    assert found["podsRolled"] == 1
    assert [each["field"] for each in found["podChanges"]] == [
        "spec.containers[vllm].args --max-model-len"
    ]
    assert [pair for pair in zip(before, after, strict=True) if pair[0] != pair[1]] == [
        ("8192", "7000")
    ]


def test_a_plan_of_what_runs_has_the_flags_that_the_operator_recorded(running):
    running.wait_ready()
    args = container(running.deployment())["args"]

    told = run(
        "plan", "--from-cluster", NAME, "-n", running.namespace,
        "--kubeconfig", running.site.plane.kubeconfig, "-o", "json",
    )  # fmt: skip
    assert told.exit_code == 0, told.output
    (found,) = json.loads(told.stdout)
    fleets = found["fleets"]

    assert fleets["running"]["replicas"] == running.replicas()
    assert fleets["running"]["maxNumSeqs"] == int(args[args.index("--max-num-seqs") + 1])
    month = fleets["running"]["perMonth"]
    assert month["cost"] == pytest.approx(running.replicas() * 63.296 / 8 * 730.5, abs=0.01)


def test_another_manager_that_applies_the_same_every_second_changes_nothing(running):
    before, site = running.wait_ready(), running.site
    manifest = a_model()
    manifest["metadata"]["namespace"] = running.namespace
    path = MODEL_DEPLOYMENTS.path(running.namespace, NAME)

    def apply():
        return site.api.apply(path, manifest, manager="argocd-controller", force=True)

    first = apply()
    running.settled("it is seen", num_ticks=10)
    since_s = time.time()
    for _ in range(10):
        ticks = site.num_ticks()
        last = apply()
        until(lambda ticks=ticks: site.num_ticks() > ticks, "a tick")
    writes = [each for each in site.writes(since_s=since_s) if each.namespace == running.namespace]

    assert writes == []
    assert last["metadata"]["generation"] == first["metadata"]["generation"]
    assert running.deployment()["spec"] == before["spec"]


def test_deleting_the_object_needs_no_operator(running):
    running.site.stop_operator()
    try:
        running.delete("modeldeployment")
        until(lambda: not running.all_of(PODS), "the pods are gone")

        assert running.objects() == {"deployments": [], "services": []}
    finally:
        running.site.start_operator()


def test_drift_of_the_template_is_corrected(running):
    before = running.wait_ready()
    running.kubectl("set", "image", f"deployment/{NAME}", "vllm=vllm/vllm-openai:v0.32.0")
    until(lambda: container(running.deployment())["image"] == SPECIFIED_IMAGE, "the image is back")
    running.kubectl(
        "patch", f"deployment/{NAME}", "--type=json", "-p",
        json.dumps([{"op": "replace", "path": "/spec/template/spec/containers/0/args/4",
                     "value": "7"}]),
    )  # fmt: skip
    until(lambda: template(running.deployment()) == template(before), "the arguments are back")
    running.kubectl("set", "env", f"deployment/{NAME}", "SOMETHING=else")
    running.settled("nobody fights over what is added")
    after = running.wait_ready()
    names = {each["name"] for each in container(after)["env"]}

    assert container(after)["args"] == container(before)["args"]
    assert {"SOMETHING", "HF_HOME"} <= names


def test_deleted_children_are_made_again(running):
    before = running.wait_ready()
    running.delete("service")
    running.delete("deployment")
    until(lambda: uid(running.deployment()) not in {None, uid(before)}, "another Deployment exists")
    after = running.wait_ready()

    assert template(after) == template(before)
    assert running.objects()["services"] == [NAME]


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
    assert "5.3 GiB short" in refused["message"]  # 128.6 - 131.4 - 2.2 - 0.25 - 0.04
    assert tenant.condition("Stalled")["status"] == "True"
    assert tenant.objects() == {"deployments": [], "services": []}


def test_an_object_that_stops_to_fit_leaves_what_runs_alone(running):
    before = running.wait_ready()
    running.change(model={"weights": "bfloat16"})
    until(lambda: running.condition("PlanValid").get("status") == "False", "the plan is refused")
    running.settled("nothing more is written")

    assert running.deployment()["spec"] == before["spec"]
    assert running.num_ready() == 1


def test_replicas_that_somebody_else_set_are_corrected(running):
    before, since_s = running.wait_ready(), time.time()
    running.kubectl("scale", f"deployment/{NAME}", "--replicas=3")
    until(lambda: running.replicas() == 3, "somebody else set them")
    after = running.wait_ready()
    writes = [
        each
        for each in running.site.writes(since_s=since_s)
        if (each.namespace, each.resource) == (running.namespace, "deployments/scale")
        and each.code == 200  # where a controller was faster it is read and written again
    ]

    assert template(after) == template(before)
    assert len(writes) == 2  # down one at a time
    assert running.condition("ScalingActive")["status"] == "True"


def test_none_that_somebody_else_asked_for_stay_none_until_the_spec_changes(running):
    running.wait_ready()
    running.kubectl("scale", f"deployment/{NAME}", "--replicas=0")
    until(
        lambda: running.condition("ScalingActive").get("reason") == "ScaledToZeroExternally",
        "it says so",
    )
    running.settled("nobody fights over it")

    assert running.replicas() == 0
    assert "somebody scaled it to 0" in running.condition("ScalingActive")["message"]

    running.change(scaling={"minReplicas": 2, "maxReplicas": 4})
    running.wait_ready(replicas=2)


def test_one_who_undoes_corrections_is_left_alone_and_named(running):
    running.change(scaling={"minReplicas": 2, "maxReplicas": 4})
    running.wait_ready(replicas=2)
    running.kubectl("scale", f"deployment/{NAME}", "--replicas=1")
    until(lambda: running.replicas() == 2, "it is corrected")
    running.settled("the correction is seen")
    running.kubectl("scale", f"deployment/{NAME}", "--replicas=1")
    until(
        lambda: running.condition("ScalingActive").get("reason") == "ConflictingWriter",
        "it says so",
    )
    running.settled("nobody fights over it")

    assert running.replicas() == 1
    message = running.condition("ScalingActive")["message"]
    assert "somebody changed the replicas from 2 to 1 after 1 correction" in message


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
    assert {each.code for each in writes} <= {200, 201, 409}  # 409: tried again on what is there
