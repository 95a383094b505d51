"""Children on the real API server: one write for what differs, none for what does not."""

import copy
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from fleet_builders import SITE, a_model, a_sizing
from pod_fields import EVERY_POD_FIELD
from pod_monitor_crd import POD_MONITOR_CRD
from tonnage.api.objects import ModelDeployment
from tonnage.cluster.kube import (
    DEPLOYMENTS,
    EVENTS,
    MODEL_DEPLOYMENTS,
    SERVICES,
    KubeApi,
    load_client,
)
from tonnage.control.write.writes import Writes
from tonnage.fleet.children import RESOURCES, Children, NoPathError
from tonnage.fleet.views import deployment_view
from tonnage.manifests.changes import FieldOwners, list_differences, template_changes
from tonnage.manifests.children import Site, deployment
from tonnage.manifests.names import MANAGER, template_in
from tonnage_lab.controlplane import ControlPlane

pytestmark = pytest.mark.lab

PROTECTED = {
    "disruptionBudget": {"maxUnavailable": 1},
    "networkPolicy": {
        "clients": [
            {"podSelector": {"app": "gateway"}, "namespaceSelector": {"team": "edge"}},
            {"podSelector": {"app": "batch"}},
        ],
        "egressPorts": [443],
    },
}
LABELLED = replace(
    SITE, monitor_labels={"release": "prometheus"}, scraper_namespaces=("monitoring",)
)


@pytest.fixture(scope="module")
def api(control_plane: ControlPlane) -> Iterator[KubeApi]:
    control_plane.kubectl.apply([POD_MONITOR_CRD])
    name = POD_MONITOR_CRD["metadata"]["name"]
    control_plane.kubectl("wait", "--for=condition=Established", f"crd/{name}", "--timeout=30s")
    client = load_client(str(control_plane.kubeconfig))
    yield KubeApi(client)
    client.close()


class Family:
    """A ModelDeployment that exists, and what is written beside it."""

    def __init__(self, api: KubeApi, namespace: str) -> None:
        self.api, self.namespace = api, namespace
        body = {
            "apiVersion": "tonnage.dev/v1alpha1",
            "kind": "ModelDeployment",
            "metadata": {"name": "llama", "namespace": namespace},
            "spec": a_model().spec.to_dict(),
        }
        made = api.create(MODEL_DEPLOYMENTS.path(namespace), body)
        self.uid: str = made["metadata"]["uid"]

    def model(self, **pods: Any) -> ModelDeployment:
        found = a_model(pods=pods) if pods else a_model()
        return replace(found, namespace=self.namespace, uid=self.uid)

    def write(self, site: Site = SITE, **pods: Any) -> None:
        writes = Writes(
            namespace=self.namespace,
            name="llama",
            uid=self.uid,
            model=self.model(**pods),
            check_children=True,
            check_leftovers=True,
        )
        children = Children(kube=self.api, site=site)
        children.protect(writes)
        children.publish(writes)

    def get(self, kind: str) -> dict[str, Any] | None:
        return self.api.get(RESOURCES[kind].path(self.namespace, "llama"))

    def the(self, kind: str) -> dict[str, Any]:
        found = self.get(kind)
        assert found is not None, kind
        return found

    def versions(self) -> dict[str, str]:
        found = {kind: self.get(kind) for kind in RESOURCES}
        return {kind: each["metadata"]["resourceVersion"] for kind, each in found.items() if each}

    def patch(self, kind: str, change: dict[str, Any]) -> None:
        path = RESOURCES[kind].path(self.namespace, "llama")
        self.api.merge_patch(path, change, manager="somebody")


@pytest.fixture
def family(api: KubeApi, namespace: str) -> Family:
    return Family(api, namespace)


