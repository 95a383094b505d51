"""What the operator's account still may do where the chart's policy holds it."""

import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from bad_input import manifest
from helm import CHART, Helm, with_prometheus
from tonnage.cluster.kube import DEPLOYMENTS, KubeApi
from tonnage_lab import assets, controlplane
from tonnage_lab.controlplane import ControlPlane
from tonnage_lab.kubectl import Kubectl
from tonnage_lab.processes import LabError, wait_until

pytestmark = pytest.mark.lab

NOBODY = str(uuid.UUID(int=0))
OURS = {"tonnage.dev/managed": "true"}


def policies(home: str, folder: Path, ending: str) -> list[dict[str, Any]]:
    """Return those for the account of a release in this namespace whose name ends so."""
    helm = Helm(program=assets.ensure(["helm"])["helm"], home=folder)
    made = helm(
        "template", "tonnage", CHART, "--namespace", home, "--show-only",
        "templates/admission-own.yaml", values=with_prometheus({}),
    )  # fmt: skip
    found = yaml.load_all(made, Loader=yaml.CSafeLoader)
    return [each for each in found if each["metadata"]["name"].endswith(ending)]


def delete(kubectl: Kubectl, manifests: list[dict[str, Any]]) -> None:
    for each in manifests:
        kubectl("delete", each["kind"], each["metadata"]["name"])


@pytest.fixture(scope="module")
def account(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The account of a release of which the policy of what it writes is installed, and no more."""
    home = f"held-{uuid.uuid4().hex[:8]}"
    made = policies(home, tmp_path_factory.mktemp("helm"), ".own")
    control_plane.kubectl.apply(made)
    yield f"system:serviceaccount:{home}:tonnage"
    delete(control_plane.kubectl, made)


@pytest.fixture
def held(kubectl: Kubectl, namespace: str, account: str) -> Kubectl:
    """As it writes Deployments in this namespace, once the policy is in force."""
    kubectl("create", "role", "writes", "-n", namespace, "--verb=get,create,patch",
            "--resource=deployments.apps")  # fmt: skip
    kubectl("create", "rolebinding", "writes", "-n", namespace, "--role=writes",
            f"--user={account}")  # fmt: skip

    def is_held() -> bool:
        try:
            written(
                kubectl, namespace, account, a_deployment("none", owner=None), "--dry-run=server"
            )
        except LabError as error:
            return "only what a ModelDeployment of its name controls" in str(error)
        return False

    wait_until(is_held, what="the policy is in force", timeout_s=60, needs={})
    return kubectl


def a_deployment(name: str, *, owner: str | None, uid: str = NOBODY) -> dict[str, Any]:
    """Return one with a command, a key of a Secret and a claim; ``owner`` controls it."""
    by = {"apiVersion": "tonnage.dev/v1alpha1", "kind": "ModelDeployment", "name": owner}
    owners = [by | {"uid": uid, "controller": True}] if owner else []
    key = {"secretKeyRef": {"name": "theirs", "key": "password"}}
    container = {
        "name": "vllm",
        "image": "example.test/any:1",
        "command": ["sh", "-c", "env"],
        "env": [{"name": "A", "valueFrom": key}],
        "volumeMounts": [{"name": "theirs", "mountPath": "/theirs"}],
        "securityContext": {"allowPrivilegeEscalation": False},
    }
    claim = {"name": "theirs", "persistentVolumeClaim": {"claimName": "theirs"}}
    pod = {
        "automountServiceAccountToken": False,
        "containers": [container],
        "volumes": [claim],
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "labels": OURS, "ownerReferences": owners},
        "spec": {
            "replicas": 0,
            "selector": {"matchLabels": {"app": name}},
            "template": {"metadata": {"labels": {"app": name}}, "spec": pod},
        },
    }


def written(kubectl: Kubectl, namespace: str, account: str, content: Any, *more: str) -> str:
    return kubectl(
        "apply", "--server-side", "--force-conflicts", "-n", namespace, "--as", account, "-f", "-",
        *more, text=json.dumps(content),
    )  # fmt: skip


def test_makes_a_deployment_of_nobody_that_the_garbage_collector_takes(
    held: Kubectl, administrator: KubeApi, namespace: str, account: str
):
    written(held, namespace, account, a_deployment("nobodys", owner="nobodys"))

    path = DEPLOYMENTS.path(namespace, "nobodys")
    wait_until(lambda: administrator.get(path) is None, what="it is gone", timeout_s=60, needs={})


def test_takes_over_what_a_model_deployment_of_another_name_controls(
    held: Kubectl, namespace: str, account: str
):
    held(
        "create", "-n", namespace, "-f", "-", text=json.dumps(manifest(("metadata.name", "other")))
    )
    uid = held.get("mdep", "other", "-n", namespace)["metadata"]["uid"]
    theirs = a_deployment("mine", owner="other", uid=uid)
    held("create", "-n", namespace, "-f", "-", text=json.dumps(theirs))
    taken = a_deployment("mine", owner="mine", uid=uid)

    said = written(held, namespace, account, taken, "--dry-run=server")

    assert "serverside-applied" in said


@pytest.fixture
def own_plane(
    programs: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Kubectl]:
    """Of a control plane whose policies no other test needs."""
    cluster = controlplane.start(
        tmp_path_factory.mktemp("plane"), programs=programs, crds=CHART.parents[1] / "crds"
    )
    yield cluster.kubectl
    cluster.stop()


@pytest.mark.thorough
def test_scales_what_came_after_the_policy_of_scales_was_gone_once(
    own_plane: Kubectl, tmp_path: Path
):
    """Kubernetes stops its cache of the Deployments then: kubernetes/kubernetes#130887."""
    made, account = policies("home", tmp_path, ".own.scale"), "system:serviceaccount:home:tonnage"
    for kind, name in (("role", "--verb=get,patch"), ("rolebinding", f"--user={account}")):
        more = "--resource=deployments.apps/scale" if kind == "role" else "--role=scales"
        own_plane("create", kind, "scales", "-n", "default", name, more)

    def create(name: str) -> None:
        foreign = a_deployment(name, owner=None)
        del foreign["metadata"]["labels"]
        own_plane("create", "-n", "default", "-f", "-", text=json.dumps(foreign))

    def refusal(name: str) -> str:
        try:
            own_plane("patch", f"deployment/{name}", "-n", "default", "--subresource=scale",
                      "--type=merge", "-p", '{"spec":{"replicas":0}}', "--as", account)  # fmt: skip
        except LabError as error:
            return str(error)
        return ""

    def is_in_force() -> bool:
        return "scales only Deployments with the label" in refusal("before")

    create("before")
    own_plane.apply(made)
    wait_until(is_in_force, what="the policy is in force", timeout_s=60, needs={})
    delete(own_plane, made)
    wait_until(lambda: not is_in_force(), what="it is gone", timeout_s=60, needs={})
    create("since")
    own_plane.apply(made)
    wait_until(is_in_force, what="the policy is in force again", timeout_s=60, needs={})

    assert refusal("since") == ""
