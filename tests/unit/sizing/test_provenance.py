"""What an answer stands on: inputs are told apart by what they are about, not by how they read."""

from dataclasses import replace

import pytest

from builders import a_sizing_request
from fleet_builders import a_model
from tonnage.api.objects import InvalidSpecError
from tonnage.catalog.gpu import built_in_gpus
from tonnage.catalog.shape import Assumption
from tonnage.explain.report import assumption_reasons, estimate_status
from tonnage.sizing.provenance import (
    Figure,
    Input,
    Origin,
    assumed_inputs,
    with_changed,
    without_figures,
)
from tonnage.sizing.request import ask, look_up, spread_of
from tonnage.sizing.search import size


def inputs_of(spec):
    return ask(spec, look_up(spec, built_in_gpus())).inputs


def an_input(figure, value="1", which=""):
    return Input(figure=figure, value=value, origin=Origin.LOOKED_UP, which=which)


GPU = an_input(Figure.GPU, which="H100")
WEIGHTS = an_input(Figure.WEIGHTS)
NOTES = (an_input(Figure.MODEL, "a"), an_input(Figure.MODEL, "b"))


def test_a_name_says_which_where_there_are_several():
    assert GPU.name == "GPU H100"
    assert WEIGHTS.name == "weights"


def test_an_input_is_replaced_in_its_place_whatever_it_is_called():
    other = an_input(Figure.GPU, which="L4")

    assert with_changed((WEIGHTS, GPU, *NOTES), other) == (WEIGHTS, other, *NOTES)


def test_what_was_not_there_replaces_nothing():
    assert with_changed((GPU, *NOTES), WEIGHTS) == (GPU, *NOTES)


def test_all_that_is_about_a_figure_is_left_out():
    assert without_figures((GPU, *NOTES, WEIGHTS), Figure.MODEL, Figure.WEIGHTS) == (GPU,)


def schedules_written(*schedules):
    spec = a_model(scaling={"maxReplicas": 8, "schedules": schedules}).spec
    [found] = [each for each in inputs_of(spec) if each.figure is Figure.SCHEDULES]
    return found.value


@pytest.mark.parametrize(
    ("demand", "written"),
    [
        ({"requestsPerSecond": 4}, "4.00 requests/s, 10.0 at the peak"),
        ({"tokensPerSecond": 400}, "4.00 requests/s, 10.0 at the peak"),
        (
            {"tokensPerDay": 34_560_000},
            "34,560,000 output tokens per day = 4.00 requests/s, 10.0 at the peak",
        ),
        (
            {"concurrentUsers": 40, "dutyCyclePercent": 50},
            "20.0 requests always in flight (40 users, 50% of the time), 50.0 at the peak",
        ),
    ],
)
def test_a_peak_is_written_beside_what_usually_comes(demand, written):
    lengths = {"promptTokens": {"mean": 1000}, "outputTokens": {"mean": 100}}
    spec = a_model(demand=demand | lengths | {"peakPercent": 250}).spec

    assert written in [each.value for each in inputs_of(spec)]


def test_a_peak_of_no_rate_is_refused():
    demand = {"promptTokens": {"mean": 9}, "outputTokens": {"mean": 9}, "peakPercent": 250}

    with pytest.raises(InvalidSpecError, match=r"peakPercent needs one of requestsPerSecond, "):
        a_model(demand=demand)


def test_known_events_are_among_what_is_given():
    morning = {"cron": "0 8 * * 1-5", "timeZone": "Europe/Berlin", "duration": "2h"}
    both = morning | {"minReplicas": 4, "requestsPerSecond": "0.5"}

    assert schedules_written(both) == (
        "0 8 * * 1-5 Europe/Berlin for 2h: 0.5 requests/s and minReplicas 4"
    )
    assert schedules_written(morning | {"minReplicas": 4}).endswith("for 2h: minReplicas 4")


def test_of_many_known_events_three_are_named():
    hours = [{"cron": f"0 {hour} * * *", "duration": "1h", "minReplicas": 2} for hour in range(20)]

    assert schedules_written(*hours).endswith(
        "0 2 * * * Etc/UTC for 1h: minReplicas 2; and 17 more"
    )


def test_without_known_events_nothing_is_said_of_them():
    assert Figure.SCHEDULES not in {each.figure for each in inputs_of(a_model().spec)}


def an_assumption(effect="memory", times=1.5):
    return Assumption(
        about="model",
        taken="model_type new: 32 layers, each attends to all tokens",
        effect=effect,
        times=times,
        replaced_by="the KV tokens that the first Ready pod reports",
    )


def assuming(*assumptions):
    return a_sizing_request(inputs=tuple(assumed_inputs(assumptions)))


def test_an_assumption_about_memory_moves_the_high_end_of_the_cache_alone():
    sure, unsure = size(a_sizing_request()), size(assuming(an_assumption(times=1.2)))

    assert unsure.kv_tokens == sure.kv_tokens
    assert unsure.kv_tokens_range[0] == sure.kv_tokens_range[0]
    assert unsure.kv_tokens_range[1] == pytest.approx(1.2 * sure.kv_tokens_range[1])


def test_no_assumption_makes_a_cache_larger_than_the_memory():
    sizing = size(assuming(an_assumption(times=4.0)))

    tokens_per_byte = sizing.kv_tokens / sizing.replica.kv_pool_bytes
    assert sizing.kv_tokens_range[1] == sizing.budget.total_bytes * tokens_per_byte


@pytest.mark.parametrize("effect", ["time", "memory and time"])
def test_an_assumption_about_time_widens_what_a_step_may_take(effect):
    assert spread_of(assuming(an_assumption(effect))) == 0.5
    assert spread_of(assuming(an_assumption())) == spread_of(a_sizing_request()) < 0.5


def test_an_assumption_is_said_once_with_what_replaces_it():
    sizing = size(assuming(an_assumption(), an_assumption()))

    [reason] = assumption_reasons(sizing)
    found = estimate_status(sizing, None).inputs[0]
    assert reason == (
        "Assumed",
        "model: model_type new: 32 layers, each attends to all tokens; memory may be up to 50% "
        "too large; the KV tokens that the first Ready pod reports replaces this",
    )
    assert (found.origin, found.effect) == ("assumed", "memory")
    assert found.replaced_by == "the KV tokens that the first Ready pod reports"


def test_what_a_shape_assumes_is_an_input_of_the_plan():
    spec = a_model().spec
    known = look_up(spec, built_in_gpus())
    shape = replace(known.shape, assumptions=(an_assumption(),))

    assert ask(spec, replace(known, shape=shape)).inputs[-1].origin is Origin.ASSUMED
