"""What ``make demo`` asks of the lab: the first command that a reader of the README runs."""

import shlex
from pathlib import Path

import pytest

from tonnage_lab.command import lab
from tonnage_lab.processes import run

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("given", [(), ("CLUSTER=kind", "ENGINE=vllm")])
def test_make_gives_the_demo_what_it_takes(given):
    printed = run(["make", "--directory", ROOT, "--dry-run", "demo", *given])
    ((_, _, module, *words),) = [
        shlex.split(line) for line in printed.splitlines() if " -m tonnage_lab " in line
    ]

    with lab.make_context(module, words) as context:
        name, command, rest = lab.resolve_command(context, words)
        found = command.make_context(name, rest).params

    wanted = dict(each.lower().split("=") for each in given)
    assert {"cluster": "local", "engine": "emulator"} | wanted == {
        key: found[key] for key in ("cluster", "engine")
    }
