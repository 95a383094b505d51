"""Roles apart against one fleet for both: what each is asked, and which costs less."""

import re
from dataclasses import replace

import pytest

from builders import (
    a_gpu,
    a_latent_attention,
    a_layer_group,
    a_shape,
    a_sizing_request,
    a_workload,
    an_slo,
)
from tonnage.api.hardware import ParallelSizes
from tonnage.catalog.gpu import Price, built_in_gpus, find_gpu
from tonnage.catalog.models import built_in_model
from tonnage.catalog.shape import StateAttention
from tonnage.sizing.errors import InvalidParallelismError, SLOInfeasibleError
from tonnage.sizing.request import with_prior
from tonnage.sizing.roles import (
    divide,
    go_together,
    of_role,
    prefill_request,
    weigh_roles,
)
from tonnage.sizing.search import size
from tonnage.sizing.workload import Demand, Lengths, Routing, Slo

STATE = StateAttention(
    kind="gated_delta_net",
    num_key_heads=16,
    num_value_heads=32,
    key_head_dim=128,
    value_head_dim=128,
    conv_kernel=4,
    state_element_bytes=4,
)
FAST = 450e9
ONE_GPU = ParallelSizes(tensor=1, pipeline=1, data=1)
LONG_PROMPTS = a_workload(prompt=Lengths(mean_tokens=8000), output_tokens=100)
SHORT_PROMPTS = a_workload(prompt=Lengths(mean_tokens=100), output_tokens=1000)


def asked(rate=4.0, *, workload=LONG_PROMPTS, ttft_s=2.0, tpot_s=0.02, **changes):
    """8 billion parameters on one GPU a replica."""
    return a_sizing_request(
        workload=workload,
        slo=an_slo(ttft_s=ttft_s, tpot_s=tpot_s),
        demand=Demand(requests_per_s=rate),
        sizes=ONE_GPU,
        num_gpus=1,
        **changes,
    )


def weighed(request, link=FAST):
    unified = size(request)
    return weigh_roles(unified, unified.replicas, link)


def num_gpus(found):
    _, gpus = found.rank
    return gpus


class TestWhatEachIsAsked:
    def test_prefill_makes_one_token_in_what_is_left_of_ttft(self):
        request = prefill_request(asked(ttft_s=2.0), 7.0, 0.3)

        assert request.workload.output_tokens == request.workload.output_second_moment == 1
        assert [target.limit_s for target in request.slo.ttft] == [pytest.approx(1.7)]
        assert request.slo.tpot == ()
        assert request.demand.requests_per_s == 7.0

    def test_decode_finds_all_of_a_prompt_but_a_token(self):
        request = of_role(asked(), "decode", 7.0)

        assert request.workload.new_prompt_tokens == pytest.approx(1.0)
        assert request.workload.mean_context_tokens == LONG_PROMPTS.mean_context_tokens
        assert request.slo == asked().slo

    def test_a_transfer_that_takes_all_of_ttft_is_refused_in_numbers(self):
        with pytest.raises(SLOInfeasibleError, match=r"TTFT p95 2\.00 s: moving .* take 2\.50 s"):
            prefill_request(asked(), 7.0, 2.5)

    @pytest.mark.parametrize(
        ("attention", "prefill", "decode", "do"),
        [
            (None, 2, 4, True),
            (None, 4, 2, False),
            (a_latent_attention(), 4, 2, True),
            (STATE, 2, 4, False),
            (STATE, 4, 4, True),
        ],
    )
    def test_which_tensor_parallel_engines_hand_over(self, attention, prefill, decode, do):
        groups = (a_layer_group(attention=attention),) if attention else (a_layer_group(),)

        assert go_together(a_shape(groups=groups), prefill, decode) is do


