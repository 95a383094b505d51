"""What Prometheus says of before this process, as history of demand and as an error budget."""

import math
import re

import pytest

from tonnage.estimate.budget import Ledger, in_window, with_past
from tonnage.estimate.forecast import DemandPeak, History
from tonnage.estimate.past import (
    LABEL,
    STEP_S,
    Past,
    demand_queries,
    latency_query,
    past_ledger,
)
from tonnage.estimate.past import with_past as with_demand
from tonnage.estimate.ways import BIN_S
from tonnage.manifests.names import OWNER_LABEL
from tonnage.settings import Settings
from tonnage.units import DAY_S, HOUR_S

SETTINGS = Settings(prometheus_url="http://p", prometheus_selector='cluster="a"')
NOW_S = 2000.0 * 7 * DAY_S
NOW = int(NOW_S // STEP_S)
TTFT = "TTFT 2.00 s"


def a_past(**bins):
    return Past(ledger=Ledger(), window_s=DAY_S, **bins)


class TestQueries:
    def test_find_engines_by_the_label_of_their_object_in_one_namespace(self):
        asked = demand_queries(SETTINGS, "blue", ["llama", "qwen.a"])
        asked = [*asked, latency_query(SETTINGS, "blue", ["llama", "qwen.a"], "TTFT", [2.0])]

        for each in asked:
            selectors = re.findall(r"{(.*?)}", each)
            assert selectors
            assert all(
                found.startswith(f'cluster="a",namespace="blue",{LABEL}=~"llama|qwen[.]a"')
                for found in selectors
            )
            assert "pod" not in each

    def test_ask_for_the_label_that_a_pod_monitor_makes_of_the_pods(self):
        assert re.sub("[^a-zA-Z0-9_]", "_", OWNER_LABEL) == LABEL

    def test_ask_for_the_bounds_near_the_limits_alone(self):
        assert 'le=~"1[.]0|2[.]0|2[.]5|[+]Inf|"' in latency_query(
            SETTINGS, "blue", ["llama"], "TTFT", [2.0]
        )


class TestALedger:
    def of(self, histogram, *, from_s=0.0, limits=(2.0,)):
        bounds = {
            bound: {NOW - ago: each for ago, each in bins.items()}
            for bound, bins in histogram.items()
        }
        return past_ledger({"TTFT": bounds}, {"TTFT": limits}, from_s=from_s, until_s=NOW_S)

    def test_counts_what_is_beyond_the_limit_as_late(self):
        found = self.of({"1.0": {3: 40.0}, "2.0": {3: 90.0}, "+Inf": {3: 100.0}})

        assert found.limits == {TTFT: {NOW - 3: (100.0, 10.0)}}
        assert found.since_s == NOW_S - 3 * STEP_S

    def test_counts_since_the_first_sample_and_what_is_none_since_now(self):
        quiet = self.of({"2.0": {9: 0.0}, "+Inf": {9: 0.0}})

        assert (quiet.limits, quiet.since_s) == ({}, NOW_S - 9 * STEP_S)
        assert self.of({}).since_s == NOW_S

    def test_leaves_out_what_another_object_of_that_name_served(self):
        histogram = {"2.0": {9: 5.0, 2: 4.0}, "+Inf": {9: 5.0, 2: 4.0}}

        found = self.of(histogram, from_s=NOW_S - 4 * STEP_S)

        assert found.limits[TTFT].keys() == {NOW - 2}

    def test_becomes_one_of_the_window_of_the_slo(self):
        past = self.of(
            {
                "2.0": dict.fromkeys(range(1, 289), 9.0),
                "+Inf": dict.fromkeys(range(1, 289), 10.0),
            }
        )

        found = with_past(Ledger(), past, window_s=DAY_S, now_s=NOW_S)

        assert found.window_s == DAY_S
        assert sum(each for each, _ in found.limits[TTFT].values()) == pytest.approx(2760, abs=120)
        assert found.is_whole(NOW_S)
        assert not with_past(Ledger(), past, window_s=7 * DAY_S, now_s=NOW_S).is_whole(NOW_S)

    def test_is_added_to_what_was_counted_since(self):
        past = self.of({"2.0": {1: 9.0}, "+Inf": {1: 10.0}})
        own = Ledger(limits={TTFT: {int(NOW_S // HOUR_S): (5.0, 5.0)}}, since_s=NOW_S)

        found = with_past(own, past, window_s=DAY_S, now_s=NOW_S + 60)

        assert math.fsum(late for _, late in found.limits[TTFT].values()) == 6
        assert found.since_s == NOW_S - STEP_S
        assert in_window(found, DAY_S, now_s=NOW_S) == found


class TestDemand:
    BIN = int(NOW_S // BIN_S)

    def test_fills_what_was_not_noted(self):
        past = a_past(means={self.BIN - 2: 4.0, self.BIN: 8.0})

        found = with_demand(History(pattern={self.BIN: (9.0, 3)}), past, 2.0, scv=1)

        assert found.pattern == {self.BIN - 2: (2.0, 1), self.BIN: (9.0, 3)}

    def test_shows_a_burst_as_a_peak_above_what_came_before_and_after(self):
        means = {self.BIN - 3: 10.0, self.BIN - 2: 15.0, self.BIN - 1: 10.0}
        past = a_past(means=means, peaks={self.BIN - 2: 60.0})

        [peak] = with_demand(History(), past, 2.0, scv=0).peaks

        assert peak == DemandPeak(bin=self.BIN - 2, ratio=6.0, demand=5.0, height=30.0)

    def test_shows_no_rise_that_stays_as_a_peak(self):
        means = {self.BIN - 3: 10.0, self.BIN - 2: 15.0, self.BIN - 1: 20.0}

        [peak] = with_demand(
            History(), a_past(means=means, peaks={self.BIN - 2: 20.0}), 2.0, scv=0
        ).peaks

        assert peak.ratio == 1

    def test_takes_chance_off_a_peak(self):
        past = a_past(means={self.BIN - 1: 10.0}, peaks={self.BIN - 1: 10.0})

        [peak] = with_demand(History(), past, 1.0, scv=1).peaks

        assert peak.height == pytest.approx((600 - 2 * math.sqrt(600)) / 60)
