"""The errors of predicted KV caches against printed ones, as a page that can be read."""

import re
import tomllib
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from fit_memory import ROWS_FILE, fit
from measured import SPREAD_HEADER, read_csv, spread, table
from memory_cases import Case, case_of, version_of

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
HEAD = """\
# KV cache: predicted against printed

Errors of concurrency at the longest length, else of tokens. Positive: too much.
"""
PARTS = """\
## Components

| | rows | median GiB | p90 GiB | bias GiB |
|---|---|---|---|---|"""
COMPONENTS = {
    "weights": "measured_weights_gib",
    "activations": "measured_activation_gib",
    "runtime": "measured_non_torch_gib",
    "KV pool": "measured_available_kv_gib",
}


def report(
    rows: Sequence[Row], configs: Mapping[str, Any], found: Sequence[Found], *, predict: Predict
) -> str:
    """Return the page."""
    errors = {row["id"]: error_of(row, each) for row, each in zip(rows, found, strict=True)}
    cases = {row["id"]: understood(row, configs) for row in rows}
    sections = [
        _head(rows, found, errors, left_out_errors(rows, configs, predict)),
        _table("By family", rows, errors, lambda row: family_of(cases[row["id"]])),
        _table("By vLLM version", rows, errors, _era),
        _table("By GPU", rows, errors, lambda row: row["gpu"].replace("NVIDIA ", "")),
        _components(rows, cases),
        _outside(rows, found, errors),
    ]
    return "\n\n".join(sections) + "\n"


def understood(row: Row, configs: Mapping[str, Any]) -> Case | None:
    """Return the case of a row; None where it is refused."""
    with suppress(CatalogError, SizingError, KeyError, ValueError):
        return case_of(row, configs, memory_constants())
    return None


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
    samples = read_csv(ROWS_FILE)
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


def ranges_of(rows: Sequence[Row], found: Sequence[Found]) -> list[tuple[float, float, float]]:
    """Return low, measured and high of the ranges that are judged, in tokens."""
    return [
        (float(str(each["low_kv_tokens"])), tokens, float(str(each["high_kv_tokens"])))
        for row, each in zip(rows, found, strict=True)
        if (tokens := measured_tokens(row)) is not None and each.get("kv_tokens") is not None
    ]


def _head(
    rows: Sequence[Row],
    found: Sequence[Found],
    errors: Mapping[str, float | None],
    left_out: Mapping[str, float | None],
) -> str:
    judged = ranges_of(rows, found)
    inside = sum(low <= tokens <= high for low, tokens, high in judged)
    width = median(high / max(1.0, low) for low, _, high in judged)
    refused = sum(1 for each in found if each.get("kv_tokens") is None)
    supported = [row["id"] for row in rows if _minor(row) >= OLDEST]
    stated = [row["id"] for row in rows if row["gpu_memory_utilization"]]
    lines = {
        "all rows": errors.values(),
        "source of the row left out of the fit": left_out.values(),
        f"versions that the operator runs (0.{OLDEST} on)": [errors[each] for each in supported],
        "the same, source left out": [left_out[each] for each in supported],
        "rows that state the utilization": [errors[each] for each in stated],
    }
    spreads = [f"| {name} | {spread(each)} |" for name, each in lines.items()]
    ranges = (
        f"The stated range holds the truth in {inside} of {len(judged)} rows, at a median width of "
        f"{width:.2f} (high over low). {refused} of {len(rows)} rows are refused."
    )
    return "\n".join([HEAD, SPREAD_HEADER, *spreads, "", ranges])


OLDEST = 11


def _minor(row: Row) -> int:
    return int(version_of(row["vllm_version"]).partition(".")[2])


def _era(row: Row) -> str:
    minor = _minor(row)
    names = {8: "before 0.8", 11: "0.8 to 0.10", 17: "0.11 to 0.16", 20: "0.17 to 0.19"}
    return next((name for first, name in names.items() if minor < first), "0.20 on")


def family_of(case: Case | None) -> str:
    """Name the kind of cache: what the arithmetic differs by."""
    if case is None:
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


def _components(rows: Sequence[Row], cases: Mapping[str, Case | None]) -> str:
    """Errors in GiB per GPU of what logs print beside the tokens."""
    gaps, shares = defaultdict[str, list[float]](list), list[float]()
    for row, case in ((row, case) for row in rows if (case := cases[row["id"]])):
        for name, column in COMPONENTS.items():
            if row[column]:
                is_pool, budget = name == "KV pool", case.budget
                ours = budget.kv_pool_bytes if is_pool else budget.bytes_of(name)
                gaps[name].append(gap := ours / GIB - float(row[column]))
                shares += [abs(gap) * GIB / budget.usable_bytes] if is_pool else []
    lines = [
        f"| {name} | {len(each)} | {' | '.join(_sizes(map(abs, each), '{:.2f}'))} "
        f"| {median(each):+.2f} |"
        for name, each in gaps.items()
    ]
    usable = "The pool's error over the usable memory: {}, p90 {}".format(*_sizes(shares, "{:.1%}"))
    return "\n".join([PARTS, *lines, "", f"{usable} ({len(shares)} rows)."])


def _sizes(sizes: Iterable[float], form: str) -> list[str]:
    """Return median and 90th percentile as text."""
    found = [*sizes]
    ninth = quantiles(found, n=10, method="inclusive")[-1]
    return [form.format(median(found)), form.format(ninth)]


def _outside(
    rows: Sequence[Row], found: Sequence[Found], errors: Mapping[str, float | None]
) -> str:
    lines = []
    for row, each in zip(rows, found, strict=True):
        name, error = row["id"], errors[row["id"]]
        if each.get("kv_tokens") is None:
            lines.append((name, _what(row), "refused", str(each["refused"])))
        elif error is not None and abs(error) > OUTSIDE:
            why = REASONS.get(name, "not explained")
            lines.append((name, _what(row), f"{error:+.0%}", why))
    title = f"## Rows off by more than {OUTSIDE:.0%}, and refused ones\n\n"
    return title + table(["row", "model", "error", "why"], lines)


def _what(row: Row) -> str:
    version = re.match(r"~?[\w.]+", row["vllm_version"])
    return f"{row['model']}, vLLM {version[0] if version else '?'}, {row['gpu']} x {row['n_gpus']}"
