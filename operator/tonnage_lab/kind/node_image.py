"""A node image where none can be pulled: what kind calls one, from programs that were built here.

Debian's own packages for the system, kind's own files for its units and entry point, and the
images of the control plane preloaded, as ``kind build node-image`` does after its pulls.
"""

import json
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tonnage_lab import assets
from tonnage_lab.assets import AssetPaths
from tonnage_lab.kind import images, programs
from tonnage_lab.kind.docker import Docker
from tonnage_lab.processes import LabError, run, wait_until
from tonnage_lab.progress import Step, silent

NAME: Final = "tonnage-kind/node:lab"
_ROOT: Final = "tonnage-kind/node-root:lab"
_BARE: Final = "tonnage-kind/node:bare"
_REGISTRY: Final = "registry.k8s.io"
ETCD: Final = f"{_REGISTRY}/etcd:3.6.8-0"
PAUSE: Final = f"{_REGISTRY}/pause:3.10.2"
COREDNS: Final = f"{_REGISTRY}/coredns/coredns:v1.14.2"
"""As kubeadm 1.36.4 names them; what runs under the names is of the versions built here."""
_ENTRY_POINT: Final = ["/usr/local/bin/entrypoint", "/sbin/init"]
_STORAGE: Final = """apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata:
  name: standard
  annotations: {storageclass.kubernetes.io/is-default-class: "true"}
provisioner: kubernetes.io/no-provisioner
"""


def build(docker: Docker, where: AssetPaths, *, step: Step = silent) -> str:
    """Build the image as far as it is not there, and return its name.

    Raises:
        LabError: a program or an image cannot be made here.
    """
    made = programs.ensure(where, step=step)
    made |= assets.ensure(step=step)
    wanted = images.digest(images.recipe(), where.programs.name, *made.values())
    if images.digest_of(docker, NAME) == wanted:
        return NAME
    images.debian_root(docker, step=step)
    with step("building the node image"), _context(where, made) as folder:
        given = {"PAUSE": PAUSE}
        images.build(docker, folder, "node-root", _ROOT)
        control_plane = list(_control_plane(docker, folder, programs.kubernetes_version(where)))
        images.build(docker, folder, "node", _BARE, given=given)
        preload(docker, _BARE, control_plane, NAME, wanted)
    return NAME


@contextmanager
def _context(where: AssetPaths, made: Mapping[str, Path]) -> Iterator[Path]:
    version = programs.kubernetes_version(where)
    with images.context(**{"storage.yaml": _STORAGE, "version": version}) as folder:
        for name, path in made.items():
            place = "cni" if name in programs.CNI_PLUGINS else "bin"
            images.put(folder / place / name, path)
        shutil.copytree(where.programs / programs.NODE_FILES, folder / programs.NODE_FILES)
        run(["cc", "-static", "-Os", "-s", "-o", folder / "bin/pause",
             where.programs / programs.PAUSE_SOURCE])  # fmt: skip
        yield folder


def _control_plane(docker: Docker, folder: Path, version: str) -> Iterator[str]:
    """Build the images that kubeadm asks for; yield their names."""
    servers = ("kube-apiserver", "kube-controller-manager", "kube-scheduler")
    programs_of = {f"{_REGISTRY}/{name}:{version}": name for name in servers} | {ETCD: "etcd"}
    for tag, program in programs_of.items():
        images.build(docker, folder, "program", tag, given={"PROGRAM": program})
        yield tag
    proxy = f"{_REGISTRY}/kube-proxy:{version}"
    for target, tag in (("pause", PAUSE), ("coredns", COREDNS), ("kube-proxy", proxy)):
        images.build(docker, folder, target, tag)
        yield tag


def preload(docker: Docker, image: str, wanted: list[str], tag: str, digest: str) -> None:
    """Put images into the containerd of a node image, under a new name."""
    options = ("--privileged", "--network", "none", "--entrypoint", "sleep")
    made = docker("run", "--detach", *options, image, "infinity").strip()
    try:
        docker("exec", "--detach", made, "containerd")
        wait_until(
            lambda: _answers(docker, made), what="containerd answers", timeout_s=60, needs={}
        )
        docker.copy_images(wanted, made, "--no-unpack")  # an overlay on an overlay cannot
        docker("exec", made, "pkill", "containerd")
        time.sleep(1)  # it closes its store
        changes = (f"ENTRYPOINT {json.dumps(_ENTRY_POINT)}", "CMD []",
                   f"LABEL {images.DIGEST_LABEL}={digest}")  # fmt: skip
        docker("commit", *(f"--change={each}" for each in changes), made, tag)
    finally:
        docker("rm", "--force", made)


def _answers(docker: Docker, container: str) -> bool:
    try:
        docker("exec", container, "ctr", "version")
    except LabError:
        return False
    return True
