"""What the documents say in words, and how their wrong figures came about."""

import pytest

from golden.documents import CALCULATIONS, ROWS, model
from golden.rows_memory import kimi_replica, need_70b_2xa100_b32, request_bytes
from golden.rows_roofline import parameters_70b, ridge
from golden.rows_speed import prefill_s, step_32b
from tonnage.sizing.split import Parallelism
from tonnage.sizing.step_time.speeds import observed_mbu_fraction
from tonnage.units import GB, GIB


def test_a_128k_request_takes_less_than_a_third_of_an_h200_not_over_half():
    assert CALCULATIONS["kv-128k-share-of-h200"]() < 1 / 3


def test_the_l40s_costs_more_per_token_than_the_h100():
    usd_per_million = CALCULATIONS["l40s-beats-h100"]()

    assert usd_per_million["L40S"] > usd_per_million["H100-SXM5"]


def test_attention_makes_prefill_grow_faster_than_the_prompt():
    short_s = prefill_s(2048, mean_context_tokens=1024)
    long_s = prefill_s(4096, mean_context_tokens=2048)

    assert long_s > 2 * short_s


def test_70b_at_batch_32_is_29_gb_too_large_for_two_a100s():
    short_bytes = need_70b_2xa100_b32().total_bytes - 2 * 80 * GB

    assert short_bytes / GB == pytest.approx(29, rel=0.01)


def test_fp4_decode_of_one_request_is_312_times_below_the_ridge():
    intensity = CALCULATIONS["decode-intensity-fp4"]()

    assert ridge("B200", "fp4") / intensity == pytest.approx(312, rel=0.002)


def test_a_cache_that_tensor_parallelism_replicates_holds_an_eighth():
    sharded = kimi_replica(Parallelism(data=8)).sequences_held(80_000)
    replicated = kimi_replica(Parallelism(tensor=8)).sequences_held(80_000)

    assert sharded == 8 * replicated


def test_counted_per_step_a_full_step_uses_all_of_the_bandwidth_and_no_more():
    step = step_32b()

    mbu_fraction = observed_mbu_fraction(
        step_bytes=step.decode_bytes, step_s=step.memory_s, memory_bytes_per_s=8e12
    )

    assert mbu_fraction == pytest.approx(1)


class TestAPrintedErrorComesFrom:
    """Each shows which mistake makes the printed figure."""

    def test_two_ffn_matrices_and_full_key_and_value_projections(self):
        printed = ROWS["params-70b-two-matrix-ffn"]["printed"]

        counted = parameters_70b(num_kv_heads=64, num_matrices=2, num_tables=1)

        assert counted == pytest.approx(printed, rel=0.001)

    def test_a_key_and_a_value_for_each_of_64_query_heads(self):
        per_token = 64 // 8 * model("llama-3-70b").kv().bytes_per_token

        assert per_token == ROWS["kv-70b-mha"]["printed"]
        assert 32 * 2048 * per_token / GIB == ROWS["kv-70b-batch32-2k"]["printed"]

    def test_dividing_gb_by_gib(self):
        freed_gb = CALCULATIONS["int4-frees"]()["freed_gb"]
        request_gib = request_bytes(model("llama-3-70b"), 4096) / GIB

        assert round(freed_gb / request_gib) == ROWS["int4-frees-requests"]["printed"]
