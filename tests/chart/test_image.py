"""The image's recipe fits the repository and the chart. The kind lane builds it."""

import re
import subprocess
import tomllib
from collections.abc import Iterator
from importlib import metadata
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


def test_it_copies_all_that_the_wheel_is_made_of():
    wheel = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]
    needed = [*(path.split("/")[0] for path in wheel["packages"]), wheel["hooks"]["custom"]["path"]]

    assert [path for path in needed if f"COPY {path} " not in RECIPE] == []


def test_it_runs_as_the_user_that_the_chart_asks_for():
    template = (ROOT / "charts/tonnage/templates/_helpers.tpl").read_text()

    assert re.findall(r"^USER (\d+):(\d+)$", RECIPE, re.MULTILINE) == [("65532", "65532")]
    assert "runAsUser: 65532" in template
    assert "runAsGroup: 65532" in template


def test_the_allocator_that_it_loads_is_one_that_it_copies():
    [preloaded] = re.findall(r"\bLD_PRELOAD=(\S+)", RECIPE)
    [(name, folder)] = re.findall(
        r"^COPY --from=build \S+/(\S+\.so\.\d) (\S+)$", RECIPE, re.MULTILINE
    )

    assert preloaded == folder + name
    assert "PYTHONMALLOC=malloc" in RECIPE


def test_it_runs_the_command_of_the_chart():
    assert 'ENTRYPOINT ["tonnage"]' in RECIPE
    assert PROJECT["project"]["scripts"]["tonnage"]


@pytest.mark.parametrize("dependency", PROJECT["project"]["dependencies"])
def test_every_dependency_is_pinned_within_its_bounds(dependency: str):
    requirement = Requirement(dependency)

    assert requirement.specifier.contains(PINS[canonicalize_name(requirement.name)])


def hashed(path: str) -> dict[str, tuple[str, int]]:
    """{package: (version, number of hashes)} of a file that pip installs with --require-hashes."""
    entries = re.split(r"\n(?=\S)", (ROOT / path).read_text().strip())
    found = {}
    for entry in entries:
        name, version = re.match(r"([\w.-]+)==([^\s;]+)", entry).groups()
        found[canonicalize_name(name)] = (version, len(re.findall("--hash=sha256:", entry)))
    return found


def needed(*names: str) -> Iterator[str]:
    """Yield these packages and what they need on this platform, as they are installed here."""
    waiting, seen = list(names), set()
    while waiting:
        name = canonicalize_name(waiting.pop())
        if name in seen:
            continue
        seen.add(name)
        yield name
        each = (Requirement(text) for text in metadata.requires(name) or ())
        waiting += [one.name for one in each if one.marker is None or one.marker.evaluate()]


@pytest.mark.parametrize(
    ("path", "asked"),
    [
        ("deploy/requirements.txt", PROJECT["project"]["dependencies"]),
        ("deploy/requirements-build.txt", ["pip", *PROJECT["build-system"]["requires"]]),
    ],
)
def test_all_that_it_downloads_has_a_hash_and_the_version_that_is_tested(path, asked):
    found = hashed(path)
    wanted = set(needed(*(Requirement(each).name for each in asked)))

    assert wanted <= found.keys()
    assert {name for name, (_, hashes) in found.items() if hashes == 0} == set()
    assert {
        name: version
        for name, (version, _) in found.items()
        if name in wanted - {"pip"} and PINS[name] != version
    } == {}


@pytest.mark.parametrize("path", ["deploy/requirements.txt", "deploy/release/tools.txt"])
def test_what_is_pinned_names_no_place_to_download_from(path):
    assert not re.search(r"://|--(extra-)?index|--find-links", (ROOT / path).read_text())


def test_nothing_is_installed_but_by_hash_or_from_what_was_built():
    recipe = RECIPE.replace("\\\n", " ")
    installs = re.findall(r"pip (?:--python \S+ )?(?:install|wheel) [^&\n]*", recipe)

    assert len(installs) == 4
    assert [
        each for each in installs if "--require-hashes" not in each and "--no-deps" not in each
    ] == []


@pytest.mark.parametrize(
    ("base", "unpinned", "passes"),
    [
        ("", "no", False),
        ("python:3.11-slim", "no", False),
        ("python:3.11-slim@sha256:abc", "no", True),
        ("tonnage-kind/python:lab", "yes", True),
    ],
)
def test_it_is_built_on_no_base_but_one_that_is_named_by_its_digest(base, unpinned, passes):
    (check,) = re.findall(r"^RUN (case .*esac)$", RECIPE, re.MULTILINE)

    ended = subprocess.run(  # noqa: S603
        ["/bin/sh", "-c", check], env={"BASE": base, "UNPINNED": unpinned}, capture_output=True,
        check=False,
    )  # fmt: skip

    assert re.findall(r"^ARG BASE.*$", RECIPE, re.MULTILINE) == ["ARG BASE"] * 3, "no default"
    assert (ended.returncode == 0) == passes


def test_the_image_has_the_version_of_the_chart():
    chart = yaml.safe_load((ROOT / "charts/tonnage/Chart.yaml").read_text())

    assert chart["appVersion"] == PROJECT["project"]["version"]
