import json
import math
from bisect import bisect_left
from dataclasses import replace
from functools import cache

import pytest

from changing_engines import ChangingSimulation
from fleet_builders import SITE, a_model, a_request_of, a_sizing
from oracle import Oracle
from scrape_faults import lying, multiplied, silent, stale, without_numbers
from slo_shares import slo_shares
from tonnage.control.write.writes import Scale, Writes
from tonnage.estimate.metrics import LATENCY_BOUNDS_S
from tonnage.manifests.children import deployment
from tonnage.manifests.names import FLAGS_ANNOTATION
from tonnage.replay.cluster import EPOCH_S, ReplayedModel, SimulatedCluster, StartupTime
from tonnage.replay.ground_truth import GroundTruth, machine
from tonnage.replay.policies import ConstantFleet
from tonnage.replay.prometheus import Ladders, drop_scrapes
from tonnage.replay.simulation import Simulation, deployment_view, pod_views
from tonnage.replay.traffic import TrafficSource, traffic
from tonnage.settings import Settings
from tonnage.sizing.expected import expected_workload

SETTINGS = Settings(prometheus_url="http://prometheus.test:9090", speed_range=0)
CAUTIOUS = Settings(prometheus_url="http://prometheus.test:9090")
"""With the slow end of what is believed, as it is by default."""
SMALL = {
    "model": {"id": "meta-llama/Llama-3.1-8B-Instruct"},
    "hardware": {"gpu": "H100", "gpusPerReplica": 1},
    "demand": {
        "requestsPerSecond": 8,
        "promptTokens": {"mean": 2000, "p99": 4000},
        "outputTokens": {"mean": 200},
    },
}
LADDERS = Ladders(ttft_s=LATENCY_BOUNDS_S, tpot_s=LATENCY_BOUNDS_S)


def some_traffic(model, rate, *, duration_s):
    source = TrafficSource(rate=lambda _: rate, shapes=((0.0, expected_workload(model.spec)),))
    return traffic(source, duration_s=duration_s, context_tokens=8192)


def a_cluster(*, rate=1.0, duration_s=600.0, drain_s=600.0, **changes):
    model = a_model(**SMALL)
    served = ReplayedModel(
        model=model,
        traffic=some_traffic(model, rate, duration_s=duration_s),
        start=StartupTime(mean_s=100.0, jitter=0.2),
    )
    return SimulatedCluster(served=replace(served, **changes), drain_s=drain_s)


def creating(replicas):
    model = a_model(**SMALL)
    return Writes(
        namespace="serving",
        name=model.name,
        uid=model.uid,
        template=deployment(model, a_sizing(model), SITE),
        creates=True,
        first_replicas=replicas,
    )


def scaling(replicas, seen=2):
    scale = Scale(deployment="llama", uid="", seen=seen, replicas=replicas)
    return Writes(namespace="serving", name="llama", uid="", scale=scale)


def readied(cluster):
    for pod in cluster.pods:
        cluster.open(pod)
    return cluster


def num_ended(*pods):
    """Return the requests that have got all their tokens, by the pages of their engines."""
    ended = "vllm:e2e_request_latency_seconds_count"
    pages = (pod.counters.page(1e9) for pod in pods)
    return sum(page[key] for page in pages for key in page if key[0] == ended)


def test_pods_start_within_the_jitter_and_each_at_another_time():
    cluster = a_cluster()
    cluster.apply(creating(40), 30.0)

    starts_s = [pod.ready_s - pod.created_s for pod in cluster.pods]
    assert all(80 <= start_s <= 120 for start_s in starts_s)
    assert max(starts_s) - min(starts_s) > 30
    assert {pod.created_s for pod in cluster.pods} == {30.0}


def test_gpus_are_billed_from_creation_to_the_end_of_the_last_request():
    cluster = a_cluster(rate=2.0)
    cluster.apply(creating(2), -150.0)
    readied(cluster).dispatch(100.0)
    cluster.apply(scaling(1), 100.0)
    list(cluster.end_drained(400.0))

    stays, goes = cluster.pods
    assert goes.deleted_s == 100.0
    assert 100.0 < goes.ended_s == goes.engine.now_s < 130.0
    assert goes.gpu_s(-200.0, 400.0) == pytest.approx(150.0 + goes.ended_s)
    assert stays.gpu_s(-200.0, 400.0) == 550.0
    assert stays.gpu_s(0.0, 60.0) == 60.0


