"""The newest class of arrivals goes first: who starts, who is preempted, who is in time."""

import pytest

from engine_builders import advanced, an_engine, costs, crowded, limits, stepped, table, windowed
from tonnage.engine.core import Engine

PRICES = {"per_sequence_s": 5e-4, "kv_s_per_token": 1e-5, "prefill_s_per_token": 1e-4}
TIMES = ("started_s", "first_token_s", "ended_s")
VARIANTS = {
    "plain": (costs(0.01, **PRICES), {}),
    "reads and work": (windowed(40, compute=(0.004, 2e-5), per_step_s=0.01, **PRICES), {}),
    "drafts": (costs(0.01, **PRICES), {"num_draft_tokens": 2, "acceptance_rate": 0.6}),
}


def starts_s(*arrivals_s, **changes):
    """Return when requests start of which one runs at a time: three steps the first, then one."""
    rows = table((arrivals_s[0], 16, 3), *[(at_s, 16, 1) for at_s in arrivals_s[1:]])
    return list(
        advanced(Engine(limits(max_num_seqs=1, **changes), costs(1.0), rows)).table.started_s
    )


# Who starts


def test_the_newest_class_goes_first():
    assert starts_s(0, 0.1, 1.2, 2.3) == [0, 3, 4, 5]
    assert starts_s(0, 0.1, 1.2, 2.3, newest_first_s=1.0) == [0, 5, 4, 3]


def test_within_a_class_those_who_come_first_start_first():
    # The first came at 0 and has its token at 1: who comes after 1 is the next class.
    found = starts_s(0, 0.2, 1.0, 1.9, 2.0, 2.2, newest_first_s=1.0)

    assert found == [0, 6, 7, 3, 4, 5]


def test_nobody_is_overtaken_while_those_who_are_served_wait_less_than_the_limit():
    # Bursts of five, one served a second: the last of them waits for 4 seconds.
    arrivals_s = [10 * burst + number / 10 for burst in range(20) for number in range(5)]

    assert starts_s(*arrivals_s, newest_first_s=5.0) == starts_s(*arrivals_s)
    assert starts_s(*arrivals_s, newest_first_s=0.25) != starts_s(*arrivals_s)


def test_a_first_token_counts_only_for_those_who_come_after_it():
    """Whether many steps are taken at once or one by one, as its tokens come in the middle."""
    rows = table((0.0, 16, 1), (0.5, 16, 1), (1.4, 16, 1), (1.6, 16, 1))
    engine = Engine(limits(max_num_seqs=1, newest_first_s=1.0), costs(1.0), rows)
    (rank,) = engine.ranks
    for number in (0, 1):
        engine.submit(number)
    engine.step()  # the first has its token at 1
    engine.step()  # the second at 2
    for number in (2, 3):
        engine.submit(number)

    assert list(rank.waiting) == [2, 3]
    assert list(rows.queue_class) == [0, 0, 1, 1]


def test_the_newest_starts_beside_one_that_decodes_where_the_head_of_the_queue_did_not_fit():
    # The second needs 15 of 16 blocks; the third arrives in the middle of the first's 99 steps.
    rows = table((0, 16, 100), (0.5, 240, 2), (40.25, 16, 1))
    the_limits = limits(num_blocks=16, newest_first_s=1.0)
    served = advanced(Engine(the_limits, costs(1.0), rows)).table

    assert list(served.started_s) == [0, 100, 41]


@pytest.mark.parametrize("width_s", [0.0, 1e9], ids=["no classes", "one class"])
@pytest.mark.parametrize("seed", range(4))
def test_without_a_second_class_all_is_first_come_first_served_to_the_digit(seed, width_s):
    figures, rows = crowded(seed)
    usual = advanced(Engine(limits(**figures), costs(0.01, **PRICES), table(*rows)))
    one = advanced(
        Engine(limits(**figures, newest_first_s=width_s), costs(0.01, **PRICES), table(*rows))
    )

    assert list(one.table.preemptions) == list(usual.table.preemptions)
    for column in TIMES:
        assert list(getattr(one.table, column)) == list(getattr(usual.table, column))


def test_submit_tells_which_rank_a_request_waits_on():
    engine = Engine(limits(num_ranks=3), costs(), table(*[(0, 16, 4)] * 4))

    assert [engine.submit(number) for number in range(4)] == [0, 1, 2, 0]


# Who is preempted, and where one waits


