"""What protects running engines: how many may be evicted at once, and who may reach them."""

from typing import Annotated

from pydantic import Field

from tonnage.api.base import ApiModel, Rule
from tonnage.api.fields import NodeSelector, PodShare


class DisruptionBudget(ApiModel):
    """Limits on evictions, such as those of a node that is drained."""

    rules = (
        Rule(
            "has(self.minAvailable) != has(self.maxUnavailable)",
            "needs one of minAvailable, maxUnavailable",
            lambda it: (it.min_available is None) != (it.max_unavailable is None),
        ),
    )

    min_available: PodShare | None = None
    """Pods that must stay available during evictions, such as 2 or 90%. The fleet keeps at least as
    many replicas as allow one eviction: 3 for 2, 10 for 90%."""
    max_unavailable: PodShare | None = None
    """The number of pods, or a percentage of them, that may be evicted at once."""


class Peer(ApiModel):
    """Pods that may connect to the engines, by their labels, their namespace's labels, or both."""

    rules = (
        Rule(
            "(has(self.namespaceSelector) && size(self.namespaceSelector) > 0) || "
            "(has(self.podSelector) && size(self.podSelector) > 0)",
            "needs namespaceSelector or podSelector",
            lambda it: it.namespace_selector or it.pod_selector,
        ),
    )

    namespace_selector: NodeSelector = Field(default_factory=dict)
    """Labels of the namespaces. If absent, only the object's own namespace."""
    pod_selector: NodeSelector = Field(default_factory=dict)
    """Labels of the pods. If absent, all pods of those namespaces."""


Port = Annotated[int, Field(ge=1, le=65_535)]


class EngineNetwork(ApiModel):
    """Who may connect to the engines, and where these may connect to. All else is blocked."""

    clients: Annotated[tuple[Peer, ...], Field(max_length=16)] = ()
    """Pods that may send requests to the engines, and read their metrics on the same port.

    Prometheus must be among them, unless the operator's settings name its namespace.
    """
    egress_ports: Annotated[tuple[Port, ...], Field(max_length=32)] | None = None
    """TCP ports that engines may connect to besides DNS, such as 443. If absent, to all ports."""
