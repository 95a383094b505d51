"""The values of the chart: complete, documented, and nothing else is taken."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from helm import CHART
from thorough import one_in
from tonnage.catalog.gpu import GPU_FOLDER, Gpu
from tonnage.manifests.names import labels
from tonnage.settings import Settings
from tonnage_lab.processes import LabError

H200 = (GPU_FOLDER / "h200.toml").read_text()
VALUES = yaml.safe_load((CHART / "values.yaml").read_text())
SCHEMA = json.loads((CHART / "values.schema.json").read_text())
FILLED_IN_BY_THE_CHART = {
    "prometheusUrl": "",
    "operatorNamespace": None,
    "podTemplates": None,
    "catalogFolder": None,
    "calibrationFolder": None,
}
"""Required from the user, the namespace of the release, as the policies, and folders of mounts."""


def defaults() -> dict[str, Any]:
    settings = Settings(prometheus_url="http://prometheus.test")
    return settings.model_dump(mode="json", by_alias=True) | FILLED_IN_BY_THE_CHART


def test_every_setting_stands_in_the_values_with_its_default():
    assert VALUES["settings"] == defaults()


def test_the_schema_of_the_settings_is_that_of_the_operator():
    schema = undocumented(Settings.model_json_schema(by_alias=True))
    wanted = schema["properties"]
    assert SCHEMA["$defs"] == schema["$defs"]
    written = dict(SCHEMA["properties"]["settings"]["properties"])

    assert set(written) == set(wanted)
    written["namespaces"] = written["namespaces"] | {"items": {"type": "string"}}
    labels = written["podMonitorLabels"]
    assert labels["additionalProperties"]["type"] == ["string", "null"]
    written["podMonitorLabels"] = labels | {
        "additionalProperties": labels["additionalProperties"] | {"type": "string"}
    }
    for name in set(wanted) - set(FILLED_IN_BY_THE_CHART):
        assert written[name] in (wanted[name], or_null(wanted[name]))


def or_null(node: dict[str, Any]) -> dict[str, Any]:
    """Take null too: by it Helm drops a default, and keeps it with --reuse-values."""
    if "enum" in node:
        return node | {"enum": [*node["enum"], None]}
    if "anyOf" in node:
        return node | {"anyOf": [*node["anyOf"], {"type": "null"}]}
    return node | {"type": [node["type"], "null"]}


NEVER_NULL = {"image/repository", "serviceAccount/create", "settings/prometheusUrl"}


def leaves(node: Any = SCHEMA, path: str = ""):
    for name, child in node.get("properties", {}).items():
        here = f"{path}/{name}".lstrip("/")
        if "properties" in child:
            yield from leaves(child, here)
        elif name != "global":
            yield here


def accepts_null(path: str) -> bool:
    node = SCHEMA
    for name in path.split("/"):
        node = node["properties"][name]
    return "null" in node.get("type", ()) or None in node.get("enum", ()) or (
        {"type": "null"} in node.get("anyOf", ())
    )  # fmt: skip


def test_every_value_may_be_null_but_what_the_chart_cannot_do_without():
    assert {path for path in leaves() if not accepts_null(path)} == NEVER_NULL


@pytest.mark.lab
def test_a_chart_renders_without_any_value_that_may_be_null(helm):
    """As values of an older chart are, which with --reuse-values take the place of the defaults."""
    values: dict[str, Any] = {}
    for path in set(leaves()) - NEVER_NULL:
        *sections, name = path.split("/")
        here = values
        for each in sections:
            here = here.setdefault(each, {})
        here[name] = None

    rendered = helm.template(**values)

    pod = next(each for each in rendered if each["kind"] == "Deployment")["spec"]["template"]
    assert pod["spec"]["securityContext"]["runAsNonRoot"] is True


def undocumented(node: Any) -> Any:
    """Leave out of a schema what does not bind a value."""
    if isinstance(node, list):
        return [undocumented(each) for each in node]
    if not isinstance(node, dict):
        return node
    left_out = {"title", "description", "default"}
    return {key: undocumented(value) for key, value in node.items() if key not in left_out}


def objects(node: Any = SCHEMA, path: str = ""):
    if isinstance(node, dict):
        if "properties" in node:
            yield path, node
        for key, child in node.items():
            yield from objects(child, f"{path}/{key}")


def test_every_object_of_the_schema_is_closed():
    assert [path for path, node in objects() if node["additionalProperties"] is not False] == []


def test_every_value_has_a_schema_and_the_reverse():
    helms_own = {"global"}

    assert set(SCHEMA["properties"]) - helms_own == set(VALUES)
    for name, value in VALUES.items():
        properties = SCHEMA["properties"][name].get("properties")
        assert properties is None or set(properties) == set(value), name


def test_every_value_is_explained():
    lines = (CHART / "values.yaml").read_text().splitlines()
    top = [number for number, line in enumerate(lines) if line and line[0] not in "# }"]
    plain = {
        "image", "imagePullSecrets", "nameOverride", "fullnameOverride", "crds", "rbac",
        "admissionPolicy", "serviceAccount", "resources", "podAnnotations", "podLabels",
        "priorityClassName", "nodeSelector", "tolerations", "extraVolumes", "extraVolumeMounts",
        "serviceMonitor", "networkPolicy",
    }  # fmt: skip

    unexplained = {lines[n].split(":")[0] for n in top if not lines[n - 1].startswith("#")}

    assert unexplained <= plain


def nested(path: str, value: Any) -> dict[str, Any]:
    for name in reversed(path.split("/")):
        value = {name: value}
    return value


@pytest.mark.lab
@pytest.mark.parametrize(
    ("path", "value", "complaint"),
    [
        ("replicas", 2, "additional properties 'replicas' not allowed"),
        ("settings/bogus", 1, "at '/settings': additional properties 'bogus' not allowed"),
        ("image/tags", "1", "at '/image': additional properties 'tags' not allowed"),
        ("settings/tickS", "15s", "at '/settings/tickS': got string, want null or number"),
        ("settings/tickS", 0, "at '/settings/tickS'"),
        ("settings/maxGpus", 1.5, "at '/settings/maxGpus'"),
        ("settings/mode", "Full", "at '/settings/mode': value must be one of 'full', 'scaleOnly'"),
        ("settings/namespaces", [""], "at '/settings/namespaces/0'"),
        (
            "settings/namespaces",
            "team-a",
            "at '/settings/namespaces': got string, want null or array",
        ),
        ("settings/operatorNamespace", "other", "at '/settings/operatorNamespace'"),
        ("settings/catalogFolder", "/etc", "at '/settings/catalogFolder'"),
        ("settings/calibrationFolder", "/etc", "at '/settings/calibrationFolder'"),
        ("settings/prometheusUrl", "prometheus:9090", "at '/settings/prometheusUrl'"),
        ("settings/prometheusUrl", "http://user:secret@prometheus", "at '/settings/prometheusUrl'"),
        ("settings/probePort", 0, "at '/settings/probePort'"),
        ("image/tag", "latest", "at '/image/tag'"),
        ("image/digest", "sha256:abc", "at '/image/digest'"),
        ("image/repository", "", "at '/image/repository'"),
        ("rbac/scope", "Cluster", "at '/rbac/scope'"),
        ("rbac/create", "yes", "at '/rbac/create': got string, want null or boolean"),
        ("gpuClasses", {"../h200.toml": "x"}, "'../h200.toml' does not match pattern"),
        ("gpuClasses", {"h200.toml": {"name": "H200"}}, "at '/gpuClasses/h200.toml'"),
        ("calibrations", {"../h200.json": "{}"}, "'../h200.json' does not match pattern"),
        ("calibrations", {"h200.json": {"version": 1}}, "at '/calibrations/h200.json'"),
        ("networkPolicy/egressPorts", [70000], "at '/networkPolicy/egressPorts/0'"),
        ("podMonitor/interval", "30", "at '/podMonitor/interval'"),
        ("settings/namespaces", ["a", "b", "a"], "at '/settings/namespaces': items at 0 and 2"),
        ("settings/scraperNamespaces", ["a", "a"], "at '/settings/scraperNamespaces': items"),
        ("settings/scraperNamespaces", ["A"], "at '/settings/scraperNamespaces/0'"),
        ("settings/podMonitorLabels", {"a b": "x"}, "'a b' does not match pattern"),
        ("settings/podMonitorLabels", {"release": "a b"}, "'/settings/podMonitorLabels/release'"),
        ("prometheusRule/alerts/sloMissed/for", "15", "at '/prometheusRule/alerts/sloMissed/for'"),
        ("prometheusRule/alerts/bogus", {}, "additional properties 'bogus' not allowed"),
        ("prometheusRule/tickAgeS", 0, "at '/prometheusRule/tickAgeS'"),
        ("dashboard/labels", {"a": 1}, "at '/dashboard/labels/a'"),
        ("settings/logFormat", "xml", "at '/settings/logFormat'"),
    ],
)
def test_a_wrong_value_is_refused_by_name(helm, path: str, value: Any, complaint: str):
    with pytest.raises(LabError) as refusal:
        helm.template(**nested(path, value))

    assert complaint in str(refusal.value)


@pytest.mark.lab
@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"settings": {"prometheusUrl": ""}}, "settings.prometheusUrl is needed"),
        ({"rbac": {"scope": "namespaced"}}, "settings.namespaces is empty"),
        (
            {"settings": {"namespaces": ["team-a"]}},
            "settings.namespaces lists team-a, but rbac.scope is cluster",
        ),
        ({"serviceAccount": {"create": False}}, "serviceAccount.name is needed"),
        *(
            ({"podLabels": {name: "x"}}, f"podLabels must not set {name}: the chart sets it itself")
            for name in (
                "app.kubernetes.io/name",
                "app.kubernetes.io/instance",
                "app.kubernetes.io/version",
                "app.kubernetes.io/managed-by",
                "helm.sh/chart",
            )
        ),
        (
            {"podMonitor": {"create": True, "labels": {"app.kubernetes.io/name": "x"}}},
            "podMonitor.labels must not set app.kubernetes.io/name",
        ),
        (
            {"serviceMonitor": {"create": True, "labels": {"app.kubernetes.io/name": "x"}}},
            "serviceMonitor.labels must not set app.kubernetes.io/name",
        ),
        *(
            (
                {"settings": {"podMonitorLabels": {name: "x"}}},
                f"settings.podMonitorLabels must not set {name}: the operator sets it itself",
            )
            for name in labels("llama")
        ),
        (
            {"settings": {"prometheusAuth": {"basic": {"usernameFile": "/a"}}}},
            "prometheusAuth",
        ),
        ({"settings": {"prometheusAuth": {"headers": {"X-A": "a\nb"}}}}, "prometheusAuth"),
        (
            {"podAnnotations": {"checksum/settings": "x"}},
            "podAnnotations must not set checksum/settings",
        ),
        *(
            (
                {"image": {"repository": f"{name}:latest"}},
                f"image.repository {name}:latest holds a tag: put it into image.tag",
            )
            for name in ("tonnage/operator", "operator", "registry.test:5000/tonnage/operator")
        ),
        ({"gpuClasses": {"a.toml": "name = "}}, "gpuClasses: a.toml is not TOML: "),
        ({"gpuClasses": {"a.toml": H200.replace('name = "H200"', "")}}, "a.toml has no name"),
        (
            {"gpuClasses": {"a.toml": 'color = "red"\n' + H200}},
            "a.toml has an unknown field color; known: aliases, ",
        ),
        (
            {"gpuClasses": {"a.toml": H200.replace("tdp_watts = 700", 'tdp_watts = "700"')}},
            "a.toml: tdp_watts is a string, wanted: float64",
        ),
        ({"gpuClasses": {"a.toml": H200, "b.toml": H200}}, "a.toml and b.toml both define H200"),
        ({"calibrations": {"a.json": "{"}}, "calibrations: a.json is not JSON: "),
    ],
)
def test_values_that_break_what_they_are_rendered_into_are_refused_in_a_sentence(
    helm, values, sentence: str
):
    with pytest.raises(LabError) as refusal:
        helm.template(**values)

    assert sentence in str(refusal.value)


@pytest.mark.lab
@pytest.mark.parametrize(
    "path", one_in(6, sorted(GPU_FOLDER.glob("*.toml")), name=lambda path: path.stem)
)
def test_every_class_of_the_catalogue_may_be_given(helm, path: Path):
    assert helm.template(gpuClasses={path.name: path.read_text()})


@pytest.mark.lab
def test_a_registry_may_have_a_port(helm):
    assert helm.template(image={"repository": "registry.test:5000/tonnage/operator"})


def test_the_chart_knows_the_fields_of_a_gpu_class_that_the_operator_does():
    text = (CHART / "templates/_helpers.tpl").read_text()
    _, _, rest = text.partition('{{- define "tonnage.gpuClassFields" -}}')
    known = yaml.safe_load(rest.partition("{{- end }}")[0])
    fields = dataclasses.fields(Gpu)
    defaulted = {
        each.name
        for each in fields
        if each.default is not dataclasses.MISSING
        or each.default_factory is not dataclasses.MISSING
    }

    assert set(known["optional"]) == defaulted
    assert set(known["required"]) == {each.name for each in fields} - defaulted
