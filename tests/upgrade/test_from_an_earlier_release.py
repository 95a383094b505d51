"""An upgrade from an earlier commit's chart, CRD and program, with twenty objects under load.

    pytest -m upgrade tests/upgrade

One fixture drives the run, back and forth, and records it; each test is a claim about the record.
Every engine is a process, so that one that is replaced is another process.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import requests
import yaml

import earlier
import site_lab
from audit_log import AuditLog, Request
from helm import CHART, NAMESPACE, Helm
from operator_hand import process_hand
from site_lab import CRDS, OPERATOR, QUICK_TRUTH, WRITE_VERBS, Site, Tenant, a_model, until
from tonnage.cluster.kube import DEPLOYMENTS, PODS, KubeApi, load_client
from tonnage_lab import assets, controlplane, prometheus, site
from tonnage_lab.load import LoadControl, LoadTarget, background_load
from tonnage_lab.load_client import LengthDistribution, RequestShape
from tonnage_lab.load_endpoints import ServiceRef
from tonnage_lab.load_records import RequestRecord
from tonnage_lab.processes import free_ports
from tonnage_lab.site import GpuNode, SiteConfig

NO_COMMIT = earlier.obstacle()
pytestmark = [
    pytest.mark.upgrade,
    *site_lab.pytestmark,
    pytest.mark.skipif(NO_COMMIT is not None, reason=str(NO_COMMIT)),
]

NAMES = [f"model-{number:02}" for number in range(20)]
EACH_PER_S = 0.3
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

    def watched(self, step: str) -> None:
        """Give the operator time to do what it would, and take the picture of after."""
        time.sleep(WATCHED_S)
        self.record.look(step)


@contextmanager
def an_old_site(folder: Path, old: Path) -> Iterator[Driver]:
    """Start a control plane with the CRD of then, and install the chart of then."""
    programs = assets.ensure()
    nodes = [GpuNode(name=f"gpu-{number}", product="NVIDIA-H200", num_gpus=8) for number in "0123"]
    config = SiteConfig(
        nodes=tuple(nodes),
        truth=QUICK_TRUTH,
        scrape_interval_s=TICK_S,
        operators={OLD: earlier.interpreter(old)},
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


@contextmanager
def under_load(record: Record) -> Iterator[None]:
    """Send requests to every object until the end, and keep what became of them."""
    began_s = time.time()
    with ExitStack() as stack:
        for seed, name in enumerate(NAMES):
            target = LoadTarget(
                kubeconfig=record.site.plane.kubeconfig,
                service=ServiceRef(namespace=record.tenant.namespace, name=name),
            )
            shape = RequestShape(
                model=a_model()["spec"]["model"]["id"],
                prompt=LengthDistribution(mean_tokens=500),
                output=LengthDistribution(mean_tokens=100),
                seed=seed,
            )
            each = LoadControl(requests_per_s=EACH_PER_S)
            record.loads.append(stack.enter_context(background_load(target, shape, each)))
        yield
        record.load_s = (began_s, time.time())


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Record:
    """Old, CRD, new, back, new, gone, elsewhere: with a picture after each step."""
    folder = tmp_path_factory.mktemp("upgrade")
    with an_old_site(folder, earlier.sources(folder / "old")) as driver:
        record, kubectl = driver.record, driver.record.site.plane.kubectl
        driver.release(driver.old_chart, OLD)
        record.tenant.apply(*(a_model(name, scaling={"maxReplicas": 1}) for name in NAMES))
        for name in NAMES:
            record.tenant.wait_ready(name)
        with under_load(record):
            driver.watched("old")
            kubectl("apply", "--server-side", "-f", CRDS)
            driver.watched("crd")
            driver.release(CHART, NEW)
            driver.watched("new")
            began_s = time.time()
            driver.helm("rollback", "tonnage", "--namespace", NAMESPACE)
            old = {NAMESPACE: f"tonnage/operator:{OLD}"}
            until(lambda: record.operators() == old, "the old one alone runs", timeout_s=60)
            record.rollback_s = (began_s, time.time())
            driver.wait_for(OLD)
            driver.watched("back")
            driver.release(CHART, NEW)
            driver.watched("again")
            driver.helm("uninstall", "tonnage", "--namespace", NAMESPACE, "--wait")
            until(lambda: not record.operators(), "the operator is gone", timeout_s=60)
            driver.watched("gone")
            driver.release(CHART, NEW, namespace=ELSEWHERE)
            driver.watched("elsewhere")
        record.refused.extend(each for each in record.site.requests() if not each.is_allowed)
        return record


def test_it_is_the_operator_of_then_that_made_what_runs(run: Record):
    assert run.pictures["old"].operators == {NAMESPACE: f"tonnage/operator:{OLD}"}
    assert sorted(run.pictures["old"].replicas) == NAMES
    assert len(run.pictures["old"].processes) == len(NAMES)
    assert "operatorClass" not in run.pictures["old"].crd_fields


def test_the_upgraded_one_knows_what_is_new_and_looks_at_every_object(run: Record):
    assert "operatorClass" in run.pictures["crd"].crd_fields
    assert run.pictures["new"].operators == {NAMESPACE: f"tonnage/operator:{NEW}"}


@pytest.mark.parametrize("step", ["crd", "new", "back", "again", "gone", "elsewhere"])
def test_no_engine_restarts_and_no_template_changes(run: Record, step: str):
    before, after = run.pictures["old"], run.pictures[step]

    assert after.processes == before.processes
    assert after.generations == before.generations
    assert after.templates == before.templates
    assert after.replicas == before.replicas


@pytest.mark.parametrize("step", ["crd", "new", "back", "again", "gone", "elsewhere"])
def test_the_crd_stays_the_same_object(run: Record, step: str):
    assert run.pictures[step].crd_uid == run.pictures["old"].crd_uid


def test_nobody_but_the_operator_writes_and_it_writes_no_pods_and_no_deployments(run: Record):
    writes = run.writes("old", "again")
    told = {(each.user, each.resource, each.verb) for each in writes}

    assert {user for user, _, _ in told} == {OPERATOR}, told
    assert {resource for _, resource, _ in told} <= {
        "modeldeployments/status", "services", "events",
    }, told  # fmt: skip


def test_every_request_is_answered(run: Record):
    began_s, ended_s = run.load_s

    assert len(run.requests) > 0.8 * EACH_PER_S * len(NAMES) * (ended_s - began_s)
    assert [each for each in run.requests if not each.is_complete] == []


def test_the_operator_is_refused_nothing_while_it_is_installed(run: Record):
    """An uninstall takes its rights first; its last ticks then fail.

    So does a rollback, of rights that the old chart lacks: to Leases of other namespaces, and to
    the ConfigMaps of today.
    """
    back_s, old_s = run.rollback_s
    ends_s, gone_s = (run.pictures[step].at_s for step in ("again", "gone"))
    operators = {OPERATOR, OPERATOR.replace(NAMESPACE, ELSEWHERE)}
    refused = [each for each in run.refused if each.user in operators]

    assert [
        each
        for each in refused
        if not ends_s < each.asked_at_s < gone_s and not back_s < each.asked_at_s < old_s
    ] == []
