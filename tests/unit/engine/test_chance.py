"""Random numbers: the published generator, and the moments of what is made of it."""

import itertools
import math
from array import array
from statistics import fmean, pvariance

import pytest

from tonnage.engine.chance import (
    Chance,
    cut,
    exponentials,
    lengths,
    lognormal,
    parts,
    passed,
    scaled,
)
from uncompiled import sources_beside


def test_the_generator_is_xorshift64_star():
    chance = Chance(0)
    chance.bits = 1

    # Its first output from the state 1; a share is made of the upper 53 bits.
    assert chance.share() == (5180492295206395165 >> 11) / 2**53


def test_seeds_give_streams_of_their_own_that_repeat():
    first, again, other = (Chance(seed).shares(50) for seed in (1, 1, 2))

    assert first == again
    assert not set(first) & set(other)


def test_shares_are_uniform():
    shares = Chance(5).shares(100_000)

    assert 0 <= min(shares) < max(shares) < 1
    assert fmean(shares) == pytest.approx(1 / 2, abs=0.003)  # 0.29 / sqrt(100,000) is 0.0009
    assert pvariance(shares) == pytest.approx(1 / 12, rel=0.01)


def test_even_shares_take_one_from_each_slice_in_random_order():
    shares = Chance(5).even_shares(1000)

    assert sorted(int(share * 1000) for share in shares) == list(range(1000))
    ascents = sum(low < high for low, high in itertools.pairwise(shares))
    assert 450 < ascents < 550


@pytest.mark.parametrize("shape", [0.25, 1.0, 4.0])
def test_gaps_have_a_mean_of_one_and_the_variation_asked_for(shape):
    gaps = Chance(3).gamma_gaps(100_000, shape)
    variance = 1 / shape

    # The variance of the sample variance is that of a gamma: (2 + 6 / shape) / shape^2 / n.
    assert min(gaps) >= 0
    assert fmean(gaps) == pytest.approx(1, abs=4 * math.sqrt(variance / 100_000))
    error = variance * math.sqrt((2 + 6 / shape) / 100_000)
    assert pvariance(gaps) == pytest.approx(variance, abs=4 * error)


def test_gaps_of_a_poisson_process_are_exponential():
    gaps = Chance(3).gamma_gaps(100_000, 1.0)

    longer = sum(gap > 2 for gap in gaps) / len(gaps)
    assert longer == pytest.approx(math.exp(-2), abs=0.005)


def test_lengths_are_whole_and_within_their_bounds():
    normals = array("d", [-9.0, 0.0, 1.0, 9.0])

    # 100 * exp(z / 2 - 1/8): 0.98 -> 1, 88.25, 145.50, 7,944 -> 500.
    assert list(lognormal(normals, 100, 0.5, 500)) == [1, 88, 145, 500]


def test_scaled_values_leave_the_others_alone():
    values = array("d", [1.0, 2.5])

    assert list(scaled(values, 2)) == [2.0, 5.0]
    assert list(values) == [1.0, 2.5]


def test_lengths_are_whole_and_at_least_one_and_no_longer_than_the_longest():
    values = array("d", [0.001, 0.5, 1.26, 9.0])

    assert list(lengths(values, 10.0, 40.0)) == [1, 5, 13, 40]


def test_what_is_cut_leaves_room_for_what_was_taken():
    assert list(cut(array("q", [10, 90, 99]), array("q", [5, 20, 1]), 100)) == [10, 80, 99]


def test_a_part_of_a_length_leaves_one_token():
    prompts = array("q", [1, 10, 100])

    assert list(parts(prompts, 0.0)) == [0, 0, 0]
    assert list(parts(prompts, 0.26)) == [0, 3, 26]  # 0.26, 2.6 and 26, to the nearest
    assert list(parts(prompts, 1.0)) == [0, 9, 99]


@pytest.mark.parametrize("shape", [0.02, 0.25, 0.7, 1.0, 5.0])
def test_gaps_have_the_same_digits_compiled_or_not(shape):
    """A root written as a power is compiled as one of complex numbers, with other last digits."""
    with sources_beside() as sources:
        gaps = sources["chance"].Chance(7).gamma_gaps(2_000, shape)

    assert list(Chance(7).gamma_gaps(2_000, shape)) == list(gaps)


def test_shares_become_exponential_numbers():
    found = exponentials(array("d", [0.0, 0.5, 1 - math.exp(-3)]))

    assert list(found) == pytest.approx([0, math.log(2), 3])


def test_gaps_add_up_to_times_in_mean_gaps():
    assert list(passed(array("d", [1, 4, 1]))) == pytest.approx([0.5, 2.5, 3.0])
