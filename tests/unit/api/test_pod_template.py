"""What ``spec.pods.template`` may say, how it is merged, and what old fields are read as."""

import re
from pathlib import Path

import pytest
import yaml

from bad_input import manifest
from pod_fields import EVERY_POD_FIELD
from pod_templates import HOSTILE, REAL, a_container, engine
from tonnage.api.objects import InvalidSpecError, parse_model_deployment
from tonnage.api.pod_rules import HTTP_PORT, rules
from tonnage.api.pod_template import (
    as_stored,
    deprecated_fields,
    given_template,
    merged,
    variables_in,
)
from tonnage.api.pods import DEPRECATED, Pods

ROOT = Path(__file__).parents[3]
OURS = ROOT / "operator/tonnage/api/pod_rules.yaml"
CHART = ROOT / "charts/tonnage/files/pod-rules.yaml"


def pods(**fields):
    return parse_model_deployment(manifest(("spec.pods", fields))).spec.pods


@pytest.mark.parametrize("template", REAL.values(), ids=list(REAL))
def test_a_template_of_a_real_kind_is_taken_as_it_stands(template):
    assert pods(template=template).template == template


@pytest.mark.parametrize("case", HOSTILE, ids=lambda case: case.id)
def test_a_hostile_one_is_refused_in_one_line_that_names_the_field(case):
    with pytest.raises(InvalidSpecError) as refusal:
        pods(template=case.template)

    path = f"spec.pods.template.{case.field}".rstrip(".")
    assert str(refusal.value).startswith(f"{path}: ")
    assert str(refusal.value).isprintable()
    assert len(str(refusal.value)) < 800


def test_of_several_mistakes_the_first_few_are_named():
    with pytest.raises(InvalidSpecError) as refusal:
        pods(template=engine(image="a", command=["b"], args=["c"], ports=[], lifecycle={}))

    assert str(refusal.value) == (
        "spec.pods.template.spec.containers[0].image: must not be set: engine.image sets it; "
        "spec.pods.template.spec.containers[0].command: must not be set: Tonnage sets it; "
        "spec.pods.template.spec.containers[0].args: must not be set: engine.args has further "
        "flags; and 2 more"
    )


def test_the_chart_has_the_same_table():
    assert CHART.read_text() == OURS.read_text(), f"cp {OURS} {CHART}"


def test_the_table_has_each_kind_that_it_names():
    table = rules()
    below = {kind.removesuffix("[]") for each in table["fields"].values() for kind in each.values()}

    assert below - {"", "object"} <= table["fields"].keys() | table["names"].keys()
    for part in ("required", "values"):
        for kind, names in table[part].items():
            assert {*names} <= table["fields"][kind].keys(), (part, kind)
    assert str(HTTP_PORT) == table["values"]["port"]["containerPort"]["not"]


