"""Load on a Service: open loop (Poisson) or closed loop (users who wait for their answers).

As a library ``run_load`` in an event loop, or ``background_load`` beside code that blocks. As a
program: ``python -m tonnage_lab.load --help``.
"""

import argparse
import asyncio
import contextlib
import json
import random
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import aiohttp

from tonnage_lab.load_client import Client, Lengths, RequestShape
from tonnage_lab.load_endpoints import Endpoints, Routing, ServiceRef, follow_service
from tonnage_lab.load_records import RequestRecord, attainment, summary
from tonnage_lab.runner.api import open_api

ATTENTION_S: Final = 0.1
"""A changed rate or number of users, or a stop, is noticed within this time."""
FIRST_LIST_S: Final = 30.0
PAUSE_S: Final = 0.5
"""Of a user whose request failed, before the next one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The Service to load, and the way to the API server that knows its endpoints."""

    kubeconfig: Path
    service: ServiceRef


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
    target: Target, shape: RequestShape, control: LoadControl
) -> list[RequestRecord]:
    """Send requests until the control is stopped, wait for their ends, and return their records.

    Raises:
        TimeoutError: the API server does not say which endpoints there are.
    """
    async with _client(target, shape) as client, asyncio.TaskGroup() as group:
        group.create_task(_open_loop(client, control, shape.seed, group))
        group.create_task(_closed_loop(client, control, group))
    return control.records


async def follow_schedule(control: LoadControl, schedule: Sequence[tuple[float, float]]) -> None:
    """Set rates one after the other, each for so many seconds, then stop the load."""
    for duration_s, requests_per_s in schedule:
        control.requests_per_s = requests_per_s
        await asyncio.sleep(duration_s)
    control.stop()


@contextmanager
def background_load(
    target: Target, shape: RequestShape, control: LoadControl | None = None
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
async def _client(target: Target, shape: RequestShape) -> AsyncIterator[Client]:
    endpoints, listed = Endpoints(), asyncio.Event()
    connector = aiohttp.TCPConnector(limit=0)
    async with (
        open_api(target.kubeconfig) as api,
        aiohttp.ClientSession(connector=connector) as session,
    ):
        following = asyncio.create_task(follow_service(api, target.service, endpoints, listed))
        await asyncio.wait_for(listed.wait(), FIRST_LIST_S)
        try:
            yield Client(session, endpoints, shape)
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


def parse_schedule(text: str) -> list[tuple[float, float]]:
    """Read ``SECONDS:RATE,...``.

    >>> parse_schedule("60:2,30:6.5")
    [(60.0, 2.0), (30.0, 6.5)]
    """
    pairs = [part.split(":") for part in text.split(",")]
    return [(float(duration_s), float(rate)) for duration_s, rate in pairs]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tonnage_lab.load", description=__doc__)
    add = parser.add_argument
    add("--kubeconfig", type=Path, required=True)
    add("--namespace", default="default")
    add("--service", required=True)
    add("--port-name")
    add("--model", required=True, help="as served, see --served-model-name")
    add("--schedule", type=parse_schedule, default=[], help="SECONDS:REQUESTS_PER_S,... open loop")
    add("--users", type=int, default=0, help="users of the closed loop")
    add("--seconds", type=float, default=60.0, help="duration of the closed loop")
    add("--prompt-tokens", type=float, default=400)
    add("--output-tokens", type=float, default=100)
    add("--max-tokens", type=int, help="upper bound of each of the two")
    add("--exponential", action="store_true", help="lengths vary; else all are equal")
    add("--routing", type=Routing, choices=list(Routing), default=Routing.RANDOM)
    add("--seed", type=int, default=0)
    add("--ttft", type=float, default=float("inf"), help="SLO target: seconds to the first token")
    add("--tpot", type=float, default=float("inf"), help="SLO target: seconds per output token")
    add("--records", type=Path, help="write one JSON line per request here")
    return parser


async def _run(arguments: argparse.Namespace) -> list[RequestRecord]:
    def lengths(mean_tokens: float) -> Lengths:
        return Lengths(
            mean_tokens=mean_tokens,
            exponential=arguments.exponential,
            maximum_tokens=arguments.max_tokens,
        )

    target = Target(
        kubeconfig=arguments.kubeconfig,
        service=ServiceRef(
            namespace=arguments.namespace,
            name=arguments.service,
            port_name=arguments.port_name,
        ),
    )
    shape = RequestShape(
        model=arguments.model,
        prompt=lengths(arguments.prompt_tokens),
        output=lengths(arguments.output_tokens),
        routing=arguments.routing,
        seed=arguments.seed,
    )
    control = LoadControl(num_users=arguments.users)
    schedule = arguments.schedule or [(arguments.seconds, 0.0)]
    scheduling = asyncio.create_task(follow_schedule(control, schedule))
    records = await run_load(target, shape, control)
    await scheduling
    return records


def main(argv: Sequence[str] | None = None) -> int:
    """Run a load and print what became of it; 1 when no request was answered."""
    arguments = _parser().parse_args(argv)
    records = asyncio.run(_run(arguments))
    if arguments.records:
        lines = [json.dumps(record.as_dict()) for record in records]
        arguments.records.write_text("".join(f"{line}\n" for line in lines))
    figures = summary(records)
    figures["attainment"] = attainment(records, ttft_s=arguments.ttft, tpot_s=arguments.tpot)
    sys.stdout.write(json.dumps(figures, indent=2) + "\n")
    return 0 if any(record.is_complete for record in records) else 1


if __name__ == "__main__":
    sys.exit(main())