def test_a_pod_that_is_taken_away_gets_nothing_more_and_finishes_what_it_has():
    cluster = a_cluster(rate=4.0)
    cluster.apply(creating(2), -150.0)
    readied(cluster).dispatch(50.0)
    cluster.apply(scaling(1), 50.0)
    stays, goes = cluster.pods
    held = goes.engine.num_outstanding
    cluster.dispatch(300.0)

    assert held > 0
    assert goes.engine.num_outstanding <= held
    cluster.finish()
    sent = sum(at_s < 300.0 for at_s in cluster.traffic.arrival_s)
    assert num_ended(goes, stays) == sent


def test_a_pod_that_drains_too_long_is_killed_and_what_it_had_is_never_served():
    cluster = a_cluster(rate=4.0, drain_s=0.5)
    cluster.apply(creating(2), -150.0)
    readied(cluster).dispatch(50.0)
    cluster.apply(scaling(1), 50.0)
    goes = cluster.pods[1]
    goes.engine.advance(50.0)
    assert goes.engine.num_outstanding > 0

    assert list(cluster.end_drained(65.0)) == [goes]
    assert goes.ended_s == 50.5
    cluster.finish()
    assert goes.engine.num_outstanding > 0


def test_who_comes_while_nobody_is_ready_waits_at_the_router():
    cluster = a_cluster(rate=4.0)
    cluster.apply(creating(1), 0.0)
    cluster.dispatch(60.0)
    waiting = cluster.waiting_at_router(60.0)
    (pod,) = readied(cluster).pods
    cluster.dispatch(pod.ready_s + 1)

    assert waiting == sum(at_s <= 60.0 for at_s in cluster.traffic.arrival_s)
    assert cluster.table.arrival_s[0] == pod.ready_s
    assert cluster.waiting_at_router(pod.ready_s) == 0


def test_pods_that_are_not_ready_are_taken_away_first():
    cluster = a_cluster()
    cluster.apply(creating(2), -150.0)
    readied(cluster)
    cluster.apply(scaling(4), 0.0)
    cluster.apply(scaling(2), 15.0)

    assert [pod.deleted_s for pod in cluster.pods] == [math.inf, math.inf, 15.0, 15.0]


def test_another_template_replaces_pods_one_by_one():
    cluster = a_cluster()
    cluster.apply(creating(2), -150.0)
    readied(cluster)
    writes = creating(2)
    flags = json.loads(writes.template["metadata"]["annotations"][FLAGS_ANNOTATION])
    flags["maxNumSeqs"] = 17
    writes.template["metadata"]["annotations"][FLAGS_ANNOTATION] = json.dumps(flags)
    cluster.apply(replace(writes, creates=False), 0.0)
    sizes, views = [], []
    for tick in range(1, 40):
        cluster.apply(Writes(namespace="serving", name="llama", uid=""), 15.0 * tick)
        sizes.append(len(cluster.remaining_pods))
        views.append(deployment_view(cluster, 15.0 * tick))

    assert set(sizes) == {2, 3}
    assert views[0].is_rolling
    assert not views[-1].is_rolling
    assert [pod.flags.max_num_seqs for pod in cluster.remaining_pods] == [17, 17]
    assert cluster.remaining_pods[0].machine.limits.max_num_seqs == 17


def test_a_router_that_counts_gives_to_the_one_with_the_least():
    spread = {}
    for routing in ("Service", "LeastOutstanding"):
        model = a_model(**SMALL, scaling={"maxReplicas": 8, "routing": routing})
        cluster = a_cluster(rate=6.0, model=model)
        cluster.apply(creating(4), -150.0)
        readied(cluster)
        found = []
        for at_s in range(20, 120):
            cluster.dispatch(float(at_s))
            held = [pod.engine.num_outstanding for pod in cluster.pods]
            found.append(max(held) - min(held))
        spread[routing] = sum(found) / len(found)

    assert spread["LeastOutstanding"] < 2 < spread["Service"]


def came_to(pod, at_s):
    """Return how many requests a pod has had."""
    [ended] = (
        value
        for (name, _), value in pod.counters.page(at_s).items()
        if name == "vllm:request_generation_tokens_count"
    )
    return ended + pod.engine.num_outstanding


