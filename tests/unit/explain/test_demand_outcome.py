"""What a plan says of the demand asked: latencies reached, load, room and the next replica."""

from dataclasses import replace

import pytest

from builders import a_gpu, a_sizing_request, an_slo
from tonnage.catalog.gpu import Price
from tonnage.explain.demand_outcome import (
    DemandOutcome,
    at_demand,
    cost_figures,
    demand_figures,
    load_written,
    reached_targets,
    room_written,
)
from tonnage.sizing.bill import Bill
from tonnage.sizing.cost import GpuHour
from tonnage.sizing.search import size
from tonnage.sizing.serving.staffing import Latency, ServiceLevel
from tonnage.sizing.workload import Demand, Slo

SERVED = ServiceLevel(
    requests_per_s=4.0,
    num_replicas=2,
    latencies=(
        Latency(quantile=0.5, ttft_s=0.2, tpot_s=0.020),
        Latency(quantile=0.95, ttft_s=0.866, tpot_s=0.0383),
    ),
    busy=0.85,
    running=22.6,
    kv_usage=0.19,
)


def a_bill(per_hour, currency="USD"):
    """Return what a fleet of 4 an hour for each GPU costs."""
    return Bill(
        replicas=1,
        gpus_per_replica=1,
        hour=GpuHour(basis="rented", usd=4.0, parts=f"4.00 {currency}", currency=currency),
        usd_per_hour=per_hour,
        mean_replicas=1.0,
        usd_per_mean_hour=per_hour,
        usd_per_million_tokens=1.0,
        usd_per_million_tokens_asked=1.1,
        usd_per_request=0.0006,
        usd_per_million_prompt_tokens=0.2,
        usd_per_hour_and_user=None,
    )


FOUND = DemandOutcome(
    served=SERVED,
    sustained_requests_per_s=5.0,
    is_served=True,
    bill=a_bill(8.0),
    next_bill=a_bill(12.0),
    spread=0.15,
)


@pytest.fixture(scope="module")
def sizing():
    return size(a_sizing_request(num_gpus=1))


