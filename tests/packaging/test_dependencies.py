"""What pyproject.toml offers can be installed, as a user does it: without constraints.txt.

A resolver in an environment of its own downloads what it chooses, and installs nothing.
"""

import os
import subprocess
import sys
import tomllib
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
OFFERED = {
    **{
        f"extra {name}": [f"{ROOT}[{name}]"] for name in PROJECT["project"]["optional-dependencies"]
    },
    **{f"group {name}": ["--group", name] for name in PROJECT["dependency-groups"]},
}
"""What `pip install` is given for each."""

pytestmark = [pytest.mark.packaging, pytest.mark.thorough]


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    """An interpreter with nothing installed."""
    folder = tmp_path_factory.mktemp("empty")
    venv.create(folder, with_pip=False)
    return folder / "bin" / "python"


@pytest.mark.parametrize("offered", OFFERED)
def test_what_is_offered_has_versions_that_agree(offered, python):
    options = ("--dry-run", "--ignore-installed", "--quiet", "--no-input")
    command = [sys.executable, "-m", "pip", "--python", python, "install", *options]

    ended = subprocess.run(  # noqa: S603
        [*command, *OFFERED[offered]],
        cwd=ROOT,
        env=os.environ | {"TONNAGE_PURE": "1"},  # else what is built for its metadata is compiled
        capture_output=True,
        text=True,
        check=False,
    )

    assert ended.returncode == 0, ended.stderr
