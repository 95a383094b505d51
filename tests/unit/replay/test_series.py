"""A run over time: means of whiles, which add up to what the run took."""

import math
from array import array
from itertools import zip_longest
from types import SimpleNamespace

import pytest

from fleet_builders import a_model
from thorough import one_of_each
from tonnage.replay.cluster import StartupTime
from tonnage.replay.evaluation import RequestOutcomes, series
from tonnage.replay.policies import Scenario
from tonnage.replay.policy import OWN, RIVALS, policy_of
from tonnage.replay.simulation import SyntheticWorkload, first_plan
from tonnage.replay.traffic import SHAPES


def a_pod(created_s, ready_s, deleted_s=math.inf, ended_s=math.inf):
    return SimpleNamespace(
        created_s=created_s, ready_s=ready_s, deleted_s=deleted_s, ended_s=ended_s
    )


def points(*pods, asked, duration_s, planned=()):
    """Of nobody's requests; replicas asked for as (time, number), at each act of a controller.

    ``planned``: requests/s, by act; none of them is known.
    """
    record = SimpleNamespace(
        cluster=SimpleNamespace(table=SimpleNamespace(first_token_s=array("d")), pods=pods),
        moments=[
            SimpleNamespace(at_s=at_s, replicas=number, planned_requests_per_s=rate)
            for (at_s, number), rate in zip_longest(asked, planned)
        ],
    )
    none = array("d")
    found = series(
        record,
        SimpleNamespace(arrival_s=none, duration_s=duration_s),
        RequestOutcomes(arrival_s=none, ttft_s=none, tpot_s=none, is_kept=b"", num_too_long=0),
        SimpleNamespace(mean=lambda _, __: 0.0),
    )
    return list(found)


def test_what_was_asked_for_holds_until_the_next_act():
    found = points(asked=[(-180.0, 1), (0.0, 2), (180.0, 4)], duration_s=240.0)

    assert [each.replicas for each in found] == [2, 2, 2, 4]


def test_what_is_planned_for_is_told_by_a_controller_that_says_it():
    asked = [(-180.0, 1), (0.0, 2), (90.0, 4)]

    told = points(asked=[*asked, (120.0, 4), (150.0, 4)], duration_s=180.0,
                  planned=[None, 4.0, 8.0, None, 2.0])  # fmt: skip
    silent = points(asked=asked, duration_s=120.0)

    assert [each.planned_requests_per_s for each in told] == [4.0, 6.0, 2.0]
    assert [each.planned_requests_per_s for each in silent] == [None, None]


def test_pods_are_billed_from_creation_to_their_end_and_ready_until_they_are_deleted():
    # One of the whole time, Ready at 30 s; one of 45 to 135 s, Ready at 75 and deleted at 120 s.
    found = points(
        a_pod(-60.0, 30.0), a_pod(45.0, 75.0, 120.0, 135.0), asked=[(-60.0, 1)], duration_s=150.0
    )

    assert [(each.at_s, each.until_s) for each in found] == [(0, 60), (60, 120), (120, 150)]
    assert [each.live for each in found] == [1.25, 2.0, 1.5]
    assert [each.ready for each in found] == [0.5, 1.75, 1.0]


def test_a_pod_that_was_deleted_before_it_was_ready_never_was():
    (found,) = points(a_pod(0.0, 50.0, 20.0, 20.0), asked=[(-15.0, 1)], duration_s=60.0)

    assert (found.live, found.ready) == (pytest.approx(20 / 60), 0)


@pytest.fixture(scope="module")
def steps():
    """Return a load that steps up and down, of replicas with two GPUs each."""
    model = a_model(
        model={"id": "meta-llama/Llama-3.1-8B-Instruct"},
        hardware={"gpu": "H100", "gpusPerReplica": 2},
        demand={
            "requestsPerSecond": 8,
            "promptTokens": {"mean": 2000, "p99": 4000},
            "outputTokens": {"mean": 200},
        },
    )
    return Scenario(
        model=model,
        requests=SyntheticWorkload(shape=SHAPES["step"], requests_per_s=16.0),
        start=StartupTime(mean_s=60.0),
        planned=first_plan(model),
        target=0.9,
    )


@pytest.mark.parametrize(
    "name",
    one_of_each(
        ["static:3" if name == "static" else name for name in (*OWN, *RIVALS)],
        lambda name: name if name in {"tonnage", "static:3"} else "of another autoscaler",
    ),
)
def test_what_is_billed_adds_up_to_the_gpu_hours(steps, name):
    found = steps.outcome_of(policy_of(name))

    billed_s = sum(each.live * (each.until_s - each.at_s) for each in found.points)
    assert 2 * billed_s / 3600 == pytest.approx(found.judged.gpu_hours, rel=1e-9)
