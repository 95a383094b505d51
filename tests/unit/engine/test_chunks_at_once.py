"""Prompts of many chunks, taken at once beside those that decode: as if taken one chunk at a time.

The engine that is compared with is made of the sources; it is told to take one step at a time, or
one where a prompt has a chunk in it.
"""

import random
from contextlib import ExitStack

import pytest

from engine_builders import costs, limits, stepped, table, windowed
from tonnage.engine.core import Engine
from tonnage.replay.prometheus import EngineCounters, Ladders
from uncompiled import sources_beside

LADDERS = Ladders(ttft_s=(1.0, 5.0), tpot_s=(0.02, 0.05))
PRICES = {"per_sequence_s": 5e-4, "kv_s_per_token": 1e-6, "prefill_s_per_token": 1e-4}
VARIANTS = {
    "plain": (costs(0.01, **PRICES), {}),
    "attention of prompts": (windowed(700, per_step_s=0.01, **PRICES), {}),
    "reads and work": (windowed(300, compute=(0.012, 2e-6), per_step_s=0.01, **PRICES), {}),
    "drafts": (
        windowed(700, per_step_s=0.01, **PRICES),
        {"num_draft_tokens": 2, "acceptance_rate": 0.6},
    ),
    "tables of windows": (
        costs(0.01, **PRICES),
        {"num_tables": 3, "window_tables": 2, "window_blocks": 6},
    ),
    "ranks": (windowed(700, compute=(0.0, 2e-6), per_step_s=0.01, **PRICES), {"num_ranks": 3}),
}
SEEDS = range(8)
TIMES = ("started_s", "first_token_s", "ended_s")
COUNTS = ("num_steps", "peak_running")
SUMS = ("now_s", "busy_s", "decoding_s", "full_s")


