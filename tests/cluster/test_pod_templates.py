"""Templates of users on the API server: applied under Pod Security ``restricted``, read back."""

import json
from typing import Any

import pytest

from fleet_builders import SITE, a_model, a_sizing
from pod_fields import EVERY_POD_FIELD
from pod_templates import REAL, engine
from tonnage.cluster.calls import KubernetesError
from tonnage.cluster.kube import DEPLOYMENTS, KubeApi
from tonnage.fleet.views import deployment_view
from tonnage.manifests.changes import FieldOwners, list_differences, template_changes
from tonnage.manifests.children import deployment
from tonnage.manifests.names import MANAGER, Manifest, template_in
from tonnage.manifests.pod import deprecation
from tonnage_lab.kubectl import Kubectl

pytestmark = pytest.mark.lab
STANDARD = "pod-security.kubernetes.io"


@pytest.fixture
def restricted(kubectl: Kubectl, namespace: str) -> str:
    """A namespace that refuses pods beyond the standard, and warns of their templates."""
    labels = [f"{STANDARD}/{mode}=restricted" for mode in ("enforce", "warn")]
    kubectl("label", "namespace", namespace, *labels, "--overwrite")
    for version, kind, name, more in (
        ("scheduling.k8s.io/v1", "PriorityClass", "serving", {"value": 1}),
        ("node.k8s.io/v1", "RuntimeClass", "nvidia", {"handler": "nvidia"}),
    ):
        content = {"apiVersion": version, "kind": kind, "metadata": {"name": name}, **more}
        kubectl.apply([content])
    return namespace


def made(namespace: str, **pods: Any) -> Manifest:
    found = deployment(a_model(namespace=namespace, pods=pods), a_sizing(), SITE, drain_s=210)
    del found["metadata"]["ownerReferences"]  # of an object that is not there
    return found


def path_of(wanted: Manifest) -> str:
    return DEPLOYMENTS.path(wanted["metadata"]["namespace"], wanted["metadata"]["name"])


def check_stands(api: KubeApi, wanted: Manifest) -> None:
    """Ask whether what stands is what we wrote: no edit is seen, and nothing would roll."""
    view = deployment_view(api.get(path_of(wanted)) or {})
    live, owned = json.loads(view.template), json.loads(view.template_fields)
    assert list_differences(live, template_in(wanted), FieldOwners(ours=owned)) == ()
    assert template_changes(live, template_in(wanted), owned=owned) == ()
    assert view.template_managers == frozenset()
    assert view.gpus_per_replica == 2
    assert view.uncounted_gpus == ()
    assert view.engine.problem == ""
    assert view.engine.arguments[1] == "--served-model-name"


@pytest.mark.parametrize("template", REAL.values(), ids=list(REAL))
def test_of_real_kinds_are_taken_under_the_standard_and_read_back_without_drift(
    kubectl: Kubectl, administrator: KubeApi, restricted: str, template: Any
):
    wanted = made(restricted, template=template)
    pod = {"apiVersion": "v1", "kind": "Pod", **wanted["spec"]["template"]}
    pod["metadata"] |= {"name": "probe"}

    said = kubectl(
        "create", "--dry-run=server", "--warnings-as-errors", "--validate=strict", "-n", restricted,
        "-f", "-", text=json.dumps(pod),
    )  # fmt: skip
    del pod["metadata"]["name"]
    administrator.apply(path_of(wanted), wanted, manager=MANAGER, force=False)

    assert "created" in said
    check_stands(administrator, wanted)
    first = administrator.get(path_of(wanted)) or {}
    administrator.apply(path_of(wanted), wanted, manager=MANAGER, force=True)
    again = administrator.get(path_of(wanted)) or {}
    assert again["metadata"]["generation"] == first["metadata"]["generation"]


def test_a_field_of_another_that_is_in_a_template_of_ours_is_drift(
    administrator: KubeApi, restricted: str
):
    wanted = made(restricted, template=REAL["logs of Fluent Bit"])
    administrator.apply(path_of(wanted), wanted, manager=MANAGER, force=False)
    body = {"spec": {"template": {"spec": {"schedulerName": "mine", "dnsPolicy": "Default"}}}}
    administrator.merge_patch(path_of(wanted), body, manager="kubectl-edit")

    view = deployment_view(administrator.get(path_of(wanted)) or {})
    owners = tuple((name, fields) for name, fields in json.loads(view.template_owners))
    hands = FieldOwners(ours=json.loads(view.template_fields), others=owners)
    found = list_differences(json.loads(view.template), template_in(wanted), hands)

    assert {each.field for each in found} == {"spec.schedulerName", "spec.dnsPolicy"}
    assert {each.by for each in found} == {("kubectl-edit",)}


@pytest.mark.parametrize(
    ("template", "path"),
    [
        ({"spec": {"affinity": {"podAffinity": {"prefered": [{}]}}}}, ".podAffinity.prefered"),
        (engine(env=[{"name": "A", "valueFrom": {"secretRef": {}}}]), ".secretRef"),
        ({"spec": {"tolerations": [{"keys": "a"}]}}, ".tolerations"),
    ],
)
def test_an_unknown_field_is_refused_by_its_path_and_never_dropped(
    administrator: KubeApi, restricted: str, template: Any, path: str
):
    wanted = made(restricted, template=template)

    with pytest.raises(KubernetesError) as refusal:
        administrator.apply(path_of(wanted), wanted, manager=MANAGER, force=False)

    assert path in str(refusal.value)
    assert refusal.value.is_refusal
    assert administrator.get(path_of(wanted)) is None


def test_writing_the_template_in_place_of_old_fields_rolls_no_pod(
    administrator: KubeApi, restricted: str
):
    old = made(restricted, **EVERY_POD_FIELD)
    [said] = deprecation(a_model(pods=EVERY_POD_FIELD))
    text = said.message.partition("pods.template: ")[2].rpartition(", which")[0]
    going = said.message.partition("; ")[0].partition(": ")[2].replace("pods.", "").split(", ")
    kept = {name: value for name, value in EVERY_POD_FIELD.items() if name not in going}
    new = made(restricted, template=json.loads(text), **kept)

    administrator.apply(path_of(old), old, manager=MANAGER, force=False)
    first = administrator.get(path_of(old)) or {}
    check_stands(administrator, new)
    administrator.apply(path_of(new), new, manager=MANAGER, force=True)
    again = administrator.get(path_of(new)) or {}

    assert again["spec"] == first["spec"]
    assert again["metadata"]["annotations"] != first["metadata"]["annotations"]
