"""LeaderWorkerSet as its authors publish it: CRDs, rights and webhooks, and the controller itself.

The controller is built as the lab's programs are and runs as a process of this machine, with the
rights of its own ServiceAccount. Its webhooks are asked on loopback.
"""

import base64
import json
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

import kubeconform
from http_double import new_certificates
from tonnage_lab import assets, toolchain
from tonnage_lab.assets import AssetPaths
from tonnage_lab.controlplane import ControlPlane
from tonnage_lab.kubectl import Kubectl
from tonnage_lab.processes import LabError, ProcessGroup, answers, free_ports, run

VERSION: Final = "v0.9.0"
MODULE: Final = f"sigs.k8s.io/lws@{VERSION}"
CRD: Final = "config/crd/bases/leaderworkerset.x-k8s.io_leaderworkersets.yaml"
NAMESPACE: Final = "lws-system"
ACCOUNT: Final = "lws-controller-manager"
START_TIMEOUT_S: Final = 60.0
TAKEN: Final = frozenset(
    {
        "Namespace", "ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding",
        "MutatingWebhookConfiguration", "ValidatingWebhookConfiguration",
    }
)  # fmt: skip
"""Of what is installed: the controller runs here, so no Deployment, Service or Secret of it."""

Object = dict[str, Any]


def sources() -> Path:
    """Return the folder of the module.

    Raises:
        LabError: it cannot be had.
    """
    scratch = assets.cache_folder() / "build"
    scratch.mkdir(parents=True, exist_ok=True)
    go = toolchain.go(scratch)
    settings = toolchain.environment(go, scratch) | {"GOFLAGS": "-mod=mod"}
    said = run([go, "mod", "download", "-json", MODULE], folder=scratch, environment=settings)
    return Path(json.loads(said)["Dir"])


def copy_crd(folder: Path) -> Path:
    """Put the CRD into a folder; return the file."""
    return Path(shutil.copy(sources() / CRD, folder))


def published(kubectl_program: Path) -> list[Object]:
    """Return everything that its authors install."""
    said = run([kubectl_program, "kustomize", sources() / "config" / "default"])
    return list(yaml.safe_load_all(said))


def write_crds(manifests: list[Object], folder: Path) -> None:
    """Put the CRDs into a folder, from where a control plane installs them."""
    for each in manifests:
        if each["kind"] == "CustomResourceDefinition":
            (folder / f"{each['metadata']['name']}.yaml").write_text(yaml.safe_dump(each))


def program() -> Path:
    """Return the controller, built if it is not here."""
    home = assets.cache_folder()
    where = AssetPaths(
        sources=kubeconform.SOURCES,
        programs=home / "assets" / assets.digest(kubeconform.SOURCES, toolchain.release()),
        scratch=home / "build",
    )
    return assets.ensure(["lws"], where=where)["lws"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Controller:
    """The controller of LeaderWorkerSets beside a control plane."""

    group: ProcessGroup
    kubectl: Kubectl
    command: tuple[str | Path, ...]
    environment: Mapping[str, str]
    probe: str

    def start(self) -> None:
        """Start it, and wait until its webhooks answer."""
        self.group.start("lws", self.command, environment=self.environment)
        self.group.wait_until(
            lambda: answers(self.probe)() and self._admits(),
            what="the controller of LeaderWorkerSets answers",
            timeout_s=START_TIMEOUT_S,
            needs=("lws",),
        )

    def stop(self) -> None:
        self.group.stop("lws")

    def _admits(self) -> bool:
        pod = {"containers": [{"name": "c", "image": "i"}]}
        tried = {
            "apiVersion": "leaderworkerset.x-k8s.io/v1",
            "kind": "LeaderWorkerSet",
            "metadata": {"name": "tried", "namespace": "default"},
            "spec": {"leaderWorkerTemplate": {"workerTemplate": {"spec": pod}}},
        }
        try:
            self.kubectl("create", "--dry-run=server", "-f", "-", text=json.dumps(tried))
        except LabError:
            return False
        return True


def install(plane: ControlPlane, manifests: list[Object]) -> Controller:
    """Install all but the CRDs, and start the controller."""
    folder = plane.folder / "lws"
    folder.mkdir()
    port, probe = free_ports(2)
    certificates = new_certificates(folder / "certificates")
    for source, name in (
        (certificates.server.certificate, "crt"),
        (certificates.server.key, "key"),
    ):
        shutil.copy(source, folder / f"tls.{name}")
    authority = base64.b64encode(certificates.ca.read_bytes()).decode()
    taken = [each for each in manifests if each["kind"] in TAKEN]
    for client in _webhook_clients(taken):
        path = client.pop("service")["path"]
        client |= {"url": f"https://127.0.0.1:{port}{path}", "caBundle": authority}
    plane.kubectl.apply(taken)
    (folder / "config.yaml").write_text(yaml.safe_dump(_configuration(folder, port, probe)))
    made = Controller(
        group=plane.group,
        kubectl=plane.kubectl,
        command=(program(), "--config", folder / "config.yaml"),
        environment={"KUBECONFIG": str(_kubeconfig(plane, folder))},
        probe=f"http://127.0.0.1:{probe}/readyz",
    )
    made.start()
    return made


def _webhook_clients(manifests: list[Object]) -> Iterator[Object]:
    for each in manifests:
        for webhook in each.get("webhooks") or ():
            yield webhook["clientConfig"]


def _configuration(folder: Path, port: int, probe: int) -> Object:
    """One copy runs here, so none is elected: the Lease of one that ended would be waited for."""
    return {
        "apiVersion": "config.lws.x-k8s.io/v1alpha1",
        "kind": "Configuration",
        "webhook": {"host": "127.0.0.1", "port": port, "certDir": str(folder)},
        "health": {"healthProbeBindAddress": f"127.0.0.1:{probe}"},
        "metrics": {"bindAddress": "0"},
        "leaderElection": {"leaderElect": False},
        "internalCertManagement": {"enable": False},
    }


def _kubeconfig(plane: ControlPlane, folder: Path) -> Path:
    """Write a kubeconfig with the rights of the controller's own account."""
    token = plane.kubectl("create", "token", ACCOUNT, "-n", NAMESPACE, "--duration=24h").strip()
    config = yaml.safe_load(plane.kubeconfig.read_text())
    config["users"] = [{"name": "admin", "user": {"token": token}}]
    path = folder / "kubeconfig"
    path.write_text(yaml.safe_dump(config))
    return path
