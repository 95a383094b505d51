"""What an hour of a replica costs: which instance holds it, whole nodes, and commitments."""

from dataclasses import replace

import pytest

from builders import a_gpu, a_sizing_request
from tonnage.api.schedules import Schedule
from tonnage.catalog.gpu import ON_DEMAND, Price, Rent, Source, built_in_gpus
from tonnage.explain.demand_outcome import (
    commitment_written,
    cost_figures,
    missing_price,
    nodes_written,
    per_hour_written,
)
from tonnage.explain.report import estimate_status, round_estimate
from tonnage.sizing.bill import bill
from tonnage.sizing.compare import Choice
from tonnage.sizing.cost import gpu_hour, least_usd_per_gpu_hour, rented_hour
from tonnage.sizing.search import cost_of, costs_less, size
from tonnage.sizing.serving.staffing import Staffing
from tonnage.sizing.split import Parallelism
from tonnage.sizing.workload import Demand

LISTED = Source(key="aws-ec2-prices", quote="")
SMALL = Rent(usd_per_hour=1.00, num_gpus=1, instance="small", source=LISTED)
LARGE = Rent(usd_per_hour=12.00, num_gpus=8, instance="large", source=LISTED)


def rented(*rents, **changes):
    return a_gpu(price=Price(rents=rents, **changes))


def a_fleet_of(gpu, *, gpus_per_replica=1, **changes):
    sizing = size(a_sizing_request(gpu=gpu, **changes))
    split = Parallelism(tensor=gpus_per_replica)
    return replace(sizing, flags=replace(sizing.flags, parallelism=split))


class TestTheInstance:
    def test_is_the_smallest_that_holds_the_split(self):
        gpu = rented(LARGE, SMALL)

        assert gpu_hour(gpu, 1).rent.instance == "small"
        assert gpu_hour(gpu, 2).rent.instance == "large"
        assert gpu_hour(gpu, 2).usd == 1.50

    def test_of_a_replica_over_two_nodes_is_the_one_that_holds_a_node(self):
        assert gpu_hour(rented(LARGE, SMALL), 16).rent.instance == "large"

    def test_that_is_listed_nowhere_has_no_price_and_that_is_said(self):
        gpu = rented(SMALL)

        assert gpu_hour(gpu, 2) is None
        assert missing_price(gpu, 2) == (
            "no price is known of an instance with 2 TEST-80GB, only of small (1 GPU)"
        )

    def test_of_another_term_is_not_taken(self):
        gpu = rented(replace(SMALL, term="spot"))

        assert gpu_hour(gpu, 1) is None
        assert rented_hour(gpu, 1, term="spot").usd == 1.00
        assert missing_price(gpu, 1) == "TEST-80GB has no on demand price"

    def test_bounds_the_price_from_below_with_the_cheapest(self):
        assert least_usd_per_gpu_hour(rented(LARGE, SMALL)) == 1.00

    def test_is_named_with_all_that_is_known_and_nothing_else(self):
        rent = replace(LARGE, provider="AWS", region="us-east-1", date="2026-07")

        assert str(gpu_hour(rented(rent), 8)) == (
            "1.50 USD per GPU and hour: AWS us-east-1, on demand, 2026-07, large (8 GPUs)"
        )
        assert str(gpu_hour(a_gpu(price=Price(rent_usd_per_hour=2)), 8)) == (
            "2.00 USD per GPU and hour: yours"
        )


