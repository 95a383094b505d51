"""Block tables of a window stop to grow: what the limits and the prices say of it."""

from dataclasses import replace

import pytest

from engine_builders import advanced, costs, limits, table, windowed
from tonnage.engine.core import Engine
from tonnage.engine.limits import LimitsError
from tonnage.engine.step_costs import with_knot


def test_a_window_needs_no_more_blocks_when_it_is_full():
    the_limits = limits(num_tables=3, window_tables=2, window_blocks=4, fixed_blocks=1)

    assert [the_limits.blocks_for(tokens) for tokens in (1, 64, 65, 160)] == [4, 13, 14, 19]


def test_more_windows_than_tables_are_refused():
    with pytest.raises(LimitsError):
        limits(num_tables=1, window_tables=2, window_blocks=4)


def test_a_knot_more_changes_no_price():
    known = windowed(80, compute=(0.1, 2e-5), kv_s_per_token=1e-5)
    more = with_knot(known, 100)

    assert more.knots_tokens == (0, 80, 100)
    assert more.memory_price_s == pytest.approx((0, 8e-4, 8e-4 + 20 * 2.5e-6))
    assert more.compute_price_s == pytest.approx((0, 16e-4, 20e-4))
    assert more.memory_slope_s == (1e-5, 2.5e-6, 2.5e-6)
    assert with_knot(known, 80) is known


def test_with_draft_tokens_a_request_that_takes_the_whole_cache_is_served():
    """Growing by shares of blocks must not leave the cache a rounding short of empty."""
    rows = [(number / 10, 5 + number, 40 + number) for number in range(30)] + [(4.0, 111, 1)]
    changes = {"num_draft_tokens": 3, "acceptance_rate": 0.7, "num_blocks": 7}
    engine = Engine(limits(max_model_len=112, **changes), costs(), table(*rows))
    for number in range(engine.table.size):
        engine.submit(number)
    for _ in range(5_000):
        if engine.num_outstanding:
            engine.step()

    assert engine.num_outstanding == 0
    assert engine.ranks[0].free_blocks == 7


def test_with_draft_tokens_one_request_takes_the_blocks_that_its_tokens_need():
    """30 + 65 tokens, of which the last is never kept: 6 blocks of 16, not 2 and 64 / 16."""
    changes = {"num_draft_tokens": 3, "acceptance_rate": 0.7, "num_blocks": 6}
    engine = advanced(Engine(limits(max_model_len=96, **changes), costs(), table((0.0, 31, 65))))

    assert list(engine.table.preemptions) == [0]


@pytest.mark.parametrize("arrival_s", [10.0 + 0.137 * number for number in range(20)])
def test_an_arrival_ends_the_steps_under_way_where_only_rounding_still_grows(arrival_s):
    """Three slopes of a tenth are added and taken away, which leaves 2.7e-17 of them."""
    slope_s = 0.1 / 1024
    flat = replace(
        windowed(8, per_step_s=0.01, kv_s_per_token=slope_s), memory_slope_s=(slope_s, 0.0)
    )
    rows = [(0.0, 2, 2000)] * 3 + [(arrival_s, 10, 1)]
    changes = {"num_blocks": 999, "max_model_len": 3000}
    served = advanced(Engine(limits(**changes), flat, table(*rows))).table

    assert served.first_token_s[3] - arrival_s < 0.03
