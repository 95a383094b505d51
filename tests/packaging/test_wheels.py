"""Tonnage as it is built and installed: compiled where that is possible, and working where not."""

import os
import shutil
import subprocess
import sys
import sysconfig
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from zipfile import ZipFile

import pytest

ROOT = Path(__file__).parents[2]
CARRIED = ("LICENSE", "README.md", "charts", "crds", "deploy", "operator", "pyproject.toml")
LEFT = shutil.ignore_patterns("__pycache__", "*.so", ".*_cache")
EXAMPLE = ROOT / "deploy" / "examples" / "qwen3-8b-l4.yaml"
HAS_COMPILER = shutil.which((sysconfig.get_config_var("CC") or "cc").split()[0]) is not None
EXTENSIONS = [
    f"{name}{EXTENSION_SUFFIXES[0]}" for name in ("chance", "core", "routing", "schedule", "table")
]
READ_ONLY = """
set -e
mount --bind "$1" "$1"
mount -o remount,bind,ro "$1"
mount -o remount,bind,ro /
shift
exec unshare --user --map-user=65532 "$@"
"""
"""Starts a program as the user of the image, whom no passwd file knows, on read-only files."""
IS_COMPILED = """
from tonnage.engine import chance, core, routing, schedule, table
print([module.__file__.endswith(".so") for module in (chance, core, routing, schedule, table)])
"""
TRIES_TO_WRITE = """
import os, pathlib, tonnage.engine
print(os.getuid())
try:
    pathlib.Path(tonnage.engine.__path__[0], "written").touch()
except OSError as error:
    print(error.strerror)
"""

pytestmark = [pytest.mark.packaging, pytest.mark.thorough]
needs_compiler = pytest.mark.skipif(not HAS_COMPILER, reason="there is no C compiler")


def start(*command, cwd=None, **settings):
    """Run a program in which only these settings of the environment are changed."""
    clean = {name: text for name, text in os.environ.items() if not name.startswith("TONNAGE_")}
    return subprocess.run(  # noqa: S603
        list(map(str, command)),
        cwd=cwd,
        env=clean | settings,
        capture_output=True,
        text=True,
        check=False,
    )


def build(source, folder, target="wheel", **settings):
    """Build a wheel; return it, and what was said beside its name."""
    command = (sys.executable, "-m", "hatchling", "build", "--target", target, "--directory")
    ended = start(*command, folder, cwd=source, **settings)
    assert ended.returncode == 0, ended.stderr
    (wheel,) = folder.glob("*.whl")
    return wheel, [line for line in ended.stderr.splitlines() if not line.endswith(".whl")]


def installed(wheel, folder):
    """Install a wheel without its dependencies, which the tests have; return the folder."""
    options = ("--quiet", "--no-deps", "--no-index", "--no-compile", "--target")
    ended = start(sys.executable, "-m", "pip", "install", *options, folder, wheel)
    assert ended.returncode == 0, ended.stderr
    return folder


def files_below(folder):
    return {path for path in folder.rglob("*") if "__pycache__" not in path.parts}


