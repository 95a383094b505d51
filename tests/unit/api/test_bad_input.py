"""The parser and the planner refuse, by name and with numbers, what the API server refuses."""

import math
from pathlib import Path

import pytest

from bad_input import (
    ELSEWHERE,
    GOOD,
    LLAMA_8B,
    REFUSED,
    ROWS,
    TEXT,
    TEXTS,
    UNSERVABLE,
    BadInput,
    BadText,
    Unservable,
    manifest,
)
from tonnage.api.objects import InvalidSpecError, parse_model_deployment
from tonnage.catalog.gpu import CatalogError, built_in_gpus
from tonnage.cli.console import ManifestError
from tonnage.cli.read.manifest import load, parse
from tonnage.sizing.errors import SizingError
from tonnage.sizing.plan import Sizing
from tonnage.sizing.request import ask, look_up
from tonnage.sizing.search import size


def planned(content, model_config: str | None = None) -> Sizing:
    spec = parse_model_deployment(content).spec
    return size(ask(spec, look_up(spec, built_in_gpus(), model_config=model_config)))


def test_the_manifest_that_every_case_changes_is_good():
    assert planned(GOOD).replicas >= 1
    assert planned(GOOD, model_config=LLAMA_8B).replicas >= 1


def test_every_row_of_the_list_is_covered_here_or_said_to_be_elsewhere():
    elsewhere = {row for rows in ELSEWHERE.values() for row in rows}

    assert set(ROWS) | elsewhere == set(range(1, 51))
    assert not set(ROWS) & elsewhere
    assert len(ROWS) >= 25


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case.id)
def test_the_parser_refuses_in_one_short_line_that_names_the_field(case: BadInput):
    with pytest.raises(InvalidSpecError) as refusal:
        parse_model_deployment(manifest(*case.changes))

    said = str(refusal.value)
    assert case.field in said
    assert [part for part in case.shows if part not in said] == []
    assert said.isprintable()
    assert len(said) < 1024


@pytest.mark.parametrize("case", TEXTS, ids=lambda case: case.id)
def test_the_command_line_refuses_a_text_that_readers_differ_on(case: BadText, tmp_path: Path):
    path = tmp_path / "manifest.yaml"
    path.write_text(case.text)

    found = load([str(path)])
    problems = list(found.problems)
    for resource in found.model_deployments:
        with pytest.raises(ManifestError) as refusal:
            parse(resource)
        problems.append(str(refusal.value))
    assert len(problems) == 1
    assert case.parser_says in problems[0]
    assert problems[0].startswith(str(path))


def test_the_text_that_every_case_changes_is_good(tmp_path: Path):
    path = tmp_path / "manifest.yaml"
    path.write_text(TEXT)

    [resource] = load([str(path)]).model_deployments

    assert parse(resource).spec.scaling.max_replicas == 8


@pytest.mark.parametrize("case", UNSERVABLE, ids=lambda case: case.id)
def test_the_planner_says_why_in_numbers(case: Unservable):
    with pytest.raises((SizingError, CatalogError)) as refusal:
        planned(manifest(*case.changes), model_config=case.config)

    said = str(refusal.value)
    assert [part for part in case.shows if part not in said] == []
    assert said.isprintable()
    assert len(said) < 1024


def test_the_largest_demand_that_is_allowed_stays_finite():
    sizing = planned(manifest(("spec.demand.requestsPerSecond", 10**12 - 1)))

    assert math.isfinite(sizing.replicas)
    assert math.isfinite(sizing.output_tokens_per_s)


@pytest.mark.parametrize(
    ("content", "field"),
    [
        ({}, "apiVersion"),
        ({"apiVersion": "tonnage.dev/v2", "kind": "ModelDeployment"}, "apiVersion"),
        ({**GOOD, "kind": "Deployment"}, "kind"),
        ({**GOOD, "kind": "\x1b[31m" * 1000}, "kind"),
        ({**GOOD, "spec": None}, "spec"),
        ({**GOOD, "spec": [1]}, "spec"),
        ({**GOOD, "metadata": "llama"}, "metadata"),
        ({**GOOD, "metadata": {}}, "metadata.name"),
        ({**GOOD, "metadata": {"name": 7}}, "metadata.name"),
        ({**GOOD, "metadata": {"name": "a", "namespace": ["b"]}}, "metadata.namespace"),
        ({**GOOD, "metadata": {"name": "a", "generation": "x"}}, "metadata.generation"),
        (manifest(("spec.x\ny", 1)), "x\\ny"),
        (manifest(("spec.scaling.maxReplicas", math.nan)), "spec.scaling.maxReplicas"),
        (manifest(("spec.demand.requestsPerSecond", math.inf)), "spec.demand.requestsPerSecond"),
        (manifest(("spec.engine", {("a", "b"): 1})), "spec"),
    ],
)
def test_what_is_hardly_a_manifest_is_refused_too(content, field: str):
    with pytest.raises(InvalidSpecError) as refusal:
        parse_model_deployment(content)

    assert field in str(refusal.value)
    assert str(refusal.value).isprintable()
    assert len(str(refusal.value)) < 1024


def test_endless_nesting_is_refused():
    deep: list = []
    for _ in range(100_000):
        deep = [deep]

    with pytest.raises(InvalidSpecError, match="spec"):
        parse_model_deployment(manifest(("spec.x", deep)))


def test_a_reader_of_stored_objects_skips_fields_of_a_later_version():
    stored = manifest(("spec.later", {"a": 1}), ("spec.pods", {"later": True}))

    assert parse_model_deployment(stored, tolerate_unknown=True).name == "llama"
    with pytest.raises(InvalidSpecError, match="unknown field"):
        parse_model_deployment(stored)


def test_many_errors_are_counted_and_the_first_are_shown():
    wrong = manifest(*((f"spec.field{number}", 1) for number in range(9)))

    with pytest.raises(InvalidSpecError, match="and 4 more"):
        parse_model_deployment(wrong)