class TestWholeNodes:
    @pytest.mark.parametrize(
        ("replicas", "gpus_per_replica", "nodes"),
        [(1, 1, 1), (8, 1, 1), (9, 1, 2), (3, 4, 2), (2, 8, 2), (1, 16, 2)],
    )
    def test_are_paid_with_the_gpus_that_nobody_uses(self, replicas, gpus_per_replica, nodes):
        hour = gpu_hour(rented(LARGE, whole_nodes=True), gpus_per_replica)

        assert hour.nodes(replicas, gpus_per_replica) == nodes
        assert hour.gpus_paid(replicas, gpus_per_replica) == 8 * nodes

    def test_are_in_the_bill_and_are_named(self):
        found = bill(a_fleet_of(rented(LARGE, whole_nodes=True)), replicas=10)

        assert found.usd_per_hour == 24.00
        assert list(nodes_written(found)) == ["2 x large of 8 GPUs, 10 of 16 GPUs used, 6 idle"]

    def test_are_named_beside_the_share_of_them_that_is_paid(self):
        found = bill(a_fleet_of(rented(LARGE)), replicas=10)

        assert found.usd_per_hour == 15.00
        assert per_hour_written(found) == (
            "15.00 USD per hour as a share of full instances, 24.00 in whole ones"
        )
        assert list(nodes_written(found)) == ["2 x large of 8 GPUs, 10 of 16 GPUs used, 6 idle"]

    @pytest.mark.parametrize(("rent", "replicas"), [(LARGE, 16), (SMALL, 3)])
    def test_are_no_matter_where_they_are_full(self, rent, replicas):
        found = bill(a_fleet_of(rented(rent)), replicas=replicas)

        assert list(nodes_written(found)) == []
        assert "whole" not in per_hour_written(found)

    def test_are_no_matter_where_a_gpu_is_paid_alone(self):
        found = bill(a_fleet_of(a_gpu(price=Price(rent_usd_per_hour=2))), replicas=3)

        assert found.usd_per_hour_whole == found.usd_per_hour_shared == 6.00

    def test_are_in_every_figure_of_a_bill(self):
        sizing = a_fleet_of(rented(LARGE, whole_nodes=True), gpus_per_replica=2)
        single = bill(a_fleet_of(rented(LARGE), gpus_per_replica=2), replicas=1)
        three, five = (bill(sizing, replicas=replicas) for replicas in (3, 5))

        # 8 GPUs for 3 x 2, 16 for 5 x 2
        assert three.usd_per_million_tokens == pytest.approx(single.usd_per_million_tokens * 8 / 6)
        assert five.usd_per_request == pytest.approx(5 * single.usd_per_request * 16 / 10)
        estimate = estimate_status(sizing, 3)
        assert estimate.usd_per_hour == three.usd_per_hour
        assert estimate.usd_per_million_tokens == round_estimate(three.usd_per_million_tokens)

    def test_of_a_price_per_gpu_are_those_of_the_class(self):
        gpu = a_gpu(price=Price(rent_usd_per_hour=2, whole_nodes=True))

        assert gpu_hour(gpu, 1).gpus_per_node == gpu.gpus_per_node == 8


def test_of_a_fleet_that_may_not_begin_yet_a_token_costs_what_it_would():
    sizing = a_fleet_of(rented(LARGE))
    none, one = (bill(sizing, replicas=replicas) for replicas in (0, 1))

    assert none.usd_per_hour == 0
    assert none.usd_per_million_tokens == one.usd_per_million_tokens


class TestTheCostOfEach:
    """Request, token of an output and of a prompt: 2000 + 500 tokens, 1.50 USD an hour a GPU."""

    def test_is_of_what_the_fleet_serves_not_of_what_one_replica_would(self):
        sizing = replace(
            a_fleet_of(rented(LARGE), demand=Demand()),
            staffing=Staffing(each_requests_per_s=((1, 1.0), (4, 2.0)), is_pooled=True),
        )

        # Four replicas serve 8 requests/s, 28,800 an hour and 14.4 million tokens, for 6 USD.
        assert bill(sizing, replicas=4).usd_per_million_tokens == pytest.approx(6 / 14.4)
        choice = Choice(sizing=replace(sizing, replicas=4))
        assert choice.tokens_per_s_per_gpu == pytest.approx(8 * 500 / 4)

    def test_is_of_what_is_served_where_replicas_are_too_few(self):
        sizing = replace(
            a_fleet_of(rented(LARGE), demand=Demand(requests_per_s=10)),
            staffing=Staffing(each_requests_per_s=((1, 2.0),)),
        )
        found = bill(sizing, replicas=2)

        # Two replicas serve 4 of the 10 requests/s: 14,400 an hour for 3 USD.
        assert found.usd_per_request == pytest.approx(3 / 14_400)
        assert found.usd_per_million_tokens_asked == pytest.approx(3 / 7.2)
        assert found.usd_per_million_prompt_tokens == pytest.approx(3 / 28.8)

    def test_of_a_peak_beyond_the_replicas_counts_the_usual_rate_where_they_serve_it(self):
        sizing = replace(
            a_fleet_of(rented(LARGE), demand=Demand(requests_per_s=10, peak_ratio=5)),
            staffing=Staffing(each_requests_per_s=((1, 2.0),)),
        )

        assert bill(sizing, replicas=2).usd_per_request == pytest.approx(3 / 7_200)


