"""The release script: what it refuses, and what it makes.

    pytest -m release tests/packaging

Making one installs Tonnage and the tools of a release into environments of their own: a lane.
"""

import hashlib
import importlib.util
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
SCRIPT = "deploy/release/release.py"
PINNED = "python:3.11-slim@sha256:" + "a" * 64
READ = ("pyproject.toml", "CHANGELOG.md", "charts/tonnage/Chart.yaml", SCRIPT)
pytestmark = [
    pytest.mark.packaging,
    pytest.mark.skipif(shutil.which("git") is None, reason="there is no git"),
]


def loaded():
    spec = importlib.util.spec_from_file_location("release", ROOT / SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules["release"] = module  # where a dataclass looks for its annotations
    spec.loader.exec_module(module)
    return module


release = loaded()
VERSION = release.version()


def git(folder, *arguments):
    who = ("-c", "user.name=a", "-c", "user.email=a@example.test")
    subprocess.run(["git", *who, *arguments], cwd=folder, check=True, capture_output=True)  # noqa: S603, S607


@pytest.fixture
def tree(tmp_path):
    """A repository with what the script reads before it builds anything, and nothing to refuse."""
    folder = tmp_path / "tree"
    for name in READ:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    changelog = folder / "CHANGELOG.md"
    heading = re.compile(rf"^## (Unreleased|{re.escape(VERSION)}).*$", re.MULTILINE)
    titles = iter([f"## {VERSION} - 2026-12-01"])
    text = heading.sub(lambda _: next(titles, "## Earlier"), changelog.read_text())
    changelog.write_text(text)
    git(folder, "init", "--quiet")
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "--message", "All")
    return folder


def refused(tree, *, base=PINNED, offline=False):
    asked = release.Asked(base=base, to=tree.parent / "out", service="pypi", offline=offline)
    return release.refusals(asked, tree)


def commit(tree, name, old, new):
    path = tree / name
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))
    git(tree, "commit", "--quiet", "--all", "--message", "Change")


class TestRefusals:
    def test_are_none_where_all_is_in_order(self, tree):
        assert refused(tree) == []

    @pytest.mark.parametrize(
        "base",
        ["python", "python:3.11-slim", "python@sha256:abc", f"python@sha512:{'a' * 64}",
         PINNED + "0", "@sha256:" + "a" * 64],
    )  # fmt: skip
    def test_a_base_image_without_a_digest(self, tree, base):
        assert refused(tree, base=base) == [
            f"base image {base} has no digest: give NAME:TAG@sha256:..."
        ]

    @pytest.mark.parametrize("name", ["CHANGELOG.md", "new.py"])
    def test_a_tree_that_differs_from_the_commit(self, tree, name):
        with (tree / name).open("a") as file:
            file.write("\n")

        assert refused(tree) == ["the tree is dirty; files that differ from the commit: 1"]

    @pytest.mark.parametrize("heading", ["Unreleased", f"{VERSION}0", f"1{VERSION}", "of 0.1.0"])
    def test_a_version_that_the_changelog_does_not_know(self, tree, heading):
        commit(tree, "CHANGELOG.md", f"## {VERSION} - 2026-12-01", f"## {heading}")

        assert refused(tree) == [f"CHANGELOG.md has no entry for {VERSION}"]

    def test_a_chart_of_another_version(self, tree):
        commit(tree, "charts/tonnage/Chart.yaml", f"version: {VERSION}", "version: 9.9.9")

        assert refused(tree) == [f"the chart is of 9.9.9 for {VERSION}, not of {VERSION}"]

    def test_a_release_that_nobody_audits(self, tree):
        assert refused(tree, offline=True) == [
            "--offline: what is released is audited, which takes a vulnerability service"
        ]

    def test_a_folder_that_holds_another(self, tree):
        (tree.parent / "out").mkdir()
        (tree.parent / "out" / "tonnage-0.0.9.tgz").touch()

        assert refused(tree) == [f"{tree.parent / 'out'} holds something already"]

    def test_are_all_told_at_once_and_nothing_is_made(self, tree):
        out = tree.parent / "out"
        (tree / "new.py").touch()
        command = [sys.executable, tree / SCRIPT, "--base", "python:3", "--to", out, "--offline"]

        ended = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603

        assert ended.returncode == 1
        assert len(ended.stderr.splitlines()) == 4, ended.stderr
        assert ended.stderr.startswith("no release:\n--offline: ")
        assert not out.exists()


AUDITOR = """
import sys
sys.stdout.write({printed!r})
sys.exit({code})
"""
"""Stands for pip-audit, with one of its answers."""


