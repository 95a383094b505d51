"""The errors of predicted KV caches against printed ones, as a page that can be read."""

import re
import tomllib
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from fit_memory import fit, read_rows
from measured import SPREAD_HEADER, spread
from memory_cases import case_of, version_of

from tonnage.catalog.engine import memory_constants
from tonnage.catalog.gpu import CatalogError
from tonnage.sizing.errors import SizingError
from tonnage.units import GIB

Row = Mapping[str, str]
Found = Mapping[str, object]
Predict = Callable[..., Found]
REASONS = tomllib.loads(Path(__file__).with_name("memory_reasons.toml").read_text())
OUTSIDE = 0.06
"""A row whose error exceeds this is listed."""
COMPONENTS = {
    "weights": "measured_weights_gib",
    "activations": "measured_activation_gib",
    "runtime": "measured_non_torch_gib",
    "KV pool": "measured_available_kv_gib",
}


def report(
    rows: Sequence[Row],
    configs: Mapping[str, Any],
    found: Sequence[Found],
    *,
    predict: Predict,
) -> str:
    """Return the page."""
    errors = {row["id"]: error_of(row, each) for row, each in zip(rows, found, strict=True)}
    left_out = left_out_errors(rows, configs, predict)
    sections = [
        _head(rows, found, errors, left_out),
        _table("By family", rows, errors, lambda row: family_of(row, configs)),
        _table("By vLLM version", rows, errors, _era),
        _table("By GPU", rows, errors, lambda row: row["gpu"].replace("NVIDIA ", "")),
        _components(rows, configs),
        _outside(rows, found, errors),
    ]
    return "\n\n".join(sections) + "\n"


def measured_tokens(row: Row) -> float | None:
    if row["measured_kv_tokens"]:
        return float(row["measured_kv_tokens"])
    if row["measured_gpu_blocks"] and row["block_size"]:
        return float(row["measured_gpu_blocks"]) * float(row["block_size"])
    return None


def error_of(row: Row, found: Found) -> float | None:
    """Return the relative error of concurrency, else of tokens; None where neither is known."""
    if found.get("kv_tokens") is None:
        return None
    if row["measured_max_concurrency"] and row["max_model_len"]:
        return float(str(found["max_concurrency"])) / float(row["measured_max_concurrency"]) - 1
    tokens = measured_tokens(row)
    return None if tokens is None else float(str(found["kv_tokens"])) / tokens - 1


def left_out_errors(
    rows: Sequence[Row], configs: Mapping[str, Any], predict: Predict
) -> dict[str, float | None]:
    """Return the errors with the source of each row left out of the fit."""
    samples = read_rows()
    errors = {}
    for row in rows:
        rest = [each for each in samples if source_of(each) != source_of(row)]
        memories = memory_constants() if len(rest) == len(samples) else fit(rest)
        errors[row["id"]] = error_of(row, predict(row, configs, memories))
    return errors


def source_of(row: Row) -> str:
    """Return who measured: one planner's reports are one source."""
    found = re.match(r"llm-d-incubation/llm-d-planner", row["source"])
    return found[0] if found else row["source"]


def widths_of(rows: Sequence[Row], found: Sequence[Found]) -> list[float]:
    """Return high over low of the ranges that are judged."""
    return [
        float(str(each["high_kv_tokens"])) / max(1.0, float(str(each["low_kv_tokens"])))
        for row, each in zip(rows, found, strict=True)
        if measured_tokens(row) is not None and each.get("kv_tokens") is not None
    ]


def within_range(rows: Sequence[Row], found: Sequence[Found]) -> tuple[int, int]:
    """Return how many measured token counts lie in the stated range, and how many there are."""
    judged = [
        float(str(each["low_kv_tokens"])) <= tokens <= float(str(each["high_kv_tokens"]))
        for row, each in zip(rows, found, strict=True)
        if (tokens := measured_tokens(row)) is not None and each.get("kv_tokens") is not None
    ]
    return sum(judged), len(judged)


def _head(
    rows: Sequence[Row],
    found: Sequence[Found],
    errors: Mapping[str, float | None],
    left_out: Mapping[str, float | None],
) -> str:
    inside, judged = within_range(rows, found)
    refused = sum(1 for each in found if each.get("kv_tokens") is None)
    supported = [row["id"] for row in rows if _minor(row) >= OLDEST]
    stated = [row["id"] for row in rows if row["gpu_memory_utilization"]]
    lines = [
        "# KV cache: predicted against printed",
        "",
        "Errors of concurrency at the longest length, else of tokens. Positive: too much.",
        "",
        SPREAD_HEADER,
        f"| all rows | {spread(errors.values())} |",
        f"| source of the row left out of the fit | {spread(left_out.values())} |",
        f"| versions that the operator runs (0.{OLDEST} on) | "
        f"{spread(errors[each] for each in supported)} |",
        f"| the same, source left out | {spread(left_out[each] for each in supported)} |",
        f"| rows that state the utilization | {spread(errors[each] for each in stated)} |",
        "",
        f"The stated range holds the truth in {inside} of {judged} rows, at a median width of "
        f"{median(widths_of(rows, found)):.2f} (high over low). "
        f"{refused} of {len(rows)} rows are refused.",
    ]
    return "\n".join(lines)


