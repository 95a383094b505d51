"""The reserve for bursts: what it stands on, and what was late although it was there."""

import math
from dataclasses import replace

import pytest

from fleet_builders import (
    NOW_S,
    SPEC,
    a_deployment_body,
    a_fleet,
    a_manifest,
    a_memory,
    a_pod_body,
    a_sizing,
    a_state,
    assessed,
    engines_at,
    remembering,
)
from measured_builders import missed_before
from tonnage.estimate.burstiness import FIRST, HIGHEST, CountedWindow
from tonnage.estimate.forecast import DemandPeak, History
from tonnage.estimate.forecasters import BIN_S
from tonnage.estimate.metrics import WINDOWS

SIZING = a_sizing()
GOODPUT = SIZING.goodput_requests_per_s
USUAL = 0.5
"""Replicas' worth that usually comes."""
INF = math.inf


def a_history(*, ratio=2.0):
    """Half a replica's worth for ten minutes, and two bursts so many times as high."""
    now = int(NOW_S // BIN_S)
    recent = tuple((NOW_S - 60.0 * ago, USUAL) for ago in range(10, 0, -1))
    peaks = tuple(
        DemandPeak(bin=now - ago, ratio=ratio, demand=USUAL, height=ratio * USUAL) for ago in (2, 1)
    )
    return History(recent=recent, peaks=peaks)


def a_bursty_state(*, load=2.7, late=0.0, replicas=3):
    """Replicas that get so many replicas' worth; of their requests so many miss a TTFT of 2 s."""
    names = [chr(ord("a") + number) for number in range(replicas)]
    rate = load * GOODPUT / replicas
    engines = engines_at(load, names, ttft_within={2.0: (1 - late) * rate, INF: rate})
    return a_state(
        live=a_deployment_body(replicas=replicas),
        pods=[a_pod_body(name) for name in names],
        engines=engines,
    )


def after(state, **remembered):
    known = remembering(
        a_memory(state),
        history=a_history(),
        unit="",
        most_requests_per_s=SIZING.most_requests_per_s,
        **remembered,
    )
    return assessed(state, memory=known, fleet=a_fleet(state))


class TestBurstsCounted:
    def test_are_left_out_of_the_burstiness_of_arrivals_with_what_may_hold_their_edge(self):
        interval_s = a_fleet().settings.scrape_interval_s
        seconds = (WINDOWS[0] - 1) * interval_s
        clear, beside = (
            CountedWindow(at_s=NOW_S - ago_s, count=30, seconds=seconds)
            for ago_s in (seconds + 15, seconds - 15)
        )

        memory = after(a_bursty_state(), counted=(clear, beside)).memory

        assert memory.traffic.counted == (clear,)
        assert memory.traffic.burst_at_s == NOW_S

    @pytest.mark.parametrize(("ago_s", "counted"), [(30, 0), (60, 1)])
    def test_leave_out_the_next_window_that_overlaps_theirs(self, ago_s, counted):
        memory = after(a_bursty_state(load=USUAL), burst_at_s=NOW_S - ago_s).memory

        assert len(memory.traffic.counted) == counted


class TestLateInBursts:
    def test_raises_the_reserve_and_not_what_a_replica_takes(self):
        posterior = after(a_bursty_state(late=0.4)).memory.posterior

        assert posterior.burst_factor > FIRST
        assert posterior.goodput_factor == 1

    def test_says_nothing_where_the_reserve_was_not_there(self):
        # Two and a half times one half of a replica's worth: one replica does not serve that.
        state = a_bursty_state(load=USUAL, late=0.4, replicas=1)

        memory = after(state, burst_at_s=NOW_S - 60).memory

        assert memory.posterior.burst_factor is None
        assert memory.posterior.goodput_factor == 1
        assert memory.goodput.burst_tally == {}

    def test_is_what_a_replica_serves_once_no_larger_reserve_would_do(self):
        # Bursts so often that no window is without: what is late is goodput's then.
        state = a_bursty_state(late=0.4)
        known = replace(a_memory(state).posterior, burst_factor=HIGHEST)

        posterior = after(state, posterior=known, tally=missed_before()).memory.posterior

        assert posterior.burst_factor == HIGHEST
        assert posterior.goodput_factor < 1

    def test_is_of_a_burst_as_long_as_latencies_are_told(self):
        calm = a_bursty_state(load=USUAL, late=0.4)

        assert after(calm, burst_at_s=NOW_S - 119).memory.posterior.burst_factor > FIRST
        assert after(calm, burst_at_s=NOW_S - 121).memory.posterior.burst_factor is None

    def test_is_judged_against_all_that_came_since(self):
        tally = {"TTFT p95": (0.0, 1e6)}

        assert (
            after(a_bursty_state(late=0.4), burst_tally=tally).memory.posterior.burst_factor < FIRST
        )


class TestDeclaredPeak:
    DEMAND = SPEC["demand"] | {"requestsPerSecond": "0.5"}

    def test_is_planned_for_whatever_comes(self):
        declared = a_manifest(demand=self.DEMAND | {"peakPercent": 1000})

        mean, peak = (
            assessed(a_state(each, replicas=1, load=USUAL)).need
            for each in (a_manifest(demand=self.DEMAND), declared)
        )

        assert (mean.replicas, peak.replicas) == (1, SIZING.replicas_for(5.0))
        assert peak.replicas_with_margin == peak.replicas > 1
        reason = next(each for each in peak.reasons if each.code == "Reserve")
        assert reason.message.startswith("5.00 requests/s in bursts (by spec.demand.peakPercent)")

    def test_gives_way_to_bursts_that_were_seen_to_be_higher(self):
        state = a_state(
            a_manifest(demand=self.DEMAND | {"peakPercent": 101}), replicas=1, load=USUAL
        )

        reason = next(each for each in after(state).need.reasons if each.code == "Reserve")

        assert "times the usual rate" in reason.message

    def test_is_what_a_plan_is_for(self):
        first = assessed(
            a_state(a_manifest(demand=self.DEMAND | {"peakPercent": 1000}), replicas=None)
        )

        assert first.need.replicas == SIZING.replicas_for(5.0)
        demand = next(each for each in first.need.reasons if each.code == "Demand")
        assert "5.00 requests/s (peak of spec.demand)" in demand.message

    @pytest.mark.parametrize(
        ("percent", "room"), [(None, 0.15), (100, 0.15), (110, 0.05), (150, 0)]
    )
    def test_is_room_for_what_was_not_measured_yet(self, percent, room):
        demand = self.DEMAND | ({} if percent is None else {"peakPercent": percent})
        state = a_state(a_manifest(demand=demand), replicas=None)

        found = assessed(state)

        rate = 0.5 * (percent or 100) / 100
        planned = found.need.planned_requests_per_s
        assert planned == pytest.approx((1 + room) * rate, rel=0.01)

    def test_stays_planned_for_while_metrics_are_missing(self):
        manifest = a_manifest(demand=self.DEMAND | {"peakPercent": 1000})
        before = a_state(manifest, replicas=1, load=USUAL)
        memory = assessed(before).memory

        blind = assessed(replace(before, engines=()), memory=memory)

        assert blind.need.planned_requests_per_s == 5.0


class TestReserve:
    def test_is_told_with_what_it_stands_on(self):
        found = after(a_bursty_state(load=USUAL, replicas=1))

        reason = next(each for each in found.need.reasons if each.code == "Reserve")
        assert "2.0 times the usual rate" in reason.message
        assert "1.5 times their excess is planned, as assumed" in reason.message

    def test_grows_with_what_was_late(self):
        state = a_bursty_state(load=USUAL, replicas=1)
        known = a_memory(state).posterior

        before = after(state, posterior=replace(known, burst_factor=1.0)).need.replicas
        grown = after(state, posterior=replace(known, burst_factor=3.0)).need.replicas

        assert grown > before
