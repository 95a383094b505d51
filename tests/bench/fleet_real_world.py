"""A crowd of ModelDeployments on a real API server, the operator's process, and looks at both.

KWOK plays nodes and kubelets. What the operator asks of the API server is taken from the audit log,
what its ticks take from its own metrics page, CPU and memory from the kernel.
"""

import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import yaml
from measured import rss_mib

from audit_log import AuditLog
from crowd_api import CrowdApi, calm
from fleet_builders import a_request_of
from http_double import serving
from operator_process import OperatorProcess, an_operator
from site_lab import CRDS, WRITE_VERBS, Object, Request, a_model
from tonnage.api.objects import parse_model_deployment
from tonnage.cluster.kube import (
    DEPLOYMENTS,
    MODEL_DEPLOYMENTS,
    PODS,
    SERVICES,
    KubeApi,
    load_client,
)
from tonnage.manifests.children import Site, deployment, service
from tonnage.manifests.names import MANAGER
from tonnage.sizing.plan import Sizing
from tonnage.sizing.search import size
from tonnage_lab import assets, controlplane, kwok
from tonnage_lab.controlplane import ControlPlane

OWN = "tonnage-system"
USER = f"system:serviceaccount:{OWN}:tonnage"
TICK_S = 15
SCRAPE_S = 15.0
NUM_NAMESPACES = 20
NUM_QUESTIONS = 100
REPLICAS, MOST_REPLICAS = 3, 8
PODS_OF_NODE = 110
SPARE = 1.1
"""Of the GPUs: pods that replace others come first."""
LOOK_S = 1.0
PODS_S = 15.0
"""Between two looks at the pods, of which the query API then tells."""
TOLD_FOR_S = 10.0
"""A question asked again so soon gets the same bytes."""
NUM_HANDS = 4
MARKS = (USER.encode(), b'"modeldeployments"')
"""Of lines of the audit log that say anything here."""
SUMS = ("tonnage_tick_seconds_count", "tonnage_tick_seconds_sum", "tonnage_held_objects")
MODELS = (
    {"id": "meta-llama/Llama-3.3-70B-Instruct", "weights": "fp8"},
    {"id": "meta-llama/Llama-3.1-8B-Instruct", "weights": "bfloat16"},
    {"id": "Qwen/Qwen3-32B", "weights": "fp8"},
    {"id": "mistralai/Mistral-Small-3.1-24B-Instruct-2503", "weights": "fp8"},
)


def a_question(number: int, replicas: int = REPLICAS) -> Object:
    """Return model, context and SLO of an object; no two numbers give the same."""
    ttft_ms = 1500 + number
    return {
        "model": MODELS[number % len(MODELS)],
        "contextLength": 4096 * (2 + number % 5),
        "slo": {"timeToFirstToken": {"p95": f"{ttft_ms}ms"}, "timePerOutputToken": {"p95": "50ms"}},
        "scaling": {"minReplicas": replicas, "maxReplicas": MOST_REPLICAS},
    }


def a_manifest_of(
    number: int, key: tuple[str, str], num_questions: int, replicas: int = REPLICAS
) -> Object:
    namespace, name = key
    body = a_model(name, **a_question(number % num_questions, replicas))
    body["metadata"]["namespace"] = namespace
    return body


def a_sizing_of(question: int) -> Sizing:
    body = a_manifest_of(question, ("a", "a"), question + 1)
    body["metadata"] |= {"uid": "a", "generation": 1, "creationTimestamp": "2026-01-01T00:00:00Z"}
    return size(a_request_of(parse_model_deployment(body)))