class TestInWords:
    def test_a_target_stands_beside_what_is_reached(self, sizing):
        assert list(reached_targets(sizing, SERVED)) == [
            ("TTFT p95", "866 ms", "2.00 s"),
            ("TPOT p95", "38.3 ms", "50.0 ms"),
        ]

    def test_answers_of_one_token_are_said_to_have_no_second(self, sizing):
        one = replace(SERVED, latencies=(Latency(quantile=0.95, ttft_s=1, tpot_s=None),))

        assert list(reached_targets(sizing, one))[1] == ("TPOT p95", "no second token", "50.0 ms")

    def test_a_queue_that_grows_has_no_ttft(self, sizing):
        found = replace(sizing, request=replace(sizing.request, demand=Demand(requests_per_s=40)))
        served = at_demand(found, 2).served

        (_, ttft, _), (_, tpot, _) = reached_targets(found, served)
        assert ttft == "grows without end"
        assert "end" not in tpot
        latencies = demand_figures(found, 2)["latencies"]
        assert {each["timeToFirstTokenSeconds"] for each in latencies} == {None}

    def test_a_queue_that_is_long_and_does_not_grow_has_one(self, sizing):
        rate = 1.02 * sizing.goodput_requests_per_s
        found = replace(sizing, request=replace(sizing.request, demand=Demand(requests_per_s=rate)))

        assert all(each.ttft_s < 60 for each in at_demand(found, 1).served.latencies)

    def test_the_load_is_told(self):
        assert load_written(SERVED) == ("22.6 running requests each on average; KV cache 19% full")

    def test_the_room_is_told_with_the_price_of_the_next_replica(self):
        # 5 / 4 - 1
        assert FOUND.growth == pytest.approx(0.25)
        assert room_written(FOUND) == (
            "headroom: up to 5.00 requests/s (+25%) before 3 are needed for 12.00 USD/h"
        )

    def test_a_load_within_the_model_error_is_said_to_be(self):
        # 4.0 * 1.15 is 4.6 of 5.0 or 4.5
        close = replace(FOUND, sustained_requests_per_s=4.5)

        assert (FOUND.is_sure, close.is_sure) == (True, False)
        assert room_written(close).endswith(
            "for 12.00 USD/h; not certain: if steps are 15% slower, 3 are needed"
        )

    def test_a_load_that_is_kept_with_longer_steps_is_sure_to_the_digit(self):
        # As plans that only count replicas say it: 4.0 times 1.15 and no more.
        assert replace(FOUND, sustained_requests_per_s=2 * (1.15 * 4.0 / 2)).is_sure
        assert all(
            replace(
                FOUND, spread=spread, sustained_requests_per_s=n * ((1 + spread) * (4.0 / n))
            ).is_sure
            for spread in (0.07, 0.15, 0.23, 0.31)
            for n in range(1, 40)
        )

    def test_the_load_is_the_demand_over_what_is_sustained(self):
        assert FOUND.load == pytest.approx(0.8)  # 4 / 5

    def test_a_buyers_currency_stands_beside_the_amounts(self):
        found = cost_figures(a_bill(8.0, "EUR"))

        # 8 * 730.5 hours
        assert (found["currency"], found["perHour"], found["perMonth"]) == ("EUR", 8.0, 5844)
        assert "12.00 EUR/h" in room_written(replace(FOUND, next_bill=a_bill(12.0, "EUR")))

    def test_without_a_price_nothing_is_made_up(self):
        assert cost_figures(None) is None
        assert room_written(replace(FOUND, next_bill=None)).endswith("3 are needed")

    def test_too_few_replicas_are_said_to_be_too_few(self):
        short = replace(FOUND, sustained_requests_per_s=3.0, is_served=False)

        assert short.growth == pytest.approx(-0.25)
        assert room_written(short).startswith(
            "2 serve 3.00 of the 4.00 requests/s asked for; 3 cost"
        )

    def test_a_replica_that_the_spec_does_not_allow_is_said_to_be_too_much(self, sizing):
        bound = replace(FOUND, may_grow=False)
        short = replace(bound, sustained_requests_per_s=3.0, is_served=False)
        asked = replace(sizing.request, demand=Demand(requests_per_s=1.0), max_replicas=2)
        outcomes = [at_demand(replace(sizing, request=asked), number) for number in (1, 2)]

        assert "for 12.00 USD/h, more than maxReplicas allows" in room_written(bound)
        assert room_written(short).endswith("3 cost 12.00 USD/h, more than maxReplicas allows")
        assert [each.may_grow for each in outcomes] == [True, False]


class TestOfAPlan:
    def test_is_what_its_replicas_do_with_the_demand(self, sizing):
        found = at_demand(sizing, sizing.replicas)

        assert found.is_served
        assert found.served.requests_per_s == 4
        assert found.sustained_requests_per_s == pytest.approx(
            sizing.replicas * sizing.goodput_requests_per_s
        )
        # 4 USD per GPU and hour; 4 requests/s of 500 tokens are 7.2 million an hour.
        assert found.bill.usd_per_hour == 4 * sizing.replicas
        asked = found.bill.usd_per_million_tokens_asked
        assert asked == pytest.approx(4 * sizing.replicas / 7.2)
        assert found.next_bill.usd_per_hour == 4 * (sizing.replicas + 1)

    def test_meets_every_target_where_it_is_served(self, sizing):
        reached = at_demand(sizing, sizing.replicas).served.at(0.95)

        assert reached.ttft_s <= 2
        assert reached.tpot_s <= 0.050

    def test_with_too_few_replicas_is_not_served(self, sizing):
        much = replace(sizing, request=replace(sizing.request, demand=Demand(requests_per_s=40)))

        found = at_demand(much, 2)

        assert not found.is_served
        assert found.growth < 0
        assert found.served.at(0.95).ttft_s > 2 or found.served.at(0.95).tpot_s > 0.050

    def test_without_a_demand_or_a_target_is_nothing(self, sizing):
        idle = replace(sizing, request=replace(sizing.request, demand=Demand()))
        offline = size(a_sizing_request(slo=Slo()))

        assert at_demand(idle, 1) is None
        assert at_demand(offline, 1) is None

    def test_without_a_price_has_none(self):
        free = size(a_sizing_request(gpu=a_gpu(price=Price()), slo=an_slo(ttft_s=2), num_gpus=1))

        found = at_demand(free, 1)

        assert (found.bill, found.next_bill) == (None, None)
