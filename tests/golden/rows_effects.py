"""Our values: effects that the documents claim, shown by the engine model."""

import csv
import gzip
import math
import random
from dataclasses import replace
from pathlib import Path

import pytest

from builders import a_prior
from golden.documents import model, napkin_shard, nominal_speeds, row
from golden.formulas import block_rounding_fraction
from tonnage.catalog.engine_speed import TEXTBOOK_SPEED
from tonnage.engine.core import Engine
from tonnage.engine.limits import EngineLimits
from tonnage.engine.table import RequestTable
from tonnage.sizing.step_time.model import StepTimeModel, step_costs
from tonnage.sizing.step_time.step import Step

TRACES = Path(__file__).parents[3] / "shared" / "data" / "traces"
"""Beside the repository. They are not ours to ship, and the test skips without them."""

BATCH = 32
NUM_REQUESTS = 1000
A100 = nominal_speeds("A100-SXM4-80GB")
LLAMA_8B = napkin_shard(model("llama-3-8b"), precision="fp16")
PRIOR = StepTimeModel(shard=LLAMA_8B, speeds=A100, constants=a_prior("A100-80GB"))
WITHOUT_PAIRS = replace(
    LLAMA_8B, kv=tuple(replace(kind, prefill_flop_per_pair=0) for kind in LLAMA_8B.kv)
)
"""By hand, the work of a prompt is that of its tokens, not of pairs of them."""
TEXTBOOK = StepTimeModel(shard=WITHOUT_PAIRS, speeds=A100, constants=TEXTBOOK_SPEED)


def an_engine(step_time_model, table, *, slots, budget_tokens):
    limits = EngineLimits(
        max_num_seqs=slots,
        max_num_batched_tokens=budget_tokens,
        num_blocks=20_000,
        block_size=16,
        max_model_len=16_384,
    )
    costs = step_costs(step_time_model, max_num_seqs=slots, max_batched_tokens=budget_tokens)
    return Engine(limits, costs, table, 0)


def static_s(outputs):
    """Return how long batches take of which each waits for its longest member.

    One step computes all prompts and the first tokens; then every slot decodes, those that have
    ended as padding, until the longest member has its last token.
    """
    total_s = 0.0
    for start in range(0, len(outputs), BATCH):
        members = outputs[start : start + BATCH]
        prompts = Step(num_sequences=0, context_tokens=0, prefill_tokens=512 * len(members))
        total_s += PRIOR.step(prompts).total_s
        for tokens in range(1, max(members)):
            context = len(members) * (512 + tokens)
            decode = Step(num_sequences=len(members), context_tokens=context)
            total_s += PRIOR.step(decode).total_s
    return total_s


@row("continuous-vs-static")
def continuous_vs_static():
    # Prompts of 512 and exponential outputs with mean 256, all waiting from the start.
    chance = random.Random(0)  # noqa: S311  no secret
    outputs = [math.ceil(chance.expovariate(1 / 256)) for _ in range(NUM_REQUESTS)]
    nothing = [0] * NUM_REQUESTS
    table = RequestTable([512] * NUM_REQUESTS, outputs, nothing, nothing)
    engine = an_engine(PRIOR, table, slots=BATCH, budget_tokens=2048)
    for number in range(NUM_REQUESTS):
        engine.submit(number)
    engine.advance(math.inf)
    # The same tokens in less time.
    return static_s(outputs) / max(table.ended_s)


def prompts_among_answers():
    """Return 32 answers of 400 tokens, and from 2 s on a prompt of 8,000 each second."""
    return RequestTable(
        [1000] * BATCH + [8000] * 6,
        [400] * BATCH + [1] * 6,
        [0] * (BATCH + 6),
        [0.0] * BATCH + [2.0 + number for number in range(6)],
    )


def served_with(budget_tokens):
    """Return the gaps between tokens of the answers, how long all took, and the steps of it."""
    table = prompts_among_answers()
    engine = an_engine(TEXTBOOK, table, slots=2 * BATCH, budget_tokens=budget_tokens)
    arrived, gaps_s = 0, []
    while arrived < table.size or engine.num_outstanding:
        while arrived < table.size and (
            not engine.num_outstanding or table.arrival_s[arrived] <= engine.now_s
        ):
            engine.submit(arrived)
            arrived += 1
        before_s = engine.decoding_s
        step_s = engine.step()
        if round((engine.decoding_s - before_s) / step_s) == BATCH:
            gaps_s.append(step_s)
    return sorted(gaps_s), max(table.ended_s), engine.num_steps


@row("whole-vs-chunked-prefill")
def whole_vs_chunked_prefill():
    whole, whole_s, whole_steps = served_with(16_384)
    chunks, chunks_s, chunks_steps = served_with(512 + BATCH)
    weights_s = LLAMA_8B.dense_read_bytes / A100.memory_bytes_per_s
    return {
        "worst_gap_s": {"whole": whole[-1], "chunks": chunks[-1]},
        "p99_gap_s": {"whole": p99(whole), "chunks": p99(chunks)},
        "whole_over_chunks": whole[-1] / chunks[-1],
        "longer_over_weight_reads": (chunks_s - whole_s) / weights_s / (chunks_steps - whole_steps),
    }


def p99(ordered):
    return ordered[math.ceil(0.99 * len(ordered)) - 1]


@row("paged-vs-contiguous")
def paged_vs_contiguous():
    trace = TRACES / "azure2023_conv.csv.gz"
    if not trace.exists():
        pytest.skip(f"needs the trace {trace.name} in a folder shared/data/traces beside this one")
    with gzip.open(trace, "rt", newline="") as lines:
        lengths = [
            int(request["input_tokens"]) + int(request["output_tokens"])
            for request in csv.DictReader(lines)
        ]
    return block_rounding_fraction(lengths, block_tokens=16)
