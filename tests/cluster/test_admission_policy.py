"""The chart on the real API server: installed by Helm, with its rights and its policy."""

import json
import re
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from bad_input import GOOD, manifest
from fleet_builders import SITE, a_model, a_sizing
from helm import CHART, Helm, with_prometheus
from pod_fields import EVERY_POD_FIELD
from pod_templates import HOSTILE, REAL, Hostile
from tonnage.api.pod_template import merged
from tonnage.api.pods import DEPRECATED, Pods
from tonnage.manifests.children import deployment
from tonnage_lab import assets
from tonnage_lab.kubectl import Kubectl
from tonnage_lab.processes import LabError, wait_until

pytestmark = pytest.mark.lab


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """The chart, installed."""

    namespace: str
    served: str
    """A namespace that the operator serves."""

    @property
    def account(self) -> str:
        return f"system:serviceaccount:{self.namespace}:tonnage"

    @property
    def edit_role(self) -> str:
        return f"tonnage.{self.namespace}.edit"


@pytest.fixture(scope="module")
def helm(control_plane, tmp_path_factory: pytest.TempPathFactory) -> Helm:
    return Helm(
        program=assets.ensure(["helm"])["helm"],
        home=tmp_path_factory.mktemp("helm"),
        kubeconfig=control_plane.kubeconfig,
    )


def install(helm: Helm, namespace: str, **values: Any) -> str:
    """Install without the CRD, which the control plane of the tests already has."""
    values = {"crds": {"install": False}, **values}
    return helm("install", "tonnage", CHART, "-n", namespace, values=with_prometheus(values))


@pytest.fixture(scope="module")
def namespaces(control_plane) -> Iterator[Any]:
    """Make namespaces that live as long as this module's tests."""
    made: list[str] = []

    def make(**labels: str) -> str:
        name = f"test-{uuid.uuid4().hex[:8]}"
        metadata = {"name": name, "labels": labels}
        manifest = {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}
        control_plane.kubectl.apply([manifest])
        made.append(name)
        return name

    yield make
    control_plane.kubectl("delete", "namespace", *made, "--wait=false")


@pytest.fixture(scope="module")
def release(control_plane, helm: Helm, namespaces) -> Iterator[Release]:
    """The chart that serves two namespaces, so that its policy binds no other test."""
    release = Release(namespace=namespaces(), served=namespaces())
    install(
        helm,
        release.namespace,
        rbac={"scope": "namespaced"},
        settings={"namespaces": [release.served]},
    )
    wait_until(
        lambda: is_denied(control_plane.kubectl, release.served),
        what="the policy is in force",
        timeout_s=60,
        needs={},
    )
    yield release
    helm("uninstall", "tonnage", "-n", release.namespace)


def is_denied(kubectl: Kubectl, namespace: str) -> bool:
    """Say whether a user who may write ModelDeployments and nothing else is turned away."""
    allow(kubectl, namespace, "probe", {"modeldeployments.tonnage.dev": "create"})
    try:
        create(kubectl, namespace, manifest(("metadata.name", "probe")), user="probe", dry_run=True)
    except LabError as error:
        return "denied request" in str(error)
    return False


def create(
    kubectl: Kubectl, namespace: str, content: Any, *, user: str, dry_run: bool = False
) -> str:
    options = ["--dry-run=server"] if dry_run else []
    return kubectl(
        "create", "-n", namespace, "-f", "-", "--as", user, *options, text=json.dumps(content)
    )


def allow(kubectl: Kubectl, namespace: str, user: str, rights: dict[str, str]) -> None:
    """Give a user verbs on resources in a namespace: one role and binding of that name."""
    rules = [
        {"apiGroups": [resource.partition(".")[2]], "resources": [resource.partition(".")[0]],
         "verbs": verbs.split(",")}
        for resource, verbs in rights.items()
    ]  # fmt: skip
    metadata = {"name": user, "namespace": namespace}
    api = "rbac.authorization.k8s.io"
    kubectl.apply(
        [
            {"apiVersion": f"{api}/v1", "kind": "Role", "metadata": metadata, "rules": rules},
            {
                "apiVersion": f"{api}/v1",
                "kind": "RoleBinding",
                "metadata": metadata,
                "roleRef": {"apiGroup": api, "kind": "Role", "name": user},
                "subjects": [{"kind": "User", "name": user, "apiGroup": api}],
            },
        ]
    )


def bind_edit_role(kubectl: Kubectl, release: Release, user: str) -> None:
    kubectl(
        "create", "rolebinding", f"{user}-edit", "-n", release.served,
        f"--clusterrole={release.edit_role}", f"--user={user}",
    )  # fmt: skip


def may(kubectl: Kubectl, who: str, verb: str, resource: str, *more: str) -> bool:
    try:
        return kubectl("auth", "can-i", verb, resource, "--as", who, *more).strip() == "yes"
    except LabError:
        return False


def test_the_operator_is_deployed(kubectl: Kubectl, release: Release):
    deployment = kubectl.get("deployment", "tonnage", "-n", release.namespace)

    assert deployment["spec"]["replicas"] == 1
    assert deployment["spec"]["template"]["spec"]["serviceAccountName"] == "tonnage"


def test_its_pod_passes_the_restricted_profile(kubectl: Kubectl, release: Release, namespaces):
    restricted = namespaces(**{"pod-security.kubernetes.io/enforce": "restricted"})
    template = kubectl.get("deployment", "tonnage", "-n", release.namespace)["spec"]["template"]
    account = {"apiVersion": "v1", "kind": "ServiceAccount",
               "metadata": {"name": "tonnage", "namespace": restricted}}  # fmt: skip
    kubectl.apply([account])
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": template["spec"]}

    said = kubectl("create", "--dry-run=server", "-n", restricted, "-f", "-", text=json.dumps(pod))

    assert "created" in said


def test_row_14_who_may_not_create_deployments_may_not_write_a_spec(
    kubectl: Kubectl, release: Release
):
    bind_edit_role(kubectl, release, "alice")

    with pytest.raises(LabError) as denial:
        create(kubectl, release.served, GOOD, user="alice")

    assert (
        f"user alice needs the right to create deployments.apps in namespace {release.served}"
    ) in str(denial.value)


TO_SERVE = {"deployments.apps": "create", "services": "create"}


