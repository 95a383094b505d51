"""Released programs in place of a build: downloaded, checked against a pinned digest, unpacked.

The table is ``deploy/local/downloads.yaml``. Nothing runs, or is read as an archive, before all of
its bytes have the pinned digest. ``$TONNAGE_DOWNLOAD`` is ``0`` for no download, or the address of
a mirror: ``https://dl.k8s.io/x`` is then asked for as ``$TONNAGE_DOWNLOAD/dl.k8s.io/x``.

Programs from Debian's packages, unpacked into a folder and never installed.

The suite is named, whatever this machine runs: suites differ in more than age (bookworm's
Prometheus, for one, was built without Kubernetes service discovery). apt gets lists and
cache of its own for that, and the machine's stay as they are; only the address of the
mirror, and with it the trust in its signatures, comes from the machine.
"""

import hashlib
import os
import shutil
import tarfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import requests
import yaml

from tonnage.units import MB, MINUTE_S
from tonnage_lab.processes import LabError, run

SUITE: Final = "trixie"
_FORMAT: Final = "$(ORIGIN)|$(LABEL)|$(SITE)"


def unpack(package: str, folder: Path) -> None:
    """Unpack a package of the suite into a folder, which is emptied first.

    Raises:
        LabError: there is no apt, no Debian mirror, or no such package for this machine.
    """
    shutil.rmtree(folder, ignore_errors=True)
    for name in ("apt/lists/partial", "apt/cache/archives/partial"):
        (folder / name).mkdir(parents=True)
    sources = folder / "apt" / "sources.list"
    sources.write_text(f"deb {mirror()} {SUITE} main\n")
    options = _options(folder / "apt", sources)
    run(["apt-get", *options, "update"])
    run(["apt-get", *options, "download", package], folder=folder)
    run(["dpkg", "-x", *folder.glob("*.deb"), folder])


def mirror() -> str:
    """Return the address of the mirror that apt of this machine uses.

    Raises:
        LabError: there is no apt, or it knows none.
    """
    if shutil.which("apt-get") is None:
        raise LabError("no apt-get on the PATH")
    for line in run(["apt-get", "indextargets", "--format", _FORMAT]).splitlines():
        origin, label, site = line.split("|", 2)
        if (origin, label) == ("Debian", "Debian"):
            return site
    raise LabError("apt knows no mirror of Debian")


def _options(apt: Path, sources: Path) -> list[str]:
    settings = {
        "Dir::Etc::sourcelist": str(sources),
        "Dir::Etc::sourceparts": "/dev/null",
        "Dir::State::lists": str(apt / "lists"),
        "Dir::Cache": str(apt / "cache"),
        "Acquire::Languages": "none",
        "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled": "false",
        "APT::Sandbox::User": "",  # the folder is this user's, not that of apt's own account
        "Debug::NoLocking": "true",
    }
    return [part for key, value in settings.items() for part in ("-o", f"{key}={value}")]


NO_DOWNLOAD: Final = "0"
CONNECT_TIMEOUT_S: Final = 4.0
"""A machine whose packets are dropped waits this long, once."""
SILENCE_TIMEOUT_S: Final = 20.0
DOWNLOAD_TIMEOUT_S: Final = 10 * MINUTE_S
MAX_DOWNLOAD_BYTES: Final = 800 * MB
"""The server archive of Kubernetes is about half of this."""
MAX_PROGRAM_BYTES: Final = 400 * MB
_CHUNK_BYTES: Final = MB
_ARCHITECTURES: Final[Mapping[str, str]] = {"x86_64": "amd64", "aarch64": "arm64"}


class NoConnectionError(LabError):
    """The address does not answer, so the others will hardly do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Archive:
    """A released file of this machine's architecture, and the programs that it holds."""

    version: str
    """Of the Go module, as in go.mod."""
    url: str
    algorithm: str
    digest: str
    """Hexadecimal."""
    members: Mapping[str, str]
    """Path in the archive by program; empty where the file is the program."""


def archives(
    table: Path, *, machine: str, environment: Mapping[str, str] = os.environ
) -> tuple[Archive, ...]:
    """Return what may be downloaded for a machine such as ``x86_64``, in the table's order."""
    mirror = environment.get("TONNAGE_DOWNLOAD", "")
    if mirror == NO_DOWNLOAD or not table.is_file():
        return ()
    architecture = _ARCHITECTURES.get(machine, "")
    rows = yaml.safe_load(table.read_text())
    return tuple(_archive(row, architecture, mirror) for row in rows if architecture in row)


def _archive(row: Mapping[str, Mapping[str, str]], architecture: str, mirror: str) -> Archive:
    pinned = dict(row[architecture])
    url = pinned.pop("url")
    ((algorithm, digest),) = pinned.items()
    return Archive(
        version=str(row["version"]),
        url=f"{mirror.rstrip('/')}/{url.partition('://')[2]}" if mirror else url,
        algorithm=algorithm,
        digest=digest,
        members={
            name: path.format(architecture=architecture) for name, path in row["programs"].items()
        },
    )


def fetch(archive: Archive, folder: Path, *, max_bytes: int = MAX_DOWNLOAD_BYTES) -> Path:
    """Download an archive into a folder and return its path: its digest is the pinned one.

    Raises:
        NoConnectionError: nobody answers at its address.
        LabError: it has another digest, or it is not there, too large or too slow.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path, state = folder / archive.url.rpartition("/")[2], hashlib.new(archive.algorithm)
    with path.open("wb") as file:
        for chunk in _chunks(archive.url, max_bytes):
            state.update(chunk)
            file.write(chunk)
    if state.hexdigest() != archive.digest:
        raise LabError(
            f"REFUSED, not run: {archive.url} has the {archive.algorithm} {state.hexdigest()}, "
            f"and {archive.digest} is pinned"
        )
    return path


def _chunks(url: str, max_bytes: int) -> Iterator[bytes]:
    deadline_s = time.monotonic() + DOWNLOAD_TIMEOUT_S
    num_bytes = 0
    try:
        with requests.get(url, stream=True, timeout=(CONNECT_TIMEOUT_S, SILENCE_TIMEOUT_S)) as got:
            got.raise_for_status()
            for chunk in got.iter_content(_CHUNK_BYTES):
                num_bytes += len(chunk)
                if num_bytes > max_bytes or time.monotonic() > deadline_s:
                    raise LabError(f"{url} is too large or too slow: {num_bytes} bytes came")
                yield chunk
    except requests.ConnectionError as error:
        raise NoConnectionError(f"no connection to {url}") from error
    except requests.RequestException as error:
        raise LabError(f"{url}: {error}") from error


def take(archive: Archive, path: Path, name: str, output: Path) -> None:
    """Write one program of a checked archive to a file, and nothing else of it.

    Raises:
        LabError: the archive has no plain file of at most ``MAX_PROGRAM_BYTES`` there.
    """
    member = archive.members[name]
    if member:
        _unpack(archive, path, member, output)
    else:
        shutil.copyfile(path, output)
    output.chmod(0o755)


def _unpack(archive: Archive, path: Path, member: str, output: Path) -> None:
    try:
        with tarfile.open(path, "r|gz") as opened, output.open("wb") as file:
            found = next((each for each in opened if each.name == member), None)
            content = opened.extractfile(found) if found is not None and found.isreg() else None
            if found is None or content is None or found.size > MAX_PROGRAM_BYTES:
                raise LabError(f"REFUSED, not run: {archive.url} has no plain file {member}")
            shutil.copyfileobj(content, file)
    except tarfile.TarError as error:
        raise LabError(f"REFUSED, not run: {archive.url} is no archive: {error}") from error