@pytest.mark.parametrize(("routing", "least"), [("Service", 0.5), ("LeastOutstanding", 0.39)])
def test_who_sticks_to_the_first_pod_goes_there_whatever_it_has(routing, least):
    model = a_model(**SMALL, scaling={"maxReplicas": 8, "routing": routing})
    truth = GroundTruth(sticky_share=0.4)
    cluster = a_cluster(rate=4.0, model=model, truth=truth)
    cluster.apply(creating(4), -150.0)
    readied(cluster).dispatch(400.0)

    first, *others = (came_to(pod, 400.0) for pod in cluster.pods)

    # Two in five, and of the others a fourth, or fewer where a router sees what the first one has.
    assert first + sum(others) == bisect_left(cluster.traffic.arrival_s, 400.0)
    assert least < first / (first + sum(others)) < 0.6
    assert max(others) < 1.4 * min(others)


def test_a_first_pod_that_is_slower_is_the_only_one():
    cluster = a_cluster(truth=GroundTruth(first_pod_speed=0.5))
    cluster.apply(creating(3), -150.0)

    assert [pod.speed for pod in cluster.pods] == [0.5, 1, 1]
    slow, *others = (pod.machine.costs.base_s[1] for pod in cluster.pods)
    assert [slow / each for each in others] == pytest.approx([2, 2])


def test_the_operator_sees_pods_with_the_times_of_their_lives():
    cluster = a_cluster()
    cluster.apply(creating(2), -150.0)
    cluster.apply(scaling(3), 0.0)

    views = pod_views(cluster, 10.0)

    assert [view.is_ready for view in views] == [True, True, False]
    assert views[2].created_at_s == EPOCH_S
    assert views[2].ready_at_s is None
    assert views[0].ready_at_s == EPOCH_S + cluster.pods[0].ready_s


@cache
def simulated(speed=1.0, *, faults=(), duration_s=600.0, rate=8.0, settings=SETTINGS):
    demand = SMALL["demand"] | {"requestsPerSecond": f"{rate:g}"}
    model = a_model(**SMALL | {"demand": demand})
    found = some_traffic(model, rate, duration_s=duration_s)
    served = ReplayedModel(model=model, traffic=found, truth=GroundTruth(speed=speed))
    return Simulation(served, settings=settings, faults=faults).run(duration_s)


def test_the_first_fleet_is_the_plan_and_is_ready_when_the_traffic_begins():
    record = simulated()

    first = record.moments[0]
    planned = a_sizing(a_model(**SMALL))
    assert first.replicas == planned.replicas
    assert first.goodput_requests_per_s == planned.goodput_requests_per_s
    assert all(pod.ready_s <= 0 for pod in record.cluster.pods[: planned.replicas])
    assert record.faults == []


@pytest.mark.parametrize("asks", [False, True])
def test_pods_are_scraped_where_somebody_asks(asks):
    pages = []

    def seen(page, _number, _at_s):
        pages.append(page)
        return page

    of_operator = simulated()
    nobody = ConstantFleet(flags=of_operator.cluster.template.flags, replicas=2)
    controller = None if asks else nobody
    record = Simulation(
        of_operator.cluster.served, settings=SETTINGS, faults=(seen,), controller=controller
    ).run(600.0)

    assert bool(pages) == asks
    assert slo_shares(record, 0.0, 600.0).num_requests == record.cluster.traffic.num_requests


def test_all_that_came_was_served_and_once():
    record = simulated()

    assert num_ended(*record.cluster.pods) == record.cluster.traffic.num_requests
    assert slo_shares(record, 0.0, 600.0).num_requests == record.cluster.traffic.num_requests


def test_the_operator_measures_the_rate_that_comes():
    record = simulated()

    seen = [moment.requests_per_s for moment in record.moments if moment.at_s > 120]
    assert sum(seen) / len(seen) == pytest.approx(8.0, rel=0.05)


def test_what_it_believes_is_kept_where_engines_are_what_it_believes():
    assert slo_shares(simulated(), 0, 600).worst_ratio <= 1


def test_slower_engines_break_the_promise_until_it_has_learned():
    record = simulated(0.6, duration_s=1800.0)

    early, late = slo_shares(record, 0, 600), slo_shares(record, 1200, 1800)
    assert early.worst_ratio > 1
    assert late.worst_ratio < early.worst_ratio
    assert record.moments[-1].replicas > record.moments[0].replicas
    assert record.moments[-1].calibrations.speed


def test_plans_on_the_slow_end_keep_the_promise_from_the_start_with_slower_engines():
    # Steps 1 / 0.83 = 1.2 times as long as believed; the slow end takes two replicas for one.
    before, cautious = simulated(0.83, rate=10), simulated(0.83, rate=10, settings=CAUTIOUS)

    assert slo_shares(before, 0, 600).worst_ratio > 1
    assert slo_shares(cautious, 0, 600).worst_ratio <= 1