class Counting:
    """A client that counts what it writes."""

    def __init__(self, api: KubeApi) -> None:
        self.api, self.num_writes = api, 0

    def get(self, path: str) -> Any:
        return self.api.get(path)

    def merge_patch(self, *args: Any, **named: Any) -> Any:
        self.num_writes += 1
        return self.api.merge_patch(*args, **named)

    def create(self, *args: Any, **named: Any) -> Any:
        return self.api.create(*args, **named)  # an Event, which changes nothing

    def apply(self, *args: Any, **named: Any) -> Any:
        self.num_writes += 1
        return self.api.apply(*args, **named)

    def delete(self, *args: Any, **named: Any) -> None:
        self.num_writes += 1
        self.api.delete(*args, **named)


def num_writes(family: Family, act: Callable[[], None]) -> int:
    real, counting = family.api, Counting(family.api)
    family.api = counting  # type: ignore[assignment]
    try:
        act()
    finally:
        family.api = real
    return counting.num_writes


UNKNOWN_HERE = ("priorityClassName", "runtimeClassName")
"""Classes that a cluster has or has not."""


@pytest.mark.parametrize(
    "pods",
    [
        {},
        {name: each for name, each in EVERY_POD_FIELD.items() if name not in UNKNOWN_HERE},
        {"user": {}},
        {"user": {"id": 1_000_680_000, "group": 0}},
    ],
    ids=["plain", "everything", "platform-user", "user"],
)
def test_a_pod_is_taken_where_the_restricted_standard_is_enforced(
    family: Family, control_plane: ControlPlane, pods
):
    kubectl = control_plane.kubectl
    enforced = "pod-security.kubernetes.io/enforce=restricted"
    kubectl("label", "namespace", family.namespace, enforced, "--overwrite")
    kubectl("create", "serviceaccount", "model-reader", "-n", family.namespace)
    model = family.model(**pods)
    template = deployment(model, a_sizing(), SITE)["spec"]["template"]
    pod = {"apiVersion": "v1", "kind": "Pod", **template}
    pod["metadata"] |= {"name": "llama", "namespace": family.namespace}

    said = kubectl("create", "--dry-run=server", "-f", "-", text=json.dumps(pod))

    assert "created (server dry run)" in said


@pytest.mark.parametrize("site", [SITE, LABELLED], ids=["plain", "labelled"])
@pytest.mark.parametrize("pods", [{}, PROTECTED], ids=["plain", "protected"])
def test_what_was_written_once_is_not_written_again(family: Family, site: Site, pods):
    made = num_writes(family, lambda: family.write(site, **pods))

    assert made == 2 + len(pods)
    assert num_writes(family, lambda: family.write(site, **pods)) == 0


def test_a_label_of_pod_monitors_comes_changes_and_goes(family: Family):
    seen = []
    for labels in ({}, {"release": "a"}, {"release": "b"}, {}):
        site = replace(SITE, monitor_labels=labels)
        count = num_writes(family, lambda site=site: family.write(site))
        seen.append((family.the("PodMonitor")["metadata"]["labels"].get("release"), count))

    assert seen == [(None, 2), ("a", 1), ("b", 1), (None, 1)]


def test_another_scrape_interval_reaches_the_pod_monitor(family: Family):
    family.write()

    assert num_writes(family, lambda: family.write(replace(SITE, scrape_interval_s=30))) == 1
    [endpoint] = family.the("PodMonitor")["spec"]["podMetricsEndpoints"]
    assert endpoint["interval"] == "30s"


def test_a_budget_changes_its_kind_and_goes(family: Family):
    family.write(disruptionBudget={"maxUnavailable": "50%"})
    family.write(disruptionBudget={"minAvailable": 1})
    changed = family.the("PodDisruptionBudget")["spec"]
    family.write()

    assert changed["minAvailable"] == 1
    assert "maxUnavailable" not in changed
    assert family.get("PodDisruptionBudget") is None


