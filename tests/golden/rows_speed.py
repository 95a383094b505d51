"""Our values: decode, prefill and TTFT, and the shares of the hardware that they use."""

import math

from builders import a_replica, a_workload, decoding_only
from golden.documents import TABLE, gpu, model, napkin_shard, nominal_speeds, row
from golden.formulas import (
    batch1_mbu_fraction,
    observed_mfu_fraction,
    prefill_tokens_per_s,
    replicas_for_throughput,
    shared_prefill_s,
    weight_bytes,
)
from tonnage.catalog.engine_speed import TEXTBOOK_SPEED
from tonnage.sizing.parallelism.kv import KvShare
from tonnage.sizing.parallelism.shard import FLOP_PER_PARAMETER, Shard
from tonnage.sizing.serving.load_line import most_decoding, tpot_ceiling
from tonnage.sizing.split import Parallelism
from tonnage.sizing.step_time.speeds import Speeds
from tonnage.sizing.step_time.step import (
    RankTokens,
    Step,
    all_reduce_bytes,
    communication_s,
    experts_touched,
    step_time,
)
from tonnage.sizing.workload import Lengths, Slo, Target, users_from_concurrency
from tonnage.units import GB, PETA, TERA

KIMI = TABLE["models"]["kimi-k2.6"]


def batch_of(num_sequences, context_tokens):
    return Step(num_sequences=num_sequences, context_tokens=num_sequences * context_tokens)


# --- decode


def kimi_bytes_per_token():
    return weight_bytes(num_parameters=KIMI["active_params"], bytes_per_parameter=0.5)


@row("decode-bytes-kimi")
def decode_bytes_kimi():
    return kimi_bytes_per_token() / GB


@row("decode-ceiling-kimi")
def decode_ceiling_kimi():
    node = Shard(weights_bytes=500 * GB, dense_read_bytes=kimi_bytes_per_token())
    after_sync = Speeds(memory_bytes_per_s=50 * TERA, peak_flop_per_s=80 * PETA)
    return 1 / step_time(node, after_sync, TEXTBOOK_SPEED, batch_of(1, 0)).total_s


@row("mbu-definition")
def mbu_definition():
    def mbu(tokens_per_s, memory_bytes_per_s):
        return batch1_mbu_fraction(
            tokens_per_s=tokens_per_s,
            batch1_bytes_per_token=kimi_bytes_per_token(),
            memory_bytes_per_s=memory_bytes_per_s,
        )

    return {
        f"{tok_s} tok/s": {"nominal": mbu(tok_s, 8 * 8 * TERA), "after_sync": mbu(tok_s, 50e12)}
        for tok_s in (312, 375)
    }


@row("mbu-batch1-bytes-break")
def mbu_batch1_bytes_break():
    weights_bytes = weight_bytes(num_parameters=model("llama-3-8b").params, bytes_per_parameter=2)
    return batch1_mbu_fraction(
        tokens_per_s=5800,
        batch1_bytes_per_token=weights_bytes,
        memory_bytes_per_s=gpu("A100-SXM4-80GB").memory_bytes_per_s,
    )


@row("moe-batch-coverage")
def moe_batch_coverage():
    return {
        batch: experts_touched(num_experts=384, experts_per_token=8, num_tokens=batch)
        for batch in (1, 32, 128)
    }


def step_32b():
    """Six users at 200,000 tokens, one byte per weight and per element of the cache."""
    shard = napkin_shard(model("dense-32b"), precision="fp8", kv_element_bytes=1)
    return step_time(shard, nominal_speeds("B200", "fp8"), TEXTBOOK_SPEED, batch_of(6, 200_000))


@row("step-time-32b")
def step_time_32b():
    return step_32b().memory_s


@row("step-compute-32b")
def step_compute_32b():
    return step_32b().compute_s


@row("tok-s-32b")
def tok_s_32b():
    return {"total": 6 / step_32b().total_s, "per_user": 1 / step_32b().total_s}


@row("compute-util-8b-a100")
def compute_util_8b_a100():
    def mfu(tokens_per_s):
        return observed_mfu_fraction(
            tokens_per_s=tokens_per_s,
            flop_per_token=FLOP_PER_PARAMETER * model("llama-3-8b").params,
            peak_flop_per_s=gpu("A100-SXM4-80GB").flop_per_s("bf16"),
        )

    return {128: mfu(7200), 256: mfu(7800)}


# --- prefill


KIMI_FLOP_PER_TOKEN = FLOP_PER_PARAMETER * KIMI["active_params"]


