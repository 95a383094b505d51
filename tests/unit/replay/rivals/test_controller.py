from functools import cache

import pytest

from fleet_builders import a_model, a_request_of, a_sizing
from tonnage.replay.cluster import Start
from tonnage.replay.record import Served, kept
from tonnage.replay.rivals.controller import Given, RivalController
from tonnage.replay.rivals.registry import RIVALS
from tonnage.replay.simulation import Simulation
from tonnage.replay.traffic import Source, piecewise, traffic
from tonnage.settings import Settings
from tonnage.sizing.expected import expected_workload

SETTINGS = Settings(prometheus_url="http://prometheus.test:9090")
SMALL = {
    "model": {"id": "meta-llama/Llama-3.1-8B-Instruct"},
    "hardware": {"gpu": "H100", "gpusPerReplica": 1},
    "demand": {
        "requestsPerSecond": 8,
        "promptTokens": {"mean": 2000, "p99": 4000},
        "outputTokens": {"mean": 200},
    },
    "scaling": {"minReplicas": 1, "maxReplicas": 6, "routing": "LeastOutstanding"},
}
DURATION_S = 360.0


@cache
def simulated(name, replicas=2):
    model = a_model(**SMALL)
    request, sizing, rival = a_request_of(model), a_sizing(model), RIVALS[name]
    source = Source(
        rate=piecewise([(0, 4.0), (60, 30.0)]), shapes=((0.0, expected_workload(model.spec)),)
    )
    served = Served(
        model=model,
        traffic=traffic(source, duration_s=DURATION_S, context_tokens=request.context_tokens),
        start=Start(mean_s=60.0),
    )
    given = Given(
        flags=sizing.flags,
        replicas=replicas,
        believed_requests_per_s=sizing.goodput_requests_per_s,
        true_requests_per_s=sizing.goodput_requests_per_s,
    )
    controller = RivalController(
        SETTINGS,
        rules={model.uid: rival.factory(rival.default, SETTINGS.scrape_interval_s)},
        given={model.uid: given},
    )
    (record,) = Simulation([served], settings=SETTINGS, controller=controller).run(DURATION_S)
    return record


def test_the_fleet_that_is_given_is_ready_and_untouched_when_the_traffic_begins():
    record = simulated("hpa-concurrency")

    before = [moment for moment in record.moments if moment.at_s < 0]
    assert {moment.replicas for moment in before} == {2}
    assert before[0].at_s == -75
    assert all(pod.ready_s <= 0 for pod in record.cluster.pods[:2])


@pytest.mark.parametrize("name", RIVALS)
def test_a_rival_runs_and_stays_within_the_limits(name):
    record = simulated(name)

    assert record.faults == []
    assert all(1 <= moment.replicas <= 6 for moment in record.moments)
    assert kept(record, 0, DURATION_S).num_requests == record.served.traffic.num_requests


def test_a_load_that_rises_brings_replicas_when_they_are_asked_for():
    record = simulated("hpa-concurrency")

    assert max(moment.replicas for moment in record.moments) > 2
    assert all(moment.replicas == 2 for moment in record.moments if moment.at_s < 60)
    assert record.moments[-1].ready > 2


def test_the_same_run_twice_is_the_same():
    again = simulated.__wrapped__("llmd-slo")

    assert [m.replicas for m in again.moments] == [
        m.replicas for m in simulated("llmd-slo").moments
    ]