class TestTheAudit:
    HELD = ("idna==3.20", "rich==15.0.0")

    def audited(self, tmp_path, printed, code=0):
        (tmp_path / "auditor.py").write_text(AUDITOR.format(printed=printed, code=code))
        python = tmp_path / "python"
        python.write_text("#!/bin/sh\nprintf '%s\\n' " + " ".join(self.HELD) + "\n")
        python.chmod(0o755)
        release.audit(python, [sys.executable, tmp_path / "auditor.py"], "pypi", tmp_path)

    def found(self, *faults, names=("idna", "rich")):
        held = [{"name": name, "version": "1", "vulns": []} for name in names]
        held[0]["vulns"] = [{"id": each} for each in faults]
        return json.dumps({"dependencies": held, "fixes": []})

    def test_lets_pass_what_is_known_to_have_none(self, tmp_path):
        self.audited(tmp_path, self.found())

        assert (tmp_path / "requirements.txt").read_text().split() == list(self.HELD)

    def test_names_every_vulnerability(self, tmp_path):
        with pytest.raises(release.ReleaseError, match="2 known vulnerabilities: idna A, idna B"):
            self.audited(tmp_path, self.found("A", "B"), code=1)

    def test_stops_when_the_service_does_not_answer(self, tmp_path):
        with pytest.raises(release.ReleaseError, match=r"pypi did not answer.* not released"):
            self.audited(tmp_path, "ERROR: Connection refused", code=1)

    def test_stops_when_a_package_was_left_out(self, tmp_path):
        with pytest.raises(release.ReleaseError, match="1 of 2 packages were audited"):
            self.audited(tmp_path, self.found(names=("idna",)))


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Wheel, chart, CRD and SBOM."""
    folder = tmp_path_factory.mktemp("release")
    (out := folder / "made").mkdir()
    built = release.wheel(out)
    pinned = release.environment(folder / "pinned", release.PINS, built)
    tools = release.environment(folder / "tools", release.TOOL_PINS)
    release.chart(out)
    release.sbom(pinned, tools, out)
    release.checksums(out)
    return out, pinned, tools


@pytest.mark.release
class TestWhatIsMade:
    def test_is_a_wheel_a_chart_a_crd_an_sbom_and_their_sums(self, made):
        out, *_ = made
        names = sorted(path.name for path in out.iterdir())
        (built,) = [name for name in names if name.endswith(".whl")]

        assert set(names) - {built} == {
            "SHA256SUMS", "modeldeployments.tonnage.dev.yaml", f"tonnage-{VERSION}.cdx.json",
            f"tonnage-{VERSION}.tgz",
        }  # fmt: skip
        for line in (out / "SHA256SUMS").read_text().splitlines():
            digest, _, name = line.partition("  ")
            assert hashlib.sha256((out / name).read_bytes()).hexdigest() == digest

    def test_the_sbom_names_every_package_of_the_environment_with_its_version(self, made):
        out, pinned, _ = made
        bom = json.loads((out / f"tonnage-{VERSION}.cdx.json").read_text())
        freeze = release.run(pinned, "-m", "pip", "freeze", "--all", "--exclude", "tonnage")
        held = {
            (canonicalize_name(name), version)
            for name, _, version in (line.partition("==") for line in freeze.splitlines())
        }

        told = {(canonicalize_name(each["name"]), each["version"]) for each in bom["components"]}
        assert (bom["bomFormat"], bom["specVersion"]) == ("CycloneDX", release.SPEC_VERSION)
        assert bom["metadata"]["component"]["name"] == "tonnage"
        assert told == held
        assert all(each["purl"].startswith("pkg:pypi/") for each in bom["components"])

    def test_every_version_is_the_one_that_was_tested(self, made):
        out, *_ = made
        bom = json.loads((out / f"tonnage-{VERSION}.cdx.json").read_text())
        lines = (ROOT / "constraints.txt").read_text().splitlines()
        pins = {canonicalize_name(line.split("==")[0]): line.split("==")[1] for line in lines[1:]}
        installers = {"pip", "setuptools"}

        other = {
            each["name"]: each["version"]
            for each in bom["components"]
            if canonicalize_name(each["name"]) not in installers
            if pins.get(canonicalize_name(each["name"])) != each["version"]
        }
        assert other == {}

    def test_the_audit_ends_or_says_what_it_could_not_reach(self, made, tmp_path):
        _, pinned, tools = made
        try:
            release.audit(pinned, [tools.with_name("pip-audit")], "pypi", tmp_path)
        except release.ReleaseError as error:
            assert "did not answer for every package" in str(error)  # noqa: PT017
