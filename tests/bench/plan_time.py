"""How long one plan takes: every split of a model over the GPUs of one class, from cold caches.

    python tests/bench/plan_time.py [--repeat 7] [--every 40]

The operator plans for every object in a tick, so that one plan has some milliseconds. Everything
that ``tonnage.sizing`` remembers is forgotten before each; what the catalogue has read from its
files stays. ``plan`` is what the operator does for an object, ``compare`` what it takes to rank the
class among others. Milliseconds of this process, so that others on the machine matter less.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice, product
from statistics import median
from time import process_time

import click
from questions import catalog_request

from tonnage.catalog.gpu import CatalogError, built_in_gpus
from tonnage.catalog.models import model_names
from tonnage.sizing.compare import best_choice
from tonnage.sizing.errors import SizingError
from tonnage.sizing.parallelism.candidates import candidates
from tonnage.sizing.plan import size
from tonnage.sizing.request import SizingRequest
from tonnage.sizing.workload import Demand, Lengths, Promise, Slo, Workload

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
PROMISES = Slo(
    ttft=(Promise(quantile=0.95, limit_s=3.0),), tpot=(Promise(quantile=0.95, limit_s=0.1),)
)
DEMAND = Demand(requests_per_s=50.0)
MOST_REPLICAS = 32
GOAL_MS = 20
SLOWEST = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """The plan of one model on one class."""

    model: str
    gpu: str
    num_splits: int
    answer: str
    plan_s: float
    compare_s: float

    def __str__(self) -> str:
        return (
            f"{self.model:40} {self.gpu:14} {self.num_splits:6} {1e3 * self.plan_s:8.2f} "
            f"{1e3 * self.compare_s:8.2f}  {self.answer}"
        )


def request_of(model: str, gpu: str) -> SizingRequest:
    return replace(
        catalog_request(model, gpu, LENGTHS, context_tokens=CONTEXT_TOKENS),
        slo=PROMISES,
        demand=DEMAND,
        max_replicas=MOST_REPLICAS,
    )


def timed(model: str, gpu: str, *, repeat: int) -> Timed | None:
    """Time one plan; None where the class lacks a figure for weights like these."""
    try:
        request = request_of(model, gpu)
    except CatalogError:
        return None
    return Timed(
        model=model,
        gpu=gpu,
        num_splits=sum(1 for _ in splits_of(request)),
        answer=answer_of(request),
        plan_s=cold_s(lambda: size(request), repeat),
        compare_s=cold_s(lambda: best_choice(request), repeat),
    )


def splits_of(request: SizingRequest) -> Iterator[object]:
    node = request.gpu.gpus_per_node
    return candidates(request.shape, request.weights, num_gpus=None, gpus_per_node=node)


def answer_of(request: SizingRequest) -> str:
    try:
        found = size(request)
    except (SizingError, CatalogError) as refusal:
        return type(refusal).__name__
    return f"{found.replicas} x {found.flags.parallelism}"


def cold_s(answer: Callable[[], object], repeat: int) -> float:
    """Return the median time of an answer, with nothing remembered from the one before."""
    return median(_once_s(answer) for _ in range(repeat))


def _once_s(answer: Callable[[], object]) -> float:
    forget()
    began = process_time()
    with suppress(SizingError, CatalogError):
        answer()
    return process_time() - began


def forget() -> None:
    """Empty every cache of ``tonnage.sizing``."""
    for name, module in list(sys.modules.items()):
        if name.startswith("tonnage.sizing."):
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
    within = sum(time_ms <= GOAL_MS for time_ms in times_ms)
    yield (
        f"{name}: median {median(times_ms):.2f} ms, slowest {times_ms[-1]:.2f} ms; "
        f"{within} of {len(times_ms)} within {GOAL_MS} ms; slowest:"
    )
    yield from (f"  {row}" for row in ordered[: -SLOWEST - 1 : -1])


@click.command()
@click.option("--repeat", type=int, default=7, show_default=True)
@click.option("--every", type=int, help="One in so many of all models on all classes instead.")
def main(*, repeat: int, every: int | None) -> None:
    """Print a table of medians, in milliseconds, and what is slowest."""
    click.echo(f"{'model':40} {'GPU':14} {'splits':>6} {'plan ms':>8} {'comp. ms':>8}  answer")
    found: list[Timed] = []
    for model, gpu in pairs_of(every):
        row = timed(model, gpu, repeat=repeat)
        if row is not None:
            found.append(row)
            click.echo(row)
    for name in ("plan", "compare"):
        for line in summary(name, found):
            click.echo(line)


if __name__ == "__main__":
    main()
