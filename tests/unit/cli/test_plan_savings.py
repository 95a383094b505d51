"""What a plan says would cost less: nothing that drops a part of the demand, and both prices."""

import re

import pytest

from cli_builders import run

MODEL = ("plan", "--model", "meta-llama/Llama-3.1-8B-Instruct", "--gpu", "H100", "--ttft", "2s")
SETTINGS = "demand.promptTokens.p99={}", "demand.outputTokens.p99={}", "contextLength={}"


@pytest.mark.parametrize(
    ("output", "p99s", "longest"),
    [("500", (4000, 6000), 32_768), ("1000", (4000, 6000), 16_384), ("500", (2500, 3000), 8192)],
)
def test_no_context_is_named_below_both_p99s_also_where_the_longest_are_cut(output, p99s, longest):
    settings = (text.format(value) for text, value in zip(SETTINGS, (*p99s, longest), strict=True))
    told = [word for each in settings for word in ("--set", each)]

    result = run(*MODEL, "--tpot", "50ms", "--prompt", "2000", "--output", output,
                 "--rps", "30", "--set", "hardware.gpusPerReplica=1", *told)  # fmt: skip

    shorter = [int(each) for each in re.findall(r"contextLength: (\d+)  ", result.stdout)]
    assert result.exit_code == 0
    assert all(each >= sum(p99s) for each in shorter)


def test_the_first_line_has_the_split_that_costs_less_in_whole_instances():
    result = run(
        "plan", "--model", "Qwen/Qwen3-32B", "--gpu", "H200", "--rps", "11.2",
        "--prompt", "3000", "--output", "400", "--ttft", "2s", "--tpot", "60ms",
    )  # fmt: skip

    text = " ".join(result.stdout.split())
    shared, whole = map(float, re.findall(r"(\d+\.\d\d) (?:USD|in whole ones)", text)[:2])
    other = re.search(r"replicas? of\s+2\s+GPUs\s+cost\s+(\d+\.\d\d)\s+in", result.stdout)
    assert shared < whole
    assert other
    assert float(other[1]) < whole