class TestVerdict:
    def test_long_prompts_beside_a_strict_tpot_are_better_read_apart(self):
        found = weighed(asked(8.0))

        assert found.is_apart
        assert found.divided.rank < found.rank

    def test_prompts_that_are_soon_read_are_not_worth_a_role(self):
        found = weighed(asked(4.0, workload=SHORT_PROMPTS, tpot_s=0.05))

        assert not found.is_apart
        assert found.divided.rank > found.rank

    def test_no_role_has_more_replicas_than_it_may(self):
        free = weighed(asked(8.0))
        most = max(free.divided.replicas)

        kept, short = (weighed(asked(8.0, max_replicas=each)) for each in (most, most - 1))

        assert max(kept.divided.replicas) == most
        assert kept.is_apart
        assert short.divided is None
        assert re.search(
            rf"{most} \w+ replicas would be needed, maxReplicas allows {most - 1}", short.refusal
        )

    def test_where_a_fleet_for_both_may_not_serve_dearer_roles_do(self):
        free = weighed(asked(4.0, workload=SHORT_PROMPTS, tpot_s=0.05))
        request = replace(free.unified.request, max_replicas=max(free.divided.replicas))
        unified = replace(free.unified, request=request)

        found = weigh_roles(unified, request.max_replicas + 1, FAST)

        assert found.is_short
        assert found.is_apart

    def test_min_replicas_are_of_each_role(self):
        assert weighed(asked(0.2, min_replicas=3)).divided.replicas == (3, 3)

    def test_without_prices_gpus_are_weighed(self):
        found = weighed(asked(8.0, gpu=a_gpu(price=Price())))

        assert found.divided.rank == (
            (True, sum(found.divided.replicas)),
            sum(found.divided.replicas),
        )
        assert found.is_apart

    def test_both_roles_share_the_nodes_that_are_paid_as_a_whole(self):
        gpu = a_gpu()
        whole = replace(gpu, price=replace(gpu.price, whole_nodes=True))
        single, nodes = (weighed(asked(8.0, gpu=each)).divided for each in (gpu, whole))
        amounts = [amount for (_, amount), _ in (single.rank, nodes.rank)]
        gpus = sum(single.replicas)

        assert nodes.replicas == single.replicas
        paid = -(-gpus // gpu.gpus_per_node) * gpu.gpus_per_node
        assert amounts[1] == pytest.approx(amounts[0] * paid / gpus, rel=1e-3)

    @pytest.mark.parametrize(
        ("changes", "why"),
        [
            ({"slo": an_slo(ttft_s=2)}, "slo: .* both timeToFirstToken and timePerOutputToken"),
            ({"slo": Slo()}, "slo: "),
            ({"demand": Demand()}, "demand: "),
        ],
    )
    def test_what_is_not_weighed_is_said_by_its_field(self, changes, why):
        found = weigh_roles(size(replace(asked(), **changes)), 1, FAST)

        assert not found.is_weighed
        assert not found.is_apart
        assert re.match(why, found.refusal)

    def test_pipeline_stages_hand_nothing_over(self):
        found = weighed(replace(asked(), sizes=ParallelSizes(pipeline=2), num_gpus=2))

        assert found.is_weighed
        assert found.refusal.startswith("hardware.parallelism.pipeline: ")


class TestLaws:
    def test_more_demand_takes_no_fewer_gpus(self):
        taken = [num_gpus(weighed(asked(rate)).divided) for rate in (1.0, 2.0, 4.0, 8.0, 16.0)]

        assert taken == sorted(taken)
        assert taken[-1] > taken[0]

    def test_of_large_fleets_too(self):
        cut = a_workload(prompt=Lengths(mean_tokens=8000), output_tokens=20)
        pairs = [weighed(asked(rate, workload=cut), 50e9).divided for rate in (50.0, 55.0, 150.0)]
        taken = [num_gpus(each) for each in pairs]

        assert max(pairs[-1].replicas) > 32
        assert taken == sorted(taken)
        # Three times the rate takes about three times the GPUs.
        assert taken[-1] == pytest.approx(3 * taken[0], rel=0.15)

    def test_a_stricter_target_takes_no_fewer_gpus(self):
        by_ttft = [num_gpus(weighed(asked(8.0, ttft_s=each)).divided) for each in (4.0, 2.0, 1.5)]
        by_tpot = [num_gpus(weighed(asked(8.0, tpot_s=each)).divided) for each in (0.05, 0.02)]

        assert by_ttft == sorted(by_ttft)
        assert by_tpot == sorted(by_tpot)

    def test_a_slower_link_takes_no_fewer_gpus(self):
        # 1000 MiB a prompt: at 3 GB/s eight of them take 2.8 s of links.
        pairs = [weighed(asked(8.0), link).divided for link in (450e9, 50e9, 5e9, 3e9)]
        taken = [num_gpus(each) for each in pairs]

        assert taken == sorted(taken)
        assert min(pairs[-1].replicas) >= 3

    def test_a_link_that_takes_most_of_ttft_is_named(self):
        found = weighed(asked(8.0), 1e9)

        assert re.search(r"moving .* prompt takes? 1\.05 s", found.refusal) or re.search(
            r"moving the cache of a prompt and the first step of decode take", found.refusal
        )


class TestAMeasuredFleet:
    """Constant 6 requests/s of Qwen3-0.6B on H200: decode needs 2 replicas, then 3.

    One decodes 5.4 requests/s of 6,000/1,000 tokens, and 2.5 to 2.97 of 1,000/4,000.
    """

    @pytest.mark.parametrize(
        ("prompt", "output", "needed", "measured"),
        [(6000, 1000, 2, (5.4, 5.4)), (1000, 4000, 3, (2.5, 2.97))],
    )
    def test_it_needs_as_many_decode_replicas(self, prompt, output, needed, measured):
        shape, gpu = built_in_model("Qwen/Qwen3-0.6B"), find_gpu("H200", built_in_gpus())
        workload = a_workload(
            prompt=Lengths(mean_tokens=prompt),
            output_tokens=output,
            output_second_moment=float(output**2),
        )
        request = with_prior(
            asked(
                6.0,
                workload=workload,
                tpot_s=0.05,
                shape=shape,
                gpu=gpu,
                arrival_scv=0.05,
                routing=Routing.LEAST_OUTSTANDING,
                context_tokens=16_384,
            )
        )

        found = weighed(request, gpu.interconnect_bytes_per_s)

        each = found.divided.decode.goodput_requests_per_s
        assert found.divided.replicas == (1, needed)
        assert 0.8 * measured[0] <= each <= 1.2 * measured[1]
        # For as little as that, one fleet for both takes a replica less.
        assert not found.is_apart


def ranks(tensor=None):
    return ParallelSizes(tensor=tensor, pipeline=1, data=1)


class TestDividing:
    """Each role as an object of its own, with its own part of TTFT."""

    def test_decode_has_twice_the_transfer_and_three_steps_of_ttft_and_prefill_the_rest(self):
        found = divide(asked(), asked(), FAST, size)
        (first,), (second,) = (each.request.slo.ttft for each in (found.prefill, found.decode))
        moved = found.decode.replica.layout.bytes_of_sequence(8000)

        assert found.transfer_s == pytest.approx(moved / FAST, abs=1e-3)
        assert found.transfer_s >= moved / FAST
        assert found.decode_s == second.limit_s
        assert second.limit_s == pytest.approx(2 * found.transfer_s + 3 * 0.02)
        assert first.limit_s == pytest.approx(2.0 - second.limit_s)
        assert found.decode.request.transfer_s == found.transfer_s
        assert [found.prefill.request.slo.tpot, found.decode.request.slo.tpot] == [
            (),
            asked().slo.tpot,
        ]

    def test_each_role_keeps_its_part_with_the_replicas_that_are_planned(self):
        found = divide(asked(rate=20.0), asked(rate=20.0), FAST, size)

        assert found.replicas == (found.prefill.replicas, found.decode.replicas)
        for each in (found.prefill, found.decode):
            assert each.sustained_requests_per_s(each.replicas) >= 20.0

    def test_bounds_are_of_a_role(self):
        prefill, decode = asked(min_replicas=3), asked(min_replicas=2)

        found = divide(prefill, decode, FAST, size)

        assert (found.prefill.request.min_replicas, found.decode.request.min_replicas) == (3, 2)

    def test_a_ttft_that_decode_takes_alone_is_refused_with_the_numbers(self):
        with pytest.raises(SLOInfeasibleError, match=r"TTFT p95 60\.0 ms: moving the cache"):
            divide(asked(ttft_s=0.06), asked(ttft_s=0.06), FAST, size)

    def test_prefill_is_split_as_decode_is_where_it_would_have_more_ranks(self):
        free, one = (
            replace(asked(rate=20.0, ttft_s=0.45), sizes=sizes, num_gpus=None)
            for sizes in (ParallelSizes(), ranks(1))
        )
        wider = size(prefill_request(free, 20.0, divide(one, one, FAST, size).decode_s))
        found = divide(free, one, FAST, size)

        assert wider.parallelism.tensor > 1, "what it would be alone"
        assert found.prefill.parallelism.tensor == found.decode.parallelism.tensor == 1

    def test_decode_is_split_as_prefill_is_where_that_is_given(self):
        two = replace(asked(), sizes=ranks(2), num_gpus=None)
        found = divide(two, replace(asked(), sizes=ParallelSizes(), num_gpus=None), FAST, size)

        assert found.decode.parallelism.tensor == 2

    def test_splits_that_are_both_given_and_do_not_go_together_are_refused(self):
        prefill = replace(asked(), sizes=ranks(2), num_gpus=2)

        with pytest.raises(InvalidParallelismError, match="tensor 2 hands no cache over"):
            divide(prefill, replace(asked(), sizes=ranks(1)), FAST, size)

    def test_of_open_splits_that_do_not_go_together_what_costs_less_is_taken(self):
        free = replace(
            asked(rate=20.0, ttft_s=0.45, tpot_s=0.04), sizes=ParallelSizes(), num_gpus=None
        )
        found = divide(free, free, FAST, size)
        narrow = divide(replace(free, sizes=ranks(1)), replace(free, sizes=ranks(1)), FAST, size)

        assert found.prefill.parallelism.tensor == found.decode.parallelism.tensor
        assert found.rank < narrow.rank