def test_a_policy_lets_out_again_what_it_does_not_hold_any_more(family: Family):
    family.write(LABELLED, **PROTECTED)
    family.write(SITE, networkPolicy={})
    closed = family.the("NetworkPolicy")["spec"]
    family.write(SITE)

    assert closed["policyTypes"] == ["Ingress"]
    assert "ingress" not in closed
    assert "egress" not in closed
    assert family.get("NetworkPolicy") is None


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        ("Service", {"spec": {"selector": {"app": "theirs"}}}),
        ("Service", {"spec": {"ports": [{"name": "http", "port": 8000, "targetPort": 1}]}}),
        ("Service", {"metadata": {"labels": {"tonnage.dev/managed": None}}}),
        ("PodMonitor", {"spec": {"podMetricsEndpoints": [{"port": "other"}]}}),
        ("PodMonitor", {"metadata": {"labels": {"release": "theirs"}}}),
        ("PodDisruptionBudget", {"spec": {"maxUnavailable": 5}}),
        ("NetworkPolicy", {"spec": {"ingress": [{}]}}),
        ("NetworkPolicy", {"spec": {"ingress": None}}),
        ("NetworkPolicy", {"spec": {"podSelector": {"matchLabels": {"none": "x"}}}}),
    ],
)
def test_what_somebody_edited_is_taken_back_with_one_write(family: Family, kind, change):
    def wanted() -> None:
        family.write(LABELLED, **PROTECTED)

    wanted()
    before = family.the(kind)
    family.patch(kind, change)
    taken_back = num_writes(family, wanted)
    after = family.the(kind)

    assert taken_back == 1
    assert significant(after) == significant(before)
    assert num_writes(family, wanted) == 0


def test_what_was_edited_and_by_whom_is_told_in_an_event(family: Family):
    family.write()
    family.patch("Service", {"spec": {"selector": {"app": "theirs"}}})
    family.patch("Service", {"spec": {"type": "ExternalName", "externalName": "a.example"}})
    family.write()
    family.write()

    found = [
        each["note"]
        for each in family.api.list(EVENTS.path(family.namespace))
        if each["reason"] == "ChildRestored"
    ]
    assert found == [
        "Service llama: somebody edited spec.type, spec.selector, spec.externalName: reapplied"
    ]


def significant(body: dict[str, Any]) -> dict[str, Any]:
    return {"labels": body["metadata"]["labels"], "spec": body["spec"]}


def test_what_somebody_added_beside_ours_stays_and_costs_no_writes(family: Family):
    family.write(LABELLED, **PROTECTED)
    family.patch("Service", {"metadata": {"annotations": {"mesh": "on"}}})
    family.patch("Service", {"spec": {"sessionAffinity": "ClientIP"}})
    family.patch("PodMonitor", {"metadata": {"labels": {"team": "sre"}}})

    assert num_writes(family, lambda: family.write(LABELLED, **PROTECTED)) == 0
    assert family.the("Service")["metadata"]["annotations"] == {"mesh": "on"}
    assert family.the("PodMonitor")["metadata"]["labels"]["team"] == "sre"


OTHER_PORT = {"name": "metrics", "port": 9001, "protocol": "TCP", "targetPort": 9001}


@pytest.mark.parametrize(
    ("kind", "spec"),
    [
        ("Service", {"ports": [{"name": "http", "port": 9000}]}),
        ("Service", {"ports": [{"name": "http", "port": 8000}, OTHER_PORT]}),
        ("Service", {"ports": [{"name": "http", "port": 9000}, OTHER_PORT]}),
        ("Service", {"type": "ExternalName", "externalName": "elsewhere.example"}),
        ("Service", {"externalIPs": ["192.0.2.1"]}),
        ("Service", {"publishNotReadyAddresses": True}),
        ("Service", {"type": "NodePort", "ports": [{**OTHER_PORT, "nodePort": 30123}]}),
        ("PodDisruptionBudget", {"maxUnavailable": None, "minAvailable": 2}),
    ],
    ids=lambda each: each if isinstance(each, str) else "-".join(each),
)
def test_what_may_not_stand_beside_ours_goes_with_two_writes(family: Family, kind, spec):
    def wanted() -> None:
        family.write(LABELLED, **PROTECTED)

    wanted()
    before = family.the(kind)
    family.patch(kind, {"spec": spec})
    taken_back = num_writes(family, wanted)

    assert taken_back == 2
    assert without_addresses(family.the(kind)) == without_addresses(before)
    assert num_writes(family, wanted) == 0


