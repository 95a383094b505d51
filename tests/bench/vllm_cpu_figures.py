"""What a real engine is measured by, and what is predicted of each figure."""

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

import aiohttp
import click

from tonnage.catalog.engine_speed import SpeedConstants
from tonnage.estimate.speed import with_speed
from tonnage.sizing.parallelism.draft import rank_of
from tonnage.sizing.request import Flags, SizingRequest
from tonnage.sizing.serving.closed_loop import closed_loop
from tonnage.sizing.serving.flags import replica_under
from tonnage.sizing.serving.replica import Replica
from tonnage.sizing.serving.steady import steady_state
from tonnage.sizing.serving.ttft import serving_s, typical_ttft_s
from tonnage.sizing.split import Parallelism
from tonnage.sizing.step_time.step import Step
from tonnage.sizing.workload import Lengths as PlannedLengths
from tonnage.sizing.workload import Workload
from tonnage_lab.load_client import Client, LengthDistribution, RequestShape
from tonnage_lab.load_endpoints import Endpoints, PodEndpoint
from tonnage_lab.load_records import RequestRecord

SHORT_PROMPT = 16
LEAST_OF_USER = 2
LONGEST = 1024
IDLE = 1e-6
ROUNDS = 5
LEARNED = ("overheadFactor", "bandwidthEfficiency", "prefillEfficiency")


@dataclass(frozen=True, kw_only=True)
class Bench:
    """An endpoint, and what Tonnage holds of it."""

    url: str
    model: str
    request: SizingRequest

    def replica(self, max_num_seqs: int) -> Replica:
        flags = Flags(
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=2048,
            gpu_memory_utilization=0.92,
            parallelism=Parallelism(),
        )
        return replica_under(self.request, rank_of(self.request, flags.parallelism), flags)

    def shape(
        self, prompt: LengthDistribution, output: LengthDistribution, seed: int = 0
    ) -> RequestShape:
        return RequestShape(model=self.model, prompt=prompt, output=output, seed=seed)

    async def ask(self, shape: RequestShape, session: aiohttp.ClientSession) -> Client:
        host, _, port = self.url.removeprefix("http://").partition(":")
        endpoint = PodEndpoint(address=host, port=int(port), pod="engine")
        return Client(session, Endpoints(ready=[endpoint]), shape)


def differing(mean_tokens: int) -> LengthDistribution:
    """Return lengths as a plan takes outputs to be, of which only the mean is known."""
    return LengthDistribution(mean_tokens=mean_tokens, exponential=True, maximum_tokens=LONGEST)


def a_session() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))


async def together(bench: Bench, *, number: int, prompt: int, output: int) -> list[RequestRecord]:
    """Send so many equal requests at once."""
    shape = bench.shape(
        LengthDistribution(mean_tokens=prompt), LengthDistribution(mean_tokens=output)
    )
    async with a_session() as session:
        client = await bench.ask(shape, session)
        return await asyncio.gather(*(client.send(time.time()) for _ in range(number)))


async def users(
    bench: Bench, *, number: int, prompt: int, output: int, seconds: float
) -> list[RequestRecord]:
    """Let users ask again and again, and leave out what each got first.

    Outputs differ in length, or all users would ask at the same moments for ever.
    """
    shape = bench.shape(LengthDistribution(mean_tokens=prompt), differing(output))
    ends_s = time.time() + seconds

    async def user(client: Client) -> list[RequestRecord]:
        found = [await client.send(time.time())]
        while time.time() < ends_s or len(found) <= LEAST_OF_USER:
            found.append(await client.send(time.time()))
        return found[1:]

    async with a_session() as session:
        client = await bench.ask(shape, session)
        kept = await asyncio.gather(*(user(client) for _ in range(number)))
    return [record for each in kept for record in each]


