"""Whole answers: the split, the flags, the replicas, and a reasoned no."""

from dataclasses import replace

import pytest

from builders import (
    FP8,
    a_gpu,
    a_latent_attention,
    a_layer_group,
    a_shape,
    a_sizing_request,
    a_workload,
    an_expert_ffn,
    an_slo,
)
from fleet_builders import SPEC, a_model, a_request_of
from golden.formulas import Need, ways_out
from tonnage.api.status import Reason
from tonnage.catalog.gpu import Price
from tonnage.explain.demand_outcome import demand_rows
from tonnage.explain.report import estimate_status, plan_status
from tonnage.explain.words import explain, inputs
from tonnage.sizing.errors import (
    DoesNotFitError,
    InvalidParallelismError,
    SizingError,
    SLOInfeasibleError,
)
from tonnage.sizing.plan import (
    requests_per_s_asked,
    size_with,
)
from tonnage.sizing.provenance import Figure, Input, Origin
from tonnage.sizing.request import Demand, Flags
from tonnage.sizing.search import fewest_gpus, gpus_taken, size
from tonnage.sizing.split import Parallelism
from tonnage.sizing.workload import Lengths, Slo
from tonnage.units import GB

OFFLINE = Slo()


def running_flags(**changes):
    flags = Flags(
        max_num_seqs=64,
        max_num_batched_tokens=4096,
        gpu_memory_utilization=0.9,
        parallelism=Parallelism(tensor=2),
    )
    return replace(flags, **changes)


def mixture(**changes):
    """A model with a latent cache, so large that it needs six GPUs of 192 GB."""
    group = a_layer_group(
        num_layers=61,
        attention=a_latent_attention(num_heads=128),
        ffn=an_expert_ffn(num_experts=256, expert_intermediate_size=2048),
    )
    return a_shape(groups=(group,), hidden_size=7168, name="test/mixture-680b", **changes)


class TestMemory:
    def test_each_slot_costs_the_sampler_memory(self):
        few, many = (
            size(a_sizing_request(flags=running_flags(max_num_seqs=seqs))) for seqs in (512, 1024)
        )

        lost_bytes = few.budget.kv_pool_bytes - many.budget.kv_pool_bytes
        copies = a_sizing_request().engine.second_runner.sampler_copies
        counts = 1 + 1 / 32
        assert lost_bytes == pytest.approx((copies + counts) * 512 * 128_256 * 4)

    def test_a_measured_cache_replaces_the_estimate(self):
        sizing = size(a_sizing_request(measured_kv_tokens=100_000))

        assert sizing.kv_tokens == pytest.approx(100_000)

    def test_a_model_that_does_not_fit_says_so_in_numbers(self):
        small = a_gpu(memory_bytes=10 * GB)

        with pytest.raises(DoesNotFitError) as refusal:
            size(a_sizing_request(gpu=small, num_gpus=1))

        message = str(refusal.value)
        assert "8.6 GiB usable (92% of 9.3 GiB) - 15.0 GiB weights" in message
        assert "one request of 8192 tokens needs 1.0 GiB" in message

    def test_a_batch_that_fits_needs_no_way_out(self):
        need = Need(weights_bytes=16e9, kv_bytes=10e9, overhead_bytes=2e9)

        assert ways_out(need, available_bytes=28e9) == ()

    def test_a_way_out_tells_whether_it_is_enough(self):
        need = Need(weights_bytes=16e9, kv_bytes=10e9, overhead_bytes=2e9)

        fits = {way.change: way.fits for way in ways_out(need, available_bytes=22e9)}

        assert fits == {
            "weights at half the bytes": True,  # 20
            "KV cache at half the bytes": False,  # 23
            "half the batch": False,
            "twice the GPUs": True,
        }