def test_who_may_create_what_an_engine_needs_may_write_a_spec(kubectl: Kubectl, release: Release):
    bind_edit_role(kubectl, release, "bob")
    allow(kubectl, release.served, "bob", TO_SERVE)

    assert "created" in create(kubectl, release.served, GOOD, user="bob", dry_run=True)


TARGET = manifest(("spec.engine", None), ("spec.scaleTarget", {"name": "theirs"}))


def test_who_may_not_create_services_has_none_made_by_an_engine(kubectl: Kubectl, release: Release):
    bind_edit_role(kubectl, release, "frank")
    allow(kubectl, release.served, "frank", {"deployments.apps": "create"})

    assert "created" in create(kubectl, release.served, TARGET, user="frank", dry_run=True)
    with pytest.raises(LabError) as denial:
        create(kubectl, release.served, GOOD, user="frank", dry_run=True)

    assert (
        f"user frank needs the right to create services in namespace {release.served}: "
        "spec.engine makes one"
    ) in str(denial.value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """A field of spec.pods that makes an object of a kind."""

    name: str
    asked: Any
    other: Any
    kind: str


FIELDS = [
    Field(
        name="disruptionBudget",
        asked={"maxUnavailable": 1},
        other={"maxUnavailable": 2},
        kind="poddisruptionbudgets.policy",
    ),
    Field(
        name="networkPolicy",
        asked={"egressPorts": [443]},
        other={"egressPorts": [80]},
        kind="networkpolicies.networking.k8s.io",
    ),
]
of_a_field = pytest.mark.parametrize("field", FIELDS, ids=lambda field: field.name)


@of_a_field
def test_who_may_not_create_a_kind_has_none_made_by_a_field(
    kubectl: Kubectl, release: Release, field: Field
):
    without, having = f"without-{field.name.lower()}", f"with-{field.name.lower()}"
    for user in (without, having):
        bind_edit_role(kubectl, release, user)
    allow(kubectl, release.served, without, TO_SERVE)
    allow(kubectl, release.served, having, {**TO_SERVE, field.kind: "create"})
    content = manifest((f"spec.pods.{field.name}", field.asked))

    assert "created" in create(kubectl, release.served, content, user=having, dry_run=True)
    with pytest.raises(LabError) as denial:
        create(kubectl, release.served, content, user=without, dry_run=True)

    assert (
        f"user {without} needs the right to create {field.kind} in namespace {release.served}: "
        f"spec.pods.{field.name} creates one"
    ) in str(denial.value)


@of_a_field
def test_a_field_takes_the_right_to_do_what_a_change_of_it_does(
    kubectl: Kubectl, release: Release, field: Field
):
    user, name = f"changes-{field.name.lower()}", f"changed-{field.name.lower()}"
    bind_edit_role(kubectl, release, user)
    allow(kubectl, release.served, user, TO_SERVE)
    plain = manifest(("metadata.name", name))
    kubectl("create", "-n", release.served, "-f", "-", text=json.dumps(plain))

    def change(spec: Any, *more: str) -> str:
        return kubectl(
            "patch", f"mdep/{name}", "-n", release.served, "--type=merge",
            "-p", json.dumps({"spec": spec}), *more,
        )  # fmt: skip

    mine = ("--as", user, "--dry-run=server")
    with pytest.raises(LabError, match=f"needs the right to create {field.kind}"):
        change({"pods": {field.name: field.asked}}, *mine)
    change({"pods": {field.name: field.asked}})
    with pytest.raises(LabError, match=f"needs the right to update {field.kind}"):
        change({"pods": {field.name: field.other}}, *mine)
    with pytest.raises(LabError, match=f"needs the right to delete {field.kind}"):
        change({"pods": {field.name: None}}, *mine)

    change({"contextLength": 8000}, *mine)


@pytest.fixture(scope="module")
def writer(control_plane, release: Release) -> str:
    """A user who may write specs, once the policy of pod templates is in force."""
    kubectl, user = control_plane.kubectl, "writes-templates"
    bind_edit_role(kubectl, release, user)
    allow(kubectl, release.served, user, TO_SERVE)

    def is_refused() -> bool:
        try:
            create(kubectl, release.served, with_template({"status": {}}), user=user, dry_run=True)
        except LabError as error:
            return "spec.pods.template" in str(error)
        return False

    wait_until(is_refused, what="the policy of templates is in force", timeout_s=60, needs={})
    return user


def with_template(template: Any) -> Any:
    return manifest(("metadata.name", "templated"), ("spec.pods.template", template))


@pytest.mark.parametrize("template", REAL.values(), ids=list(REAL))
def test_the_policy_takes_templates_of_real_kinds(
    kubectl: Kubectl, release: Release, writer: str, template: Any
):
    said = create(kubectl, release.served, with_template(template), user=writer, dry_run=True)

    assert "created" in said


@pytest.mark.parametrize(
    "case", [each for each in HOSTILE if each.is_in_policy], ids=lambda case: case.id
)
def test_the_policy_refuses_hostile_templates_by_field(
    kubectl: Kubectl, release: Release, writer: str, case: Hostile
):
    with pytest.raises(LabError) as denial:
        create(kubectl, release.served, with_template(case.template), user=writer, dry_run=True)

    said = str(denial.value)
    assert f"tonnage.{release.namespace}.template" in said
    if case.is_typed:
        *above, last = re.sub(r"\[[^]]*\]", "", f"spec.pods.template.{case.field}").split(".")
        named = re.sub(r"\[[^]]*\]", "", said)
        assert f"{'.'.join(above)}.{last}" in named or f"{'.'.join(above)} has a " in named


CHECKS = {
    "allowPrivilegeEscalation != false", "forbidden AppArmor profile", "forbidden sysctls",
    "host namespaces", "hostPort", "hostProcess", "privileged", "probe or lifecycle host",
    "procMount", "restricted volume types", "runAsNonRoot != true", "runAsUser=0",
    "seLinuxOptions", "seccompProfile", "unrestricted capabilities",
}  # fmt: skip
"""Of Pod Security ``restricted``, by the first words of each in a refusal."""


def test_every_check_of_pod_security_restricted_has_templates_that_the_table_refuses(
    kubectl: Kubectl, namespaces
):
    """The standard is asked by the API server, of the pods that would be, were there no table."""
    home = namespaces(**{"pod-security.kubernetes.io/enforce": "restricted"})
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "none"}}
    kubectl("create", "-n", home, "-f", "-", text=json.dumps(account))

    taken = {each: said_of(kubectl, home, a_pod(template)) for each, template in REAL.items()}
    refused = [
        said_of(kubectl, home, an_unchecked_pod(each.template))
        for each in HOSTILE
        if each.is_typed and each.is_in_policy
    ]

    assert taken == dict.fromkeys(REAL, "")
    assert {check for check in CHECKS if any(check in said for said in refused)} == CHECKS


