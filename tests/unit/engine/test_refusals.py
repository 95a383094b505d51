"""Who comes while too many prompt tokens wait is refused: what counts, and who is in time."""

import math

import pytest

from engine_builders import advanced, costs, limits, table
from tonnage.engine.core import Engine
from tonnage.engine.routing import serve
from tonnage.sizing.workload import Routing

FULL = 32
"""Tokens of two prompts of those below."""


def an_engine_of(*rows, **changes):
    """One request at a time, a second a step."""
    changes = {"max_num_seqs": 1, "max_queued_tokens": FULL} | changes
    return Engine(limits(**changes), costs(1.0), table(*rows))


def refused(rows):
    return [number for number in range(rows.size) if math.isinf(rows.first_token_s[number])]


def test_who_comes_while_that_much_waits_is_refused():
    served = advanced(an_engine_of(*[(at_s, 16, 1) for at_s in (0, 0.1, 0.2, 0.3, 1.5)])).table

    # The first two are 32 tokens until the first has its token, after a second.
    assert refused(served) == [2, 3]
    assert list(served.ended_s[:2]) == [1, 2]
    assert served.ended_s[4] == 3


def test_a_prompt_counts_whole_until_its_first_token_though_it_is_read_in_chunks():
    engine = an_engine_of((0, 100, 5), max_num_batched_tokens=50, max_queued_tokens=1)
    engine.submit(0)
    counts = [engine.queued_tokens()]
    for _ in range(3):
        engine.step()
        counts.append(engine.queued_tokens())

    assert counts == [100, 100, 0, 0]


def test_answers_and_who_is_computed_again_do_not_count():
    # 4 blocks of 4 tokens: two prompts of 7 fill the cache, and the second has to give way.
    rows = ((0, 7, 4), (0, 7, 4))
    engine = Engine(limits(num_blocks=4, block_size=4, max_model_len=16), costs(), table(*rows))
    engine.submit(0)
    engine.submit(1)
    engine.step()
    engine.step()
    engine.step()

    assert sum(engine.table.preemptions) == 1
    assert engine.queued_tokens() == 0


def test_what_is_aborted_counts_no_more():
    engine = an_engine_of(*[(0, 16, 5)] * 2)
    for number in (0, 1):
        engine.submit(number)
    engine.step()
    engine.abort(1)  # waits
    engine.abort(0)  # has a token

    assert engine.queued_tokens() == 0


def test_ranks_have_as_much_together_as_there_are_of_them():
    engine = an_engine_of(*[(0, 16, 5)] * 5, num_ranks=2)

    assert [engine.submit(number) for number in range(5)] == [0, 1, 0, 1, -1]


def test_requests_that_run_and_wait_count_on_all_ranks_together_until_they_end():
    engine = an_engine_of(*[(0, 16, 1)] * 5, num_ranks=2, max_queued_reqs=3, max_queued_tokens=0)

    assert [engine.submit(number) for number in range(4)] == [0, 1, 0, -1]
    engine.step()
    assert engine.submit(4) >= 0


def test_the_router_tells_who_was_refused():
    rows = table(*[(0, 16, 1)] * 6)
    engines = [
        Engine(limits(max_num_seqs=1, max_queued_tokens=16), costs(), rows, n) for n in (0, 1)
    ]

    assert list(serve(engines, rows, Routing.SERVICE, [0.0, 0.9] * 3)) == [0, 1, -1, -1, -1, -1]
    assert rows.late_starts(0, 6, 1e6) == 4


@pytest.mark.parametrize(("tokens", "expected"), [(0, 15 / 900), (5 * 16, 600 / 900)])
def test_an_overload_keeps_in_time_what_can_be_where_else_all_are_late(tokens, expected):
    # Three come in two seconds, and one is served a second. Who finds five there waits for five.
    rows = table(*[(number / 1.5, 16, 1) for number in range(900)])
    served = advanced(Engine(limits(max_num_seqs=1, max_queued_tokens=tokens), costs(1.0), rows))

    in_time = 900 - served.table.late_starts(0, 900, 5.0)
    assert in_time / 900 == pytest.approx(expected, abs=0.01)
