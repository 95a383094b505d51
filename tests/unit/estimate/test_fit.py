"""Constants fitted to timed steps: known ones come back, and what is not measured stays."""

import math
import random
from dataclasses import replace

import pytest

from measured_builders import a_machine
from tonnage.estimate.fit import (
    HIGHEST_EFFICIENCY,
    MEASUREMENT_DEVIATION,
    PRIOR_DEVIATIONS,
    TimedStep,
    errors,
    fit_speed,
    solve,
)
from tonnage.estimate.speed import with_speed
from tonnage.sizing.step_time.step import Step

BATCHES = [
    Step(num_sequences=n, context_tokens=n * each)
    for n in (1, 2, 4, 8, 16, 32, 64)
    for each in (128, 4096)
]
PROMPTS = [
    Step(num_sequences=1, context_tokens=0, prefill_tokens=p, prefill_context_tokens=p / 2)
    for p in (512, 1024, 2048)
]


def an_engine(machine, overheads, bandwidth, prefill):
    """The same machine with other constants: factors on those of the prior."""
    constants = machine.constants
    return replace(
        machine,
        constants=with_speed(
            constants,
            (
                overheads,
                bandwidth * constants.bandwidth_efficiency,
                prefill * constants.prefill_efficiency,
            ),
        ),
    )


def timed(machine, steps, noise=None):
    return [
        TimedStep(
            work=work,
            step_s=machine.step(work).total_s * math.exp(noise.gauss(0, 0.02) if noise else 0),
        )
        for work in steps
    ]


def factors(machine, fit):
    prior = machine.constants
    return (
        fit.speed.overhead_factor,
        fit.speed.bandwidth_efficiency / prior.bandwidth_efficiency,
        fit.speed.prefill_efficiency / prior.prefill_efficiency,
    )


def slopes(machine, at, work):
    """How the logarithm of a step follows those of the constants, by differences of 2 %."""

    def log_s(axis, by):
        moved = [each * math.exp(by * (axis == number)) for number, each in enumerate(at)]
        return math.log(an_engine(machine, *moved).step(work).total_s)

    return [(log_s(axis, 0.01) - log_s(axis, -0.01)) / 0.02 for axis in range(3)]


def information(machine, at, steps):
    """What steps say of the constants, and the prior: the inverse of their covariance."""
    rows = [slopes(machine, at, each) for each in steps]
    return [
        [
            sum(row[one] * row[other] for row in rows) / MEASUREMENT_DEVIATION**2
            + (one == other) / PRIOR_DEVIATIONS[one] ** 2
            for other in range(3)
        ]
        for one in range(3)
    ]


def doubt_times_information(fit, known):
    a, b, c, d, e, f = fit.speed.covariance
    doubt = ((a, b, c), (b, d, e), (c, e, f))
    columns = list(zip(*known, strict=True))
    return [
        sum(map(math.prod, zip(row, column, strict=True))) for row in doubt for column in columns
    ]


def times_identity(share):
    return pytest.approx(
        [share * (one == other) for one in range(3) for other in range(3)], abs=2e-3 * share
    )


def test_without_any_step_all_stays_at_the_prior_and_as_doubtful():
    machine = a_machine()

    fit = fit_speed(machine, [])

    assert factors(machine, fit) == (1.0, 1.0, 1.0)
    assert fit.speed.covariance == pytest.approx((1.0, 0, 0, 0.25, 0, 0.25))  # of 1, 0.5 and 0.5


def test_an_engine_that_takes_as_long_as_expected_moves_nothing():
    machine = a_machine()

    assert factors(machine, fit_speed(machine, timed(machine, BATCHES))) == (1.0, 1.0, 1.0)


def test_no_constant_moves_by_more_than_a_factor_of_twenty_and_the_bound_is_named():
    machine = a_machine()

    fit = fit_speed(machine, timed(an_engine(machine, 60, 1, 1), [*BATCHES, *PROMPTS]))

    assert fit.speed.overhead_factor == pytest.approx(20)
    assert "overhead factor" in fit.at_bounds


def test_the_doubt_is_the_inverse_of_what_the_steps_say():
    machine, steps = a_machine(), [*BATCHES, *PROMPTS]

    fit = fit_speed(machine, timed(an_engine(machine, 2, 0.7, 0.8), steps))

    known = information(machine, factors(machine, fit), steps)
    assert doubt_times_information(fit, known) == times_identity(1)


def test_the_doubt_is_as_much_wider_as_steps_scatter_beyond_a_clock():
    machine, steps = a_machine(), [*BATCHES[::3], *PROMPTS[::2]]
    wild = [
        replace(each, step_s=each.step_s * (1.3 if number % 2 else 0.8))
        for number, each in enumerate(timed(machine, steps))
    ]

    fit = fit_speed(machine, wild)

    at = factors(machine, fit)
    off = [
        math.log1p(each) / MEASUREMENT_DEVIATION for each in errors(an_engine(machine, *at), wild)
    ]
    pulls = [math.log(each) / wide for each, wide in zip(at, PRIOR_DEVIATIONS, strict=True)]
    wider = sum(each**2 for each in [*off, *pulls]) / (len(wild) - 3)
    assert doubt_times_information(fit, information(machine, at, steps)) == times_identity(wider)


