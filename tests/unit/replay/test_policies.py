import math
from array import array
from dataclasses import replace
from functools import cache

import pytest

from fleet_builders import a_model, a_request_of, a_sizing
from tonnage.replay.cluster import StartupTime
from tonnage.replay.evaluation import width_of
from tonnage.replay.ground_truth import GroundTruth, true_replica, work_of
from tonnage.replay.policies import Scenario, static_peak
from tonnage.replay.policy import (
    OWN,
    RIVALS,
    Policy,
    UnknownPolicyError,
    default_policies,
    description_of,
    descriptions,
    policy_of,
)
from tonnage.replay.simulation import (
    SETTINGS,
    ReplayError,
    SyntheticWorkload,
    TraceWorkload,
    first_plan,
)
from tonnage.replay.traces import Trace, drawn_from
from tonnage.replay.traffic import SHAPES
from tonnage.sizing.serving.load_line import bound_requests_per_s
from tonnage.sizing.workload import Lengths, Workload

SMALL = {
    "model": {"id": "meta-llama/Llama-3.1-8B-Instruct"},
    "hardware": {"gpu": "H100", "gpusPerReplica": 1},
    "demand": {
        "requestsPerSecond": 8,
        "promptTokens": {"mean": 2000, "p99": 4000},
        "outputTokens": {"mean": 200},
    },
}


@cache
def small():
    model = a_model(**SMALL)
    return model, first_plan(model)


def even_trace(*stages, prompt=2000, output=200):
    """Requests evenly apart, at so many per second for so long."""
    arrival_s, begun_s = array("d"), 0.0
    for rate, duration_s in stages:
        arrival_s.extend(begun_s + k / rate for k in range(int(rate * duration_s)))
        begun_s += duration_s
    number = len(arrival_s)
    return TraceWorkload(
        trace=Trace(
            arrival_s=arrival_s,
            prompt_tokens=array("q", [prompt] * number),
            output_tokens=array("q", [output] * number),
        ),
        duration_s=begun_s,
    )


def a_scenario(requests, **changes):
    model, plan = small()
    return Scenario(
        **{
            "model": model,
            "requests": requests,
            "start": StartupTime(mean_s=60.0),
            "planned": plan,
            "target": 0.95,
        }
        | changes
    )


@cache
def fared(name, *stages, **changes):
    return a_scenario(even_trace(*stages), **changes).outcome_of(policy_of(name))


def test_every_policy_is_described_in_a_line():
    told = descriptions()

    assert list(told) == [*OWN, *RIVALS, "MODULE:CLASS"]
    assert list(RIVALS) == ["hpa-concurrency", "keda-epp-queue", "llmd-slo", "wva-throughput"]
    assert all(what and "\n" not in what for what in told.values())


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("static:1", "1 replica all the time"),
        ("static:4", "4 replicas all the time"),
        ("hpa-concurrency:24", ": 24)"),
        ("hpa-concurrency", f": {RIVALS['hpa-concurrency'].default:g})"),
    ],
)
def test_a_policy_is_described_with_the_number_that_it_was_given(text, what):
    assert description_of(policy_of(text)).endswith(what)


def test_a_policy_is_a_name_with_or_without_a_number():
    assert policy_of("tonnage") == Policy(name="tonnage")
    assert policy_of(" static:4 ") == Policy(name="static", knob=4.0)
    assert str(policy_of("hpa-concurrency:24")) == "hpa-concurrency:24"


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("statik", "no policy"),
        ("static", "static:4"),
        ("static:2.5", "number of replicas"),
        ("static:0", "number of replicas"),
        ("tonnage:3", "no number"),
        ("hpa-concurrency:many", "above 0"),
        ("hpa-concurrency:nan", "above 0"),
    ],
)
def test_a_policy_that_is_none_says_what_is_wrong(text, what):
    with pytest.raises(UnknownPolicyError, match=what):
        policy_of(text)


def test_all_begin_with_what_the_operator_deploys_first():
    model, plan = small()
    sizing = a_sizing(model)

    assert plan.flags.parallelism == sizing.flags.parallelism
    assert plan.replicas >= sizing.replicas
    assert 0 < plan.believed_requests_per_s <= sizing.goodput_requests_per_s


