"""What is read of a config.json is what vLLM's own classes built from it, or a bound above it."""

import json
import tomllib
from collections import Counter
from importlib import resources
from pathlib import Path

import pytest
from oracle_compare import bounds, factors, older, page, verdict, verdicts

from tonnage.catalog.config.architectures.kinds import ARCHITECTURES
from tonnage.catalog.shape import USUAL_TIMES

HERE = Path(__file__).parent
ANSWERS = json.loads((HERE / "oracle.json").read_text())
AGAIN = "run `python tests/proof/oracle.py --page-only` and read what changed"
BUILT = [name for name, said in ANSWERS["architectures"].items() if "not built" not in said]
LEAST_EQUAL = 0.9
"""Of the architectures that were built; it only rises."""
LOW = {"LongcatFlashForCausalLM", "MiniCPM3ForCausalLM"}
"""Without a rule their bound would be none: two layers in one, and a cache of unpacked heads."""


@pytest.fixture(scope="module")
def found():
    return verdicts(ANSWERS)


def test_the_page_says_what_is_read_today(found):
    assert page(ANSWERS) == (HERE / "oracle.md").read_text(), AGAIN


def test_most_architectures_are_looked_up_and_equal(found):
    counts = Counter(found[name][0] for name in BUILT)

    assert counts["equal"] / len(BUILT) >= LEAST_EQUAL


@pytest.mark.parametrize("release", ANSWERS["older"])
def test_most_of_the_same_files_are_equal_with_an_earlier_release(release):
    counts = Counter(kind for kind, _ in older(ANSWERS, release).values())

    assert counts["equal"] / counts.total() >= LEAST_EQUAL


def test_what_is_assumed_is_on_the_safe_side_and_within_its_bound(found):
    for name in BUILT:
        kind, words = found[name]
        assert kind != "assumed too low", f"{name}: {words}"
        assert kind != "assumed" or max(factors(words)) <= USUAL_TIMES, f"{name}: {words}"


def test_a_kind_that_no_rule_knew_would_be_on_the_safe_side():
    found = bounds(ANSWERS)
    bound = {name: words for name, (kind, words) in found.items() if kind.startswith("assumed")}

    assert {name for name in bound if found[name][0] == "assumed too low"} == LOW
    assert sum(max(factors(words)) <= USUAL_TIMES for words in bound.values()) / len(bound) >= 0.9
    assert len(bound) / len(found) >= 0.75


def test_the_kind_of_a_class_is_that_of_the_file_that_it_was_built_from(found):
    path = resources.files("tonnage.catalog").joinpath("engines", "classes.toml")
    pairs = dict(
        each.partition("=")[::2] for each in tomllib.loads(path.read_text())["classes"].split()
    )

    assert set(ANSWERS["architectures"]) <= set(pairs)
    assert {kind for kind in pairs.values() if kind} <= set(ARCHITECTURES)
    for name in BUILT:
        written = ANSWERS["architectures"][name]["config"]["model_type"]
        assert not pairs[name] or pairs[name].removesuffix("_text") == written.removesuffix("_text")
        assert not pairs[name] or found[name][0] == "equal", name


def test_a_wrong_answer_would_be_noticed():
    answer = ANSWERS["architectures"]["LlamaForCausalLM"]

    assert verdict("m", answer)[0] == "equal"
    assert verdict("m", {**answer, "parameters": answer["parameters"] * 1.01})[0] == "differs"
