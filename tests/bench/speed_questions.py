"""What a careful user tells an estimator of speed about a measured operating point."""

import json
import re
from collections.abc import Sequence
from typing import Any

from rivals import Document, Row, checkpoint_config, kv_dtype, quantization

DECODE = {"decode_step_ms"}
PREFILL = {"prefill_ms", "prefill_tok_s"}
WHOLE_BATCH = DECODE | PREFILL | {"batch_e2e_ms"}
UNIFORM_MEAN = 0.9
"""Of lengths drawn uniformly in [0.8, 1.0] of the nominal ones."""
READ_AS_FP8_CACHE = {"fp8", "nvfp4"}


class UnaskableError(ValueError):
    """A row leaves out what every estimate needs."""


def point_of(row: Row) -> str:
    """Return the operating point of a row: its metrics share one.

    >>> point_of({"id": "aic-00810:tpot_p50_ms"})
    'aic-00810'
    """
    return row["id"].partition(":")[0]


def question(members: Sequence[Row], configs: Document) -> dict[str, Any]:
    """Return what it is told about an operating point, from the rows that measured it.

    Raises:
        UnaskableError: the rows leave out what is needed, named in the text.
    """
    row = members[0]
    kind, config = weights_of(row, configs)
    split = split_of(row)
    requests = number(row, "concurrency_or_batch") / split["data"]
    return {
        "point": point_of(row),
        "board": row["gpu"].rstrip("?"),
        "engine": row["engine"],
        **traffic(members),
        "batch": max(1, round(requests)),
        **split,
        "kind": kind,
        "kv_dtype": cache_dtype(row, kind, config),
        "config": config,
    }


def weights_of(row: Row, configs: Document) -> tuple[str, dict[str, Any]]:
    """Return the kind of weights and the configuration of the checkpoint that has them.

    Some sources write fp4 for either format of 4 bits; the checkpoint says which.

    Raises:
        UnaskableError: the document has no such model.
    """
    model, label = row["model"], row["weight_quant"]
    config = checkpoint_config(model, label, configs)
    if label == "fp4":
        scheme = config and config.get("quantization_config")
        label = "mxfp4" if "mxfp4" in json.dumps(scheme) else "nvfp4"
        config = checkpoint_config(model, label, configs)
    if config is None:
        raise UnaskableError(f"no config.json of {model}")
    return quantization(label), config


def traffic(members: Sequence[Row]) -> dict[str, Any]:
    """Return its mode of asking and the lengths.

    A closed loop mixes prompts into steps; requests that start together are a static batch.
    """
    row, metrics = members[0], {member["metric"] for member in members}
    if metrics <= DECODE:
        return {"mode": "static_gen", "isl": round(number(row, "context_tokens")), "osl": 2}
    scale = UNIFORM_MEAN if "uniform in [0.8,1.0]" in row["note"] else 1.0
    prompt = round(scale * number(row, "isl"))
    if metrics <= PREFILL:
        return {"mode": "static_ctx", "isl": prompt, "osl": 1}
    starts_together = metrics & WHOLE_BATCH or "prompts sent at once" in row["note"]
    mode = "static" if starts_together else "agg"
    return {"mode": mode, "isl": prompt, "osl": round(scale * number(row, "osl"))}


def number(row: Row, column: str) -> float:
    """Return a number of a row.

    Raises:
        UnaskableError: the cell is empty, or only a bound.
    """
    try:
        return float(row[column])
    except ValueError:
        raise UnaskableError(f"{column} is {row[column]!r}") from None


def split_of(row: Row) -> dict[str, int]:
    """Return the widths of a replica; experts go over all its ranks as slices unless it says.

    >>> split_of({"tp": "8", "pp": "", "dp_or_ep": "ep8"})["expert_tensor"]
    1
    >>> split_of({"tp": "4", "pp": "1", "dp_or_ep": "dp1;moe_tp2;ep2"})["expert_tensor"]
    2
    """
    widths = dict(re.findall(r"(?:^|;)(dp|moe_tp|ep)(\d+)", row["dp_or_ep"]))
    tensor, data = int(row["tp"] or 1), int(widths.get("dp", 1))
    expert = int(widths.get("ep", 1))
    return {
        "tensor": tensor,
        "pipeline": int(row["pp"] or 1),
        "data": data,
        "expert_tensor": int(widths.get("moe_tp", tensor * data // expert)),
        "expert": expert,
    }


def cache_dtype(row: Row, kind: str, config: Document) -> str:
    """Return the type of the cache: of the row, else what the engine makes of the checkpoint.

    vLLM keeps 16 bits unless the checkpoint says otherwise. For other engines its own rule
    stands, 8 bits for every checkpoint of 8 or fewer.
    """
    if row["kv_dtype"]:
        return "bf16" if row["kv_dtype"] == "fp16" else row["kv_dtype"]
    if row["engine"] != "vllm" and kind in READ_AS_FP8_CACHE:
        return "fp8"
    return kv_dtype("auto", kind, config)