def test_a_first_fleet_of_more_than_one_step_is_there_for_all():
    demand = SMALL["demand"] | {"requestsPerSecond": 100}
    model = a_model(**SMALL | {"demand": demand, "scaling": {"maxReplicas": 16}})
    plan = first_plan(model)
    scenario = a_scenario(even_trace((100.0, 30.0)), model=model, planned=plan)

    found = [scenario.outcome_of(policy_of(name)) for name in ("tonnage", "hpa-concurrency")]

    assert plan.replicas > SETTINGS.max_scale_up_replicas
    assert [each.points[0].ready for each in found] == [plan.replicas] * 2


def test_what_cannot_be_served_is_refused_with_the_reason():
    model = a_model(**SMALL, slo={"timePerOutputToken": {"p95": "1ms"}})

    with pytest.raises(ReplayError, match="SLOInfeasible"):
        first_plan(model)


def test_a_constant_fleet_costs_what_it_has():
    found = fared("static:3", (4.0, 120.0))

    assert found.judged.gpu_hours == pytest.approx(3 * 120 / 3600)
    assert found.judged.num_requests == 480
    assert (found.judged.scaled_up, found.judged.max_replicas) == (0, 3)
    assert found.judged.attainment == 1.0
    assert [point.ready for point in found.points] == [3.0, 3.0]
    assert [point.requests_per_s for point in found.points] == [4.0, 4.0]


@pytest.mark.parametrize(("first", "needed"), [(1, 1), (1, 5), (3, 3), (4, 3), (9, 2), (2, 17)])
def test_the_static_peak_is_the_smallest_number_that_keeps_the_target(first, needed):
    tried = []

    def run(number):
        tried.append(number)
        return min(1.0, number / needed)

    found = static_peak(run, target=1.0, first=first)

    assert found.replicas == needed
    assert len(tried) == len(set(tried)) == found.num_runs


def test_there_is_no_static_peak_where_more_replicas_do_not_help():
    found = static_peak(lambda number: min(0.9, number / 10), target=0.95, first=3)

    assert found.replicas is None
    assert found.best_attainment == 0.9
    assert found.num_runs <= 5  # 3, 6, 12, 24


def test_a_fleet_that_is_below_the_work_in_the_mean_is_no_sign_that_more_do_not_help():
    found = static_peak(lambda number: float(number >= 90), target=0.95, first=1, least=50.0)

    assert found.replicas == 90


def test_the_static_peak_keeps_the_target_and_one_replica_less_does_not():
    stages = (24.0, 180.0)
    found = fared("best-static", stages)
    number = found.judged.max_replicas

    assert number > 1
    assert found.judged.attainment >= 0.95
    assert fared(f"static:{number - 1}", stages).judged.attainment < 0.95


def test_no_constant_fleet_serves_what_is_longer_than_the_context():
    requests = even_trace((2.0, 60.0), prompt=8000, output=200)
    found = a_scenario(requests).outcome_of(policy_of("best-static"))

    assert found.judged is None
    assert "120 of 120 are longer than contextLength" in found.notes[0]


def test_what_policies_of_a_draw_share_is_changed_by_none():
    stages = ((4.0, 60.0), (16.0, 60.0))
    names = ("best-static", "wva-throughput", "tonnage")
    drawn = a_scenario(even_trace(*stages))
    together = {name: drawn.outcome_of(policy_of(name)) for name in (*names, *reversed(names))}

    assert together == {name: fared(name, *stages) for name in names}


def test_tonnage_and_a_rival_get_the_same_requests():
    stages = (4.0, 60.0)
    own, rival = fared("tonnage", stages), fared("hpa-concurrency", stages)

    assert own.judged.num_requests == rival.judged.num_requests == 240
    assert own.points[0].replicas == rival.points[0].replicas == small()[1].replicas
    assert own.faults == rival.faults == ()


def test_slower_engines_keep_less():
    stages = (20.0, 120.0)
    slow, usual = (fared("static:2", stages, speed=speed) for speed in (0.6, 1.0))

    assert slow.judged.attainment < usual.judged.attainment


