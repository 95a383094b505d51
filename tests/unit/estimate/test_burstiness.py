"""Burstiness from counts: of streams that are known, and of a few windows."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strategies import numbers
from tonnage.estimate.burstiness import CountedWindow, add_count, dispersion
from tonnage.estimate.burstiness import arrival_scv as asked_scv

GRID = {0.25, 0.5, 1, 2, 4, 8, 16}


def arrival_scv(state, believed, given=None):
    """What is believed after these windows; the spec gives what was believed before."""
    return asked_scv(state, believed, given=believed if given is None else given)


def state_of(counts, seconds=45.0):
    state = ()
    for number, count in enumerate(counts, start=1):
        state = add_count(state, at_s=60.0 * number, count=count, seconds=seconds)
    return state


def stream(scv, *, per_s=1.0, windows=60, seed=1, trend=0.0):
    """Counts of arrivals with gamma gaps of this squared coefficient of variation."""
    chance = random.Random(seed)  # noqa: S311
    at_s, end_s, counts = 0.0, 45.0 * windows, [0] * windows
    while True:
        rate = per_s * (1 + trend * at_s / end_s)
        at_s += chance.gammavariate(1 / scv, scv) / rate
        if at_s >= end_s:
            return counts
        counts[int(at_s // 45)] += 1


class TestScv:
    @pytest.mark.parametrize("scv", [4, 16])
    def test_is_found_within_a_step_of_the_grid(self, scv):
        def found(seed):
            state, believed = state_of(stream(scv, seed=seed)), 1
            for _ in range(5):  # a factor of two in one window
                believed = arrival_scv(state, believed, given=1)
            return believed

        near = [each for each in map(found, range(40)) if scv / 2.1 <= each <= 2.1 * scv]
        assert len(near) >= 32

    def test_changes_by_a_factor_of_two_at_once(self):
        assert arrival_scv(state_of(stream(16)), 1) == 2

    def test_is_that_of_the_spec_again_when_it_may_be(self):
        assert arrival_scv(state_of(stream(1)), 4, given=1) == 1

    @pytest.mark.parametrize(
        ("chi_square", "share", "believed"),
        [(31.41, 1.02, "given"), (31.41, 0.98, 3), (10.85, 0.98, "given"), (10.85, 1.02, 3)],
    )
    def test_is_that_of_the_spec_within_nine_tenths_of_what_windows_leave(
        self, chi_square, share, believed
    ):
        # 20 degrees of freedom: chi-square is from 10.85 to 31.41 in all but 5 % each.
        state = state_of([20, 30] * 17 + [20])
        ratio, freedom = dispersion(state)
        given = share * ratio * freedom / chi_square

        assert freedom == pytest.approx(20)
        assert arrival_scv(state, 3, given=given) == (given if believed == "given" else believed)

    def test_is_not_moved_by_traffic_that_begins(self):
        counts = [0, 0, 0, 100, 240, *stream(1, per_s=5, windows=40)]

        assert arrival_scv(state_of(counts), 1) == 1

    def test_of_chance_stays_as_it_is(self):
        found = [arrival_scv(state_of(stream(1, seed=seed)), 1) for seed in range(200)]

        assert found.count(1) >= 194

    def test_stays_as_expected_near_by(self):
        found = [arrival_scv(state_of(stream(4, seed=seed)), 3) for seed in range(100)]

        assert found.count(3) >= 85

    def test_is_not_moved_by_a_load_that_triples_within_the_hour(self):
        found = [arrival_scv(state_of(stream(1, seed=seed, trend=2)), 1) for seed in range(100)]

        assert found.count(1) >= 96

    def test_is_not_smoother_than_it_is_where_requests_are_few(self):
        # One request a minute: neighbours are put together, and few are left.
        found = [arrival_scv(state_of(stream(1, per_s=1 / 60, seed=n)), 1) for n in range(100)]

        assert found.count(1) >= 98

    @pytest.mark.parametrize("counts", [[], [0] * 60, [100, 0], [10] * 7])
    def test_is_as_expected_without_evidence(self, counts):
        assert arrival_scv(state_of(counts), 3) == 3

    def test_is_bounded(self):
        assert arrival_scv(state_of([50] * 60), 0.5) == 0.25
        assert arrival_scv(state_of([0, 5000] * 30), 16) == 16

    @given(st.lists(numbers(0, 1e6), max_size=70), numbers(0.25, 16))
    def test_is_as_expected_or_on_a_coarse_grid(self, counts, expected):
        assert arrival_scv(state_of(counts), expected) in GRID | {expected}


class TestDispersion:
    def test_is_half_the_mean_square_of_steps_over_the_mean(self):
        # Steps of 10 between 20 and 30: 100 / 2 over 25, as if its largest tenth were left out.
        ratio, freedom = dispersion(state_of([20, 30] * 20))

        assert ratio == pytest.approx(100 / 2 / 25 / 0.623)
        assert freedom == pytest.approx((39 - 4) * 2 / 3)

    def test_of_small_counts_is_of_neighbours_together(self):
        # Pairs of 4 and 6: each of ten.
        assert dispersion(state_of([4, 6] * 22)) == (0, pytest.approx((21 - 3) * 2 / 3))

    def test_leaves_the_largest_steps_out(self):
        assert dispersion(state_of([20] * 20 + [200] * 20))[0] == 0

    def test_is_unknown_below_twenty_windows(self):
        assert dispersion(state_of([20] * 19)) is None
        assert dispersion(state_of([20] * 20)) is not None


class TestNoted:
    def test_windows_do_not_overlap(self):
        state = ()
        for tick in range(13):
            state = add_count(state, at_s=15.0 * tick, count=1, seconds=45)

        assert [each.at_s for each in state] == [0, 45, 90, 135, 180]

    def test_an_hour_is_kept(self):
        state = state_of([1] * 100)

        assert len(state) == 60
        assert state[0].at_s == 6000 - 59 * 60

    @pytest.mark.parametrize(("seconds", "kept"), [(45, 3), (48, 3), (105, 1)])
    def test_windows_of_another_length_begin_anew(self, seconds, kept):
        assert len(add_count(state_of([1, 1]), at_s=400, count=1, seconds=seconds)) == kept

    def test_a_clock_that_was_set_back_begins_anew(self):
        assert add_count(state_of([1] * 10), at_s=100, count=5, seconds=45) == (
            CountedWindow(at_s=100, count=5, seconds=45),
        )

    def test_a_clock_that_jumps_forward_forgets_what_is_long_ago(self):
        assert len(add_count(state_of([1] * 10), at_s=1e6, count=5, seconds=45)) == 1


def test_the_grid_is_of_powers_of_two():
    assert {2.0**power for power in range(-2, 5)} == GRID
    assert math.log2(max(GRID)) == 4