class TestTheSplit:
    def test_is_the_smallest_that_fits(self):
        small = a_gpu(memory_bytes=16 * GB)

        assert size(a_sizing_request(gpu=small)).flags.parallelism.num_gpus == 2

    def test_is_the_smallest_that_keeps_the_slo(self):
        fast = size(a_sizing_request(slo=an_slo(tpot_s=0.007)))

        assert fast.flags.parallelism == Parallelism(tensor=2)

    def test_spreads_a_cache_that_tensor_parallelism_would_repeat(self):
        large = a_gpu(memory_bytes=192 * GB)

        sizing = size(
            a_sizing_request(
                shape=mixture(),
                weights=FP8,
                gpu=large,
                slo=OFFLINE,
                context_tokens=65_536,
                num_gpus=8,
                demand=Demand(requests_per_s=16),
            )
        )

        assert sizing.flags.parallelism == Parallelism(data=8)

    def test_that_the_engine_refuses_is_refused_by_the_rule(self):
        with pytest.raises(InvalidParallelismError, match=r"gpusPerReplica 12: .*TP 12 does not"):
            size(a_sizing_request(num_gpus=12))

    @pytest.mark.parametrize(
        ("slo", "words"),
        [
            (an_slo(tpot_s=0.001), r"timePerOutputToken: one request alone .* the SLO is 1.00 ms"),
            (an_slo(ttft_s=0.005), r"timeToFirstToken: one request alone .* the SLO is 5.00 ms"),
        ],
    )
    def test_that_cannot_serve_even_one_request_in_time_is_infeasible(self, slo, words):
        with pytest.raises(SLOInfeasibleError, match=words):
            size(a_sizing_request(slo=slo, num_gpus=1))

    def test_too_slow_says_more_than_a_smaller_one_that_does_not_fit(self):
        small = a_gpu(memory_bytes=16 * GB)

        with pytest.raises(SLOInfeasibleError):
            size(a_sizing_request(gpu=small, slo=an_slo(tpot_s=0.001)))

    def test_that_keeps_the_mean_but_no_percentile_is_infeasible(self):
        # Alone a mean prompt takes 0.08 s, one of the longest hundredth eight times that.
        spread = a_workload(prompt=Lengths(mean_tokens=2000, p99_tokens=16_000))

        with pytest.raises(SLOInfeasibleError, match="no rate that is worth a replica does"):
            size(
                a_sizing_request(workload=spread, slo=an_slo(ttft_s=0.1, quantile=0.99), num_gpus=1)
            )


class TestTheFlags:
    def test_that_run_are_kept(self):
        sizing = size(a_sizing_request(flags=running_flags()))

        assert sizing.flags == running_flags()

    def test_cover_what_runs_within_the_cache(self):
        sizing = size(a_sizing_request())

        running = sizing.at_capacity.num_running
        assert running < sizing.flags.max_num_seqs <= sizing.memory_ceiling_typical

    def test_use_the_whole_cache_offline(self):
        sizing = size(a_sizing_request(slo=OFFLINE))
        seqs = sizing.flags.max_num_seqs
        one_more = replace(sizing.flags, max_num_seqs=seqs + 1)

        more = size(a_sizing_request(slo=OFFLINE, flags=one_more))

        assert seqs <= sizing.memory_ceiling_typical
        assert more.memory_ceiling_typical < seqs + 1  # each slot costs memory


class TestMaxReplicas:
    """Of ``a_sizing_request``, one GPU serves some 5.4 requests/s."""

    MUCH = Demand(requests_per_s=20)

    def test_that_suffice_leave_the_smallest_split(self):
        enough = size(a_sizing_request(demand=self.MUCH, max_replicas=4))

        assert enough.flags.parallelism == Parallelism()
        assert enough.replicas == 4

    def test_too_few_ask_for_a_larger_split(self):
        few = size(a_sizing_request(demand=self.MUCH, max_replicas=2))

        assert few.flags.parallelism.num_gpus > 1
        assert few.replicas <= 2
        assert few.staffing.sustains(20, 2)

    def test_that_no_split_serves_with_get_the_one_that_serves_most(self):
        most = size(a_sizing_request(demand=Demand(requests_per_s=1_000), max_replicas=2))
        alone = size(a_sizing_request(demand=Demand(requests_per_s=1)))

        assert most.replicas > 2
        assert not most.staffing.sustains(1_000, 2)
        assert most.goodput_requests_per_s > alone.goodput_requests_per_s


