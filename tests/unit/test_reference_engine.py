"""The reference engine of the benches, and that its fast form keeps the same schedule."""

import math
import random
from dataclasses import dataclass, replace
from functools import cached_property, partial
from statistics import mean, stdev

import numpy as np
import pytest

from reference_engine import BlockTable, EngineGroup, EngineLimits, Request, Server, simulate
from reference_fast import Drafts, FastServer, step_s

LENGTHS = np.arange(700)
LIMITS = EngineLimits(max_num_seqs=4, max_num_batched_tokens=64, num_blocks=64, max_model_len=300)
WINDOW = BlockTable(block_tokens=8, most_blocks=5)
STATE = BlockTable(state_blocks=2)


@dataclass(frozen=True)
class Figures:
    """Made up: what a token costs bends at a window, and ranks share what they decode."""

    window: float = math.inf

    def decode_s(self, num_decoding):
        return 0.01 + 0.0005 * num_decoding

    def mixed_s(self, num_decoding, prefill_tokens, own_tokens):
        return self.decode_s(num_decoding) + 1e-4 * own_tokens + 1e-5 * prefill_tokens

    @cached_property
    def attention_s(self):
        return 1e-5 * (LENGTHS / 4 + np.minimum(LENGTHS, self.window))

    @cached_property
    def prompt_attention_s(self):
        return 1e-8 * LENGTHS.astype(float) ** 2


@dataclass(frozen=True)
class Constant:
    """Every step takes a second."""

    attention_s = prompt_attention_s = 0.0 * LENGTHS

    def decode_s(self, num_decoding):
        return 1.0

    def mixed_s(self, num_decoding, prefill_tokens, own_tokens):
        return 1.0


