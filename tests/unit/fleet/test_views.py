"""Slim projections of objects as the API server sends them, whole or with parts missing."""

import json

import pytest

from fleet_builders import (
    CRASH_LOOPING,
    NOW_S,
    UNSCHEDULABLE,
    a_deployment_body,
    a_groups_body,
    a_manifest,
    a_model,
    a_pod_body,
    a_replica_set_body,
    a_sizing,
    at,
    managed_by,
    owned_by,
)
from tonnage.fleet.pods import pod_view, unix_s
from tonnage.fleet.views import (
    autoscaler_view,
    deployment_view,
    model_view,
    replica_set_view,
)
from tonnage.manifests.children import flags_from_annotation, spec_digest
from tonnage.manifests.names import GROUPS


def test_a_pod_is_on_a_node_once_it_is_bound():
    bound = a_pod_body() | {"spec": {"nodeName": "gpu-7"}}

    assert pod_view(bound).node_name == "gpu-7"
    assert pod_view(a_pod_body()).node_name is None


def test_times_are_read_as_unix_seconds():
    assert unix_s("2026-01-02T00:00:00Z") == NOW_S
    assert unix_s("2026-01-02T00:00:00.500000Z") == NOW_S + 0.5
    assert unix_s(None) is None


class TestModel:
    def test_keeps_the_manifest_without_what_changes_at_every_write(self):
        body = a_manifest()
        body["metadata"] |= {"resourceVersion": "5", "managedFields": [{}], "labels": {"a": "b"}}

        view = model_view(body | {"status": {"observedGeneration": 1}})

        assert set(json.loads(view.manifest)["metadata"]) == {
            "name",
            "namespace",
            "uid",
            "generation",
        }
        assert json.loads(view.status) == {"observedGeneration": 1}
        assert view.key == ("serving", "llama")
        assert not view.is_deleting

    def test_knows_that_it_is_being_deleted(self):
        body = a_manifest()
        body["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"

        assert model_view(body).is_deleting

    def test_may_have_no_status_yet(self):
        assert json.loads(model_view(a_manifest() | {"status": None}).status) == {}


class TestDeployment:
    def test_of_ours_tells_what_its_template_was_made_from(self):
        view = deployment_view(a_deployment_body(replicas=3, ready=2))

        assert (view.replicas, view.ready, view.updated, view.total) == (3, 2, 3, 3)
        assert view.owner_uid == "uid-of-llama"
        assert view.is_opted_in
        assert view.digest == spec_digest(a_model())
        assert flags_from_annotation(view.flags) == a_sizing().flags
        assert view.gpus_per_replica == 2
        assert view.grace_s == view.drain_s + 30
        assert view.engine.arguments[0] == "meta-llama/Llama-3.3-70B-Instruct"
        assert not view.is_rolling
        assert view.problems == ()
        assert json.loads(view.template)["spec"]["containers"][0]["name"] == "vllm"
        assert json.loads(view.made_from) == a_model().spec.to_digestible()

    def test_of_groups_without_a_template_for_leaders_is_as_their_workers(self):
        body = a_groups_body()
        template = body["spec"]["leaderWorkerTemplate"]
        del template["leaderTemplate"]
        view = deployment_view(body, GROUPS)

        assert "--headless" in view.engine.arguments
        assert (view.gpus_per_replica, view.num_nodes, view.is_opted_in) == (16, 2, True)

    @pytest.mark.parametrize("role", ["leaderTemplate", "workerTemplate"])
    def test_of_groups_is_opted_in_by_all_its_pods(self, role):
        body = a_groups_body()
        body["spec"]["leaderWorkerTemplate"][role]["metadata"]["labels"] = {}

        assert not deployment_view(body, GROUPS).is_opted_in

    def test_tells_which_fields_of_its_template_are_ours(self):
        fields = [*managed_by("kubectl-edit", "f:template"), *managed_by("tonnage", "f:template")]
        ours = deployment_view(a_deployment_body(managedFields=fields))
        others = deployment_view(a_deployment_body(managedFields=fields[:1]))

        assert json.loads(ours.template_fields) == {"f:spec": {}}
        assert json.loads(others.template_fields) is None

    def test_takes_no_edit_under_our_name_for_ours(self):
        edit = managed_by("tonnage", "f:template", operation="Update")
        view = deployment_view(a_deployment_body(managedFields=edit))

        assert view.template_managers == {"somebody as tonnage"}
        assert json.loads(view.template_owners) == [["somebody as tonnage", {"f:spec": {}}]]
        assert json.loads(view.template_fields) is None

    def test_of_somebody_who_set_little(self):
        view = deployment_view({"metadata": {"name": "x", "namespace": "y", "uid": "z"}})

        assert (view.replicas, view.ready, view.gpus_per_replica) == (1, 0, 0)
        assert (view.owner_uid, view.digest, view.flags) == (None, None, None)
        assert (view.drain_s, view.grace_s) == (None, None)
        assert view.engine.arguments == ()
        assert not view.is_opted_in

    def test_scaled_to_nothing_asks_for_nothing(self):
        assert deployment_view(a_deployment_body(replicas=0)).replicas == 0

    @pytest.mark.parametrize("place", ["object", "template"])
    def test_is_opted_in_only_by_both_labels(self, place):
        body = a_deployment_body()
        metadata = body["metadata"] if place == "object" else body["spec"]["template"]["metadata"]
        metadata["labels"] = {}

        assert not deployment_view(body).is_opted_in

    def test_knows_its_controller_among_several_owners(self):
        owners = [{"kind": "Other", "name": "x", "uid": "1"}, *owned_by("App", "y", "2")]

        assert deployment_view(a_deployment_body(ownerReferences=owners)).owner_uid == "2"

    @pytest.mark.parametrize(
        ("status", "rolling"),
        [
            ({}, False),
            ({"observedGeneration": 2}, True),
            ({"updatedReplicas": 1}, True),
            ({"replicas": 3}, True),
        ],
    )
    def test_is_rolling_until_all_pods_are_of_the_newest_template(self, status, rolling):
        body = a_deployment_body(replicas=2)
        body["status"] |= status

        assert deployment_view(body).is_rolling is rolling

    def test_names_who_else_wrote_its_template(self):
        fields = [
            *managed_by("tonnage", "f:template"),
            *managed_by("tonnage-scale", "f:replicas", subresource="scale"),
            *managed_by("kubectl-edit", "f:template"),
            *managed_by("argocd-controller", "f:replicas"),
            *managed_by("kube-controller-manager", "f:paused"),
        ]

        view = deployment_view(a_deployment_body(managedFields=fields))

        assert view.template_managers == {"kubectl-edit"}

    def test_names_who_else_owns_its_replicas_and_by_which_way(self):
        status = {"f:status": {"f:replicas": {}}}
        fields = [
            *managed_by("tonnage", "f:replicas"),
            *managed_by("tonnage-scale", "f:replicas", subresource="scale"),
            *managed_by("kubectl-edit", "f:template"),
            *managed_by("kubectl", "f:replicas", subresource="scale"),
            *managed_by("argocd-controller", "f:replicas"),
            {"manager": "kube-controller-manager", "subresource": "status", "fieldsV1": status},
        ]

        view = deployment_view(a_deployment_body(managedFields=fields))

        assert view.replicas_managers == ("argocd-controller", "kubectl (/scale)")

    def test_survives_managed_fields_of_any_form(self):
        fields = [{}, {"manager": "x", "fieldsV1": None}, {"fieldsV1": {"f:spec": None}}]

        view = deployment_view(a_deployment_body(managedFields=fields))

        assert view.template_managers == set()
        assert view.replicas_managers == ()

    def test_tells_what_is_wrong(self):
        body = a_deployment_body()
        body["status"]["conditions"] = [
            {"type": "Available", "status": "False", "message": "not yet"},
            {"type": "Progressing", "status": "False", "message": "deadline exceeded"},
            {"type": "ReplicaFailure", "status": "True", "message": "exceeded quota"},
        ]

        assert deployment_view(body).problems == (
            ("Progressing", "deadline exceeded"),
            ("ReplicaFailure", "exceeded quota"),
        )

    @pytest.mark.parametrize(
        ("limits", "gpus"),
        [
            ({"nvidia.com/gpu": "8"}, 8),
            ({"nvidia.com/gpu": 8}, 8),
            ({"nvidia.com/gpu": "0"}, 0),
            ({"nvidia.com/mig-1g.10gb": "1"}, 0),
            ({}, 0),
            (None, 0),
        ],
    )
    def test_counts_its_gpus(self, limits, gpus):
        body = a_deployment_body()
        body["spec"]["template"]["spec"]["containers"][0]["resources"] = {"limits": limits}

        assert deployment_view(body).gpus_per_replica == gpus

    def test_names_what_it_takes_gpus_by_that_is_not_counted(self):
        body = a_deployment_body()
        limits = {"limits": {"nvidia.com/mig-1g.10gb": "1"}}
        body["spec"]["template"]["spec"]["containers"][0]["resources"] = limits

        assert deployment_view(body).uncounted_gpus == ("nvidia.com/mig-1g.10gb",)
        assert deployment_view(a_deployment_body()).uncounted_gpus == ()


class TestPod:
    def test_that_answers(self):
        view = pod_view(a_pod_body("a", ready_for_s=120))

        assert view.is_ready
        assert view.ready_at_s == NOW_S - 120
        assert view.created_at_s == NOW_S - 720
        assert view.replica_set_uid == "uid-of-llama-abc"
        assert (view.unschedulable, view.trouble) == (None, None)

    def test_tells_when_a_node_took_it(self):
        waits = [{"type": "PodScheduled", "status": "False", "lastTransitionTime": at(9)}]

        assert pod_view(a_pod_body("a", ready_for_s=120)).scheduled_at_s == NOW_S - 720
        assert pod_view(a_pod_body("a", conditions=waits)).scheduled_at_s is None
        assert pod_view(a_pod_body("a", conditions=[])).scheduled_at_s is None

    @pytest.mark.parametrize(
        ("unready_for_s", "was_ready"),
        [(700, False), (641, False), (600, True), (1300, True)],
        ids=["at once", "a minute later", "later", "by a clock that is ten minutes behind"],
    )
    def test_that_is_not_ready_was_unless_it_has_been_so_since_a_node_took_it(
        self, unready_for_s, was_ready
    ):
        taken = {"type": "PodScheduled", "status": "True", "lastTransitionTime": at(700)}
        unready = {"type": "Ready", "status": "False", "lastTransitionTime": at(unready_for_s)}

        view = pod_view(a_pod_body("a", conditions=[taken, unready]))

        assert view.was_ready is was_ready

    def test_that_no_kubelet_has_seen_yet_was_never_ready(self):
        taken = {"type": "PodScheduled", "status": "True", "lastTransitionTime": at(700)}

        assert not pod_view(a_pod_body("a", conditions=[taken])).was_ready
        assert not pod_view(a_pod_body("a", **UNSCHEDULABLE)).was_ready

    def test_tells_whether_a_container_of_it_began_again(self):
        statuses = [{"name": "vllm", "restartCount": 1, "state": {"running": {}}}]

        assert pod_view(a_pod_body("a", containerStatuses=statuses)).has_restarted
        assert not pod_view(a_pod_body("a")).has_restarted

    def test_that_no_node_can_take_says_why(self):
        view = pod_view(a_pod_body("a", **UNSCHEDULABLE))

        assert "Insufficient nvidia.com/gpu" in view.unschedulable
        assert not view.is_ready

    def test_that_waits_for_a_gate_is_not_unschedulable(self):
        gate = {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}

        assert pod_view(a_pod_body("a", conditions=[gate])).unschedulable is None

    def test_that_found_a_node_is_not_unschedulable_any_more(self):
        found = {"type": "PodScheduled", "status": "True", "reason": "Unschedulable"}

        assert pod_view(a_pod_body("a", conditions=[found])).unschedulable is None

    def test_that_crashes_again_and_again_is_in_trouble(self):
        view = pod_view(a_pod_body("a", **CRASH_LOOPING))

        assert view.trouble == ("CrashLoopBackOff", "")
        assert not view.is_ready

    @pytest.mark.parametrize(
        ("state", "trouble"),
        [
            ({"waiting": {"reason": "ImagePullBackOff"}}, ("ImagePullBackOff", "")),
            ({"waiting": {"reason": "ContainerCreating"}}, None),
            ({"waiting": {"reason": "PodInitializing"}}, None),
            (
                {"terminated": {"reason": "OOMKilled", "exitCode": 137}},
                ("CrashLoopBackOff", "OOMKilled, exit code 137"),
            ),
            ({"terminated": {"reason": "Completed", "exitCode": 0}}, None),
            ({}, None),
            (None, None),
        ],
    )
    def test_trouble_is_what_a_person_must_see(self, state, trouble):
        view = pod_view(a_pod_body("a", containerStatuses=[{"name": "vllm", "state": state}]))

        assert view.trouble == trouble

    def test_that_leaves_is_in_no_trouble(self):
        ended = {"terminated": {"reason": "Error", "exitCode": 143}}
        body = a_pod_body("a", containerStatuses=[{"name": "vllm", "state": ended}])
        body["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"

        assert pod_view(body).trouble is None

    @pytest.mark.parametrize("phase", ["Failed", "Succeeded"])
    def test_that_is_over(self, phase):
        assert pod_view(a_pod_body("a", phase=phase)).is_over
        assert not pod_view(a_pod_body("a", phase="Running")).is_over

    def test_that_has_no_status_yet(self):
        view = pod_view(a_pod_body("a") | {"status": None})

        assert (view.is_ready, view.ready_at_s) == (False, None)

    def test_that_lost_its_node_is_not_ready(self):
        unknown = {"type": "Ready", "status": "Unknown", "lastTransitionTime": None}

        assert not pod_view(a_pod_body("a", conditions=[unknown])).is_ready


def test_a_replica_set_links_pods_to_their_deployment():
    view = replica_set_view(a_replica_set_body())

    assert (view.uid, view.deployment_uid) == ("uid-of-llama-abc", "uid-of-deployment-llama")


@pytest.mark.parametrize("spec", [None, {}, {"scaleTargetRef": None}])
def test_an_autoscaler_may_target_nothing(spec):
    metadata = {"name": "x", "namespace": "y", "uid": "z"}

    assert autoscaler_view({"metadata": metadata, "spec": spec}).target_name == ""
