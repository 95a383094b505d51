"""Asks AIConfigurator (0.12.0) for its KV-cache estimate. Runs inside its virtual environment.

JSON lines in, JSON lines out. First its full memory model; where that has no such architecture,
the fallback that it offers, which keeps a fixed share of what the weights leave.
"""

import importlib
import json
import logging
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

SYSTEMS = {
    "H100": "h100_sxm",
    "H200": "h200_sxm",
    "B200": "b200_sxm",
    "B300": "b300_sxm",
    "GB200": "gb200",
    "GB300": "gb300",
    "A100": "a100_sxm",
    "L40S": "l40s",
    "RTX-PRO-6000": "rtx_pro_6000_server",
}
"""The systems that it has vLLM data for."""
STAND_INS = {
    "H100-PCIe": "h100_sxm",
    "H100-NVL": "h100_sxm",
    "H20": "h100_sxm",
    "GH200": "h200_sxm",
    "GB10": "rtx_pro_6000_server",
    "RTX-5080": "rtx_pro_6000_server",
    "RTX-5090": "rtx_pro_6000_server",
    "L4": "l40s",
    "L20": "l40s",
    "L40": "l40s",
    "RTX-4090": "l40s",
    "RTX-6000-Ada": "l40s",
}
"""Boards that it lacks, by the nearest system: its memory is then replaced by the board's."""
OLDEST = "a100_sxm"
READ_AS = {
    "MistralForCausalLM": "LlamaForCausalLM",
    "Mistral3ForConditionalGeneration": "LlamaForCausalLM",
    "LlavaNextForConditionalGeneration": "LlamaForCausalLM",
    "SeedOssForCausalLM": "LlamaForCausalLM",
    "GemmaForCausalLM": "LlamaForCausalLM",
    "Phi3ForCausalLM": "LlamaForCausalLM",
    "Qwen2_5OmniModel": "Qwen2ForCausalLM",
    "Gemma4UnifiedForConditionalGeneration": "Gemma4ForConditionalGeneration",
}
"""Architectures that it refuses by name, and one that it reads with the same matrices."""
KEEPS_TEXT_BLOCK = {"Gemma4ForConditionalGeneration"}
GEMM_MODES = {"fp8": "fp8", "int4": "int4_wo", "int8": "sq", "nvfp4": "nvfp4"}
MOE_MODES = {"fp8": "fp8", "int4": "int4_wo", "nvfp4": "nvfp4"}
READ_METHODS = {"fp8", "modelopt", "mxfp4"}
KV_MODES = {"bf16": "bfloat16", "fp8": "fp8", "fp8_e4m3": "fp8", "fp8_e5m2": "fp8", "int8": "int8"}
UNSUPPORTED = "unsupported model/backend/GPU"
GIB = 2**30

memory: Any = None
"""Its module ``aiconfigurator_core.sdk.memory``, once ``main`` has imported it."""


