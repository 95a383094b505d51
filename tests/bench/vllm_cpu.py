"""Predicted against measured latencies of a real vLLM on one core, by batch and by slots.

    python tests/bench/vllm_cpu.py latency
    python tests/bench/vllm_cpu.py latency --url http://ADDRESS:PORT --gpu-class core.toml
    python tests/bench/vllm_cpu.py slots --values 4,8,12,16,24 --rates 1.5,2,2.5

Without ``--url`` a core is probed and an engine started on it; this program stays off that core.
``--status FILE``: the object as ``kubectl get mdep -o json`` prints it, whose
``status.calibration`` then stands for the prior.

``latency``: batches of equal requests that start together, with prompts of a few tokens, so that
their TPOT is that of steps which decode them all; then as many users in a closed loop, each of
whom waits for an answer; then prompts of several lengths alone on an idle engine.

``slots``: one engine with more slots than any value. Requests of a Poisson process wait at the
client, first come first served, while as many are out as the value says: so does an engine with
that ``--max-num-seqs``, and none has to be started for each.
"""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from statistics import median

import aiohttp
import click
import requests
import yaml

from tonnage.api.objects import parse_model_deployment
from tonnage.catalog.engine_speed import SpeedConstants
from tonnage.catalog.gpu import Gpu, read_gpu
from tonnage.lab import cpu_class, vllm_cpu, vllm_site
from tonnage.lab.load_client import Client, Lengths, RequestShape
from tonnage.lab.load_endpoints import Endpoint, Endpoints
from tonnage.lab.load_records import RequestRecord, attainment, quantile
from tonnage.sizing.parallelism.draft import rank_of
from tonnage.sizing.plan import size
from tonnage.sizing.request import Flags, SizingRequest, ask, look_up
from tonnage.sizing.serving.closed_loop import closed_loop
from tonnage.sizing.serving.flags import replica_under
from tonnage.sizing.serving.replica import Replica
from tonnage.sizing.serving.steady import steady_state
from tonnage.sizing.serving.ttft import serving_s, typical_ttft_s
from tonnage.sizing.split import Parallelism
from tonnage.sizing.step_time.step import Step
from tonnage.sizing.workload import Lengths as PlannedLengths
from tonnage.sizing.workload import Slo, Target, Workload

BATCHES = "1,2,4,8,16"
SHORT_PROMPT = 16
READY_S = 600.0
SLOTS = 32
WARM_UP = 3
LEAST_OF_USER = 2
LONGEST = 1024
IDLE = 1e-6
LEARNED = {
    "bandwidth_efficiency": "bandwidthEfficiency",
    "prefill_efficiency": "prefillEfficiency",
    "compute_efficiency": "computeEfficiency",
}
OVERHEAD = ("per_step_s", "per_kernel_s", "per_scaled_product_s", "per_sequence_s",
            "per_all_reduce_s", "per_experts_block_s", "per_cached_head_s")  # fmt: skip


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

    def shape(self, prompt: Lengths, output: Lengths, seed: int = 0) -> RequestShape:
        return RequestShape(model=self.model, prompt=prompt, output=output, seed=seed)

    async def ask(self, shape: RequestShape, session: aiohttp.ClientSession) -> Client:
        host, _, port = self.url.removeprefix("http://").partition(":")
        endpoint = Endpoint(address=host, port=int(port), pod="engine")
        return Client(session, Endpoints(ready=[endpoint]), shape)


def differing(mean_tokens: int) -> Lengths:
    """Return lengths as a plan takes outputs to be, of which only the mean is known."""
    return Lengths(mean_tokens=mean_tokens, exponential=True, maximum_tokens=LONGEST)


def a_session() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))


async def together(bench: Bench, *, number: int, prompt: int, output: int) -> list[RequestRecord]:
    """Send so many equal requests at once."""
    shape = bench.shape(Lengths(mean_tokens=prompt), Lengths(mean_tokens=output))
    async with a_session() as session:
        client = await bench.ask(shape, session)
        return await asyncio.gather(*(client.send(time.time()) for _ in range(number)))


async def users(
    bench: Bench, *, number: int, prompt: int, output: int, seconds: float
) -> list[RequestRecord]:
    """Let users ask again and again, and leave out what each got first.

    Outputs differ in length, or all users would ask at the same moments for ever.
    """
    shape = bench.shape(Lengths(mean_tokens=prompt), differing(output))
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


async def through_slots(  # noqa: PLR0913
    bench: Bench, *, slots: int, rate: float, prompt: int, output: int, seconds: float
) -> list[RequestRecord]:
    """Send a Poisson process through so many slots; same arrivals and lengths for each."""
    generator, free = Random(7), asyncio.Semaphore(slots)  # noqa: S311
    shape = bench.shape(Lengths(mean_tokens=prompt), differing(output))

    async def one(client: Client, due_s: float) -> RequestRecord:
        async with free:
            return await client.send(due_s)

    async with a_session() as session, asyncio.TaskGroup() as group:
        client = await bench.ask(shape, session)
        began_s = due_s = time.time()
        sent = []
        while due_s < began_s + seconds:
            due_s += generator.expovariate(rate)
            await asyncio.sleep(max(0.0, due_s - time.time()))
            sent.append(group.create_task(one(client, due_s)))
    return [each.result() for each in sent]


