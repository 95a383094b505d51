"""Our values: weights, KV cache, and the memory ceiling."""

import math

from builders import a_latent_attention, a_replica, a_shard, an_attention
from golden.documents import ELEMENT_BYTES, TABLE, Totals, gpu, model, row
from golden.formulas import Need, min_gpus, ways_out, weight_bytes
from tonnage.catalog.cache_types import CACHE_TYPES
from tonnage.sizing.memory.ceiling import BudgetPart, MemoryBudget, sequences_held
from tonnage.sizing.memory.layout import cache_layout
from tonnage.sizing.parallelism.kv import KvShare, kv_bytes_per_token
from tonnage.sizing.split import Parallelism
from tonnage.units import GB, GIB

LLAMAS = ("llama-3-8b", "llama-3-70b", "llama-3-405b")


def weights_of(params, precision):
    return weight_bytes(num_parameters=params, bytes_per_parameter=ELEMENT_BYTES[precision])


def request_bytes(totals, context_tokens, *, element_bytes=2):
    layout = cache_layout((totals.kv(element_bytes=element_bytes),))
    return layout.bytes_of_sequence(context_tokens)


def pool(*, memory_bytes, weights_bytes, utilization=1.0, reserve_bytes=0):
    """Return what is left for the cache; the documents' reserve stands for all overheads."""
    return MemoryBudget(
        total_bytes=memory_bytes,
        utilization_fraction=utilization,
        parts=(
            BudgetPart(name="weights", num_bytes=weights_bytes),
            BudgetPart(name="reserve", num_bytes=reserve_bytes),
        ),
    ).kv_pool_bytes


def requests_held(pool_bytes, bytes_per_request):
    return math.floor(sequences_held(pool_bytes=pool_bytes, bytes_per_sequence=bytes_per_request))


# --- weights


@row("weights-llama3")
def weights_llama3():
    return {
        name: {
            precision: weights_of(model(name).params, precision) / GB
            for precision in ("fp16", "int8", "int4")
        }
        for name in LLAMAS
    }


@row("min-gpus-fp16-80gb")
def min_gpus_fp16_80gb():
    return {
        name: min_gpus(num_bytes=weights_of(model(name).params, "fp16"), bytes_per_gpu=80 * GB)
        for name in LLAMAS
    }


@row("weights-kimi-fp4")
def weights_kimi_fp4():
    return weights_of(TABLE["models"]["kimi-k2.6"]["params"], "fp4") / GB


@row("int4-frees")
def int4_frees():
    params = model("llama-3-70b").params
    return {"freed_gb": (weights_of(params, "fp16") - weights_of(params, "int4")) / GB}


@row("int4-frees-requests")
def int4_frees_requests():
    llama = model("llama-3-70b")
    freed_bytes = weights_of(llama.params, "fp16") - weights_of(llama.params, "int4")
    return requests_held(freed_bytes, request_bytes(llama, 4096))


# --- KV cache


@row("kv-per-token-llama3")
def kv_per_token_llama3():
    return {name: model(name).kv().bytes_per_token for name in LLAMAS}


def kimi_kv_bytes_per_token():
    latent = a_latent_attention(kv_lora_rank=512, qk_rope_head_dim=64)
    return kv_bytes_per_token([(61, latent)], cache_type=CACHE_TYPES["fp8"])


@row("kv-per-token-mla")
def kv_per_token_mla():
    return {"kimi-k2.6": kimi_kv_bytes_per_token()}


@row("kv-per-request-70b")
def kv_per_request_70b():
    return {
        context: request_bytes(model("llama-3-70b"), context) / GB for context in (8192, 131_072)
    }


@row("kv-at-scale")
def kv_at_scale():
    return {
        name: {batch: batch * request_bytes(model(name), 4096) / GIB for batch in (1, 32, 128, 256)}
        for name in LLAMAS
    }


@row("kv-mha-vs-gqa")
def kv_mha_vs_gqa():
    def cache_bytes(num_kv_heads):
        attention = an_attention(num_heads=64, num_kv_heads=num_kv_heads)
        totals = Totals(params=32e9, layers=64, attention=attention)
        return request_bytes(totals, 200_000, element_bytes=1)

    return {"mha": cache_bytes(64) / GB, "gqa": cache_bytes(8) / GB}


@row("kv-70b-mha")
def kv_70b_mha():
    return model("llama-3-70b").kv().bytes_per_token


@row("kv-8b-128k-b32")
def kv_8b_128k_b32():
    return 32 * request_bytes(model("llama-3-8b"), 131_072) / GIB


@row("kv-128k-share-of-h200")
def kv_128k_share_of_h200():
    return request_bytes(model("llama-3-70b"), 131_072) / gpu("H200").nominal_memory_bytes


@row("kv-70b-batch32-2k")
def kv_70b_batch32_2k():
    return 32 * request_bytes(model("llama-3-70b"), 2048) / GB


# --- memory ceiling


