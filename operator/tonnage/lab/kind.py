"""The same cluster for people with Docker: kind instead of our own processes.

Untested: no Docker was at hand where this was written. ``deploy/kind/README.md`` says what
differs; above all there is no audit log.
"""

import shutil
from pathlib import Path
from typing import Final

from tonnage.lab import assets
from tonnage.lab.controlplane import ControlPlane
from tonnage.lab.kubectl import Kubectl
from tonnage.lab.processes import LabError, ProcessGroup, run
from tonnage.lab.progress import Step, silent

NAME: Final = "tonnage"


def start(folder: Path, *, crds: Path | None = None, step: Step = silent) -> ControlPlane:
    """Create the cluster that ``deploy/kind/cluster.yaml`` describes."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    kubeconfig = folder / "kubeconfig"
    configuration = assets.packaged("kind", "deploy/kind") / "cluster.yaml"
    files: list[str | Path] = ["--config", configuration, "--kubeconfig", kubeconfig]
    with step("creating a kind cluster"):
        run([_program("kind"), "create", "cluster", "--name", NAME, "--wait", "120s", *files])
    kubectl = Kubectl(program=_program("kubectl"), kubeconfig=kubeconfig)
    if crds is not None:
        kubectl.install_crds(crds)
    return ControlPlane(
        folder=folder,
        server=kubectl("config", "view", "-o", "jsonpath={.clusters[0].cluster.server}"),
        kubeconfig=kubeconfig,
        audit_log=None,
        kubectl=kubectl,
        group=ProcessGroup(logs=folder / "logs"),
        at_end=_delete,
    )


def _delete() -> None:
    run([_program("kind"), "delete", "cluster", "--name", NAME])


def _program(name: str) -> Path:
    path = shutil.which(name)
    if path is None:
        raise LabError(f"{name} is not on the PATH; kind needs Docker, kind and kubectl")
    return Path(path)
