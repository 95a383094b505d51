"""GPU classes compared: order, bills worked out by hand."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from builders import a_gpu, a_sizing_request, an_slo
from splits import mean_cost_of, swept_costs
from tonnage.api.objects import parse_model_deployment
from tonnage.catalog.gpu import Price, built_in_gpus
from tonnage.explain.demand_outcome import demand_rows
from tonnage.explain.words import explain
from tonnage.sizing.bill import bill, tokens_per_s_asked
from tonnage.sizing.compare import Choice, select
from tonnage.sizing.cost import gpu_hour, owned_hour, rented_hour
from tonnage.sizing.plan import size_with
from tonnage.sizing.request import Flags, ask, look_up, on_gpu
from tonnage.sizing.search import size
from tonnage.sizing.serving.staffing import Staffing
from tonnage.sizing.split import Parallelism
from tonnage.sizing.workload import Demand, Slo
from tonnage.units import GB

ROOT = Path(__file__).parents[3]
OFFLINE = Slo()
SERVED = Demand(requests_per_s=4)
OWNED = Price(
    purchase_usd=26_280,
    amortization_hours=26_280,
    power_usd_per_kwh=0.1,
    upkeep_usd_per_hour=0.33,
    rent_usd_per_hour=4,
)


def a_class(name, usd=4.0, **changes):
    price = Price() if usd is None else Price(rent_usd_per_hour=usd)
    return a_gpu(name=name, price=price, **changes)


def best_choice(request):
    return Choice(sizing=size(request))


def selected(**changes):
    """Return the answer of the one class that is asked."""
    request = a_sizing_request(**changes)
    (choice,) = select(request, [request.gpu]).choices
    return choice


def ranked(request, gpus, **more):
    return [choice.gpu.name for choice in select(request, gpus, **more).choices]


def at_rate(requests_per_s, **changes):
    """Return a sizing on one GPU whose replica sustains this rate, whatever it says by itself."""
    sizing = size(a_sizing_request(num_gpus=1, **changes))
    return replace(
        sizing,
        goodput=replace(sizing.goodput, requests_per_s=requests_per_s),
        staffing=Staffing(each_requests_per_s=((1, requests_per_s),)),
    )


def a_spec(name, *changes):
    text = (ROOT / "deploy" / "examples" / f"{name}.yaml").read_text()
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    return parse_model_deployment(yaml.safe_load(text)).spec


def asked(spec):
    return ask(spec, look_up(spec, built_in_gpus()))


class TestTheOrder:
    def test_is_by_price_where_the_classes_are_alike(self):
        gpus = [a_class("DEAR", 5), a_class("CHEAP", 3), a_class("MIDDLE", 4)]

        assert ranked(a_sizing_request(), gpus) == ["CHEAP", "MIDDLE", "DEAR"]

    def test_does_not_depend_on_the_order_in_which_classes_are_named(self):
        gpus = [a_class("B"), a_class("C", 3), a_class("A"), a_class("D", None)]

        assert (
            ranked(a_sizing_request(), gpus) == ranked(a_sizing_request(), gpus[::-1]) == [*"CABD"]
        )

    def test_of_equal_classes_is_by_name(self):
        assert ranked(a_sizing_request(), [a_class("B"), a_class("A")]) == ["A", "B"]

    def test_counts_the_whole_fleet_not_one_gpu(self):
        # 2 USD for a GPU, but half the bandwidth and compute: more than twice as many are needed.
        slow = a_class(
            "SLOW",
            2.0,
            memory_bytes_per_s=0.75e12,
            peak_flop_per_s={"bf16": 250e12, "fp8": 500e12},
        )

        assert ranked(
            a_sizing_request(demand=Demand(requests_per_s=40)), [slow, a_class("FAST", 4)]
        ) == [
            "FAST",
            "SLOW",
        ]

    def test_puts_classes_without_a_price_behind_those_with_one_by_number_of_gpus(self):
        slow = a_class("A-SLOW", None, memory_bytes_per_s=0.75e12)
        gpus = [slow, a_class("B-FAST", None), a_class("C-PRICED", 90)]
        found = select(a_sizing_request(demand=Demand(requests_per_s=40)), gpus).choices

        assert [choice.gpu.name for choice in found] == ["C-PRICED", "B-FAST", "A-SLOW"]
        assert found[1].num_gpus < found[2].num_gpus
        assert found[1].bill is None

    def test_is_by_the_price_of_a_token_where_no_demand_is_given(self):
        slow = a_class("SLOW", 3.9, memory_bytes_per_s=0.75e12)

        assert ranked(a_sizing_request(demand=Demand()), [slow, a_class("FAST", 4)]) == [
            "FAST",
            "SLOW",
        ]

    def test_ends_with_the_refused_by_name_each_with_its_reason(self):
        tiny = a_class("TINY", memory_bytes=1 * GB)
        unfit = a_class("BLIND", peak_flop_per_s={"fp4": 1e15})
        found = select(a_sizing_request(), [tiny, a_class("GOOD"), unfit])

        assert [choice.gpu.name for choice in found.choices] == ["GOOD"]
        assert [(each.gpu.name, each.reason) for each in found.refused] == [
            ("BLIND", "MissingFigure"),
            ("TINY", "DoesNotFit"),
        ]
        assert "BLIND has no peak for bf16" in found.refused[0].message

    def test_leaves_out_what_takes_several_nodes_where_another_class_serves(self):
        small = a_class("SMALL", memory_bytes=12 * GB, gpus_per_node=1)
        tiny = a_class("TINY", memory_bytes=1 * GB)
        asked = a_sizing_request()
        found = select(asked, [small, a_class("GOOD"), tiny], is_within_node=True)
        alone = select(asked, [small, tiny], is_within_node=True)

        assert [choice.gpu.name for choice in found.choices] == ["GOOD"]
        assert [gpu.name for gpu in found.over_nodes] == ["SMALL"]
        assert [each.gpu.name for each in found.refused] == ["TINY"]
        assert [choice.gpu.name for choice in alone.choices] == ["SMALL"]
        assert alone.choices[0].sizing.parallelism.num_gpus > 1
        assert alone.over_nodes == ()

    def test_refuses_all_where_the_context_is_too_long(self):
        found = select(a_sizing_request(context_tokens=1_000_000), [a_class("A"), a_class("B")])

        assert found.choices == ()
        assert {each.reason for each in found.refused} == {"ContextTooLong"}

    def test_says_infeasible_where_one_request_alone_is_too_slow(self):
        found = select(a_sizing_request(slo=an_slo(tpot_s=0.0001)), [a_class("A")])

        assert [each.reason for each in found.refused] == ["SLOInfeasible"]


class TestTheSplit:
    @pytest.mark.parametrize(
        ("name", "requests_per_s"),
        [
            pytest.param(name, rate, marks=() if is_quick else pytest.mark.thorough)
            for name, quick in (("H100", 4), ("L4", 0.1), ("A100-40GB", 400))
            for rate in (0.1, 4, 40, 400)
            for is_quick in (rate == quick,)
        ],
    )
    def test_costs_as_much_as_the_cheapest_of_every_split_but_for_the_model_error(
        self, name, requests_per_s
    ):
        spec = a_spec("qwen3-8b-l4")
        request = replace(
            on_gpu(asked(spec), built_in_gpus()[name]),
            demand=Demand(requests_per_s=requests_per_s),
            max_replicas=None,
        )

        _, amount = mean_cost_of(best_choice(request).sizing)
        [_, least] = min(swept_costs(request))
        assert least <= amount <= 1.15 * least  # of a simpler split

    def test_is_what_a_plan_gives_that_is_told_its_number_of_gpus(self):
        request = on_gpu(asked(a_spec("llama-3.3-70b-h200")), built_in_gpus()["H100"])
        choice = best_choice(request)
        num_gpus = choice.sizing.flags.parallelism.num_gpus

        planned = size(replace(request, num_gpus=num_gpus))

        assert planned.flags == choice.sizing.flags
        assert planned.replicas == choice.replicas

    def test_is_bound_by_no_max_replicas_and_says_where_it_is_exceeded(self):
        free = selected(demand=Demand(requests_per_s=40))
        bound = selected(demand=Demand(requests_per_s=40), max_replicas=free.replicas - 1)

        assert free.replicas > 1
        assert not bound.is_within_bounds
        assert (bound.sizing.flags, bound.replicas) == (free.sizing.flags, free.replicas)

    def test_takes_the_fewest_gpus_of_all_splits_of_a_node(self):
        request = a_sizing_request(
            demand=Demand(requests_per_s=40), gpu=a_class("PAIR", 4.0, gpus_per_node=2)
        )
        one, two = (size_with(request, split) for split in (Parallelism(), Parallelism(tensor=2)))

        choice = best_choice(request)

        assert choice.num_gpus <= min(one.replicas, 2 * two.replicas)

    def test_beyond_max_replicas_is_said(self):
        choice = selected(demand=Demand(requests_per_s=10_000), max_replicas=1)

        assert choice.replicas > 1
        assert not choice.is_within_bounds

    def test_goes_beyond_a_node_only_where_nothing_smaller_fits(self):
        small = a_class("SMALL", memory_bytes=5_500_000_000, gpus_per_node=4)
        choice = best_choice(on_gpu(a_sizing_request(slo=OFFLINE), small))

        assert choice.sizing.flags.parallelism.num_gpus > 4

    def test_runs_no_fewer_replicas_than_are_allowed(self):
        one = best_choice(a_sizing_request(demand=Demand(requests_per_s=0.01)))
        three = best_choice(a_sizing_request(demand=Demand(requests_per_s=0.01), min_replicas=3))

        assert (one.replicas, three.replicas) == (1, 3)
        assert three.bill.usd_per_hour == 3 * 4


class TestTheRequestOnAnotherClass:
    def test_leaves_open_what_was_settled_for_the_first(self):
        flags = Flags(
            max_num_seqs=8,
            max_num_batched_tokens=2048,
            gpu_memory_utilization=0.9,
            parallelism=Parallelism(),
        )
        request = a_sizing_request(num_gpus=2, flags=flags, measured_kv_tokens=1000)

        moved = on_gpu(request, a_class("OTHER"))

        assert (moved.num_gpus, moved.flags, moved.measured_kv_tokens) == (None, None, None)
        assert moved.gpu.name == "OTHER"

    def test_names_the_figures_of_the_new_class(self):
        request = asked(a_spec("llama-3.3-70b-h200"))
        before = {each.name: each.value for each in request.inputs}

        moved = {each.name: each.value for each in on_gpu(request, built_in_gpus()["L4"]).inputs}

        assert "GPU H200" in before
        assert "GPU H200" not in moved
        assert moved["GPU L4"].startswith("22.1 GiB, 300.00 GB/s")
        assert list(moved)[:5] == list(before)[:5]


class TestTheBill:
    def test_of_a_rented_fleet(self):
        # A replica of one GPU at 4 USD sustains 2 requests/s of 500 tokens: 3.6 million an hour.
        found = bill(at_rate(2.0), replicas=3)

        assert found.usd_per_hour == 12
        assert found.usd_per_million_tokens == pytest.approx(4 / 3.6)
        # 4 requests/s ask for 2000 tokens/s, 7.2 million an hour, and three replicas are paid.
        assert found.usd_per_million_tokens_asked == pytest.approx(12 / 7.2)
        assert found.usd_per_hour_and_user is None

    def test_without_a_demand_is_for_full_use_only(self):
        found = bill(at_rate(2.0, demand=Demand()), replicas=1)

        assert found.usd_per_million_tokens_asked is None
        assert found.usd_per_million_tokens == pytest.approx(4 / 3.6)

    def test_of_users_who_are_idle_most_of_the_time(self):
        # 90 in flight at a duty of 30 % are 300 users; 12 USD / 300, and 730.5 hours a month.
        sizing = at_rate(2.0, demand=Demand(concurrency=90, duty_fraction=0.3))
        found = bill(sizing, replicas=3)

        assert sizing.request.demand.num_users == pytest.approx(300)
        assert found.usd_per_hour_and_user == pytest.approx(0.04)
        assert found.usd_per_month_and_user == pytest.approx(29.22)

    def test_is_of_what_usually_comes_where_a_peak_is_planned_for(self):
        usual = at_rate(2.0, demand=Demand(concurrency=90, duty_fraction=0.3))
        peak = at_rate(2.0, demand=Demand(concurrency=225, duty_fraction=0.3, peak_ratio=2.5))

        found = bill(peak, replicas=3)

        assert peak.request.demand.usual == usual.request.demand
        assert found.usd_per_hour_and_user == pytest.approx(0.04)
        expected = bill(usual, replicas=3).usd_per_million_tokens_asked
        assert found.usd_per_million_tokens_asked == pytest.approx(expected)

    def test_of_an_owned_gpu_is_price_over_life_and_power_and_upkeep(self):
        # 26,280 USD / 26,280 h + 0.7 kW * 0.1 USD/kWh + 0.33 USD
        hour = owned_hour(a_gpu(price=OWNED, tdp_watts=700))

        assert hour.usd == pytest.approx(1.40)
        assert str(hour) == (
            "owned: 26,280 USD / 26,280 h + 700 W at 0.100 USD/kWh + 0.33 USD upkeep = 1.40 USD "
            "per GPU and hour"
        )

    def test_takes_the_owned_price_where_an_administrator_gives_both(self):
        both = a_gpu(price=OWNED, tdp_watts=700)

        assert gpu_hour(both, 1) == owned_hour(both)
        assert rented_hour(both, 1).usd == 4
        assert gpu_hour(a_gpu(), 1).basis == "rented"

    def test_does_not_take_a_purchase_price_that_nobody_spreads(self):
        assert gpu_hour(a_gpu(price=Price(purchase_usd=30_000)), 1) is None

    def test_says_what_owning_saves(self):
        sizing = at_rate(2.0, gpu=a_gpu(price=OWNED, tdp_watts=700))
        sizing = replace(sizing, replicas=2)
        rows = dict(demand_rows(sizing, 2))

        # 2 * 1.40; 2.80 / 7.2, 1.40 / 3.6; rented 2 * 4 and 4 / 3.6.
        assert rows["cost"].startswith("2.80 USD per hour; ")
        assert "0.39 USD per million output tokens" in rows["cost of each"]
        assert rows["at capacity"].endswith("0.39 USD per million output tokens")
        assert rows["price"].startswith("owned: 26,280 USD / 26,280 h")
        assert rows["if rented"] == (
            "4.00 USD per GPU and hour: yours, 8.00 USD per hour in all, 1.11 USD per million "
            "output tokens"
        )

    def test_names_the_key_that_would_make_a_purchase_price_one_per_hour(self):
        sizing = size(a_sizing_request(gpu=a_gpu(price=Price(purchase_usd=30_000))))

        assert "price.amortization_hours" in dict(demand_rows(sizing, 1))["cost"]


class TestHalfAPriceOfAnOwnedGpu:
    @pytest.mark.parametrize(
        ("figures", "missing"),
        [
            ({"amortization_hours": 1}, "purchase_usd"),
            ({"purchase_usd": 1, "power_usd_per_kwh": 1}, "amortization_hours"),
            ({"purchase_usd": 1, "upkeep_usd_per_hour": 1}, "amortization_hours"),
        ],
    )
    def test_is_refused_naming_what_is_missing(self, figures, missing):
        with pytest.raises(ValueError, match=missing):
            Price(**figures)

    def test_is_refused_where_power_has_a_price_but_no_watts(self):
        with pytest.raises(ValueError, match="tdp_watts"):
            a_gpu(price=OWNED, tdp_watts=None)


class TestOffline:
    TEXT = "tokensPerDay: 1000000000"

    def test_runs_at_the_memory_ceiling(self):
        sizing = size(a_sizing_request(slo=OFFLINE))

        assert sizing.limited_by == "KVCache"
        assert sizing.flags.max_num_seqs == math.floor(sizing.memory_ceiling_typical)

    def test_counts_replicas_from_the_tokens_of_a_day(self):
        sizing = size(asked(a_spec("offline-batch")))

        # 1e9 tokens / 86,400 s
        assert tokens_per_s_asked(sizing) == pytest.approx(11_574.07, abs=0.01)
        assert sizing.replicas == math.ceil(11_574.07 / sizing.output_tokens_per_s)

    def test_half_the_tokens_take_half_the_replicas(self):
        one = size(asked(a_spec("offline-batch")))
        half = size(asked(a_spec("offline-batch", (self.TEXT, "tokensPerDay: 500000000"))))

        assert one.replicas - 2 * half.replicas in {-1, 0}

    def test_is_told_in_tokens_per_day(self):
        sizing = size(asked(a_spec("offline-batch")))
        inputs = {each.name: each.value for each in sizing.request.inputs}
        *_, latency, replicas = explain(sizing)

        assert inputs["demand"] == "1,000,000,000 output tokens per day = 23.1 requests/s"
        assert "no target (offline)" in latency.answer
        assert "TTFT" not in f"{latency.answer} {latency.lines}"
        assert replicas.answer == f"{sizing.replicas} for 1000 million output tokens per day"

    def test_a_month_costs_its_hours(self):
        # 4 USD * 5 replicas * 730.5 h; 2 requests/s of 500 tokens asked: 3.6 million an hour.
        sizing = at_rate(1.0, slo=OFFLINE, demand=Demand(requests_per_s=2))
        rows = dict(demand_rows(sizing, 5))

        assert "14,610 USD per month" in rows["cost"]
        assert "5.56 USD per million output tokens" in rows["cost of each"]
