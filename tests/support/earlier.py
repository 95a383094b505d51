"""Tonnage as it was at an earlier commit: its chart, its CRD, and its program beside ours."""

import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Final

from tonnage_lab import assets
from tonnage_lab.processes import run

COMMIT: Final = "113a356"
BEFORE_TEMPLATES: Final = "70cd082"
"""The last one whose pods were made of the fields that ``pods.template`` takes the place of."""
ROOT = Path(__file__).parents[2]


def obstacle(commit: str = COMMIT) -> str | None:
    """Return why that commit is not to be had here; None: it is."""
    git = shutil.which("git")
    if git is None:
        return "there is no git"
    wanted = [git, "-C", ROOT, "cat-file", "-e", f"{commit}^{{commit}}"]
    has = subprocess.run(wanted, capture_output=True, check=False).returncode == 0  # noqa: S603
    return None if has else f"commit {commit} is not in this clone"


def sources(folder: Path, commit: str = COMMIT) -> Path:
    """Unpack the commit into a new folder, and return it."""
    packed = folder.with_suffix(".tar")
    run(["git", "-C", ROOT, "archive", "--output", packed, commit])
    with tarfile.open(packed) as archive:
        archive.extractall(folder, filter="data")
    return folder


def packaged_chart(helm: Path, made_from: Path, folder: Path) -> Path:
    """Package the chart of the commit as a release would, and return the package."""
    run([helm, "package", made_from / "charts/tonnage", "--destination", folder])
    (package,) = folder.glob("tonnage-*.tgz")
    return package


def interpreter(made_from: Path, commit: str = COMMIT) -> Path:
    """Return a Python with the package of the commit and what it was tested with.

    Made once on a machine, which takes a minute or two and an index of packages.

    Raises:
        LabError: no index can be reached, or something does not install.
    """
    home = assets.cache_folder() / "earlier" / commit
    python, complete = home / "bin" / "python", home / "complete"
    if not complete.exists():
        run([sys.executable, "-m", "venv", "--clear", home])
        pins = made_from / "constraints.txt"
        run(
            [python, "-m", "pip", "install", "--quiet", "--constraint", pins, made_from],
            environment={"PYTHONPATH": ""},
        )
        complete.touch()
    return python
