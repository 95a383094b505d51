"""The programs of a kind node, and kind itself, from their authors' published Go modules.

Only where no node image can be pulled. The wrapper modules are in ``deploy/kind/modules`` and
not in ``deploy/local``: whoever runs the lab without Docker never builds them.
"""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tonnage_lab import assets, toolchain
from tonnage_lab.assets import AssetPaths, Tool, kubernetes
from tonnage_lab.processes import run
from tonnage_lab.progress import Step, silent

_CONTAINERD: Final = "github.com/containerd/containerd/v2"
_CNI: Final = "github.com/containernetworking/plugins"
NODE_FILES: Final = "kind-files"
"""What kind's own images/base puts into a node: units, configuration, entry point."""
PAUSE_SOURCE: Final = "pause.c"


def _containerd(command: str) -> Tool:
    return Tool(
        name=command,
        module="runtime",
        package=f"{_CONTAINERD}/cmd/{command}",
        versioned_by=_CONTAINERD,
        stamps=(f"{_CONTAINERD}/version.Version={{version}}",),
        tags="no_btrfs,no_zfs,no_devmapper,no_aufs",
    )


def _cni(folder: str, name: str) -> Tool:
    package = f"{_CNI}/plugins/{folder}/{name}"
    return Tool(name=name, module="runtime", package=package, versioned_by=_CNI)


TOOLS: Final[Mapping[str, Tool]] = {
    tool.name: tool
    for tool in (
        kubernetes("kubelet", "kubernetes"),
        kubernetes("kubeadm", "kubernetes"),
        kubernetes("kube-proxy", "kubernetes"),
        Tool(
            name="kind",
            module="runtime",
            package="sigs.k8s.io/kind",
            versioned_by="sigs.k8s.io/kind",
        ),
        *map(_containerd, ("containerd", "ctr", "containerd-shim-runc-v2")),
        _cni("ipam", "host-local"),
        _cni("main", "loopback"),
        _cni("main", "ptp"),
        _cni("meta", "portmap"),
        Tool(
            name="coredns",
            module="coredns",
            package="github.com/coredns/coredns",
            versioned_by="github.com/coredns/coredns",
        ),
    )
}
CNI_PLUGINS: Final = ("host-local", "loopback", "portmap", "ptp")


def lane_folder() -> Path:
    """Return where the lane keeps what it makes: programs, images, Docker's data."""
    chosen = os.environ.get("TONNAGE_KIND")
    return Path(chosen) if chosen else assets.cache_folder(os.environ) / "kind"


def paths(lane: Path) -> AssetPaths:
    """Return the folders of a build; it takes some 12 GB while it lasts, and 0.5 GB after it."""
    sources = assets.of_checkout("deploy/kind") / "modules"
    programs = lane / "programs" / assets.digest(sources, toolchain.release())
    return AssetPaths(sources=sources, programs=programs, scratch=lane / "build")


def kubernetes_version(where: AssetPaths) -> str:
    return assets.version(TOOLS["kubelet"], where.sources)


def ensure(where: AssetPaths, *, step: Step = silent) -> dict[str, Path]:
    """Return the paths of all programs and sources of a node, made first where one is missing.

    Raises:
        LabError: one of them cannot be made here.
    """
    _take_sources(where, step)
    return assets.ensure(tuple(TOOLS), where=where, tools=TOOLS, step=step)


def _take_sources(where: AssetPaths, step: Step) -> None:
    """Copy what a node needs of its authors' sources, while the modules are there."""
    files = where.programs / NODE_FILES
    if files.is_dir():
        return
    with step("fetching the sources of the node image"):
        where.programs.mkdir(parents=True, exist_ok=True)
        kind = _module(where, "runtime", "sigs.k8s.io/kind")
        pause = _module(where, "kubernetes", "k8s.io/kubernetes") / "build/pause/linux/pause.c"
        shutil.copyfile(pause, where.programs / PAUSE_SOURCE)
        partial = files.with_suffix(".partial")
        shutil.rmtree(partial, ignore_errors=True)
        shutil.copytree(kind / "images/base/files", partial, copy_function=shutil.copyfile)
        partial.rename(files)


def _module(where: AssetPaths, wrapper: str, module: str) -> Path:
    """Return the folder of a module's sources, downloaded if need be."""
    where.scratch.mkdir(parents=True, exist_ok=True)
    go = toolchain.go(where.scratch)
    folder, environment = where.sources / wrapper, toolchain.environment(go, where.scratch)
    run([go, "mod", "download", module], folder=folder, environment=environment)
    listed = run(
        [go, "list", "-m", "-f", "{{.Dir}}", module], folder=folder, environment=environment
    )
    return Path(listed.strip())
