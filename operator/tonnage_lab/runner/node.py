"""Node objects and their Leases."""

import asyncio
import logging
from collections.abc import Callable
from datetime import datetime
from typing import Any, Final

import aiohttp

from tonnage_lab.runner.api import STRATEGIC_MERGE_PATCH, Api, ApiError
from tonnage_lab.runner.config import NodeConfig

logger = logging.getLogger(__name__)

Json = dict[str, Any]

LEASES: Final = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
LEASE_DURATION_S: Final = 40
RENEWAL_INTERVAL_S: Final = 10.0
NUM_RENEWALS_PER_STATUS: Final = 6
"""The status with its heartbeat times is written once a minute; Leases say that we live."""
_CONFLICT: Final = 409


def node(config: NodeConfig) -> Json:
    """Return the Node object to create."""
    labels = {
        "kubernetes.io/hostname": config.name,
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": "amd64",
        "tonnage.dev/pod-runner": "true",
    }
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": config.name, "labels": labels | config.labels},
    }


def status(config: NodeConfig, *, host_ip: str, version: str, now: str) -> Json:
    """Return the status: ready, with the capacity of the configuration."""
    capacity = {"cpu": config.cpu, "memory": config.memory, "pods": str(config.pods)}
    capacity["ephemeral-storage"] = "100Gi"  # nobody counts what pods write
    if config.gpus:
        capacity["nvidia.com/gpu"] = str(config.gpus)
    healthy = ("MemoryPressure", "DiskPressure", "PIDPressure")
    conditions = [
        _condition("Ready", "True", "KubeletReady", now),
        *(_condition(kind, "False", "KubeletHasSufficient", now) for kind in healthy),
    ]
    return {
        "capacity": capacity,
        "allocatable": capacity,
        "conditions": conditions,
        "addresses": [
            {"type": "InternalIP", "address": host_ip},
            {"type": "Hostname", "address": config.name},
        ],
        "nodeInfo": {"kubeletVersion": version},
    }


def _condition(kind: str, value: str, reason: str, now: str) -> Json:
    return {"type": kind, "status": value, "reason": reason, "lastHeartbeatTime": now}


def lease(name: str, *, now: str) -> Json:
    """Return the Lease that says that a node lives."""
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": name, "namespace": "kube-node-lease"},
        "spec": {
            "holderIdentity": name,
            "leaseDurationSeconds": LEASE_DURATION_S,
            "renewTime": now,
        },
    }


class NodeManager:
    """Keeps one node registered and alive."""

    def __init__(
        self,
        api: Api,
        config: NodeConfig,
        *,
        host_ip: str,
        version: str,
        now: Callable[[], datetime],
    ) -> None:
        self._api = api
        self._config = config
        self._host_ip = host_ip
        self._version = version
        self._now = now
        self._path = f"/api/v1/nodes/{config.name}"

    async def register(self) -> None:
        """Create the Node, or take an old one over, and report it ready."""
        wanted = node(self._config)
        try:
            await self._api.create("/api/v1/nodes", wanted)
        except ApiError as error:
            if error.status != _CONFLICT:
                raise
            await self._api.patch(
                self._path, {"metadata": {"labels": wanted["metadata"]["labels"]}}
            )
        await self._report()
        await self._renew()

    async def keep(self) -> None:
        """Renew for ever."""
        count = 0
        while True:
            await asyncio.sleep(RENEWAL_INTERVAL_S)
            count += 1
            try:
                await self._renew()
                if count % NUM_RENEWALS_PER_STATUS == 0:
                    await self._report()
            except (ApiError, aiohttp.ClientError, TimeoutError) as error:
                logger.info("node %s could not be renewed: %s", self._config.name, error)

    async def unregister(self) -> None:
        """Delete the Node and its Lease."""
        for path in (self._path, f"{LEASES}/{self._config.name}"):
            try:
                await self._api.delete(path)
            except (ApiError, aiohttp.ClientError, TimeoutError) as error:
                logger.info("%s was not deleted: %s", path, error)

    async def _report(self) -> None:
        body = status(
            self._config, host_ip=self._host_ip, version=self._version, now=rfc3339(self._now())
        )
        await self._api.patch(f"{self._path}/status", {"status": body}, STRATEGIC_MERGE_PATCH)

    async def _renew(self) -> None:
        wanted = lease(self._config.name, now=rfc3339(self._now(), micro=True))
        try:
            await self._api.patch(f"{LEASES}/{self._config.name}", {"spec": wanted["spec"]})
        except ApiError as error:
            if error.status != 404:  # noqa: PLR2004
                raise
            await self._api.create(LEASES, wanted)


def rfc3339(moment: datetime, *, micro: bool = False) -> str:
    """Write a moment in UTC as the API does; Leases want microseconds."""
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ" if micro else "%Y-%m-%dT%H:%M:%SZ")
