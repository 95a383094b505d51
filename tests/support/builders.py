"""Values for tests, complete and plausible; a test overrides what it is about.

The figures are round so that a result can be worked out by hand. They are no real GPU's.
"""

from dataclasses import fields, replace

from tonnage.catalog.engine import find_engine
from tonnage.catalog.engine_speed import TEXTBOOK_SPEED, prior_speed
from tonnage.catalog.gpu import Gpu, Price, built_in_gpus, find_gpu
from tonnage.catalog.shape import (
    DenseFfn,
    GroupedAttention,
    LatentAttention,
    LayerGroup,
    ModelShape,
    MoeFfn,
    WeightFormat,
)
from tonnage.sizing.parallelism.kv import KvShare
from tonnage.sizing.parallelism.shard import Shard
from tonnage.sizing.request import Demand, SizingRequest
from tonnage.sizing.serving.replica import Replica
from tonnage.sizing.step_time.model import StepTimeModel
from tonnage.sizing.step_time.speeds import Speeds
from tonnage.sizing.workload import Lengths, Slo, Target, Workload
from tonnage.units import GB, TERA

BF16 = WeightFormat(name="bf16", bytes_per_parameter=2, compute="bf16")
FP8 = WeightFormat(name="fp8", bytes_per_parameter=1, compute="fp8")


def an_attention(**changes):
    """Grouped-query attention: 8 of 32 heads carry keys and values."""
    return replace(GroupedAttention(num_heads=32, num_kv_heads=8, head_dim=128), **changes)


def a_latent_attention(**changes):
    """Latent attention of 512 + 64 elements per token."""
    attention = LatentAttention(
        num_heads=64,
        kv_lora_rank=512,
        qk_rope_head_dim=64,
        qk_nope_head_dim=128,
        value_head_dim=128,
        q_lora_rank=1536,
    )
    return replace(attention, **changes)


def a_layer_group(**changes):
    """32 dense layers."""
    group = LayerGroup(
        num_layers=32, attention=an_attention(), ffn=DenseFfn(intermediate_size=14336)
    )
    return replace(group, **changes)


def an_expert_ffn(**changes):
    """128 experts of which a token passes 8."""
    ffn = MoeFfn(num_experts=128, experts_per_token=8, expert_intermediate_size=1536)
    return replace(ffn, **changes)


def a_shape(**changes):
    """A dense model of 8 billion parameters, in bf16."""
    shape = ModelShape(
        name="test/dense-8b",
        hidden_size=4096,
        vocab_size=128_256,
        tied_embeddings=False,
        groups=(a_layer_group(),),
        weight_format=BF16,
        max_position_tokens=131_072,
        rotary_elements=131_072 * 128,
        digest="0123abcd",
    )
    return replace(shape, **changes)


def a_gpu(**changes):
    """80 GB at 3 TB/s, 1 PFLOP/s in bf16, 2 in fp8, 4 USD per hour."""
    gpu = Gpu(
        name="TEST-80GB",
        memory_bytes=80 * GB,
        nominal_memory_bytes=80 * GB,
        memory_bytes_per_s=3 * TERA,
        peak_flop_per_s={"bf16": 1000 * TERA, "fp8": 2000 * TERA, "int8": 2000 * TERA},
        interconnect_bytes_per_s=450 * GB,
        interconnect="nvlink",
        price=Price(rent_usd_per_hour=4, purchase_usd=30_000),
    )
    return replace(gpu, **changes)


def a_workload(**changes):
    """2,000 prompt tokens and 500 output tokens, nothing cached."""
    workload = Workload(prompt=Lengths(mean_tokens=2000), output_tokens=500)
    return replace(workload, **changes)


def decoding_only(context_tokens):
    """Sequences that decode as good as for ever at one context length: no prefill at all."""
    return Workload(
        prompt=Lengths(mean_tokens=context_tokens),
        cached_fraction=1.0,
        output_tokens=1e12,
        output_second_moment=0.0,
    )


def an_slo(*, ttft_s=None, tpot_s=None, quantile=0.95):
    """SLO targets at one quantile; a limit left out is no target."""
    return Slo(
        ttft=(Target(quantile=quantile, limit_s=ttft_s),) if ttft_s else (),
        tpot=(Target(quantile=quantile, limit_s=tpot_s),) if tpot_s else (),
    )


def a_prior(gpu="H100", weights=BF16):
    """The constants that hold before any is learned."""
    return prior_speed(find_gpu(gpu, built_in_gpus()), weights)


def a_sizing_request(**changes):
    """``a_shape`` on ``a_gpu`` under vLLM 0.33 for 4 requests/s, TTFT 2 s and TPOT 50 ms at p95."""
    request = SizingRequest(
        shape=a_shape(),
        gpu=a_gpu(),
        engine=find_engine("0.33"),
        speed=a_prior(),
        weights=BF16,
        kv_format="bf16",
        context_tokens=8192,
        workload=a_workload(),
        slo=an_slo(ttft_s=2, tpot_s=0.050),
        demand=Demand(requests_per_s=4),
    )
    return replace(request, **changes)


def a_shard(**changes):
    """16 GB of weights read per step, 128 KiB of cache per token, 16 GFLOP per token."""
    shard = Shard(
        weights_bytes=16 * GB,
        dense_read_bytes=16 * GB,
        kv=(KvShare(bytes_per_token=131_072),),
        flop_per_token=16e9,
        num_kernels=320,
        num_scaled_products=128,
        num_layers=32,
        hidden_size=4096,
    )
    return replace(shard, **changes)


def some_speeds(**changes):
    """3 TB/s, 1 PFLOP/s, links of 450 GB/s."""
    speeds = Speeds(
        memory_bytes_per_s=3 * TERA,
        peak_flop_per_s=1000 * TERA,
        interconnect_bytes_per_s=450 * GB,
    )
    return replace(speeds, **changes)


def a_model(**changes):
    """``a_shard`` at ``some_speeds`` without any overhead."""
    model = StepTimeModel(shard=a_shard(), speeds=some_speeds(), constants=TEXTBOOK_SPEED)
    return replace(model, **changes)


MODEL_FIELDS = {field.name for field in fields(StepTimeModel)}


def a_replica(**changes):
    """``a_model`` with 50 GB of cache; a change of the model's is one of the replica's too."""
    of_model = {name: changes.pop(name) for name in MODEL_FIELDS & changes.keys()}
    replica = Replica(model=a_model(**of_model), kv_pool_bytes=50 * GB, max_batched_tokens=8192)
    return replace(replica, **changes)


def with_model(replica, **changes):
    """The replica with another shard, speeds, constants or speculation."""
    return replace(replica, model=replace(replica.model, **changes))


def with_constants(replica, **changes):
    """The replica with some constants of its speed changed."""
    return with_model(replica, constants=replace(replica.model.constants, **changes))
