"""Our values: effects that the documents claim, shown by the engine model."""

import csv
import gzip
import math
import random
from pathlib import Path

import pytest
from tonnage.engine.static import simulate_static

from builders import a_prior
from golden.documents import model, napkin_shard, nominal_speeds, row
from tonnage.catalog.engine_speed import TEXTBOOK_SPEED
from tonnage.engine import Engine, EngineLimits, Request, simulate
from tonnage.sizing.memory.ceiling import block_rounding_fraction
from tonnage.sizing.step_time.step import Step, step_time

TRACES = Path(__file__).parents[3] / "shared" / "data" / "traces"
"""Beside the repository. They are not ours to ship, and the test skips without them."""

BATCH = 32
NUM_REQUESTS = 1000
LLAMA_8B = napkin_shard(model("llama-3-8b"), precision="fp16")


A100 = nominal_speeds("A100-SXM4-80GB")
A100_PRIOR = a_prior("A100-80GB")


def a100_8b_step_s(num_decoding, context_tokens, prefill_tokens, constants=A100_PRIOR):
    step = Step(
        num_sequences=num_decoding,
        context_tokens=context_tokens,
        prefill_tokens=prefill_tokens,
    )
    return step_time(LLAMA_8B, A100, constants, step).total_s


def queued_requests():
    """Prompts of 512 and exponential outputs with mean 256, all waiting from the start."""
    outputs = random.Random(0)  # noqa: S311  no secret
    return [
        Request(
            id=str(number),
            prompt_tokens=512,
            output_tokens=math.ceil(outputs.expovariate(1 / 256)),
        )
        for number in range(NUM_REQUESTS)
    ]


@row("continuous-vs-static")
def continuous_vs_static():
    requests = queued_requests()
    limits = EngineLimits(
        max_num_seqs=BATCH,
        max_num_batched_tokens=2048,
        num_blocks=BATCH * 4096 // 16,
        block_size=16,
        max_model_len=4096,
    )
    continuous = simulate(Engine(limits, a100_8b_step_s), requests)
    static = simulate_static(requests, batch_size=BATCH, step_time=a100_8b_step_s)
    # The same tokens in less time.
    return max(each.e2e_s for each in static) / max(each.e2e_s for each in continuous)


def prompts_among_answers():
    """Return 32 answers of 400 tokens, and from 2 s on a prompt of 8,000 each second."""
    answers = [
        Request(id=f"answer {number}", prompt_tokens=1000, output_tokens=400)
        for number in range(BATCH)
    ]
    prompts = [
        Request(id=f"prompt {number}", prompt_tokens=8000, output_tokens=1, arrival_s=2.0 + number)
        for number in range(6)
    ]
    return [*answers, *prompts]


def served_with(budget_tokens):
    """Return the gaps between tokens of the answers, how long all took, and the steps of it."""
    limits = EngineLimits(
        max_num_seqs=2 * BATCH,
        max_num_batched_tokens=budget_tokens,
        num_blocks=20_000,
        block_size=16,
        max_model_len=16_384,
    )
    gaps_s = []

    def watched(num_decoding, context_tokens, prefill_tokens):
        step_s = a100_8b_step_s(num_decoding, context_tokens, prefill_tokens, TEXTBOOK_SPEED)
        if num_decoding == BATCH:
            gaps_s.append(step_s)
        return step_s

    engine = Engine(limits, watched)
    ended_s = max(each.arrival_s + each.e2e_s for each in simulate(engine, prompts_among_answers()))
    return sorted(gaps_s), ended_s, engine.counters.num_steps


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
