"""A real Kubernetes control plane as plain processes on loopback: no Docker, no root.

etcd, kube-apiserver, kube-controller-manager and kube-scheduler, with RBAC, the default
admission plugins and an audit log of every request. There is no kubelet and no kube-proxy:
nodes come from KWOK or from the pod runner, and ClusterIPs lead nowhere.
"""

import base64
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import yaml

from tonnage_lab import assets, certificates
from tonnage_lab.certificates import Certificates
from tonnage_lab.kubectl import Kubectl
from tonnage_lab.processes import ProcessGroup, answers, free_ports
from tonnage_lab.progress import Step, silent

PROGRAMS: Final = (
    "etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl",
)  # fmt: skip
SERVICE_RANGE: Final = "10.96.0.0/16"
START_TIMEOUT_S: Final = 120.0
"""Seconds are enough on an idle machine; a build beside it makes them many."""

AUDIT_POLICY: Final = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [{"level": "Metadata"}],
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlPlane:
    """One that runs. Its files are in ``folder``, its programs' outputs in ``folder/logs``."""

    folder: Path
    server: str
    """Address of the API server."""
    kubeconfig: Path
    """For an administrator, with everything in it: it works from any folder."""
    audit_log: Path
    """JSON lines, one for each finished request, without bodies."""
    kubectl: Kubectl
    group: ProcessGroup
    """Start further parts here, and they stop before the control plane does."""
    at_end: Callable[[], None] = lambda: None

    def stop(self) -> None:
        self.group.stop_all()
        self.at_end()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Site:
    """Where the parts of one control plane find each other."""

    folder: Path
    certificates: Certificates
    ports: Mapping[str, int]

    @property
    def server(self) -> str:
        return f"https://127.0.0.1:{self.ports['kube-apiserver']}"

    @property
    def etcd(self) -> str:
        return f"http://127.0.0.1:{self.ports['etcd']}"

    @property
    def kubeconfig(self) -> Path:
        return self.folder / "kubeconfig"

    @property
    def audit_log(self) -> Path:
        return self.folder / "audit.log"


def start(
    folder: Path,
    *,
    programs: Mapping[str, Path] | None = None,
    crds: Path | None = None,
    group: ProcessGroup | None = None,
    step: Step = silent,
) -> ControlPlane:
    """Start a control plane with its state in a new folder, and wait until pods can be created.

    CRDs are installed before the controller-manager starts: garbage collector and quota learn
    later kinds from a scan every 30 s only, and until then delete nothing that such objects own.

    Raises:
        LabError: a part cannot be built, or ends, or does not answer in time; what had been
            started is stopped again, and the error holds the last lines of the part's log.
    """
    programs = assets.ensure(PROGRAMS, step=step) if programs is None else programs
    group = ProcessGroup(logs=folder / "logs") if group is None else group
    site = _prepare(folder)
    kubectl = Kubectl(program=programs["kubectl"], kubeconfig=site.kubeconfig)
    with step("starting the control plane"), group.stopped_on_failure():
        _start_server(site, programs, group)
        if crds is not None:
            kubectl.install_crds(crds)
        _start_controllers(site, programs, group)
    return ControlPlane(
        folder=folder,
        server=site.server,
        kubeconfig=site.kubeconfig,
        audit_log=site.audit_log,
        kubectl=kubectl,
        group=group,
    )


def _prepare(folder: Path) -> _Site:
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    names = ("etcd", "etcd-peers", "kube-apiserver", "kube-controller-manager", "kube-scheduler")
    site = _Site(
        folder=folder,
        certificates=certificates.issue(
            folder / "certificates", now=datetime.fromtimestamp(time.time(), tz=UTC)
        ),
        ports=dict(zip(names, free_ports(len(names)), strict=True)),
    )
    (folder / "audit-policy.yaml").write_text(yaml.safe_dump(AUDIT_POLICY))
    site.kubeconfig.touch(mode=0o600)
    site.kubeconfig.write_text(yaml.safe_dump(admin_kubeconfig(site.server, site.certificates)))
    return site


