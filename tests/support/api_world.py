"""A namespace on a real API server, and an operator that reaches it through a proxy that fails."""

import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import api_hand
from api_proxy import ApiProxy, proxying
from http_double import a_kubeconfig
from operator_process import OperatorProcess, an_operator
from site_lab import a_model, until
from tonnage.cluster.kube import DEPLOYMENTS, MODEL_DEPLOYMENTS, KubeApi, Resource
from tonnage_lab.certificates import Certificates
from tonnage_lab.controlplane import ControlPlane

CANARY = "secret"
"""The token of the kubeconfig of http_double."""
NAME = "llama"
SLOW_S = 180
"""In which anything is over on a busy machine."""

MOST_PER_S = 40
"""Requests of an operator that is in trouble: five watches, a tick and a Lease each second."""

Object = dict[str, Any]


def everything(trouble: Any) -> Any:
    """Return a fault of every request."""
    return lambda passed: trouble


@dataclass(kw_only=True)
class ApiWorld:
    """One namespace, and those who serve it."""

    plane: ControlPlane
    api: KubeApi
    namespace: str
    folder: Path
    stack: ExitStack
    settings: dict[str, Any] = field(default_factory=dict)
    proxies: list[ApiProxy] = field(default_factory=list)
    operators: list[OperatorProcess] = field(default_factory=list)

    @property
    def proxy(self) -> ApiProxy:
        return self.proxies[0]

    @property
    def operator(self) -> OperatorProcess:
        return self.operators[0]

    def add_operator(
        self, *, certificates: Certificates | None = None, **settings: Any
    ) -> OperatorProcess:
        """Start an operator behind a proxy of its own, as a user of its own.

        ``certificates``: of the proxy, which then speaks TLS; the operator reads the authority's.
        """
        number = len(self.operators)
        user = f"operator-{self.namespace}-{number}"
        self.bind(user)
        pair = certificates.server if certificates else None
        proxy = self.stack.enter_context(proxying(self.plane.kubeconfig, user=user, pair=pair))
        trust = {"certificate-authority": str(certificates.ca)} if certificates else {}
        folder = self.folder / str(number)
        folder.mkdir()
        made = self.stack.enter_context(
            an_operator(
                folder,
                name=f"operator-{number}",
                kubeconfig=a_kubeconfig(proxy.url, **trust),
                **{"namespaces": (self.namespace,)} | self.settings | settings,
            )
        )
        self.proxies.append(proxy)
        self.operators.append(made)
        return made

    def bind(self, user: str) -> None:
        api_hand.bind_administrator(self.api, user)

    def unbind(self, user: str) -> None:
        api_hand.unbind(self.api, user)

    def apply(self, *manifests: Object) -> None:
        api_hand.apply(self.api, manifests, namespace=self.namespace)

    def get(self, resource: Resource, name: str = NAME) -> Object | None:
        return self.api.get(resource.path(self.namespace, name))

    def change(self, **spec: Any) -> None:
        path = MODEL_DEPLOYMENTS.path(self.namespace, NAME)
        self.api.merge_patch(path, {"spec": spec}, manager="a-user")

    def ask_for(self, replicas: int) -> None:
        """The user asks for so many replicas at least."""
        self.change(scaling={"minReplicas": replicas})

    def replicas(self) -> int | None:
        found = self.get(DEPLOYMENTS)
        return found["spec"]["replicas"] if found else None

    def condition(self, type_: str, name: str = NAME) -> Object:
        status = (self.get(MODEL_DEPLOYMENTS, name) or {}).get("status") or {}
        return next((c for c in status.get("conditions") or () if c["type"] == type_), {})

    def until(self, ask: Any, what: str, *, timeout_s: float = SLOW_S) -> Any:
        """Wait as a kubelet does: what ends is started again."""

        def revived() -> Any:
            for each in self.operators:
                each.revive()
            return ask()

        return until(revived, what, timeout_s=timeout_s, told=self.told)

    def last(self, seconds: float) -> float:
        """Let so much time pass, as a kubelet would see it; return when it began."""
        since_s = time.time()
        self.until(lambda: time.time() - since_s > seconds, "time passes", timeout_s=10 * seconds)
        return since_s

    def until_replicas(self, number: int, *, timeout_s: float = SLOW_S) -> None:
        self.until(lambda: self.replicas() == number, f"{number} replicas", timeout_s=timeout_s)

    def told(self) -> str:
        logs = "\n".join(each.log()[-3000:] for each in self.operators)
        shown = [(p.method, p.path, p.status) for p in self.proxies[0].passed[-20:]]
        return f"{self.get(MODEL_DEPLOYMENTS)}\n{shown}\n{logs}"

    def begin(self, **spec: Any) -> None:
        """Make an object of one replica, and wait until its Deployment stands there, at rest."""
        self.apply(a_model(**spec))
        self.until_replicas(1)
        self.rest()

    def rest(self, *, quiet_s: float = 3) -> None:
        """Wait until nothing was written for some ticks."""
        self.until(
            lambda: not any(p.writes(since_s=time.time() - quiet_s) for p in self.proxies),
            "nothing is written",
        )

    def scales(self, *, since_s: float = 0) -> list[int]:
        """Return with what each write of replicas was answered."""
        found = [each for proxy in self.proxies for each in proxy.writes(since_s=since_s)]
        return [each.status for each in found if each.path.endswith("/scale")]


@contextmanager
def an_api_world(plane: ControlPlane, api: KubeApi, folder: Path) -> Iterator[ApiWorld]:
    """Make a namespace; in the end no operator ended by itself, and no log has a token."""
    namespace = f"fault-{uuid.uuid4().hex[:8]}"
    api_hand.add_namespace(api, namespace)
    with ExitStack() as stack:
        world = ApiWorld(plane=plane, api=api, namespace=namespace, folder=folder, stack=stack)
        yield world
    api_hand.delete(api, api_hand.NAMESPACES.path(None, namespace))
    for number, each in enumerate(world.operators):
        world.unbind(f"operator-{namespace}-{number}")
        assert CANARY not in each.log()
        assert each.codes == [], f"{each.name} ended by itself"
