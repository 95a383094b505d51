"""What laws are tried on: any shard, GPU, constants and traffic within reason."""

from hypothesis import strategies as st

from builders import BF16, a_layer_group, a_replica, a_shape, an_expert_ffn
from tonnage.catalog.engine_speed import SpeedConstants
from tonnage.catalog.shape import DenseFfn, GroupedAttention, LatentAttention
from tonnage.sizing.parallelism.kv import KvShare
from tonnage.sizing.parallelism.rules import check_parallelism
from tonnage.sizing.parallelism.shard import ExpertShare, Shard
from tonnage.sizing.split import Parallelism
from tonnage.sizing.step_time.speeds import Speeds
from tonnage.sizing.step_time.step import Step
from tonnage.sizing.workload import Lengths, Workload
from tonnage.units import GB, TERA


def numbers(low, high):
    return st.floats(low, high, allow_nan=False, allow_infinity=False)


parallelisms = st.builds(
    Parallelism,
    tensor=st.sampled_from([1, 2, 4, 8]),
    pipeline=st.sampled_from([1, 2, 4]),
    data=st.sampled_from([1, 2, 8]),
)

speeds = st.builds(
    Speeds,
    memory_bytes_per_s=numbers(0.3 * TERA, 20 * TERA),
    peak_flop_per_s=numbers(50 * TERA, 10_000 * TERA),
    interconnect_bytes_per_s=numbers(16 * GB, 1800 * GB),
)

speed_constants = st.builds(
    SpeedConstants,
    bandwidth_efficiency=numbers(0.3, 1),
    compute_efficiency=numbers(0.3, 1),
    prefill_efficiency=numbers(0.3, 1),
    per_step_s=numbers(0, 0.01),
    per_kernel_s=numbers(0, 10e-6),
    per_scaled_product_s=numbers(0, 10e-6),
    per_sequence_s=numbers(0, 100e-6),
    per_all_reduce_s=numbers(0, 100e-6),
    all_reduce_growth=numbers(0, 1),
    per_sequence_limit=st.one_of(st.none(), numbers(1, 1024)),
    per_cached_head_s=numbers(0, 50e-9),
    cache_bandwidth_factor=numbers(0.5, 1.2),
    one_shot_efficiency=st.one_of(st.none(), numbers(0.1, 1)),
    bulk_extra_s=numbers(0, 50e-6),
    prefill_launch_s=st.one_of(st.just(0.0), numbers(0, 1e-3)),
    per_experts_block_s=numbers(0, 100e-6),
    cutlass_block_s=numbers(0, 100e-6),
    cutlass_expert_s=numbers(0, 1e-6),
    cutlass_experts=st.sampled_from(["none", "whole", "all"]),
    routing_evenness=st.one_of(st.none(), numbers(0.5, 100)),
    overlap_power=st.one_of(st.none(), numbers(1, 4)),
    prefill_exposed_fraction=numbers(0.1, 1),
)

kv_shares = st.builds(
    KvShare,
    bytes_per_token=numbers(1e3, 1e6),
    window_tokens=st.one_of(st.none(), st.integers(128, 32_768)),
    flop_per_pair=numbers(0, 5e6),
)

expert_shares = st.builds(
    ExpertShare,
    num_experts=st.just(128),
    experts_per_token=st.integers(1, 16),
    resident_bytes=numbers(GB, 100 * GB),
)

shards = st.builds(
    Shard,
    weights_bytes=numbers(GB, 100 * GB),
    dense_read_bytes=numbers(GB, 100 * GB),
    experts=st.lists(expert_shares, max_size=2).map(tuple),
    kv=st.lists(kv_shares, min_size=1, max_size=2).map(tuple),
    flop_per_token=numbers(1e9, 200e9),
    num_layers=st.integers(1, 128),
    num_kernels=numbers(0, 3000),
    num_scaled_products=numbers(0, 1000),
    num_cached_heads=numbers(0, 2000),
    num_split_norms=numbers(0, 128),
    num_moe_layers=st.integers(0, 64),
    hidden_size=st.integers(512, 16_384),
    parallelism=parallelisms,
)

steps = st.builds(
    Step,
    num_sequences=numbers(0, 1024),
    context_tokens=numbers(0, 1e7),
    prefill_tokens=numbers(0, 16_384),
    prefill_context_tokens=numbers(0, 131_072),
    prefill_chunk_tokens=st.one_of(st.none(), numbers(1, 16_384)),
)

grouped_attentions = st.builds(
    lambda kv_heads, group, head_dim: GroupedAttention(
        num_heads=kv_heads * group, num_kv_heads=kv_heads, head_dim=head_dim
    ),
    kv_heads=st.sampled_from([1, 2, 4, 8, 16]),
    group=st.sampled_from([1, 4, 8]),
    head_dim=st.sampled_from([64, 128, 256]),
)

latent_attentions = st.builds(
    LatentAttention,
    num_heads=st.sampled_from([16, 64, 128]),
    kv_lora_rank=st.just(512),
    qk_rope_head_dim=st.just(64),
    qk_nope_head_dim=st.just(128),
    value_head_dim=st.just(128),
    q_lora_rank=st.sampled_from([None, 1536]),
)

attentions = st.one_of(grouped_attentions, latent_attentions)

layer_groups = st.builds(
    a_layer_group,
    num_layers=st.integers(1, 60),
    attention=attentions,
    ffn=st.one_of(
        st.builds(DenseFfn, intermediate_size=st.sampled_from([4096, 14_336])),
        st.builds(an_expert_ffn, shared_intermediate_size=st.sampled_from([0, 2048])),
    ),
)

shapes = st.builds(
    a_shape,
    hidden_size=st.sampled_from([2048, 4096, 8192]),
    vocab_size=st.sampled_from([32_000, 128_256]),
    tied_embeddings=st.booleans(),
    groups=st.lists(layer_groups, min_size=1, max_size=2).map(tuple),
    weight_format=st.just(BF16),
)


@st.composite
def splits(draw):
    """A shape and a split of it that the engine accepts."""
    shape, parallelism = draw(shapes), draw(parallelisms)
    try:
        check_parallelism(shape, shape.weight_format, parallelism)
    except Exception:
        parallelism = Parallelism()
    return shape, parallelism


workloads = st.builds(
    Workload,
    prompt=st.builds(
        lambda mean, spread: Lengths(mean_tokens=mean, p99_tokens=mean * spread),
        numbers(50, 8000),
        numbers(1, 8),
    ),
    output_tokens=numbers(20, 2000),
    cached_fraction=st.sampled_from([0.0, 0.5, 0.9]),
)

replicas = st.builds(
    a_replica,
    shard=shards,
    speeds=speeds,
    constants=speed_constants,
    kv_pool_bytes=numbers(5 * GB, 100 * GB),
    max_batched_tokens=st.sampled_from([2048, 8192, 16_384]),
)

tpot_limits_s = numbers(0.005, 0.5)
quantiles = st.sampled_from([0.5, 0.9, 0.95, 0.99])