def test_who_would_be_admitted_last_is_preempted_and_waits_in_that_place_again():
    # 4 blocks of 4 tokens: 3 for the first prompt, 2 for the next two, which fill the cache.
    rows = table((0.5, 12, 4), (1.6, 7, 4), (2.7, 8, 4), (3.8, 4, 4))
    the_limits = limits(num_blocks=4, block_size=4, max_model_len=16, newest_first_s=1.0)
    engine = Engine(the_limits, costs(), rows, is_logged=True)
    (rank,) = engine.ranks
    started = []
    for numbers in ((0, 1), (2,), (3,)):
        for number in numbers:
            engine.submit(number)
        engine.step()
        started.append(rank.started)

    assert started == [[1], [2], []]
    assert rank.preempted == [1]  # it has run for longer than 2, but is of an older class
    assert list(rank.waiting) == [3, 1, 0]


def test_the_place_behind_the_newest_class_is_kept_when_one_that_waits_is_aborted():
    rows = table(*[(at_s, 16, 9) for at_s in (0.1, 0.2, 1.1, 1.2, 1.3, 1.4)])
    engine = Engine(limits(max_num_seqs=1, newest_first_s=1.0), costs(), rows)
    (rank,) = engine.ranks
    engine.submit(0)
    engine.step()
    queues = []
    for number in (1, 2, 3):
        engine.submit(number)
    for aborted, number in ((2, 4), (1, 5)):
        engine.abort(aborted)
        engine.submit(number)
        queues.append(list(rank.waiting))

    assert queues == [[3, 4, 1], [3, 4, 5]]
    assert engine.num_outstanding == 4


def test_blocks_and_the_queue_are_empty_after_all_are_aborted():
    figures, rows = crowded(1)
    engine = an_engine(table(*rows), **figures, newest_first_s=7.0)
    for _ in range(200):
        engine.step()
    for number in range(len(rows)):
        engine.abort(number)

    (rank,) = engine.ranks
    assert engine.num_outstanding == rank.num_running == len(rank.waiting) == 0
    assert rank.free_blocks == rank.num_blocks


# What it is for


@pytest.mark.parametrize(("width_s", "expected"), [(0.0, 15 / 900), (5.0, 600 / 900)])
def test_an_overload_keeps_in_time_what_can_be_where_else_all_are_late(width_s, expected):
    # Three come in two seconds, and one is served a second: two of three can be in time. First come
    # first served, the wait grows by half a second each second: from the tenth on all are late.
    rows = table(*[(number / 1.5, 16, 1) for number in range(900)])
    the_limits = limits(max_num_seqs=1, newest_first_s=width_s)
    served = advanced(Engine(the_limits, costs(1.0), rows)).table

    pairs = zip(served.first_token_s, served.arrival_s, strict=True)
    in_time = sum(first - arrival <= 5.0 for first, arrival in pairs) / rows.size
    assert in_time == pytest.approx(expected, abs=0.01)


# Many steps at once


@pytest.mark.parametrize("width_s", [1e-6, 3.0, 20.0])
@pytest.mark.parametrize("variant", VARIANTS)
def test_many_steps_at_once_end_when_they_do_one_by_one(variant, width_s):
    prices, changes = VARIANTS[variant]
    for seed in range(6):
        figures, rows = crowded(seed)
        figures["max_num_batched_tokens"] = max(60, figures["max_num_batched_tokens"])
        the_limits = limits(**figures, **changes, newest_first_s=width_s)
        fast = advanced(Engine(the_limits, prices, table(*rows)))
        slow = Engine(the_limits, prices, table(*rows))
        for _ in stepped(slow):
            pass

        assert fast.num_steps == slow.num_steps
        assert list(fast.table.preemptions) == list(slow.table.preemptions)
        assert fast.busy_s == pytest.approx(slow.busy_s, rel=1e-9)
        for column in TIMES:
            expected_s = list(getattr(slow.table, column))
            assert list(getattr(fast.table, column)) == pytest.approx(expected_s, rel=1e-9)


def test_some_of_these_requests_are_preempted():
    preemptions = 0
    for seed in range(6):
        figures, rows = crowded(seed)
        the_limits = limits(**figures, newest_first_s=3.0)
        preemptions += sum(advanced(Engine(the_limits, costs(), table(*rows))).table.preemptions)

    assert preemptions > 20


def test_long_decodes_take_few_turns_of_the_loop():
    the_limits = limits(max_model_len=30_000, num_blocks=2000, newest_first_s=1.0)
    engine = Engine(the_limits, costs(), table((0, 10, 20_000)))
    engine.submit(0)
    engine.advance(0.0101)

    assert engine.steps == 19_999
    assert engine.ends_s == pytest.approx(20_000 * 0.01)
