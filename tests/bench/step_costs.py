"""What the figures of a step cost against the formula that they are taken from.

    python tests/bench/step_costs.py --runs

The engine model adds up figures (``sizing/step_time/costs``) sequence by sequence, where the
formula takes all contexts at their mean. Where attention is in proportion to the context both are
the same; where a window or a sparse selection bends it, only the figures tell mixed contexts apart.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from statistics import NormalDist

import click
from questions import catalog_request

import reference_engine as slow
from reference_step_time import formula, limits_of
from stepping import a_catalog_model, engine_step_s
from tonnage.engine.table import RequestTable
from tonnage.sizing.plan import size_with
from tonnage.sizing.serving.load_line import top_requests_per_s
from tonnage.sizing.serving.replica import Replica
from tonnage.sizing.serving.trial import Trial, TrialRun
from tonnage.sizing.split import Parallelism
from tonnage.sizing.step_time.model import StepTimeModel
from tonnage.sizing.step_time.step import Step
from tonnage.sizing.workload import Lengths, Slo, Workload

KINDS = {
    "dense": ("Llama-3.1-8B-Instruct", "H100", Parallelism()),
    "window": ("gemma-3-27b-it", "H100", Parallelism()),
    "hybrid": ("Qwen3-Next-80B-A3B-Instruct", "H100", Parallelism(tensor=4)),
    "sparse": ("DeepSeek-V3.2", "H200", Parallelism(tensor=8)),
}
CONTEXTS = (1_000, 4_000, 16_000, 64_000, 128_000)
RUN = Lengths(mean_tokens=1000, p99_tokens=4000)
OUTPUT_TOKENS, RUN_CONTEXT_TOKENS, RUN_REQUESTS, RUN_SLOTS = 300, 16_384, 600, 32
LOAD = 0.8
"""Of what the fluid steady state serves at most."""
SPREADS = {"equal": None, "p99 = 2 x mean": 2.0, "p99 = 4 x mean": 4.0}
BATCHES = (1, 8, 64)
PROMPTS = (0, 2_000)
SLOTS = 200
"""Of the figures, so that the batches lie between those at which the formula was asked."""
LONGEST = 190_000


def contexts_of(mean: int, spread: float | None, batch: int) -> list[int]:
    """Return a batch spread evenly over a lognormal distribution, scaled to its mean."""
    sigma = Lengths(mean_tokens=mean, p99_tokens=spread * mean if spread else None).sigma
    shares = [(index + 0.5) / batch for index in range(batch)]
    raw = [math.exp(sigma * NormalDist().inv_cdf(share)) for share in shares]
    scale = mean * batch / sum(raw)
    return [max(2, min(LONGEST, round(scale * each))) for each in raw]


def difference(model: StepTimeModel, contexts: Sequence[int], prompt: int) -> float:
    """Return by what share the engine's step is longer than the formula's."""
    prompts = (prompt,) if prompt else ()
    step_s = engine_step_s(model, contexts, prompts=prompts, max_num_seqs=SLOTS)
    step = Step(
        num_sequences=len(contexts),
        context_tokens=sum(contexts),
        prefill_tokens=prompt,
        prefill_context_tokens=prompt / 2,
        prefill_ranks=1,
    )
    return step_s / model.step(step).total_s - 1


def rows() -> Iterator[str]:
    """Yield the table: differences in percent, at batches of 1, 8 and 64."""
    batches = ", ".join(map(str, BATCHES))
    yield f"| layers | contexts | beside | {' | '.join(f'{each:,}' for each in CONTEXTS)} |"
    yield "|---" * (3 + len(CONTEXTS)) + "|"
    for kind, (name, gpu, split) in KINDS.items():
        model = a_catalog_model(name, gpu=gpu, split=split)
        for (words, spread), prompt in product(SPREADS.items(), PROMPTS):
            cells = (
                ", ".join(
                    f"{100 * difference(model, contexts_of(mean, spread, batch), prompt):+.2f}"
                    for batch in BATCHES
                )
                for mean in CONTEXTS
            )
            beside = f"a prompt of {prompt:,}" if prompt else "nothing"
            yield f"| {kind} | {words} | {beside} | {' | '.join(cells)} |"
    yield f"\nPercent, at {batches} sequences."


def runs() -> Iterator[str]:
    """Yield p95 of a run of each kind: by the engine's figures, and by the formula at each step."""
    yield "| layers | TTFT p95 | by the formula | TPOT p95 | by the formula |"
    yield "|---|---|---|---|---|"
    for kind, (name, gpu, split) in KINDS.items():
        replica = replica_for(name, gpu, split)
        workload = Workload(prompt=RUN, output_tokens=OUTPUT_TOKENS)
        rate = LOAD * top_requests_per_s(replica, workload)
        trial = Trial(
            replica=replica, workload=workload, slo=Slo(), context_tokens=RUN_CONTEXT_TOKENS
        )
        table = TrialRun(trial, rate, RUN_REQUESTS).table
        figures = [p95(each) for each in latencies(table)]
        formulas = [p95(each) for each in by_formula(replica, table)]
        cells = (
            f"{found:.4g} s | {(found / asked - 1) * 100:+.2f} %"
            for found, asked in zip(figures, formulas, strict=True)
        )
        yield f"| {kind} | {' | '.join(cells)} |"


def replica_for(name: str, gpu: str, split: Parallelism) -> Replica:
    workload = Workload(prompt=RUN, output_tokens=OUTPUT_TOKENS)
    request = catalog_request(name, gpu, workload, context_tokens=RUN_CONTEXT_TOKENS)
    return replace(size_with(request, split).replica, max_num_seqs=RUN_SLOTS)


def latencies(table: RequestTable) -> tuple[list[float], list[float]]:
    requests = range(table.size)
    ttft = [table.first_token_s[each] - table.arrival_s[each] for each in requests]
    tpot = [
        (table.ended_s[each] - table.first_token_s[each]) / (table.output_tokens[each] - 1)
        for each in requests
        if table.output_tokens[each] > 1
    ]
    return ttft, tpot


def by_formula(replica: Replica, table: RequestTable) -> tuple[list[float], list[float]]:
    """Serve the same requests with the reference, which asks the formula at each step."""
    limits = limits_of(replica, max_num_seqs=RUN_SLOTS, max_model_len=RUN_CONTEXT_TOKENS)
    group = slow.EngineGroup(limits, formula(replica), num_ranks=replica.model.dp_size)
    arrivals = (
        slow.Request(
            number=number,
            prompt_tokens=table.prompt_tokens[number],
            output_tokens=table.output_tokens[number],
            arrival_s=table.arrival_s[number],
        )
        for number in range(table.size)
    )
    served = slow.simulate(group, arrivals)
    tpot = [each.tpot_s for each in served if each.tpot_s is not None]
    return [each.ttft_s for each in served], tpot


def p95(values: Sequence[float]) -> float:
    return sorted(values)[math.ceil(0.95 * len(values)) - 1]


@click.command()
@click.option("--runs", "has_runs", is_flag=True, help="Compare runs too: some minutes.")
def main(*, has_runs: bool) -> None:
    """Print the tables."""
    for row in (*rows(), *(["", *runs()] if has_runs else [])):
        click.echo(row)


if __name__ == "__main__":
    main()
