"""Templates of users, merged onto ours: of Deployments, groups of pods and roles alike."""

import json
from copy import deepcopy
from dataclasses import replace

import kubernetes_validate
import pytest

from fleet_builders import SITE, a_model, a_model_over_nodes, a_sizing
from pod_fields import EVERY_POD_FIELD
from pod_templates import REAL, a_container, engine, sidecar
from tonnage.manifests.changes import ALL, FieldOwners, list_differences, template_changes
from tonnage.manifests.children import deployment
from tonnage.manifests.names import TEMPLATE_ANNOTATION, labels
from tonnage.manifests.pod import deprecation
from tonnage.sizing.split import Parallelism

KUBERNETES = "1.36"
CONFINED = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


def made(template=None, **pods):
    given = pods if template is None else pods | {"template": template}
    return deployment(a_model(pods=given), a_sizing(), SITE, drain_s=210)


def pod(template=None, **pods):
    return made(template, **pods)["spec"]["template"]["spec"]


def container(name, made_pod):
    everything = [*made_pod["containers"], *made_pod.get("initContainers", [])]
    return next(each for each in everything if each["name"] == name)


@pytest.mark.parametrize("template", REAL.values(), ids=list(REAL))
class TestOfRealKinds:
    def test_are_valid_to_the_letter(self, template):
        kubernetes_validate.validate(made(template), KUBERNETES, strict=True)

    def test_leave_what_is_ours(self, template):
        plain, merged = pod(), pod(template)
        ours, engines = plain["containers"][0], merged["containers"][0]

        assert {**engines, "env": 0, "volumeMounts": 0, "resources": 0} == {
            **ours, "env": 0, "volumeMounts": 0, "resources": 0,
        }  # fmt: skip
        for field in ("env", "volumeMounts"):
            assert engines[field][: len(ours[field])] == ours[field]
        assert engines["resources"]["limits"]["nvidia.com/gpu"] == "2"
        assert merged["volumes"][:2] == plain["volumes"]
        assert merged["automountServiceAccountToken"] is False
        metadata = made(template)["spec"]["template"]["metadata"]
        assert labels("llama").items() <= metadata["labels"].items()

    def test_of_further_containers_none_sees_a_gpu_or_has_a_power(self, template):
        merged = pod(template)
        others = [*merged["containers"][1:], *merged.get("initContainers", [])]

        for each in others:
            assert each["securityContext"].items() >= CONFINED.items()
            assert {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"} in each["env"]

    def test_what_the_api_server_stores_is_no_edit(self, template):
        wanted = made(template)["spec"]["template"]
        live = as_the_server_has_it(wanted)

        assert list_differences(live, wanted, FieldOwners(ours=owned_in(wanted))) == ()
        assert template_changes(live, wanted, owned=owned_in(wanted)) == ()


DEFAULTED = {
    "fieldRef": {"apiVersion": "v1"},
    "resourceFieldRef": {"divisor": "0"},
    "httpGet": {"scheme": "HTTP"},
    "projected": {"defaultMode": 420},
    "configMap": {},
}


def as_the_server_has_it(node, name=""):
    """Return a template with some of the defaults that are in values of one piece."""
    if isinstance(node, list):
        return [as_the_server_has_it(each) for each in node]
    if isinstance(node, dict):
        stored = {key: as_the_server_has_it(value, key) for key, value in node.items()}
        return DEFAULTED.get(name, {}) | stored
    return node


KEYED = {"containers": ["name"], "initContainers": ["name"], "env": ["name"], "volumes": ["name"],
         "volumeMounts": ["mountPath"], "imagePullSecrets": ["name"], "hostAliases": ["ip"],
         "ports": ["containerPort", "protocol"],
         "topologySpreadConstraints": ["topologyKey", "whenUnsatisfiable"]}  # fmt: skip
ATOMIC = {"fieldRef", "resourceFieldRef", "configMapKeyRef", "secretKeyRef", "nodeSelectorTerms"}


def owned_in(node, name=""):
    """Return ``fieldsV1`` of somebody who applied a value."""
    if isinstance(node, dict) and name not in ATOMIC:
        return {f"f:{key}": owned_in(value, key) for key, value in node.items()}
    if isinstance(node, list) and name in KEYED:
        keys = [{key: each.get(key, "TCP") for key in KEYED[name]} for each in node]
        return {
            "k:" + json.dumps(key, sort_keys=True, separators=(",", ":")): owned_in(each)
            for key, each in zip(keys, node, strict=True)
        }
    return {}


class TestDrift:
    def test_is_told_of_what_is_inside_values_of_one_piece(self):
        wanted = made(REAL["a loader from S3, with keys of a Secret"])["spec"]["template"]
        live = deepcopy(wanted)
        [load] = live["spec"]["initContainers"]
        load["env"][2]["valueFrom"]["fieldRef"]["fieldPath"] = "metadata.uid"
        live["spec"]["tolerations"].append({"operator": "Exists"})

        found = list_differences(live, wanted, FieldOwners(ours=owned_in(wanted)))

        assert {each.field for each in found} == {
            "spec.initContainers[load].env[POD_NAME].valueFrom.fieldRef.fieldPath",
            "spec.tolerations",
        }

    def test_is_no_secret_of_a_variable(self):
        wanted = made(engine(env=[{"name": "API_TOKEN", "value": "old"}]))["spec"]["template"]
        changed = made(engine(env=[{"name": "API_TOKEN", "value": "new"}]))["spec"]["template"]

        [change] = template_changes(wanted, changed, owned=ALL)

        assert change.field == "spec.containers[vllm].env[API_TOKEN].value"
        assert "new" not in str(change)
        assert "old" not in str(change)


class TestTheEngine:
    def test_has_more_variables_mounts_and_resources(self):
        given = engine(
            env=[{"name": "NCCL_DEBUG", "value": "INFO"}],
            resources={"requests": {"cpu": 4}, "limits": {"memory": "64Gi"}},
            volumeMounts=[{"name": "more", "mountPath": "/data"}],
        )
        found = container("vllm", pod(given))

        assert found["env"][-1] == {"name": "NCCL_DEBUG", "value": "INFO"}
        assert found["resources"] == {
            "limits": {"nvidia.com/gpu": "2", "memory": "64Gi"},
            "requests": {"cpu": "4"},
        }
        assert found["volumeMounts"][-1] == {"name": "more", "mountPath": "/data"}

    def test_is_confined_whatever_of_it_is_given(self):
        given = {"readOnlyRootFilesystem": True, "capabilities": {"drop": ["NET_RAW"]}}

        found = container("vllm", pod(engine(securityContext=given)))["securityContext"]

        assert found == CONFINED | {"readOnlyRootFilesystem": True}

    def test_is_the_first_container_wherever_it_stands_in_the_template(self):
        both = {"spec": {"containers": [a_container(), {"name": "vllm"}]}}

        assert [each["name"] for each in pod(both)["containers"]] == ["vllm", "side"]


class TestNodes:
    REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"

    def terms(self, *given, **pods):
        node = {self.REQUIRED: {"nodeSelectorTerms": list(given)}} if given else {}
        found = pod({"spec": {"affinity": {"nodeAffinity": node}}}, **pods)
        return found["affinity"]["nodeAffinity"][self.REQUIRED]["nodeSelectorTerms"]

    def test_have_the_gpu_class_in_each_term(self):
        zones = [{"key": "zone", "operator": "In", "values": [zone]} for zone in "ab"]
        [[ours]] = [each["matchExpressions"] for each in self.terms()]

        assert ours["key"] == "nvidia.com/gpu.product"
        assert self.terms(*({"matchExpressions": [each]} for each in zones)) == [
            {"matchExpressions": [ours, each]} for each in zones
        ]
        assert self.terms({})[0]["matchExpressions"] == [ours]

    def test_may_be_any_that_the_template_says_where_no_label_tells_the_class(self):
        term = {"matchExpressions": [{"key": "board", "operator": "Exists"}]}

        assert self.terms(term, gpuNodes=[]) == [term]


class TestSpread:
    def test_is_over_the_pods_of_one_revision_unless_the_template_says_over_which(self):
        mine = {"topologyKey": "host", "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule",
                "labelSelector": {"matchLabels": {"a": "b"}}}  # fmt: skip
        plain = {"topologyKey": "zone", "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"}

        found = pod({"spec": {"topologySpreadConstraints": [mine, plain]}})

        assert found["topologySpreadConstraints"] == [
            mine,
            plain
            | {
                "labelSelector": {"matchLabels": {"tonnage.dev/managed": "true",
                                                  "tonnage.dev/model-deployment": "llama"}},
                "matchLabelKeys": ["pod-template-hash"],
            },
        ]  # fmt: skip


class TestGroups:
    def test_have_it_in_leaders_and_workers_and_spread_leaders_alone(self):
        given = sidecar() | {"metadata": {"labels": {"a": "b"}}}
        given["spec"]["topologySpreadConstraints"] = [
            {"topologyKey": "zone", "maxSkew": 1, "whenUnsatisfiable": "ScheduleAnyway"}
        ]
        model = a_model_over_nodes(pods={"template": given})
        sizing = a_sizing(model)
        split = replace(sizing.flags, parallelism=Parallelism(tensor=8, pipeline=2))
        made = deployment(model, replace(sizing, flags=split), SITE, drain_s=240)
        spec = made["spec"]["leaderWorkerTemplate"]
        leader, worker = spec["leaderTemplate"], spec["workerTemplate"]

        for each in (leader, worker):
            assert [it["name"] for it in each["spec"]["containers"]] == ["vllm", "side"]
            assert each["metadata"]["labels"]["a"] == "b"
        assert "topologySpreadConstraints" in leader["spec"]
        assert "topologySpreadConstraints" not in worker["spec"]


class TestOldFields:
    def test_make_the_pods_that_the_template_in_their_place_makes(self):
        old = made(**EVERY_POD_FIELD)
        model = a_model(pods=EVERY_POD_FIELD)
        [said] = deprecation(model)
        text = said.message.partition("pods.template: ")[2].removesuffix(
            ", which makes the same pods"
        )
        instead = json.loads(text)
        kept = {
            name: value
            for name, value in EVERY_POD_FIELD.items()
            if f"pods.{name}" not in said.message.partition("; ")[0].partition(": ")[2].split(", ")
        }
        new = made(instead, **kept)

        assert said.code == "DeprecatedFields"
        assert new["spec"] == old["spec"]
        digests = [each["metadata"]["annotations"][TEMPLATE_ANNOTATION] for each in (old, new)]
        assert digests[0] == digests[1]

    def test_are_not_told_of_where_nobody_writes_any(self):
        assert deprecation(a_model(pods={"maxSurge": 0, "template": {}})) == ()
