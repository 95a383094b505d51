"""The programs of the lab: found on this machine, else downloaded or built once and kept.

They are their authors' releases, or built from their authors' published Go modules by the wrapper
modules of ``deploy/local`` (which hold versions and checksums, and no code), so that the control
plane is the real one and needs no Docker. A program is looked for in this order:

1. ``$KUBEBUILDER_ASSETS``, if it holds kube-apiserver, etcd and kubectl: only these three;
2. the PATH, for the tools that say so;
3. ``$TONNAGE_ASSETS``, else ``~/.cache/tonnage/assets/<digest>``, where the digest covers
   every go.mod and go.sum of ``deploy/local`` and the Go release;
4. the release of the same version, for the rows of ``deploy/local/downloads.yaml``;
5. Debian's package, unpacked beside the others and not installed, for the tools that say so;
6. a build.

A build keeps Go's object cache (several GB) to itself, and keeps it only until everything
asked for is there: an interrupted build resumes, a complete one leaves nothing but programs.
The same goes for downloaded modules, unless this user already has a module cache: that one
is used, and never cleaned.
"""

import fcntl
import hashlib
import math
import os
import platform
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import click

from tonnage.units import MINUTE_S, count_of
from tonnage_lab import download, toolchain
from tonnage_lab.download import Archive
from tonnage_lab.processes import LabError, run
from tonnage_lab.progress import Step, silent

KUBEBUILDER_NAMES: Final = frozenset({"kube-apiserver", "etcd", "kubectl"})
_NUM_DIGEST_CHARACTERS: Final = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """One program, and where it may come from."""

    name: str
    module: str
    """Folder of ``deploy/local``."""
    package: str
    """Go package of the program."""
    versioned_by: str
    """Go module whose version is the program's."""
    stamps: tuple[str, ...] = ()
    """Go variables that tell the program its version; unset, it would deny having one."""
    use_path: bool = False
    debian_package: str | None = None
    must_contain: bytes = b""
    """What a program of another's making must have compiled in to be of use."""
    build_s: float = 60.0
    """Seconds of one core for a build after those above it, whose packages it shares: twice what it
    took on two cores on 30 November 2026; of kwok and prometheus on busy ones."""
    is_of_lab: bool = True
    """Else only a test asks for it, and its module is with the tests."""


def _kubernetes(command: str, build_s: float) -> Tool:
    """Return a program of the control plane."""
    values = (
        "gitMajor={major}", "gitMinor={minor}", "gitVersion={version}", "gitCommit={version}",
        "gitTreeState=clean", "buildDate=1970-01-01T00:00:00Z",
    )  # fmt: skip
    packages = ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
    return Tool(
        name=command,
        module="controlplane",
        package=f"k8s.io/kubernetes/cmd/{command}",
        versioned_by="k8s.io/kubernetes",
        stamps=tuple(f"{package}.{value}" for package in packages for value in values),
        build_s=build_s,
    )


TOOLS: Final[Mapping[str, Tool]] = {
    tool.name: tool
    for tool in (
        _kubernetes("kube-apiserver", 518),
        _kubernetes("kube-controller-manager", 160),
        _kubernetes("kube-scheduler", 12),
        _kubernetes("kubectl", 62),
        Tool(
            name="etcd",
            module="controlplane",
            package="go.etcd.io/etcd/server/v3",
            versioned_by="go.etcd.io/etcd/server/v3",
            build_s=146,
        ),
        Tool(
            name="kwok",
            module="kwok",
            package="sigs.k8s.io/kwok/cmd/kwok",
            versioned_by="sigs.k8s.io/kwok",
            stamps=("sigs.k8s.io/kwok/pkg/consts.Version={version}",),
        ),
        Tool(
            name="helm",
            module="helm",
            package="helm.sh/helm/v4/cmd/helm",
            versioned_by="helm.sh/helm/v4",
            stamps=("helm.sh/helm/v4/internal/version.version={version}",),
            build_s=202,
        ),
        Tool(
            name="prometheus",
            module="prometheus",
            package="github.com/prometheus/prometheus/cmd/prometheus",
            versioned_by="github.com/prometheus/prometheus",
            use_path=True,
            debian_package="prometheus",
            must_contain=b"discovery/kubernetes",
            build_s=400,
        ),
        Tool(
            name="kubeconform",
            module="kubeconform",
            package="github.com/yannh/kubeconform/cmd/kubeconform",
            versioned_by="github.com/yannh/kubeconform",
            is_of_lab=False,
        ),
        Tool(
            name="lws",
            module="lws",
            package="sigs.k8s.io/lws/cmd",
            versioned_by="sigs.k8s.io/lws",
            stamps=("sigs.k8s.io/lws/pkg/version.GitVersion={version}",),
            is_of_lab=False,
        ),
    )
}
OF_LAB: Final = tuple(name for name, tool in TOOLS.items() if tool.is_of_lab)


