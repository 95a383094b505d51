"""Workloads on real models and GPUs, drawn once and for all from a seed.

What is drawn and what is drawn again is decided by the references alone: that one request alone
keeps the targets, and that the memory holds it. So the grid stays the same whatever the product
thinks of it.
"""

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import count, islice

from fleet import Fleet, Load, outcome
from questions import catalog_request

from reference_engine import EngineLimits
from reference_fast import Drafts
from reference_step_time import Figures, figures, limits_of
from tonnage.sizing.errors import SizingError
from tonnage.sizing.options import Speculation
from tonnage.sizing.plan import size_with
from tonnage.sizing.request import Flags, SizingRequest
from tonnage.sizing.serving.replica import Replica
from tonnage.sizing.split import Parallelism
from tonnage.sizing.workload import Lengths, Slo, Target, Workload

NUM_WORKLOADS = 100
PLATFORMS = (
    ("Llama-3.1-8B-Instruct", "L4", Parallelism()),
    ("Llama-3.1-8B-Instruct", "A100-80GB", Parallelism()),
    ("Llama-3.1-8B-Instruct", "H100", Parallelism()),
    ("Qwen2.5-14B", "A100-40GB", Parallelism()),
    ("Qwen2.5-32B", "H100", Parallelism()),
    ("Qwen2.5-32B", "H200", Parallelism()),
    ("Llama-3.3-70B-Instruct", "A100-80GB", Parallelism(tensor=4)),
    ("Llama-3.3-70B-Instruct", "H100", Parallelism(tensor=4)),
    ("Llama-3.3-70B-Instruct", "H200", Parallelism(tensor=2)),
    ("Llama-3.3-70B-Instruct", "B200", Parallelism(tensor=2)),
    ("Mixtral-8x7B-Instruct-v0.1", "H100", Parallelism(tensor=2)),
    ("DeepSeek-V3", "H200", Parallelism(data=8)),
    ("gpt-oss-120b", "H100", Parallelism()),
    ("gemma-3-27b-it", "H100", Parallelism()),
    ("Qwen3-Next-80B-A3B-Instruct", "H100", Parallelism(tensor=4)),
)
PROMPTS = (100, 300, 1000, 2000, 4000, 8000)
PROMPT_SPREADS = (None, 2.0, 4.0)
"""p99 over mean; None: all alike."""
OUTPUTS = (20, 60, 150, 300, 600, 1500)
OUTPUT_SHAPES = ("exponential", "fixed", "lognormal")
TPOT_FACTORS = (1.3, 1.6, 2.0, 3.0, 5.0)
"""Of the step of one request alone."""
TTFT_LIMITS_S = (0.3, 0.5, 1.0, 2.0, 5.0, 10.0)
SLOTS = (*(None,) * 6, *range(1, 8), 12, 12, 32, 32)
"""``--max-num-seqs``; None: what the plan chooses."""
FEW_SLOTS = 7
BURST_SCV = 4.0
SCVS = (1.0, 1.0, 1.0, BURST_SCV)
OVERFLOWS = (*(None,) * 5, 0.7)
"""Share of the cache that as many requests as may run would fill; None: what memory leaves."""
OVERFLOW_SLOTS = (4, 8, 16, 32)
DRAFTS = (*(None,) * 5, (2, 0.8), (4, 0.6))
"""Tokens drafted by n-gram search, and how often one is right; None: nothing drafts."""
LOGNORMAL_SCV = 1.0
LONGEST = 0.9999
"""Quantile of both lengths that a replica must be able to take."""
LONGEST_OUTPUT = 10
"""Of the mean: what all three shapes stay below with that probability."""
MOST_CONTEXT_TOKENS = 32_768
WORTH, WORTH_SLOTS, WORTH_REQUESTS = 0.1, (8, 2, 32), 1000
"""Of the rate of one request after the other, alone: the least goodput of a workload."""
MARGIN = 1.5
"""A TTFT limit is at least so many times what the longest prompt takes alone."""
DATA_PARALLEL, FEW, BURSTS = "DP ranks", "1-7 slots", "bursts"
OVERFLOW, SPECULATION, WINDOWED = "overflow", "speculation", "windowed or hybrid"
PLAIN = "none of these"
GROUPS = (FEW, BURSTS, OVERFLOW, SPECULATION, DATA_PARALLEL, WINDOWED, PLAIN)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One workload of the grid, at one quantile."""

    name: str
    request: SizingRequest
    """With flags where ``--max-num-seqs`` is given."""
    split: Parallelism
    figures: Figures = field(repr=False)
    """Of the step time: they do not depend on the flags."""

    def groups(self, max_num_seqs: int) -> tuple[str, ...]:
        """Return what makes the workload special."""
        request = self.request
        found = {
            FEW: max_num_seqs <= FEW_SLOTS,
            BURSTS: request.arrival_scv > 1,
            OVERFLOW: request.measured_kv_tokens is not None,
            SPECULATION: request.speculation is not None,
            DATA_PARALLEL: self.split.data > 1,
            WINDOWED: is_windowed(self.figures.replica),
        }
        return tuple(name for name, holds in found.items() if holds) or (PLAIN,)


def fleet_of(case: Case, replica: Replica, max_num_seqs: int) -> Fleet:
    """Return a reference engine with so many slots and the cache of a replica."""
    speculation = case.request.speculation
    return Fleet(
        limits=engine_limits(replica, case.request, max_num_seqs),
        figures=case.figures,
        num_ranks=case.split.data,
        drafts=Drafts(speculation.num_draft_tokens, speculation.acceptance_rate)
        if speculation
        else None,
    )


def alone_requests_per_s(case: Case) -> float:
    """Return what one slot serves where nobody waits, and nothing is beside it."""
    found, workload = case.figures, case.request.workload
    step_s = found.decode_s(1) + float(found.attention_s[round(workload.prompt.mean_tokens)])
    steps = found.replica.model.steps(workload.output_tokens)
    return 1 / (alone_s(found, workload.new_prompt_tokens) + steps * step_s)


def is_windowed(replica: Replica) -> bool:
    return any(
        kind.window_tokens or kind.attended_tokens or kind.state_bytes
        for kind in replica.model.shard.kv
    )


def engine_limits(replica: Replica, request: SizingRequest, max_num_seqs: int) -> EngineLimits:
    drafted = request.speculation.num_draft_tokens if request.speculation else 0
    return limits_of(
        replica,
        max_num_seqs=max_num_seqs,
        max_model_len=request.context_tokens,
        num_draft_tokens=drafted,
    )


def cases(quantile: float) -> Iterator[Case]:
    """Yield a grid at one quantile. Infeasible draws are drawn again, so it is always full."""
    drawn = (_case(f"request {number}", quantile) for number in count(1))
    feasible = (case for case in drawn if case is not None)
    for number, case in enumerate(islice(feasible, NUM_WORKLOADS), start=1):
        yield replace(case, name=f"{number:03d} {case.name}")


def replica_of(request: SizingRequest, split: Parallelism, **changes: object) -> Replica:
    """Return the replica that a question without targets is answered with."""
    asked = replace(request, slo=Slo(), arrival_scv=1.0, **changes)  # type: ignore[arg-type]
    return size_with(asked, split).replica


def _case(seed: str, quantile: float) -> Case | None:
    chance = random.Random(seed)  # noqa: S311
    model, gpu, split = chance.choice(PLATFORMS)
    workload, words = _workload(chance)
    request = _request(model, gpu, workload, scv=chance.choice(SCVS))
    factor, limit_s = chance.choice(TPOT_FACTORS), chance.choice(TTFT_LIMITS_S)
    drafts, overflow = chance.choice(DRAFTS), chance.choice(OVERFLOWS)
    slots, crowd = chance.choice(SLOTS), chance.choice(OVERFLOW_SLOTS)
    if drafts is not None:
        tokens, rate = drafts
        speculation = Speculation(method="ngram", num_draft_tokens=tokens, acceptance_rate=rate)
        request = replace(request, speculation=speculation)
        words += f" {tokens} drafts"
    try:
        if overflow is not None and split.data == 1:
            request, words = _overflowing(request, split, overflow, crowd), f"{words} overflow"
        elif slots is not None:
            request = replace(request, flags=_flags(request, split, slots))
        return _feasible(
            f"{model} {gpu} {split} {words} scv{request.arrival_scv:g}",
            request,
            split,
            (quantile, factor, limit_s),
        )
    except SizingError:
        return None


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


def _request(model: str, gpu: str, workload: Workload, *, scv: float) -> SizingRequest:
    longest = workload.prompt.quantile(LONGEST) + LONGEST_OUTPUT * workload.output_tokens
    context_tokens = int(min(longest, MOST_CONTEXT_TOKENS))
    request = catalog_request(model, gpu, workload, context_tokens=context_tokens)
    return replace(request, arrival_scv=scv)


def _flags(request: SizingRequest, split: Parallelism, max_num_seqs: int) -> Flags:
    """Return the flags of the textbook for so many slots: all others are the engine's."""
    return Flags(
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=replica_of(request, split).max_batched_tokens,
        gpu_memory_utilization=request.engine.constants.gpu_memory_utilization,
        parallelism=split,
    )


