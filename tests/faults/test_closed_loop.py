"""Faults that take time to show: the operator's own tick in a simulated cluster.

A replica serves about one request per second with 4,000 prompt and 1,000 output tokens.
"""

import math
from functools import cache
from itertools import pairwise

import pytest

from fleet_builders import a_model, a_sizing
from page_builders import take_page
from scrape_faults import multiplied, without_numbers, zeroed
from tonnage.estimate.attainment import HIGHEST, LOWEST
from tonnage.estimate.demand import measure_demand
from tonnage.estimate.fleet_scrapes import FleetScrapes
from tonnage.estimate.learner import BAND
from tonnage.estimate.metrics import WINDOWS
from tonnage.estimate.samples import fleet_samples
from tonnage.replay.cluster import ReplayedModel
from tonnage.replay.prometheus import drop_scrapes
from tonnage.replay.simulation import Operator, Simulation
from tonnage.replay.traffic import TrafficSource, traffic
from tonnage.settings import Settings
from tonnage.sizing.expected import expected_workload
from tonnage.units import HOUR_S

SETTINGS = Settings(prometheus_url="http://prometheus.test:9090", tick_s=60)
WINDOW_S = SETTINGS.scale_down_window_s
STEADY_SCV = 0.1
"""Of arrivals that come nearly evenly: what is seen of a rate is the rate."""


def ticking(tick_s):
    return SETTINGS.model_copy(update={"tick_s": tick_s})


def simulated(rate, *, hours, faults=(), arrival_scv=1.0, settings=SETTINGS):
    """Return the operator and the record of its one object."""
    model = a_model()
    source = TrafficSource(
        rate=rate, shapes=((0.0, expected_workload(model.spec)),), arrival_scv=arrival_scv
    )
    drawn = traffic(source, duration_s=hours * HOUR_S, context_tokens=8192)
    operator, served = Operator(settings), ReplayedModel(model=model, traffic=drawn)
    simulation = Simulation(served, settings=settings, controller=operator, faults=faults)
    record = simulation.run(hours * HOUR_S)
    assert record.faults == []
    return operator, record


def changes(record, *, after_s):
    """(time, by how many replicas) of each change."""
    moments = [each for each in record.moments if each.at_s >= after_s]
    return [
        (later.at_s, later.replicas - earlier.replicas)
        for earlier, later in pairwise(moments)
        if later.replicas != earlier.replicas
    ]


class TestRow15LoadSwingsAroundAThreshold:
    def test_and_replicas_change_rarely_by_one_and_never_down_soon_after_up(self):
        each = a_sizing().goodput_requests_per_s

        def swinging(at_s):
            """Between 1.5 and 2.5 replicas' worth, every one to four ticks, each for an hour."""
            period_s = SETTINGS.tick_s * (1 + int(at_s / HOUR_S) % 4)
            return each * (2 + 0.5 * math.sin(2 * math.pi * at_s / period_s))

        _, record = simulated(swinging, hours=4, arrival_scv=STEADY_SCV)

        found = changes(record, after_s=0.5 * HOUR_S)
        assert record.moments[-1].at_s > 3.9 * HOUR_S
        for (before_s, _), (after_s, by) in pairwise(found):
            assert by > 0 or after_s - before_s >= WINDOW_S, (before_s, after_s, by)
        assert {abs(by) for _, by in found} <= {1}
        assert len(found) <= 2 * 3.5  # in as many hours: a replica that is missed comes at once


