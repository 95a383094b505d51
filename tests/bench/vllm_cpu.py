"""Predicted against measured latencies of a real vLLM on one core, by batch.

    python tests/bench/vllm_cpu.py
    python tests/bench/vllm_cpu.py --url http://ADDRESS:PORT --gpu-class core.toml

Without ``--url`` a core is probed and an engine started on it; this program stays off that core.
``--status FILE``: the object as ``kubectl get mdep -o json`` prints it, whose
``status.calibration`` then stands for the prior.

Batches of equal requests start together, with prompts of a few tokens, so that their TPOT is that
of steps which decode them all; then as many users in a closed loop, each of whom waits for an
answer; then prompts of several lengths alone on an idle engine.
"""

import asyncio
import json
import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from statistics import median
from typing import Any

import aiohttp
import click
import yaml

from tonnage.api.objects import parse_model_deployment
from tonnage.catalog.engine_speed import SpeedConstants
from tonnage.catalog.gpu import Gpu, read_gpu
from tonnage.estimate.speed import with_speed
from tonnage.sizing.parallelism.draft import rank_of
from tonnage.sizing.request import Flags, SizingRequest, ask, look_up
from tonnage.sizing.serving.closed_loop import closed_loop
from tonnage.sizing.serving.flags import replica_under
from tonnage.sizing.serving.replica import Replica, serving_s, steady_state, typical_ttft_s
from tonnage.sizing.split import Parallelism
from tonnage.sizing.step_time.step import Step
from tonnage.sizing.workload import Lengths as PlannedLengths
from tonnage.sizing.workload import Workload
from tonnage_lab import cpu_class, processes, vllm_cpu, vllm_site
from tonnage_lab.load_client import Client, LengthDistribution, RequestRecord, RequestShape
from tonnage_lab.load_endpoints import Endpoints, PodEndpoint

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


BATCHES = "1,2,4,8,16"
READY_S = 600.0
SLOTS = 32
WARM_UP = 3


@contextmanager
def an_engine(python: Path, slots: int, *, core: int) -> Iterator[str]:
    """Start an engine on a core, 0 for the last one, and yield its address once it is healthy."""
    manifest = yaml.safe_load(vllm_site.MANIFEST.read_text())["spec"]
    program = vllm_site.engine_program(python)
    [port] = processes.free_ports(1)
    url = f"http://127.0.0.1:{port}"
    flags = [
        "--served-model-name", manifest["model"]["id"], "--max-model-len",
        str(manifest["contextLength"]), "--max-num-seqs", str(slots), "--max-num-batched-tokens",
        "2048", "--host", "127.0.0.1", "--port", str(port), *manifest["engine"]["args"],
    ]  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        environment = {
            **program.environment, "NVIDIA_VISIBLE_DEVICES": str(core), "VLLM_CACHE_ROOT": folder,
            "HOME": folder,
        }  # fmt: skip
        command = [*program.command, manifest["model"]["id"], *flags]
        log, began_s = Path(folder) / "log", time.monotonic()
        engine = processes.start(command, log=log, environment=environment)
        try:
            is_healthy, needs = processes.answers(f"{url}/health"), {"vLLM": engine}
            processes.wait_until(is_healthy, what="the engine", timeout_s=READY_S, needs=needs)
            click.echo(f"engine healthy after {time.monotonic() - began_s:.0f} s")
            yield url
        finally:
            processes.stop(engine, grace_s=20)
            with suppress(ProcessLookupError):  # what it left behind
                os.killpg(engine.pid, signal.SIGKILL)


def the_request(gpu: Gpu) -> SizingRequest:
    spec = parse_model_deployment(yaml.safe_load(vllm_site.MANIFEST.read_text())).spec
    config = vllm_site.MODEL_CONFIG.read_text()
    return ask(spec, look_up(spec, {gpu.name: gpu}, model_config=config))


def believing(request: SizingRequest, found: Mapping[str, Any]) -> SizingRequest:
    """Return the request with what an object has learned."""
    return replace(request, speed=with_learned(request.speed, found["status"]["calibration"]))


def heading(names: Sequence[str]) -> str:
    columns = "".join(f"{name:>12}{'off':>9}" for name in names)
    return f"{'':26}{'number':>6}{'measured s':>12}{columns}"


def line(figure: Figure, replicas: Sequence[Replica]) -> str:
    """Say what was measured, and beside it what each replica predicts."""
    predicted = [figure.predicted_s(each) for each in replicas]
    columns = "".join(f"{each:12.4f}{each / figure.measured_s - 1:+9.1%}" for each in predicted)
    return f"{figure.kind:26}{figure.number:6d}{figure.measured_s:12.4f}{columns}"


@contextmanager
def a_bench(
    url: str | None, gpu_class: Path | None, status: Path | None, core: int
) -> Iterator[Bench]:
    cores = sorted(os.sched_getaffinity(0))
    if url is not None and gpu_class is None:
        raise click.UsageError("--url needs --gpu-class")
    python = vllm_cpu.ensure()
    if gpu_class is not None:
        gpu = read_gpu(gpu_class)
    else:
        figures = cpu_class.probe(python)
        click.echo(f"probe: {figures}")
        gpu = vllm_site.site_of(python, figures, num_cores=len(cores)).gpu
    model = yaml.safe_load(vllm_site.MANIFEST.read_text())["spec"]["model"]["id"]
    request = the_request(gpu)
    if status is not None:
        found = json.loads(status.read_text())
        click.echo(f"learned: {in_words(found['status']['calibration'])}")
        request = believing(request, found)
    if url is not None:
        yield Bench(url=url, model=model, request=request)
        return
    with an_engine(python, SLOTS, core=core) as started:
        os.sched_setaffinity(0, set(cores) - {cores[-1 - core]})
        bench = Bench(url=started, model=model, request=request)
        asyncio.run(together(bench, number=WARM_UP, prompt=64, output=16))
        yield bench


def numbers(kind: Callable[[str], float]) -> Callable[[object, object, str], list[float]]:
    return lambda _, __, text: [kind(each) for each in text.split(",")]


URL = click.option("--url", help="Of an engine that runs.")
GPU_CLASS = click.option("--gpu-class", type=click.Path(exists=True, path_type=Path))
CORE = click.option("--core", default=0, help="Of the engine that is started; 0: the last one.")
STATUS = click.option("--status", type=click.Path(exists=True, path_type=Path))


@click.command()
@URL
@GPU_CLASS
@STATUS
@CORE
@click.option("--batches", callback=numbers(int), default=BATCHES)
@click.option("--prompts", callback=numbers(int), default="32,128,512,1024")
@click.option("--prompt", default=32, show_default=True)
@click.option("--output", default=64, show_default=True)
@click.option("--seconds", default=20.0, show_default=True, help="Of each closed loop.")
def main(  # noqa: PLR0913
    *,
    url: str | None,
    gpu_class: Path | None,
    status: Path | None,
    core: int,
    batches: list[int],
    prompts: list[int],
    prompt: int,
    output: int,
    seconds: float,
) -> None:
    """Compare TPOT and TTFT of a real vLLM on a core with what is predicted of them, by batch."""
    with a_bench(url, gpu_class, status, core) as bench:
        click.echo(heading(["prior" if status is None else "learned"]))
        replica = bench.replica(SLOTS)
        for figure in chain(
            prompt_figures(bench, prompts),
            decode_figures(bench, batches, output),
            loop_figures(bench, batches, prompt, output, seconds),
        ):
            click.echo(line(figure, [replica]))


if __name__ == "__main__":
    main()
