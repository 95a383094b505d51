"""What the package may grow to: the table of ``operator/decisions/budget.md``."""

import ast
import re
import subprocess
import sys
from collections import Counter
from functools import cache
from pathlib import Path

import pytest
import yaml

from tonnage.cli.commands.app import COMMANDS
from tonnage.control.report.conditions import CONDITION_TYPES
from tonnage.estimate.metrics import COLUMNS, QUERIES
from tonnage.settings import Settings

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "operator"
PACKAGE = SOURCES / "tonnage"
PAGE = ROOT / "operator" / "decisions" / "budget.md"
ROW = re.compile(r"^\| ([^|]+?) \| ([\d,]+) \|$", re.MULTILINE)


def num_lines(*paths):
    return sum(path.read_bytes().count(b"\n") for path in paths)


def file_of(module):
    """Return the file of a module of ours, or None."""
    path = SOURCES.joinpath(*module.split("."))
    return next(
        (each for each in (path / "__init__.py", path.with_suffix(".py")) if each.exists()), None
    )


def imported_by(path):
    """Yield all modules that a file names in an import, lazy ones and packages above them too."""
    package = path.relative_to(SOURCES).with_suffix("").parts[:-1]
    for node in ast.walk(ast.parse(path.read_bytes())):
        names = []
        match node:
            case ast.Import():
                names = [each.name for each in node.names]
            case ast.ImportFrom():
                above = package[: len(package) - node.level + 1] if node.level else ()
                base = ".".join([*above, *filter(None, [node.module])])
                names = [base, *(f"{base}.{each.name}" for each in node.names)]
        for name in names:
            parts = name.split(".")
            yield from (".".join(parts[:end]) for end in range(1, len(parts) + 1))


def closure_of(module):
    found, left = set(), [file_of(module)]
    while left:
        path = left.pop()
        if path not in found:
            found.add(path)
            files = map(file_of, set(imported_by(path)))
            left += [each for each in files if each and each.is_relative_to(PACKAGE)]
    return found


def fields_in(schema, *, is_deprecated=False):
    """Yield of each field whether it, or one above it, is deprecated."""
    for each in schema.get("properties", {}).values():
        is_going = is_deprecated or each.get("description", "").startswith("Deprecated")
        yield is_going
        yield from fields_in(each, is_deprecated=is_going)
    for each in (schema.get("items"), schema.get("additionalProperties")):
        if isinstance(each, dict):
            yield from fields_in(each, is_deprecated=is_deprecated)


@cache
def spec_fields():
    crd = yaml.safe_load((ROOT / "crds" / "modeldeployments.tonnage.dev.yaml").read_text())
    schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return Counter(fields_in(schema["properties"]["spec"]))


def lines_of_layers():
    rooms = sorted(each for each in PACKAGE.iterdir() if any(each.rglob("*.py")))
    return {
        f"lines of {each.name}": num_lines(*each.rglob("*.py")) for each in rooms if each.is_dir()
    }


def walked():
    """Return what a tick at rest enters: functions, and how often the room changes."""
    script = ROOT / "tests" / "support" / "fleet_ticks.py"
    out = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)  # noqa: S603
    return map(int, out.stdout.split())


@cache
def measured():
    functions, changes = walked()
    return lines_of_layers() | {
        "lines of the package": num_lines(*PACKAGE.rglob("*.py")),
        "lines that the operator imports": num_lines(*closure_of("tonnage.main")),
        "lines of tonnage_lab": num_lines(*(SOURCES / "tonnage_lab").rglob("*.py")),
        "lines of tests/bench": num_lines(*(ROOT / "tests" / "bench").rglob("*.py")),
        "functions of a tick at rest": functions,
        "changes of room in it": changes,
        "metrics of an engine": len(COLUMNS),
        "queries of a part": len(QUERIES) + 1,  # and the last quarter of an hour, at the start
        "fields of the spec": spec_fields()[False],
        "deprecated fields of the spec": spec_fields()[True],
        "types of condition": len(CONDITION_TYPES),
        "settings of the operator": len(Settings.model_fields),
        "commands": len(COMMANDS),
    }


def budget():
    return {name: int(most.replace(",", "")) for name, most in ROW.findall(PAGE.read_text())}


def test_every_figure_has_a_row():
    assert list(budget()) == list(measured())


@pytest.mark.parametrize("name", budget())
def test_nothing_is_over_its_budget(name):
    number, most = measured().get(name, 0), budget()[name]
    assert number <= most, (
        f"{name}: {number:,}, and the budget is {most:,}. Take something away, or raise the row in "
        f"{PAGE.relative_to(ROOT)} and say there what it bought."
    )


def test_a_lazy_import_counts():
    closure = {each.relative_to(PACKAGE).as_posix() for each in closure_of("tonnage.main")}

    assert "fleet/loop.py" in closure
    assert not any(each.startswith(("cli/", "replay/")) for each in closure)
