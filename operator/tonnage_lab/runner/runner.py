"""The runner as a whole: nodes registered, their pods followed, everything undone at the end."""

import asyncio
import logging
import os
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from tonnage_lab.runner import names, network
from tonnage_lab.runner.api import Api
from tonnage_lab.runner.config import NodeConfig, RunnerConfig
from tonnage_lab.runner.mounts import submounts
from tonnage_lab.runner.node import NodeManager
from tonnage_lab.runner.pod import PodWorker
from tonnage_lab.runner.sandbox import Devices, Runtime
from tonnage_lab.runner.watch import Watch, WatchHandlers

logger = logging.getLogger(__name__)

Json = Mapping[str, Any]


def _now() -> datetime:
    return datetime.now(UTC)  # noqa: TID251 -- the runner is a kubelet, which has a clock


class PodManager:
    """The pods of one node, by uid."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._workers: dict[str, PodWorker] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def follower(self) -> WatchHandlers:
        return WatchHandlers(on_list=self._on_list, on_event=self._on_event)

    def _on_list(self, pods: list[dict[str, Any]]) -> None:
        present = {pod["metadata"]["uid"] for pod in pods}
        for uid, worker in self._workers.items():
            if uid not in present:
                worker.on_object_deleted()
        for pod in pods:
            self._see(pod)

    def _on_event(self, kind: str, pod: Json) -> None:
        if kind != "DELETED":
            self._see(pod)
        elif worker := self._workers.get(pod["metadata"]["uid"]):
            worker.on_object_deleted()

    def _see(self, pod: Json) -> None:
        uid = pod["metadata"]["uid"]
        if worker := self._workers.get(uid):
            worker.update(pod)
            return
        worker = self._workers[uid] = PodWorker(pod, self._runtime)
        task = self._tasks[uid] = asyncio.create_task(worker.run())
        task.add_done_callback(lambda done: self._forget(uid, done))

    def _forget(self, uid: str, task: asyncio.Task[None]) -> None:
        del self._workers[uid], self._tasks[uid]
        if not task.cancelled() and (error := task.exception()):
            logger.error("pod %s is lost to a fault in the runner", uid, exc_info=error)

    async def shut_down(self) -> None:
        """Stop all pods at once and wait for their end."""
        for worker in self._workers.values():
            worker.shut_down()
        if self._tasks:
            await asyncio.wait(list(self._tasks.values()))


async def run(api: Api, config: RunnerConfig, stop: asyncio.Event) -> None:
    """Run until told to stop.

    Raises:
        NetworkError: there is no block of addresses left.
    """
    block = network.claim()
    await asyncio.to_thread(block.open)
    try:
        async with aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, force_close=True)
        ) as session:
            runtime = _runtime(api, config, block, session)
            await _run_nodes(runtime, stop)
    finally:
        await asyncio.to_thread(block.close)


def _runtime(
    api: Api, config: RunnerConfig, block: network.AddressBlock, session: aiohttp.ClientSession
) -> Runtime:
    address = urlsplit(api.server)
    return Runtime(
        api=api,
        config=config,
        block=block,
        session=session,
        lower=tuple(submounts(Path("/proc/self/mountinfo").read_text())),
        api_address=(address.hostname or "", str(address.port or 443)),
        devices={node.name: Devices(free=list(range(node.gpus))) for node in config.nodes},
        base_environment={"PATH": os.environ.get("PATH", os.defpath), "HOME": "/root"},
    )


async def _run_nodes(runtime: Runtime, stop: asyncio.Event) -> None:
    version = (await runtime.api.get("/version"))["gitVersion"]
    keepers = [_node_keeper(runtime, node, version) for node in runtime.config.nodes]
    pod_keepers = {node.name: PodManager(runtime) for node in runtime.config.nodes}
    await asyncio.gather(*(keeper.register() for keeper in keepers))
    logger.info("nodes %s are ready", " ".join(pod_keepers))
    tasks = [asyncio.create_task(keeper.keep()) for keeper in keepers]
    tasks += [
        asyncio.create_task(_pods_of(runtime.api, name).follow(pods.follower()))
        for name, pods in pod_keepers.items()
    ]
    tasks.append(asyncio.create_task(names.serve(runtime.api, runtime.block.host_ip)))
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait([stopping, *tasks], return_when=asyncio.FIRST_COMPLETED)
    broken = [task for task in tasks if task.done()]
    for task in [stopping, *tasks]:
        task.cancel()
    await asyncio.gather(*(pods.shut_down() for pods in pod_keepers.values()))
    await asyncio.gather(*(keeper.unregister() for keeper in keepers))
    for task in broken:
        task.result()


def _node_keeper(runtime: Runtime, node: NodeConfig, version: str) -> NodeManager:
    return NodeManager(runtime.api, node, host_ip=runtime.block.host_ip, version=version, now=_now)


def _pods_of(api: Api, node: str) -> Watch:
    return Watch(
        api=api, path="/api/v1/pods", parameters={"fieldSelector": f"spec.nodeName={node}"}
    )