def some_requests(chance, count=100):
    """Prompts and answers that crowd the slots, the token budget or the cache, as it falls."""
    arrival_s = 0.0
    for number in range(count):
        arrival_s += chance.expovariate(chance.choice((1, 3, 8)))
        prompt = chance.randint(1, 150)
        yield Request(
            number=number,
            prompt_tokens=prompt,
            output_tokens=chance.randint(1, 100),
            cached_tokens=chance.choice((0, 0, prompt // 2)),
            arrival_s=arrival_s,
        )


def some_limits(chance, **changes):
    return EngineLimits(
        **{
            "max_num_seqs": chance.choice((1, 2, 5, 20)),
            "max_num_batched_tokens": chance.choice((20, 64, 300)),
            "num_blocks": chance.choice((20, 40, 200)),
            "max_model_len": 300,
            **changes,
        }
    )


def served_by(server, requests):
    for request in requests:
        server.submit(request)
    server.advance(math.inf)
    return server.completed


def assert_same(fast, slow):
    expected = {each.request.number: each for each in slow}

    assert len(fast) == len(slow)
    for served in fast:
        other = expected[served.request.number]
        assert served.num_preemptions == other.num_preemptions
        for name in ("started_s", "first_token_s", "ended_s"):
            one, two = getattr(served, name), getattr(other, name)
            assert math.isclose(one, two, rel_tol=1e-9, abs_tol=1e-9)


@pytest.mark.parametrize("seed", range(12))
def test_every_request_gets_its_tokens_at_the_same_time_from_both(seed):
    chance, figures = random.Random(seed), Figures()  # noqa: S311 -- a scenario has no secrets
    limits, requests = some_limits(chance), list(some_requests(chance))

    slow = simulate(EngineGroup(limits, partial(step_s, figures)), requests)

    assert_same(served_by(FastServer(limits, figures), requests), slow)


@pytest.mark.parametrize("seed", range(12))
def test_so_do_drafts_windows_and_states(seed):
    chance, figures = random.Random(seed), Figures(window=60)  # noqa: S311
    tables = ((BlockTable(), WINDOW), (BlockTable(), STATE), (WINDOW,))[seed % 3]
    limits = some_limits(
        chance,
        max_num_seqs=chance.choice((1, 3, 5)),
        num_draft_tokens=seed % 4,
        num_blocks=60,
        tables=tables,
    )
    drafts = Drafts(limits.num_draft_tokens, 0.7, seed)
    requests = list(some_requests(chance))

    group = EngineGroup(limits, partial(step_s, figures), accepted=drafts.accepted)
    fast = FastServer(limits, figures, drafts=drafts if seed % 4 else None)

    assert_same(served_by(fast, requests), simulate(group, requests))


@pytest.mark.parametrize("seed", range(6))
def test_so_do_ranks_in_lock_step(seed):
    chance, figures = random.Random(seed), Figures()  # noqa: S311
    limits = some_limits(chance, num_draft_tokens=seed % 2, max_num_seqs=1 + seed)
    drafts = Drafts(1, 0.7) if seed % 2 else None
    requests = [replace(each, arrival_s=each.arrival_s / 3) for each in some_requests(chance, 200)]

    group = EngineGroup(
        limits,
        partial(step_s, figures),
        num_ranks=3,
        accepted=drafts.accepted if drafts else lambda _, __: 0,
    )
    fast = FastServer(limits, figures, num_ranks=3, drafts=drafts)

    assert_same(served_by(fast, requests), simulate(group, requests))


def test_some_of_these_requests_are_preempted():
    limits = replace(LIMITS, max_num_seqs=20, num_blocks=20)

    served = served_by(FastServer(limits, Figures()), some_requests(random.Random(0)))  # noqa: S311

    assert sum(each.num_preemptions for each in served) > 10


def test_both_run_on_when_the_arrays_are_full():
    limits = replace(LIMITS, max_model_len=200)
    requests = list(some_requests(random.Random(1), 800))  # noqa: S311
    figures = Figures()
    requests = [replace(each, prompt_tokens=1, cached_tokens=0) for each in requests]

    slow = simulate(EngineGroup(limits, partial(step_s, figures)), requests)

    assert_same(served_by(FastServer(limits, figures), requests), slow)


def test_what_is_outstanding_between_arrivals_is_the_same_in_both():
    figures, requests = Figures(), list(some_requests(random.Random(2)))  # noqa: S311
    fast = FastServer(LIMITS, figures)
    slow = Server(EngineGroup(LIMITS, partial(step_s, figures)))
    seen = []
    for request in requests:
        for server in (fast, slow):
            server.submit(request)
        seen.append((fast.num_outstanding, slow.num_outstanding))

    assert all(one == two for one, two in seen)
    assert len(set(seen)) > 5


@pytest.mark.parametrize("share", [0.3, 0.5, 0.8])
@pytest.mark.parametrize(
    "one_at_a_time",
    [{"max_num_seqs": 1}, {"max_num_seqs": 8, "max_num_batched_tokens": 60}],
    ids=["one slot", "prompts that fill a step"],
)
def test_requests_served_one_by_one_wait_as_behind_one_server(share, one_at_a_time):
    chance = random.Random(f"{share}")  # noqa: S311 -- a scenario has no secrets
    arrival_s, requests = 0.0, []
    for number in range(20_000):
        arrival_s += chance.expovariate(share)
        requests.append(
            Request(number=number, prompt_tokens=60, output_tokens=1, arrival_s=arrival_s)
        )

    served = served_by(FastServer(replace(LIMITS, **one_at_a_time), Constant()), requests)

    waits_s = [each.queue_s for each in served]
    batches_s = [mean(waits_s[start : start + 1000]) for start in range(0, len(waits_s), 1000)]
    error_s = stdev(batches_s) / math.sqrt(len(batches_s))
    # M/D/1 with jobs of 1 s: rho / (2 (1 - rho)). Batch means give the standard error.
    expected_s = share / (2 * (1 - share))
    assert abs(mean(waits_s) - expected_s) <= 3 * error_s
    assert error_s <= 0.08 * expected_s


@pytest.mark.parametrize("output", [1, 2, 50])
def test_one_request_alone_takes_what_its_steps_add_up_to(output):
    (served,) = served_by(
        FastServer(LIMITS, Figures()),
        [Request(number=0, prompt_tokens=150, output_tokens=output, arrival_s=5.0)],
    )

    # Chunks of 64, 64 and 22; then one step for each later token, over 151, 152, ... tokens.
    prefill_s = 3 * 0.01 + 150 * 1.1e-4 + 1e-8 * 150**2
    later_s = sum(0.0105 + 1.25e-5 * (150 + number) for number in range(1, output))
    assert served.ttft_s == pytest.approx(prefill_s)
    assert served.e2e_s == pytest.approx(prefill_s + later_s)


def test_the_newest_is_preempted_when_blocks_run_out_and_recomputed_from_the_start():
    # 4 blocks of 4 tokens; two prompts of 8 fill them, so the first decode finds no block.
    limits = replace(LIMITS, num_blocks=4, tables=(BlockTable(block_tokens=4),), max_model_len=16)
    group = EngineGroup(limits, lambda _: 1.0)
    for number in (1, 2):
        group.submit(Request(number=number, prompt_tokens=8, output_tokens=4))

    results = []
    while not group.idle:
        results.append(group.step())

    assert results[1].preempted == (2,)
    assert [each.emitted for each in results] == [(1, 2), (1,), (1,), (1,), (2,), (2,), (2,)]


def test_a_step_emits_the_drafts_that_were_right_and_one_but_none_beyond_the_answer():
    limits = replace(LIMITS, num_draft_tokens=3)
    group = EngineGroup(limits, lambda _: 1.0, accepted=lambda number, steps: (3, 0, 2)[steps])
    group.submit(Request(number=7, prompt_tokens=8, output_tokens=8))

    emitted = []
    while not group.idle:
        emitted.append(len(group.step().emitted))

    assert emitted == [1, 4, 1, 2]


def test_drafts_are_right_as_often_as_asked_and_the_same_for_all_who_ask():
    drafts = Drafts(3, 0.8)
    seen = [drafts.accepted(number, step) for number in range(500) for step in range(100)]

    assert mean(seen) == pytest.approx(0.8 + 0.8**2 + 0.8**3, rel=0.02)
    assert list(drafts.of_steps(4, 10, 5)) == [drafts.accepted(4, 10 + step) for step in range(5)]


def test_a_window_keeps_its_blocks_and_a_state_its_own():
    limits = replace(LIMITS, tables=(BlockTable(), WINDOW, STATE))

    assert [limits.blocks_for(tokens) for tokens in (16, 17, 40, 300)] == [5, 7, 10, 26]