def middle(records: Sequence[RequestRecord], name: str) -> float:
    """Return the median of a latency; failures are errors of the bench."""
    failed = [each.error for each in records if not each.is_complete]
    if failed:
        raise click.ClickException(f"{len(failed)} of {len(records)} requests failed: {failed[0]}")
    return median(value for each in records if (value := getattr(each, name)) is not None)


def row(kind: str, number: int, predicted_s: float, measured_s: float) -> str:
    off = predicted_s / measured_s - 1
    return f"{kind:26}{number:6d}{predicted_s:12.4f}{measured_s:12.4f}{off:+9.1%}"


def decode_rows(bench: Bench, batches: Sequence[int], output: int) -> Iterator[str]:
    """Batches that decode together."""
    model = bench.replica(SLOTS).model
    for number in batches:
        records = asyncio.run(together(bench, number=number, prompt=SHORT_PROMPT, output=output))
        step = Step(num_sequences=number, context_tokens=number * (SHORT_PROMPT + output / 2))
        yield row("TPOT, decode", number, model.step(step).total_s, middle(records, "tpot_s"))


def loop_rows(
    bench: Bench, batches: Sequence[int], prompt: int, output: int, seconds: float
) -> Iterator[str]:
    """Closed loops."""
    workload = Workload(prompt=PlannedLengths(mean_tokens=prompt), output_tokens=output)
    replica = bench.replica(SLOTS)
    for number in batches:
        records = asyncio.run(
            users(bench, number=number, prompt=prompt, output=output, seconds=seconds)
        )
        planned = closed_loop(replica, workload, number)
        yield row("TPOT, users", number, planned.tpot_s, middle(records, "tpot_s"))
        yield row("TTFT, users", number, planned.ttft_s, middle(records, "ttft_s"))


def prompt_rows(bench: Bench, prompts: Sequence[int]) -> Iterator[str]:
    """Prompts alone."""
    replica = bench.replica(SLOTS)
    for prompt in prompts:
        workload = fixed(prompt, 2)
        idle = steady_state(replica, workload, IDLE)
        planned_s = typical_ttft_s(replica, workload, idle) + serving_s(replica, 1, prompt)
        records = [
            record
            for _ in range(5)
            for record in asyncio.run(together(bench, number=1, prompt=prompt, output=2))
        ]
        yield row("TTFT, alone, by prompt", prompt, planned_s, middle(records, "ttft_s"))


def fixed(prompt: int, output: int) -> Workload:
    return Workload(
        prompt=PlannedLengths(mean_tokens=prompt),
        output_tokens=output,
        output_second_moment=float(output**2),
    )


def planned(request: SizingRequest, *, prompt: int, output: int, ttft: float, tpot: float) -> str:
    """Say which flags a plan chooses for this workload and SLO, and what they are to serve."""
    sizing = size(
        replace(
            request,
            workload=Workload(prompt=PlannedLengths(mean_tokens=prompt), output_tokens=output),
            slo=Slo(ttft=(Target(quantile=0.95, limit_s=ttft),),
                    tpot=(Target(quantile=0.95, limit_s=tpot),)),
        )
    )  # fmt: skip
    return (
        f"planned: max-num-seqs {sizing.flags.max_num_seqs}, goodput "
        f"{sizing.goodput_requests_per_s:.2f}/s ({sizing.limited_by})"
    )


def learned(constants: SpeedConstants, path: Path | None) -> SpeedConstants:
    """Return the constants with what an object's ``status.calibration`` says in their place.

    A factor on overhead is one on all constants that are times.
    """
    if path is None:
        return constants
    found = json.loads(path.read_text())["status"]["calibration"]
    values = {name: found.get(key) for name, key in LEARNED.items()}
    factor = found.get("overheadFactor", 1.0)
    values |= {name: factor * getattr(constants, name) for name in OVERHEAD}
    changes = {name: value for name, value in values.items() if value is not None}
    click.echo(f"learned: {', '.join(f'{name} {value:.4g}' for name, value in changes.items())}")
    return replace(constants, **changes)


