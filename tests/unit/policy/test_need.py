"""Replicas for a demand and for what waits."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import a_sizing_request
from strategies import numbers
from tonnage.catalog.gpu import Price
from tonnage.policy.need import (
    Capacity,
    CurrentTraffic,
    Outlook,
    Supply,
    backlog_left,
    need,
    need_without_demand,
)
from tonnage.sizing.search import size
from tonnage.sizing.workload import Routing
from tonnage.units import significant

SIZING = size(a_sizing_request())
EACH = SIZING.goodput_requests_per_s
"""Requests per second of one replica."""
MOST = SIZING.most_requests_per_s
"""The same where promises do not matter."""


def believed(factor=1.0):
    return Capacity(sizing=SIZING, goodput_factor=factor)


def needed(requests_per_s, *, waiting=0.0, sizing=SIZING, drain_s=60):
    traffic = CurrentTraffic(requests_per_s=requests_per_s, waiting=waiting)
    return need(Capacity(sizing=sizing), traffic, drain_s=drain_s)


@pytest.mark.parametrize(("load", "replicas"), [(0, 1), (0.5, 1), (1, 1), (1.01, 2), (7.5, 8)])
def test_is_the_rate_over_what_a_replica_sustains(load, replicas):
    assert needed(load * EACH).replicas == replicas


def test_what_is_told_of_a_replica_is_what_one_among_those_needed_serves():
    bursty = size(a_sizing_request(routing=Routing.LEAST_OUTSTANDING, arrival_scv=16.0))
    answer = needed(7.5 * EACH, sizing=bursty)
    each = bursty.staffing.each(answer.replicas)

    assert each > 1.1 * bursty.goodput_requests_per_s
    assert f"at {significant(each)} per replica need {answer.replicas}" in answer.reasons[0].message


def test_a_backlog_is_drained_as_fast_as_engines_can():
    # Half a replica of what one serves at most, and as much again as a whole one in a minute.
    answer = needed(0.5 * MOST, waiting=MOST * 60)

    assert answer.replicas == 2
    assert [reason.code for reason in answer.reasons] == ["Demand", "Backlog"]
    assert "to drain them in 60.00 s needs 2" in answer.reasons[1].message


def test_a_backlog_that_fits_beside_the_demand_is_no_reason():
    answer = needed(0.5 * EACH, waiting=0.3 * EACH * 60)

    assert answer.replicas == 1
    assert [reason.code for reason in answer.reasons] == ["Demand"]


def test_more_time_to_drain_takes_fewer_replicas():
    assert needed(0.5 * MOST, waiting=600 * MOST, drain_s=60).replicas == 11
    assert needed(0.5 * MOST, waiting=600 * MOST, drain_s=600).replicas == 2


class TestReplicasInFlight:
    """Rates and times in units of what a replica serves at most: 1/s each."""

    @pytest.mark.parametrize(
        ("rate", "waiting", "ready", "due_s", "left"),
        [
            (6, 0, 3, (), 300),  # 3 more a second than are served, for 100 s
            (6, 0, 3, (50,), 250),  # one more serves in the second half
            (6, 0, 3, (0, 0, 0), 0),
            (6, 40, 3, (50, 50, 50, 50), 140),  # 40 + 150, then one less a second for 50 s
            (6, 0, 3, (150,), 300),  # comes after one that is asked for now
            (2, 60, 3, (), 0),  # drained long before
            (2, 160, 3, (), 60),
            (0, 5, 0, (), 5),
        ],
    )
    def test_serve_from_when_they_are_ready(self, rate, waiting, ready, due_s, left):
        traffic = CurrentTraffic(requests_per_s=rate, waiting=waiting)
        supply = Supply(ready=ready, due_s=due_s, lead_s=100)

        assert backlog_left(traffic, supply, 1.0) == pytest.approx(left)

    def test_are_not_asked_for_again(self):
        # At 6 with 2 ready, 4 a second are not served for a lead of 100 s: 400 are left, which a
        # minute more takes 6.7. Of those that 6 in 50 s leave, 200, half are gone by then.
        traffic = CurrentTraffic(requests_per_s=6 * MOST)
        alone = Supply(ready=2, due_s=(), lead_s=100)
        coming = Supply(ready=2, due_s=(50.0,) * 6, lead_s=100)

        first = need(believed(), traffic, drain_s=60, supply=alone)
        after = need(believed(), traffic, drain_s=60, supply=coming)

        assert first.replicas == 13
        assert after.replicas <= 8
        assert "400" not in after.reasons[-1].message

    @pytest.mark.parametrize(
        ("supply", "when"),
        [
            (Supply(ready=0, due_s=(), lead_s=0), ""),
            (Supply(ready=0, due_s=(), lead_s=300), ", 9000 will be queued in 5.0 min"),
            (
                Supply(ready=0, due_s=(100.0,), lead_s=100),
                ", 9000 will be queued in 100.00 s with 1 more replica on the way",
            ),
        ],
    )
    def test_are_said_with_when_they_will_be_drained(self, supply, when):
        traffic = CurrentTraffic(requests_per_s=0.0, waiting=9000)

        answer = need(believed(), traffic, drain_s=60, supply=supply)

        said = answer.reasons[-1].message
        assert said.startswith(f"9000 queued now{when}: to drain them in "), said

    def test_a_queue_that_those_ready_serve_in_time_adds_nothing(self):
        traffic = CurrentTraffic(requests_per_s=0.5 * MOST, waiting=20 * MOST)
        supply = Supply(ready=1, due_s=(), lead_s=100)

        assert need(believed(), traffic, drain_s=60, supply=supply).replicas == 1

    def test_what_serves_a_queue_is_not_taken_away(self):
        # 0.515 for what comes, with the margin, and 145 to be drained in a minute: 2.4 more.
        traffic = CurrentTraffic(requests_per_s=0.5 * MOST, waiting=145 * MOST)
        supply = Supply(ready=8, due_s=(), lead_s=50)

        answer = need(believed(), traffic, drain_s=60, supply=supply)

        assert answer.replicas == 1
        assert answer.replicas_with_margin == 3

    def test_are_added_for_a_queue_at_the_same_cost_however_long_a_start_takes(self):
        # In its square over 300 s. One serves 1 of 3.99 for a lead, 2.99 are left: for 300 s these
        # are drained in as long by 2.99, for 600 s in 1200 s by 1.5.
        def asked(lead_s):
            supply = Supply(ready=1, due_s=(), lead_s=lead_s)
            traffic = CurrentTraffic(requests_per_s=3.99 * MOST)
            return need(believed(), traffic, drain_s=60, supply=supply)

        assert [asked(lead_s).replicas for lead_s in (300, 600)] == [7, 6]
        assert "to drain them in 5.0 min" in asked(300).reasons[-1].message
        assert "to drain them in 20.0 min" in asked(600).reasons[-1].message


class TestOutlook:
    def expecting(self, rate, **changes):
        outlook = Outlook(requests_per_s=rate * EACH, origin="by trend", **changes)
        supply = Supply(ready=4, due_s=(), lead_s=300)
        traffic = CurrentTraffic(requests_per_s=3.5 * EACH)
        return need(believed(), traffic, drain_s=60, outlook=outlook, supply=supply)

    def test_of_more_demand_is_planned_for(self):
        answer = self.expecting(5.5)

        assert answer.replicas == 6
        assert [reason.code for reason in answer.reasons] == ["Demand", "Forecast"]
        assert "in 5.0 min, when a replica asked for now is Ready (by trend), need 6" in (
            answer.reasons[-1].message
        )

    def test_of_less_takes_nothing_away(self):
        answer = self.expecting(0.5)

        assert answer.replicas == 4
        assert [reason.code for reason in answer.reasons] == ["Demand"]

    def test_of_rises_is_headroom_with_its_price(self):
        answer = self.expecting(3.8, headroom=0.1)  # 4.18, of one GPU at 4 USD per hour

        assert answer.replicas == 5
        assert [reason.code for reason in answer.reasons] == ["Demand", "Headroom"]
        assert answer.reasons[-1].message.startswith("10% more, as demand may exceed")
        assert "need 5, 1 more (4.00 USD per hour)" in answer.reasons[-1].message

    def test_of_rises_is_priced_in_the_currency_of_the_list(self):
        request = SIZING.request
        price = Price(rent_usd_per_hour=3.5, currency="EUR")
        sizing = replace(SIZING, request=replace(request, gpu=replace(request.gpu, price=price)))
        supply = Supply(ready=4, due_s=(), lead_s=300)
        outlook = Outlook(requests_per_s=3.8 * EACH, origin="by trend", headroom=0.1)
        traffic = CurrentTraffic(requests_per_s=3.5 * EACH)

        answer = need(Capacity(sizing=sizing), traffic, drain_s=60, outlook=outlook, supply=supply)

        assert "need 5, 1 more (3.50 EUR per hour)" in answer.reasons[-1].message

    def test_of_rises_that_add_no_replica_says_nothing(self):
        answer = self.expecting(3.5, headroom=0.1)

        assert answer.replicas == 4
        assert [reason.code for reason in answer.reasons] == ["Demand"]

    def test_of_bursts_is_a_reserve_with_its_price(self):
        answer = self.expecting(3.5, burst_requests_per_s=6.5 * EACH, burst_origin="often")

        assert answer.replicas == 7
        assert answer.reasons[-1].code == "Reserve"
        assert "in bursts (often) need 7, 3 more (12.00 USD per hour)" in answer.reasons[-1].message

    def test_of_bursts_below_what_comes_anyway_is_none(self):
        answer = self.expecting(3.5, burst_requests_per_s=2 * EACH, burst_origin="often")

        assert answer.replicas == 4
        assert [reason.code for reason in answer.reasons] == ["Demand"]


def test_scaling_down_leaves_three_percent_of_room():
    # 0.97 * 1.03 = 0.9991, and 0.972 * 1.03 = 1.0012.
    assert needed(0.97 * EACH).replicas_with_margin == 1
    assert needed(0.972 * EACH).replicas_with_margin == 2


class TestHeadroom:
    def expecting(self, rate, *, headroom=0.05):
        traffic = CurrentTraffic(requests_per_s=rate * EACH)
        outlook = Outlook(requests_per_s=rate * EACH, origin="last value", headroom=headroom)
        supply = Supply(ready=4, due_s=(), lead_s=300)
        return need(believed(), traffic, drain_s=60, outlook=outlook, supply=supply)

    def test_is_room_enough_for_scaling_down(self):
        # 3.78 * 1.05 = 3.97; with three percent on top it would be 4.09.
        assert self.expecting(3.78).replicas_with_margin == 4

    def test_adds_to_the_rate_as_much_as_its_reason_says(self):
        # 3.8 * 1.05 = 3.99, and 3.82 * 1.05 = 4.01.
        assert self.expecting(3.8).replicas == 4
        more = self.expecting(3.82)
        assert more.replicas == 5
        assert more.reasons[-1].message.startswith("5% more, as demand may exceed")

    def test_that_no_rise_asks_for_adds_nothing(self):
        assert self.expecting(3.99, headroom=0.0).replicas == 4


def test_the_room_is_beside_the_backlog_and_not_for_it():
    # 0.5 and a backlog of 0.49 or 0.46 in a minute are one replica; 0.515 and 0.49 are two.
    assert needed(0.5 * MOST, waiting=0.49 * MOST * 60).replicas_with_margin == 2
    assert needed(0.5 * MOST, waiting=0.46 * MOST * 60).replicas_with_margin == 1


def test_nothing_waits_unless_it_is_told():
    assert need(believed(), CurrentTraffic(requests_per_s=EACH), drain_s=60).replicas == 1
    assert need(believed(), CurrentTraffic(requests_per_s=1.001 * EACH), drain_s=60).replicas == 2


@pytest.mark.parametrize(("factor", "replicas"), [(1.0, 4), (0.8, 5), (0.5, 8), (1.25, 4)])
def test_counts_on_what_kept_and_broken_promises_leave_of_a_replica(factor, replicas):
    # 3.9 replicas' worth by the arithmetic: 4.9 of those that serve 0.8 of it, 3.1 of 1.25.
    traffic = CurrentTraffic(requests_per_s=3.9 * EACH)

    assert need(believed(factor), traffic, drain_s=60).replicas == replicas


def test_says_what_a_replica_serves_with_that_factor():
    traffic = CurrentTraffic(requests_per_s=4)

    [reason] = need(believed(0.5), traffic, drain_s=60).reasons

    assert f"at {significant(0.5 * EACH)} per replica" in reason.message


def test_says_where_the_demand_comes_from():
    traffic = CurrentTraffic(requests_per_s=4, origin="expected by spec.demand")

    [reason] = need(believed(), traffic, drain_s=60).reasons

    assert "4.00 requests/s (expected by spec.demand)" in reason.message


def test_without_any_demand_is_the_smallest_fleet_allowed():
    answer = need_without_demand(3)

    assert (answer.replicas, answer.replicas_with_margin) == (3, 3)
    assert [reason.code for reason in answer.reasons] == ["NoDemand"]


rates = numbers(0, 200)


@given(st.tuples(rates, rates).map(sorted), numbers(0, 5000))
def test_a_higher_rate_never_needs_fewer(pair, waiting):
    low, high = pair

    assert needed(low, waiting=waiting).replicas <= needed(high, waiting=waiting).replicas


@given(rates, st.tuples(numbers(0, 5000), numbers(0, 5000)).map(sorted))
def test_a_longer_queue_never_needs_fewer(rate, pair):
    short, long = pair

    assert needed(rate, waiting=short).replicas <= needed(rate, waiting=long).replicas


@given(rates, numbers(0, 5000))
def test_room_for_scaling_down_is_never_less_than_the_need(rate, waiting):
    answer = needed(rate, waiting=waiting)

    assert 1 <= answer.replicas <= answer.replicas_with_margin


POOLED = size(a_sizing_request(routing=Routing.LEAST_OUTSTANDING))


@given(rates)
def test_replicas_that_share_a_queue_are_never_needed_in_greater_number(rate):
    assert needed(rate, sizing=POOLED).replicas <= needed(rate).replicas


def test_an_absurd_rate_still_gives_a_number():
    assert needed(1e15).replicas > 1e12
