"""A whole site for tests: control plane, Prometheus, GPU nodes, and the operator from its chart.

The operator runs with its ServiceAccount's own rights, so a site that closes looks through the
audit log: whatever the operator was refused fails the tests that used the site.
"""

import json
import math
import random
import re
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import requests
import yaml

import api_hand
import kind_lab
from api_hand import a_namespace, administering
from audit_log import AuditLog, Request
from operator_hand import Hand, process_hand
from tonnage.cluster.kube import (
    ACCESS_REVIEWS,
    CONFIG_MAPS,
    DEPLOYMENTS,
    MODEL_DEPLOYMENTS,
    PODS,
    SERVICES,
    KubeApi,
    Resource,
)
from tonnage_lab import assets, controlplane, site
from tonnage_lab.controlplane import ControlPlane
from tonnage_lab.processes import run
from tonnage_lab.runner.__main__ import obstacle
from tonnage_lab.site import NAMESPACE, GpuNode, SiteConfig

CRDS = Path(__file__).parents[2] / "crds"
OPERATOR = f"system:serviceaccount:{NAMESPACE}:tonnage"
CALIBRATION = "tonnage-calibration"
NAME = "llama"
WRITE_VERBS = frozenset({"create", "update", "patch", "delete", "deletecollection"})
POLL_S, LONGEST_POLL_S = 0.1, 0.3
"""Between two looks, at first and after a while: four parts of the tests wait at a time."""

pytestmark = [
    pytest.mark.lab,
    pytest.mark.skipif(obstacle() is not None, reason=str(obstacle())),
]

QUICK_TRUTH: Mapping[str, Any] = {
    "kv_tokens": 262_144,
    "load_s": 0.1,
    "step": {"per_step_s": 0.02},
}
"""Engines that are there at once, for tests of what the operator does with objects."""

Object = dict[str, Any]


def a_model(name: str = NAME, **spec: Any) -> Object:
    """Return a ModelDeployment that one replica serves on one GPU; ``spec`` overrides."""
    return {
        "apiVersion": "tonnage.dev/v1alpha1",
        "kind": "ModelDeployment",
        "metadata": {"name": name},
        "spec": {
            "model": {"id": "meta-llama/Llama-3.3-70B-Instruct", "weights": "fp8"},
            "hardware": {"gpu": "H200", "gpusPerReplica": 1},
            "contextLength": 8192,
            "slo": {"timeToFirstToken": {"p95": "2s"}, "timePerOutputToken": {"p95": "50ms"}},
            "demand": {
                "requestsPerSecond": 2,
                "promptTokens": {"mean": 500},
                "outputTokens": {"mean": 200},
            },
            "scaling": {"maxReplicas": 4},
            "engine": {"version": "0.33"},
        }
        | spec,
    }


