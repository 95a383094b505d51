"""Names, meanings and labels of vLLM 0.33's metric families."""

from typing import Final

from tonnage.replay.simulated_metrics import FINISHED_REASONS, PROMPT_SOURCES

LABELS: Final = ("model_name", "engine")

COUNTERS: Final = {
    "num_preemptions": "Preemptions so far.",
    "prompt_tokens": "Prompt tokens whose prefill ended.",
    "prompt_tokens_cached": "Prompt tokens taken from a cache.",
    "generation_tokens": "Tokens generated.",
    "prefix_cache_queries": "Tokens looked up in the prefix cache.",
    "prefix_cache_hits": "Tokens found in the prefix cache.",
    "external_prefix_cache_queries": "Tokens looked up in other instances' caches.",
    "external_prefix_cache_hits": "Tokens found in other instances' caches.",
    "mm_cache_queries": "Items looked up in the multi-modal cache.",
    "mm_cache_hits": "Items found in the multi-modal cache.",
}

LABELLED_COUNTERS: Final = {
    "prompt_tokens_by_source": (
        "Prompt tokens by where they came from.",
        "source",
        PROMPT_SOURCES,
    ),
    "prompt_tokens_cached_by_source": (
        "Cached prompt tokens by tier.",
        "source",
        ("device", "host", "p2p", "disk", "external_unspecified"),
    ),
    "request_success": (
        "Requests that ended, by reason.",
        "finished_reason",
        FINISHED_REASONS,
    ),
}

WORK_COUNTERS: Final = {
    "estimated_flops_per_gpu": "Estimated floating point operations of one GPU.",
    "estimated_read_bytes_per_gpu": "Estimated bytes read from one GPU's memory.",
    "estimated_write_bytes_per_gpu": "Estimated bytes written to one GPU's memory.",
}
"""Only with ``--enable-mfu-metrics``."""

DRAFT_COUNTERS: Final = {
    "spec_decode_num_drafts": "Drafts: one for each sequence in each step.",
    "spec_decode_num_draft_tokens": "Draft tokens.",
    "spec_decode_num_accepted_tokens": "Draft tokens that were right.",
}
ACCEPTED_BY_POSITION: Final = (
    "spec_decode_num_accepted_tokens_per_pos",
    "Draft tokens that were right, by their position in the draft.",
    "position",
)
"""Only with ``--speculative-config``."""

HISTOGRAMS: Final = {
    "request_prompt_tokens": ("Prompt tokens of a request.", "request_tokens"),
    "request_generation_tokens": ("Generated tokens of a request.", "request_tokens"),
    "iteration_tokens_total": ("Tokens of an engine step.", "iteration_tokens"),
    "request_max_num_generation_tokens": ("Most tokens that were asked for.", "request_tokens"),
    "request_params_n": ("Completions asked for by a request.", "request_params_n"),
    "request_params_max_tokens": ("The request's max_tokens.", "request_tokens"),
    "time_to_first_token_seconds": ("Arrival to first token.", "time_to_first_token"),
    "inter_token_latency_seconds": ("Between two tokens of a request.", "inter_token_latency"),
    "request_time_per_output_token_seconds": (
        "Mean between two tokens of a request.",
        "inter_token_latency",
    ),
    "e2e_request_latency_seconds": ("Arrival to last token.", "request_latency"),
    "request_queue_time_seconds": ("Arrival to first scheduled.", "request_latency"),
    "request_inference_time_seconds": ("First scheduled to last token.", "request_latency"),
    "request_prefill_time_seconds": ("First scheduled to first token.", "request_latency"),
    "request_decode_time_seconds": ("First to last token.", "request_latency"),
    "request_num_preemptions": ("Preemptions of a request.", "request_num_preemptions"),
    "request_prefill_kv_computed_tokens": (
        "Prompt tokens computed, cached ones left out.",
        "request_tokens",
    ),
}
"""Meaning and bucket family."""

SLEEP_STATES: Final = {"awake": 1, "weights_offloaded": 0, "discard_all": 0}
