"""What Prometheus says of before this process, as history of demand and as an error budget."""

import math
import re
from dataclasses import replace

import pytest

from tonnage.estimate.budget import Ledger, in_window, with_past
from tonnage.estimate.forecast import DemandPeak, History
from tonnage.estimate.forecasters import BIN_S
from tonnage.estimate.past import (
    LABEL,
    Engines,
    Past,
    demand_queries,
    latency_query,
    past_ledger,
    step_s_of,
)
from tonnage.estimate.past import with_past as with_demand
from tonnage.manifests.names import OWNER_LABEL
from tonnage.settings import Settings
from tonnage.units import DAY_S, HOUR_S

SETTINGS = Settings(prometheus_url="http://p", prometheus_selector='cluster="a"')
NOW_S = 2000.0 * 7 * DAY_S
STEP_S, NOW = step_s_of(DAY_S), int(NOW_S // HOUR_S)
"""Of a step, and of the bin of an hour that begins now."""
TTFT = "TTFT 2.00 s"


def a_past(**bins):
    return Past(ledger=Ledger(), **bins)


class TestQueries:
    ENGINES = Engines(SETTINGS, "blue", ("llama", "qwen.a"))

    def test_find_engines_by_the_label_of_their_object_in_one_namespace(self):
        asked = [*demand_queries(self.ENGINES), latency_query(self.ENGINES, "TTFT", [2.0], STEP_S)]

        for each in asked:
            selectors = re.findall(r"{(.*?)}", each)
            assert selectors
            assert all(
                found.startswith(f'cluster="a",namespace="blue",{LABEL}=~"llama|qwen[.]a"')
                for found in selectors
            )

    def test_ask_for_the_label_that_a_pod_monitor_makes_of_the_pods(self):
        assert re.sub("[^a-zA-Z0-9_]", "_", OWNER_LABEL) == LABEL

    def test_ask_for_the_bounds_near_the_limits_alone(self):
        assert 'le=~"1[.]0|2[.]0|2[.]5|[+]Inf|"' in latency_query(
            self.ENGINES, "TTFT", [2.0], STEP_S
        )


class TestALedger:
    def of(self, *histograms, created_s=0.0, limits=(2.0,)):
        """``histograms``: requests by bound and steps ago."""
        latencies = {
            latency: {
                bound: {NOW_S - ago * STEP_S: each for ago, each in steps.items()}
                for bound, steps in histogram.items()
            }
            for latency, histogram in zip(("TTFT", "TPOT"), histograms, strict=False)
        }
        return past_ledger(
            latencies,
            {"TTFT": limits, "TPOT": ()},
            window_s=DAY_S,
            created_s=created_s,
            until_s=NOW_S,
        )

    def since_s(self, *ago, **made):
        return self.of({"+Inf": dict.fromkeys(ago, 0.0)}, **made).since_s

    def test_counts_what_is_beyond_the_limit_as_late(self):
        found = self.of({"1.0": {3: 40.0}, "2.0": {3: 90.0}, "+Inf": {3: 100.0}})

        assert found.limits == {TTFT: {NOW - 1: (100.0, 10.0)}}

    def test_adds_what_came_in_one_bin(self):
        found = self.of(
            {"2.0": dict.fromkeys(range(8), 9.0), "+Inf": dict.fromkeys(range(8), 10.0)}
        )

        assert found.limits == {TTFT: {NOW - 1: (40.0, 4.0), NOW - 2: (40.0, 4.0)}}

    def test_reads_no_bound_of_a_page_that_names_none(self):
        found = self.of({"": {3: 7.0}, "2.0": {3: 9.0}, "+Inf": {3: 10.0}})

        assert found.limits == {TTFT: {NOW - 1: (10.0, 1.0)}}

    def test_without_a_report_counts_since_now(self):
        assert self.of({}).since_s == NOW_S
        assert self.since_s(6) == NOW_S

    def test_counts_since_the_first_report_and_not_before_its_step_ended(self):
        assert self.since_s(*range(30)) == NOW_S - 29 * STEP_S

    def test_counts_since_the_end_of_a_gap(self):
        assert self.since_s(*range(101), *range(40)) == 0
        assert self.since_s(*range(50, 101), *range(40)) == NOW_S - 39 * STEP_S

    def test_takes_a_start_for_no_gap(self):
        assert self.since_s(*range(44, 101), *range(40)) == 0
        assert self.since_s(*range(3, 101)) == 0

    def test_an_object_that_was_made_since_misses_nothing(self):
        assert self.since_s(*range(30), created_s=NOW_S - 32 * STEP_S) == 0
        assert self.since_s(*range(20), created_s=NOW_S - 32 * STEP_S) == NOW_S - 19 * STEP_S

    def test_leaves_out_what_another_object_of_that_name_served(self):
        histogram = {"2.0": {9: 5.0, 1: 4.0}, "+Inf": {9: 5.0, 1: 4.0}}

        found = self.of(histogram, created_s=NOW_S - 4 * STEP_S)

        assert found.limits[TTFT] == {NOW - 1: (4.0, 0.0)}

    def test_tells_of_less_than_a_longer_window(self):
        past = replace(self.of({"+Inf": dict.fromkeys(range(101), 1.0)}), window_s=DAY_S)

        found = with_past(Ledger(), past, now_s=NOW_S)

        assert found.is_whole(NOW_S)
        assert len(found.limits[TTFT]) == 24 - 1

    def test_is_added_to_what_was_counted_since(self):
        past = self.of({"2.0": {1: 9.0}, "+Inf": {1: 10.0}})
        own = Ledger(limits={TTFT: {NOW: (5.0, 5.0)}}, since_s=NOW_S)

        found = with_past(own, past, now_s=NOW_S + 60)

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
