"""Asks AIConfigurator (0.12.0) how fast an engine runs. Runs inside its virtual environment.

JSON lines in, JSON lines out. First its measured tables alone; where they refuse, the tables with
its formulas in their gaps. Its own reason for the first refusal is kept.
"""

import functools
import importlib
import json
import logging
import re
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rival_aiconfigurator import KV_MODES, READ_METHODS, readable_config, reason

Question = dict[str, Any]
Spoken = dict[str, Any]
Store = Callable[[str], str]
"""From the text of a configuration to the folder that holds it as ``config.json``."""

SYSTEMS = {
    "H100": "h100_sxm",
    "H100-SXM": "h100_sxm",
    "H100-PCIe": "h100_pcie",
    "H200": "h200_sxm",
    "H200-SXM": "h200_sxm",
    "B200": "b200_sxm",
    "B200-SXM": "b200_sxm",
    "B300": "b300_sxm",
    "B300-SXM": "b300_sxm",
    "GB200": "gb200",
    "GB300": "gb300",
    "A100-80GB-SXM": "a100_sxm",
    "A100-80GB-PCIe": "a100_pcie",
    "A30": "a30",
    "L4": "l4",
    "L40S": "l40s",
    "RTX-PRO-6000": "rtx_pro_6000_server",
}
"""The boards that it has a name for, with or without measurements."""
NEAREST_BOARDS = {
    "A100-40GB-SXM": "a100_sxm",
    "A100-80GB-PCIe": "a100_sxm",
    "GH200-96GB": "h200_sxm",
    "H100-PCIe": "h100_sxm",
    "H100-NVL": "h100_sxm",
    "L4": "l40s",
}
"""The nearest measured board of those without; asked only on request."""

READ_SCHEMES = READ_METHODS | {"compressed-tensors"}
"""The quantization methods of a ``config.json`` that it reads; others are named to it."""
NAMED_MODES = {
    "fp16": ("bfloat16", "bfloat16"),
    "bf16": ("bfloat16", "bfloat16"),
    "fp8": ("fp8", "fp8"),
    "nvfp4": ("nvfp4", "nvfp4"),
    "mxfp4": ("bfloat16", "w4a16_mxfp4"),
    "int4": ("int4_wo", "int4_wo"),
    "int8": ("sq", "bfloat16"),
}
"""Its modes for dense layers and for experts."""
DATABASES = ("SILICON", "HYBRID")
MS_PER_S = 1000


def modes(question: Question, scheme: dict[str, Any]) -> dict[str, str]:
    """Return the precisions to name; those that it is to read from the checkpoint are left out.

    Asked about a checkpoint of fp8, it can take the checkpoint's scheme or plain fp8. It gets the
    one that errs less on the engine: plain on vLLM, where its tables of block scales give twice
    the measured step on B200 and B300, and the checkpoint's own on the others.

    Raises:
        KeyError: it has no mode for these weights.
    """
    kind: str = question["kind"]
    cache: str = question["kv_dtype"]
    named = {"kvcache_quant_mode": KV_MODES.get(cache, cache)}
    is_declared = kind in json.dumps(scheme).lower()
    is_plain = question["engine"] == "vllm" and kind in {"fp8", "nvfp4"}
    is_unlike = kind in {"fp16", "bf16", "fp8", "nvfp4"} and not is_declared
    if scheme and not is_plain and not is_unlike:
        return named
    dense, experts = NAMED_MODES[kind]
    return named | {"gemm_quant_mode": dense, "moe_quant_mode": experts}


def checkpoint(question: Question) -> tuple[dict[str, Any], dict[str, Any], str]:
    """Return a configuration that it reads, its quantization scheme, and what was done for it."""
    config = dict(question["config"])
    if config.get("quantization_config", {}).get("quant_method") not in READ_SCHEMES:
        config.pop("quantization_config", None)
    scheme = config.get("quantization_config", {})
    readable, note = readable_config(config)
    return readable, scheme, note


def system_of(question: Question) -> str:
    """Return its name of the board.

    Raises:
        ValueError: it has none.
    """
    nearest = NEAREST_BOARDS.get(question["board"]) if question["nearest_boards"] else None
    system = nearest or SYSTEMS.get(question["board"])
    if system is None:
        raise ValueError(f"no system for {question['board']}")
    return system