def test_the_same_simulation_twice_is_the_same():
    again = simulated.__wrapped__()

    assert [m.replicas for m in again.moments] == [m.replicas for m in simulated().moments]
    assert list(again.cluster.table.ended_s) == list(simulated().cluster.table.ended_s)


@pytest.mark.parametrize(
    "fault", [drop_scrapes(0.2), stale(0.2), multiplied(0.1, by=100), without_numbers(0.1),
              silent(0),
              lying(0, lambda page: {key: 3 * value for key, value in page.items()})],
    ids=["dropped", "stale", "hundredfold", "NaN", "silent", "lying"],
)  # fmt: skip
def test_a_tick_survives_what_befalls_scrapes(fault):
    record = simulated(faults=(fault,), duration_s=120.0)

    assert record.faults == []
    assert record.moments[-1].replicas >= 1


def test_a_regime_that_changes_is_noticed_by_those_who_come_later():
    model = a_model(**SMALL)
    served = ReplayedModel(
        model=model,
        traffic=some_traffic(model, 8.0, duration_s=300.0),
    )
    changes = ((150.0, GroundTruth(speed=0.5)),)
    record = ChangingSimulation(served, changes=changes, settings=SETTINGS).run(300.0)

    table = record.cluster.table
    tpots_s = [
        (at_s, (table.ended_s[n] - table.first_token_s[n]) / (table.output_tokens[n] - 1))
        for n, at_s in enumerate(served.traffic.arrival_s)
        if table.output_tokens[n] > 20
    ]
    before = [tpot for at_s, tpot in tpots_s if 30 <= at_s < 140]
    after = [tpot for at_s, tpot in tpots_s if at_s >= 160]
    assert sum(after) / len(after) > 1.9 * sum(before) / len(before)


def a_machine(**truth):
    model = a_model(**SMALL)
    return machine(a_request_of(model), a_sizing(model).flags, GroundTruth(**truth))


def test_a_truth_of_no_factors_is_what_is_believed():
    assert a_machine().limits.num_blocks == a_machine(kv_factor=1.0).limits.num_blocks
    assert a_machine().kv_tokens == pytest.approx(a_sizing(a_model(**SMALL)).kv_tokens, abs=1)


def test_all_costs_of_an_engine_grow_as_it_is_slower():
    usual, slow = a_machine().costs, a_machine(speed=0.5).costs

    assert slow.base_s[10] == pytest.approx(2 * usual.base_s[10])
    assert slow.memory_slope_s[0] == pytest.approx(2 * usual.memory_slope_s[0])
    assert slow.prefill.seconds[0][1] == pytest.approx(2 * usual.prefill.seconds[0][1])
    assert slow.pairs_slope_s[0] == pytest.approx(2 * usual.pairs_slope_s[0])


def test_each_factor_changes_its_own_part_of_a_step():
    usual = a_machine().costs
    reads, prefill = a_machine(bandwidth_factor=0.8).costs, a_machine(prefill_factor=0.8).costs

    assert reads.memory_slope_s[0] == pytest.approx(usual.memory_slope_s[0] / 0.8)
    assert reads.pairs_slope_s == usual.pairs_slope_s
    assert prefill.pairs_slope_s[0] == pytest.approx(usual.pairs_slope_s[0] / 0.8)
    assert prefill.memory_slope_s == usual.memory_slope_s
    assert a_machine(overhead_factor=2.0).costs.base_s[1] > usual.base_s[1]


def test_a_cache_that_is_smaller_is_reported_so():
    usual, small = a_machine(), a_machine(kv_factor=0.9)

    assert small.limits.num_blocks == pytest.approx(0.9 * usual.limits.num_blocks, abs=1)
    assert small.kv_tokens == pytest.approx(0.9 * usual.kv_tokens, rel=1e-3)


def test_the_oracle_of_what_is_believed_asks_for_what_the_plan_asks():
    model = a_model(**SMALL)
    sizing = a_sizing(model)
    oracle = Oracle(request=a_request_of(model), machine=a_machine())

    each = oracle.staffing(expected_workload(model.spec)).each(1)
    assert each == pytest.approx(sizing.goodput_requests_per_s, rel=0.05)


def test_the_oracle_of_slower_engines_asks_for_more():
    model = a_model(**SMALL)
    workload = expected_workload(model.spec)
    asked = [
        Oracle(request=a_request_of(model), machine=a_machine(speed=speed)).replicas_for(
            20, workload
        )
        for speed in (1.3, 1.0, 0.7)
    ]

    assert asked == sorted(asked)
    assert asked[0] < asked[2]
