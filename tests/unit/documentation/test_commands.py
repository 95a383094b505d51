"""Commands of the documentation are run; what needs more than this machine is parsed."""

import importlib.util
import os
import re
import subprocess
import sys
import tomllib
from itertools import pairwise

import click
import pytest
import yaml

from doc_blocks import NEEDS, ROOT, blocks, blocks_in, commands, pages
from thorough import one_of_each
from tonnage.api.objects import parse_model_deployment
from tonnage.cli.commands.app import program

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
VALUES = yaml.safe_load((ROOT / "charts/tonnage/values.yaml").read_text())
OPEN = ("gpuClasses", "calibrations")
"""Values whose keys the user chooses."""
KUBECTL = {
    "annotate",
    "apply",
    "create",
    "delete",
    "describe",
    "get",
    "label",
    "rollout",
    "wait",
    "patch",
}
OTHERS = {"apt", "docker", "grep", "sed", "xargs"}
PAGES = [path for path in pages() if any(commands(each) for each in blocks(path))]


def name(path):
    return str(path.relative_to(ROOT))


def read_only():
    """Yield page and words of every command that is not run."""
    for path in PAGES:
        for block in blocks(path):
            if block.language in {"sh", "console"} and not block.is_run:
                for words in commands(block):
                    yield pytest.param(words, id=f"{path.stem}: {' '.join(words)}")


def inline():
    """Yield every command that stands in a sentence."""
    for path in pages():
        prose = re.sub(r"```.*?```", "", path.read_text(), flags=re.DOTALL)
        for found in re.findall(r"`(?:kubectl )?tonnage ([a-z][^`]*)`", prose):
            yield pytest.param(found.split(), id=f"{path.stem}: {found}")


SHOWN = re.compile(r"<!-- (?:output|picture): (?:[^:]*: )?(?P<line>tonnage .*?) -->")
"""What stands for the output of a command, or for a drawing of the page that it writes."""


def shown():
    """Yield the page above each output, and the command that it is made by when the site is."""
    for path in pages():
        text = path.read_text()
        for found in SHOWN.finditer(text):
            above = text[: found.start()]
            yield pytest.param(above, found["line"], id=f"{path.stem}: {found['line']}")


@pytest.fixture
def checkout(tmp_path):
    """Return a folder with what a checkout has, where commands may write."""
    for each in ("charts", "crds", "deploy"):
        (tmp_path / each).symlink_to(ROOT / each)
    programs = tmp_path / ".bin"
    programs.mkdir()
    tonnage = programs / "tonnage"
    tonnage.write_text(f'#!/bin/sh\nexec {sys.executable} -m tonnage "$@"\n')
    tonnage.chmod(0o755)
    return tmp_path