@pytest.mark.parametrize("truth", [(1, 1, 1), (3, 0.6, 0.7), (0.5, 1.1, 1.3), (8, 0.4, 0.3)])
def test_known_constants_come_back(truth):
    machine = a_machine()

    fit = fit_speed(machine, timed(an_engine(machine, *truth), [*BATCHES, *PROMPTS]))

    assert factors(machine, fit) == pytest.approx(truth, rel=0.025)
    assert fit.at_bounds == ()


def test_noise_of_two_percent_leaves_the_steps_within_two():
    machine, worst = a_machine(), 0.0
    for seed in range(20):
        chance = random.Random(seed)  # noqa: S311
        truth = [math.exp(chance.uniform(-0.6, 0.1)) for _ in range(3)]
        engine = an_engine(machine, 1 / truth[0], truth[1], truth[2])

        fit = fit_speed(machine, timed(engine, [*BATCHES, *PROMPTS], chance))

        found = an_engine(machine, *factors(machine, fit))
        off = errors(found, timed(engine, [*BATCHES, *PROMPTS]))
        worst = max(worst, sum(map(abs, off)) / len(off))

    assert worst < 0.02


def test_small_batches_alone_leave_the_prefill_efficiency_at_the_prior_and_as_doubtful():
    machine = a_machine()
    small = [each for each in BATCHES if each.num_sequences <= 8]

    fit = fit_speed(machine, timed(an_engine(machine, 2, 0.7, 0.5), small))

    assert fit.speed.prefill_efficiency == pytest.approx(
        machine.constants.prefill_efficiency, rel=1e-2
    )
    assert fit.speed.covariance[5] == pytest.approx(PRIOR_DEVIATIONS[2] ** 2, rel=1e-2)
    assert fit.speed.covariance[3] < 0.02


def test_large_batches_alone_say_of_prefill_what_their_products_do():
    machine = a_machine()

    fit = fit_speed(machine, timed(an_engine(machine, 2, 0.7, 0.5), BATCHES))

    *others, prefill = factors(machine, fit)
    assert others == pytest.approx([2, 0.7], rel=0.15)
    assert abs(math.log(prefill / 0.5)) < math.sqrt(fit.speed.covariance[5])  # as sure as it says
    assert fit.speed.covariance[5] < PRIOR_DEVIATIONS[2] ** 2 / 3


def test_no_efficiency_exceeds_what_memory_allows_and_the_bound_is_named():
    machine = a_machine()

    fit = fit_speed(machine, timed(an_engine(machine, 1, 5, 1), [*BATCHES, *PROMPTS]))

    assert fit.speed.bandwidth_efficiency == pytest.approx(HIGHEST_EFFICIENCY)
    assert "bandwidth efficiency" in fit.at_bounds


def test_steps_that_scatter_leave_more_doubt():
    machine = a_machine()
    calm = timed(an_engine(machine, 2, 0.7, 0.8), [*BATCHES, *PROMPTS])
    wild = [
        replace(each, step_s=each.step_s * (1.3 if number % 2 else 0.8))
        for number, each in enumerate(calm)
    ]

    assert (
        fit_speed(machine, wild).speed.covariance[3]
        > 10 * fit_speed(machine, calm).speed.covariance[3]
    )


def test_three_equations_are_solved():
    matrix, solution = ((4.0, 1.0, 0.5), (1.0, 3.0, 0.2), (0.5, 0.2, 2.0)), (1.0, -2.0, 3.0)
    right = tuple(sum(a * x for a, x in zip(row, solution, strict=True)) for row in matrix)

    assert solve(matrix, right) == pytest.approx(solution)


class TestOfFewSteps:
    """No more constants move than there are steps: the others stay, with the prior's doubt."""

    def fitted(self, *steps):
        machine = a_machine()
        fit = fit_speed(machine, timed(an_engine(machine, 1.4, 0.7, 0.6), steps))
        return factors(machine, fit), fit

    def test_one_batch_moves_the_bandwidth_alone(self):
        (overhead, bandwidth, prefill), fit = self.fitted(BATCHES[-1])

        assert (overhead, prefill) == (1.0, pytest.approx(1.0))
        assert bandwidth < 0.9
        assert fit.unmoved == ("overhead factor", "prefill efficiency")
        assert fit.speed.variances[0] == PRIOR_DEVIATIONS[0] ** 2
        assert fit.speed.variances[2] == PRIOR_DEVIATIONS[2] ** 2
        assert fit.speed.variances[1] < 0.01 * PRIOR_DEVIATIONS[1] ** 2

    def test_one_prompt_moves_the_prefill_alone(self):
        (overhead, bandwidth, prefill), fit = self.fitted(PROMPTS[-1])

        assert (overhead, bandwidth) == (1.0, pytest.approx(1.0))
        assert prefill < 0.9
        assert fit.unmoved == ("overhead factor", "bandwidth efficiency")

    def test_a_batch_and_a_prompt_move_two(self):
        _, fit = self.fitted(BATCHES[-1], PROMPTS[-1])

        assert fit.unmoved == ("overhead factor",)

    def test_three_move_all(self):
        _, fit = self.fitted(BATCHES[0], BATCHES[-1], PROMPTS[-1])

        assert fit.unmoved == ()