def a_pod(template: Any) -> Any:
    return deployment(a_model(pods={"template": template}), a_sizing(), SITE)["spec"]["template"]


def an_unchecked_pod(template: Any) -> Any:
    """Return the pod with a template that no rule was asked about, and nothing after it either."""
    made = merged(a_pod({}), template)
    confined = made["spec"]["containers"][0]["securityContext"]
    for each in [*made["spec"]["containers"][1:], *made["spec"].get("initContainers", [])]:
        each["securityContext"] = confined | each.get("securityContext", {})
    return made


def said_of(kubectl: Kubectl, namespace: str, template: Any) -> str:
    """Return why the API server refuses a pod of a template; empty: it does not."""
    spec = {**template["spec"], "serviceAccountName": "none"}
    for name in ("serviceAccount", "priorityClassName", "runtimeClassName"):
        spec.pop(name, None)  # that the cluster has none is another refusal
    metadata = {**template["metadata"], "name": "p"}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
    try:
        kubectl("create", "--dry-run=server", "--validate=ignore", "-n", namespace, "-f", "-",
                text=json.dumps(pod))  # fmt: skip
    except LabError as error:
        return str(error)
    return ""


def test_who_may_not_create_deployments_may_write_no_template(kubectl: Kubectl, release: Release):
    bind_edit_role(kubectl, release, "heidi")
    content = with_template(REAL["a bundle of CAs"])

    with pytest.raises(LabError, match="user heidi needs the right to create"):
        create(kubectl, release.served, content, user="heidi", dry_run=True)


def test_where_the_settings_close_templates_none_is_admitted(
    kubectl: Kubectl, helm: Helm, namespaces
):
    home, served = namespaces(), namespaces()
    install(helm, home, rbac={"scope": "namespaced"},
            settings={"namespaces": [served], "podTemplates": False})  # fmt: skip

    def refusal() -> str:
        try:
            create(
                kubectl, served, with_template(REAL["a bundle of CAs"]), user="admin", dry_run=True
            )
        except LabError as error:
            return str(error)
        return ""

    allow(kubectl, served, "admin", {"modeldeployments.tonnage.dev": "create", **TO_SERVE})
    wait_until(
        lambda: "the operator's settings.podTemplates is false" in refusal(),
        what="the policy is in force", timeout_s=60, needs={},
    )  # fmt: skip
    assert "created" in create(kubectl, served, GOOD, user="admin", dry_run=True)
    helm("uninstall", "tonnage", "-n", home)


def test_a_template_of_before_stays_when_something_else_is_changed(
    kubectl: Kubectl, release: Release, writer: str
):
    """As what was written while the policies were not there, or were those of another version."""
    name = "kept-template"
    content = manifest(("metadata.name", name), ("spec.pods.template", {"spec": {"hostPID": True}}))
    create_without_policy(kubectl, release, "template", content)
    patch = [
        "patch",
        f"mdep/{name}",
        "-n",
        release.served,
        "--type=merge",
        "--dry-run=server",
        "-p",
    ]

    def is_refused() -> bool:
        more = {"spec": {"pods": {"template": {"spec": {"hostIPC": True}}}}}
        try:
            kubectl(*patch, json.dumps(more))
        except LabError as error:
            return "spec.pods.template.spec" in str(error)
        return False

    wait_until(is_refused, what="the policy is back", timeout_s=30, needs={})
    kubectl(*patch, json.dumps({"spec": {"contextLength": 8000}}))


def test_row_15_labels_are_free_and_the_spec_is_not(kubectl: Kubectl, release: Release):
    bind_edit_role(kubectl, release, "carol")
    kubectl(
        "create", "-n", release.served, "-f", "-",
        text=json.dumps(manifest(("metadata.name", "labels"))),
    )  # fmt: skip
    change = ["patch", "mdep/labels", "-n", release.served, "--as", "carol", "--type=merge", "-p"]

    kubectl("label", "mdep/labels", "-n", release.served, "--as", "carol", "team=chat")

    with pytest.raises(LabError, match="user carol needs the right to create deployments"):
        kubectl(*change, '{"spec": {"contextLength": 16384}}')
    with pytest.raises(LabError, match='carol" cannot get resource "modeldeployments/status"'):
        kubectl(*change, '{"status": {"observedGeneration": 9}}', "--subresource=status")
    kubectl("delete", "mdep/labels", "-n", release.served, "--as", "carol")


def test_who_may_not_create_deployments_may_not_approve_a_plan(kubectl: Kubectl, release: Release):
    bind_edit_role(kubectl, release, "erin")
    kubectl(
        "create", "-n", release.served, "-f", "-",
        text=json.dumps(manifest(("metadata.name", "plans"))),
    )  # fmt: skip
    approve = ["annotate", "mdep/plans", "-n", release.served, "tonnage.dev/approve=0123"]

    kubectl("annotate", "mdep/plans", "-n", release.served, "--as", "erin", "note=free")
    with pytest.raises(LabError, match="user erin needs the right to create deployments"):
        kubectl(*approve, "--as", "erin")
    kubectl(*approve)


def owners(number, **fields):
    each = {"apiVersion": "v1", "kind": "ConfigMap", "name": "a", "uid": "u"}
    return [each | {"name": f"a{number}"} | fields for number in range(number)]


def managers(number):
    """Entries of managedFields, of which the API server takes none when an object is created."""
    entry = {"operation": "Apply", "apiVersion": "tonnage.dev/v1alpha1", "fieldsType": "FieldsV1"}
    fields = {"time": "2026-01-01T00:00:00Z", "fieldsV1": {"f:spec": {"f:contextLength": {}}}}
    return [entry | fields | {"manager": f"m{each}"} for each in range(number)]


