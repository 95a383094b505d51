"""The examples are what the parser and the CRD take."""

from pathlib import Path

import pytest
import yaml

from tonnage.api.objects import ModelDeployment, parse_model_deployment

EXAMPLES = sorted((Path(__file__).parents[3] / "deploy/examples").glob("*.yaml"))


def model_deployment(path: Path) -> ModelDeployment:
    documents = list(yaml.safe_load_all(path.read_text()))
    [found] = [each for each in documents if each["kind"] == "ModelDeployment"]
    return parse_model_deployment(found)


def test_there_is_an_example_of_each_way_to_use_it():
    specs = [model_deployment(path).spec for path in EXAMPLES]

    assert {spec.scaling.mode for spec in specs} >= {"Auto", "Recommend", "Approve"}
    assert any(spec.slo is None for spec in specs)
    assert any(spec.scale_target for spec in specs)
    assert any(spec.hardware.gpus_per_replica is None for spec in specs)
    assert any(spec.scaling.schedules for spec in specs)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_parses_and_says_what_it_shows(path: Path):
    assert model_deployment(path).spec.scaling.max_replicas >= 1
    assert path.read_text().startswith("# ")


def test_no_two_examples_share_a_name():
    names = [model_deployment(path).name for path in EXAMPLES]

    assert len(set(names)) == len(names)