@pytest.mark.parametrize(
    "path",
    one_of_each(
        [each for each in PAGES if any(b.is_run for b in blocks(each))],
        lambda path: path.parent.name == "how-to",
        name=name,
    ),
)
def test_the_commands_of_a_page_work_one_after_the_other(checkout, path):
    paths = [str(ROOT / "operator"), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {
        "PATH": f"{checkout / '.bin'}:{os.environ['PATH']}",
        "PYTHONPATH": ":".join(filter(None, paths)),
        "HOME": str(checkout),
    }
    for block in blocks(path):
        if block.file:
            target = checkout / block.file
            target.parent.mkdir(exist_ok=True, parents=True)
            target.write_text(block.text)
        if not block.is_run:
            continue
        done = subprocess.run(  # noqa: S603
            ["/bin/bash", "-euo", "pipefail", "-c", block.text],
            cwd=checkout, env=environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{block.text}\n{done.stdout[-2000:]}{done.stderr[-2000:]}"


@pytest.mark.parametrize("words", list(read_only()))
def test_a_command_that_is_not_run_is_taken_by_what_it_calls(words, monkeypatch):
    monkeypatch.chdir(ROOT)
    while "=" in words[0]:
        assert words[0].startswith("TONNAGE_")
        words = words[1:]
    if words[:2] == ["kubectl", "tonnage"]:
        words = words[1:]
    CHECKS[words[0]](words[1:])


@pytest.mark.parametrize(("above", "line"), list(shown()))
def test_what_a_page_shows_is_made_by_a_command_that_stands_above_it(above, line):
    typed_in = [each for each in blocks_in(above) if each.language in {"sh", "console"}]
    typed = [words for block in typed_in for words in commands(block)]

    assert line.split() in [without_page(words) for words in typed]


def without_page(words):
    """Return a command without the HTML file that it writes beside what it prints."""
    at = words.index("--html") if "--html" in words else len(words)
    return words[:at] + words[at + 2 :]


@pytest.mark.parametrize("words", list(inline()))
def test_a_command_in_a_sentence_has_the_options_that_it_names(words):
    command, rest = resolved(words)
    known = {each for option in command.get_params(click.Context(command)) for each in option.opts}

    assert {each.partition("=")[0] for each in rest if each.startswith("-")} <= known


def resolved(words):
    """Return the command that the words name, and what is left of them."""
    command = program
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        found = command.get_command(click.Context(command), words[0])
        assert found is not None, words
        command, words = found, words[1:]
    return command, words


def check_tonnage(words):
    command, rest = resolved(words)
    rest = rest[: rest.index(">")] if ">" in rest else rest
    rest = [word for word in rest if word != "|"]
    made = {"calibration.json", "config.json", "lengths.csv", "mistaken.yaml", "model.yaml"}
    command.make_context(command.name, [str(ROOT / "README.md") if w in made else w for w in rest])


def check_kubectl(words):
    assert words[0] in KUBECTL
    files = [path for option, path in pairwise(words) if option == "-f"]
    for path in set(files) - {"-"}:
        for document in yaml.safe_load_all((ROOT / path).read_text()):
            if document["kind"] == "ModelDeployment":
                parse_model_deployment(document)
    if words[0] == "apply":
        assert files


def check_helm(words):
    assert words[0] in {"get", "install", "uninstall", "upgrade"}
    if words[0] in {"get", "uninstall"}:
        return
    assert (ROOT / words[2] / "Chart.yaml").exists()
    options = dict(pairwise(words))
    assert {each for each in options if each.startswith("-")} <= {
        "-f", "-n", "--create-namespace", "--reuse-values", "--set", "--set-file",
    }  # fmt: skip
    for option, setting in pairwise(words):
        if option in {"--set", "--set-file"}:
            assert is_value(setting.partition("=")[0]), setting


def is_value(path):
    found = VALUES
    for key in re.split(r"(?<!\\)\.", path):
        if key not in found:
            return False
        found = found[key]
        if key in OPEN:
            return True
    return True


def check_make(words):
    text = (ROOT / "Makefile").read_text()
    for word in words:
        variable, is_set, _ = word.partition("=")
        mark = rf"^{variable} \?=" if is_set else rf"^{word}:"
        assert re.search(mark, text, re.MULTILINE), word


def check_pip(words):
    assert words[0] == "install"
    [extras] = re.findall(r"^\.(?:\[(.*)\])?$", words[1])
    assert (
        set(filter(None, extras.split(","))) <= PROJECT["project"]["optional-dependencies"].keys()
    )


def check_pytest(words):
    if words[0] == "-m":
        marks = {
            each.partition(":")[0] for each in PROJECT["tool"]["pytest"]["ini_options"]["markers"]
        }
        assert words[1] in marks
    else:
        assert (ROOT / words[0]).exists()


def check_python(words):
    if words[0] == "-m":
        assert importlib.util.find_spec(words[1])
    elif words[0] != "-c":
        assert (ROOT / words[0]).exists()


CHECKS = {
    "tonnage": check_tonnage,
    "kubectl": check_kubectl,
    "helm": check_helm,
    "make": check_make,
    "pip": check_pip,
    "pytest": check_pytest,
    "python": check_python,
} | dict.fromkeys(OTHERS, lambda _: None)


def test_every_title_of_a_block_of_commands_is_one_that_is_understood():
    found = {each.title for path in PAGES for each in blocks(path) if each.language == "sh"}

    assert found - {""} == NEEDS


@pytest.mark.parametrize(
    "words",
    [
        ["tonnage", "plan", "--no-such-option"],
        ["tonnage", "no-such-command"],
        ["helm", "upgrade", "tonnage", "charts/tonnage", "--set", "settings.noSuchSetting=1"],
        ["kubectl", "apply", "-f", "deploy/examples/no-such-example.yaml"],
        ["make", "no-such-target"],
        ["pip", "install", ".[no-such-extra]"],
        ["no-such-program"],
    ],
    ids=" ".join,
)
def test_a_mistake_in_a_command_is_seen(words, monkeypatch):
    monkeypatch.chdir(ROOT)
    with pytest.raises((AssertionError, KeyError, OSError, click.UsageError)):
        CHECKS[words[0]](words[1:])