@pytest.mark.parametrize(
    ("metadata", "complaint"),
    [
        ({"labels": {f"l{each}": "" for each in range(64)}}, None),
        ({"labels": {f"l{each}": "" for each in range(65)}}, "metadata.labels has 65 entries"),
        ({"labels": {f"l{each}": "x" * 60 for each in range(20_000)}}, "has 20000 entries"),
        ({"annotations": {"a": "x" * 65_535}}, None),
        ({"annotations": {"a": "x" * 65_536}}, "may have 65536 characters together"),
        ({"annotations": {f"a{each}": "" for each in range(257)}}, "annotations has 257 entries"),
        ({"finalizers": [f"test/{each}" for each in range(32)]}, None),
        ({"finalizers": [f"test/{each}" for each in range(33)]}, "may have 32"),
        ({"finalizers": [f"test/{each}" for each in range(20_000)]}, "has 20000 entries"),
        ({"ownerReferences": owners(16)}, None),
        ({"ownerReferences": owners(17)}, "ownerReferences has 17 entries"),
        ({"ownerReferences": owners(1, uid="x" * 8192)}, "may have 8192 characters together"),
    ],
)
def test_metadata_is_bounded(kubectl: Kubectl, release: Release, metadata, complaint: str | None):
    content = manifest(("metadata.name", "large"))
    content["metadata"] |= metadata
    options = ["create", "--dry-run=server", "-n", release.served, "-f", "-"]

    if complaint is None:
        assert "created" in kubectl(*options, text=json.dumps(content))
        return
    with pytest.raises(LabError, match=complaint):
        kubectl(*options, text=json.dumps(content))


def test_what_is_too_large_can_become_smaller_and_no_larger(kubectl: Kubectl, release: Release):
    """As what was written before the policy was there."""
    name = f"large-{uuid.uuid4().hex[:8]}"
    finalizers = [f"test/{each}" for each in range(40)]
    content = manifest(("metadata.name", name))
    content["metadata"]["finalizers"] = finalizers
    create_without_policy(kubectl, release, "size", content)
    patch = ["patch", f"mdep/{name}", "-n", release.served, "--type=merge", "-p"]

    def is_refused():
        try:
            kubectl(*patch, json.dumps({"metadata": {"finalizers": [*finalizers, "test/more"]}}))
        except LabError as error:
            return "has 41 entries" in str(error)
        kubectl(*patch, json.dumps({"metadata": {"finalizers": finalizers}}))
        return False

    wait_until(is_refused, what="the policy is back", timeout_s=30, needs={})
    kubectl(*patch, json.dumps({"metadata": {"managedFields": managers(64)}}))
    with pytest.raises(LabError, match="managedFields has 65 entries"):
        kubectl(*patch, json.dumps({"metadata": {"managedFields": managers(65)}}))
    kubectl(*patch, json.dumps({"metadata": {"finalizers": finalizers[:35]}}))
    kubectl(*patch, json.dumps({"metadata": {"finalizers": None}}))


def create_without_policy(kubectl, release, name, content):
    """Create an object while the chart's policy of this name is not bound, and bind it again."""
    binding = f"validatingadmissionpolicybinding/tonnage.{release.namespace}.{name}"
    kept = kubectl("get", binding, "-o", "json")
    kubectl("delete", binding)
    try:
        made = ["create", "-n", release.served, "-f", "-"]
        wait_until(
            lambda: create_unless_refused(kubectl, made, content),
            what="the policy is gone", timeout_s=30, needs={},
        )  # fmt: skip
    finally:
        kubectl("create", "-f", "-", text=without_identity(kept))


def create_unless_refused(kubectl, options, content):
    try:
        return "created" in kubectl(*options, text=json.dumps(content))
    except LabError:
        return False


def without_identity(text):
    found = json.loads(text)
    found["metadata"] = {key: found["metadata"][key] for key in ("name", "labels")}
    return json.dumps(found)


@pytest.mark.parametrize(
    ("spec", "fields"),
    [
        ({"contextLength": 8000}, " spec.contextLength:"),
        ({"pods": {"maxSurge": 0}, "hardware": {"gpu": "H100"}}, " spec.hardware spec.pods:"),
        ({"pods": {"template": {"spec": {"nodeSelector": {"a": "b"}}}}}, " spec.pods:"),
        ({"scaling": {"maxReplicas": 7}}, None),
        ({"scaling": {"mode": "Approve"}, "contextLength": 8000}, None),
    ],
)
def test_a_change_that_may_replace_pods_is_warned_of(
    kubectl: Kubectl, release: Release, spec, fields
):
    name = f"warned-{uuid.uuid4().hex[:8]}"
    kubectl(
        "create", "-n", release.served, "-f", "-",
        text=json.dumps(manifest(("metadata.name", name))),
    )  # fmt: skip
    change = [
        "patch", f"mdep/{name}", "-n", release.served, "--type=merge", "--dry-run=server",
        "--warnings-as-errors", "-p", json.dumps({"spec": spec}),
    ]  # fmt: skip

    if fields is None:
        kubectl(*change)
        return
    with pytest.raises(LabError, match=f"this may replace every pod, for{fields}"):
        kubectl(*change)


def test_fields_that_go_are_warned_of(kubectl: Kubectl, release: Release):
    old = manifest(("metadata.name", "old"), ("spec.pods", EVERY_POD_FIELD))
    new = with_template({"spec": {"nodeSelector": {"a": "b"}}})
    options = [
        "create",
        "--dry-run=server",
        "-n",
        release.served,
        "-f",
        "-",
        "--warnings-as-errors",
    ]

    with pytest.raises(LabError, match=r"deprecated, and gone in 0\.3: ") as warning:
        kubectl(*options, text=json.dumps(old))
    kubectl(*options, text=json.dumps(new))

    named = str(warning.value).partition("0.3: ")[2].partition(";")[0].split(", ")
    fields = {Pods.model_fields[name].alias for name in DEPRECATED}
    assert set(named) == {f"spec.pods.{name}" for name in fields}


def test_the_policy_stops_at_the_namespaces_served(kubectl: Kubectl, release: Release, namespaces):
    other = namespaces()
    allow(kubectl, other, "dave", {"modeldeployments.tonnage.dev": "create"})

    assert "created" in create(kubectl, other, GOOD, user="dave", dry_run=True)