def until(
    ask: Callable[[], Any],
    what: str,
    *,
    timeout_s: float = 180,
    every_s: float = POLL_S,
    told: Callable[[], Any] = str,
) -> Any:
    """Ask until the answer is true, and return it; fail when that takes too long.

    ``told``: what there is instead, for the message of the failure.
    """
    began_s = time.monotonic()
    while not (found := ask()):
        waited_s = time.monotonic() - began_s
        if waited_s > timeout_s:
            pytest.fail(f"{what}: not within {timeout_s:g} s {told()}")
        time.sleep(max(every_s, min(waited_s / 20, LONGEST_POLL_S)))
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """One that runs."""

    plane: ControlPlane
    prometheus_url: str
    api: KubeApi
    """As an administrator."""
    hand: Hand
    audit: AuditLog
    answered: list[Request] = field(default_factory=list)
    """What the audit log said so far, which tests look through ten times a second."""

    def requests(self, *, user: str | None = None, since_s: float = 0) -> list[Request]:
        """Return what the API server answered, in the order of the answers."""
        self.answered.extend(self.audit.read())
        found = (each for each in self.answered if each.at_s >= since_s)
        return sorted(
            (each for each in found if user in {None, each.user}), key=lambda each: each.at_s
        )

    def writes(self, *, since_s: float = 0) -> list[Request]:
        """Return what the operator wrote, Leases apart."""
        return [
            each
            for each in self.requests(user=OPERATOR, since_s=since_s)
            if each.verb in WRITE_VERBS and each.resource not in {"leases", ACCESS_REVIEWS.plural}
        ]

    def refused(self) -> list[Request]:
        """Return what the operator had no right to."""
        return [each for each in self.requests(user=OPERATOR) if not each.is_allowed]

    def calibration(self) -> Object:
        """Return what was learned; empty before the first write."""
        found = self.api.get(CONFIG_MAPS.path(NAMESPACE, CALIBRATION)) or {}
        return json.loads(found.get("data", {}).get("calibration.json", "{}"))

    def learned_speeds(self) -> list[Object]:
        """Return the entries of speed, of all namespaces."""
        namespaces = self.calibration().get("speed", {}).values()
        return [entry for entries in namespaces for entry in entries.values()]

    def operator_pods(self, namespace: str = NAMESPACE) -> list[Object]:
        return list(self.api.list(PODS.path(namespace)))

    def operator_state(self) -> Object:
        """Return the status of the operator's container."""
        (pod,) = self.operator_pods()
        (container,) = pod["status"].get("containerStatuses") or [{}]
        return container

    def operator_log(self) -> str:
        """Return what every pod of the operator said so far."""
        return self.hand.log()

    def num_ticks(self, namespace: str = NAMESPACE) -> int:
        """Return how often the operator that runs now has decided."""
        return int(self.operator_metric("tonnage_tick_seconds_count", namespace))

    def operator_metric(self, name: str, namespace: str = NAMESPACE) -> float:
        """Return a series without labels of the operator that runs now."""
        values = yaml.safe_load((self.plane.folder / "values.yaml").read_text())
        (pod,) = self.operator_pods(namespace)
        with requests.Session() as session:
            session.trust_env = False
            host, port = self.hand.address(pod), values["settings"]["probePort"]
            text = session.get(f"http://{host}:{port}/metrics", timeout=10).text
        (found,) = re.findall(rf"(?m)^{name} (\S+)$", text)
        return float(found)

    def kill_operator(self) -> int:
        """Kill the operator's process as a crash would; return how often it had restarted."""
        state = self.operator_state()
        (pod,) = self.operator_pods()
        self.hand.kill(pod)
        return int(state["restartCount"])

    def stop_operator(self) -> None:
        """Scale the operator to nothing, and wait until it is gone."""
        self.plane.kubectl("scale", "deployment/tonnage", "--replicas=0", "-n", NAMESPACE)
        until(lambda: not self.operator_pods(), "the operator is gone", timeout_s=60)

    def start_operator(self) -> None:
        self.plane.kubectl("scale", "deployment/tonnage", "--replicas=1", "-n", NAMESPACE)
        until(
            lambda: site.operator_is_ready(self.plane.kubectl) and self.num_ticks(),
            "the operator decides",
            timeout_s=60,
        )

    def upgrade_operator(self, **changes: Any) -> None:
        """``helm upgrade`` with further values, and wait until the new operator decides."""
        before = {pod["metadata"]["uid"] for pod in self.operator_pods()}
        self.apply_chart(**changes)

        def is_replaced() -> bool:
            now = {pod["metadata"]["uid"] for pod in self.operator_pods()}
            is_there = now and site.operator_is_ready(self.plane.kubectl)
            return bool(is_there and not now & before and self.num_ticks())

        until(is_replaced, "another operator decides", timeout_s=60)

    def apply_chart(self, **changes: Any) -> None:
        """``helm upgrade`` with the values of the start and these."""
        values = yaml.safe_load((self.plane.folder / "values.yaml").read_text())
        run(
            [
                assets.ensure(["helm"])["helm"], "upgrade", "tonnage",
                assets.of_checkout("charts") / "tonnage", "--namespace", NAMESPACE,
                "--kubeconfig", self.plane.kubeconfig, "--values", "-",
            ],
            text=json.dumps(values | changes),
        )  # fmt: skip

    def ask_prometheus(self, query: str, *, at_s: float) -> list[Object]:
        """Return the result of an instant query."""
        with requests.Session() as session:
            session.trust_env = False
            answer = session.get(
                f"{self.prometheus_url}/api/v1/query",
                params={"query": query, "time": str(at_s)},
                timeout=10,
            )
            answer.raise_for_status()
            result: list[Object] = answer.json()["data"]["result"]
        return result


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenant:
    """One namespace of a site."""

    site: Site
    namespace: str

    def apply(self, *manifests: Object) -> None:
        api_hand.apply(self.site.api, manifests, namespace=self.namespace)

    def kubectl(self, *arguments: str, text: str | None = None) -> str:
        return self.site.plane.kubectl(*arguments, "-n", self.namespace, text=text)

    def get(self, resource: Resource, name: str = NAME) -> Object | None:
        return self.site.api.get(resource.path(self.namespace, name))

    def all_of(self, resource: Resource) -> list[Object]:
        return list(self.site.api.list(resource.path(self.namespace)))

    def deployment(self, name: str = NAME) -> Object | None:
        return self.get(DEPLOYMENTS, name)

    def replicas(self, name: str = NAME) -> int | None:
        """Return what the Deployment asks for; None when there is none."""
        found = self.deployment(name)
        return found["spec"]["replicas"] if found else None

    def num_ready(self, name: str = NAME) -> int:
        found = self.deployment(name)
        return found["status"].get("readyReplicas", 0) if found else 0

    def status(self, name: str = NAME) -> Object:
        return (self.get(MODEL_DEPLOYMENTS, name) or {}).get("status") or {}

    def condition(self, type_: str, name: str = NAME) -> Object:
        """Return a condition of the ModelDeployment; empty while it is absent."""
        conditions = self.status(name).get("conditions") or ()
        return next((each for each in conditions if each["type"] == type_), {})

    def change(self, name: str = NAME, **spec: Any) -> Object:
        """Merge-patch the spec of a ModelDeployment; return what stands there now."""
        path = MODEL_DEPLOYMENTS.path(self.namespace, name)
        return self.site.api.merge_patch(path, {"spec": spec}, manager="a-user")

    def delete(self, kind: str, name: str = NAME) -> None:
        self.kubectl("delete", kind, name, "--wait=false")

    def wait_ready(self, name: str = NAME, *, replicas: int = 1) -> Object:
        """Wait for Ready replicas and for a status that knows them; return the Deployment."""
        until(
            lambda: self.num_ready(name) == replicas and self.replicas(name) == replicas,
            f"{replicas} replicas are Ready",
            told=lambda: self.told(name),
        )
        until(
            lambda: (
                self.condition("Ready", name).get("status") == "True"
                and not self.condition("Reconciling", name)
            ),
            "the status says so",
            told=lambda: self.told(name),
        )
        return self.deployment(name) or {}

    def told(self, name: str = NAME) -> str:
        """Return what the cluster says of one object, for whoever has to find out why."""
        deployment = self.deployment(name) or {}
        pods = [(each["metadata"]["name"], each.get("status")) for each in self.all_of(PODS)]
        shown = {"deployment": deployment.get("status"), "pods": pods, "model": self.status(name)}
        return json.dumps(shown, indent=1, default=str)

    def objects(self) -> dict[str, list[str]]:
        """Return the names of what Tonnage makes."""
        kinds = {"deployments": DEPLOYMENTS, "services": SERVICES}
        return {
            kind: sorted(each["metadata"]["name"] for each in self.all_of(resource))
            for kind, resource in kinds.items()
        }

    def settled(self, what: str, *, num_ticks: int = 2) -> None:
        """Wait until the operator has left this namespace alone for so many whole ticks."""
        quiet_since = (time.time(), self.site.num_ticks())

        def is_quiet() -> bool:
            nonlocal quiet_since
            since_s, ticks_then = quiet_since
            now_s, ticks_now = time.time(), self.site.num_ticks()
            if any(each.namespace == self.namespace for each in self.site.writes(since_s=since_s)):
                quiet_since = now_s, ticks_now
                return False
            return ticks_now > ticks_then + num_ticks

        until(is_quiet, what, every_s=0.2)


