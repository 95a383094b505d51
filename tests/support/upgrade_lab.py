"""A site with an earlier commit's operator, which is upgraded: who does it, and what is seen."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import requests
import yaml

import earlier
from audit_log import AuditLog, Request
from helm import NAMESPACE, Helm
from operator_hand import process_hand
from site_lab import QUICK_TRUTH, WRITE_VERBS, Site, Tenant, until
from tonnage.cluster.kube import DEPLOYMENTS, PODS, KubeApi, load_client
from tonnage_lab import assets, controlplane, prometheus, site
from tonnage_lab.load import LoadControl
from tonnage_lab.load_client import RequestRecord
from tonnage_lab.processes import free_ports
from tonnage_lab.site import GpuNode, SiteConfig

TICK_S = 3
WATCHED_S = 10 * TICK_S
"""After each step, beyond a tick: the operator of then may take long over its next ones."""
ELSEWHERE = "tonnage-elsewhere"
CRD = "modeldeployments.tonnage.dev"
OLD, NEW = "earlier", "lab"
LAB_ITSELF = ("pods/status", "events")
"""What the pod runner writes of the pods that it runs, as an administrator."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """What stands in the cluster at one moment."""

    at_s: float
    processes: dict[str, list[tuple[str, int]]]
    """By UID of the pod: each container's process, and how often it was restarted."""
    generations: dict[str, int]
    """Of the Deployments."""
    templates: dict[str, Any]
    replicas: dict[str, int]
    crd_uid: str
    crd_fields: set[str]
    """Of ``spec`` in the schema that is served."""
    operators: dict[str, str]
    """Images of the operators that run, by namespace."""


@dataclass(slots=True, kw_only=True)
class Record:
    """The run."""

    site: Site
    tenant: Tenant
    pictures: dict[str, Picture] = field(default_factory=dict)
    """By the step after which they were taken."""
    loads: list[LoadControl] = field(default_factory=list)
    load_s: tuple[float, float] = (0, 0)
    rollback_s: tuple[float, float] = (0, 0)
    """From its begin until no other operator than the old one runs."""
    refused: list[Request] = field(default_factory=list)

    @property
    def requests(self) -> list[RequestRecord]:
        """Return what became of the requests that have ended."""
        return [each for load in self.loads for each in load.records]

    def look(self, step: str) -> None:
        pods, deployments = (self.tenant.all_of(each) for each in (PODS, DEPLOYMENTS))
        crd = self.site.plane.kubectl.get("crd", CRD)
        schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
        self.pictures[step] = Picture(
            at_s=time.time(),
            processes={pod["metadata"]["uid"]: processes_of(pod) for pod in pods},
            generations=by_name(deployments, lambda each: each["metadata"]["generation"]),
            templates=by_name(deployments, lambda each: each["spec"]["template"]),
            replicas=by_name(deployments, lambda each: each["spec"]["replicas"]),
            crd_uid=crd["metadata"]["uid"],
            crd_fields=set(schema["properties"]["spec"]["properties"]),
            operators=self.operators(),
        )

    def operators(self) -> dict[str, str]:
        found = [
            pod
            for namespace in (NAMESPACE, ELSEWHERE)
            for pod in self.site.api.list(PODS.path(namespace))
        ]
        return {
            pod["metadata"]["namespace"]: pod["spec"]["containers"][0]["image"] for pod in found
        }

    def writes(self, after: str, until_step: str) -> list[Request]:
        """Return what anybody wrote in the objects' namespace between two pictures."""
        since_s, until_s = self.pictures[after].at_s, self.pictures[until_step].at_s
        return [
            each
            for each in self.site.requests(since_s=since_s)
            if each.verb in WRITE_VERBS
            and each.namespace == self.tenant.namespace
            and each.asked_at_s < until_s
            and each.resource not in LAB_ITSELF
        ]


def by_name(found: list[Any], part: Callable[[Any], Any]) -> dict[str, Any]:
    return {each["metadata"]["name"]: part(each) for each in found}


