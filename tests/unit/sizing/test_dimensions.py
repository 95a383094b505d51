"""The formulas, run on quantities that know their units: each result has the right dimension."""

import math
from dataclasses import replace

import pint
import pytest

from builders import a_prior, a_shard
from golden.formulas import (
    bandwidth_per_usd,
    batch1_mbu_fraction,
    observed_mfu_fraction,
    prefill_tokens_per_s,
    shared_prefill_s,
    weight_bytes,
)
from tonnage.sizing.bill import usd_per_user
from tonnage.sizing.cost import owned_usd_per_hour, usd_per_million_tokens
from tonnage.sizing.memory.ceiling import BudgetPart, MemoryBudget
from tonnage.sizing.parallelism.kv import KvShare
from tonnage.sizing.split import Parallelism
from tonnage.sizing.step_time.speeds import (
    Speeds,
    batch_at_ridge,
    observed_mbu_fraction,
    ridge_flop_per_byte,
)
from tonnage.sizing.step_time.step import Step, step_time

unit = pint.UnitRegistry()
unit.define("flop = [work]")
unit.define("token = [text]")
unit.define("USD = [money]")

PEAK = 989e12 * unit.flop / unit.s
BANDWIDTH = 3.35e12 * unit.byte / unit.s


def test_the_ridge_is_work_per_byte():
    ridge = ridge_flop_per_byte(peak_flop_per_s=PEAK, memory_bytes_per_s=BANDWIDTH)

    batch = batch_at_ridge(ridge=ridge, weight_element_bytes=2 * unit.byte / unit.flop)

    assert ridge.units == unit.flop / unit.byte
    assert batch.check("[]")


def test_weights_are_bytes():
    weights = weight_bytes(num_parameters=70.6e9, bytes_per_parameter=2 * unit.byte)

    assert weights.to("GB").magnitude == pytest.approx(141.2)


def test_what_a_budget_leaves_is_bytes():
    gigabyte = 1e9 * unit.byte
    budget = MemoryBudget(
        total_bytes=80 * gigabyte,
        utilization_fraction=0.9,
        parts=(
            BudgetPart(name="weights", num_bytes=16 * gigabyte),
            BudgetPart(name="activations", num_bytes=2 * gigabyte),
            BudgetPart(name="runtime", num_bytes=1 * gigabyte),
            BudgetPart(name="CUDA graphs", num_bytes=1 * gigabyte),
        ),
    )

    assert budget.kv_pool_bytes.to("GB").magnitude == pytest.approx(52)


def test_prefill_is_tokens_per_second_and_shared_prefill_is_a_time():
    rate = prefill_tokens_per_s(peak_flop_per_s=PEAK, flop_per_token=16e9 * unit.flop / unit.token)
    first = shared_prefill_s(new_prompt_tokens=4000 * unit.token, tokens_per_s=rate)

    assert rate.check("[text] / [time]")
    assert first.check("[time]")


def test_utilizations_are_shares():
    step_bytes, step_s = 20e9 * unit.byte, 0.01 * unit.s
    rate = 100 * unit.token / unit.s

    mbu = observed_mbu_fraction(step_bytes=step_bytes, step_s=step_s, memory_bytes_per_s=BANDWIDTH)
    batch1 = batch1_mbu_fraction(
        tokens_per_s=rate,
        batch1_bytes_per_token=16e9 * unit.byte / unit.token,
        memory_bytes_per_s=BANDWIDTH,
    )
    mfu = observed_mfu_fraction(
        tokens_per_s=rate, flop_per_token=16e9 * unit.flop / unit.token, peak_flop_per_s=PEAK
    )

    assert all(share.check("[]") for share in (mbu, batch1, mfu))


def test_costs_are_money_per_what_they_say():
    rent = 4 * unit.USD / unit.hour

    per_token = usd_per_million_tokens(usd_per_hour=rent, tokens_per_s=1000 * unit.token / unit.s)
    owned = owned_usd_per_hour(
        purchase_usd=30_000 * unit.USD,
        amortization_hours=30_000 * unit.hour,
        watts=700 * unit.kW / 1e3,
        usd_per_kwh=0.1 * unit.USD / unit.kW / unit.hour,
    )

    assert per_token.check("[money] / [text]")
    assert owned.check("[money] / [time]")
    assert usd_per_user(usd=rent, num_users=300).check("[money] / [time]")
    assert bandwidth_per_usd(memory_bytes_per_s=BANDWIDTH, price_usd=30_000 * unit.USD).check(
        "[]/[time]/[money]"
    )


def test_a_step_is_a_time_and_reads_bytes():
    constants = a_prior()
    seconds = {
        name: getattr(constants, name) * unit.s
        for name in (
            "per_step_s",
            "per_kernel_s",
            "per_scaled_product_s",
            "per_sequence_s",
            "per_all_reduce_s",
            "per_experts_block_s",
            "cutlass_block_s",
            "cutlass_expert_s",
            "per_cached_head_s",
            "bulk_extra_s",
            "prefill_launch_s",
        )
    }
    shard = a_shard(
        dense_read_bytes=16e9 * unit.byte,
        num_launches=320,
        kv=(KvShare(bytes_per_token=131_072 * unit.byte, flop_per_pair=5e5 * unit.flop),),
        flop_per_token=16e9 * unit.flop,
        parallelism=Parallelism(tensor=2),
    )
    speeds = Speeds(
        memory_bytes_per_s=BANDWIDTH,
        peak_flop_per_s=PEAK,
        # The two bytes of an activation are a plain number in the code.
        interconnect_bytes_per_s=450e9 / unit.s,
    )
    step = Step(
        num_sequences=32,
        context_tokens=32 * 2000,
        prefill_tokens=512,
        prefill_context_tokens=1000,
    )

    time = step_time(shard, speeds, replace(constants, **seconds), step)

    assert time.total_s.check("[time]")
    assert time.decode_bytes.units == unit.byte
    assert time.decode_flop.units == unit.flop
    plain = step_time(
        a_shard(
            kv=(KvShare(bytes_per_token=131_072, flop_per_pair=5e5),),
            parallelism=Parallelism(tensor=2),
        ),
        Speeds(memory_bytes_per_s=3.35e12, peak_flop_per_s=989e12, interconnect_bytes_per_s=450e9),
        constants,
        step,
    )
    assert math.isclose(time.total_s.to("s").magnitude, plain.total_s)