GRANTED = [
    ("create", "deployments.apps"), ("patch", "deployments.apps"), ("watch", "deployments.apps"),
    ("patch", "deployments.apps/scale"), ("list", "pods"), ("get", "configmaps"),
    ("patch", "modeldeployments.tonnage.dev/status"), ("create", "events.events.k8s.io"),
    ("create", "services"), ("watch", "horizontalpodautoscalers.autoscaling"),
    ("create", "modeldeployments.tonnage.dev"), ("patch", "modeldeployments.tonnage.dev"),
]  # fmt: skip
NOT_GRANTED = [
    ("get", "secrets"), ("list", "secrets"), ("update", "modeldeployments.tonnage.dev"),
    ("delete", "modeldeployments.tonnage.dev"), ("delete", "deployments.apps"),
    ("update", "deployments.apps"), ("create", "pods"), ("delete", "pods"),
    ("create", "pods/exec"), ("create", "configmaps"), ("patch", "configmaps"),
    ("list", "configmaps"), ("create", "serviceaccounts/token"), ("delete", "services"),
    ("create", "roles.rbac.authorization.k8s.io"), ("patch", "leases.coordination.k8s.io"),
]  # fmt: skip


@pytest.mark.parametrize(("verb", "resource"), GRANTED)
def test_the_operator_may_do_its_work_where_it_serves(
    kubectl: Kubectl, release: Release, verb: str, resource: str
):
    name, _, subresource = resource.partition("/")
    more = [f"--subresource={subresource}"] if subresource else []

    assert may(kubectl, release.account, verb, name, "-n", release.served, *more)


@pytest.mark.parametrize(("verb", "resource"), NOT_GRANTED)
def test_the_operator_may_do_nothing_else_there(
    kubectl: Kubectl, release: Release, verb: str, resource: str
):
    name, _, subresource = resource.partition("/")
    more = [f"--subresource={subresource}"] if subresource else []

    assert not may(kubectl, release.account, verb, name, "-n", release.served, *more)


def test_the_operator_neither_sees_nodes_nor_pods_elsewhere(kubectl: Kubectl, release: Release):
    assert not may(kubectl, release.account, "list", "nodes")
    assert not may(kubectl, release.account, "list", "pods", "-n", "kube-system")


def test_its_calibration_is_made_by_server_side_apply_and_no_other_config_map(
    kubectl: Kubectl, release: Release
):
    def apply(name: str) -> None:
        content = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}}
        kubectl(
            "apply", "--server-side", "-n", release.namespace, "-f", "-", "--as", release.account,
            text=json.dumps(content),
        )  # fmt: skip

    apply("tonnage-calibration")
    apply("tonnage-calibration")
    apply("tonnage-calibration-corrupt-0")

    for name in ("tonnage-calibration-objects-0", "other"):
        with pytest.raises(LabError, match="forbidden"):
            apply(name)


def test_its_lease_is_created_and_replaced(kubectl: Kubectl, release: Release):
    as_operator = ["-n", release.namespace, "-f", "-", "--as", release.account]
    lease = {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": "tonnage-operator"},
    }

    kubectl("create", *as_operator, text=json.dumps(lease))
    kubectl("replace", *as_operator, text=json.dumps(lease | {"spec": {"holderIdentity": "me"}}))

    held = kubectl.get("lease", "tonnage-operator", "-n", release.namespace)
    assert held["spec"]["holderIdentity"] == "me"


@pytest.fixture(scope="module")
def lease_policy(control_plane, helm: Helm) -> Iterator[None]:
    """Of a release that serves the whole cluster, this policy alone."""
    kubectl = control_plane.kubectl
    found = [each for each in helm.template() if each["metadata"]["name"].endswith(".lease")]
    kubectl.apply(found)
    yield
    for each in found:
        kubectl("delete", each["kind"], each["metadata"]["name"])


def test_a_tenant_makes_no_lease_that_keeps_operators_from_leading(
    kubectl: Kubectl, namespaces: Any, lease_policy: None
):
    tenant, operator, namespace = "lease-tenant", "lease-operator", namespaces()
    for user in (tenant, operator):
        kubectl("create", "rolebinding", user, "-n", namespace, "--clusterrole=edit",
                f"--user={user}")  # fmt: skip
    kubectl("create", "clusterrole", operator, "--verb=patch",
            "--resource=modeldeployments.tonnage.dev/status")  # fmt: skip
    kubectl("create", "clusterrolebinding", operator, f"--clusterrole={operator}",
            f"--user={operator}")  # fmt: skip
    labelled = {"name": "tonnage-operator", "labels": {"tonnage.dev/operator-class": ""}}
    lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": labelled}

    def refusal(user: str) -> str:
        try:
            create(kubectl, namespace, lease, user=user, dry_run=True)
        except LabError as error:
            return str(error)
        return ""

    wait_until(lambda: refusal(tenant), what="the policy is in force", timeout_s=60, needs={})

    assert "needs the right to patch modeldeployments.tonnage.dev/status" in refusal(tenant)
    assert not refusal(operator)
    create(kubectl, namespace, lease | {"metadata": {"name": "mine"}}, user=tenant)
    with pytest.raises(LabError, match="needs the right to patch"):
        kubectl("label", "lease", "mine", "tonnage.dev/operator-class=", "-n", namespace,
                "--as", tenant)  # fmt: skip


def test_objects_of_other_names_beside_it_are_not_its_own(kubectl: Kubectl, release: Release):
    kubectl("create", "configmap", "foreign", "-n", release.namespace)
    here = ("-n", release.namespace)

    assert may(kubectl, release.account, "patch", "configmap/tonnage-calibration", *here)
    assert not may(kubectl, release.account, "get", "configmap/foreign", *here)
    assert not may(kubectl, release.account, "patch", "configmap/foreign", *here)
    assert not may(kubectl, release.account, "update", "lease/other", *here)


PRIVILEGED = {"privileged": True, "allowPrivilegeEscalation": True}
NO_MORE = {"securityContext": {"allowPrivilegeEscalation": False}}