def readable_config(config: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """Return the configuration under an architecture that it knows, and what was done."""
    architecture = config["architectures"][0]
    known = READ_AS.get(architecture)
    if known is None:
        return config, ""
    outer = config.get("thinker_config", config)
    block = outer if known in KEEPS_TEXT_BLOCK else outer.get("text_config", outer)
    kept = {key: config[key] for key in ("quantization_config", "torch_dtype") if key in config}
    return kept | block | {"architectures": [known]}, f"read as {known}"


def language_model(config: dict[str, Any]) -> dict[str, Any]:
    """Return the text block under the outer architecture: the fallback reads flat keys."""
    text: dict[str, Any] = config.get("text_config", {})
    return config | text | {"architectures": config["architectures"]}


def modes(row: dict[str, Any], config: dict[str, Any]) -> dict[str, str | None]:
    """Return the precisions to ask for; weights that it reads from the checkpoint are left to it.

    The cache's is always given: it assumes fp8 for fp8 checkpoints, vLLM does not.
    """
    chosen: dict[str, str | None] = {
        "kvcache_quant_mode": KV_MODES.get(row["kv_dtype"], row["kv_dtype"])
    }
    if "quantization_config" in config or row["quant"] == "none":
        return chosen
    gemm, moe = GEMM_MODES.get(row["quant"]), MOE_MODES.get(row["quant"])
    return chosen | {"gemm_quant_mode": gemm, "moe_quant_mode": moe}


def without_unread_quantization(config: dict[str, Any]) -> dict[str, Any]:
    """Drop a scheme that it does not read, so that the precision can be given by name."""
    if config.get("quantization_config", {}).get("quant_method") in READ_METHODS:
        return config
    return {key: value for key, value in config.items() if key != "quantization_config"}


def capacity_bytes(row: dict[str, Any]) -> int | None:
    memory_gib = row["reported_gib"] or row["nominal_gib"]
    return int(memory_gib * GIB) if memory_gib else None


def width(row: dict[str, Any], config: dict[str, Any]) -> dict[str, Any]:
    """Return the split; vLLM spreads experts over all ranks of a stage."""
    return {
        "tp_size": row["tensor"],
        "pp_size": row["pipeline"],
        "attention_dp_size": row["data"],
        "moe_tp_size": row["tensor"] * row["data"],
        "moe_ep_size": 1,
        **modes(row, config),
    }


def estimate(row: dict[str, Any], folder: Path, given: dict[str, Any]) -> dict[str, Any]:
    """Return its estimate for one GPU; its own figure of memory where it has the board."""
    board = row["board"]
    has_own_memory = board in SYSTEMS and row["reported_gib"] is None
    is_own_size = board != "A100" or row["nominal_gib"] == 80
    said: dict[str, Any] = memory.estimate_kv_cache(
        str(folder),
        SYSTEMS.get(board) or STAND_INS.get(board, OLDEST),
        "vllm",
        "current",
        max_num_tokens=row["max_num_batched_tokens"],
        max_batch_size=row["max_num_seqs"],
        memory_fraction_kind="of_total",
        memory_fraction_value=row["utilization"],
        gpu_memory_capacity_bytes_override=None
        if has_own_memory and is_own_size
        else capacity_bytes(row),
        **given,
    )
    return said


def concurrency(row: dict[str, Any], folder: Path, given: dict[str, Any], kv_bytes: float) -> float:
    """Return how many full contexts its cache holds, by its model's own curve."""
    model = memory.get_model(str(folder), memory.build_model_config(**given), "vllm")
    return kv_bytes / float(model.get_kvcache_bytes_per_sequence(row["max_model_len"]))


def native(row: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Return an answer from its full memory model."""
    config, note = readable_config(without_unread_quantization(row["config"]))
    (folder / "config.json").write_text(json.dumps(config))
    given = width(row, config)
    said = estimate(row, folder, given)
    sequences = concurrency(row, folder, given, said["total_kv_size_bytes"])
    if row["board"] not in SYSTEMS:
        note = f"{note} by the nearest board".strip()
    return {
        "id": row["id"],
        "kv_tokens": sequences * row["max_model_len"],
        "max_concurrency": sequences,
        "weights_gib": said["memory_breakdown"]["weights_bytes"] / GIB,
        "note": note,
    }


def fallback(row: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Return an answer from its fallback, which knows neither utilization nor quantization."""
    (folder / "config.json").write_text(json.dumps(language_model(row["config"])))
    said = memory.NaiveKVCacheEstimator.from_model_path(
        str(folder),
        tp_size=row["tensor"],
        pp_size=row["pipeline"],
        allow_hf_config_download=False,
        moe_tp_size=row["tensor"] * row["data"],
    ).estimate(capacity=capacity_bytes(row), naive_kv_reservation=0.8)
    return {
        "id": row["id"],
        "kv_tokens": said["total_kv_size_tokens"],
        "max_concurrency": said["total_kv_size_tokens"] / row["max_model_len"],
        "note": "naive fallback",
    }


def reason(error: Exception) -> str:
    """Return its own words, without the temporary path and the list of what it knows."""
    text = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
    if text.startswith(UNSUPPORTED):
        text = text.split("gpu_sku=", 1)[1].split(": ", 1)[1]
    text = text.split(" Supported architectures")[0]
    return re.sub(r" \([^)]*bytes\)| \(capacity=[^)]*\)", "", text).rstrip(".")


def answer(row: dict[str, Any]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name:
        try:
            return native(row, Path(name))
        except Exception as error:  # whatever it raises is its answer
            if UNSUPPORTED not in str(error) or "architecture" not in str(error):
                return {"id": row["id"], "refused": reason(error)}
        try:
            return fallback(row, Path(name))
        except Exception as error:
            return {"id": row["id"], "refused": f"fallback: {reason(error)}"}


def main() -> None:
    global memory  # noqa: PLW0603
    logging.disable(logging.CRITICAL)
    memory = importlib.import_module("aiconfigurator_core.sdk.memory")
    for line in sys.stdin:
        sys.stdout.write(json.dumps(answer(json.loads(line))) + "\n")


if __name__ == "__main__":
    main()