@dataclass(frozen=True, slots=True, kw_only=True)
class AssetPaths:
    """Folders of one machine and user."""

    sources: Path
    """The wrapper modules."""
    programs: Path
    scratch: Path
    """Go's caches and whatever else a build leaves; one build at a time works here."""
    kubebuilder: Path | None = None


def of_checkout(path: str) -> Path:
    """Return a folder of the sources, by its path from their root."""
    return Path(__file__).parents[2] / path


def cache_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """Return where the lab keeps what is made once on a machine."""
    return Path(environment.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tonnage"


def asset_paths(environment: Mapping[str, str] = os.environ) -> AssetPaths:
    """Return the folders to use, as this environment asks."""
    sources = of_checkout("deploy/local")
    home = cache_folder(environment)
    chosen = environment.get("TONNAGE_ASSETS")
    programs = Path(chosen) if chosen else home / "assets" / digest(sources, toolchain.release())
    return AssetPaths(
        sources=sources,
        programs=programs,
        scratch=home / "build",
        kubebuilder=kubebuilder_folder(environment),
    )


def kubebuilder_folder(environment: Mapping[str, str]) -> Path | None:
    """Return ``$KUBEBUILDER_ASSETS`` if it holds all three programs."""
    folder = Path(environment.get("KUBEBUILDER_ASSETS") or os.devnull)
    return folder if all(_runs(folder / name) for name in KUBEBUILDER_NAMES) else None


def digest(sources: Path, go_release: str) -> str:
    """Return a short name for everything that decides what a build gives."""
    state = hashlib.sha256(go_release.encode())
    for path in sorted([*sources.glob("*/go.mod"), *sources.glob("*/go.sum")]):
        content = path.read_bytes()
        state.update(f"\0{path.relative_to(sources).as_posix()}\0{len(content)}\0".encode())
        state.update(content)
    return state.hexdigest()[:_NUM_DIGEST_CHARACTERS]


def find(name: str, where: AssetPaths) -> Path | None:
    """Return a program that is already here."""
    tool = TOOLS[name]
    candidates = [where.programs / name]
    on_path = shutil.which(name) if tool.use_path else None
    if on_path is not None and _suits(tool, Path(on_path)):
        candidates.insert(0, Path(on_path))
    if where.kubebuilder is not None and name in KUBEBUILDER_NAMES:
        candidates.insert(0, where.kubebuilder / name)
    return next(filter(_runs, candidates), None)


def _runs(path: Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK)


def _suits(tool: Tool, path: Path) -> bool:
    return tool.must_contain in path.read_bytes()


def ensure(
    names: Sequence[str] = OF_LAB,
    *,
    where: AssetPaths | None = None,
    step: Step = silent,
) -> dict[str, Path]:
    """Return the paths of programs, downloaded or built first where they are missing.

    Raises:
        LabError: one of them can neither be found nor downloaded nor built.
    """
    where = asset_paths() if where is None else where
    if missing := [name for name in names if find(name, where) is None]:
        where.programs.mkdir(parents=True, exist_ok=True)
        with one_at_a_time(where.scratch, step, work="builds the lab's programs"):
            _download(missing, where, step)
            to_build = [TOOLS[name] for name in missing if not _is_here(TOOLS[name], where, step)]
            if to_build:
                click.echo(how_long(to_build, os.cpu_count() or 1), err=True)
            for tool in to_build:
                with step(f"building {tool.name} {version(tool, where.sources)}"):
                    _write_once(tool, where, partial(_build, tool, where))
            toolchain.clean(where.scratch)
    return {name: _locate(name, where) for name in names}


def how_long(tools: Sequence[Tool], num_cores: int) -> str:
    """Return the line that comes before builds.

    >>> how_long([TOOLS["kube-apiserver"], TOOLS["etcd"]], 2)
    'Builds 2 programs from source, once: some 6 minutes on 2 cores'
    """
    minutes = math.ceil(sum(tool.build_s for tool in tools) / num_cores / MINUTE_S)
    return (
        f"Builds {count_of(len(tools), 'program')} from source, once: "
        f"some {count_of(minutes, 'minute')} on {count_of(num_cores, 'core')}"
    )


def _locate(name: str, where: AssetPaths) -> Path:
    path = find(name, where)
    if path is None:
        raise LabError(f"{name} was built, but is not in {where.programs}")
    return path


@contextmanager
def one_at_a_time(folder: Path, step: Step, *, work: str) -> Iterator[None]:
    """Let one process work at a time; a second one then finds everything made."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            with step(f"waiting for another process that {work}"):
                fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _download(names: Sequence[str], where: AssetPaths, step: Step) -> None:
    """Take programs from their releases where this machine reaches them."""
    table, folder = where.sources / "downloads.yaml", where.scratch / "downloads"
    for archive in download.archives(table, machine=platform.machine()):
        try:
            _take(archive, [each for each in names if each in archive.members], where, step, folder)
        except LabError as error:
            click.echo(f"{error}. Built from source instead.", err=True)
            if isinstance(error, download.NoConnectionError):
                break
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _take(
    archive: Archive, names: Sequence[str], where: AssetPaths, step: Step, folder: Path
) -> None:
    tools = [TOOLS[name] for name in names if find(name, where) is None]
    wanted = [each for each in tools if version(each, where.sources) == archive.version]
    if wanted:
        with step(f"downloading {', '.join(each.name for each in wanted)} {archive.version}"):
            path = download.fetch(archive, folder)
            for tool in wanted:
                _write_once(tool, where, partial(download.take, archive, path, tool.name))


def _write_once(tool: Tool, where: AssetPaths, write: Callable[[Path], object]) -> None:
    """Let a program appear whole or not at all."""
    temporary = where.programs / f".{tool.name}.partial"
    write(temporary)
    temporary.rename(where.programs / tool.name)


def version(tool: Tool, sources: Path) -> str:
    """Return the version that the tool's go.mod requires, such as ``v1.36.4``."""
    go_mod = sources / tool.module / "go.mod"
    line = rf"^(?:require)?\s*{re.escape(tool.versioned_by)} (v\S+)"
    found = re.search(line, go_mod.read_text(), re.MULTILINE)
    if found is None:
        raise LabError(f"{go_mod} requires no version of {tool.versioned_by}")
    return found[1]


def stamp(tool: Tool, release: str) -> str:
    """Return the linker's flags: no debug tables, and the version where the tool wants it.

    >>> stamp(TOOLS["kwok"], "v0.8.0")
    '-s -w -X sigs.k8s.io/kwok/pkg/consts.Version=v0.8.0'
    """
    major, minor, *_ = release.removeprefix("v").split(".")
    values = (text.format(version=release, major=major, minor=minor) for text in tool.stamps)
    return " ".join(["-s -w", *(f"-X {value}" for value in values)])


def _build(tool: Tool, where: AssetPaths, output: Path) -> None:
    go = toolchain.go(where.scratch)
    flags = ["-p", str(os.cpu_count() or 1), "-ldflags", stamp(tool, version(tool, where.sources))]
    run(
        ["nice", go, "build", *flags, "-o", output, tool.package],
        folder=where.sources / tool.module,
        environment=toolchain.environment(go, where.scratch),
    )


def _is_here(tool: Tool, where: AssetPaths, step: Step) -> bool:
    """Tell whether a tool was downloaded, or comes from Debian's package, and runs here."""
    if find(tool.name, where) is not None:
        return True
    if tool.debian_package is None:
        return False
    folder = where.scratch / "debian"
    program = folder / "usr/bin" / tool.name
    try:
        with step(f"fetching Debian's {tool.name}"):
            download.unpack(tool.debian_package, folder)
            run([program, "--version"])
    except LabError:
        return False  # the build is the way for everybody else
    if not _suits(tool, program):
        return False
    _write_once(tool, where, lambda temporary: shutil.copy2(program, temporary))
    return True
