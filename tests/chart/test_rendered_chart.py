"""What the chart renders: valid objects, least rights, the operator's own settings."""

import json
import re
from functools import cache
from typing import Any

import kubernetes_validate
import pytest
import yaml

from helm import CHART, PROMETHEUS, with_prometheus
from schemas import SERVED
from tonnage.api.crd import crd
from tonnage.api.pod_rules import rules
from tonnage.catalog.gpu import GPU_FOLDER
from tonnage.settings import Settings
from tonnage_lab.processes import LabError

pytestmark = pytest.mark.lab

H200 = (GPU_FOLDER / "h200.toml").read_text()
EVERYTHING = {
    "calibrations": {"h200.json": '{"version": 1}'},
    "gpuClasses": {"h200.toml": H200},
    "hostNetwork": True,
    "image": {"digest": "sha256:" + "0" * 64},
    "imagePullSecrets": [{"name": "pull"}],
    "networkPolicy": {"create": True},
    "nodeSelector": {"pool": "infra"},
    "podAnnotations": {"a": "b"},
    "podLabels": {"team": "serving"},
    "prometheusRule": {"create": True, "labels": {"release": "prometheus"}},
    "dashboard": {"create": True, "annotations": {"grafana_folder": "LLM"}},
    "podMonitor": {"create": True, "labels": {"release": "prometheus"}},
    "priorityClassName": "infra",
    "rbac": {"aggregateToEdit": True},
    "serviceAccount": {"annotations": {"a": "b"}},
    "serviceMonitor": {"create": True},
    "tolerations": [{"key": "infra", "operator": "Exists"}],
    "extraVolumes": [{"name": "ca", "configMap": {"name": "ca"}}],
    "extraVolumeMounts": [{"name": "ca", "mountPath": "/ca"}],
}
NAMESPACED = {"rbac": {"scope": "namespaced"}, "settings": {"namespaces": ["team-a", "team-b"]}}
SCALE_ONLY = {"settings": {"mode": "scaleOnly"}}
RECOMMEND = {"settings": {"mode": "recommend"}}
VARIANTS = {
    "default": {},
    "all": EVERYTHING,
    "namespaced": NAMESPACED,
    "scale-only": SCALE_ONLY,
    "recommend": RECOMMEND,
}
FOREIGN_GROUPS = ("monitoring.coreos.com",)
RBAC_KINDS = ("Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding")


def of_kind(manifests, kind: str):
    return [manifest for manifest in manifests if manifest["kind"] == kind]


def the(manifests, kind: str):
    [only] = of_kind(manifests, kind)
    return only


def pod(manifests) -> dict[str, Any]:
    return the(manifests, "Deployment")["spec"]["template"]["spec"]


def settings_of(manifests) -> Settings:
    config = next(m for m in of_kind(manifests, "ConfigMap") if "settings.yaml" in m["data"])
    return Settings(**yaml.safe_load(config["data"]["settings.yaml"]))


