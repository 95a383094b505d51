"""What Prometheus counted of a fleet, as requests by the minute and lengths by ten."""

import math

import pytest

from tonnage.replay.measured_traffic import CountedError, Span, count_traffic

SPAN = Span(selector='pod=~"llama-.+"', from_s=1_000_000_000, num_steps=20, step_s=60)
LADDER = {"100.0": 50, "200.0": 80, "+Inf": 100}


def series(values, **labels):
    """One series: values by step, None where there is none."""
    points = {step: value for step, value in enumerate(values) if value is not None}
    return [(labels, points)]


def buckets(*windows):
    return [
        ({"le": le}, {n: each[le] for n, each in enumerate(windows) if each})
        for le in ("100.0", "200.0", "+Inf")
    ]


def told(**changes):
    """Twenty minutes in each of which 60 complete, of 120 tokens in the mean."""
    return {
        "completions": series([60.0] * 20, model_name="llama"),
        "running growth": series([0.0] * 20),
        "waiting growth": series([0.0] * 20),
        "rejections": [],
        "pods": series([3.0] * 20),
        "prompts": buckets(LADDER, LADDER),
        "prompts tokens": series([12_000.0] * 2),
        "outputs": buckets(LADDER, LADDER),
        "outputs tokens": series([12_000.0] * 2),
    } | {name.replace("_", " "): value for name, value in changes.items()}


def test_what_came_is_what_completed_what_runs_and_waits_more_and_what_was_rejected():
    found = count_traffic(
        SPAN,
        told(
            running_growth=series([5.0, -5.0, *[0.0] * 18]),
            waiting_growth=series([7.0, *[0.0] * 19]),
            rejections=series([1.0, *[None] * 19]),
        ),
    )

    assert found.requests[:3] == (73, 55, 60)


def test_no_minute_has_less_than_no_requests():
    assert count_traffic(SPAN, told(running_growth=series([-80.0, *[0.0] * 19]))).requests[0] == 0


def test_a_spread_has_what_lies_between_bounds_and_the_mean_that_was_counted():
    (first, _) = count_traffic(SPAN, told()).prompts

    assert first.bounds == (0, 100, 200, math.inf)
    assert first.counts == (50, 30, 20)
    assert first.mean_tokens == 120


def test_ten_minutes_in_which_nothing_ended_are_like_those_before():
    found = count_traffic(
        SPAN,
        told(prompts=buckets(LADDER, dict.fromkeys(LADDER, 0)), prompts_tokens=series([9000.0, 0])),
    )

    assert [each.mean_tokens for each in found.prompts] == [90, 90]


def test_the_fleet_is_counted_by_its_pods():
    assert count_traffic(SPAN, told(pods=series([2.0] * 10 + [5.0] * 10))).mean_pods == 3.5
    assert count_traffic(SPAN, told(pods=[])).mean_pods is None


def test_what_is_missing_lies_on_the_line_between_its_neighbours_and_is_told():
    values = [60.0] * 20
    values[5], values[6], values[7] = 30.0, None, 90.0
    found = count_traffic(SPAN, told(completions=series(values)))

    assert found.requests[5:8] == (30, 60, 90)
    assert found.missing == (6,)
    assert found.gaps == (
        "60.00 s of 20.0 min have no figures, the longest gap 60.00 s from 2001-09-09 01:52 UTC: "
        "assumed like the minutes around"
    )


def test_a_minute_without_one_of_the_gauges_is_missing_and_not_without_growth():
    found = count_traffic(SPAN, told(waiting_growth=series([0.0] * 19 + [None])))

    assert len(found.requests) == 19


def test_what_lies_before_the_first_figures_is_left_out():
    found = count_traffic(SPAN, told(completions=series([None] * 11 + [60.0] * 9)))

    # The second window begins at minute 10, which is missing.
    assert (found.span.num_steps, found.span.from_s) == (10, SPAN.from_s + 600)
    assert found.missing == (0,)
    assert len(found.prompts) == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"completions": []}, r'no vllm:request_success_total\{pod=~"llama-\.\+"\} with '),
        ({"running_growth": []}, "with vllm:num_requests_running"),
        (
            {"completions": series([60.0], model_name="b") + series([1.0], model_name="a")},
            "of 2 models, a, b: choose one by its model_name",
        ),
        (
            {"completions": series([60.0, None, None] * 6 + [60.0])},
            "63% of the time has no figures, more than 10%.*more than 30.00 s apart",
        ),
        ({"completions": series([0.0] * 20)}, "no request came"),
        ({"prompts": []}, "no vllm:request_prompt_tokens_bucket and "),
        ({"outputs_tokens": []}, "no vllm:request_generation_tokens_bucket and "),
    ],
)
def test_what_no_trace_can_be_drawn_of_is_refused_with_the_reason(changes, message):
    with pytest.raises(CountedError, match=message):
        count_traffic(SPAN, told(**changes))


def test_a_model_that_had_no_series_in_the_time_is_not_mixed_in():
    completions = series([60.0] * 20, model_name="llama") + series([None], model_name="other")

    assert count_traffic(SPAN, told(completions=completions)).model_name == "llama"