@row("memory-budget-kimi")
def memory_budget_kimi():
    node_bytes = 8 * gpu("B200").nominal_memory_bytes
    weights_bytes = weights_of(1e12, "fp4")
    return pool(memory_bytes=node_bytes, weights_bytes=weights_bytes, reserve_bytes=80 * GB) / GB


def kimi_replica(parallelism, *, utilization=1.0):
    """Kimi K2.6 on eight B200: an eighth of weights and activations on each, all of the latents."""
    pool_bytes = pool(
        memory_bytes=192 * GB, weights_bytes=62.5 * GB, utilization=utilization, reserve_bytes=10e9
    )
    kv = (KvShare(bytes_per_token=kimi_kv_bytes_per_token()),)
    shard = a_shard(kv=kv, parallelism=parallelism)
    return a_replica(shard=shard, kv_pool_bytes=pool_bytes)


@row("max-users-kimi")
def max_users_kimi():
    sharded = kimi_replica(Parallelism(data=8))
    return {context: math.floor(sharded.sequences_held(context)) for context in (80_000, 32_000)}


@row("max-users-kimi-tp8")
def max_users_kimi_tp8():
    def held(utilization):
        replicated = kimi_replica(Parallelism(tensor=8), utilization=utilization)
        return math.floor(replicated.sequences_held(80_000))

    return {"u=1.0": held(1.0), "u=0.9": held(0.9)}


@row("operational-kimi")
def operational_kimi():
    return max_users_kimi_tp8()


def h200_70b_fp8(*, kv_element_bytes):
    # 70 GB of weights, as printed; not 70.6.
    pool_bytes = pool(
        memory_bytes=gpu("H200").nominal_memory_bytes, weights_bytes=70 * GB, utilization=0.9
    )
    each = request_bytes(model("llama-3-70b"), 8192, element_bytes=kv_element_bytes)
    return requests_held(pool_bytes, each)


@row("h200-70b-fp8-8k")
def h200_70b_fp8_8k():
    return h200_70b_fp8(kv_element_bytes=2)


@row("h200-70b-fp8-8k-fp8kv")
def h200_70b_fp8_8k_fp8kv():
    return h200_70b_fp8(kv_element_bytes=1)


def dense_32b_held(context_tokens):
    b200_bytes = gpu("B200").nominal_memory_bytes
    weights_bytes = weights_of(model("dense-32b").params, "fp8")
    pool_bytes = pool(memory_bytes=b200_bytes, weights_bytes=weights_bytes)
    each = request_bytes(model("dense-32b"), context_tokens, element_bytes=1)
    return requests_held(pool_bytes, each)


@row("b200-32b-200k")
def b200_32b_200k():
    return dense_32b_held(200_000)


@row("median-context")
def median_context():
    return {context: dense_32b_held(context) for context in (200_000, 40_000, 30_000, 20_000)}


def a100s_held(name, precision, *, num_gpus, utilization=1.0, reserve_bytes=0):
    """Return the 4K requests that so many A100s hold together beside the weights."""
    llama = model(name)
    pool_bytes = pool(
        memory_bytes=num_gpus * gpu("A100-SXM4-80GB").nominal_memory_bytes,
        weights_bytes=weights_of(llama.params, precision),
        utilization=utilization,
        reserve_bytes=reserve_bytes,
    )
    return requests_held(pool_bytes, request_bytes(llama, 4096))


@row("a100-8b-4k-max-batch")
def a100_8b_4k_max_batch():
    return a100s_held("llama-3-8b", "fp16", num_gpus=1)


@row("a100x2-70b-max-batch")
def a100x2_70b_max_batch():
    return {
        "nothing reserved": a100s_held("llama-3-70b", "fp16", num_gpus=2),
        "utilization 0.90": a100s_held("llama-3-70b", "fp16", num_gpus=2, utilization=0.9),
        "5 GB reserved": a100s_held("llama-3-70b", "fp16", num_gpus=2, reserve_bytes=5 * GB),
    }


@row("a100x2-70b-int8-max-batch")
def a100x2_70b_int8_max_batch():
    return a100s_held("llama-3-70b", "int8", num_gpus=2)


def need_70b_2xa100_b32():
    llama = model("llama-3-70b")
    return Need(
        weights_bytes=weights_of(llama.params, "fp16"),
        kv_bytes=32 * request_bytes(llama, 4096),
        overhead_bytes=5 * GB,
    )


@row("budget-70b-2xa100-b32")
def budget_70b_2xa100_b32():
    need = need_70b_2xa100_b32()
    changes = {way.change: way for way in ways_out(need, available_bytes=2 * 80 * GB)}
    int8_kv_bytes = changes["KV cache at half the bytes"].needed_bytes
    return {
        "value": "infeasible" if changes else "fits",
        "ways_out_gb": {
            "int8_weights": changes["weights at half the bytes"].needed_bytes / GB,
            "int8_kv_saves": (need.total_bytes - int8_kv_bytes) / GB,
            "batch_16": changes["half the batch"].needed_bytes / GB,
            "gpus_4": changes["twice the GPUs"].available_bytes / GB,
        },
    }