def test_a_nightly_floor_is_in_the_month_and_in_what_each_request_costs():
    nightly = Schedule(cron="0 20 * * *", duration="12h", min_replicas=6)
    plain = replace(
        a_fleet_of(rented(SMALL), demand=Demand(requests_per_s=3)),
        staffing=Staffing(each_requests_per_s=((1, 2.0),)),
    )
    raised = replace(plain, request=replace(plain.request, schedules=(nightly,)))
    constant, found = (bill(each, replicas=2) for each in (plain, raised))

    # Two by day and six by night are four: 4 USD an hour where 2 are for the demand.
    assert found.mean_replicas == pytest.approx(4)
    assert found.usd_per_hour == constant.usd_per_hour == 2
    assert found.usd_per_month == pytest.approx(2 * constant.usd_per_month)
    assert found.usd_per_request == pytest.approx(4 / 10_800)


def test_a_rate_that_a_schedule_asks_for_is_met_by_no_more_than_may_run():
    event = Schedule(cron="0 0 * * *", duration="24h", requests_per_second=19)
    fleet = a_fleet_of(rented(SMALL), schedules=(event,), max_replicas=5)
    fleet = replace(fleet, staffing=Staffing(each_requests_per_s=((1, 2.0),)))

    assert bill(fleet, replicas=2).mean_replicas == pytest.approx(5)


FLEETS = [
    (name, gpus, replicas, is_whole, rate)
    for name, gpus in (("H100", 1), ("H200", 1), ("L40S", 2), ("A100-80GB", 4), ("H200", 8))
    for replicas, is_whole, rate in (
        (1, False, 0.5),
        (3, False, 2.7),
        (5, True, 4.0),
        (9, True, 40),
    )
]