def without_addresses(body: dict[str, Any]) -> dict[str, Any]:
    """What of an object is significant, without the addresses that a Service is given anew."""
    found = significant(body)
    spec = {name: each for name, each in found["spec"].items() if "clusterIP" not in name}
    return found | {"spec": spec}


@pytest.mark.parametrize("kind", ["LoadBalancer", "NodePort"])
def test_a_service_that_was_let_out_of_the_cluster_comes_back(family: Family, kind):
    family.write()
    before = family.the("Service")
    family.patch("Service", {"spec": {"type": kind}})

    assert num_writes(family, family.write) == 1
    assert significant(family.the("Service")) == significant(before)
    assert num_writes(family, family.write) == 0


def test_a_service_account_that_is_asked_for_no_more_goes_whole(family: Family):
    path = DEPLOYMENTS.path(family.namespace, "llama")

    def account(**pods: Any) -> dict[str, str]:
        body = deployment(family.model(**pods), a_sizing(), SITE)
        made = family.api.apply(path, body, manager=MANAGER, force=True)
        spec = made["spec"]["template"]["spec"]
        return {key: spec[key] for key in ("serviceAccount", "serviceAccountName") if key in spec}

    both = {"serviceAccount": "reader", "serviceAccountName": "reader"}
    assert account(serviceAccountName="reader") == both
    assert account() == {}


def test_a_service_of_somebody_else_is_left_alone(family: Family):
    theirs = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "llama"},
        "spec": {"ports": [{"port": 80}]},
    }
    made = family.api.create(SERVICES.path(family.namespace), copy.deepcopy(theirs))

    with pytest.raises(NoPathError, match="llama exists, not made by Tonnage"):
        family.write()

    assert family.versions()["Service"] == made["metadata"]["resourceVersion"]


ROLE = {
    "hardware": {"gpu": "H200", "parallelism": {"tensor": 2}},
    "slo": {"timeToFirstToken": {"p95": "2s"}},
}
RENDERED: dict[str, dict[str, Any]] = {
    "every pod field": {"pods": EVERY_POD_FIELD},
    "prefill": ROLE | {"engine": {"version": "0.33", "role": "prefill"}},
    "a cache in host memory": {
        "model": {"id": "meta-llama/Llama-3.1-8B-Instruct", "kvOffload": {"gib": 8}}
    },
    "adapters": {
        "model": {"id": "meta-llama/Llama-3.1-8B-Instruct", "adapters": {"number": 2, "rank": 16}}
    },
    "a config": {
        "model": {
            "id": "meta-llama/Llama-3.3-70B-Instruct",
            "config": {"configMapKeyRef": {"name": "my-model", "key": "config.json"}},
        }
    },
}


@pytest.mark.parametrize("spec", RENDERED.values(), ids=RENDERED)
def test_a_template_is_no_roll_and_no_drift_when_it_is_read_back(
    api: KubeApi, namespace: str, spec: dict[str, Any]
):
    model = a_model(namespace=namespace, **spec)
    wanted = deployment(model, a_sizing(model), SITE)
    wanted["metadata"].pop("ownerReferences")  # of an object that is not there
    made = api.apply(DEPLOYMENTS.path(namespace, "llama"), wanted, manager=MANAGER, force=False)
    view = deployment_view(made)
    live, owned = json.loads(view.template), json.loads(view.template_fields)

    assert template_changes(live, template_in(wanted), owned=owned) == ()
    assert list_differences(live, template_in(wanted), FieldOwners(ours=owned)) == ()
