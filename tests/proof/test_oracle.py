"""What is read of a config.json is what vLLM's own classes built from it, or a bound above it."""

import json
import re
from collections import Counter
from pathlib import Path

import pytest
from oracle_compare import page, verdict, verdicts

HERE = Path(__file__).parent
ANSWERS = json.loads((HERE / "oracle.json").read_text())
AGAIN = "run `python tests/proof/oracle.py --page-only` and read what changed"
BUILT = [name for name, said in ANSWERS["architectures"].items() if "not built" not in said]
LEAST_EQUAL = 0.5
"""Of the architectures that were built; it only rises."""

OUTSIDE = {
    "BailingMoeV2_5ForCausalLM",
    "BailingMoeV3ForCausalLM",
    "BeamForCausalLM",
    "ExaoneMoeForCausalLM",
    "HrmTextForCausalLM",
    "IQuestLoopCoderForCausalLM",
    "LongcatFlashForCausalLM",
    "MiniCPM3ForCausalLM",
    "MiMoV2ForCausalLM",
    "Blip2ForConditionalGeneration",
    "Exaone4_5_ForConditionalGeneration",
    "MossTranscribeDiarizeForConditionalGeneration",
    "MiniCPMOcrForConditionalGeneration",
    "MiniCPMV4_6ForConditionalGeneration",
    "MiniCPMV4_7ForConditionalGeneration",
    "MuseGlimmerForConditionalGeneration",
    "PaddleOCRVLForConditionalGeneration",
}
"""Architectures whose bound is none yet; it only shrinks."""


@pytest.fixture(scope="module")
def found():
    return verdicts(ANSWERS)


def test_the_page_says_what_is_read_today(found):
    assert page(ANSWERS) == (HERE / "oracle.md").read_text(), AGAIN


def test_most_architectures_are_looked_up_and_equal(found):
    counts = Counter(found[name][0] for name in BUILT)

    assert counts["equal"] / len(BUILT) >= LEAST_EQUAL


def test_what_is_assumed_is_on_the_safe_side_and_within_its_bound(found):
    for name in set(BUILT) - OUTSIDE:
        kind, words = found[name]
        assert kind != "assumed too low", f"{name}: {words}"
        if kind == "assumed":
            factors = [float(each) for each in re.findall(r"x ([\d.]+)", words)]
            assert max(factors) <= 1.5, f"{name}: {words}"


def test_a_wrong_answer_would_be_noticed():
    answer = ANSWERS["architectures"]["LlamaForCausalLM"]

    assert verdict("m", answer)[0] == "equal"
    assert verdict("m", {**answer, "parameters": answer["parameters"] * 1.01})[0] == "differs"
