"""The schedule: what one step does, what it must never do, and many steps at once."""

import math
import random
from itertools import chain
from statistics import mean, stdev

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_builders import advanced, an_engine, costs, crowded, limits, stepped, table, windowed
from tonnage.engine.core import Engine
from tonnage.engine.limits import LimitsError


def run_to_the_end(engine):
    """Return (started, emitting, preempted) of each step of the first rank."""
    (rank,), events = engine.ranks, []
    while engine.num_outstanding:
        engine.step()
        events.append((rank.started, rank.emitting(), rank.preempted))
    return events


def ends_s(engine):
    return list(engine.table.ended_s)


# One request alone, and one after the other


@pytest.mark.parametrize(
    ("prompt", "output", "steps"),
    [
        (64, 1, 1),  # the step that ends the prefill emits the first token
        (64, 5, 1 + 4),
        (65, 5, 2 + 4),  # 64 + 1
        (200, 10, 4 + 9),  # 64 + 64 + 64 + 8
    ],
)
def test_one_request_alone_takes_its_prefill_chunks_and_one_step_for_each_later_token(
    prompt, output, steps
):
    engine = advanced(Engine(limits(), costs(0.01), table((0, prompt, output))))

    assert ends_s(engine) == [pytest.approx(steps * 0.01)]
    assert engine.table.first_token_s[0] == pytest.approx(math.ceil(prompt / 64) * 0.01)
    assert engine.num_steps == steps


@pytest.mark.parametrize("output", [1, 2, 50])
def test_one_request_alone_takes_exactly_what_its_steps_add_up_to(output):
    prices = costs(10, per_sequence_s=1, kv_s_per_token=1 / 8, prefill_s_per_token=1 / 4)

    engine = advanced(Engine(limits(), prices, table((0, 150, output))))

    # Chunks of 64, 64 and 22; then one step for each later token, over 151, 152, ... tokens.
    first_s = 3 * 10 + 150 / 4
    later_s = sum(10 + 1 + (150 + number) / 8 for number in range(1, output))
    assert engine.table.first_token_s[0] == first_s
    assert ends_s(engine) == [first_s + later_s]


@pytest.mark.parametrize(
    ("share", "one_at_a_time"),
    [
        (0.3, {"max_num_seqs": 1}),
        (0.5, {"max_num_seqs": 8, "max_num_batched_tokens": 60}),  # prompts that fill a step
        (0.8, {"max_num_seqs": 1}),
    ],
)
def test_requests_served_one_by_one_wait_as_behind_one_server(share, one_at_a_time):
    chance = random.Random(f"{share}")  # noqa: S311 -- a scenario has no secrets
    arrival_s, rows = 0.0, []
    for _ in range(40_000):
        arrival_s += chance.expovariate(share)
        rows.append((arrival_s, 60, 1))

    served = advanced(Engine(limits(**one_at_a_time), costs(1.0), table(*rows))).table

    waits_s = [
        start - arrival for start, arrival in zip(served.started_s, served.arrival_s, strict=True)
    ]
    batches_s = [mean(waits_s[start : start + 1000]) for start in range(0, len(waits_s), 1000)]
    error_s = stdev(batches_s) / math.sqrt(len(batches_s))
    # M/D/1 with jobs of 1 s: rho / (2 (1 - rho)). Batch means give the standard error.
    expected_s = share / (2 * (1 - share))
    assert abs(mean(waits_s) - expected_s) <= 3 * error_s
    assert error_s <= 0.04 * expected_s


def test_a_request_that_arrives_during_a_step_waits_for_its_end():
    served = advanced(Engine(limits(), costs(1.0), table((0, 16, 3), (0.25, 16, 1)))).table

    assert list(served.started_s) == [0, 1.0]
    assert list(served.ended_s) == [3.0, 2.0]


def test_a_request_that_arrives_while_many_steps_are_taken_at_once_waits_for_the_end_of_one():
    rows = table((0, 16, 100), (40.25, 16, 1))
    served = advanced(Engine(limits(), costs(1.0), rows)).table

    assert list(served.started_s) == [0, 41.0]
    assert list(served.ended_s) == [100.0, 42.0]


def test_time_jumps_over_an_idle_gap():
    engine = advanced(Engine(limits(), costs(1.0), table((0, 16, 1), (100.0, 16, 1))))

    assert ends_s(engine) == [1.0, 101.0]
    assert engine.busy_s == 2.0


# A step


