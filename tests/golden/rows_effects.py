"""Our values: effects that the documents claim, shown by the engine model."""

import csv
import gzip
import math
import random
from pathlib import Path

import pytest

from builders import a_prior
from golden.documents import model, napkin_shard, nominal_speeds, row
from tonnage.engine import Engine, EngineLimits, Request, simulate
from tonnage.engine.static import simulate_static
from tonnage.sizing.memory import block_rounding_fraction
from tonnage.sizing.step import Step, step_time

TRACES = Path(__file__).parents[3] / "shared" / "data" / "traces"
"""Beside the repository. They are not ours to ship, and the test skips without them."""

BATCH = 32
NUM_REQUESTS = 1000
LLAMA_8B = napkin_shard(model("llama-3-8b"), precision="fp16")


def a100_8b_step_s(num_decoding, context_tokens, prefill_tokens):
    step = Step(
        num_sequences=num_decoding,
        context_tokens=context_tokens,
        prefill_tokens=prefill_tokens,
    )
    return step_time(LLAMA_8B, nominal_speeds("A100-SXM4-80GB"), a_prior("A100-80GB"), step).total_s


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
