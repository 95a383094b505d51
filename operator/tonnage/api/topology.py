"""Prefill and decode apart, asked for by one object."""

import math
from typing import Annotated

from pydantic import Field

from tonnage.api.base import ApiModel, Rule
from tonnage.api.hardware import LinkRate, ParallelSizes
from tonnage.api.pods import Role
from tonnage.units import bytes_per_second


class RoleOptions(ApiModel):
    """What one role has of its own; the rest is as the spec says for both."""

    rules = (
        Rule(
            "!has(self.parallelism) || !has(self.parallelism.pipeline) || "
            "self.parallelism.pipeline == 1",
            "parallelism.pipeline must be 1: KV caches of pipeline stages cannot be transferred",
            lambda it: it.parallelism is None or (it.parallelism.pipeline or 1) == 1,
            "parallelism",
        ),
        Rule(
            "!has(self.minReplicas) || !has(self.maxReplicas) || "
            "self.minReplicas <= self.maxReplicas",
            "minReplicas must not exceed maxReplicas",
            lambda it: (it.min_replicas or 0) <= (it.max_replicas or math.inf),
        ),
    )

    parallelism: ParallelSizes | None = None
    """The parallelism of the role. If absent, it is hardware.parallelism, or else chosen."""
    min_replicas: Annotated[int, Field(ge=1, le=1000)] | None = None
    """The minimum number of replicas of the role. If absent, it is scaling.minReplicas."""
    max_replicas: Annotated[int, Field(ge=1, le=1000)] | None = None
    """The maximum number of replicas of the role. If absent, it is scaling.maxReplicas."""


class Topology(ApiModel):
    """Disaggregated serving: Tonnage creates and updates a ModelDeployment for each role."""

    kv_link: LinkRate | None = None
    """The bandwidth from one GPU to a replica of the other role, such as 50GB/s or 400Gb/s. If
    absent, it is hardware.nodeLink, or else the link between the GPUs of a node."""
    prefill: RoleOptions | None = None
    """Options of the prefill replicas, which compute the KV cache of prompts."""
    decode: RoleOptions | None = None
    """Options of the decode replicas, which generate the output tokens."""

    @property
    def kv_link_bytes_per_s(self) -> float | None:
        """Of one GPU, one direction; None: it is not given."""
        return bytes_per_second(self.kv_link) if self.kv_link else None

    def options_of(self, role: Role) -> RoleOptions:
        """Return what a role has of its own."""
        return (self.prefill if role == "prefill" else self.decode) or RoleOptions()
