"""What a busy window says of memory and arithmetic in use."""

from dataclasses import replace

import pytest

from measured_builders import a_machine
from tonnage.estimate.speed import BusyWindow, PromptShape, observed_mbu, observed_mfu
from tonnage.sizing.step_time.step import Step

PROMPTS = PromptShape(
    new_tokens=2000.0,
    context_tokens=1000.0,
    scv=0.0,
    most_tokens=8192.0,
    chunks=1.0,
    answer_tokens=250.0,
)


def a_window(gap_s=0.04, **work):
    step = Step(**{"num_sequences": 20, "context_tokens": 40_000, **work})
    return BusyWindow(
        gap_s=gap_s,
        num_gaps=1000,
        step=step,
        num_variance=0.0,
        prefill_s=None,
        num_prefills=0,
        prefill_step=step,
        prompts=PROMPTS,
        prompt_tokens_per_s=0.0,
        full_share=0.0,
    )


def test_of_decode_is_its_work_and_its_reads_over_the_step():
    machine = a_machine()
    time = machine.step(a_window().step)

    mfu, mbu = observed_mfu(machine, a_window()), observed_mbu(machine, a_window())

    assert mfu == pytest.approx(time.decode_flop / 0.04 / machine.speeds.peak_flop_per_s)
    assert mbu == pytest.approx(time.decode_bytes / 0.04 / machine.speeds.memory_bytes_per_s)


def test_prompts_add_arithmetic_whatever_they_are_believed_to_take():
    window = a_window(prefill_tokens=500.0, prefill_context_tokens=1000.0)
    machine = a_machine()
    half = replace(machine.constants, prefill_efficiency=machine.constants.prefill_efficiency / 2)

    with_prompts = observed_mfu(machine, window)

    assert with_prompts > 2 * observed_mfu(machine, a_window())
    assert observed_mfu(replace(machine, constants=half), window) == pytest.approx(with_prompts)


def test_a_step_that_takes_twice_as_long_uses_half():
    machine = a_machine()

    assert observed_mfu(machine, a_window(0.08)) == pytest.approx(
        observed_mfu(machine, a_window(0.04)) / 2
    )