def middle(records: Sequence[RequestRecord], name: str) -> float:
    """Return the median of a latency; failures are errors of the bench."""
    failed = [each.error for each in records if not each.is_complete]
    if failed:
        raise click.ClickException(f"{len(failed)} of {len(records)} requests failed: {failed[0]}")
    return median(value for each in records if (value := getattr(each, name)) is not None)


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A latency as it was measured, and as a replica says it would be."""

    kind: str
    number: int
    predicted_s: Callable[[Replica], float]
    measured_s: float


def decode_figures(bench: Bench, batches: Sequence[int], output: int) -> Iterator[Figure]:
    """Batches that decode together, by turns: a busy moment of the machine spoils one of each."""
    found: dict[int, list[RequestRecord]] = {number: [] for number in batches}
    for number in ROUNDS * list(batches):
        found[number] += asyncio.run(
            together(bench, number=number, prompt=SHORT_PROMPT, output=output)
        )
    for number, records in found.items():
        step = Step(num_sequences=number, context_tokens=number * (SHORT_PROMPT + output / 2))
        yield Figure(
            kind="TPOT, decode",
            number=number,
            predicted_s=partial(step_s, step=step),
            measured_s=middle(records, "tpot_s"),
        )


def step_s(replica: Replica, *, step: Step) -> float:
    return replica.model.step(step).total_s


def loop_figures(
    bench: Bench, batches: Sequence[int], prompt: int, output: int, seconds: float
) -> Iterator[Figure]:
    """Closed loops."""
    workload = Workload(prompt=PlannedLengths(mean_tokens=prompt), output_tokens=output)
    for number in batches:
        records = asyncio.run(
            users(bench, number=number, prompt=prompt, output=output, seconds=seconds)
        )
        for kind in ("tpot", "ttft"):
            yield Figure(
                kind=f"{kind.upper()}, users",
                number=number,
                predicted_s=partial(in_loop_s, workload=workload, users=number, kind=kind),
                measured_s=middle(records, f"{kind}_s"),
            )


def in_loop_s(replica: Replica, *, workload: Workload, users: int, kind: str) -> float:
    found = closed_loop(replica, workload, num_users=users, context_tokens=LONGEST)
    return median(found.tpot_s if kind == "tpot" else found.ttft_s)


def prompt_figures(bench: Bench, prompts: Sequence[int]) -> Iterator[Figure]:
    """Prompts alone."""
    for prompt in prompts:
        records = [
            record
            for _ in range(ROUNDS)
            for record in asyncio.run(together(bench, number=1, prompt=prompt, output=2))
        ]
        yield Figure(
            kind="TTFT, alone, by prompt",
            number=prompt,
            predicted_s=partial(alone_s, prompt=prompt),
            measured_s=middle(records, "ttft_s"),
        )


def alone_s(replica: Replica, *, prompt: int) -> float:
    workload = fixed(prompt, 2)
    idle = steady_state(replica, workload, IDLE)
    return typical_ttft_s(replica, workload, idle) + serving_s(replica, 1, prompt)


def fixed(prompt: int, output: int) -> Workload:
    return Workload(
        prompt=PlannedLengths(mean_tokens=prompt),
        output_tokens=output,
        output_second_moment=float(output**2),
    )


def with_learned(constants: SpeedConstants, found: Mapping[str, Any]) -> SpeedConstants:
    """Return the prior's constants with what ``status.calibration`` of an object says instead."""
    overhead, bandwidth, prefill = (found[name]["learned"] for name in LEARNED)
    return with_speed(constants, (overhead, bandwidth, prefill))


def in_words(found: Mapping[str, Any]) -> str:
    """Say what an object has learned, and on what that stands."""
    said = ", ".join(
        f"{name} {found[name]['learned']:.4g} (prior {found[name]['prior']:.4g}, +-"
        f"{found[name]['deviationFraction']:.0%})"
        for name in LEARNED
    )
    return f"{said}; {found['evidence']}, {found['windows']} windows, {found['busySteps']} steps"
