"""What ``make demo`` asks of the lab: the first command that a reader of the README runs."""

import re
import shlex
from pathlib import Path

import pytest

from tonnage_lab import controlplane
from tonnage_lab.command import lab
from tonnage_lab.demo import PROGRAMS
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


@pytest.mark.parametrize(
    ("cluster", "files", "more"),
    [
        ("local", ["site.py", "prometheus.py"], controlplane.PROGRAMS),
        ("kind", ["site.py", "kind/cluster.py", "kind/images.py"], ()),
    ],
)
def test_the_demo_gets_the_programs_that_it_starts_and_no_other(cluster, files, more):
    text = "".join((ROOT / "operator/tonnage_lab" / name).read_text() for name in files)
    started = set(re.findall(r'assets\.ensure\(\["([a-z]+)"\]', text))

    assert set(PROGRAMS[cluster]) == started | set(more)
    assert "kwok" not in PROGRAMS[cluster]
