"""The images of the lane: operator, engine emulator and Prometheus; and a base to build them on.

Each is named by the digest of its content: nothing is built twice and nothing stale is used.
"""

import hashlib
import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tonnage_lab import assets, debian
from tonnage_lab.kind.docker import Docker
from tonnage_lab.processes import run
from tonnage_lab.progress import Step, silent

SUITE: Final = "bookworm"
DEBIAN: Final = f"tonnage-kind/debian:{SUITE}"
LOCAL_PYTHON: Final = "tonnage-kind/python:3.11"
PUBLISHED_PYTHON: Final = "python:3.11-slim"
OPERATOR: Final = "tonnage/operator:lab"
ENGINE: Final = "vllm/vllm-openai:v0.33.0"
"""The name that manifests ask for; an emulator answers to it."""
EMULATOR: Final = '#!/bin/sh\nexec python -m tonnage_lab.emulator "$@"\n'
"""What pods start as ``vllm``."""
PROMETHEUS: Final = "tonnage-kind/prometheus:lab"
DIGEST_LABEL: Final = "dev.tonnage.lane.digest"
KEYRING: Final = Path("/usr/share/keyrings/debian-archive-keyring.gpg")


@dataclass(frozen=True, slots=True, kw_only=True)
class Images:
    """Names that a cluster's pods ask for."""

    operator: str = OPERATOR
    engine: str = ENGINE
    prometheus: str = PROMETHEUS


def recipe() -> Path:
    return assets.of_checkout("deploy/kind") / "Dockerfile"


@contextmanager
def context(**files: str | Path) -> Iterator[Path]:
    """Make a folder to build from: names to texts, or to files and folders that are copied."""
    with tempfile.TemporaryDirectory(prefix="tonnage-image-") as made:
        folder = Path(made)
        for name, content in files.items():
            put(folder / name, content)
        yield folder


def put(path: Path, content: str | Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, str):
        path.write_text(content)
    elif content.is_dir():
        shutil.copytree(content, path, ignore=shutil.ignore_patterns("__pycache__"))
    else:
        shutil.copy(content, path)


def build(
    docker: Docker, folder: Path, target: str, tag: str, *, given: Mapping[str, str] | None = None
) -> None:
    """Build one target of the lane's recipe."""
    arguments = [f"--build-arg={name}={value}" for name, value in (given or {}).items()]
    docker.build(folder, tag, "--file", recipe(), "--target", target, *arguments)


def debian_root(docker: Docker, *, step: Step = silent) -> None:
    """Make an image of Debian from the packages of the machine's own mirror."""
    if docker.has(DEBIAN):
        return
    with step(f"making a root file system of Debian {SUITE}"), context() as folder:
        archive = folder / "root.tar"
        source = f"deb [signed-by={KEYRING}] {debian.mirror()} {SUITE} main"
        run(["mmdebstrap", *_debian_options(), SUITE, archive, source])
        docker("import", archive, DEBIAN)


def _debian_options() -> list[str]:
    left_out = ("man", "doc", "locale", "info")
    return [
        "--mode=root",
        "--variant=minbase",
        '--aptopt=APT::Sandbox::User "root"',
        '--aptopt=APT::Install-Recommends "false"',
        "--include=usr-is-merged",  # else usrmerge, which takes 50 MB of Perl
        "--hook-dir=/usr/share/mmdebstrap/hooks/merged-usr",
        *(f"--dpkgopt=path-exclude=/usr/share/{each}/*" for each in left_out),
        "--dpkgopt=path-include=/usr/share/doc/*/copyright",
        '--customize-hook=rm -rf "$1"/var/cache/apt/*',
    ]


def python_base(docker: Docker, *, step: Step = silent) -> str:
    """Return what the operator's image is to stand on: the published one where it is at hand."""
    if docker.has(PUBLISHED_PYTHON):
        return PUBLISHED_PYTHON
    if docker.has(LOCAL_PYTHON):
        return LOCAL_PYTHON
    if not docker.has(DEBIAN):
        return PUBLISHED_PYTHON  # Docker pulls it
    with step("making an image of Python"), context(**_trust()) as folder:
        build(docker, folder, "python", LOCAL_PYTHON)
    return LOCAL_PYTHON


def _trust() -> dict[str, str | Path]:
    """Return this machine's certificate authorities, and pip's settings where there are some."""
    pip = Path("/etc/pip.conf")
    return {
        "trust/ssl/certs/ca-certificates.crt": Path("/etc/ssl/certs/ca-certificates.crt"),
        "trust/pip.conf": pip if pip.is_file() else "",
    }


def operator(docker: Docker, *, step: Step = silent) -> str:
    """Build the operator's image from the sources as they are."""
    root = assets.of_checkout(".")
    base = python_base(docker, step=step)
    wanted = sources_digest(root, base)
    if digest_of(docker, OPERATOR) != wanted:
        with step("building the operator's image"):
            docker.build(
                root, OPERATOR, "--file", root / "deploy/Dockerfile",
                f"--build-arg=BASE={base}", "--build-arg=UNPINNED=yes",
                f"--label={DIGEST_LABEL}={wanted}",
            )  # fmt: skip
    return OPERATOR


def sources_digest(root: Path, base: str) -> str:
    """Return a name for what the operator's image is built from."""
    listed = run(["git", "-C", root, "ls-files", "-z", "--cached", "--others",
                  "--exclude-standard", "operator/tonnage", "deploy", "crds", "charts",
                  "pyproject.toml", ":!*.md", ":!*.png"])  # fmt: skip
    return digest(base, *(root / name for name in sorted(listed.split("\0")) if name))


def digest(*parts: str | Path) -> str:
    """Return a short name for texts, and for the contents of files."""
    state = hashlib.sha256()
    for part in parts:
        content = part.encode() if isinstance(part, str) else _content(part)
        state.update(f"{len(content)}\0".encode() + content)
    return state.hexdigest()[:16]


def _content(path: Path) -> bytes:
    return path.read_bytes() if path.is_file() else b""


def digest_of(docker: Docker, image: str) -> str | None:
    """Return the digest of content in an image's label; None: there is no such image."""
    if not docker.has(image):
        return None
    label = f'{{{{ index .Config.Labels "{DIGEST_LABEL}" }}}}'
    return docker("inspect", "--format", label, image).strip()


def engine(docker: Docker, truth: Mapping[str, Any]) -> str:
    """Put the emulator and its hidden constants on top of the operator's image."""
    files: dict[str, str | Path] = {
        "truth.json": json.dumps(dict(truth)),
        "vllm": EMULATOR,
        "tonnage_lab": assets.of_checkout("operator/tonnage_lab"),
    }
    with context(**files) as folder:
        (folder / "vllm").chmod(0o755)
        build(docker, folder, "engine", ENGINE, given={"OPERATOR": OPERATOR})
    return ENGINE


def prometheus(docker: Docker, *, step: Step = silent) -> str:
    """Put the lab's own Prometheus into an image."""
    program = assets.ensure(["prometheus"], step=step)["prometheus"]
    if not docker.has(PROMETHEUS):
        runtime = {"RUNTIME": DEBIAN if docker.has(DEBIAN) else PUBLISHED_PYTHON}
        with step("building Prometheus' image"), context(prometheus=program) as folder:
            build(docker, folder, "prometheus", PROMETHEUS, given=runtime)
    return PROMETHEUS


def build_all(docker: Docker, truth: Mapping[str, Any], *, step: Step = silent) -> Images:
    """Build what a site needs, as far as it is not there."""
    operator(docker, step=step)
    prometheus(docker, step=step)
    engine(docker, truth)
    return Images()
