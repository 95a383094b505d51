"""How long one plan takes: every split of a model over the GPUs of one class.

    python tests/bench/plan_time.py [--quantile 0.99] [--repeat 7] [--every 40] [--engine python]
    python tests/bench/plan_time.py --programs deploy/examples/llama-3.3-70b-h200.yaml

``cold``: with nothing remembered from the one before; ``again``: the same question once more;
``demand``: the question with another demand, which runs that demand alone. Everything that
``tonnage`` remembers is forgotten before; what the catalogue has read from its files stays.
Milliseconds of this process, so that others on the machine matter less. ``--programs`` measures
whole programs instead: wall and CPU seconds of ``tonnage plan`` and ``tonnage compare`` and the
most memory that each held, and the memory of the operator's modules before and after a plan.
``--engine python`` is the engine uncompiled.
"""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice, product
from pathlib import Path
from statistics import median
from time import perf_counter, process_time

import click
from questions import catalog_request

from tonnage.catalog.gpu import CatalogError, built_in_gpus
from tonnage.catalog.models import model_names
from tonnage.sizing.errors import SizingError
from tonnage.sizing.parallelism.candidates import candidates
from tonnage.sizing.request import SizingRequest
from tonnage.sizing.search import size
from tonnage.sizing.workload import Demand, Lengths, Slo, Target, Workload

PAIRS = (
    ("Llama-3.1-8B-Instruct", "L4"),
    ("Llama-3.1-8B-Instruct", "H100"),
    ("Llama-3.3-70B-Instruct", "H100"),
    ("Llama-3.3-70B-Instruct", "H200"),
    ("Qwen2.5-32B", "A100-80GB"),
    ("Mixtral-8x7B-Instruct-v0.1", "H100"),
    ("Qwen3-235B-A22B", "H200"),
    ("gpt-oss-120b", "H100"),
    ("DeepSeek-V3", "H200"),
    ("DeepSeek-V3", "B200"),
    ("Kimi-K2-Instruct", "H200"),
    ("Llama-4-Maverick-17B-128E-Instruct", "H200"),
    ("Qwen3-Next-80B-A3B-Instruct", "H100"),
)
CONTEXT_TOKENS = 16_384
LENGTHS = Workload(
    prompt=Lengths(mean_tokens=2000, p99_tokens=7000, longest_tokens=CONTEXT_TOKENS),
    output_tokens=400,
)
TTFT_S, TPOT_S = 3.0, 0.1
DEMAND, OTHER_DEMAND = Demand(requests_per_s=50.0), Demand(requests_per_s=37.0)
MOST_REPLICAS = 32
GOALS_MS = {0.95: 150, 0.99: 600}
"""Of the median of a cold plan, compiled, by quantile."""
TIMES = ("cold", "again", "demand")
SLOWEST = 3
ENGINE = "TONNAGE_ENGINE"
"""Variable that says which engine ``tonnage`` loads."""
MIB = 1 << 20
KIB = 1 << 10
OPERATOR = """
import resource, sys
import plan_time
import tonnage.main
from tonnage.sizing.search import size
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
size(plan_time.question_of("Llama-3.3-70B-Instruct", "H200", float(sys.argv[1])))
print(before, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """The plan of one model on one class."""

    model: str
    gpu: str
    num_splits: int
    answer: str
    cold_s: float
    again_s: float
    demand_s: float

    def __str__(self) -> str:
        times_ms = (1e3 * getattr(self, f"{name}_s") for name in TIMES)
        cells = " ".join(f"{time_ms:8.2f}" for time_ms in times_ms)
        return f"{self.model:40} {self.gpu:14} {self.num_splits:6} {cells}  {self.answer}"


def request_of(model: str, gpu: str, quantile: float) -> SizingRequest:
    return replace(
        catalog_request(model, gpu, LENGTHS, context_tokens=CONTEXT_TOKENS),
        slo=Slo(
            ttft=(Target(quantile=quantile, limit_s=TTFT_S),),
            tpot=(Target(quantile=quantile, limit_s=TPOT_S),),
        ),
        demand=DEMAND,
        max_replicas=MOST_REPLICAS,
    )


def timed(model: str, gpu: str, *, quantile: float, repeat: int) -> Timed | None:
    """Time one plan; None where the class lacks a figure for weights like these."""
    try:
        request = request_of(model, gpu, quantile)
    except CatalogError:
        return None
    other = replace(request, demand=OTHER_DEMAND)
    times = [
        (_cold_s(lambda: size(request)), _once_s(lambda: size(request)),
         _once_s(lambda: size(other)))
        for _ in range(repeat)
    ]  # fmt: skip
    cold_s, again_s, demand_s = (median(each) for each in zip(*times, strict=True))
    return Timed(
        model=model,
        gpu=gpu,
        num_splits=sum(1 for _ in splits_of(request)),
        answer=answer_of(request),
        cold_s=cold_s,
        again_s=again_s,
        demand_s=demand_s,
    )


def splits_of(request: SizingRequest) -> Iterator[object]:
    return candidates(request.shape, request.weights, num_gpus=None, nodes=request.nodes)


def answer_of(request: SizingRequest) -> str:
    try:
        found = size(request)
    except (SizingError, CatalogError) as refusal:
        return type(refusal).__name__
    return f"{found.replicas} x {found.flags.parallelism}"


def _cold_s(answer: Callable[[], object]) -> float:
    forget()
    return _once_s(answer)


def _once_s(answer: Callable[[], object]) -> float:
    began = process_time()
    with suppress(SizingError, CatalogError):
        answer()
    return process_time() - began


def forget() -> None:
    """Empty every cache of ``tonnage`` but those of its data files."""
    for name, module in list(sys.modules.items()):
        if name.startswith("tonnage.") and not name.startswith("tonnage.catalog"):
            for value in vars(module).values():
                if hasattr(value, "cache_clear"):
                    value.cache_clear()


def pairs_of(every: int | None) -> Iterator[tuple[str, str]]:
    """Yield the pairs above, or one in so many of all models on all classes."""
    if every is None:
        yield from PAIRS
    else:
        yield from islice(product(model_names(), built_in_gpus()), 0, None, every)


def summary(name: str, found: Sequence[Timed]) -> Iterator[str]:
    """Yield how the times of one kind spread, and the slowest."""
    ordered = sorted(found, key=lambda row: getattr(row, f"{name}_s"))
    times_ms = [1e3 * getattr(row, f"{name}_s") for row in ordered]
    yield f"{name}: median {median(times_ms):.2f} ms, slowest {times_ms[-1]:.2f} ms:"
    yield from (f"  {row}" for row in ordered[: -SLOWEST - 1 : -1])


def program(*arguments: str) -> str:
    """Run a program to its end and return what it took: never less than an import of all."""
    began_s = perf_counter()
    child = subprocess.Popen(  # noqa: S603
        [sys.executable, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    _, status, used = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    return (
        f"{perf_counter() - began_s:.2f} s wall, {used.ru_utime + used.ru_stime:.2f} s CPU, "
        f"{used.ru_maxrss * KIB / MIB:.0f} MiB, exit code {child.returncode}"
    )


def programs(manifest: str, quantile: float) -> Iterator[str]:
    """Yield what whole programs take, and the memory of the operator's modules."""
    for command in ("plan", "compare"):
        yield f"tonnage {command}: {program('-m', 'tonnage', command, '-f', manifest)}"
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    found = subprocess.run(  # noqa: S603
        [sys.executable, "-c", OPERATOR, str(quantile)],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        check=True,
        text=True,
    )
    before, after = (int(each) * KIB / MIB for each in found.stdout.split())
    yield f"operator's modules: {before:.0f} MiB, and after a plan at most {after:.0f} MiB"