def test_a_step_costs_what_the_costs_say_for_its_decodes_context_and_prefill():
    prices = costs(0, per_sequence_s=1e6, kv_s_per_token=1, prefill_s_per_token=1e3)
    engine = Engine(limits(), prices, table((0, 10, 3), (0, 20, 1)))
    engine.submit(0)
    steps_s = [engine.step()]
    engine.submit(1)
    steps_s += [engine.step(), engine.step()]

    assert steps_s == [10e3, 1e6 + 11 + 20e3, 1e6 + 12]
    assert engine.num_outstanding == 0


def test_decodes_come_before_prefill_and_both_stay_within_the_token_budget():
    rows = table((0, 2, 9), (0, 2, 9), (0, 2, 9), (0, 40, 1))
    engine = Engine(limits(max_num_batched_tokens=8), costs(), rows, is_logged=True)
    (rank,) = engine.ranks
    for number in range(3):
        engine.submit(number)
    engine.step()
    engine.submit(3)
    engine.step()

    assert (rank.num_decoding, rank.prefill_tokens) == (3, 5)
    assert rank.emitting() == [0, 1, 2]


def test_no_more_than_max_num_seqs_run_and_the_rest_waits():
    engine = an_engine(table(*[(0, 16, 4)] * 3), max_num_seqs=2)
    (rank,) = engine.ranks
    engine.step()

    assert (rank.num_running, len(rank.waiting)) == (2, 1)


def test_the_first_in_the_queue_is_not_overtaken_by_a_smaller_one_that_would_fit():
    # 10 of 16 blocks, 7 blocks, and 1.
    rows = table((0, 160, 8), (0, 112, 8), (0, 16, 8))
    engine = an_engine(rows, num_blocks=16, max_num_batched_tokens=256)
    (rank,) = engine.ranks
    engine.step()

    assert rank.started == [0]
    assert list(rank.waiting) == [1, 2]


def test_a_prompt_is_admitted_when_all_of_it_fits():
    rows = table((0, 32, 20), (0, 224, 2))  # 14 blocks; 13 are free beside the first
    engine = an_engine(rows, num_blocks=16, max_num_batched_tokens=32)
    engine.step()
    engine.step()

    assert engine.ranks[0].started == []


def test_the_newest_is_preempted_when_blocks_run_out_and_recomputed_from_the_start():
    # 4 blocks of 4 tokens; two prompts of 8 fill them, so the first decode finds no block.
    rows = table((0, 8, 4), (0, 8, 4))
    engine = an_engine(rows, num_blocks=4, block_size=4, max_model_len=16)
    events = run_to_the_end(engine)

    # The old one ends with its 4th token; then the new one recomputes its prompt and its token.
    assert [emitting for _, emitting, _ in events] == [[0, 1], *[[0]] * 3, *[[1]] * 3]
    assert [preempted for _, _, preempted in events] == [[], [1], *[[]] * 5]
    assert [started for started, _, _ in events] == [[0, 1], *[[]] * 6]
    assert list(rows.preemptions) == [0, 1]
    assert rows.first_token_s[1] == pytest.approx(0.01)


def test_what_is_recomputed_is_prefill():
    rows = table((0, 8, 4), (0, 8, 4))
    engine = an_engine(rows, num_blocks=4, block_size=4, max_model_len=16)
    prefill = []
    while engine.num_outstanding:
        engine.step()
        prefill.append(engine.ranks[0].prefill_tokens)

    assert prefill == [16, 0, 0, 0, 9, 0, 0]


def test_cached_prompt_tokens_hold_blocks_but_cost_no_prefill():
    engine = an_engine(table((0, 48, 2, 32)))
    (rank,) = engine.ranks
    engine.step()

    assert rank.prefill_tokens == 16
    assert rank.num_blocks - rank.free_blocks == 3


@pytest.mark.parametrize("steps", [0, 1, 2, 5], ids=["queue", "prefill", "decode", "later"])
def test_an_aborted_request_gives_its_blocks_back_wherever_it_was(steps):
    engine = an_engine(table((0, 100, 50), (0, 100, 50)), max_num_seqs=1)
    (rank,) = engine.ranks
    for _ in range(steps):
        engine.step()
    for number in (1, 0, 0):  # the second abort of one changes nothing
        engine.abort(number)

    assert engine.num_outstanding == rank.num_running == rank.num_decoding == 0
    assert rank.free_blocks == rank.num_blocks
    assert not rank.waiting
    assert rank.context_tokens == 0