def admin_kubeconfig(server: str, files: Certificates) -> dict[str, object]:
    """Return a kubeconfig for an administrator, with the certificates in it."""
    authority = {"server": server, "certificate-authority-data": _base64(files.ca)}
    identity = {
        "client-certificate-data": _base64(files.admin.certificate),
        "client-key-data": _base64(files.admin.key),
    }
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "lab", "cluster": authority}],
        "users": [{"name": "admin", "user": identity}],
        "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": "admin"}}],
        "current-context": "lab",
    }


def _base64(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()


def _start_server(site: _Site, programs: Mapping[str, Path], group: ProcessGroup) -> None:
    """Start etcd and the API server together: the second waits for the first by itself."""
    group.start("etcd", [programs["etcd"], *_etcd_flags(site)])
    group.start("kube-apiserver", [programs["kube-apiserver"], *_apiserver_flags(site)])
    group.wait_until(
        _get(site, "/readyz"),
        what="the API server is ready",
        timeout_s=START_TIMEOUT_S,
        needs=("etcd", "kube-apiserver"),
    )


def _start_controllers(site: _Site, programs: Mapping[str, Path], group: ProcessGroup) -> None:
    """Start what acts on objects, until it has made the account that every pod needs."""
    for name, flags in (
        ("kube-controller-manager", _controller_manager_flags(site)),
        ("kube-scheduler", _scheduler_flags(site)),
    ):
        group.start(name, [programs[name], *flags])
    group.wait_until(
        _get(site, "/api/v1/namespaces/default/serviceaccounts/default"),
        what="the default ServiceAccount exists",
        timeout_s=START_TIMEOUT_S,
        needs=("kube-apiserver", "kube-controller-manager", "kube-scheduler"),
    )


def _get(site: _Site, path: str) -> Callable[[], bool]:
    pair = site.certificates.admin
    return answers(site.server + path, ca=site.certificates.ca, client=(pair.certificate, pair.key))


def _etcd_flags(site: _Site) -> list[str]:
    peers = f"http://127.0.0.1:{site.ports['etcd-peers']}"
    return [
        "--name=lab",
        f"--data-dir={site.folder / 'etcd'}",
        f"--listen-client-urls={site.etcd}",
        f"--advertise-client-urls={site.etcd}",
        f"--listen-peer-urls={peers}",
        f"--initial-advertise-peer-urls={peers}",
        f"--initial-cluster=lab={peers}",
        "--log-level=warn",
        "--unsafe-no-fsync",  # a lab may be lost with the machine's power
    ]


def _apiserver_flags(site: _Site) -> list[str]:
    files = site.certificates
    return [
        f"--etcd-servers={site.etcd}",
        *_serving_flags(site, "kube-apiserver"),
        "--advertise-address=127.0.0.1",
        f"--tls-cert-file={files.server.certificate}",
        f"--tls-private-key-file={files.server.key}",
        f"--client-ca-file={files.ca}",
        "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
        f"--service-account-key-file={files.token_key}",
        f"--service-account-signing-key-file={files.token_key}",
        f"--service-cluster-ip-range={SERVICE_RANGE}",
        "--authorization-mode=RBAC",
        "--allow-privileged=true",
        "--endpoint-reconciler-type=none",  # endpoints cannot be on loopback
        f"--audit-policy-file={site.folder / 'audit-policy.yaml'}",
        f"--audit-log-path={site.audit_log}",
        "--audit-log-maxsize=500",  # MB; a session of tests stays far below
        "--audit-log-maxbackup=2",
    ]


def _controller_manager_flags(site: _Site) -> list[str]:
    return [
        f"--kubeconfig={site.kubeconfig}",
        *_serving_flags(site, "kube-controller-manager"),
        "--leader-elect=false",
        f"--service-account-private-key-file={site.certificates.token_key}",
        f"--root-ca-file={site.certificates.ca}",
        "--kube-api-qps=300",  # with the default of 20 the start takes twice as long
        "--kube-api-burst=400",
    ]


def _scheduler_flags(site: _Site) -> list[str]:
    return [
        f"--kubeconfig={site.kubeconfig}",
        *_serving_flags(site, "kube-scheduler"),
        "--leader-elect=false",
    ]


def _serving_flags(site: _Site, name: str) -> list[str]:
    return [
        "--bind-address=127.0.0.1",
        f"--secure-port={site.ports[name]}",
        f"--cert-dir={site.folder / name}",
    ]