@pytest.mark.parametrize(("name", "gpus", "replicas", "is_whole", "rate"), FLEETS)
def test_totals_are_those_that_are_made_by_hand(name, gpus, replicas, is_whole, rate):
    listed = {("H100", 1): (6.88, 1), ("H200", 1): (63.296, 8), ("L40S", 2): (10.49264, 4),
              ("A100-80GB", 4): (27.44705, 8), ("H200", 8): (63.296, 8)}  # fmt: skip
    gpu = built_in_gpus()[name]
    gpu = replace(gpu, price=replace(gpu.price, whole_nodes=is_whole))
    demand = Demand(requests_per_s=rate, peak_ratio=2)
    sizing = replace(
        a_fleet_of(gpu, gpus_per_replica=gpus, demand=demand),
        staffing=Staffing(each_requests_per_s=((1, 1.25),)),
    )
    figures = cost_figures(bill(sizing, replicas=replicas))

    usd, of = listed[name, gpus]
    instances = -(-replicas // (of // gpus))
    shared, whole = usd * replicas * gpus / of, usd * instances
    hour = whole if is_whole else shared
    requests = 3600 * min(rate / 2, 1.25 * replicas)
    assert figures["perHourShared"] == pytest.approx(shared, abs=0.005)
    assert figures["perHourWhole"] == pytest.approx(whole, abs=0.005)
    assert figures["perHour"] == pytest.approx(hour, abs=0.005)
    assert figures["perMonth"] == pytest.approx(hour * 24 * 365.25 / 12, abs=0.005)
    assert figures["perYear"] == pytest.approx(hour * 24 * 365.25, abs=0.005)
    assert figures["perRequest"] == pytest.approx(hour / requests, rel=1e-3)
    assert figures["perMillionTokens"] == pytest.approx(1e6 * hour / requests / 500, rel=1e-3)
    assert figures["perMillionInputTokens"] == pytest.approx(1e6 * hour / requests / 2000, rel=1e-3)


class TestACommitment:
    RESERVED = replace(LARGE, usd_per_hour=7.20, term="reserved 1 year")

    def test_is_for_the_replicas_that_always_run(self):
        sizing = a_fleet_of(rented(LARGE, self.RESERVED), min_replicas=2)
        [found] = bill(sizing, replicas=5).commitments

        # 2 GPUs at 1.50 - 0.90 USD, 8,766 hours a year; 0.90 / 1.50
        assert found.replicas == 2
        assert found.saved_per_year == pytest.approx(2 * 0.60 * 8766)
        assert commitment_written(found) == (
            "0.90 USD per GPU and hour, 10,519 USD per year less for the 2 replicas that always "
            "run (minReplicas); lower for a replica that runs more than 60% of the time"
        )

    def test_of_whole_nodes_is_worth_it_by_what_the_nodes_cost(self):
        reserved = replace(SMALL, usd_per_hour=0.90, term="reserved 1 year")
        gpu = rented(LARGE, reserved, whole_nodes=True)
        [found] = bill(a_fleet_of(gpu, min_replicas=2), replicas=5).commitments

        # 2 instances of 0.90 USD, instead of one of 8 GPUs at 12.00
        assert found.saved_per_year == pytest.approx((12.00 - 1.80) * 8766)
        assert found.worth_from == pytest.approx(1.80 / 12.00)

    def test_that_costs_more_says_so(self):
        dear = replace(self.RESERVED, usd_per_hour=16.00)
        [found] = bill(a_fleet_of(rented(LARGE, dear)), replicas=1).commitments

        assert "4,383 USD per year more for the 1 replica that always runs" in (
            commitment_written(found)
        )

    def test_is_none_beside_itself_and_none_without_a_reserved_price(self):
        paid = rented(LARGE, self.RESERVED, term="reserved 1 year")

        assert bill(a_fleet_of(paid), replicas=1).commitments == ()
        assert bill(a_fleet_of(rented(LARGE)), replicas=1).commitments == ()

    def test_a_year_is_twelve_of_the_months(self):
        found = bill(a_fleet_of(rented(LARGE)), replicas=4)

        assert found.usd_per_hour == 6.00
        assert found.usd_per_year == pytest.approx(6.00 * 8766)
        assert found.usd_per_year == pytest.approx(12 * found.usd_per_month)


class TestTheSplit:
    DEMAND = Demand(requests_per_s=40)

    def split_on(self, *rents, **changes):
        return size(a_sizing_request(gpu=rented(*rents), demand=self.DEMAND, **changes)).parallelism

    def test_is_the_cheapest_in_the_instances_that_hold_it(self):
        dear = replace(SMALL, usd_per_hour=10.00)

        assert self.split_on(SMALL, replace(LARGE, usd_per_hour=40.00)).num_gpus == 1
        assert self.split_on(dear, LARGE).num_gpus > 1

    def test_has_a_price_where_another_has_none(self):
        assert self.split_on(SMALL).num_gpus == 1
        assert self.split_on().num_gpus == self.split_on(replace(SMALL, num_gpus=None)).num_gpus

    def test_without_a_price_is_taken_where_no_other_serves(self):
        given = size(a_sizing_request(gpu=rented(SMALL), demand=self.DEMAND, num_gpus=2))

        assert cost_of(given) == (True, given.replicas * 2)

    def test_costs_less_only_by_more_than_the_gain(self):
        cheap, dear = (
            a_fleet_of(rented(replace(SMALL, usd_per_hour=usd)), demand=self.DEMAND)
            for usd in (1.00, 1.04)
        )

        assert costs_less(cheap, dear, gain=0.03)
        assert not costs_less(cheap, dear, gain=0.05)


def test_the_term_that_is_paid_where_none_is_said_is_on_demand():
    assert Price().term == ON_DEMAND