def _overflowing(
    request: SizingRequest, split: Parallelism, share: float, max_num_seqs: int
) -> SizingRequest:
    """Return the question with a cache that as many requests as may run overflow."""
    each = request.workload.mean_context_tokens
    kv_tokens = max(1.1 * request.context_tokens, share * max_num_seqs * each)
    slots = max(max_num_seqs, math.ceil(kv_tokens / each / share))
    flags = _flags(request, split, slots)
    return replace(request, flags=flags, measured_kv_tokens=kv_tokens)


def _feasible(
    name: str, request: SizingRequest, split: Parallelism, asked: tuple[float, float, float]
) -> Case | None:
    """Return the case, or None where one request alone would miss its targets."""
    quantile, factor, limit_s = asked
    replica = replica_of(request, split)
    found = figures(replica, request.context_tokens)
    prompt_s = alone_s(found, request.workload.prompt.quantile(0.99))
    if MARGIN * prompt_s > limit_s:
        return None
    context = round(request.workload.mean_context_tokens)
    step_s = found.decode_s(1) + found.attention_s[min(context, request.context_tokens)]
    tpot_s = factor * float(step_s) / replica.model.tokens_per_step
    slo = Slo(
        ttft=(Target(quantile=quantile, limit_s=limit_s),),
        tpot=(Target(quantile=quantile, limit_s=float(f"{tpot_s:.3g}")),),
    )
    case = Case(name=name, request=replace(request, slo=slo), split=split, figures=found)
    return case if is_worth_it(case, replica) else None


def is_worth_it(case: Case, replica: Replica) -> bool:
    """Tell whether a replica with some number of slots keeps the targets at a rate worth it.

    Below, what the targets leave hangs on whether two requests ever meet, and no simulation says
    it to some percent.
    """
    rate = WORTH * alone_requests_per_s(case)
    slots = (case.request.flags.max_num_seqs,) if case.request.flags else WORTH_SLOTS
    for number in slots:
        load = Load(traffic=case.request, num_requests=WORTH_REQUESTS, crowd=number, num_blocks=1)
        fleet = fleet_of(case, replica, number)
        if outcome(fleet, load, rate, case.request.slo).excess <= 0:
            return True
    return False


def alone_s(found: Figures, prompt_tokens: float) -> float:
    """Return the seconds of a prompt's prefill with nothing beside it."""
    left, budget = math.ceil(prompt_tokens), found.replica.max_batched_tokens
    longest = len(found.prompt_attention_s) - 1
    total_s = float(found.prompt_attention_s[min(left, longest)])
    while left > 0:
        tokens = min(left, budget)
        total_s += found.mixed_s(0, tokens, tokens)
        left -= tokens
    return total_s
