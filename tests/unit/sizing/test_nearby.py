"""An answer carried over to a question near it, held against the search that it saves."""

from dataclasses import replace

import pytest
from replay_cases import CHAT, Lengths, manifest

from tonnage.api.objects import parse_model_deployment
from tonnage.catalog.gpu import built_in_gpus
from tonnage.control.input.sizing_cache import SizingCache
from tonnage.sizing.nearby import MEAN_SHARE, SEARCH_GRID_RATIO, can_extrapolate, extrapolate
from tonnage.sizing.request import ask, look_up
from tonnage.sizing.search import size
from tonnage.units import nearest


def a_request(**changes):
    """8 billion parameters on H100, p95 targets, with the flags that a plan chooses."""
    spec = parse_model_deployment(manifest(CHAT, 10.0, quantile="p95")).spec
    request = ask(spec, look_up(spec, built_in_gpus()))
    return replace(request, flags=size(request).flags, **changes)


def longer(request, *, prompt=1.0, output=1.0):
    workload = request.workload
    moved = replace(
        workload,
        prompt=replace(
            workload.prompt,
            mean_tokens=workload.prompt.mean_tokens * prompt,
            p99_tokens=workload.prompt.p99_tokens * prompt,
        ),
        output_tokens=workload.output_tokens * output,
        output_second_moment=workload.output_second_moment * output**2,
    )
    return replace(request, workload=moved)


def faster(request, bandwidth):
    speed = request.speed
    efficiency = speed.bandwidth_efficiency * bandwidth
    return replace(request, speed=replace(speed, bandwidth_efficiency=efficiency))


def test_the_grid_has_the_origin_on_it_and_steps_of_a_tenth():
    assert nearest(1.04 * 2000, ratio=SEARCH_GRID_RATIO, origin=2000) == 2000
    assert nearest(1.06 * 2000, ratio=SEARCH_GRID_RATIO, origin=2000) == pytest.approx(2200)
    assert nearest(2000 / 1.06, ratio=SEARCH_GRID_RATIO, origin=2000) == pytest.approx(2000 / 1.1)


def test_the_same_question_has_the_same_answer():
    answer = size(a_request())

    assert extrapolate(answer, answer.request) == answer


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda request: longer(request, prompt=1.05), id="longer prompts"),
        pytest.param(lambda request: longer(request, output=1 / 1.05), id="shorter answers"),
        pytest.param(lambda request: faster(request, 1.05), id="faster reads"),
    ],
)
def test_what_is_carried_over_is_nearer_to_the_search_than_the_neighbour_is(change):
    near = size(a_request())
    exact = size(change(near.request))
    found = extrapolate(near, exact.request)

    truth = exact.goodput_requests_per_s
    off = abs(found.goodput_requests_per_s / truth - 1)
    assert can_extrapolate(near)
    assert off < 0.015  # the search itself has a standard error of 1 %
    assert off < abs(near.goodput_requests_per_s / truth - 1) / 2
    assert found.staffing.each(8) == pytest.approx(exact.staffing.each(8), rel=0.015)
    # Near the wall steps grow about three times as fast as the rate, which is 1.5 % off at most.
    assert found.at_capacity.tpot_s == pytest.approx(exact.at_capacity.tpot_s, rel=0.05)


def test_bursts_that_lower_the_load_leave_an_answer_that_says_what_a_fleet_serves():
    lengths = Lengths(prompt_mean=1300, prompt_p99=3500, output_mean=200, output_p99=900)
    spec = parse_model_deployment(manifest(lengths, 10.0)).spec
    request = ask(spec, look_up(spec, built_in_gpus()))
    request = replace(request, max_num_batched_tokens=8192)  # by smaller steps TTFT limits it
    near = size(replace(request, flags=size(request).flags, arrival_scv=16.0))
    exact = size(longer(near.request, prompt=1 / 1.05, output=1.05))

    limit_s = near.request.slo.tpot[0].limit_s
    assert near.limited_by == "TimePerOutputToken"
    assert near.at_capacity.tpot_s < MEAN_SHARE * limit_s  # too little for calm arrivals
    assert can_extrapolate(near)
    each, truth = extrapolate(near, exact.request).staffing.each(8), exact.staffing.each(8)
    assert abs(each / truth - 1) < abs(near.staffing.each(8) / truth - 1)
    assert each == pytest.approx(truth, rel=0.1)


def test_a_neighbour_of_what_was_searched_is_not_searched():
    asker, near = SizingCache(), a_request()
    first = asker.size(longer(near, prompt=1.02), near=lambda: near)
    second = asker.size(longer(near, prompt=1.04), near=lambda: near)

    assert asker.num_searched == 1
    assert second.request == longer(near, prompt=1.04)
    assert second.goodput_requests_per_s < first.goodput_requests_per_s


def test_the_answer_to_another_object_comes_with_the_words_of_who_asks():
    asker, request = SizingCache(), a_request()
    other = replace(request, inputs=request.inputs[:1])

    first, again, second = map(asker.size, (request, request, other))

    assert asker.num_searched == 1
    assert again is first
    assert second.request == other


def test_what_a_neighbour_cannot_serve_is_asked_itself():
    request = a_request()
    near = replace(request, slo=strict(request.slo, 1e-3))
    asker = SizingCache()

    assert asker.size(request, near=lambda: near) == size(request)
    assert asker.num_searched == 2


def strict(slo, factor):
    targets = tuple(replace(each, limit_s=each.limit_s * factor) for each in slo.tpot)
    return replace(slo, tpot=targets)
