"""Examples and what is rendered for them, held against the API server's own word.

A dry run makes every object as if it were kept, in a namespace that enforces the restricted Pod
Security standard. With ``-m release``, kubeconform also checks them, and what the chart renders,
against schemas made from this API server's OpenAPI document.
"""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import kubeconform
import schemas
from helm import Helm
from rendered import EXAMPLES, children
from tonnage_lab.controlplane import ControlPlane
from tonnage_lab.kubectl import Kubectl
from tonnage_lab.processes import LabError

pytestmark = pytest.mark.lab

EXAMPLE = pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
STANDARD = "pod-security.kubernetes.io"
FOREIGN = "PodMonitor,ServiceMonitor,PrometheusRule"
"""Kinds of the Prometheus operator, which this API server does not know."""
EVERYTHING = {
    "podMonitor": {"create": True},
    "serviceMonitor": {"create": True},
    "prometheusRule": {"create": True},
    "dashboard": {"create": True},
    "networkPolicy": {"create": True},
}


@pytest.fixture
def restricted(kubectl: Kubectl, namespace: str) -> str:
    """A namespace that refuses pods beyond the standard, and warns of their templates."""
    labels = [f"{STANDARD}/{mode}=restricted" for mode in ("enforce", "warn")]
    kubectl("label", "namespace", namespace, *labels, "--overwrite")
    return namespace


def dry_run(kubectl: Kubectl, namespace: str, manifests: list[dict[str, Any]]) -> list[str]:
    """Create objects without keeping them; a warning counts as a refusal."""
    moved = [
        {**each, "metadata": each["metadata"] | {"namespace": namespace}} for each in manifests
    ]
    said = kubectl(
        "create", "--dry-run=server", "--warnings-as-errors", "-f", "-",
        text=json.dumps({"apiVersion": "v1", "kind": "List", "items": moved}),
    )  # fmt: skip
    return said.splitlines()


def pod_of(deployment: dict[str, Any]) -> dict[str, Any]:
    template = deployment["spec"]["template"]
    metadata = template["metadata"] | {"name": deployment["metadata"]["name"]}
    return {"apiVersion": "v1", "kind": "Pod", **template, "metadata": metadata}


@EXAMPLE
def test_an_example_and_its_children_are_taken_where_the_restricted_standard_holds(
    kubectl: Kubectl, restricted: str, path: Path
):
    made = children(path)
    given = list(yaml.safe_load_all(path.read_text()))
    pods = [pod_of(each) for each in (*given, *made) if each["kind"] == "Deployment"]

    said = dry_run(kubectl, restricted, [*given, *made, *pods])

    assert len(said) == len(given) + len(made) + len(pods)
    assert all(line.endswith("created (server dry run)") for line in said)


def test_the_dry_run_would_refuse_a_pod_beyond_the_standard(kubectl: Kubectl, restricted: str):
    [path] = [each for each in EXAMPLES if each.stem == "demo"]
    [deployment] = [each for each in children(path) if each["kind"] == "Deployment"]
    del deployment["spec"]["template"]["spec"]["securityContext"]["runAsNonRoot"]
    del deployment["spec"]["template"]["spec"]["containers"][0]["securityContext"]

    for manifest in (deployment, pod_of(deployment)):
        with pytest.raises(LabError, match="restricted"):
            dry_run(kubectl, restricted, [manifest])


@pytest.fixture(scope="module")
def conforming(
    control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Any]:
    """kubeconform with this API server's schemas; it returns its verdict on each object."""
    program, folder = kubeconform.ensure(), tmp_path_factory.mktemp("schemas")
    openapi = json.loads(control_plane.kubectl("get", "--raw", "/openapi/v2"))
    for file, schema in schemas.of_server(openapi).items():
        (folder / file).write_text(json.dumps(schema))

    def verdicts(manifests: list[dict[str, Any]]) -> list[tuple[str, str, str]]:
        text = yaml.safe_dump_all(manifests)
        command = [
            program, "-schema-location", f"{folder}/{schemas.FILES}", "-skip", FOREIGN,
            "-output", "json", "-verbose",
        ]  # fmt: skip
        ended = subprocess.run(command, input=text, capture_output=True, text=True, check=False)  # noqa: S603
        found = json.loads(ended.stdout)["resources"]
        return [(each["kind"], each["status"], each.get("msg", "")) for each in found]

    return verdicts


@pytest.mark.release
@EXAMPLE
def test_an_example_and_its_children_conform(conforming: Any, path: Path):
    given = [*yaml.safe_load_all(path.read_text()), *children(path)]

    assert [each for each in conforming(given) if each[1] != "statusValid"] == []
    assert len(conforming(given)) == len(given)


@pytest.mark.release
def test_what_the_chart_renders_conforms(
    conforming: Any, programs: dict[str, Path], tmp_path: Path
):
    helm = Helm(program=programs["helm"], home=tmp_path)
    found = conforming(helm.template(**EVERYTHING))

    assert {status for _, status, _ in found} == {"statusValid", "statusSkipped"}, found
    assert sorted(kind for kind, status, _ in found if status == "statusSkipped") == sorted(
        FOREIGN.split(",")
    )


@pytest.mark.release
def test_an_unknown_field_does_not_conform(conforming: Any):
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "a"}}
    [(_, status, said)] = conforming([service | {"spec": {"portz": []}}])

    assert status == "statusInvalid"
    assert "portz" in said