class TestMerging:
    def test_goes_by_name_or_path_and_keeps_our_order(self):
        ours = {
            "containers": [{"name": "vllm", "volumeMounts": [{"mountPath": "/a", "name": "x"}]}]
        }
        theirs = {
            "containers": [
                {"name": "side"},
                {"name": "vllm", "volumeMounts": [{"mountPath": "/b", "name": "y"}]},
            ]
        }

        assert merged(ours, theirs) == {
            "containers": [
                {
                    "name": "vllm",
                    "volumeMounts": [
                        {"mountPath": "/a", "name": "x"},
                        {"mountPath": "/b", "name": "y"},
                    ],
                },
                {"name": "side"},
            ]
        }

    def test_takes_a_variable_whole(self):
        ours = {"env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}]}
        theirs = {"env": [{"name": "A", "valueFrom": {}}]}

        assert merged(ours, theirs)["env"] == [
            {"name": "B", "value": "2"},
            {"name": "A", "valueFrom": {}},
        ]

    def test_adds_tolerations_and_takes_another_list_whole(self):
        assert merged({"tolerations": [1], "args": [1]}, {"tolerations": [2], "args": [2]}) == {
            "tolerations": [1, 2],
            "args": [2],
        }


class TestWhatIsStored:
    @pytest.mark.parametrize(
        ("given", "stored"),
        [
            ({"limits": {"cpu": 0.5}}, {"limits": {"cpu": "0.5"}}),
            ({"env": [{"name": "A", "value": ""}]}, {"env": [{"name": "A"}]}),
            ({"nodeSelector": {"a": ""}}, {"nodeSelector": {"a": ""}}),
            ({"nodeSelector": {}, "imagePullSecrets": []}, {}),
            ({"emptyDir": {}, "readOnly": False}, {"emptyDir": {}}),
            ({"optional": False, "command": [""]}, {"optional": False, "command": [""]}),
            ({"resources": {"limits": {}}, "timeoutSeconds": 0}, {"resources": {}}),
            (
                {"sizeLimit": 5, "divisor": 1, "args": [None]},
                {"sizeLimit": "5", "divisor": "1", "args": [""]},
            ),
            (
                {"httpHeaders": [{"name": "A", "value": ""}], "nodeSelector": {"a": None}},
                {"httpHeaders": [{"name": "A", "value": ""}], "nodeSelector": {"a": ""}},
            ),
        ],
    )
    def test_is_without_what_means_nothing(self, given, stored):
        assert as_stored(given) == stored


class TestOldFields:
    def test_are_each_read_into_the_template(self):
        for name in DEPRECATED:
            field = Pods.model_fields[name].alias
            given = pods(**{field: EVERY_POD_FIELD[field]})

            assert given_template(given), field
            assert deprecated_fields(given) == (f"pods.{field}",)

    def test_say_in_the_schema_what_to_write(self):
        text = (ROOT / "crds/modeldeployments.tonnage.dev.yaml").read_text()
        [version] = yaml.safe_load(text)["spec"]["versions"]
        spec = version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
        said = {
            name: field["description"]
            for name, field in spec["pods"]["properties"].items()
            if field["description"].startswith("Deprecated")
        }

        assert said.keys() == {Pods.model_fields[name].alias for name in DEPRECATED}
        assert all(each.startswith("Deprecated, removed in 0.3: use ") for each in said.values())

    def test_are_all_on_the_page_of_upgrades_with_where_each_goes(self):
        page = (ROOT / "deploy/site/pages/how-to/upgrade-0.2.md").read_text()
        rows = dict(re.findall(r"^\| `(\w+)` \| `(template\.\S+)` \|", page, re.MULTILINE))

        assert rows.keys() == {Pods.model_fields[name].alias for name in DEPRECATED}
        for field, path in rows.items():
            node = {"template": given_template(pods(**{field: EVERY_POD_FIELD[field]}))}
            for name in path.replace("[vllm]", ".[0]").split("."):
                [node] = node if name == "[0]" else [node[name]]
            assert node, field

    def test_come_to_a_template_that_one_may_write(self):
        instead = given_template(pods(**EVERY_POD_FIELD))

        assert pods(template=instead).template == instead

    def test_are_merged_with_a_template_beside_them(self):
        given = given_template(
            pods(
                cpu="8",
                nodeSelector={"a": "b"},
                template=engine(resources={"requests": {"memory": "1Gi"}})
                | {"metadata": {"labels": {"c": "d"}}},
            )
        )

        [container] = given["spec"]["containers"]
        assert container["resources"] == {"requests": {"cpu": "8", "memory": "1Gi"}}
        assert given["spec"]["nodeSelector"] == {"a": "b"}
        assert given["metadata"] == {"labels": {"c": "d"}}

    def test_are_none_where_nobody_writes_any(self):
        assert given_template(None) == {}
        assert deprecated_fields(pods(template={"spec": {}}, maxSurge=0)) == ()


def test_the_variables_of_the_engine_are_known_whoever_gives_them():
    given = pods(
        env=[{"name": "A", "secretKeyRef": {"name": "s", "key": "k"}}],
        template={
            "spec": {"containers": [a_container(), {"name": "vllm", "env": [{"name": "B"}]}]}
        },
    )

    assert variables_in(given_template(given)) == {"A", "B"}