def long_prompts(seed, *, count=40, pools=(3600, 16_000)):
    """Return limits and requests (arrival, prompt, output, cached) that crowd slots or blocks.

    ``pools``: of as many tokens the cache has room.
    """
    chance = random.Random(seed)  # noqa: S311 -- a scenario has no secrets
    figures = {
        "max_num_seqs": chance.choice((1, 3, 8)),
        "max_num_batched_tokens": chance.choice((24, 50, 128)),
        "block_size": chance.choice((4, 16)),
        "max_model_len": 1600,
    }
    figures["num_blocks"] = chance.choice(pools) // figures["block_size"]
    arrival_s, rows, gap_s = 0.0, [], chance.choice((0.02, 0.3, 1.0))
    for _ in range(count):
        arrival_s += chance.expovariate(1 / gap_s)
        prompt, output = chance.randint(1, 1400), chance.randint(1, 150)
        rows.append((arrival_s, prompt, output, chance.choice((0, 0, prompt // 3))))
    return figures, rows


def tight(seed):
    """Return the same with a cache that holds little more than the longest request."""
    return long_prompts(seed, pools=(1800,))


def one_by_one(modules, *, only_chunks):
    """Return the engine of the sources, that takes a step at a time; or one with a chunk in it."""

    class OneByOne(modules["core"].Engine):
        def _begin(self, is_single):
            super()._begin(is_single or not only_chunks)

        def _alike(self, line, num_decoding):
            if any(rank.partial >= 0 for rank in self.ranks):
                return 1
            return super()._alike(line, num_decoding)

    return OneByOne


class Served:
    """An engine that is given its requests when they arrive, looked at from time to time."""

    def __init__(self, kind, case, prices, requests, **changes):
        figures, self.rows = case
        self.limits = limits(**{**figures, **changes})
        self.engine, self.sent = kind(self.limits, prices, requests), 0

    def until(self, at_s):
        while self.sent < len(self.rows) and self.rows[self.sent][0] < at_s:
            self.engine.advance(self.rows[self.sent][0])
            self.engine.submit(self.sent)
            self.sent += 1
        self.engine.advance(at_s)
        return self.engine


def pair(case, variant, stack, *, only_chunks=False):
    """Return the same requests served by the engine as it is, and by one that is held back."""
    prices, changes = VARIANTS[variant]
    case[0]["max_num_batched_tokens"] += case[0]["max_num_seqs"]
    modules = stack.enter_context(sources_beside())
    rows = table(*case[1])
    columns = (rows.prompt_tokens, rows.output_tokens, rows.cached_tokens, rows.arrival_s)
    requests = modules["table"].RequestTable(*columns)
    slow = one_by_one(modules, only_chunks=only_chunks)
    return (
        Served(Engine, case, prices, rows, **changes),
        Served(slow, case, prices, requests, **changes),
    )


def figures_of(engine, names):
    return [getattr(engine, name) for name in names]


@pytest.fixture
def stack():
    with ExitStack() as opened:
        yield opened


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("case", [long_prompts, tight])
def test_requests_are_served_as_one_step_at_a_time(case, variant, stack):
    for seed in SEEDS:
        fast, slow = (each.until(float("inf")) for each in pair(case(seed), variant, stack))

        assert figures_of(fast, COUNTS) == figures_of(slow, COUNTS)
        assert list(fast.table.preemptions) == list(slow.table.preemptions)
        assert figures_of(fast, SUMS) == pytest.approx(figures_of(slow, SUMS), rel=1e-9)
        for column in TIMES:
            expected_s = list(getattr(slow.table, column))
            assert list(getattr(fast.table, column)) == pytest.approx(expected_s, rel=1e-9)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("case", [long_prompts, tight])
def test_the_cache_is_as_full_in_the_mean_over_time(case, variant, stack):
    for seed in SEEDS:
        served = pair(case(seed), variant, stack, only_chunks=True)
        fast, slow = (each.until(float("inf")) for each in served)

        assert fast.context_s == pytest.approx(slow.context_s, rel=1e-9)


def test_some_of_these_requests_are_preempted_in_the_middle_of_their_prompts():
    decoding = chunking = 0
    for seed in range(16):
        figures, rows = long_prompts(seed, count=200, pools=(1800,))
        the_limits = limits(**figures)
        engine = Engine(the_limits, VARIANTS["plain"][0], table(*rows), is_logged=True)
        partial = -1
        for _ in stepped(engine):
            (rank,) = engine.ranks
            chunking += partial in rank.preempted
            decoding += len(set(rank.preempted) - {partial})
            partial = rank.partial

    assert decoding > 5
    assert chunking > 5


def test_a_long_prompt_takes_few_turns_of_the_loop():
    rows = table((0.0, 100, 1000), (0.5, 20_000, 2))
    prices = windowed(10_000, per_step_s=0.01, **PRICES)
    engine = Engine(limits(max_model_len=30_000, num_blocks=2000), prices, rows)
    engine.submit(0)
    engine.advance(0.5)
    engine.submit(1)
    turns = 0
    while not rows.first_token_s[1]:
        engine.advance(engine.ends_s)
        turns += 1

    # 63 tokens of it a step, beside the one that decodes: once to its knot, once to its end.
    assert engine.num_steps > 20_000 / 63
    assert turns < 10


def test_an_arrival_ends_the_jump_of_a_prompt_on_another_rank_only():
    rows = table((0.0, 1280, 2), (0.0, 10, 400), (0.5, 10, 1), (0.6, 10, 1))
    prices = costs(0.1, prefill_s_per_token=1e-3)
    engine = Engine(limits(num_ranks=2, num_blocks=200, max_model_len=2000), prices, rows)
    ends_s = []
    for number, arrival_s in enumerate(rows.arrival_s):
        engine.advance(arrival_s)
        engine.submit(number)
        ends_s.append(engine.ends_s)
    engine.advance(float("inf"))

    # 64 tokens of the prompt a step, and 10 of the other rank's in the first: 0.174 s, then 0.164.
    assert ends_s[2:] == pytest.approx([0.174 + 18 * 0.164, 0.174 + 3 * 0.164])
    assert rows.started_s[3] == ends_s[3]
    assert rows.started_s[2] == pytest.approx(0.174 + 2 * 0.164 + 0.174 + 16 * 0.164)


@pytest.mark.parametrize("variant", ["plain", "attention of prompts", "tables of windows"])
@pytest.mark.parametrize("case", [long_prompts, tight])
def test_pages_in_the_middle_show_what_they_do_one_step_at_a_time(case, variant, stack):
    num_chunking = 0
    for seed in SEEDS:
        served, chance = pair(case(seed), variant, stack), random.Random(seed)  # noqa: S311
        counters = [
            EngineCounters(
                each.engine, each.limits, model_name="m", kv_tokens=1600, ladders=LADDERS
            )
            for each in served
        ]
        noted, at_s = 0, 0.0
        while served[1].engine.num_outstanding or not at_s:
            at_s += chance.expovariate(2.0)
            fast, _ = (each.until(at_s) for each in served)
            for number in range(noted, served[0].sent):
                for each in counters:
                    each.note_request(number)
            noted = served[0].sent
            num_chunking += fast.ended(at_s) > 0 and fast.ranks[0].partial >= 0
            found, expected = (each.page(at_s) for each in counters)
            assert found == pytest.approx(expected, rel=1e-6, abs=1e-9)

    assert num_chunking > 50