def kind_of(pod: str) -> int:
    """Return which model a pod runs: objects are numbered, and questions a multiple of models."""
    return int(pod[1:6]) % len(MODELS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """The operator's process at one moment."""

    at_s: float
    cpu_s: float
    rss_mib: float
    load: float
    """Of the whole machine, in the last minute."""
    num_ticks: float = 0
    ticks_s: float = 0
    held: float = 0


@dataclass(kw_only=True)
class Crowd:
    """All of it; ``look`` once a second keeps up with what goes on."""

    plane: ControlPlane
    api: KubeApi
    prometheus: CrowdApi
    folder: Path
    stack: ExitStack
    names: Sequence[tuple[str, str]]
    """(namespace, name) of each object."""
    replicas: int = REPLICAS
    """Of each object, at least."""
    operator: OperatorProcess | None = None
    asked: list[Request] = field(default_factory=list)
    looks: list[Look] = field(default_factory=list)
    num_ready: int = 0
    _audit: AuditLog = field(init=False)

    def __post_init__(self) -> None:
        self._audit = AuditLog(Path(str(self.plane.audit_log)), MARKS)
        self.stack.callback(self._audit.close)

    def start(self, prometheus_url: str) -> None:
        """Start the operator for the first time."""
        self.operator = self.stack.enter_context(
            an_operator(
                self.folder,
                name="operator",
                kubeconfig=self._kubeconfig(),
                namespaces=(),
                tickS=TICK_S,
                statusIntervalS=60,
                scaleDownWindowS=300,
                operatorNamespace=OWN,
                prometheusUrl=prometheus_url,
            )
        )

    def _kubeconfig(self) -> str:
        told = yaml.safe_load(self.plane.kubeconfig.read_text())
        token = self.plane.kubectl("create", "token", "tonnage", "-n", OWN, "--duration=12h")
        told["users"][0]["user"] = {"token": token.strip()}
        return yaml.safe_dump(told)

    def restart(self) -> None:
        assert self.operator is not None
        self.operator.end(timeout_s=120)
        self.operator.start()

    def look(self) -> None:
        self.asked += self._audit.read()
        self.looks.append(self._look())

    def _look(self) -> Look:
        assert self.operator is not None
        assert self.operator.process is not None
        assert self.operator.process.poll() is None, self.operator.log()[-3000:]
        pid = self.operator.process.pid
        taken = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        sums = self._sums()
        return Look(
            at_s=time.time(),
            cpu_s=(int(taken[11]) + int(taken[12])) / os.sysconf("SC_CLK_TCK"),
            rss_mib=rss_mib(pid),
            load=os.getloadavg()[0],
            num_ticks=sums.get(SUMS[0], 0),
            ticks_s=sums.get(SUMS[1], 0),
            held=sums.get(SUMS[2], 0),
        )

    def _sums(self) -> dict[str, float]:
        """Return some of the operator's metrics; the whole page takes it a while."""
        assert self.operator is not None
        if not self.operator.probe("/healthz"):
            return {}
        page = self.operator.page("/metrics?" + "&".join(f"name[]={each}" for each in SUMS))
        rows = (line.split() for line in page.text.splitlines() if not line.startswith("#"))
        return {name: float(value) for name, value in rows}

    def until(self, done: Callable[[], bool], what: str, *, timeout_s: float) -> bool:
        """Look until it is so; tell whether that came in time."""
        end_s = time.time() + timeout_s
        while not done():
            if time.time() > end_s:
                print(f"  not in {timeout_s:.0f} s: {what}", flush=True)  # noqa: T201
                return False
            time.sleep(LOOK_S)
            self.look()
        return True

    def writes(self, since_s: float) -> list[Request]:
        """What the operator asked to change, Leases apart."""
        return [
            each
            for each in self.requests(since_s)
            if each.verb in WRITE_VERBS and each.resource != "leases"
        ]

    def requests(self, since_s: float) -> list[Request]:
        return [each for each in self.asked if each.user == USER and each.at_s >= since_s]

    def show_pods(self) -> None:
        """Let the query API tell of the pods that are Ready."""
        pods = self.api.list(PODS.path(None), label_selector="tonnage.dev/managed=true")
        ready = [
            (each["metadata"]["namespace"], each["metadata"]["name"])
            for each in pods
            if is_ready(each)
        ]
        self.num_ready = len(ready)
        self.prometheus.show(ready)

    def patch(self, some: Sequence[tuple[str, str]], spec: Object) -> None:
        """Change these objects at the same time, as far as it goes."""

        def change(key: tuple[str, str]) -> None:
            self.api.merge_patch(MODEL_DEPLOYMENTS.path(*key), {"spec": spec}, manager="a-user")

        with ThreadPoolExecutor(NUM_HANDS) as hands:
            list(hands.map(change, some))

    def objects(self) -> list[Object]:
        return list(self.api.list(MODEL_DEPLOYMENTS.path(None)))


def is_ready(pod: Object) -> bool:
    conditions = pod["status"].get("conditions") or ()
    is_ready = any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)
    return is_ready and "deletionTimestamp" not in pod["metadata"]