def an_engine(
    name: str, *, owner: str | None = "ModelDeployment", uid: str = str(uuid.UUID(int=0))
) -> dict[str, Any]:
    """Return a Deployment that an object of this kind controls; None: nobody does."""
    labels = {"tonnage.dev/managed": "true", "app": "engine"}
    pod_labels = {"app": "engine"}
    by = {"apiVersion": "tonnage.dev/v1alpha1", "kind": owner, "name": name, "uid": uid}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "labels": labels}
        | ({"ownerReferences": [by | {"controller": True}]} if owner else {}),
        "spec": {
            "selector": {"matchLabels": pod_labels},
            "template": {
                "metadata": {"labels": pod_labels},
                "spec": {
                    "automountServiceAccountToken": False,
                    "containers": [{"name": "engine", "image": "none"} | NO_MORE],
                },
            },
        },
    }


def apply_as(kubectl: Kubectl, release: Release, namespace: str, content: Any) -> None:
    """Apply as the operator does, so that nothing stays."""
    kubectl(
        "apply", "--server-side", "--dry-run=server", "-n", namespace, "--as", release.account,
        "-f", "-", text=json.dumps(content),
    )  # fmt: skip


def test_a_deployment_is_made_by_server_side_apply_with_its_rights(
    kubectl: Kubectl, release: Release
):
    in_served = ["-n", release.served, "--as", release.account]
    owner = json.dumps(manifest(("metadata.name", "engine")))
    kubectl("create", "-n", release.served, "-f", "-", text=owner)
    uid = kubectl.get("modeldeployment", "engine", "-n", release.served)["metadata"]["uid"]
    engine = json.dumps(an_engine("engine", uid=uid))

    kubectl("apply", "--server-side", *in_served, "-f", "-", text=engine)
    kubectl("scale", "deployment/engine", *in_served, "--replicas=3")

    assert kubectl.get("deployment", "engine", "-n", release.served)["spec"]["replicas"] == 3


@pytest.fixture(scope="module")
def held(control_plane, release: Release) -> Release:
    """The release, once the policy for the operator's own account is in force."""

    def is_held() -> bool:
        try:
            apply_as(control_plane.kubectl, release, release.served, an_engine("a", owner=None))
        except LabError as error:
            return "only what a ModelDeployment of its name controls" in str(error)
        return False

    wait_until(is_held, what="the policy of its own is in force", timeout_s=60, needs={})
    return release


@pytest.mark.parametrize("owner", [None, "Deployment"])
def test_the_operator_makes_nothing_that_no_model_deployment_controls(
    kubectl: Kubectl, held: Release, owner: str | None
):
    apply_as(kubectl, held, held.served, an_engine("b"))

    with pytest.raises(LabError, match="only what a ModelDeployment of its name controls"):
        apply_as(kubectl, held, held.served, an_engine("b", owner=owner))


def test_the_operator_takes_over_what_was_handed_to_it_and_nothing_else(
    kubectl: Kubectl, held: Release
):
    for name, labels in (("foreign", {}), ("handed-over", {"tonnage.dev/adopt": "uid"})):
        foreign = an_engine(name, owner=None)
        foreign["metadata"]["labels"] |= labels
        kubectl("create", "-n", held.served, "-f", "-", text=json.dumps(foreign))

    def taken(name: str) -> Any:
        ours = an_engine(name)
        ours["metadata"]["labels"] |= {"touched": "yes"}
        return ours

    apply_as(kubectl, held, held.served, taken("handed-over"))
    with pytest.raises(LabError, match="only what a ModelDeployment of its name controls"):
        apply_as(kubectl, held, held.served, taken("foreign"))


@pytest.mark.parametrize(
    ("kind", "version", "spec"),
    [
        ("NetworkPolicy", "networking.k8s.io/v1", {"podSelector": {}}),
        ("PodDisruptionBudget", "policy/v1", {"maxUnavailable": 1}),
    ],
)
def test_the_operator_deletes_what_is_its_own_and_nothing_else(
    kubectl: Kubectl, held: Release, kind: str, version: str, spec: dict[str, Any]
):
    own, foreign = f"own-{kind.lower()}", f"foreign-{kind.lower()}"
    model = json.dumps(manifest(("metadata.name", own)))
    kubectl("create", "-n", held.served, "-f", "-", text=model)
    uid = kubectl.get("modeldeployment", own, "-n", held.served)["metadata"]["uid"]
    for name, metadata in ((own, an_engine(own, uid=uid)["metadata"]), (foreign, {})):
        made = {"apiVersion": version, "kind": kind, "metadata": {"name": name, **metadata}}
        kubectl("create", "-n", held.served, "-f", "-", text=json.dumps(made | {"spec": spec}))

    def delete(name: str) -> None:
        kubectl(
            "delete", kind.lower(), name, "-n", held.served, "--as", held.account,
            "--dry-run=server",
        )  # fmt: skip

    delete(own)
    with pytest.raises(LabError, match="only what a ModelDeployment of its name controls"):
        delete(foreign)


def test_the_operator_writes_nothing_in_kube_system_whatever_its_rights(
    kubectl: Kubectl, held: Release
):
    allow(kubectl, "kube-system", held.account, {"deployments.apps": "get,create,patch"})

    with pytest.raises(LabError, match="nothing in the namespaces of the cluster itself"):
        apply_as(kubectl, held, "kube-system", an_engine("c"))
    kubectl("delete", "role,rolebinding", held.account, "-n", "kube-system")


def test_the_operator_labels_what_it_makes_and_gives_it_the_name_of_its_owner(
    kubectl: Kubectl, held: Release
):
    unlabelled, other = an_engine("d"), an_engine("e")
    del unlabelled["metadata"]["labels"]["tonnage.dev/managed"]
    other["metadata"]["ownerReferences"][0]["name"] = "another"

    with pytest.raises(LabError, match="carries the label"):
        apply_as(kubectl, held, held.served, unlabelled)
    with pytest.raises(LabError, match="only what a ModelDeployment of its name controls"):
        apply_as(kubectl, held, held.served, other)


def a_role(name: str, owner: str = "both") -> dict[str, Any]:
    """Return the ModelDeployment of a role as the operator applies it."""
    by = {"apiVersion": "tonnage.dev/v1alpha1", "kind": "ModelDeployment", "name": owner}
    body = manifest(("metadata.name", name), ("metadata.labels", {"tonnage.dev/managed": "true"}))
    body["metadata"]["ownerReferences"] = [by | {"uid": str(uuid.UUID(int=0)), "controller": True}]
    return body