@click.command()
@click.option("--quantile", type=float, default=0.95, show_default=True)
@click.option("--repeat", type=int, default=7, show_default=True)
@click.option("--every", type=int, help="One in so many of all models on all classes instead.")
@click.option("--engine", help=f"Value of {ENGINE}: python is uncompiled.")
@click.option("--programs", "manifest", help="Measure programs on this manifest instead.")
def main(
    *, quantile: float, repeat: int, every: int | None, engine: str | None, manifest: str | None
) -> None:
    """Print a table of medians, in milliseconds, and what is slowest."""
    with_engine(engine)
    if manifest:
        for line in programs(manifest, quantile):
            click.echo(line)
        return
    report(quantile, repeat, every)


def with_engine(engine: str | None) -> None:
    """Begin anew with another engine: which one is loaded is decided before."""
    if engine and os.environ.get(ENGINE) != engine:
        again = [sys.executable, *sys.argv]
        os.execve(sys.executable, again, os.environ | {ENGINE: engine})  # noqa: S606


def report(quantile: float, repeat: int, every: int | None) -> None:
    heads = " ".join(f"{name:>8}" for name in TIMES)
    click.echo(f"{'model':40} {'GPU':14} {'splits':>6} {heads}  answer; milliseconds")
    found: list[Timed] = []
    for model, gpu in pairs_of(every):
        row = timed(model, gpu, quantile=quantile, repeat=repeat)
        if row is not None:
            found.append(row)
            click.echo(row)
    for name in TIMES:
        for line in summary(name, found):
            click.echo(line)
    goal_ms = GOALS_MS.get(quantile)
    if goal_ms:
        within = sum(1e3 * row.cold_s <= goal_ms for row in found)
        click.echo(f"{within} of {len(found)} within the {goal_ms} ms of a median")


if __name__ == "__main__":
    main()
