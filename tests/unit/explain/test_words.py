"""The reasons of a plan: a reader who recomputes them comes to the same figures."""

import re
from functools import cache

import pytest

from builders import a_sizing_request
from tonnage.api.spec import Spec
from tonnage.catalog.gpu import built_in_gpus
from tonnage.explain.report import sizing_reasons
from tonnage.explain.words import explain
from tonnage.sizing.request import ask, look_up
from tonnage.sizing.search import size
from tonnage.sizing.workload import Demand
from tonnage.units import GIB, format_s, significant

GPT_OSS, LLAMA = "openai/gpt-oss-20b", "meta-llama/Llama-3.1-8B-Instruct"
UNIT_S = {"ms": 1e-3, "µs": 1e-6, "us": 1e-6, "s": 1}


def request_of(model, *, prompt_p99=None, output_p99=None, **parallelism):
    """4,000 prompt and 500 output tokens on H100."""
    spec = Spec.model_validate(
        {
            "model": {"id": model},
            "hardware": {"gpu": "H100", "parallelism": parallelism or None},
            "contextLength": 8192,
            "demand": {
                "requestsPerSecond": 1,
                "promptTokens": {"mean": 4000, "p99": prompt_p99},
                "outputTokens": {"mean": 500, "p99": output_p99},
            },
            "slo": {"timeToFirstToken": {"p95": "2s"}, "timePerOutputToken": {"p95": "50ms"}},
            "scaling": {"maxReplicas": 8},
            "engine": {"version": "0.33"},
        }
    )
    return ask(spec, look_up(spec, built_in_gpus()))


@cache
def sizing_of(model, **parallelism):
    return size(request_of(model, **parallelism))


def bottleneck_lines(model, **parallelism):
    _, bottleneck, *_ = explain(sizing_of(model, **parallelism))
    return bottleneck.lines


def seconds_of(written):
    value, unit = re.match(r"([\d.]+) (\S+)", written).groups()
    return float(value) * UNIT_S[unit]


@pytest.mark.parametrize("model", ["openai/gpt-oss-120b", LLAMA])
def test_each_part_that_a_step_reads_has_its_size_and_its_share_of_the_bandwidth(model):
    (reads,) = [line for line in bottleneck_lines(model) if line.startswith("a step reads")]
    parts, in_all = reads.rsplit(": ", 1)

    terms = re.findall(r"([\d.]+) GiB .*? at (\d+)%", parts)
    bandwidth = float(re.search(r"of ([\d.]+) TB/s", parts)[1]) * 1e12
    by_hand_s = sum(float(size) * GIB / (bandwidth * int(share) / 100) for size, share in terms)

    size, time = re.fullmatch(r"([\d.]+) GiB in ([\d.]+) ms", in_all).groups()
    assert sum(float(size) for size, _ in terms) == pytest.approx(float(size), abs=0.16)
    assert by_hand_s * 1000 == pytest.approx(float(time), rel=0.02)


@pytest.mark.parametrize(
    ("model", "parallelism"),
    [("openai/gpt-oss-120b", {}), (LLAMA, {}), (LLAMA, {"tensor": 2}), (LLAMA, {"pipeline": 2})],
)
def test_the_parts_of_a_step_add_up_to_the_time_of_a_step(model, parallelism):
    (line,) = [each for each in bottleneck_lines(model, **parallelism) if "a step =" in each]
    reads = next(each for each in bottleneck_lines(model, **parallelism) if "step reads" in each)
    _, parts, in_all = line.split(" = ")

    terms = parts.split(" + ")
    assert sum(map(seconds_of, terms)) == pytest.approx(seconds_of(in_all), rel=0.005)
    assert in_all == format_s(sizing_of(model, **parallelism).at_capacity.step_s)
    assert terms[0] == f"{reads.rsplit(' in ')[-1]} reads"


def test_experts_that_a_step_reads_are_counted_beside_those_that_a_layer_has():
    (experts,) = [line for line in bottleneck_lines(GPT_OSS) if "experts read" in line]

    # 3 matrices of 3072 x 2944 (2880 x 2880 padded) in 4.25 bits, 3 x 2880 biases in 16: 13.8 MiB.
    assert re.fullmatch(
        r"experts read in each of 24 layers: (2\d|3[0-2])\.\d of 32 \(a token takes 4\), "
        "13.8 MiB each on a GPU, padded for the kernels",
        experts,
    )


def test_a_model_without_experts_has_no_word_of_them():
    assert "experts" not in " ".join(bottleneck_lines(LLAMA))


def test_stages_read_one_after_the_other():
    lines = bottleneck_lines(LLAMA, pipeline=2)

    # 13.0 GiB of layers in two stages, the last of which has the head of 1.0 GiB too.
    assert "per GPU, in each of 2 stages in turn, 7.5 GiB weights at" in " ".join(lines)


@pytest.mark.parametrize(
    ("prompt", "output", "assumed"),
    [  # 500 ln 100 = 2303
        (None, None, "every prompt of mean length; outputs exponential: p99 2303 tokens"),
        (7000, None, "outputs exponential: p99 2303 tokens"),
        (None, 1500, "every prompt of mean length"),
        (7000, 1500, None),
    ],
)
def test_a_spread_of_lengths_that_nobody_gave_is_among_the_assumptions(prompt, output, assumed):
    found = request_of(LLAMA, prompt_p99=prompt, output_p99=output).inputs

    spread = [(each.value, each.origin) for each in found if each.name == "spread of lengths"]
    assert spread == ([(assumed, "guessed")] if assumed else [])


def test_the_rate_of_one_of_many_is_beside_that_of_one_alone():
    bursty = {"arrival_scv": 4.0, "demand": Demand(requests_per_s=80), "num_gpus": 1}
    sizing = size(a_sizing_request(**bursty, routing="LeastOutstanding"))
    *_, replicas = explain(sizing)
    [line], each = replicas.lines, sizing.staffing.each(sizing.replicas)

    # Idle neighbours take what comes in bursts: a replica of many serves more than one alone.
    assert each > 1.05 * sizing.goodput_requests_per_s
    assert f"alone: {significant(sizing.goodput_requests_per_s)} requests/s" in line
    assert (
        f"of one of {sizing.replicas}, with routing LeastOutstanding: {significant(each)}" in line
    )
    assert any(
        f"over {significant(each)} per replica need {sizing.replicas}" in reason.message
        for reason in sizing_reasons(sizing)
    )