def granted(manifests) -> set[tuple[str, str]]:
    """Return every (resource, verb) that the operator's own roles grant."""
    users = (".view", ".edit")
    return {
        (resource, verb)
        for manifest in manifests
        if manifest["kind"] in ("Role", "ClusterRole")
        if not manifest["metadata"]["name"].endswith(users)
        for rule in manifest["rules"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def test_lint_finds_nothing(helm):
    report = helm("lint", CHART, "--strict", values=with_prometheus({}))

    assert "1 chart(s) linted, 0 chart(s) failed" in report


@pytest.mark.parametrize(
    "version",
    [
        SERVED[0],
        *(pytest.param(each, marks=pytest.mark.thorough) for each in SERVED[1:-1]),
        SERVED[-1],
    ],
)
@pytest.mark.parametrize("values", VARIANTS.values(), ids=VARIANTS)
def test_every_object_is_one_that_every_kubernetes_served_knows(helm, values, version):
    for manifest in helm.template(**values):
        if not manifest["apiVersion"].startswith(FOREIGN_GROUPS):
            check(json.dumps(manifest, sort_keys=True), version)


@cache
def check(text, version):
    """Most objects are the same in all variants."""
    kubernetes_validate.validate(json.loads(text), version, strict=True)


def test_the_rights_are_these_and_no_others(helm, golden):
    roles = [
        manifest
        for variant in ("default", "scale-only", "namespaced", "recommend")
        for manifest in helm.template(**VARIANTS[variant])
        if manifest["kind"] in RBAC_KINDS
    ]
    for role in roles:
        del role["metadata"]["labels"]

    golden("chart-rbac", *roles)


@pytest.mark.parametrize("values", VARIANTS.values(), ids=VARIANTS)
def test_no_right_is_broad(helm, values):
    rights = granted(helm.template(**values))

    assert not {resource for resource, _ in rights} & {"*", "secrets", "pods/exec", "namespaces"}
    assert not {verb for _, verb in rights} & {"*", "deletecollection", "escalate"}
    assert {resource for resource, verb in rights if verb == "delete"} <= {
        "poddisruptionbudgets", "networkpolicies",
    }  # fmt: skip
    assert "nodes" not in {resource for resource, _ in rights}
    of_objects = {verb for resource, verb in rights if resource == "modeldeployments"}
    assert of_objects <= {"get", "list", "watch", "create", "patch"}, "of roles, by the policy"


def test_scale_only_can_neither_create_a_pod_nor_change_one(helm):
    rights = granted(helm.template(**SCALE_ONLY))

    assert {verb for resource, verb in rights if resource == "modeldeployments"} == {
        "get", "list", "watch",
    }  # fmt: skip

    assert {verb for resource, verb in rights if resource == "deployments"} == {
        "get", "list", "watch",
    }  # fmt: skip
    assert {verb for resource, verb in rights if resource == "deployments/scale"} == {"patch"}
    assert {verb for resource, verb in rights if resource == "pods"} == {"list", "watch"}
    assert not {resource for resource, _ in rights} & {
        "services", "podmonitors", "poddisruptionbudgets", "networkpolicies",
    }  # fmt: skip


def test_an_operator_that_recommends_may_write_status_alone(helm):
    manifests = helm.template(**RECOMMEND)
    home = [each for each in of_kind(manifests, "Role") if each["metadata"]["name"] == "tonnage"]
    of_cluster = granted([each for each in manifests if each not in home])
    writes = {each for each in of_cluster if each[1] not in {"get", "list", "watch"}}

    assert writes == {("modeldeployments/status", "patch"), ("leases", "update")}
    assert granted(home) == granted(
        [each for each in of_kind(helm.template(), "Role") if each["metadata"]["name"] == "tonnage"]
    )
    # What is written now may be acted on later: whoever writes it needs the same rights.
    assert policies(helm, **RECOMMEND) == policies(helm)


def test_namespaced_rights_stop_at_the_namespaces_listed(helm):
    manifests = helm.template(**NAMESPACED)

    cluster_wide = {m["metadata"]["name"] for m in of_kind(manifests, "ClusterRole")}
    assert all(name.endswith(("view", "edit")) for name in cluster_wide)
    assert {m["metadata"]["namespace"] for m in of_kind(manifests, "Role")} == {
        "team-a", "team-b", "tonnage-system",
    }  # fmt: skip
    bindings = of_kind(manifests, "ValidatingAdmissionPolicyBinding")
    # The operator's own account is held everywhere.
    for binding in (each for each in bindings if ".own" not in each["metadata"]["name"]):
        [expression] = binding["spec"]["matchResources"]["namespaceSelector"]["matchExpressions"]
        assert expression["values"] == ["team-a", "team-b"]


def test_editing_is_not_given_to_every_editor_unless_asked_for(helm):
    def edit_labels(values):
        roles = of_kind(helm.template(**values), "ClusterRole")
        return next(r for r in roles if r["metadata"]["name"].endswith(".edit"))["metadata"][
            "labels"
        ]

    to_edit = "rbac.authorization.k8s.io/aggregate-to-edit"

    assert to_edit not in edit_labels({})
    assert edit_labels({"rbac": {"aggregateToEdit": True}})[to_edit] == "true"


def policies(helm, **values):
    rendered = of_kind(helm.template(**values), "ValidatingAdmissionPolicy")
    return {each["metadata"]["name"].removeprefix("tonnage.tonnage-system") for each in rendered}


def test_the_policies_come_with_the_rights_that_they_bound_and_only_then(helm):
    own = {".own", ".own.scale"}

    asking = {"", ".template", ".rolls", ".deprecated"}

    assert policies(helm) == {*asking, *own, ".lease", ".size"}
    assert policies(helm, **SCALE_ONLY) == {*own, ".lease", ".size"}, "no right to create pods"
    assert policies(helm, **NAMESPACED) == {*asking, *own, ".size"}, "no Lease of a class"
    assert policies(helm, admissionPolicy={"create": False}) == set()


def test_the_values_list_each_policy_of_the_chart(helm):
    listed = re.findall("^  # - NAME(.*?):", (CHART / "values.yaml").read_text(), re.MULTILINE)

    assert sorted(listed) == sorted(policies(helm, served=["leaderworkerset.x-k8s.io/v1"]))


def test_the_scale_of_groups_is_held_where_the_cluster_has_leader_worker_sets(helm):
    served = ["leaderworkerset.x-k8s.io/v1"]

    assert policies(helm, served=served) - policies(helm) == {".own.groups"}


@pytest.mark.parametrize("is_asked", [False, True])
@pytest.mark.parametrize(
    ("value", "resource"),
    [("askPodMonitors", "podmonitors"), ("askLeaderWorkerSets", "leaderworkersets")],
)
def test_what_no_editor_may_make_is_asked_for_only_where_that_is_wished(
    helm, value, resource, is_asked: bool
):
    values = {"admissionPolicy": {value: is_asked}}
    rendered = of_kind(helm.template(**values), "ValidatingAdmissionPolicy")
    [policy] = [each for each in rendered if each["metadata"]["name"] == "tonnage.tonnage-system"]
    asked = [rule["expression"] for rule in policy["spec"]["validations"]]

    assert any("services" in each for each in asked)
    assert any(resource in each for each in asked) == is_asked


def test_only_who_serves_all_namespaces_sees_leases_of_others(helm):
    def of_leases(**values):
        return [
            (manifest["kind"], rule["verbs"], rule.get("resourceNames"))
            for manifest in helm.template(**values)
            if manifest["kind"] in RBAC_KINDS
            for rule in manifest.get("rules", ())
            if "leases" in rule["resources"]
        ]

    own = [("Role", ["get", "update"], ["tonnage-operator"]), ("Role", ["create"], None)]
    others = [
        ("ClusterRole", ["list"], None),
        ("ClusterRole", ["get", "update"], ["tonnage-operator"]),
    ]

    assert of_leases(**NAMESPACED) == own
    assert sorted(of_leases(), key=str) == sorted([*own, *others], key=str)


def test_of_the_policies_all_deny_but_two_that_only_warn(helm):
    bindings = of_kind(helm.template(), "ValidatingAdmissionPolicyBinding")

    assert {each["spec"]["policyName"]: each["spec"]["validationActions"] for each in bindings} == {
        "tonnage.tonnage-system": ["Deny"],
        "tonnage.tonnage-system.deprecated": ["Warn"],
        "tonnage.tonnage-system.lease": ["Deny"],
        "tonnage.tonnage-system.own": ["Deny"],
        "tonnage.tonnage-system.own.scale": ["Deny"],
        "tonnage.tonnage-system.rolls": ["Warn"],
        "tonnage.tonnage-system.size": ["Deny"],
        "tonnage.tonnage-system.template": ["Deny"],
    }


def test_a_class_reaches_the_operator(helm):
    assert settings_of(helm.template(settings={"operatorClass": "blue"})).operator_class == "blue"


def test_the_crd_is_the_generated_one_and_outlives_the_release(helm):
    rendered = the(helm.template(), "CustomResourceDefinition")

    assert rendered["metadata"].pop("annotations") == {"helm.sh/resource-policy": "keep"}
    assert rendered == crd()
    assert of_kind(helm.template(crds={"install": False}), "CustomResourceDefinition") == []


def test_the_settings_are_the_operators_defaults(helm):
    given = {"admissionPolicy": {"create": False}}

    assert settings_of(helm.template(**given)) == Settings(prometheus_url=PROMETHEUS)


def test_credentials_of_prometheus_reach_the_settings_and_nulls_in_them_do_not(helm):
    auth = {
        "basic": {"usernameFile": "/prometheus/user", "passwordFile": "/prometheus/password"},
        "headers": {"X-Scope-OrgID": "team-a"},
        "clientCertificate": None,
    }

    others = {"prefixes": ["kserve_"], "labels": [{"namespace": "a", "pod": "b"}]}

    found = settings_of(helm.template(settings={"prometheusAuth": auth, "otherSeries": others}))

    assert found.series_prefixes == ("kserve_",)
    assert found.pod_labels == (("namespace", "pod"), ("a", "b"))

    assert found.prometheus_auth is not None
    assert found.prometheus_auth.basic is not None
    assert found.prometheus_auth.basic.password_file == "/prometheus/password"  # noqa: S105
    assert found.prometheus_auth.headers == {"X-Scope-OrgID": "team-a"}


@pytest.mark.parametrize(
    ("create", "asked", "is_open"),
    [
        (True, None, True), (True, True, True), (True, False, False),
        (False, None, False), (False, True, True), (False, False, False),
    ],
)  # fmt: skip
def test_a_template_is_taken_as_the_setting_says_and_else_where_its_policy_is(
    helm, create: bool, asked: bool | None, is_open: bool
):
    values = {"admissionPolicy": {"create": create}, "settings": {"podTemplates": asked}}

    assert settings_of(helm.template(**values)).pod_templates == is_open


def test_the_policy_of_templates_asks_for_every_kind_of_its_table(helm):
    [policy] = [
        each
        for each in of_kind(helm.template(), "ValidatingAdmissionPolicy")
        if each["metadata"]["name"].endswith(".template")
    ]
    said = " ".join(each["message"] for each in policy["spec"]["validations"])

    for kind, fields in rules()["fields"].items():
        assert f"has a field that is none of {', '.join(fields)}" in said, kind
    for kind, values in rules()["values"].items():
        for name, rule in values.items():
            assert (
                f"{name} must {'not ' if 'not' in rule else ''}be {next(iter(rule.values()))}"
                in said
            ), (
                kind,
                name,
            )


def test_settings_given_reach_the_operator_as_they_are(helm):
    given = {"maxGpus": 1_000_000, "tickS": 0.5, "prometheusSelector": 'cluster="eu-1",env!~"a<b"'}

    settings = settings_of(helm.template(settings=given))

    assert (settings.max_gpus, settings.tick_s) == (1_000_000, 0.5)
    assert settings.prometheus_selector == 'cluster="eu-1",env!~"a<b"'


@pytest.mark.parametrize(
    ("setting", "value"), [("catalog_folder", "gpuClasses"), ("calibration_folder", "calibrations")]
)
def test_files_are_mounted_read_only_where_the_settings_say(helm, setting: str, value: str):
    manifests = helm.template(**EVERYTHING)

    folder = getattr(settings_of(manifests), setting)
    mounts = {m["mountPath"]: m for m in pod(manifests)["containers"][0]["volumeMounts"]}
    [volume] = [v for v in pod(manifests)["volumes"] if v["name"] == mounts[folder]["name"]]
    source = next(
        m
        for m in of_kind(manifests, "ConfigMap")
        if m["metadata"]["name"] == volume["configMap"]["name"]
    )
    assert mounts[folder]["readOnly"] is True
    assert source["data"] == EVERYTHING[value]


def test_a_changed_setting_restarts_the_operator(helm):
    def checksum(**values):
        template = the(helm.template(**values), "Deployment")["spec"]["template"]
        return template["metadata"]["annotations"]["checksum/settings"]

    same = checksum()

    assert same == checksum()
    assert same != checksum(settings={"maxGpus": 8})
    assert same != checksum(gpuClasses={"a.toml": H200})
    assert same != checksum(calibrations={"a.json": "{}"})


def test_only_one_operator_runs_at_a_time(helm):
    spec = the(helm.template(), "Deployment")["spec"]

    assert (spec["replicas"], spec["strategy"]) == (1, {"type": "Recreate"})


def test_the_operator_is_started_with_its_settings_and_probed(helm):
    [container] = pod(helm.template())["containers"]

    assert [*container["command"], *container["args"]] == [
        "tonnage", "run", "--config", "/etc/tonnage/settings.yaml",
    ]  # fmt: skip
    assert container["livenessProbe"]["httpGet"] == {"path": "/healthz", "port": "http"}
    assert container["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "http"}
    assert container["ports"] == [{"name": "http", "containerPort": 8081, "protocol": "TCP"}]
    assert {e["name"]: e["valueFrom"]["fieldRef"]["fieldPath"] for e in container["env"]} == {
        "POD_NAME": "metadata.name",
        "POD_NAMESPACE": "metadata.namespace",
    }


def test_the_token_is_mounted_by_name_in_the_usual_place(helm):
    manifests = helm.template()

    spec = pod(manifests)
    folder = "/var/run/secrets/kubernetes.io/serviceaccount"
    mounts = {m["mountPath"]: m["name"] for m in spec["containers"][0]["volumeMounts"]}
    [volume] = [v for v in spec["volumes"] if v["name"] == mounts[folder]]
    kinds = [next(iter(source)) for source in volume["projected"]["sources"]]
    assert the(manifests, "ServiceAccount")["automountServiceAccountToken"] is False
    assert spec["automountServiceAccountToken"] is False
    assert kinds == ["serviceAccountToken", "configMap", "downwardAPI"]


def test_a_digest_stands_above_a_tag(helm):
    def image(**values):
        return pod(helm.template(image=values))["containers"][0]["image"]

    digest = "sha256:" + "a" * 64

    assert image() == "tonnage/operator:0.2.0"
    assert image(tag="1.2") == "tonnage/operator:1.2"
    assert image(tag="1.2", digest=digest) == f"tonnage/operator@{digest}"


def test_rights_can_be_left_to_somebody_else(helm):
    kinds = {m["kind"] for m in helm.template(rbac={"create": False})}

    assert not kinds & set(RBAC_KINDS)


def test_two_releases_share_no_name_outside_their_namespaces(helm):
    names = [
        manifest["metadata"]["name"]
        for manifest in helm.template()
        if "namespace" not in manifest["metadata"]
        and manifest["kind"] != "CustomResourceDefinition"
    ]

    assert {name.split(".")[1] for name in names} == {"tonnage-system"}


def test_the_security_contexts_and_the_environment_are_values(helm):
    assigned = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    proxy = {"name": "HTTPS_PROXY", "value": "http://proxy.test:3128"}

    pod = the(
        helm.template(
            podSecurityContext=assigned, securityContext={"privileged": False}, extraEnv=[proxy]
        ),
        "Deployment",
    )["spec"]["template"]["spec"]

    assert pod["securityContext"] == assigned
    assert pod["containers"][0]["securityContext"] == {"privileged": False}
    assert pod["containers"][0]["env"][2:] == [proxy]
    with pytest.raises(LabError, match="extraEnv must not set POD_NAME"):
        helm.template(extraEnv=[{"name": "POD_NAME", "value": "x"}])
