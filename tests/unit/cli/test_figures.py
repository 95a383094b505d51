"""The figures of a plan in a terminal: the bar of one GPU's memory and its ranges."""

import io
import re
from dataclasses import replace

import pytest
from rich.console import Console

from cli_builders import a_budget, answered
from tonnage.cli.text.plan import bytes_with_spread, memory_bar
from tonnage.sizing.memory.ceiling import BudgetPart, MemoryBudget
from tonnage.units import GIB, MIB


def printed(budget, *, is_ascii=False, width=80):
    sizing = replace(answered().sizing, budget=budget)
    console = Console(width=width, file=io.StringIO())
    console.print(memory_bar(sizing, is_ascii=is_ascii))
    return console.file.getvalue().splitlines()


def test_the_terminal_shows_how_far_each_part_may_be_off():
    text = "\n".join(printed(a_budget(spread_bytes=2 * GIB)))

    assert "activations 10.0 GiB ± 2.0" in text
    assert "KV cache 50.0 GiB ± 2.0" in text
    assert re.search(r"weights 30.0 GiB( {2,}|$)", text, re.MULTILINE)


def test_the_bar_is_to_scale():
    bar, *_ = printed(a_budget(spread_bytes=5 * GIB))

    assert bar.startswith("█" * 18 + "▓" * 6 + "▚" * 30 + "·" * 6)  # 60 cells for 100 GiB


def test_ranges_in_ascii_are_ascii():
    lines = printed(a_budget(spread_bytes=5 * GIB), is_ascii=True)

    assert "activations 10.0 GiB +- 5.0" in "\n".join(lines)
    assert all(line.isascii() for line in lines)


def test_a_legend_with_ranges_stays_within_80_columns():
    parts = ("weights", "activations", "runtime", "CUDA graphs")
    budget = MemoryBudget(
        total_bytes=139 * GIB,
        utilization_fraction=0.92,
        parts=tuple(
            BudgetPart(name=name, num_bytes=900 * MIB, spread_bytes=123.4 * MIB) for name in parts
        ),
    )
    lines = printed(budget, width=200)

    assert max(len(line.rstrip()) for line in lines) <= 77  # and an indentation of 3
    assert sum("MiB" in line for line in lines) == 2


@pytest.mark.parametrize(
    ("num_bytes", "spread_bytes", "expected"),
    [
        (256 * MIB, 64 * MIB, "256.0 MiB ± 64.0"),
        (33.8 * GIB, 20 * MIB, "33.8 GiB ± 20.0 MiB"),
        (900 * MIB, 2 * GIB, "900.0 MiB, at most 2.9 GiB"),
        (33.8 * GIB, 0.0, "33.8 GiB"),
    ],
)
def test_a_range_is_in_the_unit_of_its_amount(num_bytes, spread_bytes, expected):
    assert bytes_with_spread(num_bytes, spread_bytes) == expected