class TestRow11ACounterBeginsAnew:
    """An engine to which 2 requests/s come, each for 20 s, loses all it had and begins anew."""

    RATE = 2.0
    NUM_SCRAPES = 70

    def rates(self, restart, ask_after_s):
        """Return the demand measured after each scrape, from shortly before the restart on."""
        pod, found = ("blue", "llama-0"), []
        scrapes = FleetScrapes(SETTINGS)
        scrapes.expect(frozenset({pod}))
        for scrape in range(self.NUM_SCRAPES):
            at_s = 15.0 * scrape
            came = (
                self.RATE * 15.0 * (scrape - restart + 0.5 if scrape >= restart else 100 + scrape)
            )
            running = min(came, 20 * self.RATE)
            page = {"completed": came - running, "running": running, "queued": 0}
            take_page(scrapes, pod, at_s, page)
            if scrape >= WINDOWS[-1]:
                demand = measure_demand(
                    fleet_samples(scrapes, at_s + ask_after_s)[pod],
                    ready_pods=frozenset({"llama-0"}),
                )
                found.append((scrape, demand.requests_per_s))
        return found

    @pytest.mark.parametrize("ask_after_s", [0.0, 5.0, 14.0])
    @pytest.mark.parametrize("restart", [61, 62, 64, 67])
    def test_and_no_rate_is_above_what_came_nor_low_for_longer_than_it_takes(
        self, restart, ask_after_s
    ):
        found = self.rates(restart, ask_after_s)

        assert all(0 <= rate <= 1.05 * self.RATE for _, rate in found), found
        low = [scrape for scrape, rate in found if rate < 0.9 * self.RATE]
        assert all(restart <= scrape <= restart + WINDOWS[1] for scrape in low)


@cache
def clean():
    _, record = simulated(lambda _: 2.0, hours=1)
    return record


def by_time(record):
    return {each.at_s: each.replicas for each in record.moments}


class TestCorruptedScrapes:
    """Three in ten, for an hour."""

    def differences(self, fault):
        _, record = simulated(lambda _: 2.0, hours=1, faults=(fault,))
        told, wanted = by_time(record), by_time(clean())
        return {at_s: told[at_s] - wanted[at_s] for at_s in told if at_s >= HOUR_S / 2}

    def test_that_fail_hold_what_is_there(self):
        # In no window of three starts is every pod's last scrape seen: nothing was seen to be
        # unnecessary, and the plan for spec.demand stays.
        found = self.differences(drop_scrapes(0.3))

        assert all(0 <= by <= 4 for by in found.values()), found  # 6 begin, 2 or 3 would do

    @pytest.mark.parametrize(
        "fault",
        [zeroed(0.3), multiplied(0.3, by=100), without_numbers(0.3)],
        ids=["zero", "hundredfold", "NaN"],
    )
    def test_that_say_something_else_lower_nothing(self, fault):
        found = self.differences(fault)

        assert all(by >= 0 for by in found.values()), found

    def test_that_are_of_another_engine_raise_a_fleet_by_one_replica_at_most(self):
        settings = ticking(15)
        faults = (
            zeroed(0.1, seed=1),
            multiplied(0.1, by=100, seed=2),
            without_numbers(0.1, seed=3),
        )
        _, record = simulated(lambda _: 2.0, hours=0.75, faults=faults, settings=settings)

        told = [m.requests_per_s for m in record.moments if m.at_s > 300]
        assert max(told) < 1.5 * 2.0, "requests/s"
        assert max(each.replicas for each in record.moments) <= record.moments[0].replicas + 1


def latencies_times(factor):
    """A fault by which all pages say that tokens and answers took so many times as long."""
    times = ("vllm:inter_token_latency_seconds_sum", "vllm:request_prefill_time_seconds_sum")
    late = ("vllm:time_to_first_token_seconds_bucket",
            "vllm:request_time_per_output_token_seconds_bucket")  # fmt: skip

    def fault(page, pod, at_s):
        return {
            key: value * factor
            if key[0] in times
            else 0.0
            if key[0] in late and ("le", "+Inf") not in key[1]
            else value
            for key, value in page.items()
        }

    return fault


class TestRow17ACorrectionRunsWild:
    @pytest.mark.parametrize("factor", [100, 2])
    def test_and_stays_within_its_bands_and_lowers_nothing(self, factor):
        operator, record = simulated(lambda _: 2.0, hours=1, faults=(latencies_times(factor),))

        memory = operator.memory
        prior = record.cluster.request.speed
        for each in memory.calibrations.speed.values():
            bandwidth = each.bandwidth_efficiency / prior.bandwidth_efficiency
            prefill = each.prefill_efficiency / prior.prefill_efficiency
            values = (each.overhead_factor, bandwidth, prefill)
            assert all(1 / band <= value <= band for value, band in zip(values, BAND, strict=True))
        factors = [each.posterior.goodput_factor for each in memory.objects.values()]
        assert all(LOWEST <= each <= HIGHEST for each in factors)
        told, wanted = by_time(record), by_time(clean())
        assert all(told[at_s] >= wanted[at_s] for at_s in told)
