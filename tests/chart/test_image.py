"""The image's recipe fits the repository and the chart. The kind lane builds it."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
RECIPE = (ROOT / "deploy/Dockerfile").read_text()
PINS = {
    canonicalize_name(name): version
    for line in (ROOT / "constraints.txt").read_text().splitlines()
    if not line.startswith("#")
    for name, _, version in [line.partition("==")]
}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_it_copies_what_exists():
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", RECIPE, re.MULTILINE)
    sources = [source for line in copied for source in line.split()]

    assert sources
    assert [source for source in sources if not (ROOT / source).exists()] == []


def test_it_copies_all_that_the_package_carries():
    carried = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]

    assert [path for path in carried if f"COPY {path.split('/')[0]} " not in RECIPE] == []


def test_it_runs_as_the_user_that_the_chart_asks_for():
    template = (ROOT / "charts/tonnage/templates/deployment.yaml").read_text()

    assert re.findall(r"^USER (\d+):(\d+)$", RECIPE, re.MULTILINE) == [("65532", "65532")]
    assert "runAsUser: 65532" in template
    assert "runAsGroup: 65532" in template


def test_it_runs_the_command_of_the_chart():
    assert 'ENTRYPOINT ["tonnage"]' in RECIPE
    assert PROJECT["project"]["scripts"]["tonnage"]


@pytest.mark.parametrize("dependency", PROJECT["project"]["dependencies"])
def test_every_dependency_is_pinned_within_its_bounds(dependency: str):
    requirement = Requirement(dependency)

    assert requirement.specifier.contains(PINS[canonicalize_name(requirement.name)])


def test_the_image_has_the_version_of_the_chart():
    chart = yaml.safe_load((ROOT / "charts/tonnage/Chart.yaml").read_text())

    assert chart["appVersion"] == PROJECT["project"]["version"]