def test_refusals_keep_more_of_a_step_and_no_less_else():
    calm, step = ((8.0, 120.0),), ((8.0, 60.0), (40.0, 120.0))

    assert fared("in-time", *step).judged.attainment > 0.1 + (
        fared("tonnage", *step).judged.attainment
    )
    assert fared("in-time", *calm).judged == fared("tonnage", *calm).judged


def test_who_is_refused_came_and_was_not_served():
    judged = fared("in-time", (8.0, 60.0), (40.0, 120.0)).judged

    assert judged.num_requests == fared("tonnage", (8.0, 60.0), (40.0, 120.0)).judged.num_requests
    assert judged.num_unserved > 1000
    assert judged.attainment < 1 - judged.num_unserved / judged.num_requests + 0.001


def test_refusals_are_nothing_without_a_ttft_target():
    model, plan = small()
    spec = model.spec.model_copy(
        update={"slo": model.spec.slo.model_copy(update={"time_to_first_token": None})}
    )
    scenario = a_scenario(even_trace((4.0, 60.0)), model=replace(model, spec=spec), planned=plan)
    found = scenario.outcome_of(policy_of("in-time"))

    assert found.judged is None
    assert "slo.timeToFirstToken" in found.notes[0]
    assert "in-time" not in map(str, default_policies(spec))


def test_refusals_are_nothing_on_a_release_that_does_not_count_them():
    model, plan = small()
    engine = model.spec.engine.model_copy(update={"version": "0.31"})
    older = replace(model, spec=model.spec.model_copy(update={"engine": engine}))
    scenario = a_scenario(even_trace((4.0, 60.0)), model=older, planned=plan)
    found = scenario.outcome_of(policy_of("in-time"))

    assert found.judged is None
    assert "engine.version 0.32" in found.notes[0]


def test_a_replay_compares_refusals_where_nobody_is_refused():
    waiting = small()[0].spec
    refusing = waiting.model_copy(
        update={"engine": waiting.engine.model_copy(update={"admission": "inTime"})}
    )

    assert "in-time" in map(str, default_policies(waiting))
    assert "in-time" not in map(str, default_policies(refusing))


def test_a_truth_that_is_drawn_is_another_with_another_seed():
    drawn = [a_scenario(even_trace((1.0, 60.0)), speed=None, seed=seed).truth for seed in (0, 0, 1)]

    assert drawn[0] == drawn[1] != drawn[2]
    for truth in drawn:
        assert 0.75 <= truth.bandwidth_factor <= 1.25
        assert 0.5 <= truth.overhead_factor <= 2.0


def test_a_shape_is_drawn_for_the_demand_of_the_spec():
    found = a_scenario(SyntheticWorkload(shape=SHAPES["steady"], requests_per_s=2.0)).drawn

    assert found.num_requests == pytest.approx(7200, rel=0.05)


@pytest.mark.parametrize("speed", [1.0, 0.5])
def test_the_work_of_equal_requests_is_their_number_over_the_bound(speed):
    model, plan = small()
    request, truth = a_request_of(model), GroundTruth(speed=speed)
    requests = even_trace((2.0, 300.0))
    drawn = drawn_from(requests.trace, duration_s=600.0, context_tokens=8192)
    found = work_of(drawn, request, plan.flags, truth)

    each = Workload(
        prompt=Lengths(mean_tokens=2000, p99_tokens=2000),
        output_tokens=200,
        output_second_moment=40_000.0,
    )
    replica = true_replica(request, plan.flags, truth)
    bound = bound_requests_per_s(replica, each, request.slo)
    if speed < 1:  # the limit on the TPOT leaves a smaller batch, too
        assert found.gpu_hours * 3600 > 600 / bound / speed
    else:
        assert found.gpu_hours * 3600 == pytest.approx(600 / bound, rel=1e-6)
        # Once the first have ended, as many are served as come.
        assert found.mean(60, 240) == pytest.approx(2 / bound, rel=0.01)


def test_points_are_wide_enough_to_be_few():
    assert width_of(60 * 300) == 60
    assert width_of(7 * 86_400) == 3600
    assert math.isfinite(width_of(math.inf))