class TestASearch:
    def test_of_another_demand_runs_that_demand_alone(self):
        request = a_sizing_request(slo=an_slo(ttft_s=1.9, tpot_s=0.049), num_gpus=1)
        size(request)
        runs = []

        again = size(
            replace(request, demand=Demand(requests_per_s=40)), on_search=lambda: runs.append(1)
        )

        assert again.replicas > 1
        assert len(runs) == 1

    def test_that_is_abandoned_goes_on_and_gives_the_same_plan(self):
        request = a_sizing_request(slo=an_slo(ttft_s=1.8, tpot_s=0.048), num_gpus=1)
        left, answers = [0], []

        def on_search():
            left[0] -= 1
            if left[0] < 0:
                raise TimeoutError

        for _ in range(100):
            left[0] = 4
            try:
                answers.append(size(request, on_search=on_search))
                break
            except TimeoutError:
                answers.append(None)

        assert answers[0] is None
        assert answers[-1] == size(request)

    def test_of_flags_that_run_is_run_once_more_for_a_demand_if_it_is_to_be_confirmed(self):
        planned = size(a_sizing_request(slo=an_slo(ttft_s=1.7, tpot_s=0.047), num_gpus=1))
        asked = replace(planned.request, flags=planned.flags, demand=Demand(requests_per_s=40))
        runs = []

        without = size(asked, confirms=False, on_search=lambda: runs.append("not confirmed"))
        confirmed = size(asked, on_search=lambda: runs.append("confirmed"))

        assert runs.count("not confirmed") == 0
        assert runs.count("confirmed") == 1
        assert without.replicas <= confirmed.replicas


class TestASplit:
    def test_that_serves_most_is_taken_of_the_same_gpus(self):
        request = a_sizing_request(num_gpus=2, slo=an_slo(ttft_s=2, tpot_s=0.030))

        chosen = size(request)

        others = [
            size_with(request, split) for split in (Parallelism(tensor=2), Parallelism(pipeline=2))
        ]
        best = max(each.goodput_requests_per_s for each in others)
        assert chosen.goodput_requests_per_s == best

    def test_is_refused_with_the_length_of_the_prompt_that_is_too_slow(self):
        spread = a_workload(prompt=Lengths(mean_tokens=2000, p99_tokens=16_000))

        with pytest.raises(SLOInfeasibleError, match=r"a prompt of 16000 tokens takes"):
            size(
                a_sizing_request(workload=spread, slo=an_slo(ttft_s=0.1, quantile=0.99), num_gpus=1)
            )


def test_offline_a_replica_serves_what_the_memory_ceiling_gives():
    sizing = size(a_sizing_request(slo=OFFLINE, num_gpus=1))
    state = sizing.at_capacity

    # All whole sequences that the cache holds, those in prefill for their one step among them. It
    # holds a few more than there are slots: each of those would cost memory.
    held = sizing.flags.max_num_seqs
    assert held == pytest.approx(sizing.memory_ceiling_typical, abs=2)
    assert state.num_decoding == pytest.approx(held / (1 + 1 / 500))
    assert sizing.goodput_requests_per_s == pytest.approx(state.num_decoding / (500 * state.step_s))
    assert sizing.goodput.outcome is None


class TestTheReplicas:
    def test_follow_the_rate(self):
        one = size(a_sizing_request()).goodput_requests_per_s

        assert size(a_sizing_request(demand=Demand(requests_per_s=2.5 * one))).replicas == 3

    def test_of_users_who_wait_follow_from_how_long_they_wait(self):
        sizing = size(a_sizing_request(demand=Demand(concurrency=1000)))

        rate = requests_per_s_asked(sizing)
        residence_s = 1000 / rate
        assert residence_s > 500 * sizing.at_capacity.step_s
        assert sizing.replicas == sizing.replicas_for(rate)

    def test_are_one_where_nothing_is_asked(self):
        assert size(a_sizing_request(demand=Demand())).replicas == 1

    def test_are_more_for_bursts_which_are_said_to_be_given(self):
        bursty = a_request_of(a_model(demand=SPEC["demand"] | {"arrivalScv": 6}))
        even = a_request_of(a_model())

        assert size(bursty).replicas > size(even).replicas
        assert ("arrivals", "bursts of squared variation 6, through a Service", "given") in list(
            inputs(size(bursty))
        )


