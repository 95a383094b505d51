"""What was needed of late, told in replicas that serve what they are known to by now."""

from dataclasses import replace

import pytest

from builders import a_sizing_request
from fleet_builders import NOW_S, a_fleet, a_sizing, a_state, assessed
from tonnage.control.decide.outlook import needs_in_replicas_of_now, remember_need
from tonnage.control.input.memory import Needed, ReplicaGoodput
from tonnage.policy.situation import Need
from tonnage.sizing.search import size
from tonnage.sizing.workload import Routing, Slo

REQUEST = a_sizing().request
BELIEVED = ReplicaGoodput(
    engine="k", workload=REQUEST.workload, slo=REQUEST.slo, requests_per_s=2.0
)


def serving(times):
    return replace(BELIEVED, requests_per_s=2.0 * times)


def told(now, *, counted=BELIEVED):
    needs = [Needed(at_s=NOW_S, replicas=each, served=counted) for each in (13, 9)]
    return [replicas for _, replicas in needs_in_replicas_of_now(needs, now)]


def test_fewer_were_needed_of_replicas_that_turn_out_to_serve_more():
    # 13 / 1.5 = 8.7, and 9 / 1.5 = 6.
    assert told(serving(1.5)) == [9, 6]


@pytest.mark.parametrize("times", [0.7, 0.98, 1.0])
def test_as_many_were_needed_where_they_do_not(times):
    assert told(serving(times)) == [13, 9]


def test_needs_counted_in_slow_replicas_shrink_whatever_was_believed_before_them():
    # Fast at first, then slow, then fast again: what was counted between is told in fast ones.
    assert told(serving(1.0), counted=serving(0.5)) == [7, 5]


@pytest.mark.parametrize(
    "other",
    [
        replace(serving(2), engine="other"),
        replace(serving(2), slo=Slo()),
        replace(serving(2), workload=replace(REQUEST.workload, output_tokens=10.0)),
    ],
)
def test_other_engines_and_other_requests_say_nothing_of_these(other):
    assert told(other) == [13, 9]


class TestWithTheFactorOfPromises:
    def chosen(self, *, goodput, factor):
        """What is chosen where the learner moved goodput by a ratio, and promises by another."""
        chosen = assessed().chosen
        rate = goodput * chosen.sizing.goodput_requests_per_s
        sizing = replace(chosen.sizing, goodput=replace(chosen.sizing.goodput, requests_per_s=rate))
        return replace(chosen, sizing=sizing, goodput_factor=factor)

    def held(self, before, now):
        """Ten replicas needed a minute ago, told by now."""
        fleet = a_fleet(a_state())
        wanted = Need(replicas=10, replicas_with_margin=10, reasons=())
        known = remember_need(assessed(), before, wanted, fleet, 600)
        [*_, (_, replicas)] = needs_in_replicas_of_now(known.recent_needs, now.replica_goodput)
        return replicas

    def test_as_many_were_needed_where_it_takes_back_what_the_learner_gave(self):
        # Faster engines, of which broken promises had already shown what they serve.
        before = self.chosen(goodput=1.0, factor=0.8)
        assert self.held(before, self.chosen(goodput=1.25, factor=0.64)) == 10

    def test_fewer_were_needed_where_promises_show_that_more_is_served(self):
        before = self.chosen(goodput=1.0, factor=0.8)
        assert self.held(before, self.chosen(goodput=1.0, factor=1.0)) == 8

    def test_what_one_alone_serves_is_compared(self):
        sizing = size(a_sizing_request(routing=Routing.LEAST_OUTSTANDING, arrival_scv=16.0))
        bursty = replace(assessed().chosen, sizing=sizing)
        alone = bursty.capacity.each_requests_per_s(1)

        assert bursty.replica_goodput.requests_per_s == alone
        assert alone != bursty.capacity.each_requests_per_s(2)
