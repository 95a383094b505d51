"""Numbers and names that pages say in prose are those of the code."""

import re
import tomllib
from pathlib import Path

from tonnage.api.spec import Demand
from tonnage.catalog.engine import find_engine
from tonnage.cli.commands.app import COMMANDS
from tonnage.estimate.burstiness import MOST_SCV
from tonnage.estimate.headroom import STARTS
from tonnage.policy.decide import STEP_DOWN
from tonnage.settings import Settings
from tonnage.units import MINUTE_S, format_bytes

ROOT = Path(__file__).parents[3]
PAGES = ROOT / "deploy/site/pages"
DESIGN = ROOT / "operator/DESIGN.md"
LIMITS = tomllib.loads((ROOT / "operator/tonnage/catalog/engines/limits.toml").read_text())
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def words(path):
    return " ".join(path.read_text().split())


def largest(field):
    (bound,) = (each.le for each in field.metadata if hasattr(each, "le"))
    return bound


def test_limits_says_of_how_many_kinds_a_version_is_known():
    first = LIMITS["first_version"].keys() - {"source"}

    assert (
        f"Tonnage knows the first version of {len(first)} kinds and the last of "
        f"{len(LIMITS['last_version'])}"
    ) in words(PAGES / "limits.md")


def test_limits_says_what_cuda_graphs_are_taken_to_hold():
    graphs = find_engine("0.33").memory.graphs_bytes

    assert f"The plan takes {format_bytes(graphs.value)} for all sizes of them" in words(
        PAGES / "limits.md"
    )


def test_limits_says_up_to_which_burstiness_is_measured_and_taken():
    assert (
        f"measured up to {MOST_SCV:g}; `demand.arrivalScv` may be "
        f"{largest(Demand.model_fields['arrival_scv'])}"
    ) in words(PAGES / "limits.md")


def test_a_page_says_after_how_many_cold_starts_a_fleet_shrinks():
    *most, last = (f"{each:g}" for each in STARTS)
    window_s = Settings(prometheus_url="http://p").scale_down_window_s

    assert STEP_DOWN == 1 / 4
    assert (
        f"shrinks by a quarter after {', '.join(most)} or {last} cold starts (learned from its "
        f"traffic; at least {window_s / MINUTE_S:g} minutes)"
    ) in words(PAGES / "what-it-does.md")


def test_the_design_names_every_command():
    (row,) = re.findall(r"^\| `cli` \| (.*) \|$", DESIGN.read_text(), re.MULTILINE)

    assert set(row.split(", ")) == COMMANDS.keys()


def test_the_design_draws_the_layers_that_the_linter_checks():
    drawn = DESIGN.read_text().partition("## The layers")[2].partition("```text")[2]
    (contract,) = (
        each
        for each in PROJECT["tool"]["importlinter"]["contracts"]
        if each["name"] == "Data flows one way"
    )

    lines = drawn.partition("```")[0].strip().splitlines()
    names = [re.match(r"[a-z_]+(?: \| [a-z_]+)*", line) for line in lines]
    assert [each[0] for each in names if each] == contract["layers"]


def test_the_decision_counts_the_parts_of_the_tests():
    makefile = (ROOT / "Makefile").read_text()
    parts = re.search(r"^PARTS := (.*)$", makefile, re.MULTILINE)[1].split()

    assert f"{len(parts)} parts" in words(ROOT / "operator/decisions/0032-fault-injection-tests.md")
