from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache

import pytest

from rival_builders import DURATION_S, a_record, simulated
from slo_shares import slo_shares
from tonnage.replay.baselines.rule import gauges
from tonnage.replay.policy import RIVALS


@cache
def recorded(name):
    return simulated(RIVALS[name])


@dataclass
class Watch:
    """Asks for two replicas, three from two minutes on, and keeps what it was shown."""

    table: Mapping = field(default_factory=lambda: gauges("running", "waiting"))
    interval_s: float = 15.0
    seen: list = field(default_factory=list)

    def replicas(self, signals):
        self.seen.append(signals)
        return 3 if signals.at_s >= 120 else 2


@cache
def watched():
    rule = Watch()
    return rule, a_record(rule)


def test_the_fleet_that_is_given_is_ready_and_untouched_when_the_traffic_begins():
    record = recorded("hpa-concurrency")

    before = [moment for moment in record.moments if moment.at_s < 0]
    assert {moment.replicas for moment in before} == {2}
    assert before[0].at_s == -75
    assert all(pod.ready_s <= 0 for pod in record.cluster.pods[:2])


@pytest.mark.parametrize("name", RIVALS)
def test_a_rival_runs_and_stays_within_the_limits(name):
    record = recorded(name)

    assert record.faults == []
    assert all(1 <= moment.replicas <= 6 for moment in record.moments)
    assert slo_shares(record, 0, DURATION_S).num_requests == record.cluster.traffic.num_requests


def test_a_load_that_rises_brings_replicas_when_they_are_asked_for():
    record = recorded("hpa-concurrency")

    assert max(moment.replicas for moment in record.moments) > 2
    assert all(moment.replicas == 2 for moment in record.moments if moment.at_s < 60)
    assert record.moments[-1].ready > 2


def test_the_same_run_twice_is_the_same():
    again = simulated(RIVALS["llmd-slo"])

    assert [m.replicas for m in again.moments] == [m.replicas for m in recorded("llmd-slo").moments]


def test_a_rule_is_asked_from_the_first_request_on():
    rule, _ = watched()

    assert [signals.at_s for signals in rule.seen] == [15.0 * n for n in range(25)]


def test_a_rule_sees_pods_as_they_start():
    rule, record = watched()

    pending = [signals.at_s for signals in rule.seen if signals.pending]
    (third,) = record.cluster.pods[2:]
    assert pending == [at_s for at_s in (135.0 + 15 * n for n in range(15)) if at_s < third.ready_s]
    assert rule.seen[-1].ready == 3
    assert rule.seen[9].pods[2].age_s == 15.0


def test_a_router_counts_what_came_and_what_is_not_done():
    rule, record = watched()
    last, table = rule.seen[-1], record.cluster.table

    arrived = [n for n, at_s in enumerate(record.cluster.traffic.arrival_s) if at_s <= last.at_s]
    assert last.arrived == len(arrived)
    assert last.in_flight == sum(table.ended_s[n] > last.at_s for n in arrived)


def test_a_rule_is_told_the_cache_of_an_engine():
    rule, record = watched()

    assert rule.seen[0].kv_tokens == record.cluster.machine.kv_tokens


@pytest.mark.parametrize("name", RIVALS)
def test_a_rival_starts_anew_in_each_run(name):
    rival = RIVALS[name]

    assert rival.factory(rival.default, 15.0) is not rival.factory(rival.default, 15.0)