@contextmanager
def a_crowd(
    number: int, num_questions: int, *, replicas: int = REPLICAS, is_made: bool = False
) -> Iterator[tuple[Crowd, str]]:
    """Make so many objects on a control plane of their own; nobody has seen them yet.

    Yields them with the address of the query API. ``is_made``: their Deployments and Services stand
    there too, as an operator of before left them.
    """
    names = [(f"team-{each % NUM_NAMESPACES:02}", f"m{each:05}") for each in range(number)]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        plane = controlplane.start(folder / "plane", programs=assets.ensure(), crds=CRDS)
        stack.callback(plane.stop)
        kwok.start(plane)
        api = KubeApi(load_client(str(plane.kubeconfig)))
        kinds = [calm(a_sizing_of(each)) for each in range(len(MODELS))]
        prometheus = CrowdApi(
            completions_per_s={}, kinds=kinds, kind_of=kind_of, told_for_s=TOLD_FOR_S
        )
        server = stack.enter_context(serving(prometheus))
        made = Crowd(
            plane=plane,
            api=api,
            prometheus=prometheus,
            folder=folder,
            stack=stack,
            names=names,
            replicas=replicas,
        )
        _lay_out(made, num_questions)
        if is_made:
            _make_children(made, num_questions)
        stopping = threading.Event()
        stack.callback(stopping.set)
        threading.Thread(target=_keep_showing, args=(made, server, stopping), daemon=True).start()
        yield made, server.url


def _lay_out(crowd: Crowd, num_questions: int) -> None:
    kubectl = crowd.plane.kubectl
    for namespace in sorted({OWN, *(namespace for namespace, _ in crowd.names)}):
        kubectl("create", "namespace", namespace)
    kubectl("create", "serviceaccount", "tonnage", "-n", OWN)
    kubectl(
        "create", "clusterrolebinding", "tonnage", "--clusterrole=cluster-admin", f"--user={USER}"
    )
    num_nodes = 1 + int(SPARE * len(crowd.names) * crowd.replicas / PODS_OF_NODE)
    kubectl.apply(
        kwok.gpu_node(f"gpu-{each:03}", num_gpus=PODS_OF_NODE, gpu_product="NVIDIA-H200")
        for each in range(num_nodes)
    )

    def make(numbered: tuple[int, tuple[str, str]]) -> None:
        number, key = numbered
        body = a_manifest_of(number, key, num_questions, crowd.replicas)
        crowd.api.create(MODEL_DEPLOYMENTS.path(key[0]), body)

    with ThreadPoolExecutor(NUM_HANDS) as hands:
        list(hands.map(make, enumerate(crowd.names)))


def _make_children(crowd: Crowd, num_questions: int) -> None:
    """Make what an operator makes of each object; replicas beyond one are left to it."""
    site = Site(has_pod_monitors=False, scrape_interval_s=SCRAPE_S)
    sizings = {number: a_sizing_of(number) for number in range(num_questions)}
    numbers = {key: number % num_questions for number, key in enumerate(crowd.names)}

    def make(body: Object) -> None:
        model = parse_model_deployment(body)
        made = deployment(model, sizings[numbers[model.key]], site)
        for kind, each in ((DEPLOYMENTS, made), (SERVICES, service(model))):
            crowd.api.apply(kind.path(*model.key), each, manager=MANAGER, force=False)

    with ThreadPoolExecutor(NUM_HANDS) as hands:
        list(hands.map(make, crowd.objects()))


def _keep_showing(crowd: Crowd, server: object, stopping: threading.Event) -> None:
    while not stopping.wait(PODS_S):
        server.asked.clear()  # nobody counts them
        crowd.show_pods()
