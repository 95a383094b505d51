"""Asks kvfit (0.3.0) through its own command line. Runs inside kvfit's virtual environment.

JSON lines in, JSON lines out. kvfit reads a model's page on the hub; here its reader is answered
from the row: the config.json and one weights file of the checkpoint's size.
"""

import contextlib
import importlib
import io
import json
import sys
from collections.abc import Callable
from typing import Any

PRESETS = {
    "GB10": "dgx-spark",
    "L40S": "l40s-48",
    "RTX-PRO-6000": "rtx-pro-6000-96",
    "H100": "h100-80",
    "H100-PCIe": "h100-80",
    "H100-NVL": "h100-nvl-94",
    "H200": "h200-141",
    "B200": "b200-180",
    "GB200": "gb200-186",
    "GB300": "b300-288",
    "B300": "b300-288",
    "MI300X": "mi300x-192",
    "MI325X": "mi325x-256",
    "MI355X": "mi355x-288",
}
READ_AS = {
    "gemma4_unified_text": "gemma4_text",
    "glm4_moe": "qwen3_moe",
    "kimi_k2": "deepseek_v3",
    "minimax_m2": "qwen3_moe",
    "qwen2_5_omni_text": "qwen2",
    "qwen3_vl_moe_text": "qwen3_moe",
    "seed_oss": "llama",
}
"""Model types that it refuses by name, and one that it knows with the same cache."""


def hub(row: dict[str, Any]) -> Callable[..., dict[str, Any]]:
    """Return a substitute for the hub that knows this one model."""

    def fetch(url: str, **_: object) -> dict[str, Any]:
        if url.endswith("/config.json"):
            return readable_config(row["config"])
        if url.endswith("index.json"):
            layers = row["config"]["num_hidden_layers"]
            return {"weight_map": {f"model.layers.{i}.x": "x" for i in range(layers)}}
        return {"sha": "0", "siblings": siblings(row["checkpoint_bytes"])}

    return fetch


def readable_config(config: dict[str, Any]) -> dict[str, Any]:
    """Return the configuration under a model type that it knows."""
    outer = config.get("thinker_config", config)
    block = outer.get("text_config", outer)
    known = READ_AS.get(block["model_type"]) if "model_type" in block else None
    return config if known is None else block | {"model_type": known}


def siblings(checkpoint_bytes: float | None) -> list[dict[str, Any]]:
    if checkpoint_bytes is None:
        return []
    weights = {"rfilename": "model.safetensors", "size": int(checkpoint_bytes)}
    return [weights, {"rfilename": "model.safetensors.index.json", "size": 1}]


def arguments(row: dict[str, Any]) -> list[str]:
    """Return the command line; pipeline stages, which kvfit lacks, are passed as more shards."""
    ranks = row["tensor"] * row["pipeline"]
    hardware = PRESETS.get(row["board"])
    if hardware is None:
        memory_gib = row["nominal_gib"] or row["reported_gib"]
        hardware = f"custom:{memory_gib}" if memory_gib else row["board"]
    given = [
        ("--hardware", hardware),
        ("--gpus", ranks),
        ("--tp", ranks),
        ("--utilization", row["utilization"]),
        ("--context", row["max_model_len"]),
        ("--kv-dtype", row["kv_dtype"]),
        ("--device-memory-gib", row["reported_gib"]),
    ]
    options = [str(part) for pair in given if pair[1] is not None for part in pair]
    return ["measured/model", "--json", "--allow-context-overflow", *options]


def run_kvfit(row: dict[str, Any]) -> tuple[str, str]:
    """Return what kvfit printed: its result, and what it complained about."""
    result, complaint = io.StringIO(), io.StringIO()
    vars(importlib.import_module("kvfit.hf"))["_fetch_json"] = hub(row)
    with (
        contextlib.redirect_stdout(result),
        contextlib.redirect_stderr(complaint),
        contextlib.suppress(SystemExit),  # of its argument parser
    ):
        importlib.import_module("kvfit.cli").main(arguments(row))
    return result.getvalue(), complaint.getvalue()


def refusal(row: dict[str, Any], reason: str) -> dict[str, Any]:
    return {"id": row["id"], "refused": reason}


def answer(row: dict[str, Any]) -> dict[str, Any]:
    """Return kvfit's estimate of one replica, without its rounding to whole sequences."""
    result, complaint = run_kvfit(row)
    if not result:
        lines = [line for line in complaint.splitlines() if not line.startswith("usage:")]
        error = next((line for line in lines if "error:" in line), lines[0])
        return refusal(row, error.removeprefix("kvfit: "))
    layout = json.loads(result)["layouts"][0]
    free_gib = layout["budget_per_rank_gib"] - layout["weights_per_rank_gib"]
    if layout["kv_per_sequence_per_rank_gib"] is None or free_gib <= 0:
        return refusal(row, f"{layout['verdict']}: {layout['reason']}")
    concurrency = free_gib / layout["kv_per_sequence_per_rank_gib"]
    return {
        "id": row["id"],
        "kv_tokens": concurrency * json.loads(result)["cache"]["context_tokens"],
        "max_concurrency": concurrency,
        "weights_gib": layout["weights_per_rank_gib"],
        "note": note(row),
    }


def note(row: dict[str, Any]) -> str:
    config = readable_config(row["config"])
    renamed = "" if config is row["config"] else f"read as {config['model_type']}"
    return f"{renamed}{' pipeline stages as tensor shards' if row['pipeline'] > 1 else ''}"


def main() -> None:
    for line in sys.stdin:
        sys.stdout.write(json.dumps(answer(json.loads(line))) + "\n")


if __name__ == "__main__":
    main()
