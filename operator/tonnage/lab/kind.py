"""The same cluster for people with Docker: kind instead of our own processes.

Untested: no Docker was at hand where this was written. ``deploy/kind/README.md`` says what
differs; above all there is no audit log.
"""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tonnage.lab import assets
from tonnage.lab.kubectl import Kubectl
from tonnage.lab.processes import LabError, run
from tonnage.lab.progress import Step, silent

NAME: Final = "tonnage"


@dataclass(frozen=True, slots=True, kw_only=True)
class KindCluster:
    """A running kind cluster, used as a `ControlPlane` is."""

    folder: Path
    server: str
    kubeconfig: Path
    kubectl: Kubectl
    audit_log: None = None

    def stop(self) -> None:
        run([_program("kind"), "delete", "cluster", "--name", NAME])


def start(folder: Path, *, crds: Path | None = None, step: Step = silent) -> KindCluster:
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
    server = kubectl("config", "view", "-o", "jsonpath={.clusters[0].cluster.server}")
    return KindCluster(folder=folder, server=server, kubeconfig=kubeconfig, kubectl=kubectl)


def _program(name: str) -> Path:
    path = shutil.which(name)
    if path is None:
        raise LabError(f"{name} is not on the PATH; kind needs Docker, kind and kubectl")
    return Path(path)