def test_of_model_deployments_the_operator_writes_roles_and_no_spec_of_a_user(
    kubectl: Kubectl, held: Release
):
    of_a_user = manifest(("metadata.name", "both-decode"))
    apply_as(kubectl, held, held.served, a_role("both-prefill"))
    kubectl("create", "-n", held.served, "-f", "-", text=json.dumps(of_a_user))

    for body in (a_role("both-decode"), a_role("another"), manifest(("metadata.name", "mine"))):
        with pytest.raises(LabError, match="or one whose role it is"):
            apply_as(kubectl, held, held.served, body)


def test_the_operator_writes_nothing_beside_itself(kubectl: Kubectl, held: Release):
    allow(kubectl, held.namespace, held.account, {"deployments.apps": "get,create,patch"})

    with pytest.raises(LabError, match="nothing beside itself"):
        apply_as(kubectl, held, held.namespace, an_engine("f"))


def test_the_policies_for_the_operator_bind_nobody_else(kubectl: Kubectl, held: Release):
    foreign = an_engine("h", owner=None) | {"metadata": {"name": "h"}}

    said = kubectl("create", "--dry-run=server", "-n", held.served, "-f", "-",
                   text=json.dumps(foreign))  # fmt: skip

    assert "created" in said


def a_volume(**source: Any) -> dict[str, Any]:
    return {"volumes": [{"name": "v", **source}]}


def a_container(kind: str = "containers", **fields: Any) -> dict[str, Any]:
    given = {"name": "engine" if kind == "containers" else "init", "image": "none"} | fields
    security = NO_MORE["securityContext"] | fields.get("securityContext", {})
    return {kind: [given | {"securityContext": security}]}


@pytest.mark.parametrize(
    ("changed", "complaint"),
    [
        ({"hostNetwork": True}, "no privileges"),
        ({"hostPID": True}, "no privileges"),
        ({"priorityClassName": "system-node-critical"}, "no priority of the cluster's own"),
        ({"automountServiceAccountToken": True}, "no token"),
        (a_volume(hostPath={"path": "/"}), "none of the node's"),
        (a_volume(secret={"secretName": "s"}), "no Secret but keys"),
        (a_volume(projected={"sources": [{"secret": {"name": "s"}}]}), "no Secret but keys"),
        (a_volume(projected={"sources": [{"serviceAccountToken": {"path": "t"}}]}), "no token"),
        (a_volume(csi={"driver": "example.test"}), "none of the node's"),
        ({"securityContext": {"seccompProfile": {"type": "Unconfined"}}}, "no privileges"),
        ({"securityContext": {"seLinuxOptions": {"type": "spc_t"}}}, "no privileges"),
        ({"securityContext": {"sysctls": [{"name": "kernel.msgmax", "value": "1"}]}},
         "no privileges"),
        (a_container(ports=[{"containerPort": 1, "hostPort": 22}]), "none of the node's"),
        (a_container(livenessProbe={"httpGet": {"port": 10255, "host": "127.0.0.1"}}),
         "no probe or hook of another host"),
        (a_container(readinessProbe={"tcpSocket": {"port": 1, "host": "169.254.169.254"}}),
         "no probe or hook of another host"),
        (a_container(lifecycle={"preStop": {"httpGet": {"port": 80, "host": "169.254.169.254"}}}),
         "no probe or hook of another host"),
        (a_container("initContainers", restartPolicy="Always",
                     startupProbe={"tcpSocket": {"port": 1, "host": "127.0.0.1"}}),
         "no probe or hook of another host"),
        (a_container(envFrom=[{"secretRef": {"name": "s"}}]), "no Secret but keys"),
        (a_container(securityContext=PRIVILEGED), "no privileges"),
        (a_container(securityContext={"capabilities": {"add": ["ALL"]}}), "no privileges"),
        (a_container(securityContext={"seccompProfile": {"type": "Unconfined"}}), "no privileges"),
        (a_container(securityContext={"windowsOptions": {"runAsUserName": "a"}}), "no privileges"),
        ({"hostUsers": False} | a_container(securityContext={"procMount": "Unmasked"}),
         "no privileges"),
        (a_container("initContainers", securityContext=PRIVILEGED), "no privileges"),
        (a_container("initContainers", securityContext={"capabilities": {"add": ["SYS_ADMIN"]}}),
         "no privileges"),
        (a_container("initContainers", ports=[{"containerPort": 1, "hostPort": 22}]),
         "none of the node's"),
        ({"serviceAccountName": "admin"}, "as the ServiceAccount default"),
        ({"serviceAccount": "admin"}, "as the ServiceAccount default"),
        ({"nodeName": "gpu-0"}, "no privileges"),
        ({"resourceClaims": [{"name": "a", "resourceClaimName": "a"}]}, "no GPU but the engine's"),
        ({"containers": [{"name": "a", "image": "none"}]}, "no privileges"),
        (a_container(securityContext={"allowPrivilegeEscalation": True}), "no privileges"),
        (a_container("initContainers", securityContext={"allowPrivilegeEscalation": True}),
         "no privileges"),
        (a_container(resources={"limits": {"nvidia.com/gpu": "1"}}), "no GPU but the engine's"),
        (a_container(resources={"limits": {"amd.com/gpu": "1"}}), "no GPU but the engine's"),
        (a_container("initContainers", resources={"limits": {"nvidia.com/mig-1g.10gb": "1"}}),
         "no GPU but the engine's"),
        (a_volume(emptyDir={}) | a_container(
            volumeMounts=[{"name": "v", "mountPath": "/v", "subPathExpr": "$(X)"}],
            env=[{"name": "X", "value": "x"}]), "no privileges"),
        (a_volume(projected={"sources": [{"configMap": {"name": "c"}},
                                         {"serviceAccountToken": {"path": "t"}}]}), "no token"),
    ],
)  # fmt: skip
def test_the_pods_that_the_operator_makes_are_confined(
    kubectl: Kubectl, held: Release, changed, complaint: str
):
    engine = an_engine("g")
    engine["spec"]["template"]["spec"] |= changed

    with pytest.raises(LabError, match=complaint):
        apply_as(kubectl, held, held.served, engine)


@pytest.mark.parametrize(
    ("spec", "added"),
    [
        ({"pods": EVERY_POD_FIELD | {"serviceAccountName": None}}, []),
        ({}, [{"name": "a", "configMap": {"name": "a"}}, {"name": "b", "downwardAPI": {}}]),
        *(({"pods": {"template": each}}, []) for each in REAL.values()),
    ],
)
def test_what_is_rendered_is_confined_and_may_have_more_of_no_power(
    kubectl: Kubectl, held: Release, spec, added
):
    made = deployment(a_model(namespace=held.served, **spec), a_sizing(), SITE)
    made["spec"]["template"]["spec"]["volumes"] += added

    apply_as(kubectl, held, held.served, made)