def engine_of(wheel):
    """Return the names of the engine's files in a wheel."""
    with ZipFile(wheel) as archive:
        return sorted(Path(name).name for name in archive.namelist() if "tonnage/engine/" in name)


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A copy of what is built, in which nothing was compiled."""
    folder = tmp_path_factory.mktemp("source")
    for name in CARRIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=LEFT)
        else:
            shutil.copy(ROOT / name, folder)
    return folder


@pytest.fixture(scope="module")
def compiled(source, tmp_path_factory):
    return build(source, tmp_path_factory.mktemp("compiled"))


@pytest.fixture(scope="module")
def pure(source, tmp_path_factory):
    return build(source, tmp_path_factory.mktemp("pure"), TONNAGE_PURE="1")


@pytest.fixture(scope="module")
def compiled_home(compiled, tmp_path_factory):
    return installed(compiled[0], tmp_path_factory.mktemp("compiled-home"))


@pytest.fixture(scope="module")
def pure_home(pure, tmp_path_factory):
    return installed(pure[0], tmp_path_factory.mktemp("pure-home"))


@needs_compiler
def test_a_wheel_built_with_a_compiler_has_the_extensions_and_names_its_platform(compiled):
    wheel, said = compiled
    assert said == []
    assert not wheel.name.endswith("-none-any.whl")
    assert [name for name in engine_of(wheel) if not name.endswith(".py")] == EXTENSIONS


def test_a_wheel_leaves_the_lab_out(pure):
    with ZipFile(pure[0]) as archive:
        folders = {Path(name).parts[0] for name in archive.namelist()}

    assert folders == {"tonnage", "tonnage-0.2.0.dist-info"}


@needs_compiler
def test_a_build_leaves_nothing_in_the_sources(source, compiled):
    relative = {path.relative_to(source) for path in files_below(source)}

    assert {path for path in relative if not (ROOT / path).exists()} == set()
    assert [path for path in relative if path.suffix in {".so", ".c"}] == []


def a_folder_without_cython(tmp_path):
    package = tmp_path / "Cython"
    package.mkdir()
    (package / "__init__.py").write_text('raise ImportError("no Cython for this Python")')
    return {"PYTHONPATH": str(tmp_path)}


def a_compiler_without_the_headers_of_python(tmp_path):
    compiler = tmp_path / "cc"
    compiler.write_text(
        '#!/bin/sh\necho "a.c:1:1: fatal error: Python.h: No such file" >&2; exit 1'
    )
    compiler.chmod(0o755)
    return {"CC": str(compiler)}


OBSTACLES = {
    "no C compiler": (lambda folder: {"PATH": str(folder)}, "No such file or directory"),
    "a compiler that fails": (lambda _: {"CC": "/bin/false"}, "/bin/false"),
    "no headers": (a_compiler_without_the_headers_of_python, "Python.h"),
    "no Cython": (a_folder_without_cython, "no Cython for this Python"),
    "told not to": (lambda _: {"TONNAGE_PURE": "1"}, "TONNAGE_PURE is set"),
}


@pytest.mark.parametrize(("settings", "reason"), OBSTACLES.values(), ids=OBSTACLES)
def test_whatever_keeps_it_from_being_compiled_it_is_built_and_one_line_says_why(
    source, tmp_path, settings, reason
):
    (folder := tmp_path / "obstacle").mkdir()
    wheel, said = build(source, tmp_path / "wheels", **settings(folder))

    assert wheel.name.endswith("-py3-none-any.whl")
    assert all(name.endswith(".py") for name in engine_of(wheel))
    (line,) = said
    assert line.startswith("Tonnage's engine model is not compiled (")
    assert reason in line
    assert "20 to 60 times as long" in line


def test_a_wheel_that_is_not_compiled_installs_and_plans(pure_home):
    ended = start(sys.executable, "-c", IS_COMPILED, PYTHONPATH=str(pure_home))
    planned = plan(pure_home)

    assert ended.stdout == "[False, False, False, False, False]\n", ended.stderr
    assert planned.returncode == 0, planned.stderr
    assert "How many replicas?" in planned.stdout


@needs_compiler
def test_a_compiled_wheel_plans_the_same(pure_home, compiled_home):
    ended = start(sys.executable, "-c", IS_COMPILED, PYTHONPATH=str(compiled_home))

    assert ended.stdout == "[True, True, True, True, True]\n", ended.stderr
    assert plan(compiled_home).stdout == plan(pure_home).stdout


def plan(home):
    return start(sys.executable, "-m", "tonnage", "plan", "-f", EXAMPLE, PYTHONPATH=str(home))


def can_make_read_only():
    if shutil.which("unshare") is None:
        return False
    return start("unshare", "--mount", "sh", "-c", READ_ONLY, "sh", ROOT, "true").returncode == 0


@pytest.mark.skipif(not can_make_read_only(), reason="no unshare, or no right to mount")
@pytest.mark.parametrize("kind", [pytest.param("compiled_home", marks=needs_compiler), "pure_home"])
def test_it_starts_as_an_unknown_user_on_read_only_files_and_writes_nothing(kind, request):
    home = request.getfixturevalue(kind)

    def there(*command):
        sealed = ("unshare", "--mount", "sh", "-c", READ_ONLY, "sh", home, sys.executable, *command)
        return start(*sealed, PYTHONPATH=str(home), HOME="/", PYTHONDONTWRITEBYTECODE="")

    assert there("-c", TRIES_TO_WRITE).stdout == "65532\nRead-only file system\n"
    operator = there("-c", "import tonnage.main")
    assert operator.returncode == 0, operator.stderr
    planned = there("-m", "tonnage", "plan", "-f", EXAMPLE)
    assert planned.returncode == 0, planned.stderr
    assert planned.stdout == plan(home).stdout


def test_an_editable_install_that_is_not_compiled_removes_what_is_stale(source, tmp_path):
    tree = Path(shutil.copytree(source, tmp_path / "tree"))
    stale = tree / "operator" / "tonnage" / "engine" / EXTENSIONS[0]
    stale.touch()
    _, said = build(tree, tmp_path / "wheels", "wheel:editable", TONNAGE_PURE="1")

    assert said
    assert not stale.exists()
