"""The snippets for pipelines: their scripts are run, on a repository with two commits."""

import os
import re
import stat
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
import yaml

from cli_builders import llama, run
from tonnage.api.crd import json_schema

ROOT = Path(__file__).parents[3]
GITOPS = ROOT / "deploy/gitops"
LONGER = ("contextLength: 8192", "contextLength: 16384")


def github_script():
    steps = yaml.safe_load((GITOPS / "github/action.yml").read_text())["runs"]["steps"]
    [script] = [each["run"] for each in steps if each["name"] == "Compare"]
    return script


def gitlab_script():
    job = yaml.safe_load((GITOPS / "gitlab/tonnage-diff.gitlab-ci.yml").read_text())
    [script] = job["tonnage-diff"]["script"]
    return script


SCRIPTS = pytest.mark.parametrize("script", [github_script(), gitlab_script()], ids=["hub", "lab"])


@pytest.fixture
def pipeline(tmp_path):
    """Return a function that commits two versions and runs a script: (exit code, Markdown)."""
    programs = tmp_path / "bin"
    programs.mkdir()
    tonnage = programs / "tonnage"
    tonnage.write_text(f'#!/bin/sh\nexec {sys.executable} -m tonnage "$@"\n')
    tonnage.chmod(tonnage.stat().st_mode | stat.S_IXUSR)
    folder = tmp_path / "repository"
    folder.mkdir()
    package = ROOT / "operator"
    environment = {
        "PATH": f"{programs}:{os.environ['PATH']}",
        "PYTHONPATH": f"{package}:{os.environ.get('PYTHONPATH', '')}",
        "HOME": str(tmp_path),
        "GITHUB_STEP_SUMMARY": str(tmp_path / "summary.md"),
    }

    def sh(*command, **more):
        return subprocess.run(  # noqa: S603
            command, cwd=folder, env=environment | more, capture_output=True, text=True, check=False
        )

    def commit(files):
        for name, text in files.items():
            path = folder / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        sh("git", "add", "-A")
        sh("git", "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "x")
        return sh("git", "rev-parse", "HEAD").stdout.strip()

    def go(script, before, after, *, models="models", budget=""):
        sh("git", "init", "-q")
        base = commit({"README": "x", **before})
        commit(after)
        more = {"BASE": base, "CI_MERGE_REQUEST_DIFF_BASE_SHA": base}
        done = sh("bash", "-e", "-c", script, **more, MODELS=models, BUDGET=budget)
        return done.returncode, (folder / "tonnage-diff.md").read_text()

    return go


@SCRIPTS
def test_a_change_is_compared_with_the_base(pipeline, script):
    code, text = pipeline(script, {"models/a.yaml": llama()}, {"models/a.yaml": llama(LONGER)})

    assert code == 0
    assert "4 pods are replaced, because of `spec.contextLength`" in text


@SCRIPTS
@pytest.mark.parametrize("models", ["models", "models/a.yaml"])
def test_the_first_manifest_of_a_repository_is_new(pipeline, script, models):
    code, text = pipeline(script, {}, {"models/a.yaml": llama()}, models=models)

    assert code == 0
    assert "| serving/llama-70b | added |" in text


@SCRIPTS
def test_above_the_budget_it_fails_and_still_says_why(pipeline, script):
    files = {"models/a.yaml": llama()}

    code, text = pipeline(script, files, files | {"README": "y"}, budget="63.29")

    assert code == 7
    assert "**Over budget:** 63.30 of 63.29" in text


def test_no_input_of_a_workflow_is_pasted_into_a_script():
    text = (GITOPS / "github/action.yml").read_text()
    runs = re.findall(r"run: (?:\|\n(?: {8}.*\n)+|.*\n)", text)

    assert len(runs) == 3
    assert not [each for each in runs if "${{" in each]


class TestSchemaForEditors:
    SCHEMA = json_schema()

    def problems(self, *changes):
        validator = jsonschema.Draft202012Validator(self.SCHEMA)
        return [each.message for each in validator.iter_errors(yaml.safe_load(llama(*changes)))]

    def test_is_a_schema_and_what_the_command_prints(self):
        jsonschema.Draft202012Validator.check_schema(self.SCHEMA)
        assert yaml.safe_load(run("crd", "--json-schema").stdout) == self.SCHEMA

    @pytest.mark.parametrize("path", sorted((ROOT / "deploy/examples").glob("*.yaml")), ids=str)
    def test_takes_every_example(self, path):
        for document in yaml.safe_load_all(path.read_text()):
            if document["kind"] == "ModelDeployment":
                jsonschema.validate(document, self.SCHEMA)

    @pytest.mark.parametrize(
        ("change", "said"),
        [
            (("contextLength:", "contextLenght:"), "contextLenght"),
            (("maxReplicas: 8", 'maxReplicas: "8"'), "'8' is not of type 'integer'"),
            (("maxReplicas: 8", "maxReplicas: 8, mode: Off"), "False is not one of"),
            (("kind: ModelDeployment", "kind: Deployment"), "'ModelDeployment' was expected"),
        ],
    )
    def test_underlines_what_the_api_server_would_refuse(self, change, said):
        assert said in " ".join(self.problems(change))