def test_others_go_on_as_before_after_one_is_aborted():
    rows = table((0, 16, 20), (0, 16, 20))
    engine = an_engine(rows, costs(1.0, kv_s_per_token=1.0))
    engine.step()
    engine.step()
    engine.abort(1)

    # Prefill of two, 17 + 17; then 18, 19, ... up to its 20th token over 16 + 19.
    assert engine.step() == 1 + 18
    engine.advance(math.inf)
    assert rows.ended_s[0] == 1 + (1 + 34) + sum(1 + 16 + k for k in range(2, 20))


def test_costs_for_fewer_sequences_than_may_run_are_refused():
    with pytest.raises(LimitsError, match="told for 3 sequences, max_num_seqs is 2 on 2 ranks"):
        Engine(limits(max_num_seqs=2, num_ranks=2), costs(max_num_seqs=3), table((0, 1, 1)))


# Prices that bend


def test_context_beyond_a_window_is_charged_at_the_price_behind_its_knot():
    prices = windowed(100, per_step_s=1.0, kv_s_per_token=0.4)
    engine = advanced(Engine(limits(), prices, table((0, 90, 31))))

    # 90 tokens in chunks of 64 and 26, each with half of itself and all before it at 0.04 each;
    # then steps over 91 ... 100 tokens at 0.4 each, and over 101 ... 120, 0.1 for each above 100.
    first_s = 2 + 0.04 * (64 * 32 + 26 * (64 + 13))
    later_s = sum(1 + 0.4 * c for c in range(91, 101)) + sum(41 + 0.1 * c for c in range(1, 21))
    assert engine.table.first_token_s[0] == pytest.approx(first_s, rel=1e-12)
    assert ends_s(engine) == [pytest.approx(first_s + later_s, rel=1e-12)]


def test_pairs_beyond_a_window_are_charged_at_the_price_behind_its_knot():
    prices = windowed(50, per_step_s=1.0, kv_s_per_token=0.4)
    engine = advanced(Engine(limits(), prices, table((0, 128, 1))))

    # The second chunk's middle has 64 + 32 tokens before it: 50 at 0.04 and 46 at 0.01.
    assert ends_s(engine) == [
        pytest.approx(2 + 64 * 32 * 0.04 + 64 * (50 * 0.04 + 46 * 0.01), rel=1e-12)
    ]


def test_the_longer_of_reads_and_work_counts_in_each_step():
    # Work takes 5 s whatever the context, reads 0.1 s for each token of it: from 50 on they count.
    prices = windowed(1000, compute=(5.0, 0.0), per_step_s=1.0, kv_s_per_token=0.1)
    engine = advanced(Engine(limits(), prices, table((0, 20, 61))))

    first_s = 1 + 5 + 0.01 * 20 * 10
    later_s = sum(1 + max(5.0, 0.1 * context) for context in range(21, 81))
    assert ends_s(engine) == [pytest.approx(first_s + later_s, rel=1e-12)]


# Draft tokens


def test_where_every_draft_token_is_right_an_answer_takes_the_fewest_steps():
    rows = table((0, 16, 11))
    engine = an_engine(rows, costs(1.0), num_draft_tokens=3, acceptance_rate=1.0)
    emitted = []
    while engine.num_outstanding:
        engine.step()
        emitted.append(engine.emitted(0))

    # Ten tokens at four a step are three steps, and each gives as many: 3.33, 6.67, 10.
    assert emitted == [1, 4, 7, 11]
    assert ends_s(engine) == [4.0]


def test_where_none_is_right_a_step_gives_one_token():
    rows = [(0, 40, 30), (3, 50, 20), (4, 7, 9)]
    prices = costs(1.0, kv_s_per_token=0.01)
    plain = advanced(Engine(limits(), prices, table(*rows)))
    drafting = advanced(Engine(limits(num_draft_tokens=3), prices, table(*rows)))

    assert ends_s(drafting) == [pytest.approx(each, rel=1e-12) for each in ends_s(plain)]


@pytest.mark.parametrize(("drafted", "rate"), [(1, 0.5), (3, 0.8), (7, 0.6)])
def test_a_step_gives_as_many_tokens_as_the_acceptance_rate_says(drafted, rate):
    the_limits = limits(
        max_model_len=40_000, num_blocks=2501, num_draft_tokens=drafted, acceptance_rate=rate
    )
    engine = advanced(Engine(the_limits, costs(), table((0, 1, 30_001)), seed=3))
    found = 30_000 / (engine.num_steps - 1)

    # 1 + a + a^2 + ... up to the power of the drafts [leviathan2022]; geometric up to there.
    expected = sum(rate**power for power in range(drafted + 1))
    squares = sum((2 * power + 1) * rate**power for power in range(drafted + 1))
    error = math.sqrt((squares - expected**2) / engine.num_steps)
    assert found == pytest.approx(expected, abs=4 * error)