def processes_of(pod: Any) -> list[tuple[str, int]]:
    return [
        (each["containerID"], each["restartCount"]) for each in pod["status"]["containerStatuses"]
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Driver:
    """Who installs and upgrades."""

    record: Record
    helm: Helm
    old_chart: Path
    values: dict[str, Any]

    def release(self, chart: Path, tag: str, *options: str, namespace: str = NAMESPACE) -> None:
        """``helm upgrade --install``, and wait until that operator decides."""
        values = self.values | {"image": {"repository": "tonnage/operator", "tag": tag}}
        arguments = ("upgrade", "--install", "tonnage", chart, "--namespace", namespace)
        self.helm(*arguments, "--create-namespace", *options, values=values)
        self.wait_for(tag, namespace)

    def wait_for(self, tag: str, namespace: str = NAMESPACE) -> None:
        wanted = {namespace: f"tonnage/operator:{tag}"}
        until(lambda: self.record.operators() == wanted, f"{tag} runs", timeout_s=60)
        until(lambda: self.is_ready(namespace), f"{tag} is Ready", timeout_s=120, every_s=0.5)
        began = self.ticks(namespace)
        until(lambda: self.ticks(namespace) > began, f"{tag} decides", timeout_s=300, every_s=1)

    def ticks(self, namespace: str) -> int:
        """Return how often the operator has decided; 0 while it does not answer."""
        try:
            return self.record.site.num_ticks(namespace)
        except requests.ConnectionError:
            return 0

    def is_ready(self, namespace: str) -> bool:
        return any(
            condition["type"] == "Ready" and condition["status"] == "True"
            for pod in self.record.site.api.list(PODS.path(namespace))
            for condition in pod["status"].get("conditions", ())
        )

    def settle(self) -> None:
        """Give the operator time to do what it would."""
        time.sleep(WATCHED_S)

    def watched(self, step: str) -> None:
        """Give the operator time to do what it would, and take the picture of after."""
        self.settle()
        self.record.look(step)


@contextmanager
def an_old_site(folder: Path, commit: str = earlier.COMMIT) -> Iterator[Driver]:
    """Start a control plane with the CRD of a commit, and package its chart."""
    old = earlier.sources(folder / "old", commit)
    programs = assets.ensure()
    nodes = [GpuNode(name=f"gpu-{number}", product="NVIDIA-H200", num_gpus=8) for number in "0123"]
    config = SiteConfig(
        nodes=tuple(nodes),
        truth=QUICK_TRUTH,
        scrape_interval_s=TICK_S,
        operators={OLD: earlier.interpreter(old, commit)},
    )
    plane = controlplane.start(folder / "plane", programs=programs, crds=old / "crds")
    client = load_client(str(plane.kubeconfig))
    log = AuditLog(Path(str(plane.audit_log)))
    try:
        url = prometheus.start(plane, scrape_interval_s=TICK_S)
        site.start_nodes(plane, config)
        values = operator_values(url)
        (plane.folder / "values.yaml").write_text(yaml.safe_dump(values))
        hand = process_hand(plane.folder)
        api = KubeApi(client)
        made = Site(plane=plane, prometheus_url=url, api=api, hand=hand, audit=log)
        plane.kubectl("create", "namespace", "serving")
        record = Record(site=made, tenant=Tenant(site=made, namespace="serving"))
        helm = Helm(program=programs["helm"], home=folder, kubeconfig=plane.kubeconfig)
        yield Driver(
            record=record,
            helm=helm,
            old_chart=earlier.packaged_chart(programs["helm"], old, folder),
            values=values,
        )
    finally:
        log.close()
        client.close()
        plane.stop()


def operator_values(prometheus_url: str) -> dict[str, Any]:
    """Return values that both charts take; the CRD is brought before each, by other means."""
    (probe_port,) = free_ports(1)
    settings = {"tickS": TICK_S, "scaleDownWindowS": 20, "statusIntervalS": 5}
    own = {"scrapeIntervalS": TICK_S, "probePort": probe_port, "prometheusUrl": prometheus_url}
    return {
        "crds": {"install": False},
        "hostNetwork": True,
        "affinity": None,
        "nodeSelector": {"nvidia.com/gpu.present": "true"},
        "settings": settings | own,
    }