@contextmanager
def a_tenant(found: Site) -> Iterator[Tenant]:
    """Make a namespace, and take it away in the end."""
    name = f"test-{uuid.uuid4().hex[:8]}"
    with a_namespace(found.api, name):
        yield Tenant(site=found, namespace=name)


@contextmanager
def a_site(
    folder: Path, programs: Mapping[str, Path], *, truth: Mapping[str, Any], **changes: Any
) -> Iterator[Site]:
    """Start a site with sixteen H200, and stop it in the end."""
    nodes = [
        GpuNode(name=f"gpu-{number}", product="NVIDIA-H200", num_gpus=8) for number in range(2)
    ]
    with a_site_of(
        folder, programs, SiteConfig(nodes=tuple(nodes), truth=truth, **changes)
    ) as made:
        yield made


@contextmanager
def a_site_of(folder: Path, programs: Mapping[str, Path], config: SiteConfig) -> Iterator[Site]:
    """Start what a configuration says, and stop it in the end."""
    opened = kind_lab.a_plane if kind_lab.on_kind() else a_plane
    with a_site_on(opened(folder, programs, config)) as made:
        yield made


@contextmanager
def a_site_on(opened: AbstractContextManager[tuple[ControlPlane, str, Hand]]) -> Iterator[Site]:
    """Look at what was started; what the operator is refused there fails in the end."""
    with (
        opened as (plane, url, hand),
        administering(plane.kubeconfig) as api,
        closing(AuditLog(Path(str(plane.audit_log)))) as log,
    ):
        made = Site(plane=plane, prometheus_url=url, api=api, hand=hand, audit=log)
        yield made
        assert made.refused() == []