@row("prefill-kimi-theory")
def prefill_kimi_theory():
    node_flop_per_s = 8 * gpu("B200").flop_per_s("fp4")
    return prefill_tokens_per_s(peak_flop_per_s=node_flop_per_s, flop_per_token=KIMI_FLOP_PER_TOKEN)


@row("prefill-kimi-real")
def prefill_kimi_real():
    reached_flop_per_s = 0.064 * 8 * gpu("B200").flop_per_s("fp4")
    return prefill_tokens_per_s(
        peak_flop_per_s=reached_flop_per_s, flop_per_token=KIMI_FLOP_PER_TOKEN
    )


@row("ttft-80k")
def ttft_80k():
    return shared_prefill_s(new_prompt_tokens=80_000, tokens_per_s=80_000)


@row("ttft-80k-16users")
def ttft_80k_16users():
    return shared_prefill_s(new_prompt_tokens=80_000, tokens_per_s=80_000, num_concurrent=16)


@row("prefix-reuse")
def prefix_reuse():
    def ttft_s(hit_rate):
        turn = a_workload(prompt=Lengths(mean_tokens=80_000), cached_fraction=hit_rate)
        return shared_prefill_s(new_prompt_tokens=turn.new_prompt_tokens, tokens_per_s=80_000)

    return {10_000: ttft_s(0.875), 8_000: ttft_s(0.9)}


def prefill_s(prompt_tokens, *, mean_context_tokens):
    shard = napkin_shard(model("llama-3-8b"), precision="fp16")
    step = Step(
        num_sequences=0,
        context_tokens=0,
        prefill_tokens=prompt_tokens,
        prefill_context_tokens=mean_context_tokens,
    )
    return step_time(shard, nominal_speeds("A100-SXM4-80GB"), TEXTBOOK_SPEED, step).prefill_s


@row("prefill-linear")
def prefill_linear():
    return prefill_s(4096, mean_context_tokens=0) / prefill_s(2048, mean_context_tokens=0)


# --- demand and SLO


@row("duty-cycle")
def duty_cycle():
    return {
        f"{requests} at {duty}": users_from_concurrency(
            concurrent_requests=requests, duty_fraction=duty
        )
        for requests, duty in ((60, 0.2), (40, 0.2), (6, 1.0))
    }


def h200_70b_replica():
    """70 GB of weights and 0.9 * 141 GB of memory, as printed; 327,680 bytes per token."""
    kv = KvShare(bytes_per_token=model("llama-3-70b").kv().bytes_per_token)
    return a_replica(
        shard=Shard(weights_bytes=70 * GB, dense_read_bytes=70 * GB, kv=(kv,)),
        speeds=nominal_speeds("H200"),
        kv_pool_bytes=0.9 * 141 * GB - 70 * GB,
    )


@row("slo-tax")
def slo_tax():
    def batch(*tpot):
        replica, workload = h200_70b_replica(), decoding_only(8192)
        allowed = tpot_ceiling(replica, workload, Slo(tpot=tpot))
        _, held = most_decoding(replica, workload)
        return math.floor(held if allowed is None else min(held, allowed))

    return {
        "27ms": batch(Target(quantile=0.5, limit_s=0.027)),
        "20ms": batch(Target(quantile=0.5, limit_s=0.020)),
        "offline": batch(),
    }


@row("replicas")
def replicas():
    step = h200_70b_replica().model.step(batch_of(21, 8192))
    tok_s = 21 / step.total_s
    return {
        "tok_s_per_replica": tok_s,
        "replicas": replicas_for_throughput(tokens_per_s=10_000, tokens_per_s_per_replica=tok_s),
    }


# --- between GPUs


@row("tp-allreduce-bytes")
def tp_allreduce_bytes():
    shard = Shard(
        weights_bytes=0,
        dense_read_bytes=0,
        num_layers=80,
        hidden_size=8192,
        parallelism=Parallelism(tensor=2),
    )

    def reduce_s(link_bytes_per_s):
        speeds = Speeds(
            memory_bytes_per_s=3.35e12,
            peak_flop_per_s=989e12,
            interconnect_bytes_per_s=link_bytes_per_s,
        )
        return communication_s(shard, speeds, TEXTBOOK_SPEED, RankTokens(decode=32))

    return {
        "B=32 D=8192": all_reduce_bytes(num_tokens=32, hidden_size=8192),
        "nvlink_over_pcie": reduce_s(64 * GB) / reduce_s(900 * GB),
    }