@pytest.mark.parametrize("rate", [0.01, 0.99])
def test_a_step_gives_a_token_at_least_and_never_more_than_are_verified(rate):
    rows = table(*[(0, 1, 120)] * 1000)
    small = limits(max_num_seqs=1, num_draft_tokens=3, acceptance_rate=rate)
    advanced(Engine(small, costs(0.01), rows))

    spans = [rows.ended_s[number] - rows.first_token_s[number] for number in range(rows.size)]
    steps = [round(span_s / 0.01) for span_s in spans]
    assert min(steps) >= math.ceil(119 / 4)
    assert max(steps) <= 119


def test_draft_tokens_take_from_the_token_budget_and_need_blocks():
    # Two that decode have 4 tokens each verified; none is right, so in each of their 8 steps each
    # grows by an eighth of the second block that it needs. 24 tokens of the third's prompt take two
    # blocks.
    rows = table((0, 16, 9), (0, 16, 9), (0, 40, 1))
    engine = Engine(limits(max_num_batched_tokens=32, num_draft_tokens=3), costs(), rows)
    (rank,) = engine.ranks
    engine.submit(0)
    engine.submit(1)
    engine.step()
    engine.submit(2)
    engine.step()

    assert (rank.decode_tokens, rank.prefill_tokens) == (8, 24)
    assert rank.num_blocks - rank.free_blocks == 2 * (1 + 1 / 8) + 2


# Laws

arrivals = st.lists(
    st.tuples(st.floats(0, 0.1), st.integers(1, 60), st.integers(1, 40)), min_size=1, max_size=25
)
small_limits = st.builds(
    limits,
    max_num_seqs=st.integers(1, 8),
    max_num_batched_tokens=st.integers(40, 64),
    num_blocks=st.integers(53, 90),
    block_size=st.sampled_from([4, 8]),
    max_model_len=st.just(100),
    num_draft_tokens=st.sampled_from([0, 0, 1, 4]),
    acceptance_rate=st.sampled_from([0.0, 0.5, 1.0]),
    num_ranks=st.integers(1, 3),
    num_tables=st.sampled_from([0, 1, 1, 2]),
    fixed_blocks=st.sampled_from([0, 3]),
)


def as_table(gaps):
    now_s, rows = 0.0, []
    for gap_s, prompt, output in gaps:
        now_s += gap_s
        rows.append((now_s, prompt, output))
    return table(*rows)


def blocks_held(engine, the_limits, number):
    """Blocks of a request: of all its tokens that are known but the last one."""
    requests = engine.table
    if requests.ended_s[number] or not any(number in rank.order for rank in engine.ranks):
        return 0
    if number not in [n for rank in engine.ranks for n in rank.decoding()]:
        return the_limits.blocks_for(requests.computed[number])
    if the_limits.num_draft_tokens:  # grows evenly to what it holds at its end
        begun = the_limits.blocks_for(requests.computed[number])
        end = the_limits.blocks_for(
            requests.prompt_tokens[number] + requests.output_tokens[number] - 1
        )
        first, last = requests.start_step[number], requests.finish_step[number] + 1
        return begun + (end - begun) * (engine.step_number - first) / (last - first)
    return the_limits.blocks_for(requests.prompt_tokens[number] + engine.emitted(number) - 1)


@given(small_limits, arrivals)
def test_blocks_are_conserved_and_every_step_keeps_its_limits(the_limits, gaps):
    requests = as_table(gaps)
    engine = Engine(the_limits, costs(), requests, is_logged=True)
    for _ in stepped(engine):
        used = sum(rank.num_blocks - rank.free_blocks for rank in engine.ranks)
        held = [blocks_held(engine, the_limits, number) for number in range(requests.size)]

        assert used == pytest.approx(sum(held), abs=1e-9)
        for rank in engine.ranks:
            assert rank.free_blocks >= -1e-9
            assert rank.num_running <= the_limits.max_num_seqs
            assert rank.decode_tokens + rank.prefill_tokens <= the_limits.max_num_batched_tokens
            decoding = rank.decoding()
            assert rank.num_decoding == len(decoding)
            context = sum(
                requests.prompt_tokens[number] + engine.emitted(number) for number in decoding
            )
            parts = len(decoding) * (the_limits.num_draft_tokens > 0)  # of a token are not emitted
            assert context - 1e-9 <= rank.context_tokens <= context + parts + 1e-9
    for rank in engine.ranks:
        assert rank.free_blocks == pytest.approx(rank.num_blocks, abs=1e-9)


