"""The labels of ``vllm:cache_config_info``: the cache's configuration, every value a string."""

from tonnage.engine.limits import EngineLimits
from tonnage_lab.emulator.arguments import Arguments


def cache_config(
    arguments: Arguments, limits: EngineLimits, *, num_gpu_blocks: int, engine: int
) -> dict[str, str]:
    """Return all labels of one engine.

    ``num_gpu_blocks`` counts the block that vLLM keeps for itself, as the real label does.
    """
    size_tokens = num_gpu_blocks * limits.block_size
    known: dict[str, object] = {
        "block_size": limits.block_size,
        "effective_attention_block_size": limits.block_size,
        "user_specified_block_size": arguments.block_size is not None,
        "cache_dtype": arguments.kv_cache_dtype,
        "enable_prefix_caching": arguments.enable_prefix_caching,
        "engine": engine,
        "gpu_memory_utilization": arguments.gpu_memory_utilization,
        "kv_cache_max_concurrency": size_tokens / limits.max_model_len,
        "kv_cache_size_tokens": size_tokens,
        "num_gpu_blocks": num_gpu_blocks,
        "kv_offloading_size": arguments.host_cache_gib or None,
        "num_gpu_blocks_override": arguments.num_gpu_blocks_override,
    }
    return {name: str(value) for name, value in (FIXED | known).items()}


FIXED: dict[str, object] = {
    "_block_size_resolved": True,
    "cache_hit_alignment_tokens": None,
    "enable_mamba_shared_prefix_checkpoint": False,
    "hash_block_size": None,
    "is_attention_free": False,
    "kv_cache_dtype_skip_layers": [],
    "kv_cache_layout": None,
    "kv_cache_memory_bytes": None,
    "kv_offloading_backend": "native",
    "kv_sharing_fast_prefill": False,
    "mamba_block_size": None,
    "mamba_cache_dtype": "auto",
    "mamba_cache_mode": "none",
    "mamba_page_size_padded": None,
    "mamba_ssm_cache_dtype": "float32",
    "num_cpu_blocks": None,
    "prefix_cache_retention_interval": 0,
    "prefix_caching_hash_algo": "sha256",
    "prefix_match_unit": None,
    "replayssm_buffer_len": 16,
    "skip_page_size_padded": None,
    "sliding_window": None,
    "swa_bounded_replay": True,
    "use_kda_recoverssm": False,
    "use_replayssm": False,
}
"""Fields that nothing here changes, at the values a dense model shows."""
