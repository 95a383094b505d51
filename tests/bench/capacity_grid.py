"""A hundred workloads on real models and GPUs, drawn once and for all from a seed."""

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace

from questions import catalog_request

from tonnage.sizing.errors import SizingError
from tonnage.sizing.plan import Sizing, size_with
from tonnage.sizing.request import SizingRequest
from tonnage.sizing.serving.steady import steady_state
from tonnage.sizing.serving.ttft import own_prefill_s
from tonnage.sizing.split import Parallelism
from tonnage.sizing.workload import Lengths, Promise, Slo, Workload

NUM_WORKLOADS = 100
PLATFORMS = (
    ("Llama-3.1-8B-Instruct", "L4", 1),
    ("Llama-3.1-8B-Instruct", "A100-80GB", 1),
    ("Llama-3.1-8B-Instruct", "H100", 1),
    ("Qwen2.5-14B", "A100-40GB", 1),
    ("Qwen2.5-32B", "H100", 1),
    ("Qwen2.5-32B", "H200", 1),
    ("Llama-3.3-70B-Instruct", "A100-80GB", 4),
    ("Llama-3.3-70B-Instruct", "H100", 4),
    ("Llama-3.3-70B-Instruct", "H200", 2),
    ("Llama-3.3-70B-Instruct", "B200", 2),
    ("Mixtral-8x7B-Instruct-v0.1", "H100", 2),
)
PROMPTS = (100, 300, 1000, 2000, 4000, 8000)
PROMPT_SPREADS = (None, 2.0, 4.0)
"""p99 over mean; None: all alike."""
OUTPUTS = (20, 60, 150, 300, 600, 1500)
OUTPUT_SHAPES = ("exponential", "fixed", "lognormal")
TPOT_FACTORS = (1.3, 1.6, 2.0, 3.0, 5.0)
"""Of the step of one request alone."""
TTFT_LIMITS_S = (0.3, 0.5, 1.0, 2.0, 5.0)
SLOTS = (None, None, None, 12, 32)
"""``--max-num-seqs``; None: what the plan chooses."""
FEWEST = 8
"""Requests that a replica must be able to run at once, by memory and by its mean step: with fewer
there is no batch to speak of."""
LOGNORMAL_SCV = 1.0
LONGEST = 0.9999
"""Quantile of both lengths that a replica must be able to take."""
LONGEST_OUTPUT = 10
"""Of the mean: what all three shapes stay below with that probability."""
MARGIN = 1.5
"""A TTFT limit is at least so many times what the promised prompt takes alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One workload of the grid, at one quantile."""

    name: str
    request: SizingRequest
    sizing: Sizing


def cases(quantile: float, arrival_scv: float | None = None, *, grid: str = "") -> Iterator[Case]:
    """Yield a grid at one quantile. Infeasible draws are drawn again, so it is always full.

    ``grid``: the name of another one, to check the rules on workloads they were not made with.
    """
    found = 0
    draw_number = 0
    while found < NUM_WORKLOADS:
        draw_number += 1
        case = _case(f"{grid}workload {draw_number}", quantile, arrival_scv)
        if case is not None:
            found += 1
            yield replace(case, name=f"{found:03d} {case.name}")


def _case(seed: str, quantile: float, arrival_scv: float | None) -> Case | None:
    chance = random.Random(seed)  # noqa: S311
    model, gpu, tensor = chance.choice(PLATFORMS)
    workload, words = _workload(chance)
    factor, limit_s = chance.choice(TPOT_FACTORS), chance.choice(TTFT_LIMITS_S)
    slots, scv = chance.choice(SLOTS), chance.choice((1.0, 1.0, 1.0, 4.0))
    request = _request(model, gpu, workload, scv if arrival_scv is None else arrival_scv)
    split = Parallelism(tensor=tensor)
    try:
        strictest = _feasible(request, split, (factor, limit_s))
        if strictest is None:
            return None
        request = replace(request, slo=_at(strictest, quantile))
        sizing = size_with(request, split)
        if slots is not None and slots < sizing.flags.max_num_seqs:
            request = replace(request, flags=replace(sizing.flags, max_num_seqs=slots))
            sizing = size_with(request, split)
    except SizingError:
        return None
    name = f"{model} {gpu}x{tensor} {words} scv{request.arrival_scv:g}"
    return Case(name=name, request=request, sizing=sizing)


def _workload(chance: random.Random) -> tuple[Workload, str]:
    mean, spread = chance.choice(PROMPTS), chance.choice(PROMPT_SPREADS)
    output, shape = chance.choice(OUTPUTS), chance.choice(OUTPUT_SHAPES)
    moments = {
        "exponential": None,
        "fixed": float(output) ** 2,
        "lognormal": output**2 * (1 + LOGNORMAL_SCV),
    }
    prompt = Lengths(mean_tokens=mean, p99_tokens=mean * spread if spread else None)
    workload = Workload(prompt=prompt, output_tokens=output, output_second_moment=moments[shape])
    return workload, f"{mean}({spread or 1:g})+{output} {shape}"


def _request(model: str, gpu: str, workload: Workload, scv: float) -> SizingRequest:
    longest = workload.prompt.quantile(LONGEST) + LONGEST_OUTPUT * workload.output_tokens
    context_tokens = int(min(longest, 32_768))
    request = catalog_request(model, gpu, workload, context_tokens=context_tokens)
    return replace(request, arrival_scv=scv)


def _feasible(request: SizingRequest, split: Parallelism, asked: tuple[float, float]) -> Slo | None:
    """Return the promises, both at 99 %, or None where one request alone would miss them."""
    factor, limit_s = asked
    sizing = size_with(request, split)
    alone_s = sizing.idle.step_s
    prompt_s = _alone_s(sizing, 0.99)
    tpot = Promise(quantile=0.99, limit_s=round(factor * alone_s, 4))
    few = steady_state(sizing.replica, request.workload, FEWEST)
    is_batch = few.step_s < tpot.limit_s and sizing.memory_ceiling_typical >= FEWEST
    if MARGIN * prompt_s > limit_s or not is_batch:
        return None
    return Slo(ttft=(Promise(quantile=0.99, limit_s=limit_s),), tpot=(tpot,))


def _alone_s(sizing: Sizing, quantile: float) -> float:
    workload = sizing.request.workload
    return own_prefill_s(sizing.replica, workload, sizing.idle, workload.prompt.quantile(quantile))


def _at(slo: Slo, quantile: float) -> Slo:
    return Slo(
        ttft=tuple(replace(promise, quantile=quantile) for promise in slo.ttft),
        tpot=tuple(replace(promise, quantile=quantile) for promise in slo.tpot),
    )
