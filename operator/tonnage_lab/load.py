"""Load on a Service: open loop (Poisson) or closed loop (users who wait for their answers).

``run_load`` runs in an event loop, ``background_load`` beside code that blocks.
"""

import asyncio
import contextlib
import random
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import aiohttp

from tonnage_lab.load_client import Client, RequestRecord, RequestShape
from tonnage_lab.load_endpoints import Endpoints, ServiceRef, follow_service
from tonnage_lab.runner.api import Api, open_api

ATTENTION_S: Final = 0.1
"""A changed rate or number of users, or a stop, is noticed within this time."""
FIRST_LIST_S: Final = 30.0
REQUEST_TIMEOUT: Final = aiohttp.ClientTimeout(total=600)
PAUSE_S: Final = 0.5
"""Of a user whose request failed, before the next one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadTarget:
    """The Service to load, and the way to the API server that knows its endpoints."""

    kubeconfig: Path
    service: ServiceRef
    prefill: ServiceRef | None = None
    """Whose engines read the prompts that those of the other Service answer."""


@dataclass(slots=True, kw_only=True)
class LoadControl:
    """What may be changed while the load runs, from any thread."""

    requests_per_s: float = 0.0
    """Of the open loop."""
    num_users: int = 0
    """Of the closed loop; both loops may run at once."""
    stopped: bool = False
    records: list[RequestRecord] = field(default_factory=list)
    """Of the requests that have ended, in the order of their ends."""

    def stop(self) -> None:
        """Send no more; requests in flight are still waited for."""
        self.stopped = True


async def run_load(
    target: LoadTarget, shape: RequestShape, control: LoadControl
) -> list[RequestRecord]:
    """Send requests until the control is stopped, wait for their ends, and return their records.

    Raises:
        TimeoutError: the API server does not say which endpoints there are.
    """
    async with _client(target, shape) as client, asyncio.TaskGroup() as group:
        group.create_task(_open_loop(client, control, shape.seed, group))
        group.create_task(_closed_loop(client, control, group))
    return control.records


@contextmanager
def background_load(
    target: LoadTarget, shape: RequestShape, control: LoadControl | None = None
) -> Iterator[LoadControl]:
    """Run a load in a thread beside code that blocks; it ends with the block."""
    control = control or LoadControl()
    thread = threading.Thread(target=lambda: asyncio.run(run_load(target, shape, control)))
    thread.start()
    try:
        yield control
    finally:
        control.stop()
        thread.join()


@asynccontextmanager
async def _client(target: LoadTarget, shape: RequestShape) -> AsyncIterator[Client]:
    connector = aiohttp.TCPConnector(limit=0)
    async with (
        open_api(target.kubeconfig) as api,
        aiohttp.ClientSession(connector=connector, timeout=REQUEST_TIMEOUT) as session,
        _followed(api, target.service) as endpoints,
        _followed(api, target.prefill) as prefill,
    ):
        yield Client(session, endpoints or Endpoints(), shape, prefill)


@asynccontextmanager
async def _followed(api: Api, service: ServiceRef | None) -> AsyncIterator[Endpoints | None]:
    """Yield the endpoints of a Service, which change as it does."""
    if service is None:
        yield None
        return
    endpoints, listed = Endpoints(), asyncio.Event()
    following = asyncio.create_task(follow_service(api, service, endpoints, listed))
    await asyncio.wait_for(listed.wait(), FIRST_LIST_S)
    try:
        yield endpoints
    finally:
        following.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await following


async def _send(client: Client, control: LoadControl, due_s: float) -> RequestRecord:
    record = await client.send(due_s)
    control.records.append(record)
    return record


async def _open_loop(
    client: Client, control: LoadControl, seed: int, group: asyncio.TaskGroup
) -> None:
    """Start requests at the times of a Poisson process whose rate may change at any time."""
    generator = random.Random(seed + 1)  # noqa: S311 -- a load has no secrets
    due_s = time.time()
    remaining = generator.expovariate(1)  # expected arrivals until the next one
    while not control.stopped:
        rate = control.requests_per_s
        wait_s = remaining / rate if rate > 0 else ATTENTION_S
        passed_s = min(wait_s, ATTENTION_S)
        due_s += passed_s
        await asyncio.sleep(max(0.0, due_s - time.time()))
        remaining -= passed_s * rate
        if rate > 0 and passed_s == wait_s:
            group.create_task(_send(client, control, due_s))
            remaining = generator.expovariate(1)


async def _closed_loop(client: Client, control: LoadControl, group: asyncio.TaskGroup) -> None:
    """Keep as many users at work as there should be."""
    users: dict[int, asyncio.Task[None]] = {}
    while not control.stopped:
        users = {number: task for number, task in users.items() if not task.done()}
        for number in range(control.num_users):
            if number not in users:
                users[number] = group.create_task(_user(client, control, number))
        await asyncio.sleep(ATTENTION_S)


async def _user(client: Client, control: LoadControl, number: int) -> None:
    while not control.stopped and number < control.num_users:
        record = await _send(client, control, time.time())
        if not record.is_complete:
            await asyncio.sleep(PAUSE_S)