def test_a_template_that_another_left_unconfined_can_be_changed(kubectl: Kubectl, held: Release):
    owner = json.dumps(manifest(("metadata.name", "unconfined")))
    kubectl("create", "-n", held.served, "-f", "-", text=owner)
    uid = kubectl.get("modeldeployment", "unconfined", "-n", held.served)["metadata"]["uid"]
    engine = an_engine("unconfined", uid=uid)
    engine["spec"]["template"]["spec"] |= a_volume(secret={"secretName": "s"})
    kubectl("create", "-n", held.served, "-f", "-", text=json.dumps(engine))
    engine["spec"]["template"]["metadata"]["annotations"] = {"changed": "yes"}

    apply_as(kubectl, held, held.served, engine)


def test_of_a_pod_the_operator_writes_one_annotation(kubectl: Kubectl, held: Release):
    allow(kubectl, held.served, held.account, {"pods": "get"})  # which kubectl asks for
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "none"}}
    kubectl("create", "-n", held.served, "-f", "-", text=json.dumps(account))
    for name, labels in (("ours", {"tonnage.dev/managed": "true"}), ("theirs", {})):
        pod = {
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": labels},
            "spec": {"serviceAccountName": "none", "containers": [{"name": "c", "image": "none"}]},
        }  # fmt: skip
        kubectl("create", "-n", held.served, "-f", "-", text=json.dumps(pod))

    def write(name: str, metadata: Any) -> None:
        kubectl(
            "patch", f"pod/{name}", "-n", held.served, "--as", held.account, "--type=merge",
            "-p", json.dumps({"metadata": metadata}),
        )  # fmt: skip

    cost = {"annotations": {"controller.kubernetes.io/pod-deletion-cost": "1"}}
    only = "pod-deletion-cost only"
    with pytest.raises(LabError, match=only):
        write("theirs", cost)
    for metadata in (
        {"finalizers": ["tonnage.dev/hold"]},
        {"annotations": {"other": "1"}},
        {"labels": {"tonnage.dev/managed": "false"}},
    ):
        with pytest.raises(LabError, match=only):
            write("ours", metadata)
    write("ours", cost)
    write("ours", {"annotations": None})


def test_the_operator_scales_only_what_is_labelled(kubectl: Kubectl, held: Release):
    for name, value in (("opted-in", "true"), ("opted-out", "false")):
        theirs = an_engine(name, owner=None)
        theirs["metadata"]["labels"]["tonnage.dev/managed"] = value
        kubectl("create", "-n", held.served, "-f", "-", text=json.dumps(theirs))

    def scale(name: str) -> None:
        kubectl(
            "scale", f"deployment/{name}", "-n", held.served, "--replicas=3",
            "--as", held.account,
        )  # fmt: skip

    def is_refused() -> bool:
        try:
            scale("opted-out")
        except LabError as error:
            return "scales only Deployments with the label tonnage.dev/managed" in str(error)
        return False

    wait_until(is_refused, what="the Deployment is known to the policy", timeout_s=30, needs={})
    scale("opted-in")

    assert kubectl.get("deployment", "opted-in", "-n", held.served)["spec"]["replicas"] == 3


def test_the_chart_installs_cluster_wide_and_goes_without_a_trace(
    kubectl: Kubectl, helm: Helm, namespaces
):
    home, served = namespaces(), namespaces()
    account = f"system:serviceaccount:{home}:tonnage"

    notes = install(helm, home, settings={"mode": "scaleOnly"})

    assert "serves every namespace, and only scales Deployments" in " ".join(notes.split())
    assert may(kubectl, account, "patch", "deployments", "-n", served, "--subresource=scale")
    assert not may(kubectl, account, "create", "deployments", "-n", served)
    helm("uninstall", "tonnage", "-n", home)
    left = kubectl(
        "get", "clusterroles,clusterrolebindings,validatingadmissionpolicies", "-o", "name"
    )
    assert home not in left


def test_an_upgrade_that_reuses_values_takes_the_nulls_that_dropped_defaults(
    kubectl: Kubectl, helm: Helm, namespaces
):
    home = namespaces()
    install(
        helm, home, settings={"mode": "scaleOnly", "tickS": None}, affinity=None,
        resources={"limits": {"memory": None}},
        dashboard={"create": True, "labels": {"grafana_dashboard": None, "folder": "gpus"}},
    )  # fmt: skip

    helm("upgrade", "tonnage", CHART, "-n", home, "--reuse-values", "--set", "podLabels.team=chat")

    template = kubectl.get("deployment", "tonnage", "-n", home)["spec"]["template"]
    (container,) = template["spec"]["containers"]
    (dashboard,) = kubectl.get("configmaps", "-n", home, "-l", "folder=gpus")["items"]
    assert template["metadata"]["labels"]["team"] == "chat"
    assert "affinity" not in template["spec"]
    assert container["resources"] == {"requests": {"cpu": "100m", "memory": "256Mi"}}
    assert "grafana_dashboard" not in dashboard["metadata"]["labels"]
    helm("uninstall", "tonnage", "-n", home)


def test_the_chart_would_install_its_crd(helm: Helm, namespaces):
    said = helm(
        "install", "tonnage", CHART, "-n", namespaces(), "--dry-run=server", "--take-ownership",
        values=with_prometheus({}),
    )  # fmt: skip

    assert "kind: CustomResourceDefinition" in said


def test_the_operators_token_is_the_mounted_one(kubectl: Kubectl, release: Release):
    template = kubectl.get("deployment", "tonnage", "-n", release.namespace)["spec"]["template"]
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": template["spec"]}

    made = json.loads(
        kubectl(
            "create", "--dry-run=server", "-n", release.namespace, "-f", "-", "-o", "json",
            text=json.dumps(pod),
        )
    )  # fmt: skip

    tokens = [
        source
        for volume in made["spec"]["volumes"]
        for source in volume.get("projected", {}).get("sources", [])
        if "serviceAccountToken" in source
    ]
    assert len(tokens) == 1