def arguments(question: Question, model_path: str, named: dict[str, str]) -> dict[str, Any]:
    return {
        "model_path": model_path,
        "system_name": system_of(question),
        "backend_name": question["engine"],
        "mode": question["mode"],
        "isl": question["isl"],
        "osl": question["osl"],
        "batch_size": question["batch"],
        "tp_size": question["tensor"],
        "pp_size": question["pipeline"],
        "attention_dp_size": question["data"],
        "moe_tp_size": question["expert_tensor"],
        "moe_ep_size": question["expert"],
        **named,
    }


def figures(question: Question, said: Any) -> Spoken:
    """Return what it says in the units of the rows: milliseconds, and tokens per second."""
    if question["mode"] == "agg":
        tokens = question["isl"] + question["osl"]
        return {
            "ttft_ms": float(said.ttft),
            "tpot_ms": float(said.tpot),
            "tokens_per_s": float(said.tokens_per_second),
            "total_tok_s_per_gpu": float(said.raw["seq/s/gpu"]) * tokens,
        }
    prefill_ms, step_ms = float(said.ttft) or None, float(said.tpot) or None
    prompts = question["batch"] * question["data"] * question["isl"]
    return {
        "prefill_ms": prefill_ms,
        "prefill_tok_s": prefill_ms and prompts * MS_PER_S / prefill_ms,
        "decode_step_ms": step_ms,
        **(whole_batch(said) if prefill_ms and step_ms else {}),
    }


def whole_batch(said: Any) -> Spoken:
    """Return the figures of requests that start together: each waits for all prompts."""
    return {
        "ttft_ms": float(said.ttft),
        "tpot_ms": float(said.tpot),
        "batch_e2e_ms": float(said.request_latency),
        "tokens_per_s": float(said.tokens_per_second),
    }


def why(error: Exception) -> str:
    """Return its first sentence, without paths and keys of its tables.

    >>> why(ValueError("No database found for system=l4, backend=vllm. Check --systems-paths"))
    'No database found for system=l4, backend=vllm'
    """
    text = re.sub(r" '/[^']*'|^\w+Error: |perf database error: ", "", reason(error))
    text = re.split(r"\. | at /| for MoeKey|; available| with the given", text)[0]
    return text.rstrip(". ")[:160]


def answer(question: Question, estimate: Callable[..., Any], store: Store) -> Spoken:
    """Return its answer to one question, by the first of its databases that gives one."""
    refusals: list[str] = []
    for database in DATABASES:
        try:
            config, scheme, note = checkpoint(question)
            named = modes(question, scheme)
            asked = arguments(question, store(json.dumps(config)), named)
            said = estimate(**asked, database_mode=database)
            notes = [note, "queues by its own count" if said.kv_cache_warning else ""]
            spoken = figures(question, said)
        except Exception as error:  # whatever it raises is its answer
            refusals.append(why(error))
            continue
        done = {"database": database, "note": ", ".join(filter(None, notes))}
        return {"point": question["point"], **spoken, **done}
    return {"point": question["point"], "refused": refusals[0]}


def stored(folder: Path, text: str) -> str:
    """Write a configuration as a checkpoint folder, once for each text, and return its path."""
    path = Path(tempfile.mkdtemp(dir=folder))
    (path / "config.json").write_text(text)
    return str(path)


def remembering() -> Callable[..., Any]:
    """Return its estimator, with its databases kept between calls.

    Without that each call reads some 500 files again.
    """
    databases = importlib.import_module("aiconfigurator.sdk.perf_database")
    for name in ("get_latest_database_version", "get_database_view"):
        setattr(databases, name, functools.cache(getattr(databases, name)))
    estimate: Callable[..., Any] = importlib.import_module("aiconfigurator.cli.api").cli_estimate
    return estimate


def main() -> None:
    logging.disable(logging.CRITICAL)
    estimate = remembering()
    with tempfile.TemporaryDirectory() as folder:
        store = functools.cache(functools.partial(stored, Path(folder)))
        for line in sys.stdin:
            spoken = answer(json.loads(line), estimate, store)
            sys.stdout.write(json.dumps(spoken) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
