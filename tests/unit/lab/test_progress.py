"""What a person sees of a step, on a terminal and in a log."""

import io

import pytest
from rich.console import Console

from tonnage_lab.processes import wait_until
from tonnage_lab.progress import on_console, silent


def test_a_log_gets_one_line_when_a_short_step_begins():
    log = io.StringIO()
    with on_console(Console(file=log))("starting KWOK"):
        pass

    assert log.getvalue() == "starting KWOK ...\n"


def test_a_log_says_of_a_long_step_that_it_still_goes_on():
    log = io.StringIO()
    with on_console(Console(file=log), reminder_s=0.001)("building kubelet"):
        wait_until(
            lambda: log.getvalue().count("\n") >= 3, what="reminders", timeout_s=30, needs={}
        )

    assert log.getvalue().startswith("building kubelet ...\nbuilding kubelet: 0 s so far\n")


def test_a_terminal_is_left_clean_after_a_short_step():
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, color_system=None)
    with on_console(console)("starting KWOK"):
        pass

    assert not screen.getvalue().rstrip().endswith("starting KWOK")


@pytest.mark.parametrize("step", [silent, on_console(Console(file=io.StringIO()))])
def test_a_failing_step_fails(step):
    with pytest.raises(ValueError, match="broken"), step("building"):
        raise ValueError("broken")
