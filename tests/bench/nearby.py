"""Goodput carried over from a neighbour against the search that it saves.

    python tests/bench/nearby.py --apart 1.12 --cases 40

Random workloads, constants and targets; each asked at a point and at another whose lengths and
constants all differ, by up to half of the ratio either way.
"""

import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice

import click
from replay_cases import Lengths, manifest

from tonnage.api.objects import parse_model_deployment
from tonnage.catalog.gpu import built_in_gpus
from tonnage.sizing.errors import SizingError
from tonnage.sizing.nearby import can_extrapolate, extrapolate
from tonnage.sizing.plan import Sizing
from tonnage.sizing.request import SizingRequest, ask, look_up
from tonnage.sizing.search import size

ANYWHERE = 2.7
"""Ratio of the largest to the smallest of each figure, over all cases."""


def moved(request: SizingRequest, chance: random.Random, ratio: float) -> SizingRequest:
    """Return the request with each length and constant times up to half of a ratio."""
    prompt, output, bandwidth, prefill, overhead = (
        ratio ** chance.uniform(-0.5, 0.5) for _ in range(5)
    )
    workload, speed = request.workload, request.speed
    spread, second = workload.prompt.p99_tokens, workload.output_second_moment
    return replace(
        request,
        workload=replace(
            workload,
            prompt=replace(
                workload.prompt,
                mean_tokens=workload.prompt.mean_tokens * prompt,
                p99_tokens=spread and min(spread * prompt, float(request.context_tokens)),
            ),
            output_tokens=workload.output_tokens * output,
            output_second_moment=second and second * output**2,
        ),
        speed=replace(
            speed,
            bandwidth_efficiency=speed.bandwidth_efficiency * bandwidth,
            prefill_efficiency=speed.prefill_efficiency * prefill,
            per_step_s=speed.per_step_s * overhead,
            per_kernel_s=speed.per_kernel_s * overhead,
        ),
    )


def pairs(chance: random.Random, ratio: float, scv: float) -> Iterator[tuple[Sizing, Sizing]]:
    """Yield answers to two neighbouring questions, with the flags of a plan between them all."""
    for number in range(10_000):
        lengths = Lengths(
            prompt_mean=chance.choice((300, 1000, 2000, 4000)),
            prompt_p99=8000,
            output_mean=chance.choice((50, 200, 400, 800)),
            output_p99=2000,
        )
        spec = manifest(lengths, 10.0, quantile=chance.choice(("p95", "p99")))
        model = parse_model_deployment(spec).spec
        request = replace(ask(model, look_up(model, built_in_gpus())), arrival_scv=scv)
        try:
            flags = size(request).flags
            here = replace(moved(request, chance, ANYWHERE), flags=flags)
            yield size(here), size(moved(here, chance, ratio))
        except SizingError as refusal:
            click.echo(f"{number}: {refusal}", err=True)


def errors(near: Sizing, exact: Sizing) -> tuple[float, float, float]:
    """Return how far one replica, each of eight, and the plain neighbour are off."""
    found = extrapolate(near, exact.request)
    return (
        abs(found.goodput_requests_per_s / exact.goodput_requests_per_s - 1),
        abs(found.staffing.each(8) / exact.staffing.each(8) - 1),
        abs(near.goodput_requests_per_s / exact.goodput_requests_per_s - 1),
    )


@click.command()
@click.option("--apart", type=float, default=1.1, show_default=True)
@click.option("--cases", "num_cases", type=int, default=70, show_default=True)
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--scv", type=float, default=1.3, show_default=True, help="Of gaps between arrivals.")
def main(apart: float, num_cases: int, seed: int, scv: float) -> None:
    found = []
    for near, exact in islice(pairs(random.Random(seed), apart, scv), num_cases):  # noqa: S311
        if not can_extrapolate(near):
            continue
        found.append(errors(near, exact))
        click.echo(
            f"{exact.limited_by:20s} {exact.goodput_requests_per_s:8.3f}  carried "
            f"{found[-1][0]:6.1%}  of eight {found[-1][1]:6.1%}  plain {found[-1][2]:6.1%}"
        )
    click.echo(f"{len(found)} of {num_cases} are carried")
    for name, column in zip(
        ("carried", "of eight", "plain"), zip(*found, strict=True), strict=True
    ):
        ordered = sorted(column)
        median, high = ordered[len(ordered) // 2], ordered[int(0.9 * len(ordered))]
        click.echo(f"{name}: median {median:.1%}, p90 {high:.1%}, largest {ordered[-1]:.1%}")


if __name__ == "__main__":
    main()