@contextmanager
def a_plane(
    folder: Path,
    programs: Mapping[str, Path],
    config: SiteConfig,
    *,
    crds: Path = CRDS,
    install: Callable[[ControlPlane], object] = lambda _: None,
) -> Iterator[tuple[ControlPlane, str, Hand]]:
    """Start our own control plane with all that is beside it; ``install`` comes before these."""
    plane = controlplane.start(folder, programs=programs, crds=crds)
    try:
        install(plane)
        yield plane, site.start(plane, config), process_hand(folder)
    finally:
        plane.stop()


@contextmanager
def a_quick_site(folder: Path, programs: Mapping[str, Path]) -> Iterator[Site]:
    """Start a site that scrapes and decides every second, with engines that are there at once."""
    settings = {"tickS": 1, "coldStartS": 2, "scaleDownWindowS": 3, "statusIntervalS": 1}
    settings |= {"sidecarImages": ["vllm/vllm-openai"]}
    with a_site(
        folder, programs, truth=QUICK_TRUTH, scrape_interval_s=1, settings=settings
    ) as made:
        yield made


class Figures:
    """Shows what tests measured at the end of the run, where a person can copy it."""

    def __init__(self) -> None:
        self.found: dict[str, Object] = {}

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        for title, figures in self.found.items():
            terminalreporter.section(title)
            terminalreporter.write_line(json.dumps(figures, indent=2))


def show(config: pytest.Config, title: str, figures: Object, folder: Path) -> None:
    """Write figures to a file, and have them printed at the end of the run."""
    (folder / "figures.json").write_text(json.dumps(figures, indent=2))
    plugin = config.pluginmanager.get_plugin("tonnage-figures")
    if plugin is None:
        plugin = Figures()
        config.pluginmanager.register(plugin, "tonnage-figures")
    plugin.found[title] = figures


def rounded(value: float | None, digits: int = 3) -> float | None:
    return None if value is None or not math.isfinite(value) else round(value, digits)


def pause(generator: random.Random, *, longest_s: float) -> None:
    """Let a random time pass, as between things that people do."""
    time.sleep(generator.uniform(0, longest_s))
