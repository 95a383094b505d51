"""Constants fitted to timed steps: known ones come back, and what is not measured stays."""

import math
import random
from dataclasses import replace

import pytest

from measured_builders import a_machine
from tonnage.estimate.fit import (
    HIGHEST_EFFICIENCY,
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
            overhead=overheads,
            bandwidth=bandwidth * constants.bandwidth_efficiency,
            prefill=prefill * constants.prefill_efficiency,
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
        fit.overhead_factor,
        fit.bandwidth_efficiency / prior.bandwidth_efficiency,
        fit.prefill_efficiency / prior.prefill_efficiency,
    )


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

    assert fit.prefill_efficiency == pytest.approx(machine.constants.prefill_efficiency, rel=1e-2)
    assert fit.covariance[5] == pytest.approx(PRIOR_DEVIATIONS[2] ** 2, rel=1e-2)
    assert fit.covariance[3] < 0.02


def test_large_batches_alone_say_of_prefill_what_their_products_do():
    machine = a_machine()

    fit = fit_speed(machine, timed(an_engine(machine, 2, 0.7, 0.5), BATCHES))

    *others, prefill = factors(machine, fit)
    assert others == pytest.approx([2, 0.7], rel=0.15)
    assert abs(math.log(prefill / 0.5)) < math.sqrt(fit.covariance[5])  # as sure as it says
    assert fit.covariance[5] < PRIOR_DEVIATIONS[2] ** 2 / 3


def test_no_efficiency_exceeds_what_memory_allows_and_the_bound_is_named():
    machine = a_machine()

    fit = fit_speed(machine, timed(an_engine(machine, 1, 5, 1), [*BATCHES, *PROMPTS]))

    assert fit.bandwidth_efficiency == pytest.approx(HIGHEST_EFFICIENCY)
    assert "bandwidth efficiency" in fit.at_bounds


def test_steps_that_scatter_leave_more_doubt():
    machine = a_machine()
    calm = timed(an_engine(machine, 2, 0.7, 0.8), [*BATCHES, *PROMPTS])
    wild = [
        replace(each, step_s=each.step_s * (1.3 if number % 2 else 0.8))
        for number, each in enumerate(calm)
    ]

    assert fit_speed(machine, wild).covariance[3] > 10 * fit_speed(machine, calm).covariance[3]


def test_three_equations_are_solved():
    matrix, solution = ((4.0, 1.0, 0.5), (1.0, 3.0, 0.2), (0.5, 0.2, 2.0)), (1.0, -2.0, 3.0)
    right = tuple(sum(a * x for a, x in zip(row, solution, strict=True)) for row in matrix)

    assert solve(matrix, right) == pytest.approx(solution)