class TestTheWords:
    def test_answer_five_questions_in_order(self):
        answers = explain(size(a_sizing_request()))

        assert [answer.question for answer in answers] == [
            "Does it fit?",
            "What is the bottleneck?",
            "What limits the batch?",
            "How long do requests take?",
            "How many replicas?",
        ]

    def test_hold_the_numbers_of_the_plan(self):
        sizing = size(a_sizing_request(demand=Demand(requests_per_s=30)))

        text = "\n".join(answer.answer for answer in explain(sizing))

        assert f"max-num-seqs {sizing.flags.max_num_seqs}" in text
        assert f"{sizing.replicas} for 30.0 requests/s" in text
        cost = dict(demand_rows(sizing, sizing.replicas))["cost"]
        assert cost.startswith(f"{4 * sizing.replicas:.2f} USD per hour")

    def test_say_what_is_unknown(self):
        free = a_gpu(price=Price())

        sizing = size(a_sizing_request(gpu=free, demand=Demand(), slo=OFFLINE))

        text = "\n".join(answer.answer for answer in explain(sizing))
        cost = dict(demand_rows(sizing, sizing.replicas))["cost"]
        assert cost == "unknown: TEST-80GB has no rental price"
        assert "no demand is given" in text
        assert "no target (offline)" in text

    def test_name_the_origin_of_every_input(self):
        given = Input(figure=Figure.CONTEXT, value="8192 tokens", origin=Origin.GIVEN)

        sizing = size(a_sizing_request(inputs=(given,)))

        assert list(inputs(sizing)) == [
            ("contextLength", "8192 tokens", "given"),
            ("price", "4.00 USD per GPU and hour: yours", "given"),
        ]


class TestTheStatus:
    def test_shows_the_plan_and_its_reasons(self):
        sizing = size(a_sizing_request(slo=an_slo(ttft_s=10, tpot_s=0.009)))

        status = plan_status(sizing)

        assert status.replicas == sizing.replicas
        assert status.max_num_seqs == sizing.flags.max_num_seqs
        assert status.limited_by == "TimePerOutputToken"
        assert [reason.code for reason in status.reasons] == ["Capacity", "Slots", "Demand"]

    def test_cuts_a_reason_to_what_the_schema_takes(self):
        long = Reason("Demand", 1025 * "x")

        assert (
            plan_status(size(a_sizing_request()), reasons=(long,)).reasons[0].message == 1024 * "x"
        )

    def test_shows_replicas_as_decided(self):
        assert plan_status(size(a_sizing_request()), replicas=5).replicas == 5

    def test_shows_the_estimate_with_its_prices(self):
        sizing = size(a_sizing_request())

        status = estimate_status(sizing, 3)

        assert status.kv_bytes_per_token == 131_072
        assert status.usd_per_hour == 12
        assert status.bottleneck == "MemoryBandwidth"
        assert status.slo_concurrency == pytest.approx(sizing.slo_ceiling, rel=1e-3)

    def test_leaves_out_what_is_unknown(self):
        status = estimate_status(
            size(a_sizing_request(gpu=a_gpu(price=Price()), slo=OFFLINE)), None
        )

        assert status.usd_per_hour is None
        assert status.usd_per_million_tokens is None
        assert status.slo_concurrency is None


def test_the_fewest_gpus_are_a_bound_of_what_a_plan_takes():
    asked = a_sizing_request(demand=Demand(requests_per_s=40))
    found = size(asked)

    assert 0 < fewest_gpus(asked) <= found.replicas * found.parallelism.num_gpus


@pytest.mark.parametrize("rate", [0.5, 4, 40, 400])
def test_the_split_that_is_chosen_costs_no_more_than_any_other(rate):
    asked = a_sizing_request(demand=Demand(requests_per_s=rate))
    others = (size_with(asked, Parallelism(tensor=each)) for each in (1, 2, 4, 8))

    assert gpus_taken(size(asked)) <= min(map(gpus_taken, others))


def test_a_class_on_which_nothing_fits_has_no_bound():
    tiny = a_gpu(name="TINY", memory_bytes=1 * GB)

    with pytest.raises(SizingError):
        fewest_gpus(a_sizing_request(gpu=tiny))


def test_a_format_that_the_files_have_anyway_means_these_files():
    def weights_of(asked):
        model = {"id": "deepseek-ai/DeepSeek-V4-Flash", "weights": asked}
        hardware = {"gpu": "H200", "gpusPerReplica": 8}
        return a_request_of(a_model(model=model, hardware=hardware)).weights

    assert weights_of("fp8") == weights_of("auto")
    assert weights_of("fp8").of_experts.name == "mxfp4"
    assert weights_of("int4").name == "int4"
