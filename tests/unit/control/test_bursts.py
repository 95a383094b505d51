"""Bursts among what is counted of arrivals."""

import math
from dataclasses import replace

import pytest

from fleet_builders import (
    NOW_S,
    a_deployment_body,
    a_fleet,
    a_memory,
    a_pod_body,
    a_sizing,
    a_state,
    assessed,
    engines_at,
)
from tonnage.estimate.burstiness import CountedWindow
from tonnage.estimate.forecast import History, Peak
from tonnage.estimate.metrics import WINDOWS
from tonnage.estimate.ways import BIN_S

SIZING = a_sizing()
GOODPUT = SIZING.goodput_requests_per_s
USUAL = 0.5
"""Replicas' worth that usually comes."""
INF = math.inf


def a_history(*, ratio=2.0):
    """Half a replica's worth for ten minutes, and two bursts so many times as high."""
    now = int(NOW_S // BIN_S)
    recent = tuple((NOW_S - 60.0 * ago, USUAL) for ago in range(10, 0, -1))
    peaks = tuple(Peak(bin=now - ago, ratio=ratio, demand=USUAL) for ago in (2, 1))
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
    known = replace(
        a_memory(state),
        history=a_history(),
        history_unit="",
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

        assert memory.counted == (clear,)
        assert memory.burst_at_s == NOW_S

    @pytest.mark.parametrize(("ago_s", "counted"), [(30, 0), (60, 1)])
    def test_leave_out_the_next_window_that_overlaps_theirs(self, ago_s, counted):
        memory = after(a_bursty_state(load=USUAL), burst_at_s=NOW_S - ago_s).memory

        assert len(memory.counted) == counted