OLDEST = 11


def _minor(row: Row) -> int:
    return int(version_of(row["vllm_version"]).partition(".")[2])


def _era(row: Row) -> str:
    minor = _minor(row)
    names = {8: "before 0.8", 11: "0.8 to 0.10", 17: "0.11 to 0.16", 20: "0.17 to 0.19"}
    return next((name for first, name in names.items() if minor < first), "0.20 on")


def family_of(row: Row, configs: Mapping[str, Any]) -> str:
    """Name the kind of cache: what the arithmetic differs by."""
    try:
        case = case_of(row, configs, memory_constants())
    except (CatalogError, SizingError, KeyError, ValueError):
        return "refused"
    kinds = {type(attention).__name__ for _, attention in case.shape.attentions()}
    if "StateAttention" in kinds:
        return "with states"
    if "LatentAttention" in kinds:
        return "latent"
    return "windows" if len(case.layout.groups) > 1 else "grouped"


def _table(
    title: str,
    rows: Sequence[Row],
    errors: Mapping[str, float | None],
    key: Callable[[Row], str],
) -> str:
    groups: defaultdict[str, list[float | None]] = defaultdict(list)
    for row in rows:
        groups[key(row)].append(errors[row["id"]])
    lines = [f"| {name} | {spread(members)} |" for name, members in sorted(groups.items())]
    return "\n".join([f"## {title}", "", SPREAD_HEADER, *lines])


def _components(rows: Sequence[Row], configs: Mapping[str, Any]) -> str:
    """Errors in GiB per GPU of what logs print beside the tokens."""
    gaps: defaultdict[str, list[float]] = defaultdict(list)
    for row in rows:
        for name, gap in _gaps(row, configs):
            gaps[name].append(gap)
    lines = [
        "## Components",
        "",
        "| | rows | median GiB | p90 GiB | bias GiB |",
        "|---|---|---|---|---|",
    ]
    for name, members in gaps.items():
        size = [abs(gap) for gap in members]
        ninth = quantiles(size, n=10, method="inclusive")[-1]
        lines.append(
            f"| {name} | {len(members)} | {median(size):.2f} | {ninth:.2f} | "
            f"{median(members):+.2f} |"
        )
    over = [share for row in rows if (share := _share_of_usable(row, configs)) is not None]
    ninth = quantiles(over, n=10, method="inclusive")[-1]
    lines += [
        "",
        f"The pool's error over the usable memory: {median(over):.1%}, p90 {ninth:.1%} "
        f"({len(over)} rows).",
    ]
    return "\n".join(lines)


def _share_of_usable(row: Row, configs: Mapping[str, Any]) -> float | None:
    """Return how far the pool is off, over what the engine may use: small pools count as large."""
    gap = dict(_gaps(row, configs)).get("KV pool")
    if gap is None:
        return None
    usable_bytes = case_of(row, configs, memory_constants()).budget.usable_bytes
    return abs(gap) * GIB / usable_bytes


def _gaps(row: Row, configs: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    try:
        case = case_of(row, configs, memory_constants())
    except (CatalogError, SizingError, KeyError, ValueError):
        return
    for name, column in COMPONENTS.items():
        if row[column]:
            ours = case.budget.kv_pool_bytes if name == "KV pool" else case.budget.bytes_of(name)
            yield name, ours / GIB - float(row[column])


def _outside(
    rows: Sequence[Row], found: Sequence[Found], errors: Mapping[str, float | None]
) -> str:
    lines = [f"## Rows off by more than {OUTSIDE:.0%}, and refused ones", ""]
    lines += ["| row | model | error | why |", "|---|---|---|---|"]
    for row, each in zip(rows, found, strict=True):
        error = errors[row["id"]]
        if each.get("kv_tokens") is None:
            lines.append(f"| {row['id']} | {_what(row)} | refused | {each['refused']} |")
        elif error is not None and abs(error) > OUTSIDE:
            why = REASONS.get(row["id"], "not explained")
            lines.append(f"| {row['id']} | {_what(row)} | {error:+.0%} | {why} |")
    return "\n".join(lines)


def _what(row: Row) -> str:
    version = re.match(r"~?[\w.]+", row["vllm_version"])
    return f"{row['model']}, vLLM {version[0] if version else '?'}, {row['gpu']} x {row['n_gpus']}"