@given(small_limits, arrivals)
def test_every_request_ends_once_with_all_its_tokens(the_limits, gaps):
    requests = as_table(gaps)
    finished, emitted = [], [0] * requests.size
    engine = Engine(the_limits, costs(), requests, is_logged=True)
    for _ in stepped(engine):
        for rank in engine.ranks:
            for number in rank.emitting():
                got = engine.emitted(number) - emitted[number]
                assert got > 0
                emitted[number] = engine.emitted(number)
            finished += rank.finished

    assert sorted(finished) == list(range(requests.size))
    assert emitted == list(requests.output_tokens)


@given(small_limits, arrivals)
def test_on_a_rank_those_who_come_first_start_first(the_limits, gaps):
    requests = as_table(gaps)
    engine = Engine(the_limits, costs(), requests, is_logged=True)
    started = [[] for _ in engine.ranks]
    for _ in stepped(engine):
        for rank, numbers in zip(engine.ranks, started, strict=True):
            numbers.extend(rank.started)

    assert all(numbers == sorted(numbers) for numbers in started)
    assert sorted(chain.from_iterable(started)) == list(range(requests.size))


@given(small_limits, arrivals)
def test_preemption_happens_only_when_the_pool_is_short(the_limits, gaps):
    requests = as_table(gaps)
    pairs = zip(requests.prompt_tokens, requests.output_tokens, strict=True)
    needed = [the_limits.blocks_for(prompt + output - 1) for prompt, output in pairs]
    largest_batch = sum(sorted(needed)[-the_limits.max_num_seqs :])
    advanced(Engine(the_limits, costs(), requests))

    if largest_batch <= the_limits.num_blocks:
        assert sum(requests.preemptions) == 0


# Many steps at once


def variants():
    dear = {"per_sequence_s": 5e-4, "kv_s_per_token": 1e-5, "prefill_s_per_token": 1e-4}
    work = (0.004, 2e-5)
    return {
        "plain": (costs(0.01, **dear), {}),
        "windows": (windowed(80, per_step_s=0.01, **dear), {}),
        "reads and work": (windowed(40, compute=work, per_step_s=0.01, **dear), {}),
        "ranks": (windowed(80, compute=work, per_step_s=0.01, **dear), {"num_ranks": 3}),
        "drafts": (
            windowed(80, per_step_s=0.01, **dear),
            {"num_draft_tokens": 2, "acceptance_rate": 0.6},
        ),
    }


@pytest.mark.parametrize("variant", variants())
@pytest.mark.parametrize("seed", range(6))
def test_many_steps_at_once_end_when_they_do_one_by_one(seed, variant):
    prices, changes = variants()[variant]
    figures, rows = crowded(seed)
    if variant == "ranks":  # which rank is chosen depends on when exactly one asks
        rows = [(0.0, *row[1:]) for row in rows]
    if variant == "drafts":
        figures["max_num_batched_tokens"] = max(60, figures["max_num_batched_tokens"])
    the_limits = limits(**figures, **changes)
    fast = advanced(Engine(the_limits, prices, table(*rows)))
    slow = Engine(the_limits, prices, table(*rows))
    for _ in stepped(slow):
        pass

    assert fast.num_steps == slow.num_steps
    assert list(fast.table.preemptions) == list(slow.table.preemptions)
    for column in ("started_s", "first_token_s", "ended_s"):
        expected = list(getattr(slow.table, column))
        assert list(getattr(fast.table, column)) == pytest.approx(expected, rel=1e-9, abs=1e-9)
    for figure in ("busy_s", "decoding_s"):
        assert getattr(fast, figure) == pytest.approx(getattr(slow, figure), rel=1e-9)


def test_some_of_these_requests_are_preempted():
    preemptions = 0
    for seed in range(6):
        figures, rows = crowded(seed)
        preemptions += sum(
            advanced(Engine(limits(**figures), costs(), table(*rows))).table.preemptions
        )

    assert preemptions > 20


def test_long_decodes_take_few_turns_of_the_loop():
    engine = Engine(limits(max_model_len=30_000, num_blocks=2000), costs(), table((0, 10, 20_000)))
    engine.submit(0)
    engine.advance(0.005)
    engine.advance(0.0101)  # the prefill has ended, and the rest has begun as one

    assert engine.steps == 19_999
