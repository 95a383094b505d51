"""Whether plans keep their targets near capacity with arrivals of other seeds.

    python tests/bench/other_seeds.py [--plans 30] [--seeds 10]

Each plan is drawn, and its replicas get all that it says they sustain. The percentiles that the SLO
names are simulated with arrivals and lengths of other seeds; their mean is compared with the
target. The seed in use is the product's own (``arrival_seed.py``).
"""

import random
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from statistics import mean

import click
from first_answers import request_of

from tonnage.sizing.errors import SizingError
from tonnage.sizing.plan import Sizing
from tonnage.sizing.search import size
from tonnage.sizing.serving import arrivals, demand, goodput
from tonnage.units import count_of

DRAW = 7
MODELS = (
    "meta-llama/Llama-3.3-70B-Instruct",
    "meta-llama/Llama-3.1-8B-Instruct",
    "Qwen/Qwen3-32B",
    "zai-org/GLM-4.5-Air",
    "openai/gpt-oss-120b",
    "Qwen/Qwen3-30B-A3B",
    "mistralai/Mistral-Small-3.2-24B-Instruct-2506",
)
GPUS = ("H100", "H200", "A100-80GB", "L40S", "B200")
PROMPTS = (500, 1_000, 2_000, 4_000, 8_000, 16_000)
OUTPUTS = (100, 250, 500, 1_000)
TTFTS, TPOTS = ("600ms", "1s", "2s", "4s"), ("30ms", "50ms", "80ms", "120ms")
FIRST_SEED = 100
DRAWN = (
    arrivals.requests,
    arrivals._normals,
    arrivals._exponentials,
    arrivals._arrivals,
    arrivals._routes,
    demand.service_at,
)


def plans() -> Iterator[tuple[str, Sizing]]:
    """Yield plans of drawn requests that can be served, each with its name."""
    draw = random.Random(DRAW)  # noqa: S311  (a draw of cases)
    while True:
        model, gpu = draw.choice(MODELS), draw.choice(GPUS)
        prompt = round(draw.choice(PROMPTS) * draw.uniform(0.7, 1.3))
        output = round(draw.choice(OUTPUTS) * draw.uniform(0.7, 1.3))
        ttft, tpot = draw.choice(TTFTS), draw.choice(TPOTS)
        changes = (
            ("model.id", model),
            ("hardware.gpu", gpu),
            ("demand.requestsPerSecond", 4),
            ("demand.promptTokens.mean", prompt),
            ("demand.outputTokens.mean", output),
            ("slo.timeToFirstToken.p95", ttft),
            ("slo.timePerOutputToken.p95", tpot),
        )
        with suppress(SizingError):
            name = f"{model.rpartition('/')[2]} on {gpu}, {prompt} + {output}, {ttft}, {tpot}"
            yield name, size(request_of(changes))


def over_targets(plan: Sizing) -> list[float]:
    """Return each percentile that the SLO names over its limit, at all that the plan sustains."""
    rate = plan.sustained_requests_per_s(plan.replicas)
    served, slo = plan.at(rate, plan.replicas), plan.request.slo
    ttft = [served.at(each.quantile).ttft_s / each.limit_s for each in slo.ttft]
    return ttft + [(served.at(each.quantile).tpot_s or 0) / each.limit_s for each in slo.tpot]


def with_seed(seed: int, plan: Sizing) -> list[float]:
    """Return the same with arrivals and lengths of another seed."""
    own = arrivals.SEED
    try:
        arrivals.SEED = seed
        forget()
        return over_targets(plan)
    finally:
        arrivals.SEED = own
        forget()


def forget() -> None:
    """Forget what was drawn and what became of it: both are memoized by all but the seed."""
    for function in DRAWN:
        function.cache_clear()
    goodput._remembered.clear()


@click.command()
@click.option("--plans", "num_plans", default=30, show_default=True)
@click.option("--seeds", default=10, show_default=True)
def main(*, num_plans: int, seeds: int) -> None:
    """Print a line for each plan, then how many of them keep every target in the mean."""
    num_kept = 0
    for name, plan in islice(plans(), num_plans):
        own = over_targets(plan)
        others = [with_seed(FIRST_SEED + each, plan) for each in range(seeds)]
        means = [mean(each) for each in zip(*others, strict=True)]
        num_kept += max(means) <= 1
        fleet = f"{count_of(plan.replicas, 'replica')} of {plan.parallelism}"
        figures = f"own {shown(own)}, mean of {count_of(seeds, 'other seed')} {shown(means)}"
        click.echo(f"{name}: {fleet}, {figures}")
    click.echo(f"{num_kept} of {num_plans} keep every target in the mean of other seeds")


def shown(ratios: list[float]) -> str:
    return " ".join(f"{each:.3f}" for each in ratios)


if __name__ == "__main__":
    main()
