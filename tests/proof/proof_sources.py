"""The sources of releases of vLLM, by pip: an archive each, unpacked and not built."""

import hashlib
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Final

DISTRIBUTION: Final = "vllm"
READ: Final = ("vllm/", "csrc/", "docker/")
"""Of an archive; the rest is not unpacked."""
PLATFORMS: Final = ("manylinux1_x86_64", "manylinux_2_31_x86_64", "manylinux_2_35_x86_64")
"""Of the wheel, where a release has no source archive: it lacks kernels and Dockerfile."""
BACKEND: Final = """\
import os, re, shutil

def prepare_metadata_for_build_wheel(folder, config_settings=None):
    version = re.search("^Version: (.*)$", open("PKG-INFO").read(), re.M)[1]
    name = f"vllm-{version}.dist-info"
    os.makedirs(os.path.join(folder, name))
    shutil.copy("PKG-INFO", os.path.join(folder, name, "METADATA"))
    return name

def build_wheel(*given, **named):
    raise RuntimeError("nothing is built")
"""
"""In place of setuptools: pip asks for the metadata of what it downloads, which are in the archive,
and vLLM's own setup needs PyTorch to say them."""


def releases(oldest: tuple[int, int]) -> list[str]:
    """Return the first release of each minor version from the oldest on."""
    said = _pip("index", "versions", DISTRIBUTION)
    known = re.search(r"Available versions: (.*)", said)
    if not known:
        raise RuntimeError(f"pip index says {said[:200]!r}")
    found: dict[tuple[int, int], str] = {}
    for text in known[1].split(", "):  # the newest first
        major, minor = (int(part) for part in text.split(".")[:2])
        if (major, minor) >= oldest and re.fullmatch(r"\d+\.\d+\.\d+", text):
            found[major, minor] = text
    return [found[each] for each in sorted(found)]


def unpacked(release: str, cache: Path) -> Path:
    """Return the folder of a release's sources, downloaded first where it is missing."""
    folder = cache / "src" / release
    if (folder / "vllm").is_dir():
        return folder
    archives = cache / "archives"
    archives.mkdir(parents=True, exist_ok=True)
    if not list(archives.glob(f"vllm-{release}[.-]*")):
        try:
            _download(release, archives, cache / "backend")
        except subprocess.CalledProcessError:
            _download_wheel(release, archives)
    [archive] = archives.glob(f"vllm-{release}[.-]*")
    (_unpack_wheel if archive.suffix == ".whl" else _unpack_source)(archive, folder)
    return folder


def installed(names: Path, cache: Path) -> Path:
    """Return the folder of the packages of a list, installed first where it is missing."""
    target = cache / f"{names.stem}-{hashlib.sha256(names.read_bytes()).hexdigest()[:12]}"
    if not target.is_dir():
        _pip(
            "install", "--quiet", "--no-deps", "--target", str(target),
            "--requirement", str(names),
        )  # fmt: skip
    return target


def _download(release: str, archives: Path, backend: Path) -> None:
    (backend / "setuptools").mkdir(parents=True, exist_ok=True)
    (backend / "setuptools" / "__init__.py").write_text("")
    (backend / "setuptools" / "build_meta.py").write_text(BACKEND)
    _pip(
        "download", "--quiet", "--no-deps", "--no-build-isolation", "--no-binary", ":all:",
        "--dest", str(archives), f"{DISTRIBUTION}=={release}",
        environment={**os.environ, "PYTHONPATH": str(backend.resolve())},
    )  # fmt: skip


def _download_wheel(release: str, archives: Path) -> None:
    platforms = [part for each in PLATFORMS for part in ("--platform", each)]
    _pip(
        "download", "--quiet", "--no-deps", "--only-binary", ":all:", *platforms,
        "--python-version", "3.12", "--dest", str(archives), f"{DISTRIBUTION}=={release}",
    )  # fmt: skip


def _pip(*arguments: str, environment: dict[str, str] | None = None) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "pip", *arguments],
        capture_output=True, text=True, check=True, env=environment,
    )  # fmt: skip
    return done.stdout


def _unpack_source(archive: Path, folder: Path) -> None:
    with tarfile.open(archive) as opened:
        for member in opened:
            _, _, name = member.name.partition("/")
            if member.isfile() and name.startswith(READ):
                member.name = name
                opened.extract(member, folder, filter="data")


def _unpack_wheel(archive: Path, folder: Path) -> None:
    with zipfile.ZipFile(archive) as opened:
        names = [each for each in opened.namelist() if each.endswith((".py", ".json"))]
        opened.extractall(folder, [each for each in names if each.startswith(READ)])
