"""The terms of plans, status and pages, each in a line or two, with what vLLM calls it."""

from collections.abc import Mapping
from typing import Final

GLOSSARY: Final[Mapping[str, str]] = {
    "acceptance rate": "how often a draft token is accepted when those before it were; tokens per "
    "step = 1 + a + ... + a^k with k draft tokens",
    "admission": "whether an engine accepts every request, or refuses (503) those whose first "
    "token would be late (engine.admission); refused requests count as late",
    "arrival SCV": "squared coefficient of variation of the times between requests: 1 for Poisson "
    "arrivals, more for bursts",
    "bandwidth efficiency": "share of the nominal memory bandwidth that the memory part of a step "
    "achieves; learned from what the engines report",
    "calibration": "what was learned from running engines, in place of the prior: speed, KV "
    "tokens, cold starts, and the goodput factor of each object",
    "capacity": "what a replica does at its goodput: requests/s, output tokens/s and latencies",
    "chunked prefill": "a prompt is prefilled in chunks, beside decoding, so that no step has more "
    "tokens than the token budget",
    "cold start": "time from when a node takes a replica's pod until it is Ready",
    "corroboration": "a namespace uses constants that others learned once enough of them agree "
    "(settings.calibrationNamespaces)",
    "decoding": "requests that generate output, one token each per step (more with accepted draft "
    "tokens)",
    "demand": "requests/s that arrive, with the lengths of their prompts and outputs: from the "
    "spec, and once there is traffic, measured",
    "draft tokens": "tokens proposed cheaply for each sequence in each step (speculative decoding)",
    "drift": "the Deployment's template differs from what the operator wrote; it is reapplied at "
    "once, then after 1, 2, 4 ... minutes if that is undone (condition Drifted)",
    "encoder": "part of a multimodal model that reads images or sound; its weights are on every "
    "rank",
    "engine emulator": "a process with the flags, endpoints and metrics of vLLM and no GPU, for "
    "the lab",
    "engine model": "a simulation of vLLM's scheduler, step by step, that finds the goodput",
    "error budget": "late requests that the SLO allows over slo.attainment.window, of those that "
    "came",
    "FLOP per byte": "arithmetic intensity: work for each byte that is read from the GPU's memory",
    "full use": "every replica at its load line",
    "goodput": "highest rate in requests/s of one replica at which every SLO target is met; its "
    "standard error is that of the simulated requests",
    "goodput factor": "factor on the goodput of one object, adjusted from SLO attainment: between "
    "0.4 and 1.5, fast down and slowly up",
    "group": "the pods of a replica over several nodes, one on each: a leader, which answers "
    "requests, and workers; they start, end and count as one",
    "KV cache": "keys and values that attention keeps of each token of the requests that run; in "
    "bytes of a GPU, or in tokens of a replica",
    "KV offload": "a KV cache in the host's memory behind that of the GPUs: prompts that come "
    "again after they left the GPU are read from it",
    "load line": "highest load within the memory ceiling and every SLO target; replicas are "
    "counted at it",
    "max-num-batched-tokens": "the token budget: maximum tokens of prompts and outputs in one step",
    "max-num-seqs": "the maximum requests that run at once, on each data-parallel rank",
    "maximum length": "contextLength: maximum tokens of one request, prompt and output together",
    "MBU": "memory bandwidth utilization: bytes that a step must read and write / step time / "
    "nominal bandwidth, while the engine is busy",
    "memory ceiling": "requests that the KV cache holds at once, at the lengths that occur: KV "
    "tokens / mean context of a running request",
    "MFU": "model FLOPs utilization: work of a step / step time / dense peak, while the engine is "
    "busy",
    "origin": "where a figure comes from: given in the manifest, looked up in the catalogue, "
    "guessed, or measured",
    "overhead factor": "step time beside reads and compute, as a multiple of the prior's: host, "
    "kernels, communication between GPUs; learned",
    "preemption": "a running request loses its KV blocks when none is free, and is computed again",
    "prefill": "computing the KV cache of a prompt, before its first token",
    "prefill efficiency": "share of the dense peak compute that prefill achieves; learned from "
    "what the engines report",
    "prefix cache": "KV blocks of earlier prompts that are reused; cachedPromptPercent is the "
    "share of prompt tokens that it holds",
    "prior": "constants before anything is measured, fitted on public measurements; replicas are "
    "counted at the slow end of its range",
    "queue": "requests that have arrived and do not run yet; the oldest starts first",
    "replica": "one running engine, on all the GPUs that it is split over: TP x PP x DP",
    "ridge": "FLOP per byte at which memory and arithmetic of a GPU take equally long: peak FLOP/s "
    "/ bandwidth",
    "role": "prefill or decode in disaggregated serving: one engine computes the KV cache of a "
    "prompt, another loads it and generates the output",
    "routing": "how requests find a replica: Service (at random) or LeastOutstanding (a router "
    "sends each where fewest are in flight)",
    "SLO": "service level objective: the latency targets, on TTFT and TPOT; none means offline, at "
    "the memory ceiling",
    "SLO attainment": "share of the requests that met a target",
    "SLO ceiling": "decoding requests with which the mean step takes as long as the TPOT target",
    "SLO target": "a latency limit and the share of requests that must meet it (p95: 95 of 100)",
    "split": "how a replica is spread over GPUs: TP tensor, PP pipeline, DP data parallel",
    "step": "one pass of the model over the batch: a token for each decoding request, and chunks "
    "of prompts",
    "TPOT": "time per output token in seconds: (last token - first token) / (tokens - 1)",
    "TTFT": "time to first token in seconds: from the request to the first token of its answer",
    "verified tokens": "tokens of a sequence that one step computes with speculative decoding: its "
    "draft tokens and one more",
    "working set": "tokens of different prompts that later requests begin with again",
}
"""Of each term what it is, with its unit or formula; by letter, whatever the case."""
VLLM_NAMES: Final[Mapping[str, str]] = {
    "acceptance rate": "vllm:spec_decode_num_accepted_tokens_per_pos_total",
    "admission": "--max-num-queued-tokens, vllm:admission_rejections_total",
    "chunked prefill": "--enable-chunked-prefill",
    "decoding": "vllm:num_requests_running, less those in prefill",
    "demand": "vllm:request_success_total and the queue's growth",
    "draft tokens": "--speculative-config num_speculative_tokens",
    "encoder": "--mm-encoder-tp-mode",
    "group": "--nnodes, --node-rank, --headless",
    "KV cache": "vllm:cache_config_info, vllm:kv_cache_usage_perc",
    "KV offload": "--kv-offloading-size, vllm:external_prefix_cache_hits_total",
    "max-num-batched-tokens": "--max-num-batched-tokens",
    "max-num-seqs": "--max-num-seqs",
    "maximum length": "--max-model-len",
    "memory ceiling": "Maximum concurrency in the start-up log, which is for the maximum length",
    "preemption": "vllm:num_preemptions_total",
    "prefix cache": "--enable-prefix-caching, vllm:prompt_tokens_by_source_total",
    "queue": "vllm:num_requests_waiting",
    "role": "--kv-transfer-config",
    "SLO attainment": "vllm:time_to_first_token_seconds_bucket, "
    "vllm:request_time_per_output_token_seconds_bucket",
    "split": "--tensor-parallel-size, --pipeline-parallel-size, --data-parallel-size",
    "step": "vllm:iteration_tokens_total_count",
    "TPOT": "vllm:request_time_per_output_token_seconds",
    "TTFT": "vllm:time_to_first_token_seconds",
    "working set": "vllm:prefix_cache_hits counts what of it was found",
}
"""Of a term the flag of ``vllm serve`` or the Prometheus metric that it corresponds to."""
