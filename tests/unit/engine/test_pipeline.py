"""Pipelines: the engine's rounds beside an engine of single microbatches and stages."""

import itertools
import math
import random
from dataclasses import replace
from statistics import quantiles

import pytest
from hypothesis import given
from hypothesis import strategies as st

import reference_pipeline
from builders import a_replica, a_shard, a_workload
from reference_engine import Request
from tonnage.engine.core import Engine
from tonnage.engine.table import RequestTable
from tonnage.sizing.serving.load_line import top_requests_per_s
from tonnage.sizing.serving.replica import own_prefill_s, steady_state
from tonnage.sizing.serving.trial import Trial, engine_costs, engine_limits
from tonnage.sizing.split import Parallelism
from tonnage.sizing.workload import Lengths, Slo

PEAK = 1000e12
FLOP_PER_TOKEN = 16e9
STAGES = (1, 2, 4, 8)


def staged(stages, **changes):
    """A model of 16 GFLOP a token and 16 GB on as many GPUs as stages; nothing overlaps."""
    whole = a_shard()
    shard = replace(
        whole,
        parallelism=Parallelism(pipeline=stages),
        weights_bytes=whole.weights_bytes / stages,
        dense_read_bytes=whole.dense_read_bytes / stages,
        kv=tuple(replace(k, bytes_per_token=k.bytes_per_token / stages) for k in whole.kv),
        flop_per_token=FLOP_PER_TOKEN / stages,
    )
    return a_replica(**{"shard": shard, "max_num_seqs": 64, "kv_pool_bytes": 80e9} | changes)


def engine_of(replica, requests):
    columns = ("prompt_tokens", "output_tokens", "cached_tokens", "arrival_s")
    table = RequestTable(*([getattr(each, name) for each in requests] for name in columns))
    trial = Trial(replica=replica, workload=a_workload(), slo=Slo(), context_tokens=65_536)
    limits = engine_limits(trial)
    return Engine(limits, engine_costs(replica, limits.max_num_seqs), table)


def served(replica, requests):
    """TTFT and TPOT of requests, in their order."""
    engine = engine_of(replica, requests)
    for number in range(len(requests)):
        engine.advance(engine.table.arrival_s[number])
        engine.submit(number)
    engine.advance(math.inf)
    return engine.table.latencies_s(range(len(requests)))


def at_once(*prompts, output_tokens=1):
    pairs = enumerate(prompts)
    return [Request(number=n, prompt_tokens=p, output_tokens=output_tokens) for n, p in pairs]


def alone_s(replica, prompt_tokens):
    workload = a_workload(prompt=Lengths(mean_tokens=prompt_tokens))
    idle = steady_state(replica, workload, 1e-6)
    return own_prefill_s(replica, workload, idle, prompt_tokens)


prompts = st.integers(1, 60_000)
budgets = st.sampled_from([512, 2048, 8192, 32_768])


@given(st.sampled_from(STAGES), prompts, budgets)
def test_a_first_token_comes_no_earlier_than_the_peak_of_the_stages_allows(stages, prompt, budget):
    replica = staged(stages, max_batched_tokens=budget)
    chunks = math.ceil(prompt / budget)
    one_after_the_other_s = prompt * FLOP_PER_TOKEN / PEAK
    floor_s = one_after_the_other_s * (chunks + stages - 1) / (chunks * stages)

    [ttft_s], _ = served(replica, at_once(prompt))

    assert alone_s(replica, prompt) >= floor_s * (1 - 1e-9)
    # Its last chunk may be short; those before it are not.
    is_even = chunks == 1 or prompt % budget == 0
    assert ttft_s >= (1 if is_even else 0.9) * floor_s * (1 - 1e-9)


@given(st.sampled_from(STAGES), prompts, budgets)
def test_one_prompt_alone_takes_what_single_stages_take(stages, prompt, budget):
    replica, requests = staged(stages, max_batched_tokens=budget), at_once(prompt)

    [ttft_s], _ = served(replica, requests)
    [reference] = reference_pipeline.serve(replica, requests)

    assert ttft_s == pytest.approx(reference.ttft_s, rel=0.03)


def test_a_chunk_passes_all_stages_in_turn():
    # 8,000 tokens of 16 GFLOP at 1,000 TFLOP/s are 128 ms on as many GPUs as there are.
    alone = [alone_s(staged(stages), 8000) for stages in STAGES]

    assert all(each_s > 0.128 for each_s in alone)
    assert alone[-1] == pytest.approx(alone[0], rel=0.01)


def test_chunks_of_one_prompt_follow_each_other():
    # Four chunks through four stages: 7 stages of 8 ms, and the weights, in place of 16.
    [ttft_s], _ = served(staged(4, max_batched_tokens=2000), at_once(8000))

    assert ttft_s == pytest.approx(7 / 16 * served(staged(4), at_once(8000))[0][0], rel=0.15)


def test_what_is_in_the_next_microbatch_ends_a_stage_later():
    replica = staged(4, max_batched_tokens=2000)

    first_s, second_s = served(replica, at_once(2000, 2000))[0]

    assert second_s == pytest.approx(first_s * 5 / 4)


def test_a_short_prompt_behind_a_long_one_waits_for_it_in_every_stage():
    replica = staged(4, max_batched_tokens=2000)
    requests = at_once(8000, 20)

    long_s, short_s = served(replica, requests)[0]
    references = reference_pipeline.serve(replica, requests)

    assert short_s > long_s
    assert short_s == pytest.approx(references[1].ttft_s, rel=0.15)


def test_a_full_pipeline_serves_as_many_times_the_requests_as_it_has_stages():
    workload = a_workload(prompt=Lengths(mean_tokens=8000), output_tokens=20)
    one, four = (
        top_requests_per_s(staged(stages, max_batched_tokens=2048), workload) for stages in (1, 4)
    )

    assert 0.9 <= four / (4 * one) <= 1.1


def draws(replica, prompt_tokens, output_tokens, share, count=800):
    """Requests at random, at a share of what the replica serves at most."""
    workload = a_workload(prompt=Lengths(mean_tokens=prompt_tokens), output_tokens=output_tokens)
    chance, at_s = random.Random(1), 0.0  # noqa: S311
    rate = share * top_requests_per_s(replica, workload)
    requests = []
    for number in range(count):
        at_s += chance.expovariate(rate)
        prompt = int(prompt_tokens * chance.uniform(0.5, 1.5))
        output = 1 + int(chance.expovariate(1 / output_tokens))
        requests.append(
            Request(number=number, prompt_tokens=prompt, output_tokens=output, arrival_s=at_s)
        )
    return requests


LOADS = list(itertools.product((2, 4), ((1000, 300), (8000, 20), (8000, 300)), (0.1, 0.5)))


@pytest.mark.parametrize(("stages", "lengths", "share"), LOADS)
def test_under_load_it_is_near_single_microbatches_and_rather_slower(stages, lengths, share):
    """A prompt waits for the round, not for the next microbatch: at most half a round more."""
    replica = staged(stages, max_batched_tokens=2048)
    requests = draws(replica, *lengths, share)

    ttft_s, tpot_s = served(replica, requests)
    references = reference_pipeline.serve(replica, requests)

    medians = [quantiles(each)[1] for each in (ttft_s, [gap_s for gap_s in tpot_s if gap_s])]
    expected = [
        quantiles(each.ttft_s for each in references)[1],
        quantiles(each.tpot_s for each in references if each.tpot_s)[1],
    ]
    for found_s, expected_s in zip(medians, expected, strict=True):
        assert 0.9 <= found_s / expected_s <= 1.5
