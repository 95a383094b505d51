"""One pod: its sandbox set up, its containers run, its status reported, its end."""

import asyncio
import logging
from collections.abc import Mapping
from typing import Any, Final

import aiohttp

from tonnage_lab.runner import volumes
from tonnage_lab.runner.api import STRATEGIC_MERGE_PATCH, ApiError
from tonnage_lab.runner.container import RETRY_S, ContainerWorker, timestamp
from tonnage_lab.runner.environment import NotStartableError, PodFacts
from tonnage_lab.runner.network import NetworkError, PodNetwork
from tonnage_lab.runner.sandbox import Runtime, Sandbox, num_gpus
from tonnage_lab.runner.source import ObjectSource
from tonnage_lab.runner.status import PodSituation, pod_status

logger = logging.getLogger(__name__)

Json = Mapping[str, Any]

GATHER_S: Final = 0.02
"""Changes that come together are reported together."""
REPORT_RETRY_S: Final = 0.5
VANISHED_GRACE_S: Final = 1.0
"""For a pod whose object is gone already: somebody forced it."""
STOP_GRACE_S: Final = 1.0
"""From SIGTERM to SIGKILL for containers when the runner itself stops."""
_GONE: Final = (404, 409)


class PodWorker:
    """Owns one pod from the moment it is bound to a node of ours."""

    def __init__(self, pod: Json, runtime: Runtime) -> None:
        self._pod = pod
        self._runtime = runtime
        self._end = asyncio.Event()
        self._grace_s: float = 0.0
        self._object_gone = False
        self._shutdown = False
        self._changed = asyncio.Event()
        self._start_time = (pod.get("status") or {}).get("startTime") or timestamp()
        self._reported: Json = {}
        self._number: int | None = None
        self._sandbox: Sandbox | None = None
        self._workers: list[ContainerWorker] = []
        if pod["metadata"].get("deletionTimestamp"):
            self.update(pod)

    @property
    def _name(self) -> str:
        return f"{self._pod['metadata']['namespace']}/{self._pod['metadata']['name']}"

    def update(self, pod: Json) -> None:
        """Take note of a newer version of the object."""
        self._pod = pod
        if pod["metadata"].get("deletionTimestamp"):
            self._grace_s = pod["metadata"].get("deletionGracePeriodSeconds") or 0
            self._end.set()

    def on_object_deleted(self) -> None:
        """Take note that the object is gone."""
        self._object_gone = True
        self._end_within(VANISHED_GRACE_S)

    def shut_down(self) -> None:
        """Stop, because the runner does; the object stays."""
        self._shutdown = True
        self._end_within(STOP_GRACE_S)

    def _end_within(self, grace_s: float) -> None:
        """End sooner than the pod's own grace period says, even if it has begun."""
        self._grace_s = grace_s
        self._end.set()
        for worker in self._workers:
            asyncio.get_running_loop().call_later(grace_s, worker.kill)

    async def run(self) -> None:
        """Do everything; returns when nothing of the pod is left here."""
        reporter = asyncio.create_task(self._report_for_ever())
        try:
            if self._is_to_run():
                await self._live()
            else:
                await self._end.wait()
        finally:
            reporter.cancel()
            await self._clean_up()
        if not self._shutdown and not self._object_gone:
            await self._report_terminated()

    def _is_to_run(self) -> bool:
        """A pod that ended before, or is to end already, is not started."""
        phase = (self._pod.get("status") or {}).get("phase", "Pending")
        return phase not in ("Succeeded", "Failed") and not self._end.is_set()

    async def _live(self) -> None:
        sandbox = self._sandbox = await self._set_up()
        counts = self._restart_counts()
        self._workers = [
            ContainerWorker(
                container,
                sandbox,
                restart_count=counts.get(container["name"], 0),
                on_change=self._changed.set,
            )
            for container in self._pod["spec"]["containers"]
        ]
        running = asyncio.create_task(self._run_containers(sandbox))
        running.add_done_callback(self._note_fault)
        await self._end.wait()
        await asyncio.gather(*(worker.stop(self._grace_s) for worker in self._workers))
        await running

    def _note_fault(self, running: asyncio.Task[None]) -> None:
        if not running.cancelled() and (error := running.exception()):
            logger.error("%s: a fault in the runner", self._name, exc_info=error)

    def _restart_counts(self) -> dict[str, int]:
        """A container that ran before, under another runner, has been restarted."""
        statuses = (self._pod.get("status") or {}).get("containerStatuses") or []
        return {each["name"]: each["restartCount"] + 1 for each in statuses if each.get("started")}

    async def _set_up(self) -> Sandbox:
        """Find a network, an address and devices."""
        network = None if self._pod["spec"].get("hostNetwork") else await self._network()
        host_ip = self._runtime.block.host_ip
        devices = self._runtime.devices[self._pod["spec"]["nodeName"]]
        return Sandbox(
            pod=self._pod,
            runtime=self._runtime,
            network=network,
            facts=PodFacts(
                pod=self._pod, pod_ip=network.pod_ip if network else host_ip, host_ip=host_ip
            ),
            source=ObjectSource(api=self._runtime.api, pod=self._pod),
            gpus={
                container["name"]: devices.take(num_gpus(container))
                for container in self._pod["spec"]["containers"]
            },
        )

    async def _network(self) -> PodNetwork:
        while True:
            try:
                self._number = self._runtime.block.reserve()
                network = await asyncio.to_thread(self._runtime.block.make, self._number)
            except NetworkError as error:
                self._number = None
                logger.warning("%s: %s", self._name, error)
                await asyncio.sleep(RETRY_S)
            else:
                return network

    async def _run_containers(self, sandbox: Sandbox) -> None:
        renew_after_s = await self._prepare(sandbox)
        if self._end.is_set():
            return
        async with asyncio.TaskGroup() as group:
            renewal = group.create_task(self._renew_tokens(sandbox, renew_after_s))
            runs = [group.create_task(worker.run()) for worker in self._workers]
            await asyncio.wait(runs)
            renewal.cancel()

    async def _prepare(self, sandbox: Sandbox) -> float | None:
        """Write the volumes, as soon as all they need is there."""
        while not self._end.is_set():
            try:
                return await sandbox.source.write_volumes(sandbox.facts, sandbox.folders)
            except NotStartableError as error:
                for worker in self._workers:
                    worker.wait_for(error)
            await asyncio.sleep(RETRY_S)
        return None

    async def _renew_tokens(self, sandbox: Sandbox, renew_after_s: float | None) -> None:
        while renew_after_s is not None:
            await asyncio.sleep(renew_after_s)
            try:
                renew_after_s = await sandbox.source.write_tokens(sandbox.folders)
            except NotStartableError as error:
                logger.warning("%s: token: %s", self._name, error)
                renew_after_s = RETRY_S

    async def _report_for_ever(self) -> None:
        while True:
            await self._changed.wait()
            await asyncio.sleep(GATHER_S)
            self._changed.clear()
            if not await self._report():
                self._changed.set()
                await asyncio.sleep(REPORT_RETRY_S)

    async def _report(self) -> bool:
        """Patch the status in if it differs from the last one; False when that failed."""
        status = self._status()
        if status == self._reported or self._object_gone:
            return True
        body = {"metadata": {"uid": self._pod["metadata"]["uid"]}, "status": status}
        try:
            await self._runtime.api.patch(f"{self._path}/status", body, STRATEGIC_MERGE_PATCH)
        except ApiError as error:
            if error.status in _GONE:
                self.on_object_deleted()
            logger.info("%s: status: %s", self._name, error)
            return error.status in _GONE
        except (aiohttp.ClientError, TimeoutError) as error:
            logger.info("%s: status: %s", self._name, error)
            return False
        self._reported = status
        return True

    def _status(self) -> dict[str, Any]:
        """Return the status now; conditions keep the times of what was reported last."""
        sandbox = self._sandbox
        pod = {**self._pod, "status": self._reported} if self._reported else self._pod
        return pod_status(
            PodSituation(
                pod=pod,
                containers=[worker.status for worker in self._workers],
                pod_ip=sandbox.facts.pod_ip if sandbox else "",
                host_ip=self._runtime.block.host_ip,
                start_time=self._start_time,
                now=timestamp(),
            )
        )

    @property
    def _path(self) -> str:
        metadata = self._pod["metadata"]
        return f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"

    async def _report_terminated(self) -> None:
        """Report the end, and take the object away as its node's last word."""
        if self._workers:
            await self._report()
        body = {
            "gracePeriodSeconds": 0,
            "preconditions": {"uid": self._pod["metadata"]["uid"]},
        }
        try:
            await self._runtime.api.delete(self._path, body)
        except (ApiError, aiohttp.ClientError, TimeoutError) as error:
            logger.info("%s: delete: %s", self._name, error)

    async def _clean_up(self) -> None:
        if self._number is not None:
            await asyncio.to_thread(self._runtime.block.remove, self._number)
        if self._sandbox is None:
            return
        devices = self._runtime.devices[self._pod["spec"]["nodeName"]]
        for taken in self._sandbox.gpus.values():
            devices.give_back(taken)
        await asyncio.to_thread(volumes.remove, self._sandbox.folder)
