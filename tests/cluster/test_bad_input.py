"""What the API server refuses, what it lets through for the planner to say, row by row."""

import json
import re

import pytest

import api_hand
from api_hand import Object
from bad_input import (
    GOOD,
    REFUSED,
    TEXT,
    TEXTS,
    UNSERVABLE,
    BadInput,
    BadText,
    Change,
    Unservable,
    manifest,
)
from thorough import one_of_each
from tonnage.api.objects import parse_model_deployment
from tonnage.catalog.gpu import CatalogError, built_in_gpus
from tonnage.cluster.calls import KubernetesError
from tonnage.cluster.kube import MODEL_DEPLOYMENTS, KubeApi
from tonnage.sizing.errors import SizingError
from tonnage.sizing.request import ask, look_up
from tonnage.sizing.search import size
from tonnage_lab.kubectl import Kubectl
from tonnage_lab.processes import LabError

pytestmark = pytest.mark.lab


def dry_run(api: KubeApi, namespace: str, *changes: Change, **how: str) -> Object:
    return api_hand.dry_run(api, MODEL_DEPLOYMENTS, namespace, manifest(*changes), **how)


def refusal_of(api: KubeApi, *changes: Change) -> str:
    """Return what the API server says, in which a list item is written as the parser does."""
    try:
        dry_run(api, "default", *changes)
    except KubernetesError as error:
        return re.sub(r"\[(\d+)\]", r".\1", error.detail)
    return ""


def read_text(kubectl: Kubectl, namespace: str, text: str) -> str:
    return kubectl("create", "--dry-run=server", "-n", namespace, "-f", "-", text=text)


def refusal_of_text(kubectl: Kubectl, text: str) -> str:
    with pytest.raises(LabError) as refusal:
        read_text(kubectl, "default", text)
    return str(refusal.value)


def rule(case: BadInput) -> tuple[str, type]:
    """Return what tells the rules of the CRD apart: a field, and the type that it was given."""
    return case.field, type(case.changes[-1][1])


def test_the_good_manifest_is_taken(administrator: KubeApi, kubectl: Kubectl, namespace: str):
    assert dry_run(administrator, namespace)["spec"]["slo"] == GOOD["spec"]["slo"]
    assert "created" in read_text(kubectl, namespace, TEXT)


def test_every_case_has_a_name_of_its_own():
    assert len({case.id for case in REFUSED}) == len(REFUSED)


@pytest.mark.parametrize("case", one_of_each(REFUSED, rule, name=lambda case: case.id))
def test_the_api_server_refuses_and_names_the_field(administrator: KubeApi, case: BadInput):
    said = refusal_of(administrator, *case.changes)

    assert case.field in said
    assert [part for part in case.shows if part not in said] == []


@pytest.mark.parametrize("case", TEXTS, ids=lambda case: case.id)
def test_yaml_is_refused_or_read_as_older_yaml_says(
    kubectl: Kubectl, namespace: str, case: BadText
):
    if case.api_says is None:
        assert "created" in read_text(kubectl, namespace, case.text)
    else:
        assert case.api_says in refusal_of_text(kubectl, case.text)


@pytest.mark.parametrize(
    "case", [case for case in UNSERVABLE if case.changes], ids=lambda case: case.id
)
def test_the_planner_says_why_for_an_object_that_the_api_server_took(
    administrator: KubeApi, namespace: str, case: Unservable
):
    stored = dry_run(administrator, namespace, *case.changes)
    spec = parse_model_deployment(stored, tolerate_unknown=True).spec

    with pytest.raises((SizingError, CatalogError)) as refusal:
        size(ask(spec, look_up(spec, built_in_gpus())))

    assert [part for part in case.shows if part not in str(refusal.value)] == []


def test_row_12_what_is_not_in_the_schema_is_refused_by_default_and_never_kept(
    administrator: KubeApi, kubectl: Kubectl, namespace: str
):
    change = ("spec.pods", {"hostNetwork": True, "cpu": "2"})

    with pytest.raises(LabError, match=r'unknown field "spec.pods.hostNetwork"'):
        read_text(kubectl, namespace, json.dumps(manifest(change)))
    kept = dry_run(administrator, namespace, change, validation="Ignore")
    defaults = {"compileCache": "Pod", "maxSurge": 1, "sharedMemory": "8Gi"}
    assert kept["spec"]["pods"] == {"cpu": "2"} | defaults


@pytest.mark.parametrize(
    ("labels", "complaint"),
    [
        ({"a": "x" * 200_000}, "must be no more than 63"),
        ({"model": 'x"} or vector(1e9) #'}, "metadata.labels"),
        ({"model": "x'}"}, "metadata.labels"),
        ({"model": "a\nb"}, "metadata.labels"),
        ({"model": "a\\b"}, "metadata.labels"),
        ({"model": ".*"}, "metadata.labels"),
        ({"a b": "x"}, "metadata.labels"),
    ],
    ids=lambda each: ascii(each)[:40],
)
def test_rows_20_and_21_labels_that_are_none_are_refused(kubectl: Kubectl, labels, complaint: str):
    said = refusal_of_text(kubectl, json.dumps(manifest(("metadata.labels", labels))))

    assert complaint in said


def test_row_20_annotations_have_a_limit(administrator: KubeApi):
    annotations = {f"a{number}": "x" * 100_000 for number in range(3)}

    said = refusal_of(administrator, ("metadata.annotations", annotations))

    assert "metadata.annotations: Too long" in said


def test_row_31_an_object_beyond_the_limit_of_the_store_is_refused(kubectl: Kubectl):
    long = manifest(("spec.model.id", "a/" + "b" * 4_000_000))

    said = refusal_of_text(kubectl, json.dumps(long))

    assert "limit is 3145728" in said, "of the request, before any field is looked at"


def test_row_32_a_quota_bounds_the_objects_of_one_tenant(kubectl: Kubectl, namespace: str):
    resource = "count/modeldeployments.tonnage.dev"
    kubectl("create", "quota", "models", "-n", namespace, f"--hard={resource}=2")
    kubectl(
        "wait", "quota/models", "-n", namespace, "--timeout=60s",
        "--for=jsonpath={.status.hard.count/modeldeployments\\.tonnage\\.dev}=2",
    )  # fmt: skip

    for name in ("a", "b"):
        text = json.dumps(manifest(("metadata.name", name)))
        kubectl("create", "-n", namespace, "-f", "-", text=text)

    with pytest.raises(LabError, match="exceeded quota: models"):
        kubectl(
            "create", "-n", namespace, "-f", "-",
            text=json.dumps(manifest(("metadata.name", "c"))),
        )  # fmt: skip


def test_row_34_there_is_no_scale_subresource_to_write_replicas_through(
    kubectl: Kubectl, namespace: str
):
    kubectl("create", "-n", namespace, "-f", "-", text=json.dumps(GOOD))

    with pytest.raises(LabError, match=r"could not find the requested resource|NotFound|not found"):
        kubectl("scale", "-n", namespace, "modeldeployment/llama", "--replicas=9")
