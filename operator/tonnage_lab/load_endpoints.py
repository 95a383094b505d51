"""The ready pods behind a Service, and the choice among them: there is no kube-proxy here."""

import asyncio
import random
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from tonnage_lab.runner.api import Api
from tonnage_lab.runner.watch import Watch, WatchHandlers

Json = Mapping[str, Any]


class PodChoice(StrEnum):
    """How a request finds its pod."""

    RANDOM = "random"
    """As through a plain Service."""
    LEAST_OUTSTANDING = "least-outstanding"
    """As through a router that counts the requests in flight."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodEndpoint:
    """One pod that takes requests."""

    address: str
    port: int
    pod: str

    @property
    def url(self) -> str:
        return f"http://{self.address}:{self.port}"


def ready_endpoints(slices: Collection[Json], *, port_name: str | None = None) -> list[PodEndpoint]:
    """Return the ready endpoints of a Service's EndpointSlices, sorted by address.

    Without a port name the first port counts.
    """
    found = {
        PodEndpoint(
            address=endpoint["addresses"][0],
            port=port,
            pod=(endpoint.get("targetRef") or {}).get("name", ""),
        )
        for each in slices
        if (port := _port(each, port_name)) is not None
        for endpoint in each.get("endpoints") or []
        if (endpoint.get("conditions") or {}).get("ready", True)
    }
    return sorted(found, key=lambda endpoint: (endpoint.address, endpoint.port))


def _port(endpoint_slice: Json, port_name: str | None) -> int | None:
    for port in endpoint_slice.get("ports") or []:
        if port_name is None or port.get("name") == port_name:
            return int(port["port"])
    return None


@dataclass(slots=True, kw_only=True)
class Endpoints:
    """What is ready now, and how many requests each has in flight."""

    ready: Sequence[PodEndpoint] = ()
    outstanding: Counter[PodEndpoint] = field(default_factory=Counter)

    def choose(
        self, routing: PodChoice, generator: random.Random, *, but: PodEndpoint | None = None
    ) -> PodEndpoint | None:
        """Return a ready endpoint, another than ``but`` if there is one; None if none is ready."""
        candidates = [each for each in self.ready if each != but] or list(self.ready)
        if not candidates:
            return None
        if routing is PodChoice.LEAST_OUTSTANDING:
            least = min(self.outstanding[each] for each in candidates)
            candidates = [each for each in candidates if self.outstanding[each] == least]
        return generator.choice(candidates)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceRef:
    """A Service, and which of its ports; the first one without a name."""

    namespace: str
    name: str
    port_name: str | None = None


async def follow_service(
    api: Api, service: ServiceRef, endpoints: Endpoints, listed: asyncio.Event
) -> None:
    """Keep ``endpoints`` at what the API server says; never returns.

    Sets ``listed`` when it has said it for the first time.
    """
    slices: dict[str, Json] = {}

    def on_list(found: list[dict[str, Any]]) -> None:
        slices.clear()
        slices.update({each["metadata"]["name"]: each for each in found})
        endpoints.ready = ready_endpoints(slices.values(), port_name=service.port_name)
        listed.set()

    def on_event(kind: str, found: Json) -> None:
        slices[found["metadata"]["name"]] = found
        if kind == "DELETED":
            del slices[found["metadata"]["name"]]
        endpoints.ready = ready_endpoints(slices.values(), port_name=service.port_name)

    watch = Watch(
        api=api,
        path=f"/apis/discovery.k8s.io/v1/namespaces/{service.namespace}/endpointslices",
        parameters={"labelSelector": f"kubernetes.io/service-name={service.name}"},
    )
    await watch.follow(WatchHandlers(on_list=on_list, on_event=on_event))
