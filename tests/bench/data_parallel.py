"""Predicted capacity of data-parallel attention against a group of engines in lock step.

    python tests/bench/data_parallel.py > data_parallel.csv

The other benches run one engine with a step time of its own, which a data-parallel rank has not:
its group steps together, and a prompt on one rank holds up all.
"""

import csv
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import click
from capacity import engine_limits
from fleet import Draw, Traffic, draws, requests
from plan_time import request_of

from tonnage.engine import Batch, Completion, EngineGroup, GroupStepTime, simulate
from tonnage.sizing.errors import SizingError
from tonnage.sizing.plan import Sizing, size_with
from tonnage.sizing.request import SizingRequest
from tonnage.sizing.serving.search import excess_of
from tonnage.sizing.serving.steady import Replica
from tonnage.sizing.split import Parallelism
from tonnage.sizing.step_time.step import Step
from tonnage.sizing.workload import Demand, Lengths, Promise, Slo, Workload

SEED = 7
NUM_REQUESTS = 4000
WARM_UP = 0.25
"""Share of the requests that is not counted."""
TOLERANCE = 0.01
MODEL, GPU, SPLIT = "DeepSeek-V3", "H200", Parallelism(data=8)
CONTEXT_TOKENS = 16_384
CASES = (
    # prompt, output, TPOT over the step of one request alone, TTFT in seconds
    (500, 300, 1.5, 2.0),
    (500, 300, 2.5, 2.0),
    (500, 1000, 4.0, 2.0),
    (2000, 300, 1.5, 2.0),
    (2000, 300, 2.5, 2.0),
    (2000, 300, 4.0, 1.0),
    (2000, 100, 3.0, 1.0),
    (6000, 300, 2.5, 3.0),
)


def group_step_time_of(replica: Replica) -> GroupStepTime:
    """Return the step time of a group: of its slowest rank, the experts being everyone's.

    The slowest is the one with most context, or the one with most prefill.
    """

    def step_s(batches: Sequence[Batch]) -> float:
        most_context = max(batches, key=lambda each: each.context_tokens)
        most_prefill = max(batches, key=lambda each: each.prefill_tokens)
        return max(_rank_s(replica, batches, each) for each in (most_context, most_prefill))

    return step_s


def _rank_s(replica: Replica, batches: Sequence[Batch], slowest: Batch) -> float:
    """Return what a step takes with the cache and the prefill of one rank.

    Weights are read, and experts work, for the tokens of all.
    """
    prefill, own = sum(each.prefill_tokens for each in batches), slowest.prefill_tokens
    step = Step(
        num_sequences=sum(each.num_decoding for each in batches),
        context_tokens=slowest.context_tokens * len(batches),
        prefill_tokens=prefill,
        prefill_context_tokens=slowest.prefill_pairs / own if own else 0.0,
        prefill_ranks=prefill / own if own else math.inf,
    )
    return replica.step(step).total_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One workload: what was predicted, and what came out."""

    name: str
    predicted: float
    simulated: float
    predicted_by: str
    simulated_by: str

    @property
    def error(self) -> float:
        return self.predicted / self.simulated - 1


def request(prompt: int, output: int, factor: float, ttft_s: float) -> SizingRequest:
    """Return the request of a case; the promise on TPOT is some times the step of one alone."""
    asked = replace(
        request_of(MODEL, GPU),
        workload=Workload(prompt=Lengths(mean_tokens=prompt), output_tokens=output),
        slo=Slo(),
        demand=Demand(),
        context_tokens=CONTEXT_TOKENS,
    )
    alone_s = size_with(asked, SPLIT).idle.step_s
    slo = Slo(
        ttft=(Promise(quantile=0.95, limit_s=ttft_s),),
        tpot=(Promise(quantile=0.95, limit_s=round(factor * alone_s, 4)),),
    )
    return replace(asked, slo=slo)


def misses(sizing: Sizing, found: Sequence[Draw], requests_per_s: float) -> tuple[float, str]:
    """Return the logarithm of misses over those allowed, and the promise broken worst."""
    group = EngineGroup(
        engine_limits(sizing),
        group_step_time_of(sizing.replica),
        num_ranks=sizing.replica.num_queues,
    )
    first = WARM_UP * len(found)
    ended = simulate(group, requests(found, requests_per_s))
    counted = [each for each in ended if int(each.id) >= first]
    slo = sizing.request.slo
    by_name = {
        "TimeToFirstToken": _excess(slo.ttft[0], [each.ttft_s for each in counted]),
        "TimePerOutputToken": _excess(slo.tpot[0], list(_tpots(counted))),
    }
    worst = max(by_name, key=lambda name: by_name[name])
    return by_name[worst], worst


def _tpots(completions: Sequence[Completion]) -> Iterator[float]:
    return (each.tpot_s for each in completions if each.tpot_s is not None)


def _excess(promise: Promise, values_s: Sequence[float]) -> float:
    late = sum(value_s > promise.limit_s for value_s in values_s)
    return excess_of(late / len(values_s), promise.quantile)


def simulated_capacity(sizing: Sizing, guess: float, num_requests: int) -> tuple[float, str]:
    """Return the highest rate that keeps the promises, by bisection, and the one that ends it."""
    workload = sizing.request.workload
    found = draws(Traffic(workload=workload, context_tokens=CONTEXT_TOKENS), num_requests, SEED)
    low, high, by = 0.0, guess, ""
    while (found_at_high := misses(sizing, found, high))[0] <= 0:
        low, high = high, 1.5 * high
    by = found_at_high[1]
    while high - low > TOLERANCE * high:
        middle = (low + high) / 2
        excess, name = misses(sizing, found, middle)
        if excess > 0:
            high, by = middle, name
        else:
            low = middle
    return (low + high) / 2, by


def rows(num_requests: int) -> Iterator[Row]:
    for prompt, output, factor, ttft_s in CASES:
        name = f"{prompt}+{output} TPOT x{factor} TTFT {ttft_s} s"
        try:
            sizing = size_with(request(prompt, output, factor, ttft_s), SPLIT)
        except SizingError as refusal:
            print(f"{name}: {refusal}", file=sys.stderr)  # noqa: T201
            continue
        predicted = sizing.sustainable_requests_per_s
        simulated, by = simulated_capacity(sizing, predicted, num_requests)
        is_line = predicted >= sizing.line.requests_per_s * (1 - 1e-6)
        yield Row(
            name=name,
            predicted=predicted,
            simulated=simulated,
            predicted_by=sizing.line.limited_by if is_line else "TimeToFirstToken",
            simulated_by=by,
        )


@click.command()
@click.option("--requests", "num_requests", type=int, default=NUM_REQUESTS, show_default=True)
def main(*, num_requests: int) -> None:
    """Compare DeepSeek-V3 on eight H200 with data-parallel attention."""
    out = csv.writer(sys.stdout)
    out.writerow(("workload", "predicted", "simulated", "error %", "predicted by", "simulated by"))
    for row in rows(num_requests):
        figures = (f"{row.predicted:.3f}", f"{row.simulated:.3f}", f"{100 * row.error:.1f}")
        out.writerow((row.name, *figures, row.predicted_by, row.simulated_by))
        sys.stdout.flush()


if __name__ == "__main__":
    main()
