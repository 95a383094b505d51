"""The fast engine of the benches keeps the schedule of the engine model."""

import math
import random

import pytest
from coasting import CoastingEngine

from tonnage.engine import Engine, EngineLimits, Request, simulate


def step_time(num_decoding, context_tokens, prefill_tokens):
    return 0.01 + 0.0005 * num_decoding + 1e-5 * context_tokens + 1e-4 * prefill_tokens


def some_requests(chance):
    """Prompts and answers that crowd the slots, the token budget or the cache, as it falls."""
    arrival_s = 0.0
    for number in range(150):
        arrival_s += chance.expovariate(chance.choice((1, 3, 8)))
        yield Request(
            id=str(number),
            prompt_tokens=chance.randint(1, 150),
            output_tokens=chance.randint(1, 100),
            arrival_s=arrival_s,
        )


@pytest.mark.parametrize("seed", range(24))
def test_every_request_gets_its_tokens_when_the_engine_model_says(seed):
    chance = random.Random(seed)  # noqa: S311 -- a scenario has no secrets
    limits = EngineLimits(
        max_num_seqs=chance.choice((2, 5, 20)),
        max_num_batched_tokens=chance.choice((20, 64, 300)),
        num_blocks=chance.choice((20, 40, 200)),
        block_size=16,
        max_model_len=300,
    )
    requests = list(some_requests(chance))
    expected = {each.id: each for each in simulate(Engine(limits, step_time), requests)}

    engine = CoastingEngine(limits, lambda n, c, p, _: step_time(n, c, p))
    for request in requests:
        engine.submit(request)
    engine.advance(1e9)

    assert len(engine.completed) == len(expected)
    for served in engine.completed:
        other = expected[served.request.id]
        assert math.isclose(served.ttft_s, other.ttft_s, rel_tol=1e-9, abs_tol=1e-9)
        assert math.isclose(served.ended_s - other.arrival_s, other.e2e_s, rel_tol=1e-9)
        assert served.num_preemptions == other.num_preemptions


def test_some_of_these_requests_are_preempted():
    chance = random.Random(0)  # noqa: S311 -- a scenario has no secrets
    limits = EngineLimits(
        max_num_seqs=20, max_num_batched_tokens=64, num_blocks=20, block_size=16, max_model_len=300
    )

    engine = CoastingEngine(limits, lambda n, c, p, _: step_time(n, c, p))
    for request in some_requests(chance):
        engine.submit(request)
    engine.advance(1e9)

    assert sum(served.num_preemptions for served in engine.completed) > 20


@pytest.mark.parametrize(
    ("share", "mean_wait_s"),
    [(0.3, 0.2143), (0.5, 0.5), (0.8, 2.0)],  # M/D/1 of 1 s: rho / (2 (1 - rho))
)
def test_prompts_of_one_length_and_one_token_wait_as_behind_one_server(share, mean_wait_s):
    limits = EngineLimits(
        max_num_seqs=1, max_num_batched_tokens=64, num_blocks=4, block_size=16, max_model_len=64
    )
    chance = random.Random(1)  # noqa: S311 -- a scenario has no secrets
    engine, arrival_s = CoastingEngine(limits, lambda n, c, p, _: 1.0), 0.0
    for number in range(60_000):
        arrival_s += chance.expovariate(share)
        engine.submit(
            Request(id=str(number), prompt_tokens=60, output_tokens=1, arrival_s=arrival_s)
        )
    engine.advance(math.inf if engine.num_outstanding == 0 else arrival_s + 1e6)

    waits_s = [served.ttft_s - 1.0 for served in engine.completed]
    assert sum(waits_s) / len(waits_s) == pytest.approx(mean_wait_s, rel=0.05)


@pytest.mark.parametrize("output", [1, 2, 50])
def test_a_request_alone_takes_what_the_formula_adds_up_to(output):
    limits = EngineLimits(
        max_num_seqs=4, max_num_batched_tokens=64, num_blocks=64, block_size=16, max_model_len=512
    )
    engine = CoastingEngine(limits, lambda n, c, p, _: step_time(n, c, p))
    engine.submit(Request(id="one", prompt_tokens=150, output_tokens=output))
    engine.advance(1e9)

    (served,) = engine.completed
    # Chunks of 64, 64 and 22; then one step for each later token, over 151, 152, ... tokens.
    prefill_s = 3 * 0.01 + 150 * 1e-4
    later_s = sum(0.01 + 0.0005 + 1e-5 * (150 + k) for k in range(1, output))
    assert served.ttft_s == pytest.approx(prefill_s)
    assert served.ended_s == pytest.approx(prefill_s + later_s)