@contextmanager
def an_engine(python: Path, slots: int, *, core: int) -> Iterator[str]:
    """Start an engine on a core, 0 for the last one, and yield its address once it is healthy."""
    manifest = yaml.safe_load(vllm_site.MANIFEST.read_text())["spec"]
    program = vllm_site.engine_program(python)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    flags = [
        "--served-model-name", manifest["model"]["id"], "--max-model-len",
        str(manifest["contextLength"]), "--max-num-seqs", str(slots), "--max-num-batched-tokens",
        "2048", "--host", "127.0.0.1", "--port", str(port), *manifest["engine"]["args"],
    ]  # fmt: skip
    with tempfile.TemporaryDirectory() as folder, (Path(folder) / "log").open("w") as log:
        environment = {
            **os.environ, **program.environment, "NVIDIA_VISIBLE_DEVICES": str(core),
            "VLLM_CACHE_ROOT": folder, "HOME": folder,
        }  # fmt: skip
        command = [*program.command, manifest["model"]["id"], *flags]
        engine = subprocess.Popen(  # noqa: S603
            command, env=environment, stdout=log, stderr=log, start_new_session=True
        )
        try:
            began_s = time.monotonic()
            wait_for(f"{url}/health", engine, Path(folder) / "log")
            click.echo(f"engine healthy after {time.monotonic() - began_s:.0f} s")
            yield url
        finally:
            os.killpg(engine.pid, signal.SIGTERM)
            try:
                engine.wait(timeout=20)
            except subprocess.TimeoutExpired:
                os.killpg(engine.pid, signal.SIGKILL)


def wait_for(url: str, engine: subprocess.Popen[bytes], log: Path) -> None:
    deadline_s = time.monotonic() + READY_S
    while time.monotonic() < deadline_s and engine.poll() is None:
        try:
            if requests.get(url, timeout=2).ok:
                return
        except requests.RequestException:
            time.sleep(0.5)
    raise click.ClickException(f"the engine did not start:\n{log.read_text()[-2000:]}")


def the_request(gpu: Gpu, status: Path | None) -> SizingRequest:
    spec = parse_model_deployment(yaml.safe_load(vllm_site.MANIFEST.read_text())).spec
    config = vllm_site.MODEL_CONFIG.read_text()
    request = ask(spec, look_up(spec, {gpu.name: gpu}, model_config=config))
    return replace(request, speed=learned(request.speed, status))


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
    request = the_request(gpu, status)
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


@click.group()
def main() -> None:
    """Compare a real vLLM on a core with what is predicted of it."""


@main.command()
@URL
@GPU_CLASS
@STATUS
@CORE
@click.option("--batches", callback=numbers(int), default=BATCHES)
@click.option("--prompts", callback=numbers(int), default="32,128,512,1024")
@click.option("--prompt", default=32, show_default=True)
@click.option("--output", default=64, show_default=True)
@click.option("--seconds", default=20.0, show_default=True, help="Of each closed loop.")
def latency(  # noqa: PLR0913
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
    """TPOT and TTFT by batch."""
    with a_bench(url, gpu_class, status, core) as bench:
        click.echo(f"{'':26}{'number':>6}{'predicted s':>12}{'measured s':>12}{'off':>9}")
        for line in prompt_rows(bench, prompts):
            click.echo(line)
        for line in decode_rows(bench, batches, output):
            click.echo(line)
        for line in loop_rows(bench, batches, prompt, output, seconds):
            click.echo(line)


@main.command()
@URL
@GPU_CLASS
@STATUS
@CORE
@click.option("--values", callback=numbers(int), default="4,8,12,16,24")
@click.option("--rates", callback=numbers(float), default="1.5,2.0,2.5")
@click.option("--prompt", default=16, show_default=True)
@click.option("--output", default=32, show_default=True)
@click.option("--seconds", default=45.0, show_default=True, help="Of each value at each rate.")
@click.option("--ttft", default=3.0, show_default=True)
@click.option("--tpot", default=0.2, show_default=True)
def slots(  # noqa: PLR0913
    *,
    url: str | None,
    gpu_class: Path | None,
    status: Path | None,
    core: int,
    values: list[int],
    rates: list[float],
    prompt: int,
    output: int,
    seconds: float,
    ttft: float,
    tpot: float,
) -> None:
    """Goodput by the number of slots."""
    with a_bench(url, gpu_class, status, core) as bench:
        click.echo(planned(bench.request, prompt=prompt, output=output, ttft=ttft, tpot=tpot))
        click.echo(f"SLO: TTFT {ttft:g} s, TPOT {tpot:g} s; attainment, TTFT p95, TPOT p95")
        for rate in rates:
            for value in values:
                records = asyncio.run(
                    through_slots(
                        bench, slots=value, rate=rate, prompt=prompt, output=output,
                        seconds=seconds,
                    )
                )  # fmt: skip
                share = attainment(records, ttft_s=ttft, tpot_s=tpot) or 0.0
                first = quantile([each.ttft_s for each in records], 0.95) or 0.0
                each_s = quantile([each.tpot_s for each in records], 0.95) or 0.0
                click.echo(
                    f"rate {rate:4.2f}/s  slots {value:3d}  {len(records):4d} requests  "
                    f"goodput {share * len(records) / seconds:5.2f}/s  {share:6.1%}  "
                    f"{first:6.2f} s  {each_s:6.3f} s"
                )
                sys.stdout.flush()


if __name__ == "__main__":
    main()
