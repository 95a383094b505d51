"""Fields of ``pods`` that a template takes the place of: upgraded, and moved, without a roll.

pytest -m upgrade tests/upgrade/test_pod_fields.py
"""

import json
from dataclasses import dataclass, field
from typing import Any

import pytest

import earlier
import site_lab
from helm import CHART
from site_lab import CRDS, NAME, a_model, until
from tonnage.api.objects import parse_model_deployment
from tonnage.api.pod_template import given_template
from tonnage.api.pods import DEPRECATED, Pods
from tonnage.cluster.kube import MODEL_DEPLOYMENTS, REPLICA_SETS
from upgrade_lab import NEW, OLD, Record, an_old_site

NO_COMMIT = earlier.obstacle(earlier.BEFORE_TEMPLATES)
pytestmark = [
    pytest.mark.upgrade,
    *site_lab.pytestmark,
    pytest.mark.skipif(NO_COMMIT is not None, reason=str(NO_COMMIT)),
]
GOING = {
    "nodeSelector": {"nvidia.com/gpu.present": "true"},
    "tolerations": [{"key": "pool", "value": "chat", "effect": "NoSchedule"}],
    "cpu": "10m",
    "cpuLimit": "2",
    "memory": "1Mi",
    "memoryLimit": "8Gi",
    "ephemeralStorage": "1Mi",
    "ephemeralStorageLimit": "1Gi",
    "priorityClassName": "serving",
    "runtimeClassName": "nvidia",
    "topologySpreadConstraints": [{"topologyKey": "kubernetes.io/hostname"}],
    "serviceAccountName": "default",
    "imagePullSecrets": [{"name": "mirror"}],
    "env": [{"name": "AWS_ACCESS_KEY_ID", "secretKeyRef": {"name": "store", "key": "id"}}],
    "fsGroupChangePolicy": "OnRootMismatch",
    "labels": {"inference-pool": "chat"},
    "annotations": {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false"},
}
KEPT = {"maxSurge": 0, "gpuNodes": [{"key": "nvidia.com/gpu.present", "values": ["true"]}]}
NEEDED = (
    ("scheduling.k8s.io/v1", "PriorityClass", "serving", {"value": 1}),
    ("node.k8s.io/v1", "RuntimeClass", "nvidia", {"handler": "nvidia"}),
)
SECRET = {
    "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "store"}, "stringData": {"id": "x"},
}  # fmt: skip


@dataclass(slots=True, kw_only=True)
class Run:
    """What there was after each step."""

    record: Record
    replica_sets: dict[str, set[str]] = field(default_factory=dict)
    specs: dict[str, Any] = field(default_factory=dict)
    """Of the Deployment."""
    reasons: dict[str, dict[str, str]] = field(default_factory=dict)
    """Of the plan: messages by their codes."""
    digests: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Of the pod template and of the spec that it was made from, as the Deployment has them."""

    def look(self, step: str) -> None:
        tenant = self.record.tenant
        self.record.look(step)
        found = tenant.all_of(REPLICA_SETS)
        self.replica_sets[step] = {each["metadata"]["name"] for each in found}
        self.reasons[step] = told(tenant)
        deployment = tenant.deployment() or {}
        self.specs[step] = deployment["spec"]
        notes = deployment["metadata"]["annotations"]
        self.digests[step] = tuple(
            notes[f"tonnage.dev/{each}-digest"] for each in ("template", "spec")
        )


def told(tenant: site_lab.Tenant) -> dict[str, str]:
    reasons = tenant.status().get("plan", {}).get("reasons", ())
    return {each["code"]: each["message"] for each in reasons}


def template_of(pods: Any) -> Any:
    manifest = a_model(scaling={"maxReplicas": 1}, pods=pods)
    return given_template(parse_model_deployment(manifest).spec.pods)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The operator of then, that of now, and the template in place of the fields."""
    folder = tmp_path_factory.mktemp("pod-fields")
    with an_old_site(folder, earlier.BEFORE_TEMPLATES) as driver:
        record, kubectl = driver.record, driver.record.site.plane.kubectl
        found, tenant = Run(record=record), driver.record.tenant
        driver.release(driver.old_chart, OLD)
        for version, kind, name, more in NEEDED:
            body = {"apiVersion": version, "kind": kind, "metadata": {"name": name}, **more}
            kubectl.apply([body])
        tenant.apply(SECRET, a_model(scaling={"maxReplicas": 1}, pods=GOING | KEPT))
        tenant.wait_ready()
        found.look("old")
        kubectl("apply", "--server-side", "-f", CRDS)
        driver.release(CHART, NEW)
        driver.settle()
        tenant.change(scaling={"maxReplicas": 2})  # words go along with what is news
        until(lambda: "DeprecatedFields" in told(tenant), "fields are named", told=tenant.told)
        driver.settle()
        found.look("new")
        moved = KEPT | {"template": template_of(GOING)}
        path = MODEL_DEPLOYMENTS.path(tenant.namespace, NAME)
        record.site.api.apply(path, a_model(pods=moved), manager="kubectl", force=True)
        until(lambda: "DeprecatedFields" not in told(tenant), "nothing is left", told=tenant.told)
        driver.settle()
        found.look("moved")
        return found


def test_the_upgrade_names_all_fields_and_what_to_write(run: Run):
    fields = {Pods.model_fields[name].alias for name in DEPRECATED}
    message = run.reasons["new"]["DeprecatedFields"]

    assert GOING.keys() == fields
    assert {each for each in fields if f"pods.{each}" in message} == fields
    written = message.partition("pods.template: ")[2]
    assert len(message) == 1024  # as much as a status has of it
    assert json.dumps(template_of(GOING)).startswith(written)
    assert "DeprecatedFields" not in run.reasons["old"]


@pytest.mark.parametrize("step", ["new", "moved"])
def test_no_pod_is_replaced_and_no_replica_set_is_made(run: Run, step: str):
    before, after = run.record.pictures["old"], run.record.pictures[step]

    assert run.specs[step] == run.specs["old"]
    assert after.processes == before.processes
    assert run.replica_sets[step] == run.replica_sets["old"]
    assert len(run.replica_sets[step]) == 1
    assert run.digests[step][0] == run.digests["old"][0]


def test_the_upgrade_writes_nothing_and_the_move_what_the_pods_were_made_from(run: Run):
    """A Deployment has another generation for another annotation, too."""
    generations = {step: run.record.pictures[step].generations[NAME] for step in run.digests}

    assert generations == {"old": 1, "new": 1, "moved": 2}
    assert run.digests["new"][1] == run.digests["old"][1]
    assert run.digests["moved"][1] != run.digests["new"][1]
